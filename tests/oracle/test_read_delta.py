#!/usr/bin/env python3
"""docs/FORMAT.md §14 against the library: a reader written from the paper writes out what
the library made a delta of, and both refuse the same ones."""

import filecmp
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import read_dcp  # noqa: E402
import read_delta  # noqa: E402

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
RESHARD = os.path.join(BUILD, "bin", "dcp-reshard")
TRAIN = os.path.join(BUILD, "bin", "dcp-train")
N = 90000  # elements of a tensor


def model(path, values, dtype="BF16", letter="H"):
    """A folder as Hugging Face has them: numbers of one tensor, and a small file."""
    os.makedirs(os.path.join(path, "extra"))
    data = struct.pack(f"<{len(values)}{letter}", *values)
    header = {"w": {"dtype": dtype, "shape": [len(values)], "data_offsets": [0, len(data)]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(path, "config.json"), "w") as file:
        file.write('{"model_type": "gpt2"}')
    with open(os.path.join(path, "extra", "empty"), "w"):
        pass


def reshard(*words):
    return subprocess.run([RESHARD, *words], capture_output=True, text=True)


def seal(path, change):
    """delta.json, changed, with its digest put right."""
    with open(path, "rb") as file:
        text = file.read()[:-31].decode()
    text = change(text).encode()
    with open(path, "wb") as file:
        file.write(text + b',\n"digest":"%s"}\n' % read_dcp.crc64(text).encode())


class Deltas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        rng = random.Random(5)
        values = [rng.randrange(1 << 16) for _ in range(N)]
        model(cls.path("s0"), values)
        for step, share in (("s1", 0.005), ("s2", 0.4), ("s3", 1)):
            values = [v ^ 1 << rng.randrange(3) if rng.random() < share else v for v in values]
            model(cls.path(step), values + [7] * 7000 * (step == "s3"))
        for base, step, delta in (("s0", "s1", "d1"), ("d1", "s2", "d2"), ("d2", "s3", "d3")):
            done = reshard("delta", "make", *map(cls.path, (base, step, delta)))
            assert done.returncode == 0, done.stderr

    @classmethod
    def path(cls, *names):
        return os.path.join(cls.folder, *names)

    def assert_same(self, a, b):
        for folder, _, names in os.walk(a):
            there = os.path.join(b, os.path.relpath(folder, a))
            self.assertEqual(sorted(os.listdir(folder)), sorted(os.listdir(there)))
            for name in names:
                x, y = (os.path.join(f, name) for f in (folder, there))
                self.assertTrue(filecmp.cmp(x, y, shallow=False), name)

    def test_a_chain_of_three(self):
        for number in "123":
            out = self.path("out" + number)
            done = subprocess.run([sys.executable, read_delta.__file__,
                                   self.path("d" + number), out], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assert_same(self.path("s" + number), out)

    def both_refuse(self, delta, *base):
        with self.assertRaises(read_delta.Refused):
            found = read_delta.Delta(delta, *base)
            for name in found.files:
                found.read(name)
        words = ["--base", *base] if base else []
        done = reshard("delta", "apply", delta, self.path("never"), *words)
        self.assertIn(done.returncode, (4, 8), done.stderr)
        self.assertFalse(os.path.exists(self.path("never")))
        return done.stderr

    def copy(self, name):
        path = self.path("copy")
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.path(name), path)
        return path

    def test_another_base(self):
        said = self.both_refuse(self.path("d1"), self.path("s2"))
        self.assertIn("s2", said)
        self.both_refuse(self.path("d2"), self.path("s0"))
        self.both_refuse(self.path("d3"), self.path("d1"))

    def test_descriptions_that_are_none(self):
        changes = [
            ('"version":1', '"version":2'),
            ('"requires":[]', '"requires":["new"]'),
            ('"chain":2', '"chain":1'),
            ('"chain":2', '"chain":3'),
            ('"chain":2', '"chain":65'),
            ('"path":"../d1"', '"path":"d1"'),
            ('"path":"../d1"', '"path":"../none"'),
            ('"name":"config.json"', '"name":"../config.json"'),
            ('"name":"config.json"', '"name":"zzz.json"'),
            ('"name":"config.json"', '"name":"a.delta"'),
            ('"name":"model.safetensors"', '"name":"model.other"'),
            ('"size_bytes":22', '"size_bytes":23'),
            ('"size_bytes":22', '"size_bytes":-1'),
            ("libdcp-delta", "libdcp-other"),
        ]
        for old, new in changes:
            with self.subTest(new=new):
                delta = self.copy("d2")
                seal(os.path.join(delta, "delta.json"), lambda text: text.replace(old, new))
                self.both_refuse(delta)

    def test_tables_and_blocks_that_are_none(self):
        delta = self.path("d1", "model.safetensors.delta")
        with open(delta, "rb") as file:
            size = len(file.read())
        for at in (0, 8, size - 16 - 24, size - 16 - 20, size - 16 - 19, size - 16, size - 8,
                   16, 20, 24, 28, 60, size - 16 - 24 - 5):
            with self.subTest(at=at):
                changed = os.path.join(self.copy("d1"), "model.safetensors.delta")
                with open(changed, "r+b") as file:
                    file.seek(at)
                    byte = file.read(1)[0]
                    file.seek(at)
                    file.write(bytes([byte ^ 1]))
                self.both_refuse(os.path.dirname(changed))

    def test_steps_that_are_saved_as_deltas(self):
        """Most of the model are positions that no sample reaches."""
        with open(self.path("text"), "w") as file:
            file.write("to be or not to be, that is the question; " * 40)
        config = {"seed": 3, "train_batch_size": 4, "data": {"train": self.path("text"),
                  "seq_len": 16}, "zero_optimization": {"stage": 3},
                  "model": {"n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 10000},
                  "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
                  "checkpoint": {"save_every": 1, "keep": 0}}
        for run, delta in (("deltas", 3), ("full", 0)):
            config["checkpoint"].update(dir=self.path(run), delta=delta)
            with open(self.path("config"), "w") as file:
                json.dump(config, file)
            for steps in ("2", "5"):  # two processes
                done = subprocess.run([TRAIN, "--config", self.path("config"), "--ranks", "2",
                                       "--steps", steps], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
        numbers = []
        for step in ("step-%08d" % n for n in range(1, 6)):
            delta = read_delta.Delta(self.path("deltas", step))
            numbers.append(delta.number)
            for name in os.listdir(self.path("full", step)):
                if name != "manifest.json":  # which has the name of the run
                    with open(self.path("full", step, name), "rb") as file:
                        self.assertEqual(delta.read(name), file.read(), name)
            sizes = [sum(entry.stat().st_size for entry in os.scandir(self.path(run, step))
                         if "shard" in entry.name) for run in ("deltas", "full")]
            self.assertLess(sizes[0] * (10 if delta.chain else 1), sizes[1] + 1)
        self.assertEqual(numbers, [0, 1, 2, 0, 1])

    def test_a_file_of_another_step(self):
        delta = self.copy("d1")
        name = "model.safetensors.delta"
        done = reshard("delta", "make", self.path("s0"), self.path("s2"), self.path("other"))
        self.assertEqual(done.returncode, 0, done.stderr)
        shutil.copy(self.path("other", name), os.path.join(delta, name))
        self.both_refuse(delta)


if __name__ == "__main__":
    unittest.main()
