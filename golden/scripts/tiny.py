"""Seeded tiny Qwen2 and Qwen3 checkpoints and their traces in f64, f32 and bf16.

hidden / heads is 48 while head_dim is 128, biases and norm weights are far from 0 and 1, so that a
reader that guesses head_dim, drops a bias or skips a norm cannot agree by accident.
"""

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from common import arguments, deterministic, read_json, relative_rms, write_json, write_trace
from record import check_equals_eager, load, producer, run

SEEDS = {"tiny-qwen2": 2002, "tiny-qwen3": 3003}
TOKENS = [0, 17, 319, 64, 201, 5, 290, 128, 255, 33, 177, 242]
SHAPE = dict(
    vocab_size=320,
    hidden_size=192,
    intermediate_size=320,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    bos_token_id=316,
    eos_token_id=317,
)


def draw(name, shape, g):
    """A parameter of realistic scale, by its name."""
    if name.endswith("bias"):
        bias = torch.randn(shape, generator=g) * (1.0 if "v_proj" in name else 2.0)
        if "k_proj" in name:
            where = torch.randperm(shape[0], generator=g)[:4]
            bias[where] = (torch.rand(4, generator=g) * 10 + 20) * torch.tensor([1.0, -1.0, 1.0, -1.0])
        return bias
    if "norm" in name:
        weight = torch.rand(shape, generator=g) * 2.2 + 0.3
        return torch.where(torch.rand(shape, generator=g) < 0.1, -weight, weight)
    if "embed_tokens" in name:
        return torch.randn(shape, generator=g) * 0.02
    return torch.randn(shape, generator=g) * shape[-1] ** -0.5


def fill(model, seed):
    for i, (name, parameter) in enumerate(sorted(model.named_parameters())):
        g = torch.Generator().manual_seed(seed * 1000 + i)
        parameter.data = draw(name, tuple(parameter.shape), g).to(torch.bfloat16)
    return model.to(torch.bfloat16)


def to_v4_spelling(path):
    """Rewrite config.json as transformers 4 spelled it; the window fields are set but switched off."""
    config = read_json(path)
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    for key in ("layer_types", "transformers_version", "pad_token_id"):
        config.pop(key, None)
    config.update(use_sliding_window=False, sliding_window=8, max_window_layers=1)
    write_json(path, dict(sorted(config.items())))


def build(name, folder):
    if name == "tiny-qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=False))
        shard = "1200KB"
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True))
        shard = "1GB"
    fill(model, SEEDS[name])
    model.generation_config = GenerationConfig(bos_token_id=316, eos_token_id=[318, 317], pad_token_id=316)
    model.save_pretrained(folder, max_shard_size=shard)
    if name == "tiny-qwen2":
        to_v4_spelling(folder / "config.json")


def traces(checkpoint, name, out, tokens, notes):
    """f64, f32 and bf16 traces of one checkpoint below out/traces/name."""
    logits = {}
    for dtype in ("f64", "f32", "bf16"):
        model = load(checkpoint, dtype)
        recorder = run(model, tokens)
        logits[dtype] = recorder.tensors["logits"]
        if dtype != "f64":
            check_equals_eager(checkpoint, dtype, tokens, logits[dtype])
        write_trace(
            out / "traces" / name / dtype,
            recorder.tensors,
            producer=producer(),
            dtype=dtype,
            architecture=type(model).__name__,
            tokens=tokens,
            layers=model.config.num_hidden_layers,
            notes=f"{name}, {notes[dtype == 'f64']}, one prefill on the CPU",
        )
    for dtype in ("f32", "bf16"):
        print(f"{name}: logits {dtype} against f64: relative rms {relative_rms(logits[dtype], logits['f64']):.2e}")


NOTES = (
    "transformers' own arithmetic with eager attention",
    "true float64: norm, rotary angle and softmax replaced by float64 ones",
)


def main():
    options = arguments(__doc__.splitlines()[0])
    for name in options.names or SEEDS:
        deterministic(SEEDS[name])
        checkpoint = options.out / "checkpoints" / name
        build(name, checkpoint)
        traces(checkpoint, name, options.out, TOKENS, NOTES)


if __name__ == "__main__":
    main()
