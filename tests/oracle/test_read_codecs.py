#!/usr/bin/env python3
"""The codecs of docs/FORMAT.md against the library: a reader written from the paper reads
what the library writes, of every type and of numbers of every kind, and refuses what it
refuses."""

import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

import zstandard  # noqa: F401  read_codecs needs it

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import read_codecs  # noqa: E402
import read_dcp  # noqa: E402

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
WRITER = os.path.join(BUILD, "tests", "write_step")
RESHARD = os.path.join(BUILD, "bin", "dcp-reshard")
CODECS = ("zstd", "planes", "split")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def normal(n, seed):
    rng = random.Random(seed)
    return struct.pack(f"<{n}f", *(rng.gauss(0, 0.02) for _ in range(n)))


def top_halves(data):
    return b"".join(data[i + 2 : i + 4] for i in range(0, len(data), 4))


def positive(data):
    return bytes(b & 127 if i % 4 == 3 else b for i, b in enumerate(data))


def make_tensors():
    """Numbers that are coded in every way: as dtype and bytes by name."""
    n = 20000
    floats, noise = normal(n, 1), random.Random(2).randbytes(4 * n)
    return {
        "weights": ("F32", floats),
        "weights.bf16": ("BF16", top_halves(floats)),
        "squares": ("F32", positive(normal(n, 3))),
        "doubles": ("F64", struct.pack(f"<{n}d", *struct.unpack(f"<{n}f", floats))),
        "widened": ("F32", b"".join(b"\0\0" + floats[i + 2 : i + 4] for i in range(0, 4 * n, 4))),
        "half zero": ("F32", floats[: 2 * n] + bytes(2 * n)),
        "words": ("I64", struct.pack(f"<{n}q", *(i % 50257 for i in range(n)))),
        "noise": ("I32", noise),
        "bytes": ("U8", bytes(min(b, 40) for b in noise)),
        "zeros": ("F32", bytes(4 * n)),
        "one": ("F32", floats[:4]),
    }


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, (dtype, data) in tensors.items():
        width = read_dcp.TYPE_BYTES[dtype]
        head[name] = {"dtype": dtype, "shape": [len(data) // width],
                      "data_offsets": [at, at + len(data)]}  # fmt: skip
        at += len(data)
    text = str(head).replace("'", '"').encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(b"".join(data for _, data in tensors.values()))


class Codecs(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def test_the_sample(self):
        for codec in CODECS:
            with self.subTest(codec):
                done = run(WRITER, self.path(codec), "zero3", "2", codec)
                self.assertEqual(done.returncode, 0, done.stderr)
                wanted = dict(line.split("\t") for line in done.stdout.splitlines())
                step = read_dcp.Step(os.path.join(self.path(codec), "step-00000007"),
                                     read_codecs.DECODERS)  # fmt: skip
                found = {t["name"]: step.read(i)[1] for i, t in enumerate(step.tensors)}
                self.assertEqual(found, wanted)

    def test_numbers_of_every_kind(self):
        tensors, source = make_tensors(), self.path("state.safetensors")
        write_safetensors(source, tensors)
        for codec in CODECS:
            done = run(RESHARD, source, self.path(codec), "--codec", codec, "--world", "2")
            self.assertEqual(done.returncode, 0, done.stderr)
            step = read_dcp.Step(self.path(codec), read_codecs.DECODERS)
            for index, tensor in enumerate(step.tensors):
                with self.subTest(codec=codec, tensor=tensor["name"]):
                    self.assertEqual(step.read(index)[0], tensors[tensor["name"]][1])

    def test_hostile_blocks_are_refused(self):
        rows = bytes(range(100))
        head = bytes([0, 100, 0, 0, 0, 1, 0, 0, 0])
        sound = head + rows + b"\x09"
        want = b"".join(bytes([i, 9]) for i in range(100))
        self.assertEqual(read_codecs.split(sound, 200, 2), want)
        for block in (b"\2" + sound[1:], sound[:-1], sound + b"\0", sound[:1] + b"\1" + sound[2:],
                      sound[:1] + b"\0" + sound[2:], sound[:4] + b"\1" + sound[5:], b"", head):
            with self.subTest(block), self.assertRaises(read_codecs.Corrupt):
                read_codecs.split(block, 200, 2)


if __name__ == "__main__":
    for program in (WRITER, RESHARD):
        if not os.path.exists(program):
            sys.exit(f"{program} is not built")
    unittest.main(verbosity=1)
