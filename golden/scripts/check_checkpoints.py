"""Run every quantised checkpoint as a plain transformers model and compare with its trace, probe by probe.

The weights come from check_formats.py, so that neither gptqmodel nor compressed-tensors nor transformers' FP8 code
takes part: every probe of the committed bf16 traces must come out to the bit (on the kind of CPU they were made
on). Prints the relative rms of the bf16 logits against float64 too. Needs the transformers environment.
"""

import sys

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import check_formats as formats
from common import GOLDEN, SAFETENSORS_NAMES, deterministic, read_json, relative_rms
from record import ATTENTION, make_f64, run
from tiny import TOKENS

CHECKPOINTS = ("gptq-qwen3", "gptq8-qwen2", "gptq3-qwen3", "awq-qwen3", "ct-qwen3", "fp8-qwen3")
NAMES = {**SAFETENSORS_NAMES, torch.int32: "I32", torch.int64: "I64", torch.float8_e4m3fn: "F8_E4M3"}
RULES = {"gptq": formats.gptq, "awq": formats.awq, "compressed-tensors": formats.compressed}


def numbers(tensor):
    bits = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}.get(tensor.dtype, tensor.dtype)
    return tensor.view(bits).numpy()


def weight(parts, quantisation):
    """The bf16 weight [N, K] of one Linear."""
    tensors = {name: numbers(t) for name, t in parts.items()}
    dtypes = {name: NAMES[t.dtype] for name, t in parts.items()}
    method = quantisation["quant_method"]
    if method == "fp8":
        block = ",".join(map(str, quantisation["weight_block_size"]))
        bits = formats.fp8(tensors, dtypes, {"weight_block_size": block}, "BF16")
    else:
        group = quantisation["config_groups"]["group_0"]["weights"] if method == "compressed-tensors" else quantisation
        difference, scale, name = RULES[method](tensors, {k: str(v) for k, v in group.items()})
        bits = formats.scaled(difference.astype(np.float64), scale, dtypes[name], "BF16")
        bits = bits if method == "compressed-tensors" else bits.T
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)


def plain_weights(folder, quantisation):
    state, linears = {}, {}
    for path, tensor in load_file(folder / "model.safetensors").items():
        module, name = path.rsplit(".", 1)
        if module.endswith("_proj") and name != "bias":
            linears.setdefault(module, {})[name] = tensor
        else:
            state[path] = tensor.to(torch.bfloat16)
    return {**state, **{f"{module}.weight": weight(parts, quantisation) for module, parts in linears.items()}}


def bias_afterwards(linear):
    """gptqmodel's order: the product is rounded, then the bias is added."""
    linear.forward = lambda x: torch.nn.functional.linear(x, linear.weight) + linear.bias


def plain_model(folder, dtype):
    """The checkpoint as transformers' own model of its architecture, with the weights that its format stands for."""
    config = AutoConfig.from_pretrained(folder)
    quantisation = config.quantization_config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    result = model.load_state_dict(plain_weights(folder, quantisation), strict=False)
    assert not result.unexpected_keys and result.missing_keys == ["lm_head.weight"], result
    model.tie_weights()
    if dtype == "f64":
        model = make_f64(model)
    elif quantisation["quant_method"] in ("gptq", "awq"):
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and module.bias is not None:
                bias_afterwards(module)
    return model.eval()


def recorded(folder, dtype):
    return run(plain_model(folder, dtype), TOKENS).tensors


def committed(folder):
    tensors = {}
    for name in read_json(folder / "manifest.json")["files"]:
        tensors.update(load_file(folder / name))
    return tensors


def main():
    deterministic()
    failed = False
    for name in CHECKPOINTS:
        folder = GOLDEN / "checkpoints" / name
        mine, theirs = recorded(folder, "bf16"), committed(GOLDEN / "traces" / name / "bf16")
        unlike = [probe for probe in theirs if not torch.equal(mine[probe], theirs[probe])]
        failed |= bool(unlike) or mine.keys() != theirs.keys()
        rms = relative_rms(theirs["logits"], recorded(folder, "f64")["logits"])
        print(f"{name}: {len(theirs) - len(unlike)} of {len(theirs)} probes the same bits; logits against f64 {rms:.2e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
