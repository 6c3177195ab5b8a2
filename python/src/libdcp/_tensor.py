"""Tensors of a checkpoint that nobody has read yet, and parts of them."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _abi
from ._array import lies_dense, written
from ._errors import MismatchError, UnsupportedError, UsageError
from ._mapping import mapped_array, mapped_tensor

if TYPE_CHECKING:
    import numpy as np
    import torch as pt

    from ._checkpoint import Checkpoint


@dataclass(frozen=True)
class Piece:
    """A part of a tensor that lies somewhere.

    `offset` and `size` are of a box; a flat range has `begin` and `end` in place of them,
    in elements of the flattened tensor; a piece that is all of its tensor has neither.
    """

    rank: int
    file: str
    file_offset: int
    stored_bytes: int
    codec: str
    offset: tuple[int, ...] | None
    size: tuple[int, ...] | None
    begin: int | None
    end: int | None


class Box:
    """A rectangular part of a tensor: `ckpt["weight"][1000:2000]`. Reading is asked for.

    `shape` is what is read: a dimension that was indexed by a number is not in it.
    """

    def __init__(
        self,
        tensor: Tensor | None,
        offset: tuple[int, ...],
        size: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> None:
        """Only tensors make them."""
        self._of = tensor
        self.offset = offset
        self.size = size
        self.shape = shape

    @property
    def tensor(self) -> Tensor:
        """The tensor that it is a part of."""
        assert self._of is not None
        return self._of

    @property
    def dtype(self) -> str:
        """As PyTorch calls it: "bfloat16"."""
        return self.tensor._dtype

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return math.prod(self.shape) * _abi.ITEM_BYTES[self.dtype]

    def __len__(self) -> int:
        """Give the size of the first dimension."""
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def torch(
        self,
        *,
        out: pt.Tensor | None = None,
        device: Any = None,
        mmap: bool = False,
    ) -> pt.Tensor:
        """Read it as a tensor of PyTorch: a new one, on a device or the CPU, or `out`.

        `out` has this dtype and shape; on a device, or where it is not dense, it is
        copied into. With mmap=True it is the file's own memory, which is read where it is
        used and held against no digest; what is written there stays in this process.
        """
        import torch

        dtype = torch_dtype(self.dtype)
        if mmap and self._is_mapped(out):
            made = mapped_tensor(self, dtype)
            return made if device is None else made.to(device)
        if out is None:
            made = torch.empty(self.shape, dtype=dtype)
            self._read(made.data_ptr())
            return made if device is None else made.to(device)
        if device is not None:
            raise UsageError("`out` is on a device already")
        if not isinstance(out, torch.Tensor):
            raise UsageError(f"`out` is a tensor of PyTorch, not a {type(out).__name__}")
        self._check_out(tuple(out.shape), out.dtype, dtype)
        if out.is_meta:
            raise UsageError("`out` is on the meta device: it has no memory")
        if lies_dense(out):
            self._read(out.data_ptr())
            written((out,))
        else:
            with torch.no_grad():
                out.copy_(self.torch())
        return out

    def numpy(
        self, *, out: np.ndarray[Any, Any] | None = None, mmap: bool = False
    ) -> np.ndarray[Any, Any]:
        """Read it as an array of NumPy: a new one, or `out`, of this dtype and shape.

        bfloat16 and 8-bit floats are those of the package ml_dtypes. With mmap=True it is
        the file's own memory, which cannot be written to, is read where it is used, and
        held against no digest.
        """
        import numpy

        dtype = numpy_dtype(self.dtype)
        if mmap and self._is_mapped(out):
            mapped: np.ndarray[Any, Any] = mapped_array(self, dtype)
            return mapped
        if out is None:
            out = numpy.empty(self.shape, dtype)
            self._read(out.ctypes.data)
            return out
        self._check_out(out.shape, out.dtype, dtype)
        if out.flags.c_contiguous and out.flags.writeable:
            self._read(out.ctypes.data)
        else:
            out[...] = self.numpy()
        return out

    def tobytes(self) -> bytes:
        """Read its bytes, row-major and little-endian."""
        made = bytearray(self.nbytes)
        self.read_into(made)
        return bytes(made)

    def read_into(self, buffer: Any) -> None:
        """Read its bytes into a writable buffer of that size: a bytearray, an mmap."""
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous or view.nbytes != self.nbytes:
            is_what = "read-only" if view.readonly else f"of {view.nbytes} bytes"
            raise UsageError(
                f"'{self.tensor.name}' needs a dense, writable buffer of {self.nbytes} "
                f"bytes, and this one is {is_what if view.c_contiguous else 'not dense'}"
            )
        if self.nbytes:
            place = (ctypes.c_char * self.nbytes).from_buffer(view.cast("B"))
            self._read(ctypes.addressof(place))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        """Be read by `numpy.asarray`."""
        if copy is False:
            raise ValueError("it is read into new memory: copy=None allows that")
        made = self.numpy()
        return made if dtype is None else made.astype(dtype, copy=False)

    def __dlpack__(self, **how: Any) -> Any:
        """Be read by `from_dlpack` of any library, through PyTorch or NumPy."""
        return self._exporter().__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Say that it will lie in memory of the CPU."""
        return (1, 0)

    def __repr__(self) -> str:
        """Say which part it is."""
        part = ", ".join(f"{o}:{o + n}" for o, n in zip(self.offset, self.size))
        return f"<libdcp.Box {self.tensor.name!r}[{part}] {self.dtype} {self.shape}>"

    def _is_mapped(self, out: Any) -> bool:
        if out is not None:
            raise UsageError("what is mapped is not read into `out`")
        return self.nbytes > 0

    def _exporter(self) -> Any:
        try:
            import torch  # noqa: F401
        except ImportError:
            return self.numpy()
        return self.torch()

    def _read(self, address: int) -> None:
        self.tensor._checkpoint._read([self], [address])

    def _check_out(self, shape: Any, dtype: Any, wanted: Any) -> None:
        if dtype != wanted or tuple(shape) != self.shape:
            raise MismatchError(
                f"'{self.tensor.name}' gives {self.dtype} {list(self.shape)}, and `out` "
                f"is {dtype} {list(shape)}",
                tensor=self.tensor.name,
            )


