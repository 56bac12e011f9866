"""One compressed-tensors layer with weight_g_idx (actorder "group"), which llmcompressor wrote until its later releases.

compressed-tensors 0.19 refuses actorder "group"; 0.12 reads it, for symmetric weights only.
"""

import tempfile
from pathlib import Path

import compressed  # first: it sets the environment  # isort: skip
import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs
from safetensors import safe_open
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from common import arguments, deterministic, write_tensors
from layers import LAYER, VOCABULARY, source_model

NAME = "sym-g32-gidx"
SEED = 8020


def main():
    options = arguments(__doc__.splitlines()[0])
    deterministic(SEED)
    args = compressed.weights(symmetric=True, group_size=32, actorder="group")
    # this release wants a tokenizer even for data that is token ids already
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"unused": 0}, "unused")))
    with tempfile.TemporaryDirectory() as work:
        source, target = Path(work) / "source", Path(work) / NAME
        source_model(source, 0.25, heads=2)
        compressed.quantise(
            source, target, args, vocabulary=VOCABULARY, seed=SEED, targets="re:.*o_proj", processor=tokenizer
        )
        with safe_open(target / "model.safetensors", "pt") as f:
            prefix = LAYER + "."
            tensors = {key[len(prefix) :]: f.get_tensor(key) for key in f.keys() if key.startswith(prefix)}
    assert set(tensors) == {"weight_packed", "weight_scale", "weight_shape", "weight_g_idx"}, set(tensors)
    library = PackedQuantizationCompressor()
    for suffix, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        state = {**tensors, "weight_scale": tensors["weight_scale"].to(dtype)}
        tensors[f"dequant_{suffix}"] = library.decompress_weight(state, QuantizationArgs(**args))
        assert tensors[f"dequant_{suffix}"].dtype == dtype
    metadata = {key: str(value).lower() for key, value in args.items() if key != "type"}
    write_tensors(options.out / "compressed" / f"{NAME}.safetensors", tensors, {**metadata, "format": "pack-quantized"})


if __name__ == "__main__":
    main()
