"""vLLM's kernels, called as its layers call them (`vllm/_custom_ops.py`, 0.6.2 to 0.32.0). Which of them exist depends
on the version and the build: 0.32 for the CPU has neither `gptq_gemm` nor `paged_attention_v1`."""

import inspect

import torch
import vllm
from vllm import _custom_ops as ops

from assay_taps.exec import torch_ops
from assay_taps.exec.frames import Unsupported


def details():
    """Versions, for reports."""
    return dict(torch_ops.details(), vllm=vllm.__version__)


def rms_norm(x, weight, params):
    """torch.ops._C.rms_norm."""
    out = torch.empty_like(x)
    ops.rms_norm(out, x, weight, params["eps"])
    return out


def add_rms_norm(a, b, weight, params):
    """torch.ops._C.fused_add_rms_norm, which writes the norm over b and the sum over a."""
    ops.fused_add_rms_norm(b, a, weight, params["norm"]["eps"])
    return {"output": b, "residual": a}


def rope(x, positions, params):
    """torch.ops._C.rotary_embedding over a table in the dtype of x, made as RotaryEmbedding makes it."""
    t, heads, dim = x.shape
    frequencies = 1.0 / (params["theta"] ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))
    angles = torch.einsum("i,j -> ij", torch.arange(int(positions.max()) + 1, dtype=torch.float), frequencies)
    table = torch.cat((angles.cos(), angles.sin()), -1).to(device=x.device, dtype=x.dtype)
    query = x.reshape(t, heads * dim).contiguous()
    ops.rotary_embedding(positions.long(), query, query.clone(), dim, table, True)
    return query.reshape(t, heads, dim)


def silu_mul(gate, up, params):
    """torch.ops._C.silu_and_mul over [gate, up]."""
    out = torch.empty_like(gate)
    torch.ops._C.silu_and_mul(out, torch.cat((gate, up), -1))
    return out


def gptq_gemm(x, qweight, qzeros, scales, params, g_idx=None, bias=None):
    """gptq_gemm behind gptq_shuffle, as GPTQLinearMethod. With rows in order of their groups it is given no g_idx."""
    dequant = params["dequant"]
    accepted = list(inspect.signature(ops.gptq_gemm).parameters)
    if dequant["format"] == "v2" and "use_v2_format" not in accepted:
        raise Unsupported(f"params of gptq_gemm: format v2, and gptq_gemm of vLLM {vllm.__version__} has no v2")
    k = qweight.shape[0] * 32 // dequant["bits"]
    size = k if dequant["group_size"] == -1 else dequant["group_size"]
    in_order = g_idx is None or bool((g_idx.long().cpu() == torch.arange(k) // size).all())
    order = torch.empty(0, dtype=torch.int32) if in_order else torch.argsort(g_idx).to(torch.int32)
    order = order.to(x.device)
    ops.gptq_shuffle(qweight, order, dequant["bits"])
    given = [x.reshape(-1, x.shape[-1]), qweight, qzeros, scales, order, True]
    given += [dequant["format"] == "v2"] if "use_v2_format" in accepted else []
    out = ops.gptq_gemm(*given, dequant["bits"])
    out = out if bias is None else out.add_(bias)
    return out.reshape(x.shape[:-1] + (out.shape[-1],))


def attention_paged(q, k_cache, v_cache, block_table, context_len, params):
    """paged_attention_v1, one query: the caches are [blocks, heads, D/x, block_size, x] and [blocks, heads, D,
    block_size] there, x elements being 16 bytes."""
    t, heads, dim = q.shape
    if t != 1:
        raise Unsupported(f"paged_attention_v1 takes one query a sequence, not {t}")
    blocks, size, kv_heads, _ = k_cache.shape
    x = 16 // q.element_size()
    keys = k_cache.reshape(blocks, size, kv_heads, dim // x, x).permute(0, 2, 3, 1, 4).contiguous()
    values = v_cache.permute(0, 2, 3, 1).contiguous()
    out = torch.empty_like(q)
    one = torch.ones((), dtype=torch.float32, device=q.device)
    given = [out, q, keys, values, kv_heads, params["attention"]["scale"], block_table.to(torch.int32)[None],
             context_len.to(torch.int32), size, int(context_len), None, "auto"]  # fmt: skip
    # One scale of 1.0 in 0.6.2, tensors for keys and values since 0.7.
    annotation = str(inspect.signature(ops.paged_attention_v1).parameters["k_scale"].annotation)
    scale = 1.0 if "float" in annotation else one
    ops.paged_attention_v1(*given, scale, scale)
    return out


_ALL = {
    "rms_norm": ({"rms_norm": rms_norm}, ()),
    "add_rms_norm": ({"fused_add_rms_norm": add_rms_norm}, ()),
    "rope": ({"rotary_embedding": rope}, ()),
    "silu_mul": ({"silu_and_mul": silu_mul}, ()),
    "gptq_gemm": ({"gptq_gemm": gptq_gemm}, ("dequant.bits", "dequant.wrap", "matmul.layout")),
    "attention_paged": ({"paged_attention_v1": attention_paged}, ()),
}
# Old kernels leave newer versions, and builds for a device have their own.
OPS = {op: entry for op, entry in _ALL.items() if all(hasattr(ops, n) or hasattr(torch.ops._C, n) for n in entry[0])}
