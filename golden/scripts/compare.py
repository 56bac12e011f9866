"""Comparison of rebuilt files whose bytes differ: compare.py COMMITTED REBUILT LIMITS FILE...

LIMITS is a JSON object {dtype: limit}, or null for a fixture of which only the structure can be compared.
Exit status: 0 within the limits, 1 not, 3 same structure and nothing more is known.
"""

import json
import math
import pathlib
import sys

from safetensors.torch import load_file

from common import SAFETENSORS_NAMES


def json_differs(a, b, where="$"):
    """The first place where two JSON values differ; floats may differ by 10 %."""
    if isinstance(a, float) and isinstance(b, float):
        return None if math.isclose(a, b, rel_tol=0.1) else f"{where}: {a} against {b}"
    if type(a) is not type(b):
        return f"{where}: {a!r} against {b!r}"
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return f"{where}: keys {sorted(a.keys() ^ b.keys())}"
        return next((d for k in a if (d := json_differs(a[k], b[k], f"{where}.{k}"))), None)
    if isinstance(a, list):
        if len(a) != len(b):
            return f"{where}: {len(a)} against {len(b)} entries"
        return next((d for i, (x, y) in enumerate(zip(a, b)) if (d := json_differs(x, y, f"{where}[{i}]"))), None)
    return None if a == b else f"{where}: {a!r} against {b!r}"


def distance(a, b):
    if not a.dtype.is_floating_point:
        return (a != b).double().mean().item()
    a, b = a.double(), b.double()
    scale = a.pow(2).mean().sqrt().item()
    error = (a - b).pow(2).mean().sqrt().item()
    return error / scale if scale else error


def tensors_differ(a, b, limits):
    if a.keys() != b.keys():
        return f"tensors {sorted(a.keys() ^ b.keys())}"
    worst = 0.0
    for name in a:
        if a[name].shape != b[name].shape or a[name].dtype != b[name].dtype:
            return f"{name}: {a[name].dtype} {tuple(a[name].shape)} against {b[name].dtype} {tuple(b[name].shape)}"
        if limits is None:
            continue
        limit = limits[SAFETENSORS_NAMES.get(a[name].dtype, "I32")]
        error = distance(a[name], b[name])
        if not error <= limit:
            return f"{name}: distance {error:.3g} above the limit {limit:.3g}"
        worst = max(worst, error)
    if limits is not None:
        print(f"  largest distance {worst:.3g},", end="")
    return None


def differs(committed, rebuilt, limits):
    if committed.suffix == ".safetensors":
        return tensors_differ(load_file(committed), load_file(rebuilt), limits)
    if committed.suffix == ".json":
        return json_differs(*(json.loads(p.read_text(encoding="utf-8")) for p in (committed, rebuilt)))
    return "bytes differ"


def main():
    committed, rebuilt = map(pathlib.Path, sys.argv[1:3])
    limits = json.loads(sys.argv[3])
    fine = "within the limit, not the same bytes" if limits else "same structure, not the same bytes"
    failed = False
    for name in sys.argv[4:]:
        problem = differs(committed / name, rebuilt / name, limits)
        failed |= problem is not None
        print(f"  {'DIFFERS ' + problem if problem else fine}: {name}")
    sys.exit(1 if failed else 0 if limits else 3)


if __name__ == "__main__":
    main()
