"""safetensors in and out, from torch tensors or numpy arrays, with neither imported.

Format: https://github.com/huggingface/safetensors#format. Eight bytes of header length (little-endian), a JSON
header, the data. Torch tensors are read through their memory and made from bytes, because the numpy of a container is
not always one that its torch was built for.
"""

import ctypes
import errno
import json
import math
import os
import shutil
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from assay_taps.errors import TapError

# safetensors' name, its torch and numpy spelling, bytes of an element.
_DTYPES = (
    ("BF16", "bfloat16", 2),
    ("F16", "float16", 2),
    ("F32", "float32", 4),
    ("F64", "float64", 8),
    ("F8_E4M3", "float8_e4m3fn", 1),
    ("I32", "int32", 4),
    ("U32", "uint32", 4),
    ("I64", "int64", 8),
    ("I16", "int16", 2),
    ("I8", "int8", 1),
    ("U8", "uint8", 1),
    ("BOOL", "bool", 1),
)
SIZES = {name: size for name, _, size in _DTYPES}
NAMES = {spelling: name for name, spelling, _ in _DTYPES}
SPELLINGS = {name: spelling for name, spelling, _ in _DTYPES}

# What the format's own library refuses to read.
LONGEST_HEADER = 100_000_000


class Raw(NamedTuple):
    """A tensor as it lies in a file."""

    dtype: str  # safetensors' spelling
    shape: Tuple[int, ...]
    data: Any  # bytes-like, row-major, little-endian


def is_torch(value):
    """Whether this is a torch tensor; torch is not imported to tell."""
    return any(c.__module__.partition(".")[0] == "torch" and c.__name__ == "Tensor" for c in type(value).__mro__)


def raw(value) -> Raw:
    """A copy of a torch tensor (of any device) or numpy array as bytes."""
    if isinstance(value, Raw):
        return value
    spelling = str(value.dtype).replace("torch.", "") if is_torch(value) else value.dtype.name
    if spelling not in NAMES:
        raise TapError(f"a tensor of dtype {spelling} cannot be stored; known are {', '.join(sorted(NAMES))}")
    shape = tuple(int(n) for n in value.shape)
    if is_torch(value):
        host = value.detach().to("cpu").contiguous()
        length = math.prod(shape) * SIZES[NAMES[spelling]]
        data = ctypes.string_at(host.data_ptr(), length) if length else b""
    else:
        data = value.astype(value.dtype.newbyteorder("<"), order="C").tobytes()
    return Raw(NAMES[spelling], shape, data)


def to_torch(tensor: Raw):
    """A torch tensor of its own, on the CPU."""
    import torch

    dtype = getattr(torch, SPELLINGS[tensor.dtype], None)
    if dtype is None and tensor.dtype == "U32":
        dtype = torch.int32
    if dtype is None:
        raise TapError(f"this torch ({torch.__version__}) has no dtype {SPELLINGS[tensor.dtype]}")
    if math.prod(tensor.shape) == 0:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(tensor.shape)


def header(tensors: Dict[str, Raw], metadata: Optional[Dict[str, str]] = None) -> Tuple[bytes, List[str]]:
    """Length and header of a file, and the names in the order in which the data follow: wide elements first, so
    that all are aligned."""
    order = sorted(tensors, key=lambda name: (-SIZES[tensors[name].dtype], name))
    entries, end = {}, 0
    if metadata:
        entries["__metadata__"] = dict(sorted(metadata.items()))
    for name in order:
        t = tensors[name]
        start, end = end, end + math.prod(t.shape) * SIZES[t.dtype]
        entries[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def encode(tensors: Dict[str, Raw], metadata: Optional[Dict[str, str]] = None) -> List[Any]:
    """A file as a list of byte strings."""
    head, order = header(tensors, metadata)
    return [head] + [tensors[name].data for name in order]


def parse_header(text: bytes, data_length: int, where: str):
    """Metadata and entries (dtype, shape, start, end) of a header; everything is checked."""
    try:
        entries = json.loads(text.decode("utf-8"))
        metadata = entries.pop("__metadata__", {})
        parsed = {}
        for name, entry in entries.items():
            dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if dtype not in SIZES:
                raise ValueError(f"tensor {name}: unknown dtype {dtype}")
            if any(not isinstance(n, int) or n < 0 for n in shape + (start, end)):
                raise ValueError(f"tensor {name}: a dimension or offset is no natural number")
            if end - start != math.prod(shape) * SIZES[dtype] or end > data_length:
                raise ValueError(f"tensor {name}: {start}..{end} does not hold {list(shape)} of {dtype}")
            parsed[name] = (dtype, shape, start, end)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise TapError(f"{where} is not safetensors: {e}") from None
    end = 0
    for name, (_, _, start, stop) in sorted(parsed.items(), key=lambda kv: kv[1][2:]):
        if start != end:
            raise TapError(f"{where}: tensor {name} begins at {start}, the one before it ends at {end}")
        end = stop
    if end != data_length:
        raise TapError(f"{where}: {data_length} bytes of data, the header describes {end}")
    return metadata, parsed


def decode(data, where="the frame"):
    """Metadata and tensors (by name) of a file in memory."""
    view = memoryview(data)
    if len(view) < 8:
        raise TapError(f"{where} is not safetensors: {len(view)} bytes")
    length = int.from_bytes(view[:8], "little")
    if length > min(LONGEST_HEADER, len(view) - 8):
        raise TapError(f"{where} is not safetensors: a header of {length} bytes in {len(view)}")
    body = view[8 + length :]
    metadata, entries = parse_header(bytes(view[8 : 8 + length]), len(body), where)
    return metadata, {n: Raw(d, s, body[a:b]) for n, (d, s, a, b) in entries.items()}


class Reader:
    """A file whose tensors are read one at a time."""

    def __init__(self, path):
        self.path, size = path, os.path.getsize(path)
        with open(path, "rb") as f:
            length = int.from_bytes(f.read(8), "little")
            if size < 8 or length > min(LONGEST_HEADER, size - 8):
                raise TapError(f"{path} is not safetensors: a header of {length} bytes in {size}")
            self.start = 8 + length
            self.metadata, self.entries = parse_header(f.read(length), size - self.start, str(path))

    def read(self, name) -> Raw:
        """One tensor."""
        dtype, shape, start, end = self.entries[name]
        with open(self.path, "rb") as f:
            f.seek(self.start + start)
            return Raw(dtype, shape, f.read(end - start))


def write_file(path, chunks):
    """Writes byte strings (any iterable) to a temporary file beside `path`, and renames it when it is whole."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as f:
            for chunk in chunks:
                f.write(chunk)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as e:
        if e.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", -1)):
            try:
                free = f", {shutil.disk_usage(os.path.dirname(path) or '.').free} bytes are free"
            except OSError:
                free = ""
            raise TapError(
                f"{path}: the disk is full{free}. Give another folder by --out, or record less by --probes"
            ) from None
        raise TapError(f"{path}: {e.strerror or e}") from None
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
