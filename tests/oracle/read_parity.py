#!/usr/bin/env python3
"""Rebuilds the files of a step from its parity. Written from docs/FORMAT.md §11 alone, in
the standard library of Python; slow, and only for files that are gone, since telling
damaged ones needs XXH3."""

import json
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import read_dcp  # noqa: E402

UNIT = 65536
GROUP = 128


def multiply(a, b):
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = a << 1 ^ (0x11D if a & 0x80 else 0)
        b >>= 1
    return product


TABLES = [bytes(multiply(a, b) for b in range(256)) for a in range(256)]
INVERSE = [0] + [row.index(1) for row in TABLES[1:]]


def add(units):
    """The sum of units of one length."""
    total = 0
    for unit in units:
        total ^= int.from_bytes(unit, "little")
    return total.to_bytes(UNIT, "little")


def scaled(factor, unit):
    return unit.translate(TABLES[factor])


def solve(matrix, units):
    """The unknowns of a square system, by elimination: rows of numbers, units."""
    n = len(matrix)
    rows = [list(row) for row in matrix]
    right = list(units)
    for column in range(n):
        pivot = next(r for r in range(column, n) if rows[r][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        right[column], right[pivot] = right[pivot], right[column]
        inverse = INVERSE[rows[column][column]]
        rows[column] = [TABLES[inverse][x] for x in rows[column]]
        right[column] = scaled(inverse, right[column])
        for r in range(n):
            factor = rows[r][column]
            if r != column and factor:
                rows[r] = [x ^ TABLES[factor][y] for x, y in zip(rows[r], rows[column])]
                right[r] = add([right[r], scaled(factor, right[column])])
    return right


class ParityFile:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        size, digest = struct.unpack_from("<QQ", self.data)
        body = self.data[16 : 16 + size]
        assert (16 + size) % 4096 == 0 and int(read_dcp.crc64(body), 16) == digest
        self.records = 16 + size
        self.description = json.loads(body)
        length, digest = struct.unpack_from("<QQ", self.data, len(self.data) - 16)
        self.manifest = self.data[len(self.data) - 16 - length : len(self.data) - 16]
        assert int(read_dcp.crc64(self.manifest), 16) == digest

    def unit(self, stripe, columns):
        rows = self.description["rows"]
        record = UNIT + 8 * (columns + rows + 1)
        begin = self.records + stripe * record
        return self.data[begin : begin + UNIT]


def units_of(size):
    return (size + UNIT - 1) // UNIT


def read_column(folder, column):
    """All units of a column, or None when a file of it is gone."""
    units = []
    for name, size, _ in column:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            return None
        with open(path, "rb") as file:
            data = file.read()
        assert len(data) == size
        parts = (data[at : at + UNIT] for at in range(0, size, UNIT))
        units += [part.ljust(UNIT, b"\0") for part in parts]
    return units


def cut(column, units):
    """The files of a column from its units, held against their digests."""
    files, at = {}, 0
    for name, size, crc in column:
        n = units_of(size)
        files[name] = b"".join(units[at : at + n])[:size]
        assert read_dcp.crc64(files[name]) == crc, name
        at += n
    return files


def rebuild(folder):
    """Name to bytes of every file of a column that is gone, and of the manifest."""
    there = {}
    for name in sorted(os.listdir(folder)):
        if name.startswith("parity-"):
            there[int(name.split("-")[1])] = ParityFile(os.path.join(folder, name))
    any_file = next(iter(there.values()))
    description, rows = any_file.description, any_file.description["rows"]
    columns, found = description["columns"], {"manifest.json": any_file.manifest}
    n_groups = (len(columns) + GROUP - 1) // GROUP
    for group in range(n_groups):
        first = group * len(columns) // n_groups
        members = columns[first : (group + 1) * len(columns) // n_groups]
        k = len(members)
        data = [read_column(folder, column) for column in members]
        lost = [c for c in range(k) if data[c] is None]
        use = [row for row in range(rows) if group * rows + row in there][: len(lost)]
        assert len(use) == len(lost), "more is lost than there is parity for"
        matrix = [[INVERSE[(k + row) ^ c] for c in lost] for row in use]
        stripes = max(sum(units_of(f[1]) for f in column) for column in members)
        rebuilt = [[] for _ in lost]
        for stripe in range(stripes):
            sums = []
            for row in use:
                parts = [there[group * rows + row].unit(stripe, k)]
                parts += [
                    scaled(INVERSE[(k + row) ^ c], data[c][stripe])
                    for c in range(k)
                    if data[c] is not None and stripe < len(data[c])
                ]
                sums.append(add(parts))
            for i, unit in enumerate(solve(matrix, sums) if lost else []):
                rebuilt[i].append(unit)
        for i, c in enumerate(lost):
            found.update(cut(members[c], rebuilt[i]))
    return found


if __name__ == "__main__":
    for name, data in rebuild(sys.argv[1]).items():
        print(name, len(data))
