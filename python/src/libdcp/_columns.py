"""Entries as the library takes them: each fact a flat array of all."""

from __future__ import annotations

import array
import ctypes
import functools
import marshal
from collections.abc import Iterable, Sequence
from itertools import chain, count
from typing import Any

from . import _abi
from ._entries import Entries
from ._values import check_name

_ROLES = {role: i for i, role in enumerate(_abi.ROLES)}
_CODES = {ctypes.c_int32: "i", ctypes.c_uint32: "I", ctypes.c_int64: "q"}
_DTYPES = {dtype: i for i, dtype in enumerate(_abi.DTYPES)}


class Columns:
    """What is told of entries, and which box of each this rank holds.

    Each box is told once, and entries have the number of theirs: most are cut alike.
    """

    def __init__(self, entries: Entries) -> None:
        """Look through them once."""
        self.n = len(entries)
        self.is_compared = False  # whether all ranks have seen that replicas are alike
        # Copies: entries may be added.
        self._names, self._params = entries.names[:], entries.params[:]
        self._roles, self._boxes = entries.roles[:], entries.boxes[:]
        self._instead, self._own = dict(entries.instead), dict(entries.own)
        self.names = self.params = _texts(entries.names)
        if entries.params != entries.names:
            self.params = _texts(entries.params)
        self.roles = bytes(map(_ROLES.__getitem__, entries.roles))
        # By identity: equal boxes are one object, but for some that were forgotten.
        keys = list(map(id, entries.boxes))
        known = dict(zip(keys, entries.boxes))
        numbers = dict(zip(known, count()))
        self.numbers = ints(ctypes.c_uint32, map(numbers.__getitem__, keys))
        self.boxes = list(known.values())
        self.dtypes = ints(ctypes.c_int32, (_DTYPES[box.dtype] for box in self.boxes))
        self.ndims = ints(ctypes.c_int32, (len(box.shape) for box in self.boxes))
        self.shapes = _dims(box.shape for box in self.boxes)
        self.offsets = _dims(box.offset for box in self.boxes)
        self.sizes = _dims(box.size for box in self.boxes)

    def tell_of(self, entries: Entries) -> bool:
        """Say whether others would be the same."""
        return (
            self._names == entries.names
            and self._boxes == entries.boxes
            and self._params == entries.params
            and self._roles == entries.roles
            and self._instead == entries.instead
            and self._own == entries.own
        )

    @functools.cached_property
    def digest(self) -> bytes:
        """Of what ranks say alike that have the same tensors in the same order."""
        # Not their boxes: what is cut alike here may not be so on another rank.
        wholes = [(box.dtype, box.shape) for box in self.boxes]
        kinds = dict(zip(dict.fromkeys(wholes), count()))
        numbers = self.numbers
        if len(kinds) < len(wholes):
            kind_of = [kinds[whole] for whole in wholes]
            numbers = ints(ctypes.c_uint32, map(kind_of.__getitem__, numbers))
        # Equal values have equal bytes in version 0.
        rest = marshal.dumps([list(kinds), list(self._instead.items()), [*self._own]], 0)
        parts = self.names, self.params, self.roles, bytes(numbers), rest
        return b"".join(map(_digest, parts))


def _texts(texts: Sequence[str]) -> bytes:
    """All of them, each with a NUL."""
    joined = "\0".join([*texts, ""])
    code = joined.encode(errors="replace")
    if joined.count("\0") != len(texts) or b"?" in code:
        for text in texts:
            check_name(text)
    return code


def _digest(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + digest_at(data, len(data))


def digest_at(data: bytes | int, n_bytes: int) -> bytes:
    """Of bytes, or of memory by its address."""
    out = ctypes.c_uint64()
    _abi.lib.dcp_flat_bytes_digest(data, n_bytes, ctypes.byref(out))
    return out.value.to_bytes(8, "little")


_known: list[Columns] = []  # of what a rank has, and of what it saves of that


def columns_of(entries: Entries) -> Columns:
    """Those of the state before, where it was the same: comparing costs a fraction of
    making them, and a run saves one state again and again.
    """
    for known in _known[:]:  # other threads save, too
        if known.tell_of(entries):
            return known
    made = Columns(entries)
    _known[:] = [made, *_known[:1]]
    return made


def ints(kind: Any, numbers: Iterable[int]) -> Any:
    """An array of the library's, made by way of one of Python's, which is faster; and
    that of a list faster than one by one.
    """
    code = _CODES.get(kind, "Q")
    found = array.array(code, list(numbers))
    return (kind * len(found)).from_buffer(found)


def _dims(rows: Iterable[tuple[int, ...]]) -> Any:
    """The numbers of all rows."""
    return ints(ctypes.c_int64, chain.from_iterable(rows))
