"""`python -m assay_taps.exec`: computes one op for assay, until its standard input ends."""

import argparse
import importlib
import inspect
import json
import os
import sys
import time
import traceback

from assay_taps.errors import TapError
from assay_taps.exec import frames
from assay_taps.exec.frames import Unsupported

PROVIDERS = {"torch": "torch_ops", "transformers": "transformers_ops", "vllm": "vllm_ops", "gptqmodel": "gptqmodel_ops"}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}

EPILOG = """
This is started by assay, which sends cases on its standard input (docs/exec.md):

  python -m assay_taps.exec --op rms_norm --with torch
  python -m assay_taps.exec --op matmul --with torch --device cuda --dtype bf16
  python -m assay_taps.exec --op attention --with torch --function sdpa
  python -m assay_taps.exec --op add_rms_norm --with vllm
  python -m assay_taps.exec --op rms_norm --with mykernels:my_rms_norm

A function of yours gets torch tensors by the names of the op's arguments, and `params`, a dict; it returns a
tensor, a tuple in the order of the op's outputs, or a dict by output name. It may raise NotImplementedError for cases that it does not take.
"""


def parser():
    """The command line."""
    p = argparse.ArgumentParser(
        prog="assay_taps.exec",
        description="Compute an op for assay, as a child process.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--op", help="the op, as `assay list ops` prints it")
    p.add_argument("--with", dest="provider", help=f"{', '.join(PROVIDERS)}, or module:function")
    p.add_argument("--function", help="which, where --with has several (see --list)")
    p.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    p.add_argument("--dtype", choices=sorted(DTYPES), help="take cases of this dtype only (default: all)")
    p.add_argument("--threads", type=int, default=1, help="torch's threads on the CPU (default: 1)")
    p.add_argument("--list", action="store_true", help="list the ops of what --with names, or of all that import")
    return p


class Child:
    """The op, ready to be called."""

    def __init__(self, args):
        import torch

        torch.set_num_threads(args.threads)
        torch.set_grad_enabled(False)
        self.torch, self.op, self.device = torch, args.op, torch.device(args.device)
        torch.empty(1, device=self.device)  # a device that is not there shows now
        self.dtypes = [args.dtype] if args.dtype else list(DTYPES)
        self.name, self.handled, self.scope = args.provider, None, "kernel"
        if ":" in args.provider:
            self.function, self.details = user_function(args.provider), {"torch": torch.__version__}
            self.version = getattr(sys.modules[self.function.__module__], "__version__", "unknown")
            return
        if args.provider not in PROVIDERS:
            raise TapError(f"--with {args.provider}: known are {', '.join(PROVIDERS)} and module:function")
        provider = importlib.import_module(f"assay_taps.exec.{PROVIDERS[args.provider]}")
        if args.op not in provider.OPS:
            raise TapError(f"--op {args.op}: {args.provider} has {', '.join(provider.OPS)} here")
        functions, self.handled = provider.OPS[args.op]
        chosen = args.function or next(iter(functions))
        if chosen not in functions:
            raise TapError(f"--function {chosen}: for {args.op}, {args.provider} has {', '.join(functions)}")
        self.function, self.details = functions[chosen], dict(provider.details(), function=chosen)
        self.version, self.scope = self.details[args.provider], getattr(self.function, "scope", "kernel")

    def run(self, metadata, raw):
        """The outputs of a case, by name, and the seconds that it took."""
        from assay_taps.exec.params import DEFAULTS, LEGITIMATE, checked
        from assay_taps.tensors import to_torch

        if metadata.get("op") != self.op:
            raise Unsupported(f"a case of {metadata.get('op')}; this child was started for {self.op}")
        stored = metadata.get("dtype")
        if self.op == "argmax":  # its output is an index: a case is of the dtype of its logits
            stored = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f64"}.get(raw["x"].dtype, stored)
        if stored not in self.dtypes:
            raise Unsupported(f"a case of dtype {stored}; taken are {', '.join(self.dtypes)}")
        params = json.loads(metadata["params"])
        if self.op in DEFAULTS:
            params = checked(self.op, params, LEGITIMATE if self.handled is None else self.handled)
        dtype = getattr(self.torch, DTYPES[stored])
        arguments = {name: to_torch(t).to(self.device) for name, t in raw.items() if not name.startswith("out.")}
        # Scales of packed weights have a dtype of their own, and of an index the case's dtype says nothing.
        if not self.op.startswith(("gptq", "awq", "ct", "fp8", "argmax")):
            for name, t in arguments.items():
                if t.is_floating_point() and t.dtype != dtype:
                    raise Unsupported(f"{name} is {t.dtype} in a case of {dtype}")
        accepted = inspect.signature(self.function).parameters
        if "dtype" in accepted:
            arguments["dtype"] = dtype
        unknown = [n for n in arguments if n not in accepted]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            raise Unsupported(f"the function has no argument {', '.join(unknown)}")
        started = time.perf_counter()
        out = self.function(**arguments, params=params)
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)
        return named(self.op, out), time.perf_counter() - started


