"""Traces with exactly one known fault each, and golden/faults.json, which says what a judge must find.

fault-01 .. fault-14: transformers with one module of one layer patched, everything downstream following
the fault. fault-15 and fault-16: a sound trace edited afterwards, so that it contradicts itself. The
traces themselves carry no hint: neutral folder names and the same manifest fields as a sound trace.
"""

import math
import types
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn.functional as F

from common import arguments, deterministic, relative_rms, write_json, write_trace
from record import Recorder, load, producer, run, run_recorder
from tiny import TOKENS, build


@dataclass
class Fault:
    checkpoint: str
    dtype: str
    probes: list
    fault: str
    detail: str
    patch: Callable  # (model, recorder) -> None, or for an edit: (tensors) -> None
    edited: bool = False
    readers: tuple = ()  # of an edited recording: sound probes that no longer follow from the edited one


def layer(model, n):
    return model.model.layers[n]


def patch_forward(module, forward):
    module.forward = types.MethodType(forward, module)


# --- projections ---


def drop_k_bias(model, _):
    patch_forward(layer(model, 1).self_attn.k_proj, lambda self, x: F.linear(x, self.weight))


def drop_k_tail(model, _):
    patch_forward(layer(model, 1).mlp.down_proj, lambda self, x: F.linear(x[..., :256], self.weight[:, :256]))


def gain(model, _):
    patch_forward(layer(model, 0).self_attn.o_proj, lambda self, x: F.linear(x, self.weight) * 1.02)


# --- attention ---


def kv_head_modulo(model, recorder):
    n_kv = model.config.num_key_value_heads
    recorder.attention_override[0] = {"kv_head": lambda h: h % n_kv}


def wrong_scale(model, recorder):
    per_head = model.config.hidden_size // model.config.num_attention_heads
    recorder.attention_override[0] = {"scaling": per_head**-0.5}


def newest_key_dropped(_, recorder):
    recorder.attention_override[1] = {"key_mask": lambda n: torch.arange(n) < n - 1}


# --- norms ---


def wrong_eps(model, _):
    layer(model, 0).input_layernorm.variance_epsilon = 1e-5


def skip_q_norm(model, _):
    patch_forward(layer(model, 1).self_attn.q_norm, lambda self, x: x)


def half_lanes(model, _):
    def forward(self, x):
        y = x.to(torch.float32)
        n = y.shape[-1]
        kept = (torch.arange(n) % 64) < 32
        variance = y.pow(2)[..., kept].sum(-1, keepdim=True) / n
        y = y * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * y.to(x.dtype)

    patch_forward(layer(model, 1).post_attention_layernorm, forward)


def weight_plus_one(model, _):
    def forward(self, x):
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (y.to(x.dtype).to(torch.float32) * (1.0 + self.weight.to(torch.float32))).to(x.dtype)

    patch_forward(layer(model, 0).post_attention_layernorm, forward)


# --- rotary embedding ---


def turned_by(n, frequencies):
    """Layer `n` turns q and k by other inverse frequencies: frequencies(head_dim) -> [head_dim / 2], f32."""

    def patch(model, _):
        def replace(_module, args, kwargs):
            cos, _ = kwargs["position_embeddings"]
            angle = torch.arange(cos.shape[1], dtype=torch.float32)[None, :, None] * frequencies(cos.shape[2])
            angle = torch.cat((angle, angle), dim=-1)
            kwargs["position_embeddings"] = (angle.cos().to(cos.dtype), angle.sin().to(cos.dtype))
            return args, kwargs

        layer(model, n).self_attn.register_forward_pre_hook(replace, with_kwargs=True)

    return patch


def geometric(theta):
    return lambda d: 1.0 / (theta ** (torch.arange(0, d, 2, dtype=torch.float32) / d))


wrong_theta = turned_by(1, geometric(1e4))


