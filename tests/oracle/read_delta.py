#!/usr/bin/env python3
"""Writes out the folder that a delta stands for. Written from docs/FORMAT.md §14 alone, in
the standard library of Python and the program zstd; slow. What it gives has the CRC-64 of
the paper; XXH3, which finds damage block by block, is left to others."""

import os
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import read_dcp  # noqa: E402
from read_dcp import Refused, member, require  # noqa: E402

BLOCK = 1 << 20
HEAD, ENTRY, TAIL = 16, 24, 16
OWN = {"delta.json", "manifest.json.sig"}  # of the folder, not of what it stands for
UNCHANGED, SPARSE, PLANES, RAW = range(4)


def unzstd(data, size, file):
    done = subprocess.run(["zstd", "-dcq"], input=data, capture_output=True)
    good = done.returncode == 0 and len(done.stdout) == size
    require(good, file, "a frame does not decompress to its size")
    return done.stdout


def join(planes, width):
    """Elements from their byte planes."""
    rows = len(planes) // width
    out = bytearray(len(planes))
    for byte in range(width):
        out[byte::width] = planes[byte * rows : (byte + 1) * rows]
    return out


def numbers(data, count, file):
    """Numbers in groups of seven bits."""
    at = 0
    for _ in range(count):
        value = shift = 0
        while True:
            require(at < len(data) and shift <= 14, file, "a number has no end")
            value |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        yield value
    require(at == len(data), file, "there are more numbers")


def sparse(stored, width, size, file):
    require(len(stored) >= 12, file, "a block is too short")
    count, n_gaps, n_frame = struct.unpack_from("<3I", stored)
    gaps = unzstd(stored[12 : 12 + n_frame], n_gaps, file)
    masks = join(unzstd(stored[12 + n_frame :], count * width, file), width)
    mask, element = bytearray(size), 0
    for i, gap in enumerate(numbers(gaps, count, file)):
        element += gap
        require((element + 1) * width <= size, file, "an element outside its block")
        mask[element * width : (element + 1) * width] = masks[i * width : (i + 1) * width]
        element += 1
    return mask


def mask_of(method, width, stored, size, file):
    coded = method in (SPARSE, PLANES)
    good = width in (1, 2, 4, 8) and size % width == 0 if coded else width == 0
    require(method <= RAW and good, file, f"method {method}, width {width}")
    if method == UNCHANGED:
        require(not stored, file, "bytes of a block that did not change")
        return bytes(size)
    if method == RAW:
        require(len(stored) == size, file, "a raw block of another size")
        return stored
    require(0 < len(stored) < size, file, "a stored block of no use")
    if method == SPARSE:
        return sparse(stored, width, size, file)
    return join(unzstd(stored, size, file), width)


def exclusive_or(a, b):
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).to_bytes(
        len(a), "little")


def read_bytes(path):
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error


class Delta:
    """A folder as it is, or as a delta stands for it."""

    def __init__(self, folder, base=None):
        self.folder, self.chain, self.number, self.files = folder, 0, 0, {}
        path = os.path.join(folder, "delta.json")
        if not os.path.exists(path):
            return
        data = read_bytes(path)
        tail = b',\n"digest":"%s"}\n' % read_dcp.crc64(data[:-31]).encode()
        require(data[-31:] == tail, path, "its digest differs")
        root = read_dcp.parse(data, path)
        head = tuple(map(root.get, ("format", "version", "requires")))
        require(head == ("libdcp-delta", 1, []), path, f"unsupported: {head}")
        self.chain = member(root, "chain", int, path)
        require(1 <= self.chain <= 64, path, "its chain")
        self.number = root.get("number", 0)
        require(type(self.number) is int and self.number >= 0, path, "its number")
        told = member(root, "base", dict, path)
        base = base or os.path.join(folder, member(told, "path", str, path))
        self.base = Delta(base)
        require(self.base.chain == self.chain - 1, path, "another base")
        self.of_base = self._entries(told, path)
        self.files = self._entries(root, path)
        self._check_base(path)

    @staticmethod
    def _entries(root, path):
        found = {}
        for entry in member(root, "files", list, path):
            name = member(entry, "name", str, path)
            parts = name.split("/")
            good = not {"", ".", ".."} & set(parts) and parts[-1] not in OWN
            good = good and not name.endswith(".delta")
            good = good and all(name > before for before in found)
            require(good, path, f"a file {name}")
            member(entry, "size_bytes", int, path)
            member(entry, "crc64", str, path)
            found[name] = entry
        return found

    def _check_base(self, path):
        for name, entry in self.of_base.items():
            require(self.base.size(name) == entry["size_bytes"], path, f"the base's {name}")
            there = self.base.files.get(name)
            same = there is None or there["crc64"] == entry["crc64"]
            require(same, path, f"the base has another {name}")
            if name == "manifest.json" and not there:
                crc = read_dcp.crc64(self.base.read(name))
                require(crc == entry["crc64"], path, "the base has another manifest")

    def size(self, name):
        """Of a file, or None."""
        if self.chain:
            return self.files[name]["size_bytes"] if name in self.files else None
        path = os.path.join(self.folder, name)
        return os.path.getsize(path) if os.path.isfile(path) else None

    def read(self, name):
        """All of a file, with the digest that the delta says."""
        if not self.chain:
            return read_bytes(os.path.join(self.folder, name))
        entry = self.files[name]
        path = os.path.join(self.folder, name)
        data = self._decode(name, entry) if "delta" in entry else read_bytes(path)
        require(len(data) == entry["size_bytes"], path, "its size")
        require(read_dcp.crc64(data) == entry["crc64"], path, "its digest differs")
        return data

    def _decode(self, name, entry):
        file, size = os.path.join(self.folder, name + ".delta"), entry["size_bytes"]
        told = member(entry, "delta", dict, file)
        data = read_bytes(file)
        n_blocks = (size + BLOCK - 1) // BLOCK
        begin = len(data) - TAIL - n_blocks * ENTRY
        require(len(data) == told.get("size_bytes") and begin >= HEAD, file, "its size")
        require(data[:HEAD] == b"dcpdelta" + struct.pack("<Q", 1), file, "its head")
        crc = read_dcp.crc64(data[begin:-8])
        good = data[-16:] == struct.pack("<QQ", size, int(crc, 16))
        require(good and crc == told.get("table_crc64"), file, "its table")
        base = self.base.read(name) if name in self.of_base else b""
        base = base[:size].ljust(size, b"\0")
        out, at = bytearray(), HEAD
        for i in range(n_blocks):
            stored_n, method, width, zero = struct.unpack_from("<IBBH", data, begin + i * ENTRY)
            n = min(BLOCK, size - i * BLOCK)
            require(zero == 0 and at + stored_n <= begin, file, "an entry of its table")
            mask = mask_of(method, width, data[at : at + stored_n], n, file)
            out += exclusive_or(base[i * BLOCK : i * BLOCK + n], mask)
            at += stored_n
        require(at == begin, file, "bytes behind its blocks")
        return bytes(out)


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: read_delta.py DELTA OUT [BASE]")
    try:
        delta = Delta(sys.argv[1], *sys.argv[3:])
        require(delta.chain, sys.argv[1], "is no delta")
        for name in delta.files:
            data = delta.read(name)
            path = os.path.join(sys.argv[2], name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as stream:
                stream.write(data)
    except Refused as error:
        sys.exit(f"refused: {error}")


if __name__ == "__main__":
    main()
