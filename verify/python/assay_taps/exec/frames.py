"""Frames: eight bytes of length, little-endian, and that many bytes of safetensors."""

from assay_taps.errors import TapError
from assay_taps.tensors import decode, encode

VERSION = "1"

# A length beyond this is no frame of a case: it would be more than any device's memory.
LONGEST = 1 << 38


class BadFrame(TapError):
    """What was read is no frame; nothing after it can be read."""


class Unsupported(Exception):
    """The case is outside what the function takes."""


def framework(function):
    """Marks a function that stores every intermediate, as frameworks do in eager mode."""
    function.scope = "framework"
    return function


def read_exactly(stream, count, what):
    """`count` bytes, or None at the end of the stream before the first."""
    chunks, left = [], count
    while left:
        chunk = stream.read(min(left, 1 << 24))
        if not chunk:
            if left == count:
                return None
            raise BadFrame(f"the input ended within {what}: {count - left} of {count} bytes")
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def read_frame(stream):
    """Metadata and tensors of the next frame, or None at the end of the input."""
    head = read_exactly(stream, 8, "the length of a frame")
    if head is None:
        return None
    length = int.from_bytes(head, "little")
    if not 8 <= length <= LONGEST:
        raise BadFrame(f"a frame of {length} bytes (its length reads {head!r}): not a frame")
    body = read_exactly(stream, length, "a frame")
    if body is None:
        raise BadFrame(f"the input ended within a frame: 0 of {length} bytes")
    try:
        metadata, tensors = decode(body)
    except TapError as e:
        raise BadFrame(str(e)) from None
    if metadata.get("assay_exec") != VERSION:
        raise BadFrame(f"a frame of version {metadata.get('assay_exec')}; this child speaks version {VERSION}")
    return metadata, tensors


def write_frame(stream, kind, tensors=None, /, **metadata):
    """Writes one frame and flushes."""
    given = {"assay_exec": VERSION, "frame": kind, **{k: str(v) for k, v in metadata.items()}}
    chunks = encode(tensors or {}, given)
    stream.write(sum(len(c) for c in chunks).to_bytes(8, "little"))
    for chunk in chunks:
        stream.write(chunk)
    stream.flush()


def write_error(stream, number, kind, error):
    """Answers case `number` (0: the session) with an error."""
    text = str(error) or type(error).__name__
    write_frame(stream, "error", id=number, kind=kind, type=type(error).__name__, message=text[:4000])
