"""Torch's own operators, on any device.

Each function gets the arguments by name and the params with defaults filled in, and returns what torch returned.
`--function` chooses where torch has several; the first is the default.
"""

import torch
import torch.nn.functional as F

from assay_taps.exec.frames import Unsupported, framework


def details():
    """Versions and the device, for reports."""
    found = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["hip" if torch.version.hip else "cuda"] = torch.version.hip or torch.version.cuda
    return found


def embedding(ids, weight, params):
    """torch.nn.functional.embedding."""
    return F.embedding(ids, weight)


def rms_norm(x, weight, params):
    """torch.nn.functional.rms_norm, since 2.4."""
    if not hasattr(F, "rms_norm"):
        raise Unsupported(f"torch {torch.__version__} has no rms_norm; use --function eager")
    return F.rms_norm(x, (x.shape[-1],), weight, params["eps"])


def rms_norm_eager(x, weight, params):
    """Elementary operations in f32, stored before the weight is multiplied, as models in eager mode."""
    wide = x if x.dtype == torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + params["eps"])
    return normed.to(x.dtype) * weight


def add_rms_norm(a, b, weight, params):
    """add, then rms_norm of the stored sum."""
    residual = a + b
    return {"output": rms_norm(residual, weight, params["norm"]), "residual": residual}


def matmul(x, weight, params, bias=None):
    """torch.nn.functional.linear, or `@` where the weight is [in, out]."""
    if params["layout"] == "in_out":
        return x @ weight if bias is None else x @ weight + bias
    return F.linear(x, weight, bias)


def rope(x, positions, params):
    """cos and sin tables in the dtype of x, halves rotated by elementary operations. x [T, H, D]."""
    half = x.shape[-1] // 2
    dtype = torch.float64 if x.dtype == torch.float64 or params["angle"] == "f64" else torch.float32
    steps = torch.arange(0, half, device=x.device, dtype=dtype) * 2 / x.shape[-1]
    angle = positions[:, None].to(dtype) / params["theta"] ** steps
    cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
    low, high = x[..., :half], x[..., half:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def softmax(x, params):
    """torch.softmax."""
    return torch.softmax(x, -1)


def visible(q, k, params):
    """[T, S], true where a query sees a key: causal, the last query sees the last key."""
    t, s = q.shape[0], k.shape[0]
    at = torch.arange(s - t, s, device=q.device)[:, None]
    key = torch.arange(s, device=q.device)[None]
    seen = key <= at
    return seen & (key > at - params["window"]) if params["window"] else seen


@framework
def attention(q, k, v, params):
    """Scores, softmax in f32 and products as stored intermediates. q [T, Hq, D], k and v [S, Hkv, D]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1).transpose(0, 1) for t in (k, v))
    scores = torch.matmul(q.transpose(0, 1), k.transpose(1, 2)) * params["scale"]
    scores = scores.masked_fill(~visible(q, k.transpose(0, 1), params), float("-inf"))
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.matmul(torch.softmax(scores, -1, dtype=wide).to(q.dtype), v).transpose(0, 1)


def attention_sdpa(q, k, v, params):
    """torch.nn.functional.scaled_dot_product_attention with a mask."""
    groups = q.shape[1] // k.shape[1]
    mask = visible(q, k, params)
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=params["scale"])[0].transpose(0, 1)


def silu_mul(gate, up, params):
    """torch.nn.functional.silu, times up."""
    return F.silu(gate) * up


def add(a, b, params):
    """`+`."""
    return a + b


def argmax(x, params):
    """torch.argmax; [rows, 1]."""
    return x.argmax(-1).reshape(-1, 1)


# op: (functions by name, the params whose other values they take)
OPS = {
    "embedding": ({"embedding": embedding}, ()),
    "rms_norm": ({"functional": rms_norm, "eager": rms_norm_eager}, ()),
    "add_rms_norm": ({"functional": add_rms_norm}, ()),
    "matmul": ({"linear": matmul}, ("layout",)),
    "rope": ({"eager": rope}, ("angle",)),
    "softmax": ({"softmax": softmax}, ()),
    "attention": ({"eager": attention, "sdpa": attention_sdpa}, ("window",)),
    "silu_mul": ({"functional": silu_mul}, ()),
    "add": ({"add": add}, ()),
    "argmax": ({"argmax": argmax}, ()),
}
