"""Runs vLLM offline on one prompt and records it: `python -m assay_taps vllm`.

The hooks sit where the model is: in the worker processes. A new enough vLLM (0.8) mixes a class into its workers and
calls it by `collective_rpc`, in V0 and V1; for 0.6.2 the worker class gets the methods before the engine starts.
"""

import json
import os
import shutil

from assay_taps import merge, vllm_worker
from assay_taps.errors import TapError

OLDEST = (0, 6, 2)
EXTENSION = "assay_taps.vllm_worker.TapExtension"


def version_of(text):
    """The numbers of a version: (0, 9, 2) of `0.9.2+das.opt1`. A build from source may have none: None."""
    parts = []
    for part in text.split("+")[0].split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts) if len(parts) >= 2 and any(parts) else None


def engine_options(pairs):
    """`KEY=VALUE` as arguments of `vllm.LLM`; a value that is JSON is taken as such, others are text."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise TapError(f"--engine-arg {pair}: expected KEY=VALUE")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def has_extension():
    """Whether this vLLM can mix a class into its workers."""
    from vllm.engine.arg_utils import EngineArgs

    return "worker_extension_cls" in getattr(EngineArgs, "__dataclass_fields__", {})


def arguments(model, count, chunk, tensor_parallel_size, dtype, options):
    """Arguments of `vllm.LLM`: eager, one sequence, nothing from a cache, each call as asked for."""
    length = options.get("max_model_len", count + 1)
    given = {
        "model": str(model),
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "max_num_seqs": 1,
        "tensor_parallel_size": tensor_parallel_size,
        "dtype": dtype or "auto",
        "max_model_len": length,
        "skip_tokenizer_init": True,
        "seed": 0,
        "max_num_batched_tokens": chunk or max(length, 2048),
    }
    if chunk:
        given["enable_chunked_prefill"] = True
    given.update(options)
    if not given["enforce_eager"]:
        raise TapError("--engine-arg enforce_eager=false: hooks see nothing inside compiled graphs")
    return given


class Engine:
    """A `vllm.LLM` and the way to its workers."""

    def __init__(self, given):
        import vllm

        version = version_of(vllm.__version__)
        if version is not None and version < OLDEST:
            raise TapError(f"vLLM {vllm.__version__}: too old, the oldest known here is {'.'.join(map(str, OLDEST))}")
        # Workers are started as new processes and must find this package (a folder, or one zip file).
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        paths = [here] + [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != here]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        self.extended = has_extension()
        if self.extended:
            given = dict(given, worker_extension_cls=EXTENSION)
        else:
            vllm_worker.add_to_old_workers()
            if given["tensor_parallel_size"] > 1:
                if os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "fork") != "fork":
                    raise TapError(
                        f"vLLM {vllm.__version__} starts workers by {os.environ['VLLM_WORKER_MULTIPROC_METHOD']}; its "
                        "taps need VLLM_WORKER_MULTIPROC_METHOD=fork"
                    )
                given = dict(given, distributed_executor_backend="mp")
        self.llm = vllm.LLM(**given)
        self.sampling = vllm.SamplingParams

    def call(self, method, *args):
        """Calls a method of every worker; raises what one of them reports."""
        if self.extended:
            answers = self.llm.collective_rpc(method, args=args)
        else:
            executor = self.llm.llm_engine.model_executor
            if hasattr(executor, "_run_workers"):
                answers = executor._run_workers(method, *args)
            else:
                answers = [getattr(executor.driver_worker, method)(*args)]
        errors = {e for e in (json.loads(a)["error"] for a in answers) if e}
        if errors:
            raise TapError("; ".join(sorted(errors)))

    def generate(self, tokens, count):
        """Feeds the prompt and generates greedily until `count` tokens were fed."""
        sampling = self.sampling(temperature=0.0, max_tokens=count - len(tokens) + 1, ignore_eos=True, detokenize=False)
        self.llm.generate([{"prompt_token_ids": list(tokens)}], sampling, use_tqdm=False)

    def close(self):
        """Ends the workers, where this vLLM leaves that to the user."""
        core = getattr(getattr(self.llm, "llm_engine", None), "engine_core", None)
        if callable(getattr(core, "shutdown", None)):
            core.shutdown()


def record(model, tokens, out, *, tensor_parallel_size=1, options=None, dtype=None, chunk=None, generate=0, probes="*"):
    """Records a forward; returns the manifest. `generate` tokens are fed after the prompt, one a call."""
    if os.path.isdir(out) and os.listdir(out):
        raise TapError(f"{out}: not empty. A trace needs a new or an empty folder")
    made, out, total = not os.path.isdir(out), os.path.abspath(out), len(tokens) + generate
    engine = Engine(arguments(model, total, chunk, tensor_parallel_size, dtype, options or {}))
    folders = [vllm_worker.rank_folder(out, r) for r in range(tensor_parallel_size)]
    try:
        os.makedirs(out, exist_ok=True)
        spec = {"out": out, "probes": probes, "tokens": list(tokens), "total": total, "chunk": chunk}
        engine.call("assay_tap_install", json.dumps(spec))
        engine.generate(tokens, total)
        engine.call("assay_tap_finish")
        manifest = merge.merge(folders, out)
        if len(manifest["tokens"]) != total:
            raise TapError(f"{out}: {len(manifest['tokens'])} of {total} tokens were fed")
        return manifest
    except BaseException:
        for folder in [out] if made else folders:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        engine.close()
