#!/usr/bin/env python3
"""docs/FORMAT.md against the library: a reader written from the paper reads what the
library writes, and both refuse the same steps."""

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import read_dcp  # noqa: E402
import read_parity  # noqa: E402

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
WRITER = os.path.join(BUILD, "tests", "write_step")
INSPECT = os.path.join(BUILD, "bin", "dcp-inspect")
RESHARD = os.path.join(BUILD, "bin", "dcp-reshard")
READER = os.path.abspath(read_dcp.__file__)
STEP = "step-00000007"
LAYOUTS = ("flat", "zero1", "zero2", "zero3", "dim0", "replicated")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def write_step(folder, layout, world, codec="none"):
    """Returns the step's folder and the fingerprints taken from the state itself."""
    done = run(WRITER, folder, layout, str(world), codec)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return os.path.join(folder, STEP), dict(lines)


class Folder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name


class Parity(Folder):
    def test_any_two_ranks_from_the_paper(self):
        source, _ = write_step(os.path.join(self.folder, "run"), "zero3", 3, "planes")
        whole, broken = (os.path.join(self.folder, name) for name in ("whole", "broken"))
        done = run(RESHARD, source, whole, "--world", "4", "--parity", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        for lost in ((0, 3), (1, 2), (2,)):
            with self.subTest(lost=lost):
                shutil.rmtree(broken, ignore_errors=True)
                shutil.copytree(whole, broken)
                if len(lost) == 1:
                    os.remove(os.path.join(broken, "parity-00000-of-00002.bin"))
                os.remove(os.path.join(broken, "manifest.json"))
                names = ["manifest.json"]
                for name in sorted(os.listdir(broken)):
                    if name.startswith("shard-") and int(name.split("-")[1]) in lost:
                        os.remove(os.path.join(broken, name))
                        names.append(name)
                found = read_parity.rebuild(broken)
                self.assertEqual(sorted(found), sorted(names))
                for name in names:
                    with open(os.path.join(whole, name), "rb") as file:
                        self.assertEqual(found[name], file.read(), name)


class Read(Folder):
    def test_digests_of_the_paper(self):
        self.assertEqual(read_dcp.crc64(b"123456789"), "995dc9bbdf1939fa")
        self.assertEqual(read_dcp.crc64(b""), "0000000000000000")

    def test_every_layout(self):
        for layout in LAYOUTS:
            for world in (1, 3, 8):
                with self.subTest(layout=layout, world=world):
                    folder = os.path.join(self.folder, f"{layout}-{world}")
                    path, wanted = write_step(folder, layout, world)
                    step = read_dcp.Step(path)
                    found = {
                        tensor["name"]: step.read(index)[1]
                        for index, tensor in enumerate(step.tensors)
                    }
                    self.assertEqual(found, wanted)
                    self.assertEqual(step.world, world)

    def test_the_inspector_says_the_same(self):
        path, _ = write_step(self.folder, "dim0", 3)
        listed = json.loads(run(INSPECT, "ls", "--json", path).stdout)["tensors"]
        lines = [
            f"{t['name']}\t{t['dtype']}\t[{','.join(map(str, t['shape']))}]"
            f"\t{t['fingerprint']}"
            for t in listed
        ]
        done = run(sys.executable, READER, path)
        self.assertEqual((done.returncode, done.stdout.splitlines()), (0, lines))

    def test_codecs_are_refused_by_name(self):
        path, _ = write_step(self.folder, "zero3", 2, "zstd")
        done = run(sys.executable, READER, path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("codec zstd is not supported", done.stderr)

    def test_shards_are_as_the_paper_says(self):
        path, _ = write_step(self.folder, "flat", 3)
        for rank in range(3):
            stem = os.path.join(path, f"shard-{rank:05}-of-00003")
            with open(stem + ".safetensors", "rb") as file:
                data = file.read()
            start = 8 + int.from_bytes(data[:8], "little")
            self.assertEqual(start % 4096, 0)
            header = json.loads(data[8:start])
            keys = list(header)
            self.assertEqual(keys.pop(0), "__metadata__")
            pieces = pieces_of(path, rank)
            self.assertEqual(len(pieces), len(keys))
            at = 0
            for key, piece in zip(keys, pieces):
                begin, end = header[key]["data_offsets"]
                self.assertEqual((begin, start + begin), (at, piece["offset"]))
                at += piece["size_bytes"]
                self.assertEqual(end, at)
            self.assertEqual(len(data), start + at)

    def test_equal_states_give_equal_bytes(self):
        for codec in ("none", "planes"):
            both = []
            for again in "ab":
                path, _ = write_step(os.path.join(self.folder, codec + again), "zero2", 3,
                                     codec)  # fmt: skip
                files = {}
                for name in os.listdir(path):
                    with open(os.path.join(path, name), "rb") as file:
                        files[name] = file.read()
                both.append(files)
            self.assertEqual(*both)


def pieces_of(path, rank):
    """What the table of a shard says, in the order of the shard."""
    return read_dcp.Step(path).shards[rank]


def seal(path, manifest):
    """Writes manifest.json with its digest."""
    manifest.pop("digest", None)
    data = json.dumps(manifest, separators=(",", ":")).encode()[:-1]
    data += b',\n"digest":"%s"}\n' % read_dcp.crc64(data).encode()
    with open(os.path.join(path, "manifest.json"), "wb") as file:
        file.write(data)


def without_tables(path):
    """Makes a step of 0.1.0 of one with tables: shard manifests in JSON."""
    with open(os.path.join(path, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    shards = [pieces_of(path, rank) for rank in range(manifest["world"])]
    for rank, (entry, pieces) in enumerate(zip(manifest["shards"], shards)):
        with open(os.path.join(path, entry["file"]), "rb") as file:
            n = int.from_bytes(file.read(8), "little")
            keys = list(json.loads(file.read(n)))[1:]
        root = {"format": "libdcp-shard", "version": 1, "step": manifest["step"],
                "rank": rank, "world": manifest["world"], "file": entry["file"],
                "pieces": [{"key": k, **p} for k, p in zip(keys, pieces)]}  # fmt: skip
        data = json.dumps(root).encode()
        os.remove(os.path.join(path, entry["manifest"]))
        entry["manifest"] = entry["manifest"].replace(".pieces", ".json")
        entry["manifest_size_bytes"] = len(data)
        entry["manifest_crc64"] = read_dcp.crc64(data)
        with open(os.path.join(path, entry["manifest"]), "wb") as file:
            file.write(data)
    manifest["requires"].remove("piece-tables")
    seal(path, manifest)


# What a hostile or mistaken writer may say, with digests that hold: m is manifest.json,
# s the shard manifests, p the pieces of shard 0. The state is cut by rows at world 3.
def piece_of(pieces, key):
    return next(piece for piece in pieces if "box" in piece and piece["key"] == key)


def set_box(pieces, offset, size):
    piece_of(pieces, "wte.weight")["box"] = [offset, size]


def grid_of(manifest):
    return next(t["grid"] for t in manifest["tensors"] if "grid" in t)


def whole_of(manifest):
    return next(t for t in manifest["tensors"] if "rank" in t)


FORGERIES = {
    "version of the future": lambda m, s, p: m.update(version=2),
    "version as text": lambda m, s, p: m.update(version="1"),
    "unknown feature": lambda m, s, p: m.update(requires=["parity"]),
    "no requires": lambda m, s, p: m.pop("requires"),
    "requires is no list": lambda m, s, p: m.update(requires="none"),
    "world 0": lambda m, s, p: m.update(world=0, shards=[]),
    "world 2 of 3": lambda m, s, p: m.update(world=2),
    "a shard too few": lambda m, s, p: m["shards"].pop(),
    "a shard twice": lambda m, s, p: m["shards"].__setitem__(1, m["shards"][0]),
    "shards swapped": lambda m, s, p: m["shards"].reverse(),
    "shard of another rank": lambda m, s, p: m["shards"][0].update(rank=1),
    "shard that climbs": lambda m, s, p: m["shards"][0].update(file="../x"),
    "shard without size": lambda m, s, p: m["shards"][0].pop("size_bytes"),
    "shard of negative size": lambda m, s, p: m["shards"][0].update(size_bytes=-1),
    "shard a byte longer": lambda m, s, p: m["shards"][0].update(
        size_bytes=m["shards"][0]["size_bytes"] + 1),
    "other manifest of a shard": lambda m, s, p: m["shards"][0].update(
        manifest=m["shards"][1]["manifest"]),
    "digest in capitals": lambda m, s, p: m["shards"][0].update(
        manifest_crc64=m["shards"][0]["manifest_crc64"].upper() + "A"),
    "two tensors of a name": lambda m, s, p: m["tensors"][0].update(name="one"),
    "tensor without a name": lambda m, s, p: m["tensors"][0].update(name=""),
    "unknown dtype": lambda m, s, p: m["tensors"][0].update(dtype="F7"),
    "dtype in torch's words": lambda m, s, p: m["tensors"][0].update(dtype="bfloat16"),
    "unknown role": lambda m, s, p: m["tensors"][0].update(role="hero"),
    "nine dimensions": lambda m, s, p: m["tensors"][7].update(shape=[0] * 9),
    "negative dimension": lambda m, s, p: m["tensors"][7].update(shape=[0, -1]),
    "dimension that is a text": lambda m, s, p: m["tensors"][7].update(shape=["0"]),
    "dimension that is a fraction": lambda m, s, p: m["tensors"][7].update(shape=[0.0]),
    "2^60 elements": lambda m, s, p: m["tensors"][0].update(shape=[1 << 30, 1 << 30]),
    "size that overflows": lambda m, s, p: m["tensors"][0].update(shape=[1 << 62] * 2),
    "another shape": lambda m, s, p: m["tensors"][0].update(shape=[67, 13]),
    "no fingerprint": lambda m, s, p: m["tensors"][0].pop("crc64"),
    "another fingerprint": lambda m, s, p: m["tensors"][0].update(crc64="0" * 16),
    "file that climbs": lambda m, s, p: m["files"].append(
        {"name": "../latest", "size_bytes": 14, "crc64": "0" * 16}),
    "file that is missing": lambda m, s, p: m["files"].append(
        {"name": "gone", "size_bytes": 0, "crc64": "0" * 16}),
    "piece of no tensor": lambda m, s, p: p[0].update(tensor=99),
    "piece of tensor -1": lambda m, s, p: p[0].update(tensor=-1),
    "unknown codec": lambda m, s, p: p[0].update(codec="lzma"),
    "piece outside its shard": lambda m, s, p: p[0].update(offset=1 << 40),
    "offset that overflows": lambda m, s, p: p[0].update(offset=(1 << 63) - 1),
    "piece a byte longer": lambda m, s, p: p[0].update(size_bytes=p[0]["size_bytes"] + 1),
    "block digest too few": lambda m, s, p: p[0].update(xxh3=""),
    "digest of a piece differs": lambda m, s, p: p[0].update(crc64="0" * 16),
    "piece is missing": lambda m, s, p: p.remove(piece_of(p, "wte.weight")),
    "box outside its tensor": lambda m, s, p: set_box(p, [45, 0], [23, 12]),
    "box that overflows": lambda m, s, p: set_box(p, [(1 << 63) - 1, 0], [23, 12]),
    "box of three dimensions": lambda m, s, p: set_box(p, [0, 0, 0], [23, 12, 1]),
    "box of another size": lambda m, s, p: set_box(p, [0, 0], [22, 12]),
    "box elsewhere: overlap and hole": lambda m, s, p: set_box(p, [1, 0], [23, 12]),
    "box and flat": lambda m, s, p: piece_of(p, "wte.weight").update(flat=[0, 276]),
    "flat range backwards": lambda m, s, p: p[0].update(flat=[2, 1]),
    "flat range of three": lambda m, s, p: p[0].update(flat=[0, 1, 2]),
    "step -5": lambda m, s, p: m.update(step=-5),
    "shard manifest of another step": lambda m, s, p: s[0].update(step=6),
    "shard manifest without a world": lambda m, s, p: s[0].pop("world"),
    "piece without a key": lambda m, s, p: p[0].pop("key"),
    "grid of other cells": lambda m, s, p: grid_of(m).update(
        lead=[n + 1 for n in grid_of(m)["lead"]]),
    "grid of smaller cells": lambda m, s, p: grid_of(m).update(
        size=[max(1, n // 2) for n in grid_of(m)["size"]]),
    "grid of other ranks": lambda m, s, p: grid_of(m).update(
        first=2, stride=[-n for n in grid_of(m)["stride"]]),
    "grid of a rank that is not": lambda m, s, p: grid_of(m).update(first=1),
    "grid of no cells": lambda m, s, p: grid_of(m).update(size=[0, 0]),
    "grid of another kind": lambda m, s, p: grid_of(m).update(cut="rows"),
    "grid without a rule": lambda m, s, p: grid_of(m).pop("stride"),
    "grid with a rank too few": lambda m, s, p: grid_of(m).update(ranks=[0, 1]),
    "whole on another rank": lambda m, s, p: whole_of(m).update(
        rank=(whole_of(m)["rank"] + 1) % 3),
    "whole on no rank": lambda m, s, p: whole_of(m).update(rank=3),
    "whole and a grid": lambda m, s, p: whole_of(m).update(grid=grid_of(m)),
    "pieces is no list": lambda m, s, p: s[0].update(pieces={}),
}

# What a reader must not mind.
HARMLESS = {
    "nothing": lambda m, s, p: None,
    "unknown members": lambda m, s, p: (
        m.update(future={"a": [1]}), m["tensors"][0].update(colour="red"),
        p[0].update(note="x"), m["shards"][0].update(host="a")),
    "a replica": lambda m, s, p: (
        p.append(dict(p[0])), m["tensors"][p[0]["tensor"]].pop("rank", None),
        m["tensors"][p[0]["tensor"]].pop("grid", None)),
    "tensors that do not tell where they are": lambda m, s, p: [
        (tensor.pop("rank", None), tensor.pop("grid", None)) for tensor in m["tensors"]],
    "ranks one by one": lambda m, s, p: [
        (tensor["grid"].update(ranks=[0, 1, 2]), tensor["grid"].pop("first"),
         tensor["grid"].pop("stride")) for tensor in m["tensors"] if "grid" in tensor],
    "an unusual order of members": lambda m, s, p: [
        piece.update(tensor=piece.pop("tensor")) for piece in p],
}  # fmt: skip


class Forge(Folder):
    """Changes what the manifests say and seals them again."""

    def setUp(self):
        super().setUp()
        self.path, _ = write_step(self.folder, "dim0", 3)
        without_tables(self.path)
        with open(os.path.join(self.path, "manifest.json"), encoding="utf-8") as file:
            self.manifest = json.load(file)
        self.shards = []
        for entry in self.manifest["shards"]:
            path = os.path.join(self.path, entry["manifest"])
            with open(path, encoding="utf-8") as file:
                self.shards.append(json.load(file))

    def forge(self, name, change):
        """A copy of the step in which `change` was made and every digest holds."""
        manifest, shards = copy.deepcopy(self.manifest), copy.deepcopy(self.shards)
        path = os.path.join(self.folder, "forged", STEP)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.path, path)
        entries = list(manifest["shards"])
        change_pieces = json.dumps(shards)
        change(manifest, shards, shards[0]["pieces"])
        if json.dumps(shards) != change_pieces:
            for entry, shard in zip(entries, shards):
                data = json.dumps(shard).encode()
                with open(os.path.join(path, entry["manifest"]), "wb") as file:
                    file.write(data)
                entry["manifest_size_bytes"] = len(data)
                entry["manifest_crc64"] = read_dcp.crc64(data)
        seal(path, manifest)
        return path

    def test_forgeries_are_refused_by_both(self):
        for name, change in FORGERIES.items():
            with self.subTest(name):
                path = self.forge(name, change)
                reader = run(sys.executable, READER, path)
                self.assertEqual(reader.returncode, 1, reader.stdout)
                self.assertTrue(reader.stderr.startswith("refused: "), reader.stderr)
                inspect = run(INSPECT, "verify", path)
                self.assertIn(inspect.returncode, (4, 8), inspect.stdout + inspect.stderr)

    def test_another_key_is_found(self):
        path = self.forge("another key", lambda m, s, p: p[0].update(key="other"))
        inspect = run(INSPECT, "verify", path)
        self.assertEqual(inspect.returncode, 4, inspect.stdout)
        self.assertIn("gives a piece another key", inspect.stdout + inspect.stderr)

    def test_harmless_changes_are_not(self):
        for name, change in HARMLESS.items():
            with self.subTest(name):
                path = self.forge(name, change)
                reader = run(sys.executable, READER, path)
                self.assertEqual(reader.returncode, 0, reader.stderr)
                inspect = run(INSPECT, "verify", path)
                self.assertEqual(inspect.returncode, 0, inspect.stdout + inspect.stderr)

    def test_bytes_that_changed_are_found_by_both(self):
        def flip(path):
            with open(path, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)[0]
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last ^ 1]))

        for name in sorted(os.listdir(self.path)):
            with self.subTest(name):
                path = self.forge(name, HARMLESS["nothing"])
                flip(os.path.join(path, name))
                self.assertEqual(run(sys.executable, READER, path).returncode, 1)
                self.assertEqual(run(INSPECT, "verify", path).returncode, 4)


if __name__ == "__main__":
    for program in (WRITER, INSPECT):
        if not os.path.exists(program):
            sys.exit(f"{program} is not built")
    unittest.main(verbosity=1)
