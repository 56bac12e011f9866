"""gptqmodel's dequantisation: TorchLinear.dequantize_weight, after loading as it loads a checkpoint."""

import os

# gptqmodel sizes its thread pools by this, and wants 4; dynamo off, so that the code runs as it is written.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
_cores = os.cpu_count() or 1
os.cpu_count = lambda: max(4, _cores)

import gptqmodel  # noqa: E402
import torch  # noqa: E402
from gptqmodel.nn_modules.qlinear import torch as qlinear  # noqa: E402
from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module  # noqa: E402

from assay_taps.exec import torch_ops  # noqa: E402
from assay_taps.exec.frames import Unsupported  # noqa: E402

# TorchQuantLinear until version 6.
_LINEAR = getattr(qlinear, "TorchLinear", None) or qlinear.TorchQuantLinear


def details():
    """Versions, for reports."""
    return dict(torch_ops.details(), gptqmodel=getattr(gptqmodel, "__version__", "?"))


def gptq_dequant(qweight, qzeros, scales, params, dtype, g_idx=None):
    """[K, N] in `dtype`. v1 zero points become v2's in whole words, as on loading; scales are cast to `dtype`."""
    if dtype not in (torch.float16, torch.bfloat16):
        raise Unsupported(f"TorchLinear computes in float16 and bfloat16, not {dtype}")
    bits = params["bits"]
    k, n = qweight.shape[0] * 32 // bits, qweight.shape[1]
    size = k if params["group_size"] == -1 else params["group_size"]
    layer = _LINEAR(
        bits=bits, group_size=size, sym=False, desc_act=g_idx is not None, in_features=k, out_features=n,
        bias=False, pack_dtype=torch.int32, register_buffers=True,
    )  # fmt: skip
    layer.qweight, layer.qzeros, layer.scales = qweight, qzeros, scales.to(dtype)
    layer.g_idx = (torch.arange(k) // size if g_idx is None else g_idx).to(device=qweight.device, dtype=torch.int32)
    if params["format"] == "v1":
        convert_gptq_v1_to_v2_format_module(layer, bits=bits, pack_dtype=torch.int32)
    return layer.eval().dequantize_weight()


OPS = {"gptq_dequant": ({"TorchLinear": gptq_dequant}, ("bits", "wrap"))}
