import dataclasses
from typing import Optional


@dataclasses.dataclass
class EngineArgs:
    model: str
    dtype: str = "auto"
    max_model_len: Optional[int] = None
    tensor_parallel_size: int = 1
    max_num_batched_tokens: Optional[int] = None
    max_num_seqs: int = 256
    enable_prefix_caching: bool = False
    enable_chunked_prefill: Optional[bool] = None
    enforce_eager: Optional[bool] = None
    skip_tokenizer_init: bool = False
    seed: int = 0
    distributed_executor_backend: Optional[str] = None
