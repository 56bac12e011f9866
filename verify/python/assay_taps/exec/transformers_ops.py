"""transformers' own functions of its Qwen3 model."""

import types

import torch
import transformers
from transformers.activations import ACT2FN
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from assay_taps.exec import torch_ops
from assay_taps.exec.frames import Unsupported, framework


def details():
    """Versions, for reports."""
    return dict(torch_ops.details(), transformers=transformers.__version__)


@framework
def rms_norm(x, weight, params):
    """Qwen3RMSNorm."""
    norm = qwen3.Qwen3RMSNorm(x.shape[-1], eps=params["eps"])
    norm.weight.data = weight
    return norm(x)


def config_of(theta, head_dim, scaling):
    """A config with these frequencies, in the spelling of this version."""
    kinds = {
        "linear": ("factor",),
        "yarn": ("factor", "original_max_position", "beta_fast", "beta_slow", "truncate", "attention_factor"),
    }
    kind = scaling["rope_type"]
    if kind != "default" and kind not in kinds:
        raise Unsupported(f"params of rope: scaling of type {kind}")
    rope = {"rope_type": kind}
    for name in kinds.get(kind, ()):
        rope["original_max_position_embeddings" if name == "original_max_position" else name] = scaling[name]
    common = {"head_dim": head_dim, "num_attention_heads": 1, "hidden_size": head_dim, "num_hidden_layers": 1}
    if int(transformers.__version__.split(".")[0]) >= 5:
        return qwen3.Qwen3Config(rope_parameters=dict(rope, rope_theta=theta), **common)
    return qwen3.Qwen3Config(rope_theta=theta, rope_scaling=None if kind == "default" else rope, **common)


@framework
def rope(x, positions, params):
    """Qwen3RotaryEmbedding and apply_rotary_pos_emb."""
    config = config_of(params["theta"], x.shape[-1], params["scaling"])
    rotary = qwen3.Qwen3RotaryEmbedding(config).to(x.device)
    heads = x.transpose(0, 1)[None]  # [1, H, T, D]
    cos, sin = rotary(heads, positions[None].long())
    return qwen3.apply_rotary_pos_emb(heads, heads, cos, sin)[0][0].transpose(0, 1)


@framework
def attention(q, k, v, params):
    """eager_attention_forward with an additive mask."""
    module = types.SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False)
    seen = torch_ops.visible(q, k, params)
    mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill(~seen, torch.finfo(q.dtype).min)
    heads = [t.transpose(0, 1)[None] for t in (q, k, v)]
    return qwen3.eager_attention_forward(module, *heads, mask[None, None], scaling=params["scale"])[0][0]


@framework
def silu_mul(gate, up, params):
    """The activation of Qwen3MLP, times up."""
    return ACT2FN["silu"](gate) * up


OPS = {
    "rms_norm": ({"Qwen3RMSNorm": rms_norm}, ()),
    "rope": ({"apply_rotary_pos_emb": rope}, ("scaling",)),
    "attention": ({"eager_attention_forward": attention}, ("window",)),
    "silu_mul": ({"Qwen3MLP": silu_mul}, ()),
}
