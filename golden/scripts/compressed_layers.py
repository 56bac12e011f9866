"""One small Linear a compressed-tensors variant (W4A16, pack-quantized): what llmcompressor saved and its decompressed weight.

`zeros` and `odd` are made by hand and packed by compressed-tensors: every zero point -8 to 7 with every code, and a
shape of which neither side fills its last word.
"""

import sys
import tempfile
from pathlib import Path

import compressed  # first: it sets the environment  # isort: skip
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors import safe_open

from common import arguments, deterministic, write_tensors
from layers import LAYER, VOCABULARY, layer_codes, source_model

SEED = 8008
PACKED = BaseCompressor.get_value_from_registry("pack-quantized")
VARIANTS = {
    "sym-g128": dict(symmetric=True, group_size=128),
    "sym-g32": dict(symmetric=True, group_size=32),
    "asym-g32": dict(symmetric=False, group_size=32),
    "sym-channel": dict(symmetric=True, group_size=None),
    "asym-channel": dict(symmetric=False, group_size=None),
    "sym-g128-f16": dict(symmetric=True, group_size=128),
}
BY_HAND = {
    "zeros": dict(symmetric=False, group_size=16),
    "odd": dict(symmetric=False, group_size=None),
}


def by_hand(name):
    rows, columns, group_size = (128, 64, 16) if name == "zeros" else (100, 36, 100)
    codes, zeros, scales = layer_codes(4, SEED, rows, columns, group_size)
    return {
        "weight_packed": pack_to_int32((codes.T - 8).to(torch.int8), 4),
        "weight_scale": scales.T.to(torch.float16),
        "weight_shape": torch.tensor([columns, rows]),
        "weight_zero_point": pack_to_int32((zeros.T - 8).to(torch.int8), 4, packed_dim=0),
    }


def decompressed(tensors, args, dtype):
    """The library's own [N, K] weight of a module whose scale was loaded in `dtype`."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    state = {**tensors, "weight_scale": tensors["weight_scale"].to(dtype)}
    return PACKED.decompress(state, scheme)["weight"]


def quantised(name, args, work):
    target = work / name
    dtype = torch.float16 if name.endswith("-f16") else torch.bfloat16
    compressed.quantise(
        work / "source", target, args, vocabulary=VOCABULARY, seed=SEED, targets="re:.*o_proj", dtype=dtype
    )
    with safe_open(target / "model.safetensors", "pt") as f:
        prefix = LAYER + "."
        tensors = {key[len(prefix) :]: f.get_tensor(key) for key in f.keys() if key.startswith(prefix)}
    assert tensors["weight_scale"].dtype == dtype
    for dtype in (torch.float16, torch.bfloat16):  # what transformers ends up with is the same bits
        weight = compressed.load_quantised(target, dtype).get_submodule(LAYER).weight
        assert torch.equal(weight, decompressed(tensors, args, dtype)) and weight.dtype == dtype, name
    return tensors


def make(name, options, work, out):
    args = compressed.weights(**options)
    tensors = by_hand(name) if name in BY_HAND else quantised(name, args, work)
    names = {"weight_packed", "weight_scale", "weight_shape"} | ({"weight_zero_point"} if not args["symmetric"] else set())
    assert set(tensors) == names, set(tensors)
    both = {dtype: decompressed(tensors, args, dtype) for dtype in (torch.float16, torch.bfloat16)}
    tensors["dequant_f16"], tensors["dequant_bf16"] = both.values()
    keys = ("num_bits", "symmetric", "strategy", "group_size", "actorder")
    metadata = {key: str(args[key]).lower() for key in keys if args[key] is not None}
    write_tensors(out / "compressed" / f"{name}.safetensors", tensors, {**metadata, "format": "pack-quantized"})


def main():
    options = arguments(__doc__.splitlines()[0])
    variants = {**VARIANTS, **BY_HAND}
    unknown = set(options.names) - set(variants)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    deterministic(SEED)
    with tempfile.TemporaryDirectory() as work:
        source_model(Path(work) / "source", 0.25, heads=2)
        for name in options.names or variants:
            make(name, variants[name], Path(work), options.out)


if __name__ == "__main__":
    main()
