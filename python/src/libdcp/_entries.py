"""Tensors of a state: the box of each that this rank holds, and where it is copied to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _abi
from ._array import Array, is_array
from ._errors import UnsupportedError


class Entry(NamedTuple):  # there are tens of thousands: columns of them are made in C
    """A tensor, and the box of it that this rank holds; `local` is None: nothing."""

    name: str
    param: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    size: tuple[int, ...]
    local: Any
    #: What a step that lacks it may have instead: the weights that it is tied to, or the
    #: settings that count the updates.
    instead: tuple[str, ...] = ()


class _Cut(NamedTuple):
    """The box of this rank, which may hold nothing, of all that is cut alike."""

    whole: Any  # the shape, as PyTorch has it
    mesh: Any
    placements: Any
    kind: Any  # the dtype, as PyTorch has it
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    size: tuple[int, ...]
    is_empty: bool


_NONE_YET = _Cut(None, None, None, None, "", (), (), (), True)


class Boxes:
    """Boxes of DTensors on this rank; those that are cut alike are computed once."""

    def __init__(self) -> None:
        """Know none."""
        self._sharded: Any = ()  # not known: nobody needs PyTorch yet
        self._known: dict[Any, _Cut] = {}
        self._last = _NONE_YET  # the next one is often cut alike
        self._dtypes: dict[Any, str] = {}

    def entry_of(
        self,
        name: str,
        tensor: Any,
        role: str,
        param: str,
        instead: tuple[str, ...] = (),
    ) -> Entry:
        """What this rank holds of a tensor or a DTensor, or of an array of NumPy."""
        if isinstance(tensor, self._sharded):
            cut, local = self._part_on_rank(name, tensor)
            _, _, _, _, dtype, shape, offset, size, _ = cut
            return Entry(name, param, role, dtype, shape, offset, size, local, instead)
        if is_array(tensor):
            shape, dtype = tensor.shape, tensor.dtype.name
            none = (0,) * len(shape)
            return Entry(
                name, param, role, dtype, shape, none, shape, Array(tensor), instead
            )
        if not self._sharded:
            self._know_pytorch()
            return self.entry_of(name, tensor, role, param, instead)
        dtype = self._dtype_of(name, tensor.dtype)
        part = self._part_of(name, tensor)
        return Entry(name, param, role, dtype, *part, instead)

    def _know_pytorch(self) -> None:
        import torch
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        self._strided = torch.strided
        self._sharded = DTensor
        self._compute = compute_local_shape_and_global_offset

    def _dtype_of(self, name: str, kind: Any) -> str:
        known = self._dtypes.get(kind)
        if known is not None:
            return known
        dtype = str(kind).removeprefix("torch.")
        if dtype not in _abi.ITEM_BYTES:
            raise UnsupportedError(
                f"'{name}' is of {dtype}: no step holds it", tensor=name
            )
        self._dtypes[kind] = dtype
        return dtype

    def _part_of(
        self, name: str, tensor: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Any]:
        """Give shape, offset, size and memory of what is no DTensor."""
        shape = tuple(tensor.shape)
        if hasattr(tensor, "local_shards"):  # of FSDP1 without a mesh
            return shape, *self._shard_of(name, tensor.local_shards(), shape)
        if tensor.is_meta or tensor.layout != self._strided:
            raise UnsupportedError(
                f"'{name}' is no dense tensor with numbers", tensor=name
            )
        return shape, (0,) * len(shape), shape, tensor.detach()

    def _shard_of(
        self, name: str, shards: Sequence[Any], shape: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
        if len(shards) > 1:
            raise UnsupportedError(f"'{name}' has several shards on a rank", tensor=name)
        if not shards or not shards[0].tensor.numel():
            none = (0,) * len(shape)
            return none, none, None
        box = shards[0].metadata
        local = shards[0].tensor.detach()
        return tuple(box.shard_offsets), tuple(box.shard_sizes), local

    def _part_on_rank(self, name: str, tensor: Any) -> tuple[_Cut, Any]:
        """Give the box of a DTensor, and its memory.

        What is asked of the spec, and not of the tensor, costs a tenth.
        """
        cut, spec, local = self._last, tensor._spec, tensor._local_tensor
        if not (
            spec.tensor_meta.shape == cut.whole
            and spec.mesh is cut.mesh
            and spec.placements == cut.placements
            and spec.tensor_meta.dtype is cut.kind
        ):
            cut = self._last = self._cut_of(name, spec)
        if cut.is_empty:
            return cut, None
        if local.shape != cut.size:
            raise UnsupportedError(f"'{name}' is no box on every rank", tensor=name)
        if local.dtype is not cut.kind:
            raise UnsupportedError(
                f"'{name}' is of {cut.dtype}, and its part on a rank is not", tensor=name
            )
        return cut, local

    def _cut_of(self, name: str, spec: Any) -> _Cut:
        meta = spec.tensor_meta
        key = meta.shape, spec.mesh, spec.placements, meta.dtype
        cut = self._known.get(key)
        if cut is None:
            cut = self._known[key] = self._compute_cut(name, *key)
        return cut

    def _compute_cut(
        self, name: str, whole: Any, mesh: Any, placements: Any, kind: Any
    ) -> _Cut:
        if any(placement.is_partial() for placement in placements):
            raise UnsupportedError(
                f"'{name}' is a DTensor of sums that were not made (Partial)", tensor=name
            )
        shape, dtype = tuple(whole), self._dtype_of(name, kind)
        size, offset = self._compute(shape, mesh, placements)
        is_empty = mesh.get_coordinate() is None or 0 in size
        if is_empty:
            offset = size = (0,) * len(shape)
        box = tuple(offset), tuple(size)
        return _Cut(whole, mesh, placements, kind, dtype, shape, *box, is_empty)


class Staging:
    """Memory of the host for a state that lies on devices; kept, and pinned."""

    def __init__(self) -> None:
        """Have none yet."""
        self._memory: Any = None

    def copies(self, tensors: Sequence[Any]) -> list[Any]:
        """Copy all of them there, dense; of None is none."""
        import torch

        held = [t for t in tensors if t is not None]
        need = sum(_in_lines(t.nbytes) for t in held)
        if self._memory is None or self._memory.nbytes < need:
            self._memory = None  # before there is another
            pin = torch.cuda.is_available()
            self._memory = torch.empty(need, dtype=torch.uint8, pin_memory=pin)
        made: list[Any] = []
        at = 0
        for tensor in tensors:
            if tensor is None:
                made.append(None)
                continue
            place = self._memory[at : at + tensor.nbytes]
            if isinstance(tensor, Array):
                dense = tensor if tensor.is_contiguous() else tensor.dense(copied=True)
                ctypes.memmove(place.data_ptr(), dense.data_ptr(), tensor.nbytes)
                made.append(place)
            else:
                made.append(place.view(tensor.dtype).view(tensor.shape))
                made[-1].copy_(tensor, non_blocking=True)
            at += _in_lines(tensor.nbytes)
        for device in {t.device for t in held if t.device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()
        return made


def _in_lines(n_bytes: int) -> int:
    return (n_bytes + 63) // 64 * 64
