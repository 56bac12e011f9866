"""Block-scaled FP8 as Qwen's releases store it: quantise, and dequantise by transformers' own code."""

from types import SimpleNamespace

import torch
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, _dequantize_fp8_weight

BLOCK = (128, 128)
E4M3 = torch.float8_e4m3fn


def cut(weight, block):
    """[N, K] padded with zeros to whole blocks, as [N / bn, bn, K / bk, bk]."""
    (n, k), (bn, bk) = weight.shape, block
    whole = torch.nn.functional.pad(weight.float(), (0, -k % bk, 0, -n % bn))
    return whole.reshape(-1, bn, whole.shape[1] // bk, bk)


def quantise(weight, scale_dtype, block=BLOCK):
    """The E4M3 codes [N, K] and weight_scale_inv [ceil(N / bn), ceil(K / bk)]: the largest of a block becomes 448."""
    blocks = cut(weight, block)
    scale = (blocks.abs().amax((1, 3)) / 448).to(scale_dtype)
    codes = (blocks / scale.float()[:, None, :, None]).clamp(-448, 448)
    codes = codes.reshape(blocks.shape[0] * block[0], -1)[: weight.shape[0], : weight.shape[1]]
    return codes.to(E4M3), scale


def dequantised(codes, scale, dtype):
    """What transformers gives a model that it loads with dequantize=True: it takes the block from the scales' shape."""
    quantiser = SimpleNamespace(quantization_config=FineGrainedFP8Config())
    return Fp8Dequantize(quantiser)._dequantize_one(codes, scale, output_dtype=dtype)


def dequantised_by_block(codes, scale, dtype, block=BLOCK):
    """transformers' other way (for gradients), which follows the configured block; right for partial ones too."""
    return _dequantize_fp8_weight(codes, scale, list(block), dtype)
