#!/usr/bin/env python3
"""How fast transformers runs a checkpoint on this CPU: the peer of `cargo bench -p assay-reference --bench forward`.

    python tools/peers.py DIR [--rounds 3] [--threads 2] [--only PART]

Needs torch and transformers. Rows have the names of the bench's; times are medians. Prints the peak memory too."""

import argparse
import resource
import statistics
import time

import torch
from transformers import AutoModelForCausalLM

ROWS = [
    ("prefill 128, f64, all logits", "float64", 128, "all"),
    ("prefill 128, f32, last logits", "float32", 128, "last"),
    ("prefill 512, f32, all logits", "float32", 512, "all"),
    ("decode, f32", "float32", 16, "decode"),
    ("decode, bf16", "bfloat16", 16, "decode"),
    ("decode, f64", "float64", 16, "decode"),
]
TOKENS = 8


def seconds(model, prompt, work):
    """Seconds of a prompt, or of a token of decode."""
    vocab = model.config.vocab_size
    ids = torch.tensor([[(i * 7919 + 13) % vocab for i in range(prompt)]])
    keep = 0 if work == "all" else 1
    with torch.inference_mode():
        start = time.perf_counter()
        out = model(ids, use_cache=work == "decode", logits_to_keep=keep)
        if work != "decode":
            return time.perf_counter() - start
        start = time.perf_counter()
        for i in range(TOKENS):
            step = torch.tensor([[i * 101 % vocab]])
            out = model(step, past_key_values=out.past_key_values, use_cache=True)
        return (time.perf_counter() - start) / TOKENS


def gptq(rounds, k=1024, n=3072, group=128):
    """Giga-weights a second of the unpacking that torch code does: shift, mask, subtract, multiply."""
    qweight = torch.randint(-(2**31), 2**31 - 1, (k // 8, n), dtype=torch.int32)
    zeros = torch.full((k // group, 1, n), 8, dtype=torch.int8)
    scales = torch.full((k // group, 1, n), 0.01)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32).view(1, 8, 1)
    times = []
    for _ in range(5 * rounds):
        start = time.perf_counter()
        q = ((qweight.unsqueeze(1) >> shifts) & 15).to(torch.int8).view(k // group, group, n)
        ((q - zeros) * scales).view(k, n)
        times.append(time.perf_counter() - start)
    return k * n / statistics.median(times) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds")
    for dtype in ("bfloat16", "float32", "float64"):
        rows = [r for r in ROWS if r[1] == dtype and args.only in r[0]]
        if not rows:
            continue
        model = AutoModelForCausalLM.from_pretrained(args.dir, dtype=getattr(torch, dtype)).eval()
        for name, _, prompt, work in rows:
            times = [seconds(model, prompt, work) for _ in range(args.rounds + 1)][1:]
            s = statistics.median(times)
            tokens = 1 if work == "decode" else prompt
            print(f"{name:<30} {s * 1e3:9.1f} ms {tokens / s:9.2f} tok/s", flush=True)
        del model
        print(f"  {dtype}: at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB so far")
    if "gptq".startswith(args.only):
        print(f"gptq dequantisation: {gptq(args.rounds):.2f} Gweight/s")


if __name__ == "__main__":
    main()
