"""Real NumPy: it reads what we write, byte for byte what it writes itself, and we read
what it writes."""

import json
import os
import sys
import tempfile
import unittest
import zipfile

import numpy
import torch

from tool import read, tool


DTYPES = ["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8",
          "<c8", "<c16"]


def array_of(dtype, *shape):
    dtype = numpy.dtype(dtype)
    count = int(numpy.prod(shape)) * dtype.itemsize
    raw = numpy.random.default_rng(1).integers(0, 2 if dtype == bool else 120, count)
    return numpy.frombuffer(raw.astype("u1").tobytes(), dtype).reshape(shape)


SHAPES = [(), (0,), (1,), (3,), (2, 3), (3, 0, 2), (1, 2, 1, 2, 1, 2, 1, 2), (70000,),
          (100000, 1)]


class NumPy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(self.path("ours"))

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def copy(self, source, name, kind):
        ours = self.path("ours", name)
        if os.path.exists(ours):
            os.remove(ours)
        tool("copy", source, kind, ours)
        return ours

    def test_npy_same_bytes(self):
        arrays = [array_of(d, 3, 4) for d in DTYPES] + [array_of("<f4", *s) for s in SHAPES]
        for array in arrays:
            numpy.save(self.path("x.npy"), array)
            ours = self.copy(self.path("x.npy"), "x.npy", "npy")
            self.assertEqual(read(self.path("x.npy")), read(ours))

    def test_npy_reads_variants(self):
        array = array_of("<f4", 5, 7)
        for version in ((1, 0), (2, 0), (3, 0)):
            for order in "CF":
                with open(self.path("x.npy"), "wb") as file:
                    value = numpy.array(array, order=order)
                    numpy.lib.format.write_array(file, value, version=version)
                again = numpy.load(self.copy(self.path("x.npy"), "x.npy", "npy"))
                self.assertTrue(numpy.array_equal(array, again))

    def test_big_endian(self):
        """Bytes that stand the other way round: the same numbers, as they are copied."""
        arrays = {d: array_of(d, 30, 70) for d in (">f4", ">f2", ">i8", ">c16", "|u1")}
        arrays["columns"] = numpy.asfortranarray(array_of(">f8", 300, 700))
        for array in arrays.values():
            numpy.save(self.path("x.npy"), array)
            again = numpy.load(self.copy(self.path("x.npy"), "x.npy", "npy"))
            self.assertEqual(array.dtype.newbyteorder("<"), again.dtype)
            self.assertTrue(numpy.array_equal(array, again))
        for save in (numpy.savez, numpy.savez_compressed):
            save(self.path("x.npz"), **arrays)
            with numpy.load(self.copy(self.path("x.npz"), "x.npz", "npz")) as again:
                for name, array in arrays.items():
                    self.assertTrue(numpy.array_equal(array, again[name]), name)

    def test_npy_refuses(self):
        for array, words in (
            (numpy.array([{}, []], dtype=object), "Python objects"),
            (numpy.array(["a", "bc"]), "dtype"),
            (numpy.zeros(2, [("a", "f4"), ("b", "i4")]), "structures"),
            (numpy.zeros(2, "M8[s]"), "dtype"),
            (numpy.zeros(2, numpy.longdouble), "dtype"),
            (numpy.zeros(2, "V2"), "dtype"),
        ):
            numpy.save(self.path("x.npy"), array, allow_pickle=True)
            with self.assertRaisesRegex(AssertionError, f"UNSUPPORTED.*{words}"):
                tool("dump", self.path("x.npy"))

    def states(self):
        dtypes = {f"{i}.{d.strip('<')}": array_of(d, 2, 3) for i, d in enumerate(DTYPES)}
        return [
            {"w": array_of("<f4", 3)},
            dtypes,
            {str(i): array_of("<f4", *shape) for i, shape in enumerate(SHAPES)},
            {"W": array_of("<f4", 3), "w": array_of("<f4", 2)},
            {"a/b/c": array_of("<i8", 2), "x.npy": array_of("<i8", 1), "é": array_of("u1", 4)},
            {f"layer.{i}.weight": array_of("<f4", i % 5) for i in range(70000)},
        ]

    @unittest.skipIf(sys.version_info < (3, 11, 4), "before Python 3.11.4 zipfile writes "
                     "the wrong version into zip64 headers (gh-103861)")
    def test_npz_same_bytes(self):
        for state in self.states():
            numpy.savez(self.path("x.npz"), **state)
            ours = self.copy(self.path("x.npz"), "x.npz", "npz")
            self.assertEqual(read(self.path("x.npz")), read(ours))

    def test_npz_compressed(self):
        for state in self.states()[:5]:
            state = dict(state, zeros=numpy.zeros(100000), f=numpy.asfortranarray(
                array_of("<f4", 30, 40)))
            numpy.savez_compressed(self.path("x.npz"), **state)
            with numpy.load(self.copy(self.path("x.npz"), "x.npz", "npz")) as again:
                self.assertEqual(list(state), list(again))
                for name, array in state.items():
                    self.assertEqual(array.dtype, again[name].dtype)
                    self.assertTrue(numpy.array_equal(array, again[name]))

    def test_npz_from_torch(self):
        state = {"layer.weight": torch.randn(3, 4), "n": torch.tensor(5)}
        state["view"] = state["layer.weight"].t()
        torch.save(state, self.path("x.pt"))
        with numpy.load(self.copy(self.path("x.pt"), "x.npz", "npz")) as again:
            for name, tensor in state.items():
                self.assertTrue(torch.equal(tensor, torch.from_numpy(again[name])))

    def test_npz_refuses_names_and_dtypes(self):
        for state, words in (
            ({"a/../b": torch.ones(1)}, "cannot hold: the name"),
            ({"/b": torch.ones(1)}, "cannot hold: the name"),
            ({"w": torch.ones(1, dtype=torch.bfloat16)}, "cannot hold: bfloat16"),
            ({"w": torch.ones(1).to(torch.float8_e5m2)}, "cannot hold: float8_e5m2"),
        ):
            torch.save(state, self.path("x.pt"))
            with self.assertRaisesRegex(AssertionError, f"MISMATCH.*{words}"):
                self.copy(self.path("x.pt"), "x.npz", "npz")
        torch.save({"a": torch.ones(1), "b": torch.ones(1)}, self.path("x.pt"))
        with self.assertRaisesRegex(AssertionError, "MISMATCH.*2 tensors"):
            self.copy(self.path("x.pt"), "x.npy", "npy")

    def test_other_archives(self):
        with zipfile.ZipFile(self.path("x.zip"), "w") as target:
            target.writestr("a.npy", "x")
            target.writestr("readme", "y")
        with self.assertRaisesRegex(AssertionError, "UNSUPPORTED.*zip archive of other"):
            tool("dump", self.path("x.zip"))

    def test_roles_by_name(self):
        numpy.savez(self.path("x.npz"), **{"w": array_of("<f4", 2),
                                           "optimizer.exp_avg.w": array_of("<f4", 2)})
        lines = [json.loads(x) for x in tool("dump", self.path("x.npz")).splitlines()]
        self.assertEqual({(x["name"], x["role"], x["param"]) for x in lines},
                         {("w", "model", "w"), ("optimizer.exp_avg.w", "exp_avg", "w")})


if __name__ == "__main__":
    unittest.main()
