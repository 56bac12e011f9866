"""A child of `assay exec` (docs/exec.md) without any library: `add` and `argmax`, right or wrong as it is told."""

import json
import os
import signal
import struct
import subprocess
import sys
import time

MODE = sys.argv[1]
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}


def write(frame, tensors=(), raw=None, **metadata):
    """One frame; `raw` takes its bytes instead of standard output."""
    metadata = {"assay_exec": "1", "frame": frame, **{k: str(v) for k, v in metadata.items()}}
    header, data = {"__metadata__": metadata}, b""
    for name, dtype, shape, values in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    body = len(text).to_bytes(8, "little") + text + data
    (raw or sys.stdout.buffer.write)(len(body).to_bytes(8, "little") + body)
    sys.stdout.buffer.flush()


def read():
    """Metadata and tensors (dtype, shape, bytes) of the next frame, or None at the end."""
    head = sys.stdin.buffer.read(8)
    if not head:
        return None
    body = sys.stdin.buffer.read(int.from_bytes(head, "little"))
    n = int.from_bytes(body[:8], "little")
    header, data = json.loads(body[8 : 8 + n]), body[8 + n :]
    metadata = header.pop("__metadata__")
    return metadata, {k: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for k, t in header.items()}


def numbers(tensor):
    """Elements of bf16, f16 or f32 as floats."""
    dtype, _, data = tensor
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
    return [x[0] for x in struct.iter_unpack("<e" if dtype == "F16" else "<f", data)]


def f32(x):
    """Rounded to f32."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")


def stored(values, dtype):
    """Floats as bytes of a dtype, rounded to nearest even."""
    if dtype == "BF16":
        out = b""
        for x in values:
            bits = struct.unpack("<I", struct.pack("<f", x))[0]
            bits = 0x7FC00000 if x != x else bits + 0x7FFF + (bits >> 16 & 1)
            out += struct.pack("<H", bits >> 16 & 0xFFFF)
        return out
    if dtype == "F16":
        out = b""
        for x in values:
            try:
                out += struct.pack("<e", x)
            except OverflowError:
                out += struct.pack("<e", float("inf") if x > 0 else float("-inf"))
        return out
    return struct.pack(f"<{len(values)}f", *values)


def argmax(tensor):
    """The first largest of each row; a NaN is larger than all."""
    _, shape, _ = tensor
    x, cols, out = numbers(tensor), shape[-1], []
    for start in range(0, len(x), cols):
        best = start
        for i in range(start, start + cols):
            if x[best] == x[best] and (x[i] != x[i] or x[i] > x[best]):
                best = i
        out.append(best - start)
    return out


def answer(metadata, tensors, number):
    """Writes the answer to a case."""
    if metadata["op"] == "argmax":
        # Indices, as torch gives them.
        found = argmax(tensors["x"])
        shape = [len(found), 1]
        return write("result", [("out.output", "I64", shape, struct.pack(f"<{len(found)}q", *found))], id=number)
    (dtype, shape, _), b = tensors["a"], numbers(tensors["b"])
    a = numbers(tensors["a"])
    sums = [f32(p) if MODE == "block_dropped" else f32(p + q) for p, q in zip(a, b)]
    data = stored(sums, dtype)
    if MODE == "alternating":
        data = bytes([data[0] ^ int(number) % 2]) + data[1:]
    outputs = [("out.output", dtype, shape, data)]
    if MODE == "dtype":
        outputs = [("out.output", "F32", shape, struct.pack(f"<{len(sums)}f", *sums))]
    if MODE == "shape":
        outputs = [("out.output", dtype, shape[::-1], data)]
    if MODE == "missing":
        outputs = [("out.sum", dtype, shape, data)]
    if MODE == "more":
        outputs.append(("out.residual", dtype, shape, data))
    if MODE == "wrong_id":
        number = str(int(number) + 1)
    if MODE == "half":
        chunks = []
        write("result", outputs, chunks.append, id=number)
        sys.stdout.buffer.write(chunks[0][: len(chunks[0]) // 2])
        sys.stdout.buffer.flush()
        sys.exit(0)
    return write("result", outputs, id=number)


def main():
    """A session."""
    if MODE == "silent":
        time.sleep(600)
    if MODE == "dead":
        sys.exit("exec_child.py: this library is not here")
    if MODE == "no_device":
        write("error", id=0, kind="unsupported", type="RuntimeError", message="no device is visible")
        sys.exit(2)
    hello = {"name": "child", "version": "1.0", "device": "cpu", "details": "{}"}
    write("hello", ops='["add", "argmax"]', dtypes='["bf16", "f16", "f32"]',
          **dict(hello, **({"assay_exec": "2"} if MODE == "version" else {})))  # fmt: skip
    if MODE == "deaf":
        time.sleep(600)
    count = 0
    while True:
        frame = read()
        if frame is None:
            return
        metadata, tensors = frame
        number, special, count = metadata["id"], metadata["family"] == "special", count + 1
        if MODE == "nothing" or MODE == "exact" and metadata["family"] != "exact":
            write("error", id=number, kind="unsupported", type="NotImplementedError", message="only on Sundays")
        elif MODE == "raises" and special:
            write("error", id=number, kind="failed", type="ValueError", message="out of luck")
        elif MODE in ("crash", "crash_always") and (special or MODE == "crash_always"):
            print("about to fall", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        elif MODE == "hang" and special:
            # With a child of its own, which must end too.
            other = subprocess.Popen(["sleep", "600"])
            with open(sys.argv[2], "w") as f:
                f.write(str(other.pid))
            time.sleep(600)
        elif MODE == "text" and special:
            print("Traceback (most recent call last):", flush=True)
            time.sleep(600)
        else:
            if MODE == "flood":
                os.write(2, b"x" * (1 << 20) + b"\x1b[31m\n")
            answer(metadata, tensors, number)


main()
