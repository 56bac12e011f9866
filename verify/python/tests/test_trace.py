"""Files: what is written can be read, is whole or not there, and says what is wrong."""

import errno
import json
import os
import tempfile
import unittest
from unittest import mock

import numpy as np

from assay_taps import merge, tensors
from assay_taps.errors import TapError
from assay_taps.tensors import Raw, Reader, decode, encode, raw
from assay_taps.trace import TraceWriter

CLOSING = {"producer": {"name": "test", "version": "1"}, "dtype": "f32", "architecture": "Qwen3ForCausalLM"}


class Safetensors(unittest.TestCase):
    def test_a_file_written_by_hand_is_read(self):
        # After the format's specification, not by this package: one BF16 pair and one I64.
        header = b'{"b":{"dtype":"I64","shape":[1],"data_offsets":[4,12]},'
        header += b'"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
        data = b"\x80\x3f\x00\x40" + (7).to_bytes(8, "little")
        metadata, found = decode(len(header).to_bytes(8, "little") + header + data)
        self.assertEqual(metadata, {})
        self.assertEqual({n: (t.dtype, t.shape, bytes(t.data)) for n, t in found.items()},
                         {"a": ("BF16", (2,), data[:4]), "b": ("I64", (1,), data[4:])})  # fmt: skip

    def test_arrays_go_out_and_come_back(self):
        for array in (np.arange(6.0).reshape(2, 3), np.arange(4, dtype=">i4"), np.zeros((0, 3), np.float16),
                      np.arange(12, dtype=np.float32).reshape(3, 4).T):  # fmt: skip
            t = decode(b"".join(encode({"x": raw(array)}, {"k": "v"})))[1]["x"]
            back = np.frombuffer(t.data, array.dtype.newbyteorder("<")).reshape(t.shape)
            np.testing.assert_array_equal(back, array)

    def test_damaged_files_are_refused(self):
        whole = b"".join(encode({"x": raw(np.arange(3.0)), "y": raw(np.arange(2, dtype=np.int32))}))
        n = int.from_bytes(whole[:8], "little")

        def edited(old, new):
            text = whole[8 : 8 + n].replace(old, new)
            self.assertNotEqual(text, whole[8 : 8 + n])
            return len(text).to_bytes(8, "little") + text + whole[8 + n :]

        damaged = [whole[:k] for k in (0, 5, 20, len(whole) - 1)] + [whole + b"\0", b"\xff" * 16]
        damaged += [edited(b'"F64"', b'"F32"'), edited(b'"F64"', b'"Q64"'), edited(b"[3]", b"[-3]"),
                    edited(b"[24,32]", b"[16,24]"), edited(b'"shape"', b'"shapes"')]  # fmt: skip
        for data in damaged:
            with self.assertRaises(TapError, msg=data):
                decode(data)


