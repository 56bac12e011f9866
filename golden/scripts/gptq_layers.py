"""One small Linear a GPTQ variant: the tensors gptqmodel saved and the matrices it dequantises them to.

`-wrap` variants quantise a layer so far off centre that some zero points are 0. A v1 file stores z - 1,
and gptqmodel subtracts and adds that 1 in whole 32-bit words (0x11111111): a zero point of 0 is stored as
15 and borrows from its left neighbour in the word, so these files read right only by whole words.
"""

import sys
import tempfile
from pathlib import Path

import gptq  # first: it prepares os.cpu_count  # isort: skip
import torch
from safetensors import safe_open
from transformers import Qwen3Config, Qwen3ForCausalLM

from common import arguments, deterministic, write_tensors

SEED = 5005
LAYER = "model.layers.0.self_attn.o_proj"  # K = 4 heads * 128 = 512 inputs, N = hidden = 64 outputs
OTHERS = {f"-:.*{name}.*": {} for name in ("q_proj", "k_proj", "v_proj", "mlp")}
VOCABULARY = 256


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
    ]
)


def source_model(folder, centre):
    """One block whose o_proj has unlike, off-centre output columns and inputs of unlike importance."""
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=4, head_dim=128, max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    g = torch.Generator().manual_seed(SEED)

    def normal(*shape):
        return torch.randn(*shape, generator=g)

    attention = model.model.layers[0].self_attn
    attention.o_proj.weight.data = (
        (normal(64, 512) + centre * normal(64, 1)) * torch.exp(0.5 * normal(64, 1)) * torch.exp(0.4 * normal(1, 512)) / 22
    )
    attention.v_proj.weight.data = normal(512, 64) * torch.exp(0.7 * normal(512, 1)) / 8
    for name, parameter in sorted(model.named_parameters()):
        if "o_proj" not in name and "v_proj" not in name and "norm" not in name:
            parameter.data = normal(*parameter.shape) * parameter.shape[-1] ** -0.5
    model.to(torch.bfloat16).save_pretrained(folder)


def dequantised(folder, dtype):
    """gptqmodel's own [K, N] matrix, from the module as it is when the model runs in `dtype`."""
    module = gptq.load_quantised(folder, dtype).get_submodule(LAYER)
    assert type(module).__name__ == "TorchLinear" and module.scales.dtype == dtype, module
    return module.dequantize_weight()


def make(name, options, work, out):
    target = work / name
    source = work / ("off-centre" if name.endswith("-wrap") else "source")
    gptq.quantise(source, target, vocabulary=VOCABULARY, seed=SEED, dynamic=OTHERS, **options)
    with safe_open(target / "model.safetensors", "pt") as f:
        prefix = LAYER + "."
        tensors = {key[len(prefix) :]: f.get_tensor(key) for key in f.keys() if key.startswith(prefix)}
    assert set(tensors) == {"qweight", "qzeros", "scales", "g_idx"}, set(tensors)
    tensors["dequant_f16"] = dequantised(target, torch.float16)
    tensors["dequant_bf16"] = dequantised(target, torch.bfloat16)
    assert tensors["dequant_f16"].shape == (512, 64) and tensors["dequant_f16"].dtype == torch.float16
    assert tensors["dequant_bf16"].shape == (512, 64) and tensors["dequant_bf16"].dtype == torch.bfloat16
    metadata = {k: str(v).lower() for k, v in options.items()}
    write_tensors(out / "gptq" / f"{name}.safetensors", tensors, metadata)


def main():
    options = arguments(__doc__.splitlines()[0])
    unknown = set(options.names) - set(VARIANTS)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    deterministic(SEED)
    with tempfile.TemporaryDirectory() as work:
        source_model(Path(work) / "source", 0.25)
        source_model(Path(work) / "off-centre", 0.7)
        for name in options.names or VARIANTS:
            make(name, VARIANTS[name], Path(work), options.out)


if __name__ == "__main__":
    main()
