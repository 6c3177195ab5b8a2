"""Tensors of a state: the box of each that this rank holds, and where it is copied to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _abi
from ._array import Array, is_array
from ._errors import UnsupportedError


@dataclass  # of which there are tens of thousands
class Entry:
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

    @property
    def facts(self) -> tuple[Any, ...]:
        """What all ranks say alike."""
        return self.name, self.param, self.role, self.dtype, self.shape, self.instead


class _Cut(NamedTuple):
    """The box of this rank, which may hold nothing of it."""

    offset: tuple[int, ...]
    size: tuple[int, ...]
    is_empty: bool


class Boxes:
    """Boxes of DTensors on this rank; those that are cut alike are computed once."""

    def __init__(self) -> None:
        """Know none."""
        self._sharded: Any = None  # not known: nobody needs PyTorch yet
        self._known: dict[Any, _Cut] = {}
        self._last: tuple[Any, ...] = (
            None,
            None,
            None,
            None,
        )  # is often cut alike
        self._dtypes: dict[Any, str] = {}

    def entry_of(self, name: str, tensor: Any, role: str, param: str) -> Entry:
        """What this rank holds of a tensor or a DTensor, or of an array of NumPy."""
        if self._sharded is not None and isinstance(tensor, self._sharded):
            dtype = self._dtypes.get(tensor.dtype) or self._dtype_of(name, tensor)
            return Entry(name, param, role, dtype, *self._part_of(name, tensor))
        if is_array(tensor):
            whole, dtype = tensor.shape, tensor.dtype.name
            none = (0,) * len(whole)
            return Entry(name, param, role, dtype, whole, none, whole, Array(tensor))
        if self._sharded is None:
            self._know_pytorch()
            return self.entry_of(name, tensor, role, param)
        shape = tuple(tensor.shape)
        dtype = self._dtypes.get(tensor.dtype) or self._dtype_of(name, tensor)
        if hasattr(tensor, "local_shards"):  # of FSDP1 without a mesh
            part = self._shard_of(name, tensor.local_shards(), shape)
        elif tensor.is_meta or tensor.layout != self._strided:
            raise UnsupportedError(
                f"'{name}' is no dense tensor with numbers", tensor=name
            )
        else:
            part = (0,) * len(shape), shape, tensor.detach()
        return Entry(name, param, role, dtype, shape, *part)

    def _know_pytorch(self) -> None:
        import torch
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        self._strided = torch.strided
        self._sharded = DTensor
        self._compute = compute_local_shape_and_global_offset

    def _dtype_of(self, name: str, tensor: Any) -> str:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _abi.ITEM_BYTES:
            raise UnsupportedError(
                f"'{name}' is of {dtype}: no step holds it", tensor=name
            )
        self._dtypes[tensor.dtype] = dtype
        return dtype

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

    def _part_of(
        self, name: str, tensor: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Any]:
        """Give shape, offset, size and memory of a DTensor."""
        spec = tensor._spec  # whose members cost less than the tensor's
        mesh, placements, size = spec.mesh, spec.placements, spec.shape
        shape, last_mesh, last_placements, cut = self._last
        if not (size == shape and mesh is last_mesh and placements == last_placements):
            shape = tuple(size)
            key = shape, mesh, placements
            cut = self._known.get(key)
            if cut is None:
                cut = self._known[key] = self._box_of(name, *key)
            self._last = *key, cut
        if cut.is_empty:
            return shape, cut.offset, cut.size, None
        local = tensor.to_local()
        if local.shape != cut.size:
            raise UnsupportedError(f"'{name}' is no box on every rank", tensor=name)
        return shape, cut.offset, cut.size, local

    def _box_of(
        self, name: str, shape: tuple[int, ...], mesh: Any, placements: Any
    ) -> _Cut:
        if any(placement.is_partial() for placement in placements):
            raise UnsupportedError(
                f"'{name}' is a DTensor of sums that were not made (Partial)", tensor=name
            )
        size, offset = self._compute(shape, mesh, placements)
        if mesh.get_coordinate() is None or 0 in size:
            none = (0,) * len(shape)
            return _Cut(none, none, True)
        return _Cut(tuple(offset), tuple(size), False)


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
