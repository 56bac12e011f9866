"""Taps: record a forward of transformers or vLLM as an assay trace; compute ops for assay as a child process.

    python -m assay_taps transformers MODEL --prompt '7+8=' --out TRACE
    python -m assay_taps vllm MODEL --prompt '7+8=' --out TRACE
    python -m assay_taps.exec --op rms_norm --with torch

Nothing is imported here but this package's own modules: torch, transformers and vLLM are those of the place
where it runs. Python 3.9 or later.
"""

from assay_taps.errors import TapError
from assay_taps.trace import TraceWriter

__version__ = "0.1.0"
__all__ = ["TapError", "TraceWriter", "__version__"]
