"""Tensors of a state: the box of each that this rank holds, and where it is copied to."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _abi
from ._array import Array, is_array, lies_dense
from ._errors import UnsupportedError

NOT_DENSE = -1  # on a device, or no memory that the library can use as it is
_COMPLEX = frozenset(("complex64", "complex128"))
_KEPT = 1 << 14  # boxes, so that equal ones are one: lists of such compare fast


class Box(NamedTuple):
    """What this rank holds of a tensor; one for all tensors that are cut alike."""

    dtype: str
    shape: tuple[int, ...]  # of the tensor
    offset: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    @functools.lru_cache(maxsize=_KEPT)
    def of(
        cls,
        dtype: str,
        shape: tuple[int, ...],
        offset: tuple[int, ...],
        size: tuple[int, ...],
    ) -> Box:
        """Some of it."""
        return cls(dtype, shape, offset, size)

    @classmethod
    @functools.lru_cache(maxsize=_KEPT)
    def whole(cls, dtype: str, shape: tuple[int, ...]) -> Box:
        """All of it."""
        return cls.of(dtype, shape, (0,) * len(shape), shape)

    @classmethod
    @functools.lru_cache(maxsize=_KEPT)
    def none(cls, dtype: str, shape: tuple[int, ...]) -> Box:
        """Nothing of it."""
        nothing = (0,) * len(shape)
        return cls.of(dtype, shape, nothing, nothing)


class Entries:
    """Tensors of a state, and what this rank holds of each: a list for each fact.

    An object for each of tens of thousands would keep Python's collector busy.
    """

    def __init__(self) -> None:
        """Have none."""
        self.names: list[str] = []
        self.params: list[str] = []
        self.roles: list[str] = []
        self.boxes: list[Box] = []
        self.locals: list[Any] = []  # their memory; None: the box holds nothing
        #: Where that lies, 0: nowhere, or NOT_DENSE. Asked for while the tensor is in the
        #: cache, since of tens of thousands the first has left it when the last comes.
        self.addresses: list[int] = []
        #: What a step that lacks one may have instead: the weights that it is tied to, or
        #: the settings that count the updates.
        self.instead: dict[str, tuple[str, ...]] = {}
        #: Each rank has its own of these, of which one is saved; this one has all of it.
        self.own: dict[str, None] = {}

    def __len__(self) -> int:
        """Count them."""
        return len(self.names)

    def add(self, name: str, param: str, role: str, box: Box, local: Any) -> None:
        """Take one more."""
        self.names.append(name)
        self.params.append(param)
        self.roles.append(role)
        self.boxes.append(box)
        self.locals.append(local)
        if local is None:
            self.addresses.append(0)
        elif (  # lies_dense, written out: calls take longer than what they ask
            local.is_cpu
            and local.is_contiguous()
            and not local.is_neg()
            and not (box.dtype in _COMPLEX and local.is_conj())
        ):
            try:
                address = local.data_ptr()
            except RuntimeError:  # a subclass need not have memory of its own
                address = 0
            self.addresses.append(address or _nowhere(name, box, local))
        else:
            self.addresses.append(NOT_DENSE)

    def extend(self, others: Entries) -> None:
        """Take those, too."""
        self.names += others.names
        self.params += others.params
        self.roles += others.roles
        self.boxes += others.boxes
        self.locals += others.locals
        self.addresses += others.addresses
        self.instead.update(others.instead)
        self.own.update(others.own)

    def only(self, chosen: Sequence[int]) -> Entries:
        """Those at some places, in that order."""
        made = Entries()
        made.names = [self.names[i] for i in chosen]
        made.params = [self.params[i] for i in chosen]
        made.roles = [self.roles[i] for i in chosen]
        made.boxes = [self.boxes[i] for i in chosen]
        made.locals = [self.locals[i] for i in chosen]
        made.addresses = [self.addresses[i] for i in chosen]
        made.instead = {n: self.instead[n] for n in made.names if n in self.instead}
        made.own = {n: None for n in made.names if n in self.own}
        return made


def _nowhere(name: str, box: Box, local: Any) -> int:
    """Where no numbers lie; all others must lie somewhere."""
    if 0 in box.size:
        return 0
    raise UnsupportedError(
        f"'{name}' is a {type(local).__name__} without memory that can be read",
        tensor=name,
    )


class _Cut(NamedTuple):
    """How PyTorch says that DTensors are cut, and the box of that."""

    meta: Any
    mesh: Any
    placements: Any
    box: Box
    is_empty: bool


_NONE_YET = _Cut(None, None, None, Box("", (), (), ()), True)


class Boxes:
    """Boxes of DTensors on this rank; those that are cut alike are computed once."""

    def __init__(self) -> None:
        """Know none."""
        self._sharded: Any = ()  # not known: nobody needs PyTorch yet
        self._known: dict[Any, _Cut] = {}
        self._last = _NONE_YET  # the next one is often cut alike
        self._dtypes: dict[Any, str] = {}

    def box_of(self, name: str, tensor: Any) -> tuple[Box, Any]:
        """What this rank holds of a tensor or a DTensor, or of an array of NumPy.

        What is asked of the spec of a DTensor, and not of the DTensor, costs a tenth.
        """
        if isinstance(tensor, self._sharded):
            spec, local = tensor._spec, tensor._local_tensor
            meta, mesh, placements, box, is_empty = self._last
            if not (
                spec.tensor_meta == meta
                and spec.mesh is mesh
                and spec.placements == placements
            ):
                self._last = self._cut_of(name, spec)
                meta, _, _, box, is_empty = self._last
            if is_empty:
                return box, None
            if local.shape != box.size or local.dtype is not meta.dtype:
                _refuse(name, box, local)
            return box, local
        if is_array(tensor):
            return Box.whole(tensor.dtype.name, tensor.shape), Array(tensor)
        if not self._sharded:
            self._know_pytorch()
            return self.box_of(name, tensor)
        return self._part_of(name, tensor)

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

    def _part_of(self, name: str, tensor: Any) -> tuple[Box, Any]:
        """Give the box and the memory of what is no DTensor."""
        sharded = hasattr(tensor, "local_shards")  # of FSDP1 without a mesh
        if not sharded and (
            tensor.is_meta or tensor.layout != self._strided or tensor.is_nested
        ):
            raise UnsupportedError(
                f"'{name}' is no dense tensor with numbers", tensor=name
            )
        dtype, shape = self._dtype_of(name, tensor.dtype), tuple(tensor.shape)
        if sharded:
            return self._shard_of(name, tensor.local_shards(), dtype, shape)
        return Box.whole(dtype, shape), tensor.detach()

    def _shard_of(
        self, name: str, shards: Sequence[Any], dtype: str, shape: tuple[int, ...]
    ) -> tuple[Box, Any]:
        if len(shards) > 1:
            raise UnsupportedError(f"'{name}' has several shards on a rank", tensor=name)
        if not shards or not shards[0].tensor.numel():
            return Box.none(dtype, shape), None
        held = shards[0].metadata
        box = Box.of(dtype, shape, tuple(held.shard_offsets), tuple(held.shard_sizes))
        return box, shards[0].tensor.detach()

    def _cut_of(self, name: str, spec: Any) -> _Cut:
        key = spec.tensor_meta, spec.mesh, spec.placements
        cut = self._known.get(key)
        if cut is None:
            cut = self._known[key] = self._compute_cut(name, *key)
        return cut

    def _compute_cut(self, name: str, meta: Any, mesh: Any, placements: Any) -> _Cut:
        if any(placement.is_partial() for placement in placements):
            raise UnsupportedError(
                f"'{name}' is a DTensor of sums that were not made (Partial)", tensor=name
            )
        shape, dtype = tuple(meta.shape), self._dtype_of(name, meta.dtype)
        size, offset = self._compute(shape, mesh, placements)
        is_empty = mesh.get_coordinate() is None or 0 in size
        box = Box.of(dtype, shape, tuple(offset), tuple(size))
        if is_empty:
            box = Box.none(dtype, shape)
        return _Cut(meta, mesh, placements, box, is_empty)


def _refuse(name: str, box: Box, local: Any) -> None:
    why = f"'{name}' is of {box.dtype}, and its part on a rank is not"
    if local.shape != box.size:
        why = f"'{name}' is no box on every rank"
    raise UnsupportedError(why, tensor=name)


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
                dense = tensor if lies_dense(tensor) else tensor.dense(copied=True)
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