class Tensor(Box):
    """A tensor of a checkpoint. Nothing of it is read until that is asked for."""

    def __init__(
        self, checkpoint: Checkpoint, index: int, dtype: str, shape: tuple[int, ...]
    ) -> None:
        """Only checkpoints make them."""
        super().__init__(None, (0,) * len(shape), shape, shape)
        self._checkpoint = checkpoint
        self._index = index
        self._dtype = dtype

    def __reduce__(self) -> tuple[Any, ...]:
        """Go by the name: what is opened elsewhere may have been replaced."""
        from ._checkpoint import tensor_of

        return tensor_of, (self._checkpoint, self.name)

    @property
    def tensor(self) -> Tensor:
        """Itself."""
        return self

    @property
    def name(self) -> str:
        """Its name in the checkpoint."""
        return self._checkpoint._table.names[self._index]

    @property
    def role(self) -> str:
        """What it is to training: "model", "buffer", "master", "exp_avg", "optim"…"""
        return _abi.ROLES[self._checkpoint._table.roles[self._index]]

    @property
    def param(self) -> str:
        """The weight that it belongs to, whatever the format calls it."""
        return self._checkpoint._table.params[self._index]

    @property
    def tied_to(self) -> str | None:
        """The tensor whose bytes it shares."""
        return self._checkpoint._table.tied[self._index] or None

    @property
    def is_meta(self) -> bool:
        """Whether only its dtype and shape were saved, or it is quantized."""
        return bool(self._checkpoint._table.flags[self._index] & _abi.IS_META)

    @property
    def quantized(self) -> str | None:
        """How its numbers, which are not read, are quantized: "Q4_K"."""
        return self._checkpoint._table.quantized[self._index] or None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Where it lies."""
        n = self._checkpoint._table.n_pieces[self._index]
        return tuple(self._piece(i) for i in range(n))

    def fingerprint(self) -> str:
        """Give the CRC-64/XZ of its bytes: see `Checkpoint.fingerprint`."""
        return self._checkpoint.fingerprint(self.name)

    def __getitem__(self, index: Any) -> Box:
        """Give a part, of numbers, slices of step 1 and an ellipsis; nothing is read."""
        return Box(self, *_box(self, index if isinstance(index, tuple) else (index,)))

    def __iter__(self) -> Iterator[Box]:
        """Give a part for each index of the first dimension."""
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        """Say what it is."""
        return (
            f"<libdcp.Tensor {self.name!r} {self._dtype} {list(self.shape)} {self.role}>"
        )

    def _piece(self, i: int) -> Piece:
        told, handle = _abi.Piece.new(), self._checkpoint._handle
        _abi.lib.dcp_flat_piece_get(handle.value, self._index, i, ctypes.byref(told))
        ndim = len(self.shape)
        is_box, is_range = told.kind == 1, told.kind == 2
        return Piece(
            rank=told.rank,
            file=_abi.text(told.file),
            file_offset=told.file_offset,
            stored_bytes=told.stored_bytes,
            codec=_abi.text(told.codec),
            offset=tuple(told.offset[:ndim]) if is_box else None,
            size=tuple(told.size[:ndim]) if is_box else None,
            begin=told.begin if is_range else None,
            end=told.end if is_range else None,
        )


def _box(
    tensor: Tensor, index: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Offset, size and shape of what an index means."""
    full, ndim = tensor.shape, len(tensor.shape)
    given = sum(part is not Ellipsis for part in index)
    if len(index) - given > 1:
        raise IndexError("there is more than one ...")
    if given > ndim:
        raise IndexError(f"{given} indices of '{tensor.name}', which has {ndim}")
    parts: list[Any] = []
    for part in index if given < len(index) else (*index, Ellipsis):
        parts += [slice(None)] * (ndim - given) if part is Ellipsis else [part]
    offset, size, shape = [], [], []
    for d, part in enumerate(parts):
        if isinstance(part, slice):
            begin, end, step = part.indices(full[d])
            if step != 1:
                raise IndexError("slices of what is stored have step 1: read, then slice")
            offset.append(begin)
            size.append(max(end - begin, 0))
            shape.append(size[-1])
            continue
        if isinstance(part, bool) or str(getattr(part, "dtype", "")).endswith("bool"):
            raise IndexError("masks are no indices of what is stored: read, then index")
        try:
            at = operator.index(part)
        except TypeError:
            raise TypeError(
                f"indices are numbers, slices of step 1 and ..., not {part!r}: read what "
                "is stored, then index"
            ) from None
        if not -full[d] <= at < full[d]:
            raise IndexError(f"{at} of {full[d]} in dimension {d} of '{tensor.name}'")
        offset.append(at % full[d])
        size.append(1)
    return tuple(offset), tuple(size), tuple(shape)


def torch_dtype(name: str) -> Any:
    """The dtype of PyTorch."""
    import torch

    dtype = getattr(torch, name, None)
    if dtype is None:
        raise UnsupportedError(f"this version of PyTorch has no {name}")
    return dtype


def numpy_dtype(name: str) -> Any:
    """The dtype of NumPy, or of ml_dtypes."""
    import numpy

    if hasattr(numpy, name):
        return numpy.dtype(getattr(numpy, name))
    if name == "bool":  # numpy 1
        return numpy.dtype(bool)
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError(
            f"NumPy has no {name}",
            hint="torch() reads it, tobytes() gives its bytes, and 'pip install "
            "ml_dtypes' brings that dtype",
        ) from None
    return numpy.dtype(getattr(ml_dtypes, name))


def flattened(boxes: Sequence[Box]) -> tuple[list[int], list[int]]:
    """Offsets and sizes of all boxes, one behind the other."""
    offsets = [number for box in boxes for number in box.offset]
    sizes = [number for box in boxes for number in box.size]
    return offsets, sizes
