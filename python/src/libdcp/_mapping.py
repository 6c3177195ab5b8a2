"""Boxes whose bytes lie in a file as they are: mapped, and not read."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any

from . import _abi
from ._act import check
from ._errors import CorruptError, IoError, UnsupportedError

if TYPE_CHECKING:
    from ._tensor import Box

# More may be mapped than there is memory, though it may be written to.
NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Mapping:
    """A part of a file: `memory` from `begin` on, with strides in bytes."""

    def __init__(self, box: Box, private: bool) -> None:
        """Map what a box lies in.

        private: the memory may be written to, and the file stays as it is.
        """
        tensor, n = box.tensor, len(box.size)
        handle = tensor._checkpoint._handle  # which others may close meanwhile
        told, why = _abi.Mapping.new(), _abi.Error.new()
        code = _abi.lib.dcp_flat_box_map(
            handle.value,
            tensor._index,
            (ctypes.c_int64 * n)(*box.offset),
            (ctypes.c_int64 * n)(*box.size),
            ctypes.byref(told),
            ctypes.byref(why),
        )
        check(code, why)
        self.strides = tuple(told.strides[:n])
        self.begin = told.offset % mmap.ALLOCATIONGRANULARITY
        last = sum((size - 1) * stride for size, stride in zip(box.size, self.strides))
        self.n_bytes = last + _abi.ITEM_BYTES[box.dtype]
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if private else 0)
        try:
            self.memory = mmap.mmap(
                told.fd,
                self.begin + self.n_bytes,
                flags=mmap.MAP_PRIVATE | NO_RESERVE,
                prot=prot,
                offset=told.offset - self.begin,
            )
        except ValueError as short:
            raise CorruptError(
                f"tensor '{tensor.name}' reaches behind the end of its file",
                tensor=tensor.name,
            ) from short
        except OSError as why_not:
            raise IoError(
                f"tensor '{tensor.name}' cannot be mapped: {why_not.strerror}",
                tensor=tensor.name,
                errno=why_not.errno or 0,
            ) from why_not
        finally:
            os.close(told.fd)


def mapped_array(box: Box, dtype: Any) -> Any:
    """A view by NumPy, which cannot be written to."""
    import numpy

    of = Mapping(box, private=False)
    view = numpy.ndarray(box.size, dtype, of.memory, of.begin, of.strides)
    return view.reshape(box.shape)


def mapped_tensor(box: Box, dtype: Any) -> Any:
    """A view by PyTorch, which knows no memory that cannot be written to."""
    import torch

    of, item = Mapping(box, private=True), _abi.ITEM_BYTES[box.dtype]
    n = of.n_bytes // item
    # Compilers move numbers of 16 bytes, complex128, by instructions that end the process
    # elsewhere than at multiples of 16; those of fewer bytes they do not.
    if item > 8 and of.begin % item:
        raise UnsupportedError(
            f"tensor '{box.tensor.name}' does not lie in its file as PyTorch needs it",
            tensor=box.tensor.name,
            hint="torch() reads it, numpy(mmap=True) maps it",
        )
    flat = torch.frombuffer(of.memory, dtype=dtype, count=n, offset=of.begin)
    return flat.as_strided(box.size, [s // item for s in of.strides]).view(box.shape)
