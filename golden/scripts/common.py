"""What every fixture script shares: places, determinism, writing traces and checkpoints."""

import argparse
import hashlib
import json
import pathlib

import torch
from safetensors.torch import save_file

GOLDEN = pathlib.Path(__file__).resolve().parent.parent

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}
SAFETENSORS_NAMES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def deterministic(seed=0):
    """One thread, deterministic algorithms, seeded: what bitwise repeatability on one machine needs."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    torch.set_grad_enabled(False)


def arguments(description, **extra):
    """The command line every fixture script has: names, and the root to write below.

    The root mirrors golden/ (checkpoints/, traces/, gptq/); `golden/verify` passes a fresh one.
    Inputs that are not rebuilt (a trained checkpoint) are read from golden/ itself.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", help="which to make (default: all)")
    parser.add_argument("--out", type=pathlib.Path, default=GOLDEN, help="root to write below")
    for flag, options in extra.items():
        parser.add_argument("--" + flag.replace("_", "-"), **options)
    return parser.parse_args()


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_tensors(path, tensors, metadata=None):
    """safetensors with contiguous, independent tensors, so that the bytes depend on the values only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: t.detach().contiguous().clone() for name, t in tensors.items()}, path, metadata)
    path.chmod(0o644)
    if metadata:
        sort_metadata(path)


def sort_metadata(path):
    """The library writes __metadata__ in hash order; put it in name order, in the same number of bytes."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
    assert len(text) == length, path
    path.write_bytes(data[:8] + text + data[8 + length :])


def layer_of(probe):
    return int(probe.split(".")[1]) if probe.startswith("layers.") else None


def write_trace(folder, tensors, *, producer, dtype, architecture, tokens, layers, notes, segments=None):
    """Write a version 1 trace: manifest.json, global.safetensors and one file a layer."""
    files = {None: "global.safetensors", **{n: f"layer-{n:05}.safetensors" for n in range(layers)}}
    recorded = {layer_of(p) for p in tensors}
    files = {layer: name for layer, name in files.items() if layer in recorded}
    for layer, name in files.items():
        write_tensors(folder / name, {p: t for p, t in tensors.items() if layer_of(p) == layer})
    probes = {
        probe: {
            "file": files[layer_of(probe)],
            "shape": list(t.shape),
            "dtype": SAFETENSORS_NAMES[t.dtype],
        }
        for probe, t in tensors.items()
    }
    write_json(
        folder / "manifest.json",
        {
            "assay_trace": 1,
            "producer": producer,
            "dtype": dtype,
            "architecture": architecture,
            "tokens": tokens,
            "segments": segments or [[0, len(tokens)]],
            "layers": layers,
            "files": list(files.values()),
            "notes": notes,
            "probes": probes,
        },
    )


def relative_rms(a, b):
    """rms(a - b) / rms(b), in float64."""
    a, b = a.double(), b.double()
    return ((a - b).pow(2).mean().sqrt() / b.pow(2).mean().sqrt()).item()
