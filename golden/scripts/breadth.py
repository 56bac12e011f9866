"""Seeded small checkpoints for everything beyond tiny.py: head ratios, RoPE scaling, windows, experts, length.

Weights are drawn as in tiny.py, so that a bias, norm, scaling or expert that is dropped shows at once.
"""

from dataclasses import dataclass, field

import torch
import transformers
from transformers import GenerationConfig

from common import arguments, deterministic, read_json, relative_rms, write_json, write_trace
from record import check_equals_eager, load, producer, run
from tiny import NOTES, fill

SHAPE = dict(
    vocab_size=160,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=64,
    max_position_embeddings=1024,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    tie_word_embeddings=True,
    bos_token_id=156,
    eos_token_id=157,
)
EXPERTS = dict(
    num_hidden_layers=2,
    intermediate_size=128,
    moe_intermediate_size=48,
    num_experts=8,
    num_experts_per_tok=3,
    tie_word_embeddings=False,
)
WINDOW = dict(num_hidden_layers=3, sliding_window=5, max_window_layers=1)


@dataclass(frozen=True)
class Spec:
    seed: int
    family: str  # Qwen2, Qwen3 or Qwen3Moe
    config: dict  # over SHAPE
    tokens: int
    v4: dict | None = None  # config.json in the transformers 4 spelling, with these fields besides
    segments: list | None = None
    dtypes: tuple = ("f64", "bf16", "f16")
    probes: tuple = field(default=())  # endings of the recorded probes; empty: all


SPECS = {
    "gqa7-qwen2": Spec(
        7000, "Qwen2",
        dict(vocab_size=331, hidden_size=84, num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=False),
        8,
        v4={}, dtypes=("f64", "bf16"),
    ),
    "moe-qwen3": Spec(7021, "Qwen3Moe", EXPERTS | dict(mlp_only_layers=[0], norm_topk_prob=False), 12),
    "moe-norm-qwen3": Spec(
        7002, "Qwen3Moe", EXPERTS | dict(norm_topk_prob=True), 12,
        v4=dict(rope_scaling=None, max_window_layers=2, sliding_window=None),
    ),
    "yarn-qwen3": Spec(
        7003, "Qwen3",
        dict(
            num_attention_heads=5,
            head_dim=128,
            max_position_embeddings=64,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=16
            ),
        ),
        19,
        dtypes=("f64", "bf16"),
    ),
    "window-qwen2": Spec(7004, "Qwen2", WINDOW | dict(use_sliding_window=True), 16, dtypes=("f64", "bf16")),
    "window-off-qwen2": Spec(
        7004, "Qwen2", WINDOW | dict(use_sliding_window=False), 16,
        v4=dict(sliding_window=5, max_window_layers=1), dtypes=("f64", "bf16"),
    ),
    "yarn-attn-qwen2": Spec(
        7005, "Qwen2",
        dict(
            rms_norm_eps=1e-5,
            max_position_embeddings=256,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64,
                attention_factor=1.375, beta_fast=4, beta_slow=0.5,
            ),
            tie_word_embeddings=False,
        ),
        12,
        v4={},
    ),
    "linear-qwen3": Spec(
        7006, "Qwen3", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)), 10,
        v4=dict(rope_scaling=dict(type="linear", factor=4.0)), dtypes=("f64", "bf16"),
    ),
    "dynamic-qwen3": Spec(
        7007, "Qwen3",
        dict(
            max_position_embeddings=8,
            rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0),
        ),
        18,
        segments=[[0, 6], [6, 11], [11, 18]], dtypes=("f64", "bf16"),
    ),
    "long-qwen3": Spec(
        7008, "Qwen3", dict(vocab_size=96, num_attention_heads=5, bos_token_id=92, eos_token_id=93), 300,
        segments=[[0, 128], [128, 256], [256, 300]], dtypes=("f64", "bf16"), probes=("mlp_residual", "logits"),
    ),
}  # fmt: skip


def model_of(spec):
    config = getattr(transformers, spec.family + "Config")(**(SHAPE | spec.config))
    return fill(getattr(transformers, spec.family + "ForCausalLM")(config), spec.seed)


def to_v4_spelling(path, more):
    """Rewrite config.json as transformers 4 spelled it."""
    config = read_json(path)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] != "default":
        config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    for key in ("layer_types", "transformers_version", "pad_token_id"):
        config.pop(key, None)
    write_json(path, dict(sorted((config | more).items())))


def build(name, folder):
    spec = SPECS[name]
    model = model_of(spec)
    config = model.config
    model.generation_config = GenerationConfig(bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id)
    model.save_pretrained(folder)
    if spec.v4 is not None:
        to_v4_spelling(folder / "config.json", spec.v4)


def tokens_of(spec):
    """Seeded ids, the first and the last of the vocabulary among them."""
    vocabulary = SHAPE["vocab_size"] if "vocab_size" not in spec.config else spec.config["vocab_size"]
    g = torch.Generator().manual_seed(spec.seed)
    ids = torch.randint(0, vocabulary, (spec.tokens,), generator=g).tolist()
    ids[1], ids[2] = 0, vocabulary - 1
    return ids


def routes(tensors):
    return {name: t != 0 for name, t in tensors.items() if name.endswith("routing")}


def traces(name, checkpoint, out):
    spec = SPECS[name]
    tokens, made = tokens_of(spec), {}
    for dtype in spec.dtypes:
        model = load(checkpoint, dtype)
        made[dtype] = run(model, tokens, spec.segments).tensors
        if dtype != "f64":
            check_equals_eager(checkpoint, dtype, tokens, made[dtype]["logits"], spec.segments)
        how = "one prefill" if spec.segments is None else f"{len(spec.segments)} calls over one cache"
        write_trace(
            out / "traces" / name / dtype,
            {p: t for p, t in made[dtype].items() if not spec.probes or p.endswith(spec.probes)},
            producer=producer(),
            dtype=dtype,
            architecture=type(model).__name__,
            tokens=tokens,
            layers=model.config.num_hidden_layers,
            notes=f"{name}, {NOTES[dtype == 'f64']}, {how} on the CPU",
            segments=spec.segments,
        )
    exact = made["f64"]
    for dtype in spec.dtypes[1:]:
        for probe, chosen in routes(exact).items():
            assert torch.equal(routes(made[dtype])[probe], chosen), f"{name}: {dtype} chooses other experts at {probe}"
        error = relative_rms(made[dtype]["logits"], exact["logits"])
        print(f"{name}: logits {dtype} against f64: relative rms {error:.2e}")


def main():
    options = arguments(__doc__.splitlines()[0])
    for name in options.names or SPECS:
        deterministic(SPECS[name].seed)
        checkpoint = options.out / "checkpoints" / name
        build(name, checkpoint)
        traces(name, checkpoint, options.out)


if __name__ == "__main__":
    main()
