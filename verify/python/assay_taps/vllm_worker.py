"""What runs inside each vLLM worker process. vLLM mixes `TapExtension` into its worker class (`worker_extension_cls`,
since 0.8); older versions get its methods by `add_to_old_workers`."""

import importlib
import json
import os
import sys

from assay_taps.errors import TapError
from assay_taps.trace import TraceWriter
from assay_taps.vllm_tap import VllmTap

OLD_WORKERS = ("vllm.worker.worker.Worker", "vllm.worker.cpu_worker.CPUWorker")


def rank_folder(out, rank):
    """Where a rank writes its trace, until the ranks are merged."""
    return os.path.join(out, f".rank-{rank:05}")


class TapExtension:
    """Methods of a worker, called by name from the driver. Text goes in and out: every version's RPC carries that."""

    def assay_tap_install(self, text):
        """Puts the hooks on. `text`: JSON of out, probes, tokens, total and chunk. Returns JSON: `error`, or null."""
        try:
            self._assay_tap_begin(json.loads(text))
            return json.dumps({"error": None})
        except TapError as e:
            return json.dumps({"error": str(e)})
        except Exception as e:  # noqa: BLE001 - the driver reports it; raising would end the engine
            return json.dumps({"error": f"{type(e).__name__}: {e}"})

    def _assay_tap_begin(self, spec):
        from vllm.distributed import (
            get_pp_group,
            get_tensor_model_parallel_rank,
            get_tensor_model_parallel_world_size,
        )

        if get_pp_group().world_size != 1:
            raise TapError("pipeline parallelism: no taps for it; use tensor parallelism alone")
        model = unwrap_model(self)
        ranks = {"rank": get_tensor_model_parallel_rank(), "size": get_tensor_model_parallel_world_size()}
        writer = TraceWriter(rank_folder(spec["out"], ranks["rank"]), len(model.model.layers), spec["probes"])
        self._assay_tap = VllmTap(model, writer, spec["tokens"], spec["total"], spec["chunk"])
        self._assay_ranks = dict(ranks, kv_heads=self._assay_tap.kv_heads)

    def assay_tap_finish(self):
        """Takes the hooks off and writes the rank's trace. Returns JSON with `error`, or null."""
        tap = self._assay_tap
        tap.remove()
        try:
            if tap.error is not None:
                raise TapError(tap.error)
            tap.writer.close(
                producer=producer(),
                dtype=tap.dtype,
                architecture=tap.architecture,
                notes="; ".join(tap.notes),
                extra={"ranks": self._assay_ranks},
            )
            return json.dumps({"error": None})
        except TapError as e:
            tap.writer.abort()
            return json.dumps({"error": str(e)})


def unwrap_model(worker):
    """The model of a worker of any version."""
    from assay_taps.vllm_tap import unwrapped

    runner = getattr(worker, "model_runner", None)
    model = getattr(runner, "model", None)
    if model is None and callable(getattr(worker, "get_model", None)):
        model = worker.get_model()
    if model is None:
        raise TapError(f"{type(worker).__name__} has no model_runner.model: a vLLM that is not known here")
    model = unwrapped(model)
    if not hasattr(model, "model") or not hasattr(model.model, "layers"):
        raise TapError(f"{type(model).__name__}: no taps for it: it has no decoder layers where Qwen has them")
    return model


def producer():
    """Who recorded."""
    import vllm

    torch = sys.modules.get("torch")  # vLLM has imported it
    return {"name": "vllm", "version": vllm.__version__, "torch": getattr(torch, "__version__", "none")}


def add_to_old_workers():
    """Gives the workers of a vLLM without `worker_extension_cls` these methods. With several ranks they must be
    forked from this process afterwards. Returns the classes."""
    patched = []
    for name in OLD_WORKERS:
        module, _, cls = name.rpartition(".")
        try:
            worker = getattr(importlib.import_module(module), cls)
        except ImportError:
            continue
        for method in ("assay_tap_install", "_assay_tap_begin", "assay_tap_finish"):
            setattr(worker, method, getattr(TapExtension, method))
        patched.append(name)
    if not patched:
        raise TapError(f"none of {', '.join(OLD_WORKERS)} can be imported: a vLLM that is not known here")
    return patched
