import types

import stub_ranks
from vllm.engine.arg_utils import EngineArgs
from vllm.worker.worker import Worker


class GPUExecutor:
    """One worker, in this process."""

    def __init__(self, args):
        self.engine = stub_ranks.Engine(Worker, args.model, 1)
        self.driver_worker = Here(self.engine)


class Here:
    """The worker, called on its rank's thread."""

    def __init__(self, ranks):
        self._ranks = ranks

    def __getattr__(self, name):
        if not hasattr(Worker, name):
            raise AttributeError(name)
        return lambda *args: self._ranks.call(name, args)[0]


class MultiprocessingGPUExecutor:
    def __init__(self, args):
        assert args.distributed_executor_backend == "mp"
        self.engine = stub_ranks.Engine(Worker, args.model, args.tensor_parallel_size)

    def _run_workers(self, method, *args):
        assert isinstance(method, str)
        return self.engine.call(method, args)


class LLM:
    def __init__(self, model, **kwargs):
        self.args = EngineArgs(model=model, **kwargs)
        assert self.args.enforce_eager and not self.args.enable_prefix_caching
        executor = GPUExecutor if self.args.tensor_parallel_size == 1 else MultiprocessingGPUExecutor
        self.llm_engine = types.SimpleNamespace(model_executor=executor(self.args))

    def generate(self, prompts, sampling_params, use_tqdm=True):
        (prompt,) = prompts
        tokens = prompt["prompt_token_ids"]
        chunk = self.args.max_num_batched_tokens if self.args.enable_chunked_prefill else len(tokens)
        count = len(tokens) + sampling_params.max_tokens - 1
        self.llm_engine.model_executor.engine.call("generate", (tokens, count, chunk))
