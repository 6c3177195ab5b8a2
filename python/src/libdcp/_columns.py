"""Entries as the library takes them: each fact a flat array of all."""

from __future__ import annotations

import array
import ctypes
import functools
import marshal
import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, count, islice
from typing import Any

from . import _abi
from ._entries import Entries
from ._values import check_name

_ROLES = {role: i for i, role in enumerate(_abi.ROLES)}
_DTYPES = {dtype: i for i, dtype in enumerate(_abi.DTYPES)}


class Texts:
    """An array of texts, in one memory: so many objects of ctypes would take longer than
    all else. `array` is valid as long as this is kept.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        """Copy them."""
        joined = "\0".join(texts)
        code = joined.encode(errors="replace")
        if joined.count("\0") != max(len(texts) - 1, 0) or b"?" in code:
            for text in texts:
                check_name(text)
        self.memory = ctypes.create_string_buffer(code)
        begin = ctypes.addressof(self.memory)
        plain = len(code) == len(joined)  # a byte for each character
        sizes = map(len, texts) if plain else (len(text.encode()) for text in texts)
        # Each has a byte behind it.
        places = map(operator.add, accumulate(sizes, initial=begin), count())
        self._places = ints(ctypes.c_void_p, islice(places, len(texts)))
        self.array = ctypes.cast(self._places, ctypes.POINTER(ctypes.c_char_p))


class Columns:
    """What is told of entries, and which box of each this rank holds."""

    def __init__(self, entries: Entries) -> None:
        """Look through them once."""
        self.n = len(entries)
        # Copies: entries may be added.
        self._names, self._params = entries.names[:], entries.params[:]
        self._roles, self._boxes = entries.roles[:], entries.boxes[:]
        self._instead = dict(entries.instead)
        boxes = entries.boxes
        dtypes, shapes, offsets, sizes = zip(*boxes) if boxes else ((), (), (), ())
        self.names = self.params = Texts(entries.names)
        if entries.params != entries.names:
            self.params = Texts(entries.params)
        self.roles = ints(ctypes.c_int32, map(_ROLES.__getitem__, entries.roles))
        self.dtypes = ints(ctypes.c_int32, map(_DTYPES.__getitem__, dtypes))
        self.ndims = ints(ctypes.c_int32, map(len, shapes))
        self.shapes = _dims(shapes)
        self.offsets = _dims(offsets)
        self.sizes = _dims(sizes)

    def tell_of(self, entries: Entries) -> bool:
        """Say whether others would be the same."""
        return (
            self._names == entries.names
            and self._boxes == entries.boxes
            and self._params == entries.params
            and self._roles == entries.roles
            and self._instead == entries.instead
        )

    @functools.cached_property
    def digest(self) -> bytes:
        """Of what ranks say alike that have the same tensors in the same order."""
        import hashlib  # which brings libraries with it

        parts = (
            self.names.memory,
            self.params.memory,
            self.roles,
            self.dtypes,
            self.ndims,
            self.shapes,
            # Equal values have equal bytes in version 0.
            marshal.dumps(list(self._instead.items()), 0),
        )
        made = hashlib.sha256()
        for part in parts:
            made.update(memoryview(part).nbytes.to_bytes(8, "little"))
            made.update(part)
        return made.digest()


_last: Columns | None = None


def columns_of(entries: Entries) -> Columns:
    """Those of the state before, where it was the same: comparing costs a fraction of
    making them, and a run saves one state again and again.
    """
    global _last
    known = _last
    if known is None or not known.tell_of(entries):
        _last = known = Columns(entries)
    return known


def ints(kind: Any, numbers: Iterable[int]) -> Any:
    """An array of the library's, made by way of one of Python's, which is faster; and
    that of a list faster than one by one.
    """
    code = {ctypes.c_int32: "i", ctypes.c_int64: "q"}.get(kind, "Q")
    found = array.array(code, list(numbers))
    return (kind * len(found)).from_buffer(found)


def _dims(rows: Iterable[tuple[int, ...]]) -> Any:
    """The numbers of all rows."""
    return ints(ctypes.c_int64, chain.from_iterable(rows))
