"""Arrays of NumPy in a state, with what is asked of a tensor there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

from . import _abi


class _Host:
    type = "cpu"


class Array:
    """An array that is saved, or loaded into."""

    is_cpu = True
    device: ClassVar[_Host] = _Host()

    def __init__(self, array: Any) -> None:
        """Refer to it."""
        self.array = array
        self.shape: tuple[int, ...] = array.shape
        self.nbytes: int = array.nbytes

    def is_neg(self) -> bool:
        """Nothing is put off in NumPy."""
        return False

    is_conj = is_neg

    def is_contiguous(self) -> bool:
        """Whether its memory is as steps have it: dense, row-major, little-endian."""
        return bool(self.array.flags.c_contiguous and self.array.dtype.isnative)

    def data_ptr(self) -> int:
        """Where it lies; of no elements, nowhere."""
        return self.array.ctypes.data if self.array.size else 0

    def dense(self, copied: bool) -> Array:
        """Memory of the same shape that is as steps have it."""
        import numpy

        made = numpy.empty(self.shape, self.array.dtype.newbyteorder("="))
        if copied:
            made[...] = self.array
        return Array(made)

    def extent(self) -> tuple[int, int]:
        """From where to where its elements lie."""
        steps = [(n - 1) * step for n, step in zip(self.shape, self.array.strides)]
        at: int = self.array.ctypes.data
        low, high = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
        return at + low, at + high + self.array.itemsize

    def copy_(self, other: Array) -> None:
        """Take the numbers of another one."""
        self.array[...] = other.array


def lies_dense(tensor: Any) -> bool:
    """Whether its memory is as steps have it: the host's, row-major, and meant as it is.

    PyTorch can put off to negate and to conjugate: the tensor is marked, memory is not
    touched.
    """
    return bool(
        tensor.is_cpu
        and tensor.is_contiguous()
        and not (tensor.is_neg() or tensor.is_conj())
    )


def host_copy(local: Any) -> Any:
    """The numbers of a tensor or an Array in memory of the host that is dense."""
    if isinstance(local, Array):
        return local.dense(copied=True)
    return local.cpu().resolve_conj().resolve_neg().contiguous()


def is_array(value: Any) -> bool:
    """Whether it is an array of numbers that steps hold; others are pickled, also those
    of classes that have more than numbers: a mask, a unit.
    """
    numpy = sys.modules.get("numpy")  # who has an array has imported it
    if not numpy or not isinstance(value, numpy.ndarray):
        return False
    return type(value) in (numpy.ndarray, numpy.memmap) and _holds(value.dtype)


def _holds(dtype: Any) -> bool:
    n_bytes: int = dtype.itemsize
    return n_bytes == _abi.ITEM_BYTES.get(dtype.name)


def no_grad() -> Any:
    """What PyTorch, where it is used, does not follow."""
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.no_grad()


def is_inferring() -> bool:
    """Whether PyTorch, where it is used, makes tensors that cannot be trained."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.is_inference_mode_enabled()


def written(tensors: Iterable[Any]) -> None:
    """Tell PyTorch that other numbers are in them: a backward pass that needs those that
    were there raises, as after any other write in place.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    kept = [t for t in tensors if isinstance(t, torch.Tensor) and not t.is_inference()]
    torch.autograd.graph.increment_version(kept)
