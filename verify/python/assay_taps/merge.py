"""Makes one trace of those of the ranks of a tensor-parallel model, a layer at a time."""

import json
import math
import os
import shutil

from assay_taps import probes as names
from assay_taps.errors import TapError
from assay_taps.tensors import Raw, Reader, SIZES, encode, write_file


def columns_joined(parts):
    """Tensors [T, c, ...] side by side along their second dimension."""
    dtype, tail = parts[0].dtype, parts[0].shape[2:]
    if len({(p.dtype, p.shape[0], p.shape[2:]) for p in parts}) != 1:
        raise TapError(f"ranks recorded {[(p.dtype, p.shape) for p in parts]}, which do not fit together")
    rows = parts[0].shape[0]
    widths = [math.prod(p.shape[1:]) * SIZES[dtype] for p in parts]
    views = [memoryview(p.data) for p in parts]
    data = b"".join(v[t * w : (t + 1) * w] for t in range(rows) for v, w in zip(views, widths))
    return Raw(dtype, (rows, sum(p.shape[1] for p in parts)) + tail, data)


def merged(probe, parts, kv_heads):
    """One tensor from the ranks' (in rank order; all of them), and whether whole copies differ."""
    layout = names.SHARDED.get(names.kind_of(probe))
    if layout is None:
        return parts[0], any(p != parts[0] for p in parts[1:])
    # With fewer kv heads than ranks, several ranks hold the same one.
    copies = max(1, len(parts) // kv_heads) if layout == "kv_heads" else 1
    differ = any(parts[r] != parts[r - r % copies] for r in range(len(parts)))
    return columns_joined(parts[::copies]), differ


def merge(folders, out):
    """Writes the trace `out` from the ranks' folders; returns the manifest."""
    manifests = []
    for folder in folders:
        path = os.path.join(folder, "manifest.json")
        if not os.path.exists(path):
            raise TapError(f"{path}: missing. Do all ranks see this folder? Ranks on other machines need a shared one")
        with open(path, encoding="utf-8") as f:
            manifests.append(json.load(f))
    manifests.sort(key=lambda m: m["ranks"]["rank"])
    folders = sorted(folders)
    whole = manifests[0]
    for m in manifests:
        ranks = m["ranks"]
        if ranks["size"] != len(manifests) or m["tokens"] != whole["tokens"] or m["segments"] != whole["segments"]:
            raise TapError(f"{out}: rank {ranks['rank']} of {ranks['size']} recorded other calls than rank 0")
    kv_heads, differing = whole["ranks"]["kv_heads"], []
    for file in whole["files"]:
        if len(folders) == 1:
            os.replace(os.path.join(folders[0], file), os.path.join(out, file))
            continue
        # Logits are gathered on rank 0 by some versions, so the others may have fewer probes, or no file.
        readers = [Reader(os.path.join(f, file)) for f in folders if os.path.exists(os.path.join(f, file))]
        joined = {}
        for probe in readers[0].entries:
            parts = [r.read(probe) for r in readers if probe in r.entries]
            if probe != "logits" and len(parts) != len(folders):
                raise TapError(f"{out}: {probe} was recorded by {len(parts)} of {len(folders)} ranks")
            joined[probe], differ = merged(probe, parts, kv_heads)
            differing += [probe] if differ else []
        for probe, t in joined.items():
            whole["probes"][probe]["shape"] = list(t.shape)
        write_file(os.path.join(out, file), encode(joined))
    notes = [whole["notes"]] if whole["notes"] else []
    if len(folders) > 1:
        notes.append(f"tensor parallel over {len(folders)} ranks")
        whole["producer"]["ranks"] = str(len(folders))
    if differing:
        notes.append(f"ranks differ where they must be equal: {len(differing)} probes, {differing[0]} first")
        whole["ranks_differ"] = differing
    whole["notes"] = "; ".join(notes)
    del whole["ranks"]
    write_file(os.path.join(out, "manifest.json"), [(json.dumps(whole, indent=1) + "\n").encode()])
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return whole
