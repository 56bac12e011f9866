"""Recordings that `assay bisect` must end with the right names, and golden/bisect_cases.json, which has the names.

Three kinds. `continuous`: a constant with a value that is in no list of assay's, which must be estimated.
`unexplained`: one module does what no variant of assay's does, and the right op must be named as unexplained.
`pair`: two independent faults at once, of which both must be named; some of them are damage to a copy of the
checkpoint, which the test does (`damage`), beside a recorded fault. Folders are numbered and carry no hint.

How near an estimate must come follows from what a dozen tokens tell. theta: the slowest pairs turn by less than
1e-4 of a turn, the fastest do not depend on it; the pairs between leave a few per cent in bf16, so 5 %. eps: it
moves a norm by eps / 2 mean(x^2), 0.4 % of a row for 3e-6 on embeddings of sd 0.02, which is one bf16 step, known
from the many elements of a row to a fifth or better: 20 %. A factor on all elements of an op is known to a
fraction of a step of bf16: 1 %.

A factor is there twice, in bf16 and in f32: what is multiplied was stored before, and in bf16 that rounds twice.
"""

from dataclasses import dataclass, field
from typing import Callable

import torch

from breadth import SPECS
from check_checkpoints import plain_model
from common import GOLDEN, arguments, deterministic, relative_rms, write_json, write_trace
from faults import (
    drop_k_bias,
    gain,
    half_lanes,
    kv_head_modulo,
    layer,
    newest_key_dropped,
    patch_forward,
    skip_q_norm,
    swap_gate_and_up,
    turned_by,
)
from forward_faults import Wrong, drop_bias, load_wrong, rope, setting, tokens_of
from record import Recorder, producer, run_recorder

KEEP = {"ops": ("",), "layers": ("mlp_residual", "logits"), "logits": ("logits",)}
THETA, EPS, GAIN = 0.05, 0.2, 0.01


@dataclass
class Expected:
    name: str
    where: str = ""  # a probe or a file that the evidence must name; empty where logits alone cannot tell
    op: str = ""
    value: float | None = None
    within: float | None = None


@dataclass
class Case:
    kind: str
    checkpoint: str
    dtype: str
    keep: str  # ops, layers or logits
    detail: str
    expected: list
    config: Callable | None = None
    patches: tuple = ()  # (model, recorder) -> None
    recording: str = ""  # one of another fixture instead of a new one
    damage: list = field(default_factory=list)  # what the test does to a copy of the checkpoint


# --- what no variant of assay's does ---


def attention_output(n, stored):
    """Layer `n` stores stored(out), out being [1, tokens, heads, head_dim] in f32."""

    def patch(_, recorder):
        recorder.attention_override[n] = {"stored": lambda out: stored(out.float()).to(out.dtype)}

    return patch


def wave(out):
    position = torch.arange(out.shape[1], dtype=torch.float32)
    return out * (1.0 + 0.05 * torch.sin(position))[None, :, None, None]


