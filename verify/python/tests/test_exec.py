"""The exec protocol as its parent sees it: frames, errors, what is printed, what is refused."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

from assay_taps.exec import frames
from assay_taps.exec.__main__ import named, serve
from assay_taps.exec.frames import BadFrame, Unsupported
from assay_taps.exec.params import checked
from assay_taps.tensors import Raw, raw

HERE = os.path.dirname(os.path.abspath(__file__))
CASE = {"assay_case": "1", "family": "unit", "seed": "1"}

try:
    import torch
except ImportError:
    torch = None


def case(number, op, params, dtype, tensors):
    """The bytes of a case frame."""
    sink = io.BytesIO()
    metadata = dict(CASE, op=op, params=json.dumps(params), dtype=dtype, id=number)
    frames.write_frame(sink, "case", {n: raw(t) for n, t in tensors.items()}, **metadata)
    return sink.getvalue()


def answers(data):
    """All frames of an output."""
    stream, found = io.BytesIO(data), []
    while True:
        frame = frames.read_frame(stream)
        if frame is None:
            return found
        found.append(frame)


class Adder:
    """A child in this process."""

    name, version, op, dtypes, device, details, scope = "adder", "1", "add", ["f32"], "cpu", {"k": 1}, "kernel"

    def run(self, metadata, tensors):
        if metadata["dtype"] != "f32":
            raise Unsupported("f32 only")
        a, b = (np.frombuffer(tensors[n].data, "<f4") for n in "ab")
        return {"output": a + b}, 0.5


class Frames(unittest.TestCase):
    def converse(self, data):
        sink = io.BytesIO()
        with contextlib.redirect_stderr(io.StringIO()):
            code = serve(Adder(), io.BytesIO(data), sink)
        return code, answers(sink.getvalue())

    def test_hello_then_an_answer_to_each_case(self):
        x = np.arange(3, dtype=np.float32)
        code, found = self.converse(
            case(1, "add", {}, "f32", {"a": x, "b": x}) + case(2, "add", {}, "bf16", {"a": x, "b": x})
            + case(3, "add", {}, "f32", {"a": x}) + case(9, "add", {}, "f32", {"a": x, "b": x})
        )  # fmt: skip
        self.assertEqual(code, 0)
        kinds = [(m["frame"], m.get("id"), m.get("kind")) for m, _ in found]
        self.assertEqual(kinds, [("hello", None, None), ("result", "1", None), ("error", "2", "unsupported"),
                                 ("error", "3", "failed"), ("result", "9", None)])  # fmt: skip
        hello = found[0][0]
        self.assertEqual((json.loads(hello["ops"]), json.loads(hello["dtypes"])), (["add"], ["f32"]))
        self.assertEqual(found[3][0]["type"], "KeyError")
        t = found[1][1]["out.output"]
        self.assertEqual((t.dtype, t.shape), ("F32", (3,)))
        np.testing.assert_array_equal(np.frombuffer(t.data, "<f4"), [0, 2, 4])

    def test_bad_frames_end_the_session_with_an_error(self):
        x = np.zeros(2, np.float32)
        good = case(1, "add", {}, "f32", {"a": x, "b": x})
        for bad in (good[:-1], good[:5], b"GET / HTTP/1.1\r\n", (20).to_bytes(8, "little") + b"x" * 20,
                    good.replace(b'"assay_exec":"1"', b'"assay_exec":"7"'),
                    good.replace(b'"frame":"case"', b'"frame":"cake"')):  # fmt: skip
            code, found = self.converse(good + bad)
            self.assertEqual(code, 2, bad)
            self.assertEqual([m["frame"] for m, _ in found], ["hello", "result", "error"], bad)
            self.assertEqual((found[-1][0]["id"], found[-1][0]["type"]), ("0", "BadFrame"))

    def test_a_length_is_not_believed(self):
        with self.assertRaisesRegex(BadFrame, "not a frame"):
            frames.read_frame(io.BytesIO(b"\xff" * 64))
        with self.assertRaisesRegex(BadFrame, "ended within a frame: 3 of"):
            frames.read_frame(io.BytesIO((1 << 37).to_bytes(8, "little") + b"abc"))


class Params(unittest.TestCase):
    def test_defaults_are_filled_in_and_faults_refused(self):
        self.assertEqual(checked("matmul", {})["layout"], "out_in")
        self.assertEqual(checked("add_rms_norm", {"norm": {"eps": 1e-6}})["norm"]["weight"], "multiplied")
        for op, params in (("rope", {"theta": 1e6, "pairing": "adjacent"}), ("matmul", {"layout": "in_out"}),
                           ("add_rms_norm", {"norm": {"eps": 1e-6, "weight": "plus_one"}}),
                           ("softmax", {"unheard_of": 1})):  # fmt: skip
            with self.assertRaises(Unsupported):
                checked(op, params)
        self.assertEqual(checked("matmul", {"layout": "in_out"}, ("layout",))["layout"], "in_out")
        with self.assertRaisesRegex(ValueError, "eps missing"):
            checked("rms_norm", {})


class Named(unittest.TestCase):
    """Outputs by name, of what passes for a torch tensor."""

    def test_a_tuple_is_taken_in_the_ops_order(self):
        a, b = object(), object()
        with mock.patch("assay_taps.tensors.is_torch", lambda value: value in (a, b)):
            self.assertEqual(named("rms_norm", a), {"output": a})
            self.assertEqual(named("rms_norm", (a,)), {"output": a})
            self.assertEqual(named("add_rms_norm", (a, b)), {"output": a, "residual": b})
            self.assertEqual(named("kv_store", [a, b]), {"k_cache": a, "v_cache": b})
            self.assertEqual(named("add_rms_norm", {"residual": b, "output": a}), {"output": a, "residual": b})
            for op, out in (("rms_norm", (a, b)), ("add_rms_norm", (a,)), ("add_rms_norm", (a, 1)), ("add", 9)):
                with self.assertRaisesRegex(TypeError, "returned"):
                    named(op, out)


@unittest.skipIf(torch is None, "skipped: torch is not installed")
class Children(unittest.TestCase):
    def child(self, args, data, cwd=None):
        environment = dict(os.environ, PYTHONPATH=os.path.dirname(HERE))
        command = [sys.executable, "-m", "assay_taps.exec", *args]
        done = subprocess.run(command, input=data, capture_output=True, env=environment, cwd=cwd, timeout=120)
        return done.returncode, answers(done.stdout), done.stderr.decode()

    def test_torch_computes_and_says_what_it_does_not_take(self):
        x = torch.tensor([[1.0, -2.0], [3.0, 0.5]]).bfloat16()
        w = torch.tensor([[2.0, 1.0]]).bfloat16()
        code, found, err = self.child(["--op", "matmul", "--with", "torch"],
            case(1, "matmul", {}, "bf16", {"x": x, "weight": w})
            + case(2, "matmul", {"layout": "in_out"}, "bf16", {"x": x, "weight": w.T.contiguous()})
            + case(3, "matmul", {"alpha": 2.0}, "bf16", {"x": x, "weight": w})
            + case(4, "add", {}, "bf16", {"a": x, "b": x})
            + case(5, "matmul", {}, "f32", {"x": x, "weight": w}))  # fmt: skip
        self.assertEqual(code, 0, err)
        for metadata, outputs in found[1:3]:
            t = outputs["out.output"]
            self.assertEqual((metadata["frame"], t.dtype, t.shape), ("result", "BF16", (2, 1)))
            got = torch.frombuffer(bytearray(t.data), dtype=torch.bfloat16).tolist()
            self.assertEqual(got, [0.0, 6.5])
        self.assertEqual([(m["frame"], m["kind"]) for m, _ in found[3:]], [("error", "unsupported")] * 3)

    def test_a_function_of_the_users_that_prints_writes_and_raises(self):
        source = """
