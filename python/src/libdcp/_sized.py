"""Structs that cross to the library: each side may know more of one than the other."""

from __future__ import annotations

import ctypes
import functools
import operator
from ctypes import Structure
from typing import Any, TypeVar

from ._errors import UsageError

T = TypeVar("T", bound="Sized")


class Sized(Structure):
    """A struct that begins with its size."""

    @classmethod
    def new(cls: type[T], **members: Any) -> T:
        """One that the library may read and write; what is not given is zero."""
        for name, least, most in _ranges(cls):
            value = members.get(name, 0)
            try:
                fits = least <= operator.index(value) <= most
            except TypeError:
                raise UsageError(f"{name} is a whole number, not {value!r}") from None
            if not fits:
                raise UsageError(f"{name}={value} is out of range")
        return cls(struct_size=ctypes.sizeof(cls), **members)


@functools.cache
def _ranges(kind: type[Sized]) -> list[tuple[str, int, int]]:
    """What the members that are numbers can hold; ctypes would cut off the rest."""
    found = []
    for name, of, *_ in kind._fields_:
        if of in _WHOLE:
            bits = 8 * ctypes.sizeof(of)
            signed = of(-1).value < 0
            top = 1 << (bits - signed)
            found.append((name, -top if signed else 0, top - 1))
    return found


_WHOLE = (ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64)