def rotate_adjacent(x, cos, sin):
    """Pairs (2i, 2i + 1) with the i-th angle, in the arithmetic of transformers' rotate_half form."""
    turned = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    half = cos.shape[-1] // 2
    cos = cos[..., :half].repeat_interleave(2, dim=-1).unsqueeze(1)
    sin = sin[..., :half].repeat_interleave(2, dim=-1).unsqueeze(1)
    return (x * cos) + (turned * sin)


def pairing_adjacent(model, _):
    from transformers.models.qwen3 import modeling_qwen3

    attention = layer(model, 0).self_attn
    sound, original = modeling_qwen3.apply_rotary_pos_emb, attention.forward

    def forward(self, *args, **kwargs):
        modeling_qwen3.apply_rotary_pos_emb = lambda q, k, cos, sin, **_: (
            rotate_adjacent(q, cos, sin),
            rotate_adjacent(k, cos, sin),
        )
        try:
            return original(*args, **kwargs)
        finally:
            modeling_qwen3.apply_rotary_pos_emb = sound

    patch_forward(attention, forward)


# --- elementwise ---


def swap_gate_and_up(model, _):
    patch_forward(
        layer(model, 1).mlp,
        lambda self, x: self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x)),
    )


def truncating_store(model, _):
    def add_toward_zero(a, b):
        bits = (a.float() + b.float()).view(torch.int32)
        return (bits & -65536).view(torch.float32).to(torch.bfloat16)

    def forward(self, hidden_states, **kwargs):
        residual = hidden_states
        hidden_states, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = residual + hidden_states
        return add_toward_zero(hidden_states, self.mlp(self.post_attention_layernorm(hidden_states)))

    patch_forward(layer(model, 1), forward)


# --- recordings edited afterwards ---


def lift_one_element(tensors):
    t = tensors["layers.1.up_proj"]
    row_rms = t[7].float().pow(2).mean().sqrt()
    t[7, 100] = (t[7, 100].float() + 0.5 * row_rms).to(t.dtype)


def zero_row(tensors):
    tensors["layers.0.attn_residual"][3] = 0


FAULTS = [
    Fault("tiny-qwen2", "bf16", ["layers.1.k_proj"], "matmul.bias_dropped",
          "k_proj without its bias", drop_k_bias),
    Fault("tiny-qwen2", "bf16", ["layers.0.attention"], "attention.kv_head_modulo",
          "query head h reads kv head h % n_kv instead of h // (n_q / n_kv)", kv_head_modulo),
    Fault("tiny-qwen2", "bf16", ["layers.1.mlp_residual"], "add.truncating_store",
          "the sum in f32 is stored as bf16 by dropping its low 16 bits", truncating_store),
    Fault("tiny-qwen2", "bf16", ["layers.1.silu_mul"], "silu_mul.operands_swapped",
          "silu(up) * gate instead of silu(gate) * up", swap_gate_and_up),
    Fault("tiny-qwen2", "bf16", ["layers.0.input_norm"], "rms_norm.wrong_eps",
          "eps 1e-5 instead of the checkpoint's 1e-6", wrong_eps),
    Fault("tiny-qwen2", "bf16", ["layers.0.attention"], "attention.wrong_scale",
          "scores times 1/sqrt(48), from hidden / heads, instead of 1/sqrt(head_dim = 128)", wrong_scale),
    Fault("tiny-qwen3", "bf16", ["layers.1.q_norm"], "rms_norm.skipped",
          "q_norm returns its input", skip_q_norm),
    Fault("tiny-qwen3", "f32", ["layers.1.q_rope", "layers.1.k_rope"], "rope.wrong_theta",
          "q and k of this layer turned with theta 1e4 instead of 1e6; rope.cos and rope.sin hold the right ones",
          wrong_theta),
    Fault("tiny-qwen3", "bf16", ["layers.0.q_rope", "layers.0.k_rope"], "rope.pairing_adjacent",
          "angle i turns elements (2i, 2i + 1) instead of (i, i + 64)", pairing_adjacent),
    Fault("tiny-qwen3", "f32", ["layers.1.down_proj"], "matmul.k_tail_dropped",
          "the sum runs over the first 256 of 320 inputs", drop_k_tail),
    Fault("tiny-qwen3", "bf16", ["layers.1.attention"], "attention.newest_key_dropped",
          "keys 0 .. kv_len - 2 for every query, so that only the last row changes", newest_key_dropped),
    Fault("tiny-qwen3", "bf16", ["layers.1.post_norm"], "rms_norm.half_lanes",
          "the mean square sums elements with i % 64 < 32 only, but divides by all 192", half_lanes),
    Fault("tiny-qwen3", "f32", ["layers.0.o_proj"], "matmul.gain",
          "output times 1.02", gain),
    Fault("tiny-qwen3", "bf16", ["layers.0.post_norm"], "rms_norm.weight_plus_one",
          "the normalised row, rounded to bf16, times (1 + weight) in f32, rounded to bf16", weight_plus_one),
    Fault("tiny-qwen3", "bf16", ["layers.1.up_proj"], "inconsistent_recording",
          "element [7, 100] raised by half the row's rms; nothing downstream follows", lift_one_element,
          True, ("layers.1.silu_mul",)),
    Fault("tiny-qwen2", "f32", ["layers.0.attn_residual"], "inconsistent_recording",
          "row 3 zeroed; nothing downstream follows", zero_row,
          True, ("layers.0.post_norm", "layers.0.mlp_residual")),
]  # fmt: skip


