"""What a program needs in memory for headers and manifests is a small multiple of their text,
however they are made; what an archive holds is bounded by the archive."""

import io
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")
INSPECT = os.path.join(BIN, "dcp-inspect")
RESHARD = os.path.join(BIN, "dcp-reshard")
ITSELF = 24 << 20  # what a program takes to say that there is nothing


def run(*command):
    """A command's status, what it said, and its peak resident memory in bytes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        os.write(write, struct.pack("<iq", done.returncode, usage) + done.stderr[:2000])
        os._exit(0)
    os.close(write)
    answer = os.read(read, 4096)
    os.close(read)
    os.waitpid(child, 0)
    status, usage = struct.unpack("<iq", answer[:12])
    return status, answer[12:].decode(), usage


def safetensors(path, members, data_bytes=0):
    text = b"{" + b",".join(members) + b"}"
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + data_bytes)
    return len(text)


class HeaderMemory(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="dcp-header-")
        self.addCleanup(shutil.rmtree, self.work)
        self.path = os.path.join(self.work, "m.safetensors")

    def check(self, path, text_bytes, status=0, *options):
        rc, said, used = run(INSPECT, "ls", "--limit", "1", path, *options)
        self.assertEqual(rc, status, said)
        self.assertLess(used - ITSELF, 6 * text_bytes, f"{used >> 20} MiB of {text_bytes >> 20}")
        return said

    def tensors(self, n):
        return [
            b'"model.layers.%07d.mlp.down_proj.weight":{"dtype":"F32","shape":[1,1],'
            b'"data_offsets":[%d,%d]}' % (i, 4 * i, 4 * i + 4)
            for i in range(n)
        ]

    def test_a_header_of_many_tensors(self):
        n = 100_000
        self.check(self.path, safetensors(self.path, self.tensors(n), 4 * n))

    def test_an_entry_that_grows(self):
        entry = b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":['
        size = safetensors(self.path, [entry + b"{}," * 3_000_000 + b"{}]}"])
        self.assertIn("much more memory", self.check(self.path, size, 8))

    def test_metadata_that_grows(self):
        pairs = b",".join(b'"%x":""' % i for i in range(1_000_000))
        size = safetensors(self.path, [b'"__metadata__":{' + pairs + b"}"])
        self.assertIn("much more memory", self.check(self.path, size, 8))

    def test_the_map_of_a_folder(self):
        n = 100_000
        safetensors(self.path, self.tensors(n), 4 * n)
        os.rename(self.path, os.path.join(self.work, "model-1.safetensors"))
        index = os.path.join(self.work, "model.safetensors.index.json")
        names = [f"model.layers.{i:07d}.mlp.down_proj.weight" for i in range(n)]
        with open(index, "w") as out:
            json.dump({"weight_map": dict.fromkeys(names, "model-1.safetensors")}, out)
        size = sum(os.path.getsize(os.path.join(self.work, f)) for f in os.listdir(self.work))
        self.check(self.work, size - 4 * n)

    def test_manifests(self):
        n = 60_000
        safetensors(self.path, self.tensors(n), 4 * n)
        step = os.path.join(self.work, "step")
        rc, said, _ = run(RESHARD, self.path, step)
        self.assertEqual(rc, 0, said)
        names = [f for f in os.listdir(step) if f.endswith(".json")]
        self.check(step, sum(os.path.getsize(os.path.join(step, f)) for f in names))

    def test_limits(self):
        big = [b'"__metadata__":{}' + b" " * 100_000_000]
        safetensors(self.path, big)
        said = self.check(self.path, 100_000_000, 4)
        self.assertIn("over the limit of 100000000", said)
        self.assertIn("hint: --limit-header SIZE allows more", said)
        self.check(self.path, 100_000_000, 0, "--limit-header", "200M")
        self.check(self.path, 100_000_000, 4, "--limit-header", "1M")

    def archive(self, name, data, *more):
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as out:
            for entry, text in ((name, data), *more):
                info = tarfile.TarInfo(entry)
                info.size = len(text)
                out.addfile(info, io.BytesIO(text))
        path = os.path.join(self.work, "a.tar.zst")
        zstd = subprocess.run(["zstd", "-q", "-o", path], input=tar.getvalue())
        self.assertEqual(zstd.returncode, 0)
        return path

    @unittest.skipUnless(shutil.which("zstd"), "no zstd")
    def test_nothing_that_expands(self):
        path = self.archive(
            "step/manifest.json",
            b'{"format":"libdcp"' + b" " * (100 << 20),
            ("step/shard-00000-of-00001.pieces", b""),
        )
        self.assertLess(os.path.getsize(path), 1 << 20)
        rc, said, used = run(INSPECT, path)
        self.assertEqual(rc, 4, said)
        self.assertIn("for so small an archive", said)
        self.assertLess(used, 100 << 20)

    @unittest.skipUnless(shutil.which("zstd"), "no zstd")
    def test_zeros_are_data(self):
        shape = 64 << 20
        head = b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (shape, shape)
        head += b" " * (-len(head) % 8)
        data = struct.pack("<Q", len(head)) + head + bytes(shape)
        path = self.archive("model.safetensors", data)
        self.assertLess(os.path.getsize(path), 1 << 20)
        rc, said, _ = run(RESHARD, path, os.path.join(self.work, "out"))
        self.assertEqual(rc, 0, said)


if __name__ == "__main__":
    sys.exit(unittest.main())
