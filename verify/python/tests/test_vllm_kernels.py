"""The arguments with which vLLM's GPTQ and paged attention kernels are called, on a stub that follows their layouts."""

import importlib
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))

try:
    import torch
except ImportError:
    torch = None


@unittest.skipIf(torch is None, "skipped: torch is not installed")
class Kernels(unittest.TestCase):
    def setUp(self):
        tree = os.path.join(HERE, "stubs", "kernels")

        def forget():
            for name in [n for n in sys.modules if n.partition(".")[0] == "vllm" or n == "assay_taps.exec.vllm_ops"]:
                del sys.modules[name]

        forget()
        sys.path.insert(0, tree)
        self.addCleanup(forget)
        self.addCleanup(sys.path.remove, tree)
        self.ops = importlib.import_module("assay_taps.exec.vllm_ops")
        self.random = torch.Generator().manual_seed(3)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.random)

    def test_paged_attention_reads_what_the_block_table_says(self):
        q, k, v = self.normal(1, 4, 32), self.normal(5, 8, 2, 32), self.normal(5, 8, 2, 32)
        table, length, scale = torch.tensor([3, 0, 4]), torch.tensor([19]), 0.2
        out = self.ops.attention_paged(q, k, v, table, length, {"attention": {"scale": scale}})
        keys, values = (t[table.long()].reshape(-1, 2, 32)[:19].repeat_interleave(2, 1).double() for t in (k, v))
        scores = torch.einsum("hd,shd->hs", q[0].double(), keys) * scale
        want = torch.einsum("hs,shd->hd", torch.softmax(scores, -1), values)
        # f32 stores of a mean of 19 values of size 1.
        self.assertLess(float((out[0].double() - want).abs().max()), 1e-6)

    def test_gptq_rows_in_order_and_permuted(self):
        k, n, bits, groups = 64, 16, 4, 4
        codes = torch.randint(0, 16, (k, n), generator=self.random)
        zeros = torch.randint(1, 16, (groups, n), generator=self.random)
        scales, x = self.normal(groups, n).abs().half(), self.normal(3, k).half()
        stub = importlib.import_module("vllm._custom_ops")
        qzeros = stub.packed((zeros - 1).T.contiguous(), bits).T.contiguous()
        for g_idx in (None, torch.arange(k) // 16, torch.randperm(k, generator=self.random) // 16):
            group = torch.arange(k) // 16 if g_idx is None else g_idx
            want = x.double() @ ((codes - zeros[group]) * scales[group].double())
            params = {"dequant": {"format": "v1", "bits": bits, "group_size": 16}}
            got = self.ops.gptq_gemm(x, stub.packed(codes, bits), qzeros, scales, params, g_idx=g_idx)
            # One rounding to f16.
            self.assertLess(float(((got.double() - want) / want).abs().max()), 2**-11)

    def test_what_the_build_lacks_is_not_offered(self):
        self.assertNotIn("rms_norm", self.ops.OPS)
        self.assertIn("gptq_gemm", self.ops.OPS)
        from assay_taps.exec.frames import Unsupported

        with self.assertRaisesRegex(Unsupported, "has no v2"):
            self.ops.gptq_gemm(None, None, None, None, {"dequant": {"format": "v2", "bits": 4, "group_size": 16}})


if __name__ == "__main__":
    unittest.main()