import os
def double(a, b, params):
    print("printed by python"); os.write(1, b"written to descriptor 1\\n"); os.system("echo from a child")
    if a[0] == 7: raise RuntimeError("seven")
    if a[0] == 8: raise NotImplementedError("eight")
    if a[0] == 9: return 9
    a *= 2
    return a
"""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "mine.py"), "w") as f:
                f.write(source)
            data = b"".join(
                case(i, "add", {}, "f32", {"a": torch.tensor([float(i)]), "b": torch.zeros(1)}) for i in (1, 7, 8, 9)
            )
            code, found, err = self.child(["--op", "add", "--with", "mine:double"], data, cwd=folder)
        self.assertEqual(code, 0, err)
        for text in ("printed by python", "written to descriptor 1", "from a child", "RuntimeError: seven"):
            self.assertIn(text, err)
        self.assertEqual(found[1][1]["out.output"], Raw("F32", (1,), np.float32(2).tobytes()))
        kinds = [(m["kind"], m["type"]) for m, _ in found[2:]]
        expect = [("failed", "RuntimeError"), ("unsupported", "NotImplementedError"), ("failed", "TypeError")]
        self.assertEqual(kinds, expect)

    def test_what_cannot_start_answers_with_an_error(self):
        for args, text in ((["--op", "add", "--with", "nowhere_at_all:f"], "nowhere_at_all"),
                           (["--op", "kv_store", "--with", "torch"], "torch has"),
                           (["--op", "add", "--with", "torch", "--device", "cuda:77"], "")):  # fmt: skip
            code, found, err = self.child(args, b"")
            self.assertEqual(code, 2, err)
            self.assertEqual([(m["frame"], m["id"]) for m, _ in found], [("error", "0")])
            self.assertIn(text, found[0][0]["message"])


if __name__ == "__main__":
    unittest.main()
