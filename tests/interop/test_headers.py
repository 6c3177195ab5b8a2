"""A shard whose header names other tensors than the manifests, every digest made again: the
safetensors library reads another model than dcp-reshard, and verify says so."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

import safetensors.numpy
import numpy as np

from programs import BIN, program, reshard

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "oracle"))
from read_dcp import crc64  # noqa: E402

SHARD = "shard-00000-of-00001.safetensors"


def write(path, data):
    with open(path, "wb") as stream:
        stream.write(data)


def read(path):
    with open(path, "rb") as stream:
        return stream.read()


def exchange_names(step):
    """As someone would who can compute digests."""
    shard = os.path.join(step, SHARD)
    manifest = os.path.join(step, "manifest.json")
    old = read(shard)
    new = old.replace(b'"a"', b'"?"').replace(b'"b"', b'"a"').replace(b'"?"', b'"b"')
    text = read(manifest).replace(crc64(old).encode(), crc64(new).encode())[:-31]
    write(shard, new)
    write(manifest, text + b',\n"digest":"%s"}\n' % crc64(text).encode())


class Headers(unittest.TestCase):
    def test_exchanged_names(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "model.safetensors")
            step = os.path.join(folder, "step")
            model = {"a": np.zeros(4, np.float32), "b": np.ones(4, np.float32)}
            safetensors.numpy.save_file(model, source)
            reshard(source, step, "native")
            self.assertIn("complete", program("dcp-inspect", "verify", step))
            exchange_names(step)
            other = safetensors.numpy.load_file(os.path.join(step, SHARD))
            self.assertTrue((other["a"] == model["b"]).all())
            self.assertIn("1", program("dcp-inspect", "dump", step, "b[0:1]"))
            done = subprocess.run([os.path.join(BIN, "dcp-inspect"), "verify", step],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 4, done.stderr)
            for name in ("a", "b"):
                self.assertTrue(re.search(f"tensor '{name}' .*{SHARD}", done.stdout),
                                done.stdout)


if __name__ == "__main__":
    unittest.main()