class Traces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "trace")

    def record(self, writer, calls, width=4):
        """Rows are numbered through; layers as they come."""
        start = 0
        for count in calls:
            rows = np.arange(start, start + count, dtype=np.float32)[:, None].repeat(width, 1)
            writer.keep("embed", rows)
            for n in range(writer.layers):
                writer.keep(f"layers.{n}.q_proj", rows + 1000 * (n + 1))
            for n in range(writer.layers):  # as vLLM: a layer's output is seen in the next one
                writer.keep(f"layers.{n}.mlp_residual", rows)
            rows[...] = -1  # the memory is used again
            writer.end_call(range(start, start + count))
            start += count

    def test_calls_are_joined_by_rows_and_layers_by_files(self):
        writer = TraceWriter(self.out, 2)
        self.record(writer, [3, 1, 2])
        manifest = writer.close(notes="n", **CLOSING)
        with open(os.path.join(self.out, "manifest.json"), encoding="utf-8") as f:
            self.assertEqual(manifest, json.load(f))
        self.assertEqual(manifest["segments"], [[0, 3], [3, 4], [4, 6]])
        self.assertEqual(manifest["tokens"], list(range(6)))
        self.assertEqual(sorted(os.listdir(self.out)), sorted(manifest["files"] + ["manifest.json"]))
        layers = {f"layers.{n}.{p}" for n in (0, 1) for p in ("q_proj", "mlp_residual")}
        self.assertEqual(set(manifest["probes"]), {"embed"} | layers)
        for probe, entry in manifest["probes"].items():
            t = Reader(os.path.join(self.out, entry["file"])).read(probe)
            self.assertEqual((entry["dtype"], entry["shape"]), ("F32", [6, 4]))
            add = 1000 * (int(probe.split(".")[1]) + 1) if probe.endswith("q_proj") else 0
            expect = np.arange(6, dtype=np.float32)[:, None].repeat(4, 1) + add
            np.testing.assert_array_equal(np.frombuffer(t.data, "<f4").reshape(6, 4), expect)

    def test_globs_choose_probes_and_are_noted(self):
        writer = TraceWriter(self.out, 2, "layers.*.mlp_residual,logits")
        self.record(writer, [2])
        manifest = writer.close(**CLOSING)
        self.assertEqual(set(manifest["probes"]), {"layers.0.mlp_residual", "layers.1.mlp_residual"})
        self.assertIn("layers.*.mlp_residual,logits", manifest["notes"])
        with self.assertRaisesRegex(TapError, "layers.2.*matches no probe of a model with 2 layers"):
            TraceWriter(self.out + "2", 2, "layers.2.*")

    def test_one_layer_is_in_memory(self):
        writer = TraceWriter(self.out, 9)
        most = 0
        original = writer.keep

        def keep(probe, tensor):
            nonlocal most
            original(probe, tensor)
            most = max(most, len({p.split(".")[1] for p in writer._pending}))

        writer.keep = keep
        for n in range(9):
            for p in ("input_norm", "q_proj"):
                writer.keep(f"layers.{n}.{p}", np.zeros((2, 2)))
        self.assertEqual(most, 1)

    def test_wrong_rows_and_double_calls_are_named(self):
        writer = TraceWriter(self.out, 1)
        writer.keep("embed", np.zeros((3, 2)))
        with self.assertRaisesRegex(TapError, "embed was computed twice"):
            writer.keep("embed", np.zeros((3, 2)))
        writer.end_call([1, 2])
        with self.assertRaisesRegex(TapError, "embed: 3 rows in a call of 2 tokens"):
            writer.close(**CLOSING)
        writer.abort()
        self.assertFalse(os.path.exists(self.out))

    def test_a_full_disk_leaves_nothing_and_says_so(self):
        class Full:
            def __init__(self, path, mode):
                self.file = open(path, mode)

            def __enter__(self):
                return self

            def __exit__(self, *_):
                self.file.close()

            def write(self, data):
                raise OSError(errno.ENOSPC, "No space left on device")

        writer = TraceWriter(self.out, 1)
        writer.keep("embed", np.zeros((1, 2)))
        with mock.patch.object(tensors, "open", Full, create=True), self.assertRaisesRegex(TapError, "disk is full"):
            writer.end_call([1])
        self.assertEqual(os.listdir(os.path.join(self.out, ".parts")), [])
        writer.abort()
        self.assertFalse(os.path.exists(self.out))

    def test_a_folder_in_use_is_refused(self):
        os.makedirs(self.out)
        open(os.path.join(self.out, "x"), "w").close()
        with self.assertRaisesRegex(TapError, "not empty"):
            TraceWriter(self.out, 1)


class Merging(unittest.TestCase):
    def test_columns_side_by_side(self):
        parts = [raw(np.arange(6.0).reshape(3, 2) + 10 * r) for r in range(2)]
        joined = merge.columns_joined(parts)
        expect = np.concatenate([np.arange(6.0).reshape(3, 2), np.arange(6.0).reshape(3, 2) + 10], 1)
        np.testing.assert_array_equal(np.frombuffer(joined.data).reshape(joined.shape), expect)

    def test_replicated_kv_heads_are_taken_once_and_compared(self):
        a, b = (raw(np.full((2, 1, 3), v)) for v in (1.0, 2.0))
        joined, differ = merge.merged("layers.0.k_rope", [a, a, b, b], 2)
        self.assertEqual((joined.shape, differ), ((2, 2, 3), False))
        self.assertTrue(merge.merged("layers.0.k_rope", [a, b, b, b], 2)[1])
        self.assertTrue(merge.merged("layers.0.o_proj", [a, b], 2)[1])

    def test_probes_that_differ_between_ranks_are_named_in_the_manifest(self):
        with tempfile.TemporaryDirectory() as folder:
            folders = [os.path.join(folder, f".rank-{rank:05}") for rank in range(2)]
            for rank, of in enumerate(folders):
                writer = TraceWriter(of, 1)
                writer.keep("embed", np.zeros((2, 4), np.float32))
                writer.keep("layers.0.q_proj", np.full((2, 2), rank, np.float32))
                writer.keep("layers.0.o_proj", np.full((2, 4), rank, np.float32))
                writer.end_call([1, 2])
                writer.close(extra={"ranks": {"rank": rank, "size": 2, "kv_heads": 2}}, **CLOSING)
            manifest = merge.merge(folders, folder)
        self.assertEqual(manifest["ranks_differ"], ["layers.0.o_proj"])
        self.assertIn("layers.0.o_proj", manifest["notes"])

    def test_ranks_that_do_not_fit_are_refused(self):
        with self.assertRaisesRegex(TapError, "do not fit"):
            merge.columns_joined([Raw("F32", (2, 1), b"12345678"), Raw("F32", (1, 2), b"12345678")])


if __name__ == "__main__":
    unittest.main()
