"""Quantise a model with gptqmodel (GPTQ, AWQ) on the CPU, and load the result through its torch linears.

Import this before torch: gptqmodel sizes its thread pools from os.cpu_count and wants at least 4, and
dynamo must be off so that `dequantize_weight` runs as written.
"""

import os

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
_cores = os.cpu_count() or 1
os.cpu_count = lambda: max(4, _cores)

import shutil  # noqa: E402

import torch  # noqa: E402
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig  # noqa: E402
from gptqmodel.quantization import FORMAT, METHOD  # noqa: E402

FORMATS = {"gptq": FORMAT.GPTQ, "gptq_v2": FORMAT.GPTQ_V2}


def calibration(vocabulary, seed, sequences=32, length=32):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (sequences, length), generator=g)
    return [{"input_ids": row.tolist(), "attention_mask": [1] * length} for row in ids]


def quantise(source, target, *, bits, group_size, sym, desc_act, checkpoint_format, vocabulary, seed, dynamic=None):
    """`source` is a model folder; `target` becomes the folder that gptqmodel saves."""
    config = QuantizeConfig(
        bits=bits,
        group_size=group_size,
        sym=sym,
        desc_act=desc_act,
        act_group_aware=False,
        format=FORMATS[checkpoint_format],
        offload_to_disk=False,
        device="cpu",
        dynamic=dynamic,
    )
    run(source, target, config, vocabulary, seed)


def quantise_awq(source, target, *, group_size, sym, vocabulary, seed, dtype=torch.bfloat16):
    """4-bit AWQ in the gemm layout; the scales are stored in `dtype`."""
    config = QuantizeConfig(
        bits=4,
        group_size=group_size,
        sym=sym,
        method=METHOD.AWQ,
        format=FORMAT.GEMM,
        offload_to_disk=False,
        device="cpu",
    )
    run(source, target, config, vocabulary, seed, dtype)


def run(source, target, config, vocabulary, seed, dtype=torch.bfloat16):
    model = GPTQModel.load(str(source), config, dtype=dtype)
    model.quantize(calibration(vocabulary, seed), batch_size=1)
    shutil.rmtree(target, ignore_errors=True)
    model.save(str(target))


def load_quantised(folder, dtype, backend=BACKEND.GPTQ_TORCH):
    return GPTQModel.load(str(folder), backend=backend, device="cpu", dtype=dtype).model.eval()
