"""Reread every quantised layer by the rules of golden/README.md in NumPy, which shares no code with the libraries.

Every `dequant_*` matrix must come out to the last bit. Needs NumPy only.
"""

import json
import pathlib
import sys

import numpy as np

GOLDEN = pathlib.Path(__file__).resolve().parent.parent
NUMPY = {"I32": np.int32, "I64": np.int64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8}


def read(path):
    """({name: array}, {name: dtype name}, metadata); BF16 and E4M3 stay their bits."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, t in header.items():
        a, b = t["data_offsets"]
        tensors[name] = np.frombuffer(data[start + a : start + b], NUMPY[t["dtype"]]).reshape(t["shape"])
    return tensors, {name: t["dtype"] for name, t in header.items()}, metadata


def value(bits, dtype):
    """The exact float64 value of stored numbers."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "F8_E4M3":
        exponent, fraction = ((bits >> 3) & 15).astype(int), (bits & 7).astype(float)
        magnitude = np.where(exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
        return np.where(bits >> 7, -magnitude, magnitude)
    return bits.astype(np.float64)


def rounded(x, dtype):
    """float64 values that float32 holds exactly, rounded once to `dtype` (nearest, ties to even), as stored numbers."""
    single = x.astype(np.float32)
    assert np.array_equal(single.astype(np.float64), x)
    if dtype != "BF16":
        return single.astype(NUMPY[dtype])
    bits = single.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stream(words, bits, count):
    """[R, W] int32: `count` codes a row of one little-endian bit stream."""
    one = (words.view(np.uint32)[..., None] >> np.arange(32, dtype=np.uint32)) & 1
    one = one.reshape(words.shape[0], -1)[:, : count * bits].reshape(words.shape[0], count, bits)
    return (one.astype(np.int64) << np.arange(bits)).sum(-1)


def scaled(difference, scale, scale_dtype, dtype):
    """dt(dt(s) * difference)."""
    s = value(rounded(value(scale, scale_dtype), dtype), dtype)
    return rounded(difference * s, dtype)


def gptq(t, meta):
    bits = int(meta["bits"])
    qzeros, columns = t["qzeros"], t["scales"].shape[1]
    if meta["checkpoint_format"] == "gptq" and bits != 3:
        qzeros = (qzeros.view(np.uint32) + np.uint32({2: 0x55555555, 4: 0x11111111, 8: 0x01010101}[bits])).view(np.int32)
    zeros = stream(qzeros, bits, columns)
    if meta["checkpoint_format"] == "gptq" and bits == 3:
        zeros = (zeros + 1) % 8
    rows = t["g_idx"].astype(int)
    return stream(np.ascontiguousarray(t["qweight"].T), bits, len(rows)).T - zeros[rows], t["scales"][rows], "scales"


def awq(t, _meta):
    slot_of = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # of logical column n mod 8
    columns = t["scales"].shape[1]
    slot = np.arange(columns) // 8 * 8 + slot_of[np.arange(columns) % 8]
    q, z = stream(t["qweight"], 4, columns)[:, slot], stream(t["qzeros"], 4, columns)[:, slot]
    group = np.arange(len(q)) // (len(q) // len(z))
    return q - z[group], t["scales"][group], "scales"


def compressed(t, meta):
    n, k = (int(x) for x in t["weight_shape"])
    if "weight_g_idx" in t:
        group = t["weight_g_idx"].astype(int)
    else:
        group = np.arange(k) // int(meta.get("group_size", k))
    z = stream(np.ascontiguousarray(t["weight_zero_point"].T), 4, n).T if "weight_zero_point" in t else 8
    z = z[:, group] if "weight_zero_point" in t else z
    return stream(t["weight_packed"], 4, k) - z, t["weight_scale"][:, group], "weight_scale"


def fp8(t, dtypes, meta, dtype):
    """f32(f32(w) * f32(s)), then one cast."""
    bn, bk = (int(x) for x in meta["weight_block_size"].split(","))
    n, k = t["weight"].shape
    scale = value(t["weight_scale_inv"], dtypes["weight_scale_inv"])[np.arange(n) // bn][:, np.arange(k) // bk]
    product = (value(t["weight"], "F8_E4M3").astype(np.float32) * scale.astype(np.float32)).astype(np.float64)
    return rounded(product, dtype)


def main():
    wrong = files = 0
    for path in sorted(p for kind in ("gptq", "awq", "compressed", "fp8") for p in (GOLDEN / kind).glob("*.safetensors")):
        t, dtypes, meta = read(path)
        for name in [name for name in t if name.startswith("dequant_")]:
            dtype = dtypes[name]
            if path.parent.name == "fp8":
                mine = fp8(t, dtypes, meta, dtype)
            else:
                difference, scale, which = globals()[path.parent.name](t, meta)
                mine = scaled(difference.astype(np.float64), scale, dtypes[which], dtype)
            bits = {2: np.uint16, 4: np.uint32}[mine.itemsize]
            # 0 * s may be -0 in one and +0 in the other only if one of us is wrong about q - z
            unlike = int((mine.view(bits) != t[name].view(bits)).sum())
            if unlike or mine.shape != t[name].shape:
                print(f"{path.relative_to(GOLDEN)} {name}: {unlike} of {mine.size} differ")
                wrong += 1
        files += 1
    print(f"{files} files, {wrong} matrices differ")
    sys.exit(1 if wrong or not files else 0)


if __name__ == "__main__":
    main()
