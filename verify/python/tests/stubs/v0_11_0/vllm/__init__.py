"""vLLM 0.11.0 (V1) as far as the taps see it: the model in a wrapper, calls that are padded, a class mixed into the
workers, called by collective_rpc."""

import importlib

import stub_ranks
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams

__version__ = "0.11.0"
__all__ = ["LLM", "SamplingParams"]


def extended(worker, name):
    """The worker class with the extension among its bases, if it has no name in common with it."""
    module, _, cls = name.rpartition(".")
    extension = getattr(importlib.import_module(module), cls)
    for attr in dir(extension):
        assert attr.startswith("__") or not hasattr(worker, attr), attr
    return type(worker.__name__, (worker, extension), {})


class LLM:
    worker = "vllm.v1.worker.gpu_worker.Worker"

    def __init__(self, model, **kwargs):
        self.args = args = EngineArgs(model=model, **kwargs)
        assert args.enforce_eager and not args.enable_prefix_caching and args.worker_extension_cls
        module, _, cls = self.worker.rpartition(".")
        worker = extended(getattr(importlib.import_module(module), cls), args.worker_extension_cls)
        self.engine = stub_ranks.Engine(worker, model, args.tensor_parallel_size)

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        assert isinstance(method, str), "a callable needs VLLM_ALLOW_INSECURE_SERIALIZATION"
        assert all(isinstance(a, str) for a in args) and not kwargs
        return self.engine.call(method, args)

    def generate(self, prompts, sampling_params, use_tqdm=True):
        (prompt,) = prompts
        tokens = prompt["prompt_token_ids"]
        count = len(tokens) + sampling_params.max_tokens - 1
        # V1 fills each call up to this, whether chunks were asked for or not.
        self.engine.call("generate", (tokens, count, self.args.max_num_batched_tokens))
