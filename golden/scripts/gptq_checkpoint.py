"""Whole GPTQ and AWQ checkpoints as gptqmodel saves them, and their bf16 traces through gptqmodel's torch linears.

Names: a checkpoint (default gptq-qwen3) and a part: `checkpoint` quantises, `trace` runs the committed one.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import gptq  # first: it prepares os.cpu_count  # isort: skip
import gptqmodel
import torch
import transformers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from common import GOLDEN, arguments, deterministic, read_json, write_json, write_trace
from record import ATTENTION, producer, run
from tiny import SHAPE, TOKENS, fill

SMALL = {**SHAPE, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 1, "tie_word_embeddings": True}
QWEN2, QWEN3 = (Qwen2Config, Qwen2ForCausalLM), (Qwen3Config, Qwen3ForCausalLM)


@dataclass(frozen=True)
class Checkpoint:
    seed: int
    family: tuple
    shape: dict
    quantisation: dict
    linear: str = "TorchLinear"


CHECKPOINTS = {
    "gptq-qwen3": Checkpoint(
        6006, QWEN3, {**SHAPE, "hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": True},
        dict(bits=4, group_size=32, sym=True, desc_act=True, checkpoint_format="gptq"),
    ),
    "gptq8-qwen2": Checkpoint(
        6008, QWEN2, SMALL, dict(bits=8, group_size=32, sym=False, desc_act=True, checkpoint_format="gptq")
    ),
    "gptq3-qwen3": Checkpoint(
        6003, QWEN3, SMALL, dict(bits=3, group_size=32, sym=False, desc_act=False, checkpoint_format="gptq_v2")
    ),
    "awq-qwen3": Checkpoint(6004, QWEN3, SMALL, dict(group_size=32, sym=False), "AwqTorchLinear"),
}  # fmt: skip


def source_model(folder, family, shape, seed):
    config, model_class = family
    model = fill(model_class(config(**shape)), seed)
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


def trace(name, out):
    """Of the committed checkpoint, wherever `out` is."""
    linear = CHECKPOINTS[name].linear
    backend = gptq.BACKEND.AWQ_TORCH if linear == "AwqTorchLinear" else gptq.BACKEND.GPTQ_TORCH
    model = gptq.load_quantised(GOLDEN / "checkpoints" / name, torch.bfloat16, backend)
    for path, module in model.named_modules():
        if path.endswith("_proj"):
            assert type(module).__name__ == linear and module.scales.dtype == torch.bfloat16, path
    model.set_attn_implementation(ATTENTION)
    recorder = run(model, TOKENS)
    made_by = producer()
    made_by.update(name="gptqmodel", version=gptqmodel.__version__, transformers=transformers.__version__)
    write_trace(
        out / "traces" / name / "bf16",
        recorder.tensors,
        producer=made_by,
        dtype="bf16",
        architecture=type(model).__name__,
        tokens=TOKENS,
        layers=model.config.num_hidden_layers,
        notes=f"{name}, gptqmodel's {linear} in bf16, transformers' eager attention, one prefill on the CPU",
    )


def checkpoint(name, out):
    made = CHECKPOINTS[name]
    folder = out / "checkpoints" / name
    quantise = gptq.quantise_awq if made.linear == "AwqTorchLinear" else gptq.quantise
    with tempfile.TemporaryDirectory() as work:
        source_model(Path(work) / "source", made.family, made.shape, made.seed)
        quantise(
            Path(work) / "source", folder, vocabulary=SHAPE["vocab_size"], seed=made.seed, **made.quantisation
        )
    tidy(folder)


def main():
    options = arguments(__doc__.splitlines()[0])
    parts = [name for name in options.names if name in ("checkpoint", "trace")] or ["checkpoint", "trace"]
    for name in [name for name in options.names if name not in parts] or ["gptq-qwen3"]:
        if name not in CHECKPOINTS:
            sys.exit(f"unknown: {name} (one of {', '.join(CHECKPOINTS)}, and checkpoint or trace)")
        deterministic(CHECKPOINTS[name].seed)
        if "checkpoint" in parts:
            checkpoint(name, options.out)
        if "trace" in parts:
            trace(name, options.out)


if __name__ == "__main__":
    main()
