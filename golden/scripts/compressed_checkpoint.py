"""A whole compressed-tensors checkpoint (W4A16) as llmcompressor saves it, and its bf16 trace through transformers.

Names: `checkpoint` quantises, `trace` runs the committed checkpoint.
"""

import tempfile
from pathlib import Path

import compressed  # first: it sets the environment  # isort: skip
import compressed_tensors
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from common import GOLDEN, arguments, deterministic, write_trace
from record import ATTENTION, producer, run
from tiny import SHAPE, TOKENS, fill

NAME = "ct-qwen3"
SEED = 8010


def source_model(folder):
    shape = {**SHAPE, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 1}
    model = fill(Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True)), SEED)
    model.generation_config = GenerationConfig(bos_token_id=316, eos_token_id=[318, 317], pad_token_id=316)
    model.save_pretrained(folder)


def checkpoint(out):
    args = compressed.weights(symmetric=False, group_size=32)
    with tempfile.TemporaryDirectory() as work:
        source_model(Path(work) / "source")
        compressed.quantise(
            Path(work) / "source", out / "checkpoints" / NAME, args, vocabulary=SHAPE["vocab_size"], seed=SEED
        )


def check_linears(layer, probes):
    """The forward that compressed-tensors put in the place of Linear's is F.linear with the decompressed weight."""
    read_by = {
        "input_norm": ("q_proj", "k_proj", "v_proj"), "attention": ("o_proj",),
        "post_norm": ("gate_proj", "up_proj"), "silu_mul": ("down_proj",),
    }  # fmt: skip
    for source, names in read_by.items():
        for name in names:
            weight = getattr(layer.self_attn if hasattr(layer.self_attn, name) else layer.mlp, name).weight
            assert torch.equal(probes[name], torch.nn.functional.linear(probes[source].flatten(1), weight)), name


def trace(out):
    """Of the committed checkpoint, wherever `out` is."""
    model = compressed.load_quantised(
        GOLDEN / "checkpoints" / NAME, torch.bfloat16, attn_implementation=ATTENTION
    )
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            assert module.weight.dtype == module.weight_scale.dtype == torch.bfloat16, name
    recorder = run(model, TOKENS)
    check_linears(model.model.layers[0], {k.removeprefix("layers.0."): v for k, v in recorder.tensors.items()})
    made_by = producer()
    made_by["compressed-tensors"] = compressed_tensors.__version__
    write_trace(
        out / "traces" / NAME / "bf16",
        recorder.tensors,
        producer=made_by,
        dtype="bf16",
        architecture=type(model).__name__,
        tokens=TOKENS,
        layers=model.config.num_hidden_layers,
        notes=f"{NAME}, decompressed to bf16 by compressed-tensors, transformers' eager attention, one prefill on the CPU",
    )


def main():
    options = arguments(__doc__.splitlines()[0])
    deterministic(SEED)
    if "checkpoint" in options.names or not options.names:
        checkpoint(options.out)
    if "trace" in options.names or not options.names:
        trace(options.out)


if __name__ == "__main__":
    main()
