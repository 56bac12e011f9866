"""A whole GPTQ checkpoint as gptqmodel saves it, and its bf16 trace through gptqmodel's own TorchLinear.

Names: `checkpoint` quantises, `trace` runs the committed checkpoint.
"""

import tempfile
from pathlib import Path

import gptq  # first: it prepares os.cpu_count  # isort: skip
import gptqmodel
import torch
import transformers
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from common import GOLDEN, arguments, deterministic, read_json, write_json, write_trace
from record import ATTENTION, producer, run
from tiny import SHAPE, TOKENS, fill

NAME = "gptq-qwen3"
SEED = 6006
QUANTISATION = dict(bits=4, group_size=32, sym=True, desc_act=True, checkpoint_format="gptq")


def source_model(folder):
    config = Qwen3Config(**{**SHAPE, "hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": True})
    model = fill(Qwen3ForCausalLM(config), SEED)
    model.generation_config = GenerationConfig(bos_token_id=316, eos_token_id=[318, 317], pad_token_id=316)
    model.save_pretrained(folder)


def tidy(folder):
    """Drop what depends on the machine or the clock: logs, temporary folders, and the tokenizer nobody asked for."""
    keep = {"config.json", "generation_config.json", "quantize_config.json"}
    for path in folder.iterdir():
        if path.name not in keep and not path.name.startswith("model"):
            path.unlink()
    for name in ("config.json", "quantize_config.json"):
        text = read_json(folder / name)
        for part in (text, text.get("quantization_config", {})):
            part.pop("_name_or_path", None)
            part.get("meta", {}).pop("offload_to_disk_path", None)
        write_json(folder / name, text)


def trace(out):
    """Of the committed checkpoint, wherever `out` is."""
    model = gptq.load_quantised(GOLDEN / "checkpoints" / NAME, torch.bfloat16)
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            assert type(module).__name__ == "TorchLinear" and module.scales.dtype == torch.bfloat16, name
    model.set_attn_implementation(ATTENTION)
    recorder = run(model, TOKENS)
    made_by = producer()
    made_by.update(name="gptqmodel", version=gptqmodel.__version__, transformers=transformers.__version__)
    write_trace(
        out / "traces" / NAME / "bf16",
        recorder.tensors,
        producer=made_by,
        dtype="bf16",
        architecture=type(model).__name__,
        tokens=TOKENS,
        layers=model.config.num_hidden_layers,
        notes=f"{NAME}, gptqmodel's TorchLinear in bf16, transformers' eager attention, one prefill on the CPU",
    )


def checkpoint(out):
    folder = out / "checkpoints" / NAME
    with tempfile.TemporaryDirectory() as work:
        source_model(Path(work) / "source")
        gptq.quantise(Path(work) / "source", folder, vocabulary=SHAPE["vocab_size"], seed=SEED, **QUANTISATION)
    tidy(folder)


def main():
    options = arguments(__doc__.splitlines()[0])
    deterministic(SEED)
    if "checkpoint" in options.names or not options.names:
        checkpoint(options.out)
    if "trace" in options.names or not options.names:
        trace(options.out)


if __name__ == "__main__":
    main()
