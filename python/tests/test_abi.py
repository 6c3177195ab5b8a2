"""What ctypes is told is what the library has: by the list that a test of the C side
holds against the header."""

from __future__ import annotations

import ctypes
import re

from conftest import ROOT

from libdcp import _abi, _errors

LINES = (ROOT / "tests" / "arch" / "flat_abi.txt").read_text(encoding="ascii").split("\n")


def structs():
    """Each struct of the list: its size, and its members with offset and size."""
    found = {}
    for line in LINES:
        head = re.fullmatch(r"struct dcp_flat_(\w+) (\d+)", line)
        member = re.fullmatch(r"    (\d+) (\d+) (\w+)", line)
        if head:
            found[head[1]] = last = (int(head[2]), [])
        elif member:
            last[1].append((member[3], int(member[1]), int(member[2])))
    return found


def test_structs():
    wanted = structs()
    ours = {
        re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower(): cls
        for cls in _abi.Sized.__subclasses__()
    }
    assert set(ours) == set(wanted)
    for name, (size, members) in wanted.items():
        cls = ours[name]
        assert ctypes.sizeof(cls) == size, name
        got = [(m, getattr(cls, m).offset, getattr(cls, m).size) for m, _ in cls._fields_]
        assert got == members, name


def test_functions():
    listed = {}
    for line in LINES:
        match = re.fullmatch(r"(\w+) dcp_flat_(\w+)\((.*)\)", line)
        if match:
            listed[match[2]] = match
    assert set(listed) == set(_abi._FUNCTIONS)
    for name, match in listed.items():
        assert len(match[3].split(",")) == len(_abi._FUNCTIONS[name]), name
        assert (match[1] == "void") == (name in _abi._GIVE_NOTHING), name


def test_a_class_for_each_code():
    header = (ROOT / "libdcp/include/dcp/error.h").read_text(encoding="utf-8")
    codes = set(re.findall(r"^    X\((\w+), -", header, re.MULTILINE))
    assert len(codes) > 10
    assert set(_errors._BY_CODE) == codes


def test_words():
    assert _abi.ITEM_BYTES["bfloat16"] == 2
    assert len(_abi.DTYPES) == 20
    assert _abi.ROLES[:3] == ["model", "buffer", "master"]
