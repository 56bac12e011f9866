"""The taps on stub trees of three vLLM versions, against what transformers recorded of the same checkpoints in f64.

The stubs compute in f32 with fused modules that work in place, sharded over ranks that are threads; the golden
recordings are independent of them and of the taps.
"""

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import unittest

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "..", "..", "golden")
sys.path.insert(0, os.path.join(HERE, "stubs"))

from assay_taps import __main__ as cli  # noqa: E402
from assay_taps import vllm_run  # noqa: E402
from assay_taps.errors import TapError  # noqa: E402
from assay_taps.tensors import Reader  # noqa: E402
import stub_model  # noqa: E402

# Relative rms, f32 against f64: transformers' own golden f32 traces are up to 1.3e-6 from the f64 ones
# (layers.1.down_proj), and golden/README.md takes 1e-5 for the same trace on another CPU. A wrong mapping is 1 away.
LIMIT = 1e-5


@contextlib.contextmanager
def vllm(version):
    """The stub tree of a version is `vllm`."""
    tree = os.path.join(HERE, "stubs", "v" + version.replace(".", "_"))

    def forget():
        for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.")]:
            del sys.modules[name]

    forget()
    sys.path.insert(0, tree)
    importlib.invalidate_caches()
    try:
        yield importlib.import_module("vllm")
    finally:
        sys.path.remove(tree)
        forget()


def trace(folder):
    """Manifest and tensors of a trace."""
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    readers = {file: Reader(os.path.join(folder, file)) for file in manifest["files"]}
    return manifest, {p: stub_model.floats(readers[e["file"]].read(p)) for p, e in manifest["probes"].items()}


class Stubs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "trace")

    def check(self, version, checkpoint, ranks=1, chunk=None, probes="*"):
        golden, expect = trace(os.path.join(GOLDEN, "traces", checkpoint, "f64"))
        model = os.path.join(GOLDEN, "checkpoints", checkpoint)
        with vllm(version):
            manifest = vllm_run.record(
                model, golden["tokens"], self.out, tensor_parallel_size=ranks, chunk=chunk, generate=1, probes=probes
            )
        self.assertEqual(sorted(os.listdir(self.out)), sorted(manifest["files"] + ["manifest.json"]))
        again, found = trace(self.out)
        self.assertEqual(again, manifest)
        self.assertEqual(manifest["tokens"][:-1], golden["tokens"])
        n = len(golden["tokens"])
        starts = list(range(0, n, chunk or n)) + [n]
        self.assertEqual(manifest["segments"], [[s, e] for s, e in zip(starts, starts[1:] + [n + 1])])
        self.assertEqual(manifest["architecture"], golden["architecture"])
        self.assertEqual((manifest["dtype"], manifest["producer"]["version"]), ("f32", version))
        self.assertNotIn("differ", manifest["notes"])
        self.assertNotIn("ranks_differ", manifest)
        for probe, want in expect.items():
            if probe.startswith("rope.") or (probes != "*" and probe not in found):
                continue
            got = found[probe][:n]
            self.assertEqual(got.shape, want.shape, probe)
            error = np.sqrt(((got - want) ** 2).mean() / (want**2).mean())
            self.assertLess(error, LIMIT, f"{version} {checkpoint} over {ranks} ranks: {probe}")
        return manifest, found

    def test_0_6_2_on_one_rank_and_on_two(self):
        _, found = self.check("0.6.2", "tiny-qwen2")
        self.assertEqual(len(found), 2 * 15 + 3)
        self.setUp()
        self.check("0.6.2", "tiny-qwen2", ranks=2)

    def test_0_9_2_with_fewer_kv_heads_than_ranks(self):
        manifest, found = self.check("0.9.2", "tiny-qwen3", ranks=4, chunk=5)
        self.assertEqual(len(found), 2 * 17 + 3)
        self.assertIn("4 ranks", manifest["notes"])

    def test_0_11_0_in_a_wrapper_with_padding(self):
        self.check("0.11.0", "tiny-qwen3", ranks=2, chunk=7)

    def test_layer_outputs_alone(self):
        manifest, found = self.check("0.11.0", "tiny-qwen2", probes="layers.*.mlp_residual,logits")
        self.assertEqual(set(found), {"layers.0.mlp_residual", "layers.1.mlp_residual", "logits"})

    def test_a_prompt_from_the_prefix_cache_is_refused(self):
        with vllm("0.9.2") as stub:
            original = stub.LLM.generate
            stub.LLM.generate = lambda self, prompts, *rest, **more: original(
                self, [{"prompt_token_ids": prompts[0]["prompt_token_ids"][2:]}], *rest, **more
            )
            with self.assertRaisesRegex(TapError, "prefix cache"):
                vllm_run.record(os.path.join(GOLDEN, "checkpoints", "tiny-qwen3"), [5, 6, 7, 8], self.out)
        self.assertFalse(os.path.exists(self.out))

    def test_a_model_without_taps_and_a_version_that_is_too_old(self):
        with vllm("0.9.2"):
            stub_model.Qwen3ForCausalLM.__name__ = "LlamaForCausalLM"
            self.addCleanup(setattr, stub_model.Qwen3ForCausalLM, "__name__", "Qwen3ForCausalLM")
            original = stub_model.load
            stub_model.load = lambda folder, **options: original_load(folder, original)
            self.addCleanup(setattr, stub_model, "load", original)
            with self.assertRaisesRegex(TapError, "LlamaForCausalLM: no taps for it"):
                vllm_run.record(os.path.join(GOLDEN, "checkpoints", "tiny-qwen3"), [5, 6], self.out)
        with vllm("0.9.2") as stub:
            stub.__version__ = "0.5.4"
            with self.assertRaisesRegex(TapError, "vLLM 0.5.4: too old, the oldest known here is 0.6.2"):
                vllm_run.record("nowhere", [5, 6], self.out)

    def test_versions_of_forks_are_read(self):
        for text, want in (("0.9.2+das.opt1.dtk2504", (0, 9, 2)), ("0.11.0rc2", (0, 11, 0)), ("dev", None)):
            self.assertEqual(vllm_run.version_of(text)[:2] if want else vllm_run.version_of(text), want and want[:2])

    def test_the_command_line(self):
        model = os.path.join(GOLDEN, "checkpoints", "tiny-qwen3")
        with vllm("0.11.0"), contextlib.redirect_stdout(io.StringIO()) as said:
            code = cli.main(["vllm", model, "--ids", "5,6,7", "--out", self.out, "--engine-arg", "seed=3"])
        self.assertEqual(code, 0)
        self.assertIn("37 probes of 3 tokens in 1 forward calls", said.getvalue())
        with contextlib.redirect_stderr(io.StringIO()) as said:
            for bad in (["--ids", "5,x"], ["--ids", "5", "--engine-arg", "enforce_eager=false"]):
                self.assertEqual(cli.main(["vllm", model, "--out", self.out + "2"] + bad), 2)
        self.assertIn("--ids 5,x", said.getvalue())
        self.assertIn("hooks see nothing inside compiled graphs", said.getvalue())


def original_load(folder, load):
    """Loads although the class goes by another name."""
    stub_model.Qwen3ForCausalLM.__name__ = "Qwen3ForCausalLM"
    model = load(folder)
    stub_model.Qwen3ForCausalLM.__name__ = "LlamaForCausalLM"
    return model


if __name__ == "__main__":
    unittest.main()