def user_function(name):
    """`module:function`, found from the working folder too."""
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except AttributeError:
        raise TapError(f"--with {name}: {module} has no {function}") from None


def named(op, out):
    """Outputs by name: a tensor is the first, a tuple or list has all of them in the op's order."""
    from assay_taps.exec.params import OUTPUTS
    from assay_taps.tensors import is_torch

    names = OUTPUTS.get(op, ("output",))
    if is_torch(out):
        out = {names[0]: out}
    if isinstance(out, (tuple, list)):
        if len(out) != len(names):
            raise TypeError(f"the function returned {len(out)} values: {op} has {', '.join(names)}")
        out = dict(zip(names, out))
    if not isinstance(out, dict) or not all(is_torch(t) for t in out.values()):
        raise TypeError(
            f"the function returned {type(out).__name__}: expected a tensor, a tuple of tensors ({', '.join(names)}), or "
            "a dict of tensors by name"
        )
    return out


def serve(child, source, sink):
    """Answers cases until the input ends; returns the exit status."""
    from assay_taps.tensors import raw

    frames.write_frame(
        sink,
        "hello",
        name=child.name,
        version=child.version,
        ops=json.dumps([child.op]),
        dtypes=json.dumps(child.dtypes),
        device=child.device,
        scope=child.scope,
        details=json.dumps({k: str(v) for k, v in child.details.items()}),
    )
    while True:
        try:
            frame = frames.read_frame(source)
            if frame is None:
                return 0
            metadata, tensors = frame
            if metadata.get("frame") != "case" or not metadata.get("id", "").isdigit():
                raise frames.BadFrame(f"expected a case with an id, found {metadata}")
        except frames.BadFrame as e:
            print(f"error: {e}", file=sys.stderr)
            frames.write_error(sink, 0, "failed", e)
            return 2
        number = metadata["id"]
        try:
            outputs, seconds = child.run(metadata, tensors)
            stored = {f"out.{name}": raw(t) for name, t in outputs.items()}
        except (Unsupported, NotImplementedError) as e:
            frames.write_error(sink, number, "unsupported", e)
        except Exception as e:  # noqa: BLE001 - whatever a function raises is its answer
            traceback.print_exc()
            frames.write_error(sink, number, "failed", e)
        else:
            frames.write_frame(sink, "result", stored, id=number, seconds=f"{seconds:.6f}")


def list_ops(provider):
    """Prints what there is; returns the exit status."""
    for name in [provider] if provider else PROVIDERS:
        try:
            module = importlib.import_module(f"assay_taps.exec.{PROVIDERS[name]}")
        except (ImportError, KeyError, RuntimeError) as e:
            print(f"{name}: not here ({type(e).__name__}: {e})")
            continue
        for op, (functions, _) in module.OPS.items():
            for function, called in functions.items():
                print(f"{name:13} {op:16} {function:24} {(called.__doc__ or '').partition(chr(10))[0]}")
    return 0


def main(argv=None):
    """Runs the child; returns the exit status."""
    args = parser().parse_args(argv)
    if args.list:
        return list_ops(args.provider)
    if not args.op or not args.provider:
        parser().error("--op and --with are needed (or --list)")
    # Frames go to what was standard output; what anybody prints goes to standard error, from C too.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        try:
            child = Child(args)
        except (TapError, ImportError, RuntimeError, AssertionError, OSError) as e:
            print(f"error: {e}", file=sys.stderr)
            # A library or a device that is not here says nothing about what would be computed.
            absent = isinstance(e, (ImportError, RuntimeError, AssertionError))
            frames.write_error(sink, 0, "unsupported" if absent else "failed", e)
            return 2
        return serve(child, sys.stdin.buffer, sink)
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
