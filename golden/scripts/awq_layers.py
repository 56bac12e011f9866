"""One small Linear an AWQ variant (gemm layout): the tensors gptqmodel saved and the matrices it dequantises them to.

`zeros` is made by hand: every stored zero 0 to 15, a whole word of each end, every code, scales down to a
subnormal f16. gptqmodel loads it as it loads any checkpoint. The whole block is quantised (with modules left
out by `dynamic`, gptqmodel scales the norm before them by the wrong layer's scales and fails); o_proj is kept.
"""

import sys
import tempfile
from pathlib import Path

import gptq  # first: it prepares os.cpu_count  # isort: skip
import torch
from safetensors import safe_open

from common import arguments, deterministic, write_tensors
from layers import LAYER, VOCABULARY, layer_codes, packed, replace_layer, source_model

SEED = 7007
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
VARIANTS = {
    "asym-g128": dict(group_size=128, sym=False),
    "asym-g32": dict(group_size=32, sym=False),
    "asym-gall": dict(group_size=-1, sym=False),
    "sym-g128": dict(group_size=128, sym=True),
    "asym-g128-f16": dict(group_size=128, sym=False, dtype=torch.float16),
    "zeros": dict(group_size=16, sym=False, dtype=torch.float16),
}


def interleaved(codes):
    """[R, C] codes with the columns of each eight in the order of their slots, packed along C."""
    return packed(codes.reshape(codes.shape[0], -1, 8)[..., AWQ_ORDER].reshape(codes.shape), 4)


def by_hand():
    codes, zeros, scales = layer_codes(4, SEED)
    return {"qweight": interleaved(codes), "qzeros": interleaved(zeros), "scales": scales}


def dequantised(folder, dtype):
    """gptqmodel's own [K, N] matrix as its forward makes it when the model runs in `dtype`."""
    module = gptq.load_quantised(folder, dtype, gptq.BACKEND.AWQ_TORCH).get_submodule(LAYER)
    assert type(module).__name__ == "AwqTorchLinear", module
    x = torch.zeros(1, module.in_features, dtype=dtype)
    module._ensure_runtime_dtype(device=x.device, dtype=dtype)  # what forward does first
    return module._dequantize_weight_for_inference(x, dtype=dtype)


def make(name, options, work, out):
    target = work / name
    source = work / ("narrow" if name == "zeros" else "source")
    gptq.quantise_awq(source, target, vocabulary=VOCABULARY, seed=SEED, **options)
    if name == "zeros":
        replace_layer(target, by_hand())
    with safe_open(target / "model.safetensors", "pt") as f:
        prefix = LAYER + "."
        tensors = {key[len(prefix) :]: f.get_tensor(key) for key in f.keys() if key.startswith(prefix)}
    assert set(tensors) == {"qweight", "qzeros", "scales"}, set(tensors)
    assert tensors["scales"].dtype == options.get("dtype", torch.bfloat16)
    shape = (tensors["qweight"].shape[0], tensors["scales"].shape[1])
    for dtype, suffix in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
        weight = dequantised(target, dtype)
        assert weight.shape == shape and weight.dtype == dtype
        tensors[f"dequant_{suffix}"] = weight
    metadata = {
        "bits": "4", "version": "gemm", "zero_point": str(not options["sym"]).lower(),
        "group_size": str(options["group_size"]),
    }  # fmt: skip
    write_tensors(out / "awq" / f"{name}.safetensors", tensors, metadata)


def main():
    options = arguments(__doc__.splitlines()[0])
    unknown = set(options.names) - set(VARIANTS)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    deterministic(SEED)
    with tempfile.TemporaryDirectory() as work:
        source_model(Path(work) / "source", 0.25, heads=2, hidden=128)
        source_model(Path(work) / "narrow", 0.25, heads=1)
        for name in options.names or VARIANTS:
            make(name, VARIANTS[name], Path(work), options.out)


if __name__ == "__main__":
    main()
