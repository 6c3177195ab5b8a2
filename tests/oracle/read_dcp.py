#!/usr/bin/env python3
"""Reads a native step by docs/FORMAT.md alone, with nothing but the standard library.

Written from that paper and kept small: it is what the paper is tested with, and what is
left to read a checkpoint with when all else is gone. Steps with a codec are refused by
name, unless there is a decoder: those of read_codecs.py need zstd. As a program it prints
name, dtype, shape and fingerprint of every tensor.
"""

import itertools
import json
import os
import sys

BLOCK_BYTES = 1 << 20
MAX_NESTING = 64
TYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8,
    "C128": 16,
}  # fmt: skip
CODECS = ("none", "zstd", "planes", "split")
FEATURES = ("complex128", "piece-tables")
ROLES = ("model", "buffer", "master", "exp_avg", "exp_avg_sq", "optim", "other")


class Refused(Exception):
    """Why a step is not read: the message names the file."""


def require(condition, file, why):
    if not condition:
        raise Refused(f"{file}: {why}")


def make_crc_table():
    table = []
    for register in range(256):
        for _ in range(8):
            register = register >> 1 ^ (0xC96C5795D7870F42 if register & 1 else 0)
        table.append(register)
    return table


CRC_TABLE = make_crc_table()


def crc64(data):
    """CRC-64/XZ (paper, 2), as 16 hexadecimal digits."""
    register = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        register = register >> 8 ^ CRC_TABLE[register & 0xFF ^ byte]
    return f"{register ^ 0xFFFFFFFFFFFFFFFF:016x}"


