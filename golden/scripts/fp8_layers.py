"""Single FP8 weights with 128x128 block scales, and the matrices that transformers dequantises them to.

`codes` is made by hand: all 254 E4M3 codes that are not NaN in each of 16 blocks, with scales from the smallest
bf16 subnormal to just below overflow, and blocks of 32.
"""

import sys

import torch

from common import arguments, deterministic, write_tensors
from fp8 import BLOCK, E4M3, dequantised, dequantised_by_block, quantise

SEED = 9009
BF16, F16, F32 = {"bf16": torch.bfloat16}, {"f16": torch.float16}, {"f32": torch.float32}
VARIANTS = {  # N, K, dtype of weight_scale_inv
    "block128-bf16": (256, 256, torch.bfloat16),
    "block128-f32": (128, 256, torch.float32),
    "block128-f16": (128, 256, torch.float16),
    "partial-bf16": (136, 200, torch.bfloat16),
    "codes-bf16": (128, 128, torch.bfloat16),
}
DTYPES_OF = {
    "block128-bf16": BF16,
    "block128-f32": {**BF16, **F32},
    "block128-f16": {**BF16, **F16},
    "partial-bf16": BF16,
    "codes-bf16": {**BF16, **F32},
}


def drawn(name, n, k, scale_dtype):
    """Blocks of unlike magnitude."""
    g = torch.Generator().manual_seed(SEED + n + k)
    weight = torch.randn(n, k, generator=g) * torch.exp(torch.randn(n, 1, generator=g)) * torch.linspace(0.01, 0.2, k)
    return quantise(weight, scale_dtype)


def by_hand(n, k, block):
    g = torch.Generator().manual_seed(SEED)
    finite = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8)
    per_block = block * block
    blocks = [finite[torch.arange(per_block) % 254][torch.randperm(per_block, generator=g)] for _ in range(n * k // per_block)]
    codes = torch.stack(blocks).reshape(n // block, k // block, block, block).transpose(1, 2).reshape(n, k)
    scale = torch.rand(n // block, k // block, generator=g) + 0.5
    scale[0] = torch.tensor([2.0**-133, 2.0**-126, 2.0**-120 * 1.5, 2.0**-10])
    scale[1] = torch.tensor([1.0, 2.0**119, 2.0**118 * 1.9, 2.0**60])
    return codes.view(E4M3), scale.to(torch.bfloat16)


def make(name, out):
    n, k, scale_dtype = VARIANTS[name]
    block = (32, 32) if name == "codes-bf16" else BLOCK
    codes, scale = by_hand(n, k, 32) if name == "codes-bf16" else drawn(name, n, k, scale_dtype)
    assert scale.dtype == scale_dtype and not codes.float().isnan().any()
    tensors = {"weight": codes, "weight_scale_inv": scale}
    for suffix, dtype in DTYPES_OF[name].items():
        exact = dequantised_by_block(codes, scale, torch.float32, block).to(dtype)
        if name != "partial-bf16":
            assert torch.equal(dequantised(codes, scale, dtype), exact)
        else:
            unlike = (dequantised(codes, scale, dtype) != exact).double().mean().item()
            print(f"{name}: blocks taken from the scales' shape differ in {unlike:.1%} of the {suffix} weights")
        tensors[f"dequant_{suffix}"] = exact
    assert tensors["dequant_bf16"].isfinite().all()
    write_tensors(out / "fp8" / f"{name}.safetensors", tensors, {"weight_block_size": f"{block[0]},{block[1]}", "fmt": "e4m3"})


def main():
    options = arguments(__doc__.splitlines()[0])
    unknown = set(options.names) - set(VARIANTS)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    deterministic(SEED)
    for name in options.names or VARIANTS:
        make(name, options.out)


if __name__ == "__main__":
    main()
