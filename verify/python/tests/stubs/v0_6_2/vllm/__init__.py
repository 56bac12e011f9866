"""vLLM 0.6.2 (V0) as far as the taps see it: no collective_rpc, no worker extension, positional caches."""

from vllm.entrypoints.llm import LLM
from vllm.sampling_params import SamplingParams

__version__ = "0.6.2"
__all__ = ["LLM", "SamplingParams"]
