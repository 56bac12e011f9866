"""A whole FP8 checkpoint spelled as Qwen's releases are, and its bf16 trace as transformers runs it on a CPU.

The seeded weights are quantised here (`fp8.quantise`); transformers without a GPU dequantises such a model while
it loads it and runs plain bf16 linears.
"""

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

import fp8
from common import arguments, deterministic, read_json, write_json, write_trace
from record import ATTENTION, check_equals_eager, producer, run
from tiny import SHAPE, TOKENS, fill

NAME = "fp8-qwen3"
SEED = 9010
KEPT = ["lm_head", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"]
QUANTISATION = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "modules_to_not_convert": KEPT,
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}


def checkpoint(folder):
    shape = {**SHAPE, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 1}
    model = fill(Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True)), SEED)
    model.generation_config = GenerationConfig(bos_token_id=316, eos_token_id=[318, 317], pad_token_id=316)
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = {}
    for name, weight in load_file(path).items():
        if name.endswith("_proj.weight"):
            tensors[name], tensors[name + "_scale_inv"] = fp8.quantise(weight, torch.bfloat16)
        else:
            tensors[name] = weight
    path.unlink()
    save_file(tensors, path, {"format": "pt"})
    path.chmod(0o644)
    config = {**read_json(folder / "config.json"), "quantization_config": QUANTISATION}
    write_json(folder / "config.json", dict(sorted(config.items())))


def check_weights(model, folder):
    """The weights that transformers runs are those of the layer fixtures' rule."""
    stored = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            codes, scale = stored[name + ".weight"], stored[name + ".weight_scale_inv"]
            assert module.weight.dtype == torch.bfloat16, name
            assert torch.equal(module.weight, fp8.dequantised_by_block(codes, scale, torch.float32).bfloat16()), name


def trace(folder, out):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation=ATTENTION, local_files_only=True
    ).eval()
    check_weights(model, folder)
    recorder = run(model, TOKENS)
    check_equals_eager(folder, "bf16", TOKENS, recorder.tensors["logits"])
    write_trace(
        out / "traces" / NAME / "bf16",
        recorder.tensors,
        producer=producer(),
        dtype="bf16",
        architecture=type(model).__name__,
        tokens=TOKENS,
        layers=model.config.num_hidden_layers,
        notes=f"{NAME}, dequantised to bf16 by transformers as it loads, eager attention, one prefill on the CPU",
    )


def main():
    options = arguments(__doc__.splitlines()[0])
    deterministic(SEED)
    folder = options.out / "checkpoints" / NAME
    checkpoint(folder)
    trace(folder, options.out)


if __name__ == "__main__":
    main()
