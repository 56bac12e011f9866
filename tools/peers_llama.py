#!/usr/bin/env python3
"""How fast llama.cpp runs a checkpoint on this CPU: a peer of `cargo bench -p assay-reference --bench forward`, as peers.py.

    python tools/peers_llama.py DIR [--rounds 3] [--threads 2] [--only PART] [--flash off|auto] [--keep FOLDER]

Needs llama-cpp-python, gguf and numpy. DIR is a checkpoint of Qwen3 in bf16. It is written as GGUF in f32 and in bf16, without a
tokenizer, to a temporary folder, or to FOLDER, where the files stay and are taken up again. Rows and token ids are those of
peers.py; times are medians. Flash attention is off, for llama.cpp's rounds keys and values to f16 even where the cache is f32. Each
file is written and measured in a process of its own, whose peak memory is printed, the mapped weights among it."""

import argparse
import json
import multiprocessing
import pathlib
import resource
import statistics
import sys
import tempfile
import time

import gguf
import llama_cpp
import numpy

ROWS = [
    ("prefill 128, f32, last logits", "f32", 128, "last"),
    ("prefill 512, f32, all logits", "f32", 512, "all"),
    ("decode, f32", "f32", 16, "decode"),
    ("decode, bf16", "bf16", 16, "decode"),
]
TOKENS = 8
# The second is what llama.cpp takes by itself.
CACHE = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.F16}
FLASH = {"off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED, "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tensors(folder):
    """Of each tensor of the checkpoint: name, shape, file, offset of its first byte."""
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            if entry["dtype"] != "BF16":
                sys.exit(f"{path}: {name} is {entry['dtype']}, expected BF16")
            yield name, entry["shape"], path, 8 + length + entry["data_offsets"][0]


def gguf_name(name):
    """The name in GGUF. Queries and keys stay as they are: llama.cpp turns qwen3's halves as transformers does."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    layer, tensor = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LAYER[tensor.removesuffix('.weight')]}.weight"


def convert(folder, dtype, target):
    """Writes the checkpoint as GGUF, a tensor at a time. Norms are f32 in every file of llama.cpp."""
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "qwen3":
        sys.exit(f"{folder}: model_type is {config['model_type']}, expected qwen3")
    tied = config.get("tie_word_embeddings", False)
    kept = [t for t in tensors(folder) if not (tied and t[0] == "lm_head.weight")]
    writer = gguf.GGUFWriter(target, "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    types = []
    for name, shape, _, _ in kept:
        as_bf16 = dtype == "bf16" and len(shape) > 1
        types.append(gguf.GGMLQuantizationType.BF16 if as_bf16 else gguf.GGMLQuantizationType.F32)
        size = int(numpy.prod(shape)) * (2 if as_bf16 else 4)
        writer.add_tensor_info(gguf_name(name), shape, numpy.dtype(numpy.float32), size, raw_dtype=types[-1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for (_, shape, path, offset), kind in zip(kept, types):
        bits = numpy.fromfile(path, numpy.uint16, int(numpy.prod(shape)), offset=offset)
        if kind == gguf.GGMLQuantizationType.F32:
            bits = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
        writer.write_tensor_data(bits)
    writer.close()


def decode(context, tokens, start, outputs):
    """One llama_decode of tokens at the positions from start; logits of the last of them, or of all."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i] = token
        batch.pos[i] = start + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = outputs == "all" or i == len(tokens) - 1
    status = llama_cpp.llama_decode(context, batch)
    llama_cpp.llama_synchronize(context)
    llama_cpp.llama_batch_free(batch)
    if status != 0:
        sys.exit(f"llama_decode of {len(tokens)} tokens: status {status}")


def seconds(context, vocab, prompt, work):
    """Seconds of a prompt, or of a token of decode."""
    ids = [(i * 7919 + 13) % vocab for i in range(prompt)]
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
    start = time.perf_counter()
    decode(context, ids, 0, work)
    if work != "decode":
        return time.perf_counter() - start
    start = time.perf_counter()
    for i in range(TOKENS):
        decode(context, [i * 101 % vocab], prompt + i, work)
    return (time.perf_counter() - start) / TOKENS


@llama_cpp.llama_log_callback
def errors(level, text, _):
    """Of what llama.cpp logs, its errors."""
    if level == 4:
        print(text.decode(), end="", file=sys.stderr)


def load(path):
    """The model of a GGUF, mapped."""
    llama_cpp.llama_log_set(errors, None)
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_mmap = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    return model or sys.exit(f"{path}: llama.cpp does not load it")


def open_context(model, dtype, prompt, threads, flash):
    """A context that takes the prompt as one batch, with room for the tokens of decode."""
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = prompt + TOKENS
    parameters.n_batch = parameters.n_ubatch = prompt
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.type_k = parameters.type_v = CACHE[dtype]
    parameters.flash_attn_type = FLASH[flash]
    return llama_cpp.llama_init_from_model(model, parameters) or sys.exit("llama.cpp makes no context")


def measure(path, dtype, rows, args):
    """Prints the rows of one file."""
    model = load(path)
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    for name, _, prompt, work in rows:
        context = open_context(model, dtype, prompt, args.threads, args.flash)
        times = [seconds(context, vocab, prompt, work) for _ in range(args.rounds + 1)][1:]
        llama_cpp.llama_free(context)
        s = statistics.median(times)
        tokens = 1 if work == "decode" else prompt
        print(f"{name:<30} {s * 1e3:9.1f} ms {tokens / s:9.2f} tok/s", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"  {dtype}: KV cache {CACHE[dtype].name.lower()}, at most {peak} MiB")


def apart(work, *arguments):
    """Runs work in a process of its own, so that each peak of memory is of one model."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode != 0:
        sys.exit(f"{work.__name__}: exit code {process.exitcode}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--flash", choices=FLASH, default="off", help="flash attention; auto is llama.cpp's own choice")
    parser.add_argument("--keep", type=pathlib.Path, help="folder in which the GGUF files stay")
    args = parser.parse_args()
    print(f"llama-cpp-python {llama_cpp.__version__}, {args.threads} threads, {args.rounds} rounds")
    print(f"flash attention {args.flash}, {llama_cpp.llama_print_system_info().decode()}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for dtype in CACHE:
            rows = [r for r in ROWS if r[1] == dtype and args.only in r[0]]
            if not rows:
                continue
            path = folder / f"{dtype}.gguf"
            if not path.exists():
                unfinished = path.with_suffix(".part")
                apart(convert, args.dir, dtype, unfinished)
                unfinished.rename(path)
            apart(measure, path, dtype, rows, args)


if __name__ == "__main__":
    main()