def mean_magnitude(model, _):
    """q_norm of layer 0 divides by the mean of |x| instead of the root of the mean of x^2."""

    def forward(self, x):
        y = x.to(torch.float32)
        y = y / (y.abs().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * y.to(x.dtype)

    patch_forward(layer(model, 0).self_attn.q_norm, forward)


def gelu(model, _):
    layer(model, 1).mlp.act_fn = torch.nn.GELU(approximate="tanh")


def rows_exchanged(model, _):
    """Two rows in the middle of layer 0's down_proj change places: two columns of its output."""
    weight = layer(model, 0).mlp.down_proj.weight
    n = weight.shape[0] // 2
    weight[[n, n + 1]] = weight[[n + 1, n]]


def evenly_spaced(d):
    """Inverse frequencies that fall by equal steps from 1 instead of by equal factors."""
    return 1.0 - torch.arange(0, d, 2, dtype=torch.float32) / d


def one(name, **more):
    return [Expected(name, **more)]


def unexplained(op, where):
    return one("unexplained", op=op, where=where)


DOWNLOADED = {"file": "model.safetensors", "rename": "model.safetensors?download=true"}


def set_json(file, **values):
    return {"file": file, "set": values}


LABEL = dict(checkpoint_format="gptq_v2", format="gptq_v2")

CASES = [
    Case("continuous", "tiny-qwen2", "f32", "logits", "theta 3.3e5",
         one("forward.rope_theta", value=3.3e5, within=THETA), config=rope(rope_theta=3.3e5)),
    Case("continuous", "tiny-qwen3", "bf16", "ops", "theta 7.5e6",
         one("rope.wrong_theta", value=7.5e6, within=THETA), config=rope(rope_theta=7.5e6)),
    Case("continuous", "tiny-qwen2", "bf16", "ops", "eps 3e-6",
         one("rms_norm.wrong_eps", value=3e-6, within=EPS), config=setting(rms_norm_eps=3e-6)),
    Case("continuous", "tiny-qwen3", "f32", "logits", "eps 2.5e-4",
         one("forward.rms_norm_eps", value=2.5e-4, within=EPS), config=setting(rms_norm_eps=2.5e-4)),
    Case("continuous", "linear-qwen3", "bf16", "ops", "attention's output times 0.93 in layer 1",
         one("attention.gain", where="layers.1.attention", value=0.93, within=GAIN),
         patches=(attention_output(1, lambda out: out * 0.93),)),
    Case("continuous", "moe-qwen3", "f32", "layers", "theta 2.2e4",
         one("forward.rope_theta", value=2.2e4, within=THETA), config=rope(rope_theta=2.2e4)),
    Case("unexplained", "tiny-qwen3", "bf16", "ops", "attention's output times 1 + 0.05 sin(position) in layer 1",
         unexplained("attention", "layers.1.attention"), patches=(attention_output(1, wave),)),
    Case("unexplained", "linear-qwen3", "bf16", "ops", "q_norm of layer 0 divides by the mean of |x|",
         unexplained("rms_norm", "layers.0.q_norm"), patches=(mean_magnitude,)),
    Case("unexplained", "gqa7-qwen2", "bf16", "ops", "gelu (tanh form) for silu in layer 1",
         unexplained("silu_mul", "layers.1.silu_mul"), patches=(gelu,)),
    Case("unexplained", "gqa7-qwen2", "bf16", "ops", "two neighbouring rows of layer 0's down_proj exchanged",
         unexplained("matmul", "layers.0.down_proj"), patches=(rows_exchanged,)),
    Case("unexplained", "linear-qwen3", "bf16", "ops", "layer 1 rotates by evenly spaced frequencies",
         unexplained("rope", "layers.1.q_rope") + unexplained("rope", "layers.1.k_rope"), patches=(turned_by(1, evenly_spaced),)),
    Case("pair", "tiny-qwen2", "bf16", "ops", "num_key_value_heads 4 in config.json; a store that truncates",
         [Expected("config.kv_heads", where="config.json"), Expected("add.truncating_store", where="layers.1.mlp_residual")],
         recording="faults/fault-03", damage=[set_json("config.json", num_key_value_heads=4)]),
    Case("pair", "tiny-qwen3", "bf16", "ops", "the weights under a name that no engine looks for; 1 + weight in a norm",
         [Expected("file.odd_name", where="model.safetensors"), Expected("rms_norm.weight_plus_one", where="layers.0.post_norm")],
         recording="faults/fault-14", damage=[DOWNLOADED]),
    Case("pair", "gptq-qwen3", "bf16", "ops", "v1 labelled as v2; q_norm of layer 1 skipped",
         [Expected("quant.format"), Expected("rms_norm.skipped", where="layers.1.q_norm")],
         patches=(skip_q_norm,),
         damage=[{"file": "config.json", "in": "quantization_config", "set": LABEL}, set_json("quantize_config.json", **LABEL)]),
    Case("pair", "tiny-qwen3", "bf16", "ops", "o_proj of layer 0 times 1.02; half the lanes in a norm of layer 1",
         [Expected("matmul.gain", where="layers.0.o_proj"), Expected("rms_norm.half_lanes", where="layers.1.post_norm")],
         patches=(gain, half_lanes)),
    Case("pair", "gqa7-qwen2", "bf16", "ops", "kv head h mod 2 in layer 0; gate and up exchanged in layer 1",
         [Expected("attention.kv_head_modulo", where="layers.0.attention"), Expected("silu_mul.operands_swapped", where="layers.1.silu_mul")],
         patches=(kv_head_modulo, swap_gate_and_up)),
    Case("pair", "linear-qwen3", "bf16", "ops", "in layer 1 q_norm skipped, and the newest key not seen",
         [Expected("rms_norm.skipped", where="layers.1.q_norm"), Expected("attention.newest_key_dropped", where="layers.1.attention")],
         patches=(skip_q_norm, newest_key_dropped)),
    Case("pair", "gqa7-qwen2", "bf16", "ops", "theta 1e4; k_proj of layer 1 without its bias",
         [Expected("rope.wrong_theta", value=1e4, within=THETA), Expected("matmul.bias_dropped", where="layers.1.k_proj")],
         config=rope(rope_theta=1e4), patches=(drop_k_bias,)),
    Case("pair", "gqa7-qwen2", "f32", "logits", "no bias on q, k and v; theta 1e4",
         [Expected("forward.bias_dropped"), Expected("forward.rope_theta", value=1e4, within=THETA)],
         config=rope(rope_theta=1e4), patches=(drop_bias("q_proj", "k_proj", "v_proj"),)),
    Case("pair", "linear-qwen3", "f32", "logits", "no rope scaling; eps 1e-5",
         [Expected("forward.rope_scaling_ignored"), Expected("forward.rms_norm_eps", value=1e-5, within=EPS)],
         config=lambda c: (rope(rope_type="default")(c), setting(rms_norm_eps=1e-5)(c))),
    Case("pair", "moe-norm-qwen3", "bf16", "layers", "norm_topk_prob false; theta 1e4",
         [Expected("forward.topk_normalisation"), Expected("forward.rope_theta", value=1e4, within=THETA)],
         config=lambda c: (rope(rope_theta=1e4)(c), setting(norm_topk_prob=False)(c))),
    Case("continuous", "linear-qwen3", "f32", "ops", "attention's output times 0.93 in layer 1",
         one("attention.gain", where="layers.1.attention", value=0.93, within=GAIN),
         patches=(attention_output(1, lambda out: out * 0.93),)),
]  # fmt: skip


def load(case, sound=False):
    """The checkpoint under the case's config."""
    folder = GOLDEN / "checkpoints" / case.checkpoint
    if case.checkpoint.startswith("gptq"):
        assert case.config is None
        return plain_model(folder, case.dtype)
    config = None if sound else case.config
    return load_wrong(folder, Wrong(case.checkpoint, case.dtype, "", "", case.detail, config=config))


def tokens(case):
    return tokens_of(case.checkpoint if case.checkpoint in SPECS else "tiny")


def record(case):
    """The model, and the probes that the case keeps, in forward order."""
    model = load(case)
    recorder = Recorder(model)
    for patch in case.patches:
        patch(model, recorder)
    tensors = run_recorder(recorder, model, tokens(case)).tensors
    return model, {p: t for p, t in tensors.items() if p.endswith(KEEP[case.keep])}


def first_difference(case, tensors):
    """The first kept probe that differs from the sound recording, and how far the logits moved."""
    model = load(case, sound=True)
    sound = run_recorder(Recorder(model), model, tokens(case)).tensors
    first = next(p for p in tensors if not torch.equal(tensors[p], sound[p]))
    return first, float(f"{relative_rms(tensors['logits'], sound['logits']):.3g}")


def write(case, name, out):
    """Records a case; the entry's part that is measured."""
    model, tensors = record(case)
    assert all(torch.isfinite(t).all() for t in tensors.values()), case
    first, moved = first_difference(case, tensors)
    places = [e.where for e in case.expected if e.where.startswith("layers.")]
    assert case.keep != "ops" or case.config or first == places[0], (case, first)
    write_trace(
        out / "traces" / "bisect" / name,
        tensors,
        producer=producer(),
        dtype=case.dtype,
        architecture=type(model).__name__,
        tokens=tokens(case),
        layers=model.config.num_hidden_layers,
        notes="one prefill on the CPU, eager attention",
    )
    return {"first_difference": first, "relative_rms_of_logits": moved}


def main():
    options = arguments(__doc__.splitlines()[0])
    deterministic()
    entries = []
    for number, case in enumerate(CASES, 1):
        name = f"case-{number:02}"
        entry = {
            "name": name,
            "kind": case.kind,
            "checkpoint": case.checkpoint,
            "dtype": case.dtype,
            "recorded": case.keep,
            "trace": case.recording or f"bisect/{name}",
            "detail": case.detail,
            "expected": [{k: v for k, v in vars(e).items() if v not in ("", None)} for e in case.expected],
            "damage": case.damage,
        }
        if not case.recording:
            entry |= write(case, name, options.out)
        entries.append(entry)
        print(name, case.checkpoint, case.dtype, case.detail, entry.get("first_difference", ""), entry.get("relative_rms_of_logits", ""))
    write_json(options.out / "bisect_cases.json", {"version": 1, "cases": entries})


if __name__ == "__main__":
    main()