def changed(sound, faulty, probe):
    """Rows that differ and how far, for the expectation file."""
    a, b = sound[probe].double().flatten(1), faulty[probe].double().flatten(1)
    rows = [int(r) for r in (a != b).any(1).nonzero().flatten()]
    return {"rows": rows, "relative_rms": float(f"{relative_rms(b, a):.3g}")}


def first_difference(sound, faulty):
    return next((p for p in sound if not torch.equal(sound[p], faulty[p])), None)


def record_fault(fault, checkpoint):
    sound = run(load(checkpoint, fault.dtype), TOKENS).tensors
    model = load(checkpoint, fault.dtype)
    recorder = Recorder(model)
    if not fault.edited:
        fault.patch(model, recorder)
    faulty = run_recorder(recorder, model, TOKENS).tensors
    if fault.edited:
        fault.patch(faulty)
    assert first_difference(sound, faulty) == fault.probes[0], (fault.fault, first_difference(sound, faulty))
    assert all(math.isfinite(t.double().abs().max()) for t in faulty.values())
    return model, sound, faulty


def main():
    options = arguments(__doc__.splitlines()[0])
    deterministic()
    checkpoints = options.out / "checkpoints"
    for name in {f.checkpoint for f in FAULTS}:
        if not (checkpoints / name / "config.json").exists():
            build(name, checkpoints / name)
    entries = []
    for number, fault in enumerate(FAULTS, 1):
        name = f"fault-{number:02}"
        model, sound, faulty = record_fault(fault, checkpoints / fault.checkpoint)
        write_trace(
            options.out / "traces" / "faults" / name,
            faulty,
            producer=producer(),
            dtype=fault.dtype,
            architecture=type(model).__name__,
            tokens=TOKENS,
            layers=model.config.num_hidden_layers,
            notes="one prefill on the CPU, eager attention",
        )
        entries.append(
            {
                "name": name,
                "checkpoint": fault.checkpoint,
                "dtype": fault.dtype,
                "kind": "edited" if fault.edited else "patched",
                "expected_probes": fault.probes,
                "expected_fault": fault.fault,
                "inconsistent_readers": list(fault.readers),
                "detail": fault.detail,
                "changed_at_probe": {p: changed(sound, faulty, p) for p in fault.probes},
            }
        )
        print(name, fault.fault, entries[-1]["changed_at_probe"])
    write_json(options.out / "faults.json", {"version": 1, "faults": entries})


if __name__ == "__main__":
    main()
