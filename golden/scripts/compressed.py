"""Quantise a model with llmcompressor on the CPU, and load the result through transformers and compressed-tensors.

Import this before torch.
"""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import shutil  # noqa: E402

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from llmcompressor import oneshot  # noqa: E402
from llmcompressor.modifiers.quantization import GPTQModifier  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from common import read_json, write_json  # noqa: E402


def calibration(vocabulary, seed, sequences=32, length=32):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (sequences, length), generator=g)
    return Dataset.from_dict({"input_ids": ids.tolist(), "attention_mask": [[1] * length] * sequences})


def weights(*, symmetric, group_size, actorder=None):
    """The `weights` of a config group; group_size None is one scale a row ("channel")."""
    strategy = "group" if group_size else "channel"
    return dict(num_bits=4, type="int", symmetric=symmetric, strategy=strategy, group_size=group_size, actorder=actorder)


def quantise(source, target, args, *, vocabulary, seed, targets="Linear", dtype=torch.bfloat16, **options):
    """`source` is a model folder; `target` becomes the folder that llmcompressor saves (GPTQ, W4A16, packed).

    `options` go to llmcompressor's oneshot.
    """
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, local_files_only=True)
    recipe = GPTQModifier(config_groups={"group_0": {"targets": [targets], "weights": args}}, ignore=["lm_head"])
    data = calibration(vocabulary, seed)
    oneshot(
        model=model, dataset=data, recipe=recipe, max_seq_length=32, num_calibration_samples=len(data),
        shuffle_calibration_samples=False, pipeline="sequential",
        **options,
    )  # fmt: skip
    shutil.rmtree(target, ignore_errors=True)
    model.save_pretrained(target, save_compressed=True)
    (target / "recipe.yaml").unlink()
    (target / "model.safetensors").chmod(0o644)
    write_json(target / "config.json", read_json(target / "config.json"))


def load_quantised(folder, dtype, **options):
    """The model with every packed weight decompressed, as its first forward would."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, **options).eval()
    model(input_ids=torch.tensor([[0]]), use_cache=False)
    return model
