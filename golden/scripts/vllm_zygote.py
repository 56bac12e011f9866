"""Runs in vLLM's environment, for vllm_serve.py: imports vLLM once and forks a server for each line that it is sent.

Importing takes longer than anything that is asked of these small models, and each of a server's processes would do it
again. Lines in: {"serve": [arguments], "log": file} or {"stop": pid}; lines out: versions, then {"pid"} and {"status"}.
"""

import ctypes
import json
import multiprocessing
import os
import platform
import signal
import sys
import time

# Linux gives a process AMX tiles on request only (arch_prctl, ARCH_REQ_XCOMP_PERM = 0x1023, component 18), and its
# children by fork have them too. vLLM 0.32's CPU attention uses them in bf16 without asking and dies of SIGILL.
# https://docs.kernel.org/arch/x86/xstate.html
ctypes.CDLL(None).syscall(158, 0x1023, 18)

# vLLM starts its engine by spawn on the CPU, which would import everything once more and lose the tiles.
_context = multiprocessing.get_context
multiprocessing.get_context = lambda method=None: _context("fork")


def serve(arguments, log):
    """Forks `vllm serve`, in a session of its own; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for fd in (1, 2):
        os.dup2(file, fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["vllm", "serve", *arguments]
    from vllm.entrypoints.cli.main import main

    try:
        main()
    finally:
        os._exit(0)


def stop(pid):
    """Asks a server to end; after a minute ends it and what it started. Returns its status."""
    os.kill(pid, signal.SIGINT)
    for _ in range(120):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.5)
    try:
        os.killpg(pid, signal.SIGKILL)  # its session's group alone
    except ProcessLookupError:
        pass
    return status if done else os.waitpid(pid, 0)[1]


def main():
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import transformers
    import vllm
    import vllm.entrypoints.cli.main  # noqa: F401
    import vllm.entrypoints.openai.api_server  # noqa: F401
    import vllm.v1.engine.core  # noqa: F401
    import vllm.v1.worker.cpu_worker  # noqa: F401

    found = {"vllm": vllm.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({**found, "python": platform.python_version()}), file=say, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "serve" in order:
            answer = {"pid": serve(order["serve"], order["log"])}
        else:
            answer = {"status": stop(order["stop"])}
        print(json.dumps(answer), file=say, flush=True)


if __name__ == "__main__":
    main()
