"""One small Linear a GPTQ variant: the tensors gptqmodel saved and the matrices it dequantises them to.

`-wrap` variants quantise a layer so far off centre that some zero points are 0. A v1 file stores z - 1,
and gptqmodel subtracts and adds that 1 in whole 32-bit words (0x11111111): a zero point of 0 is stored as
15 and borrows from its left neighbour in the word, so these files read right only by whole words.

`-zeros` files are made by hand: every stored zero (0 and the largest included, a word of each alone), every
code, distinct scales down to a subnormal f16. The v1 and the v2 file of a width hold the same words and differ
in checkpoint_format only; gptqmodel loads them as it loads any checkpoint.
"""

import sys
import tempfile
from pathlib import Path

import gptq  # first: it prepares os.cpu_count  # isort: skip
import torch
from safetensors import safe_open

from common import arguments, deterministic, write_tensors
from layers import LAYER, SEED, VOCABULARY, layer_codes, packed, replace_layer, source_model

OTHERS = {f"-:.*{name}.*": {} for name in ("q_proj", "k_proj", "v_proj", "mlp")}


def variant(checkpoint_format, bits, sym, group_size, desc_act, wrap=False):
    group = "gall" if group_size == -1 else f"g{group_size}"
    name = f"{checkpoint_format.replace('gptq_', '').replace('gptq', 'v1')}-{bits}bit-{'sym' if sym else 'asym'}-{group}"
    return name + ("-act" if desc_act else "") + ("-wrap" if wrap else ""), dict(
        checkpoint_format=checkpoint_format, bits=bits, sym=sym, group_size=group_size, desc_act=desc_act
    )


VARIANTS = dict(
    [
        variant("gptq", 4, sym, group_size, desc_act)
        for sym in (True, False)
        for group_size in (128, 32, -1)
        for desc_act in (False, True)
    ]
    + [
        variant("gptq_v2", 4, True, 128, False),
        variant("gptq_v2", 4, False, 128, True),
        variant("gptq_v2", 4, False, 32, False),
        variant("gptq", 4, False, 32, False, wrap=True),
        variant("gptq_v2", 4, False, 32, False, wrap=True),
        variant("gptq", 8, True, 128, False),
        variant("gptq", 8, False, 32, True),
        variant("gptq", 3, True, 128, False),
        variant("gptq_v2", 3, False, 32, False),
        variant("gptq", 2, False, 32, False),
    ]
)
BY_HAND = {
    f"{version}-{bits}bit-zeros": dict(checkpoint_format=name, bits=bits, sym=False, group_size=16, desc_act=False)
    for version, name in (("v1", "gptq"), ("v2", "gptq_v2"))
    for bits in (2, 3, 4, 8)
}


def dequantised(folder, dtype):
    """gptqmodel's own [K, N] matrix, from the module as it is when the model runs in `dtype`."""
    module = gptq.load_quantised(folder, dtype).get_submodule(LAYER)
    assert type(module).__name__ == "TorchLinear" and module.scales.dtype == dtype, module
    return module.dequantize_weight()


def by_hand(bits):
    """The zeros are what the file stores, not what they mean."""
    codes, zeros, scales = layer_codes(bits, SEED + bits)
    g_idx = torch.arange(codes.shape[0]) // (codes.shape[0] // zeros.shape[0])
    return {
        "qweight": packed(codes.T, bits).T,
        "qzeros": packed(zeros, bits),
        "scales": scales,
        "g_idx": g_idx.to(torch.int32),
    }


def make(name, options, work, out):
    target = work / name
    source = work / ("off-centre" if name.endswith("-wrap") else "narrow" if name in BY_HAND else "source")
    gptq.quantise(source, target, vocabulary=VOCABULARY, seed=SEED, dynamic=OTHERS, **options)
    if name in BY_HAND:
        replace_layer(target, by_hand(options["bits"]))
    with safe_open(target / "model.safetensors", "pt") as f:
        prefix = LAYER + "."
        tensors = {key[len(prefix) :]: f.get_tensor(key) for key in f.keys() if key.startswith(prefix)}
    assert set(tensors) == {"qweight", "qzeros", "scales", "g_idx"}, set(tensors)
    tensors["dequant_f16"] = dequantised(target, torch.float16)
    tensors["dequant_bf16"] = dequantised(target, torch.bfloat16)
    shape = (tensors["g_idx"].shape[0], 64)
    assert tensors["dequant_f16"].shape == shape and tensors["dequant_f16"].dtype == torch.float16
    assert tensors["dequant_bf16"].shape == shape and tensors["dequant_bf16"].dtype == torch.bfloat16
    metadata = {k: str(v).lower() for k, v in options.items()}
    write_tensors(out / "gptq" / f"{name}.safetensors", tensors, metadata)


def main():
    options = arguments(__doc__.splitlines()[0])
    variants = {**VARIANTS, **BY_HAND}
    unknown = set(options.names) - set(variants)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    deterministic(SEED)
    with tempfile.TemporaryDirectory() as work:
        source_model(Path(work) / "source", 0.25)
        source_model(Path(work) / "off-centre", 0.7)
        source_model(Path(work) / "narrow", 0.25, heads=1)
        for name in options.names or variants:
            make(name, variants[name], Path(work), options.out)


if __name__ == "__main__":
    main()
