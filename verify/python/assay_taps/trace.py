"""Writing a trace (docs/trace_format.md) while the model runs, with one layer in memory.

Each forward call writes what it saw of a layer as a part, as soon as the next layer begins. `close` joins the parts of
all calls, a layer at a time, and writes the manifest last: a folder with a manifest is whole.
"""

import json
import math
import os
import shutil

from assay_taps import probes as names
from assay_taps.errors import TapError
from assay_taps.tensors import Raw, Reader, SIZES, encode, header, raw, write_file

VERSION = 1
_CHUNK = 1 << 24


class TraceWriter:
    """A trace in the making.

    `keep` copies a tensor [T, ...] of the call under way; `end_call` names the call's tokens; `close` makes the
    folder a trace; `abort` removes what was written.
    """

    def __init__(self, folder, layers, probes="*"):
        self.folder, self.layers = str(folder), layers
        self.wanted = names.selection(probes, layers)
        self.globs = probes or "*"
        self.tokens, self.segments = [], []
        self._pending, self._group, self._seen = {}, None, set()
        self._parts = {}
        self._made_folder = not os.path.isdir(self.folder)
        if not self._made_folder and os.listdir(self.folder):
            raise TapError(f"{self.folder}: not empty. A trace needs a new or an empty folder")
        self._work = os.path.join(self.folder, ".parts")
        try:
            os.makedirs(self._work)
        except OSError as e:
            raise TapError(f"{self._work}: {e.strerror or e}") from None

    def wants(self, probe):
        """Whether to record it."""
        return probe in self.wanted

    def keep(self, probe, tensor):
        """Copies a tensor whose rows are the tokens of this call; ignored if it is not wanted."""
        if probe not in self.wanted:
            return
        if probe in self._seen:
            raise TapError(
                f"{probe} was computed twice in one forward call. More than one sequence, or a module that several "
                "layers share? Record one prompt at a time"
            )
        group = names.layer_of(probe)
        if group != self._group:
            self._flush()
            self._group = group
        self._seen.add(probe)
        self._pending[probe] = raw(tensor)

    def _flush(self):
        if self._pending:
            group, call = self._group, len(self.segments)
            parts = self._parts.setdefault(group, [])
            path = os.path.join(self._work, f"{names.file_of(group)}.{call}.{len(parts)}")
            write_file(path, encode(self._pending))
            parts.append((call, path))
            self._pending = {}

    def end_call(self, tokens):
        """Ends a forward call over these token ids."""
        self._flush()
        self._seen = set()
        start = len(self.tokens)
        self.tokens += [int(t) for t in tokens]
        self.segments.append([start, len(self.tokens)])

    def close(self, *, producer, dtype, architecture, notes="", extra=None):
        """Joins the parts and writes the manifest; returns it."""
        self._flush()
        if not self.segments:
            raise TapError(f"{self.folder}: the model was not called, there is nothing to record")
        manifest = {"probes": {}, "files": []}
        for group in sorted(self._parts, key=lambda g: -1 if g is None else g):
            file = names.file_of(group)
            manifest["files"].append(file)
            for probe, t in self._join(self._parts[group], os.path.join(self.folder, file)).items():
                manifest["probes"][probe] = {"file": file, "shape": list(t.shape), "dtype": t.dtype}
        if not manifest["probes"]:
            raise TapError(f"{self.folder}: --probes {self.globs} matched nothing that this model computes")
        if self.globs != "*":
            notes = f"{notes}{'; ' if notes else ''}only probes {self.globs}"
        whole = {
            "assay_trace": VERSION,
            "producer": {k: str(v) for k, v in producer.items()},
            "dtype": dtype,
            "architecture": architecture,
            "tokens": self.tokens,
            "segments": self.segments,
            "layers": self.layers,
            "files": manifest["files"],
            "notes": notes,
            "probes": manifest["probes"],
        }
        whole.update(extra or {})
        text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
        shutil.rmtree(self._work, ignore_errors=True)
        write_file(os.path.join(self.folder, "manifest.json"), [text.encode()])
        return whole

    def _join(self, parts, path):
        """One file from the parts of all calls: the rows one after another."""
        rows = {}
        for call, part in parts:
            reader = Reader(part)
            for probe, (dtype, shape, _, _) in reader.entries.items():
                start, end = self.segments[call] if call < len(self.segments) else (0, -1)
                if not shape or shape[0] != end - start:
                    raise TapError(
                        f"{probe}: {shape[0] if shape else 'no'} rows in a call of {end - start} tokens. Record one "
                        "sequence at a time, without padding"
                    )
                rows.setdefault(probe, []).append((reader, dtype, shape))
        joined = {}
        for probe, found in rows.items():
            kinds = {(dtype, shape[1:]) for _, dtype, shape in found}
            count = sum(shape[0] for _, _, shape in found)
            if len(kinds) > 1 or count != len(self.tokens):
                raise TapError(f"{probe}: {count} rows of {sorted(kinds)} for {len(self.tokens)} tokens: calls differ")
            joined[probe] = Raw(found[0][1], (count,) + found[0][2][1:], None)
        head, order = header(joined)

        def chunks():
            yield head
            for probe in order:
                for reader, _, _ in rows[probe]:
                    yield from _copy(reader, probe)

        write_file(path, chunks())
        for _, part in parts:
            os.remove(part)
        return joined

    def abort(self):
        """Removes what was written; the folder too, if it was made here."""
        shutil.rmtree(self._work, ignore_errors=True)
        if self._made_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for group in self._parts:
            path = os.path.join(self.folder, names.file_of(group))
            if os.path.exists(path):
                os.remove(path)


def _copy(reader, probe):
    _, _, start, end = reader.entries[probe]
    with open(reader.path, "rb") as f:
        f.seek(reader.start + start)
        left = end - start
        while left:
            chunk = f.read(min(left, _CHUNK))
            left -= len(chunk)
            yield chunk


def size_of(probes):
    """Bytes of the tensors that a manifest lists."""
    return sum(math.prod(p["shape"]) * SIZES[p["dtype"]] for p in probes.values())
