"""Structs that cross to the library: each side may know more of one than the other."""

from __future__ import annotations

import ctypes
from ctypes import Structure
from typing import Any, TypeVar

T = TypeVar("T", bound="Sized")


class Sized(Structure):
    """A struct that begins with its size."""

    @classmethod
    def new(cls: type[T], **members: Any) -> T:
        """One that the library may read and write; what is not given is zero."""
        return cls(struct_size=ctypes.sizeof(cls), **members)