def parse(data, file):
    def unique(pairs):
        require(len({key for key, _ in pairs}) == len(pairs), file, "a member twice")
        return dict(pairs)

    def refuse(number):
        require(False, file, f"{number} is no JSON")

    try:
        value = json.loads(data, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{file}: {error}") from error
    require(nesting(value) <= MAX_NESTING, file, "nested too deep")
    return value


def nesting(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(nesting, value), default=0) if isinstance(value, list) else 0


def is_count(value):
    return type(value) is int and 0 <= value < 1 << 63


def are_counts(value):
    return isinstance(value, list) and all(map(is_count, value))


def member(entry, key, kind, file):
    """A member of an object; a whole number is one from 0 on."""
    value = entry.get(key) if isinstance(entry, dict) else None
    good = is_count(value) if kind is int else isinstance(value, kind)
    require(good, file, f"'{key}' is missing or of another type")
    return value


def product(numbers):
    result = 1
    for number in numbers:
        result *= number
    return result


class Table:
    """Numbers of a table of pieces, one behind the other."""

    def __init__(self, data, file):
        self.data, self.file, self.at = data, file, 0

    def take(self, n):
        require(n <= len(self.data) - self.at, self.file, "it ends too early")
        self.at += n
        return self.data[self.at - n : self.at]

    def le(self, n):
        return int.from_bytes(self.take(n), "little")

    def varint(self):
        number, shift, byte = 0, 0, 0x80
        while byte & 0x80:
            byte = self.le(1)
            number |= (byte & 0x7F) << shift
            shift += 7
        require(number < 1 << 63, self.file, "a number is too large")
        return number


class Step:
    """A step whose manifests are checked. Bytes of tensors are checked when read. Decoders
    are functions by codec, from a stored block, its raw size and the bytes of an element."""

    def __init__(self, folder, decoders=None):
        self.folder, self.decoders = folder, decoders or {}
        data = self._bytes("manifest.json")
        tail = b',\n"digest":"%s"}\n' % crc64(data[:-31]).encode()
        require(data[-31:] == tail, "manifest.json", "its digest differs")
        self.manifest = parse(data, "manifest.json")
        for key, known in (("format", "libdcp"), ("version", 1)):
            found = self.manifest.get(key)
            require(found == known, "manifest.json", f"unsupported {key}: {found}")
        requires = member(self.manifest, "requires", list, "manifest.json")
        for feature in requires:
            require(feature in FEATURES, "manifest.json", f"unsupported feature {feature}")
        self.tables = "piece-tables" in requires
        self.world = member(self.manifest, "world", int, "manifest.json")
        number = self.manifest.get("step")
        require(is_count(number) or number == -1, "manifest.json", f"step {number}")
        self.tensors = member(self.manifest, "tensors", list, "manifest.json")
        self.objects = member(self.manifest, "objects", list, "manifest.json")
        shards = member(self.manifest, "shards", list, "manifest.json")
        require(len(shards) == self.world, "manifest.json", "not a shard for each rank")
        self._check_tensors()
        for file in member(self.manifest, "files", list, "manifest.json"):
            self._check_file(file, "name", "size_bytes")
        self.pieces = {index: [] for index in range(len(self.tensors))}
        self.shards = []
        for rank, shard in enumerate(shards):
            self._index_shard(rank, shard)
        for index, tensor in enumerate(self.tensors):
            if "rank" in tensor or "grid" in tensor:
                self._check_grid(index, tensor)

    def _bytes(self, file):
        try:
            with open(os.path.join(self.folder, file), "rb") as stream:
                return stream.read()
        except OSError as error:
            raise Refused(f"{file}: {error.strerror}") from error

    def _check_file(self, entry, key, size_key):
        file = member(entry, key, str, "manifest.json")
        parts = file.split("/")
        require(not {"", ".", ".."} & set(parts), "manifest.json", f"no file: {file}")
        path = os.path.join(self.folder, file)
        require(os.path.isfile(path), file, "is missing")
        size = member(entry, size_key, int, "manifest.json")
        require(os.path.getsize(path) == size, file, "has another size")
        return file

    def _check_tensors(self):
        names = [member(entry, "name", str, "manifest.json") for entry in self.tensors]
        require(len(set(names)) == len(names) and "" not in names, "manifest.json",
                "a tensor's name is empty or not unique")  # fmt: skip
        for name, entry in zip(names, self.tensors):
            shape = member(entry, "shape", list, "manifest.json")
            good = len(shape) <= 8 and are_counts(shape) and product(shape) < 1 << 59
            good = good and member(entry, "dtype", str, "manifest.json") in TYPE_BYTES
            good = good and member(entry, "role", str, "manifest.json") in ROLES
            good = good and len(member(entry, "crc64", str, "manifest.json")) == 16
            require(good, "manifest.json", f"tensor {name} is not valid")

    def _index_shard(self, rank, entry):
        stem = f"shard-{rank:05}-of-{self.world:05}"
        names = (entry.get("rank"), entry.get("file"), entry.get("manifest"))
        manifest = f"{stem}.pieces" if self.tables else f"{stem}.json"
        require(names == (rank, f"{stem}.safetensors", manifest), "manifest.json",
                f"shard {rank} has other names")  # fmt: skip
        shard = self._check_file(entry, "file", "size_bytes")
        file = self._check_file(entry, "manifest", "manifest_size_bytes")
        data = self._bytes(file)
        require(crc64(data) == entry.get("manifest_crc64"), file, "its digest differs")
        if self.tables:
            pieces = self._table(data, rank, entry["size_bytes"], file)
        else:
            pieces = self._json(parse(data, file), rank, shard, file)
        self.shards.append(pieces)
        for piece in pieces:
            self._index_piece(piece, shard, entry["size_bytes"], file)

    def _table(self, data, rank, shard_bytes, file):
        """The pieces of a table, told as a shard manifest in JSON tells them."""
        table, pieces = Table(data, file), []
        require(table.take(8) == b"dcppiece" and table.le(4) == 1, file, "is no table")
        head = (table.le(4), table.le(4), table.le(8))
        step = self.manifest["step"] % (1 << 64)
        require(head == (rank, self.world, step), file, "it is of another rank or step")
        offset, n = table.le(8), table.le(8)
        for _ in range(n):
            index, how = table.varint(), table.le(1)
            require(index < len(self.tensors), file, "a piece of no tensor")
            require(how & 15 <= 2 and how >> 4 < len(CODECS), file, "an unknown piece")
            shape = self.tensors[index]["shape"]
            piece = {"tensor": index, "offset": offset, "codec": CODECS[how >> 4]}
            elements = product(shape)
            if how & 15 == 1:
                begin, elements = table.varint(), table.varint()
                piece["flat"] = [begin, begin + elements]
            elif how & 15 == 2:
                dims = [(table.varint(), table.varint()) for _ in shape]
                piece["box"] = [[o for o, _ in dims], [s for _, s in dims]]
                elements = product(piece["box"][1])
            piece["crc64"] = f"{table.le(8):016x}"
            raw = elements * TYPE_BYTES[self.tensors[index]["dtype"]]
            require(-(-raw // BLOCK_BYTES) * 8 <= len(data), file, "it ends too early")
            digests, stored = [], []
            for at in range(0, raw, BLOCK_BYTES):
                digests.append(f"{table.le(8):016x}")
                size = min(BLOCK_BYTES, raw - at)
                stored.append(size if how >> 4 == 0 else table.varint())
            piece.update(xxh3="".join(digests), size_bytes=sum(stored), stored=stored)
            offset += piece["size_bytes"]
            pieces.append(piece)
        whole = table.at == len(data) and offset == shard_bytes
        require(whole, file, "it does not end where its shard does")
        return pieces

    def _json(self, root, rank, shard, file):
        head = ("libdcp-shard", 1, self.manifest["step"], rank, self.world, shard)
        found = tuple(map(root.get, ("format", "version", "step", "rank", "world", "file")))
        require(found == head, file, "it is of another step, rank or world")
        for piece in member(root, "pieces", list, file):
            member(piece, "key", str, file)
        return root["pieces"]

    def _index_piece(self, piece, shard, shard_bytes, file):
        index = member(piece, "tensor", int, file)
        require(index < len(self.tensors), file, "a piece of no tensor")
        codec = member(piece, "codec", str, file)
        known = codec == "none" or codec in self.decoders
        require(known, file, f"codec {codec} is not supported")
        tensor = self.tensors[index]
        runs = list(self._runs(piece, tensor["shape"], file))
        elements = sum(end - begin for begin, end in runs)
        size = member(piece, "size_bytes", int, file)
        offset = member(piece, "offset", int, file)
        raw = elements * TYPE_BYTES[tensor["dtype"]]
        blocks = [min(BLOCK_BYTES, raw - at) for at in range(0, raw, BLOCK_BYTES)]
        stored = blocks if codec == "none" else member(piece, "stored", list, file)
        good = are_counts(stored) and len(stored) == len(blocks)
        good = good and all(0 < s <= b for s, b in zip(stored, blocks))
        require(good and size == sum(stored), file, "a piece's size")
        require(offset + size <= shard_bytes, file, "a piece outside its shard")
        digests = member(piece, "xxh3", str, file)
        require(len(digests) == 16 * len(blocks), file, "the number of blocks")
        self.pieces[index].append((shard, piece, list(zip(stored, blocks)), runs))

    def _check_grid(self, index, tensor):
        """The pieces are where the tensor says, and there are no others."""
        shape, name = tensor["shape"], tensor["name"]
        grid = tensor.get("grid")
        if grid is None:
            grid = {"cut": "flat", "lead": [product(shape)], "size": [product(shape)],
                    "ranks": [tensor["rank"]]}  # fmt: skip
        extent = [product(shape)] if grid.get("cut") == "flat" else shape
        keys = ("lead", "size") + (() if "ranks" in grid else ("stride",))
        good = grid.get("cut") in ("flat", "box") and 0 not in extent
        for key in keys:
            numbers = grid.get(key)
            good = good and isinstance(numbers, list) and len(numbers) == len(extent)
            good = good and all(type(n) is int and (n > 0 or key == "stride") for n in numbers)
        good = good and ("ranks" in grid or type(grid.get("first")) is int)
        require(good, "manifest.json", f"the grid of tensor {name}")
        starts = [[0, *range(lead, n, size)]
                  for n, lead, size in zip(extent, grid["lead"], grid["size"])]  # fmt: skip
        cells = product(map(len, starts))
        require(cells <= 1 << 24, "manifest.json", f"the cells of tensor {name}")
        require("ranks" not in grid or len(grid["ranks"]) == cells, "manifest.json",
                f"the ranks of tensor {name}")  # fmt: skip
        told = []
        for number, cell in enumerate(itertools.product(*map(enumerate, starts))):
            at = [position for position, _ in cell]
            rank = (grid["ranks"][number] if "ranks" in grid else grid["first"] + sum(
                i * step for i, step in zip(at, grid["stride"])))  # fmt: skip
            ends = [(*s, n)[i + 1] for i, s, n in zip(at, starts, extent)]
            piece = {"flat": [cell[0][1], ends[0]]}
            if grid["cut"] == "box":
                offset = [begin for _, begin in cell]
                piece = {"box": [offset, [e - o for e, o in zip(ends, offset)]]}
            shard = f"shard-{rank:05}-of-{self.world:05}.safetensors"
            told.append((shard, list(self._runs(piece, shape, "manifest.json"))))
        found = [(shard, runs) for shard, _, _, runs in self.pieces[index]]
        merged = sorted((shard, self._join(runs)) for shard, runs in found)
        told = sorted((shard, self._join(runs)) for shard, runs in told)
        require(merged == told, "manifest.json", f"the grid of tensor {name} is not so")

    @staticmethod
    def _join(runs):
        """Intervals that touch as one."""
        joined = []
        for begin, end in runs:
            if joined and joined[-1][1] == begin:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((begin, end))
        return joined

    @staticmethod
    def _runs(piece, shape, file):
        """Intervals of the flattened tensor, in the order of the piece's bytes."""
        total = product(shape)
        require(not ("flat" in piece and "box" in piece), file, "flat and box")
        if "box" not in piece:
            flat = piece.get("flat", [0, total])
            require(are_counts(flat) and len(flat) == 2, file, "a flat range")
            require(flat[0] <= flat[1] <= total, file, "a piece outside its tensor")
            yield tuple(flat)
            return
        box = member(piece, "box", list, file)
        good = len(box) == 2 and all(map(are_counts, box))
        good = good and len(box[0]) == len(box[1]) == len(shape)
        require(good, file, "a box is not one of its tensor")
        offset, size = box
        for o, n, limit in zip(offset, size, shape):
            require(o + n <= limit, file, "a piece outside its tensor")
        row = size[-1] if size else 1
        for number in range(product(size[:-1]) if row else 0):
            index = []
            for o, n in zip(reversed(offset[:-1]), reversed(size[:-1])):
                number, rest = divmod(number, n)
                index.insert(0, o + rest)
            flat = 0
            for position, limit in zip(index + offset[-1:], shape):
                flat = flat * limit + position
            yield flat, flat + row

    def read(self, index):
        """The bytes of a tensor in row-major order, held against every digest."""
        tensor = self.tensors[index]
        width = TYPE_BYTES[tensor["dtype"]]
        data = bytearray(product(tensor["shape"]) * width)
        seen, held = set(), []
        for shard, piece, blocks, runs in self.pieces[index]:
            decode, raw = self.decoders.get(piece["codec"]), b""
            with open(os.path.join(self.folder, shard), "rb") as stream:
                stream.seek(piece["offset"])
                for stored, size in blocks:
                    block = stream.read(stored)
                    raw += block if stored == size else decode(block, size, width)
            require(crc64(raw) == piece["crc64"], shard, f"{tensor['name']} is corrupt")
            if tuple(runs) in seen:
                continue  # a replica
            seen.add(tuple(runs))
            held += runs
            at = 0
            for begin, end in runs:
                n = (end - begin) * width
                data[begin * width : begin * width + n] = raw[at : at + n]
                at += n
        self._check_held(held, len(data) // width, tensor["name"])
        fingerprint = crc64(data)
        require(fingerprint == tensor["crc64"], "manifest.json", f"{tensor['name']} has "
                f"fingerprint {fingerprint}")  # fmt: skip
        return bytes(data), fingerprint

    @staticmethod
    def _check_held(held, total, name):
        at = 0
        for begin, end in sorted(run for run in held if run[0] < run[1]):
            require(begin == at, name, f"element {min(begin, at)} is not held once")
            at = end
        require(at == total, name, f"element {at} is in no piece")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: read_dcp.py STEP")
    try:
        step = Step(sys.argv[1])
        for index, tensor in enumerate(step.tensors):
            _, fingerprint = step.read(index)
            shape = ",".join(map(str, tensor["shape"]))
            print(f"{tensor['name']}\t{tensor['dtype']}\t[{shape}]\t{fingerprint}")
    except Refused as error:
        sys.exit(f"refused: {error}")


if __name__ == "__main__":
    main()
