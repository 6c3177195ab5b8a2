"""Storage for torch.distributed.checkpoint: what `dcp.save` saves is a step of a run.

dcp.save(state, storage_writer=libdcp.torch.StorageWriter("run", step=100))
dcp.load(state, storage_reader=libdcp.torch.StorageReader("run"))
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import math
import os
import re
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import metadata as facts
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import _abi
from ._act import Act
from ._array import lies_dense, written
from ._checkpoint import Checkpoint, open_checkpoint
from ._entries import Box, Entries
from ._errors import MismatchError, UnsupportedError, UsageError
from ._options import check_values
from ._ranks import ALONE, Ranks, on_all
from ._state import MOMENTS, Pickle, State, is_json
from ._tensor import torch_dtype
from ._training import agreed, options_of, save, write
from ._values import plain_pickle, unpickled

__all__ = ["StorageReader", "StorageWriter"]


def __getattr__(name: str) -> Any:
    """Give `Storage` of libdcp.torch_checkpointing, whose package need not be there."""
    if name == "Storage":
        from .torch_checkpointing import Storage

        return Storage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


PATHS = "torch.distributed.checkpoint"  # the object with the path of each name
MODELS = ("app.model", "model", "module", "state_dict", "model_state_dict")


def _is_distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


class StorageWriter(dcp.StorageWriter):  # type: ignore[misc]
    """Saves as `libdcp.save` does: complete, durable and read back, or not at all."""

    def __init__(
        self, path: str | os.PathLike[str], *, step: int, group: Any = None, **how: Any
    ) -> None:
        """Save as a step of a run folder. All ranks that save make one.

        group: of the ranks that save; the `process_group` that dcp.save is given, or
        "alone" with its `no_dist=True`. how: `keep`, `parity`, `codec` and so on, as in
        `libdcp.save`.
        """
        super().__init__()
        inspect.signature(save).bind({}, path, step=step, **how)  # raises a TypeError
        check_values({"step": step, **how})
        self._path, self._step, self._group, self._how = path, step, group, how
        if _is_distributed():
            Ranks(Act(), group)  # its group for CPUs, not first on a thread of async_save

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin anew; the run folder may be told as `checkpoint_id`."""
        self._path = checkpoint_id or self._path

    def set_up_storage_writer(
        self, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Need nothing."""

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        """Leave the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[dcp.SavePlan]) -> list[dcp.SavePlan]:
        """Leave the plans as they are: who writes what of them, the library plans."""
        return plans

    def write_data(
        self, plan: dcp.SavePlan, planner: dcp.SavePlanner
    ) -> Future[list[WriteResult]]:
        """Write the step and publish it, on all ranks together."""
        act = Act()
        ranks = Ranks(act, self._group if _is_distributed() else ALONE)
        values: dict[str, Any] = {}
        scattered = _gather_scattered(plan, planner, ranks)

        def make() -> State:
            if any(item.index.fqn == PATHS for item in plan.items):
                raise UsageError(f"'{PATHS}' is the name of something else in steps")
            state = State({}, ranks, self._step)
            state.add_entries(_entries_of(plan, planner, values, scattered, ranks.rank))
            return state

        threads = self._how.get("threads", 0)
        how = {k: v for k, v in self._how.items() if k != "threads"}
        how = options_of(step=self._step, **how)
        made = agreed(make, ranks, "save", how)
        paths: dict[str, Any] = {}
        for theirs, their_paths in ranks.gather((values, _paths_of(plan))):
            values = {**theirs, **values}
            paths.update(their_paths)
        for name, value in {**values, PATHS: paths}.items():
            made.add_value(name, value)
        write(act, ranks, made, path=self._path, threads=threads, **how)
        results = [
            WriteResult(item.index, item.tensor_storage_size() or 0, None)
            for item in plan.items
        ]
        return _done(results)

    def finish(self, metadata: dcp.Metadata, results: list[list[WriteResult]]) -> None:
        """Need nothing: the step has its manifest."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Say whether it is a folder's path."""
        return "://" not in os.fspath(checkpoint_id)


class StorageReader(dcp.StorageReader):  # type: ignore[misc]
    """Loads from a step, or from any other checkpoint, under the names in it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        trust_pickles: bool = False,
        verify: bool = True,
        threads: int | None = None,
    ) -> None:
        """Read what `libdcp.open` opens; the newest complete step of a run folder.

        trust_pickles: values that could run a program are loaded, too.
        """
        super().__init__()
        self._path, self._trust = path, trust_pickles
        self._how: dict[str, Any] = {"step": step, "verify": verify, "threads": threads}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin anew; the folder may be told as `checkpoint_id`."""
        self._path = checkpoint_id or self._path

    def read_metadata(self) -> dcp.Metadata:
        """Open the checkpoint, and tell what is in it."""
        self._ckpt: Checkpoint = open_checkpoint(self._path, **self._how)
        paths = self._ckpt.objects.get(PATHS) or {}  # of what others saved there are none
        told: dict[str, Any] = {
            name: facts.BytesStorageMetadata()
            for name in self._ckpt.objects
            if not paths or name in paths
        }
        for name, tensor in self._ckpt.tensors.items():
            size = torch.Size(tensor.shape)
            whole = facts.ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            dtype = getattr(torch, tensor.dtype, None)
            if dtype is not None and not tensor.is_meta:
                told[name] = facts.TensorStorageMetadata(
                    facts.TensorProperties(dtype=dtype), size, [whole]
                )
        return dcp.Metadata(
            told, planner_data={name: tuple(paths.get(name, (name,))) for name in told}
        )

    def set_up_storage_reader(
        self, metadata: dcp.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Need nothing: the metadata was made here."""

    def prepare_local_plan(self, plan: dcp.LoadPlan) -> dcp.LoadPlan:
        """Tell which step this rank found."""
        return dataclasses.replace(plan, storage_data=self._ckpt.info.step)

    def prepare_global_plan(self, plans: list[dcp.LoadPlan]) -> list[dcp.LoadPlan]:
        """Hold all ranks to one step: a save may have ended while they looked."""
        steps = {plan.storage_data for plan in plans}
        if len(steps) > 1:
            raise MismatchError(
                f"ranks found different steps: {sorted(map(str, steps))}",
                hint="load again, or say which with step=",
            )
        return plans

    def read_data(self, plan: dcp.LoadPlan, planner: dcp.LoadPlanner) -> Future[None]:
        """Read all boxes in one go, in parallel, to where they belong."""
        reads = []
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(self._saved(name)))
                continue
            begin, size = item.storage_offsets, item.lengths
            box = self._ckpt.tensors[name][
                tuple(slice(b, b + n) for b, n in zip(begin, size))
            ]
            target = planner.resolve_tensor(item).detach()
            if target.shape != size:
                raise MismatchError(
                    f"'{name}' is {list(size)} in the step, {list(target.shape)} here",
                    tensor=name,
                )
            dtype = torch_dtype(box.dtype)
            own = lies_dense(target) and target.dtype == dtype
            reads.append(
                (item, target, target if own else torch.empty(size, dtype=dtype), box)
            )
        self._ckpt._read([r[3] for r in reads], [r[2].data_ptr() for r in reads])
        written(target for _, target, _, _ in reads)
        for item, target, memory, _ in reads:
            if memory is not target:
                target.copy_(memory)
            planner.commit_tensor(item, target)
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Say whether it is a path."""
        return "://" not in os.fspath(checkpoint_id)

    def _saved(self, name: str) -> bytes:
        """A value as torch.save writes it, which is how planners take it."""
        value = self._ckpt.objects[name]
        if isinstance(value, bytes):
            if value.startswith(b"PK"):
                if self._trust or _is_harmless(value):
                    return value
                raise UnsupportedError(
                    f"'{name}' is a pickle, which could run any program",
                    hint="trust_pickles=True loads it, of a checkpoint that you trust",
                )
            value = unpickled(name, value, self._trust)
        out = io.BytesIO()
        torch.save(value, out)
        return out.getvalue()


# -- a plan as entries -----------------------------------------------------------------


def _tensors_of(plan: dcp.SavePlan) -> dict[str, list[Any]]:
    """The chunks that this rank writes, by the names of their tensors."""
    items: dict[str, list[Any]] = {}
    for item in plan.items:
        if item.type != WriteItemType.BYTE_IO:
            items.setdefault(item.index.fqn, []).append(item)
    return items


def _gather_scattered(
    plan: dcp.SavePlan, planner: dcp.SavePlanner, ranks: Ranks
) -> dict[str, list[Any]]:
    """All chunks of tensors that are no box on some rank, for rank 0 to write.

    A ShardedTensor may deal its chunks to ranks in any order. Few do.
    """
    items = _tensors_of(plan)
    scattered = (name for name, parts in items.items() if not _fills_box(parts))
    names = {name for theirs in ranks.gather(set(scattered)) for name in theirs}
    if not names:
        return {}

    def mine() -> dict[str, list[Any]]:
        return {
            name: [
                (item.tensor_data, planner.resolve_data(item).detach().cpu())
                for item in items[name]
            ]
            for name in names.intersection(items)
        }

    told = on_all(ranks, mine)
    return {
        name: [pair for theirs in told for pair in theirs.get(name, ())] for name in names
    }


def _fills_box(parts: list[Any]) -> bool:
    """Whether the chunks are one box: as many elements as the box around them has."""
    chunks = [part.tensor_data.chunk for part in parts]
    chunks = [chunk for chunk in chunks if 0 not in chunk.sizes]
    if not chunks:
        return True
    _, size = _box_around(chunks)
    return bool(sum(math.prod(c.sizes) for c in chunks) == math.prod(size))


def _box_around(chunks: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    begin = tuple(min(of) for of in zip(*(c.offsets for c in chunks)))
    ends = (tuple(b + n for b, n in zip(c.offsets, c.sizes)) for c in chunks)
    return begin, tuple(max(of) - b for of, b in zip(zip(*ends), begin))


def _entries_of(
    plan: dcp.SavePlan,
    planner: dcp.SavePlanner,
    values: dict[str, Any],
    scattered: dict[str, list[Any]],
    rank: int,
) -> Entries:
    """What this rank writes of tensors; `values` gets what is none."""
    for item in plan.items:
        if item.type == WriteItemType.BYTE_IO:
            values[item.index.fqn] = _value_of(planner.resolve_data(item).getvalue())
    paths = plan.planner_data or {}
    has_model = any(len(p) > 1 and p[0] in MODELS for p in paths.values())
    found = Entries()
    pairs_of = {
        name: [(part.tensor_data, planner.resolve_data(part).detach()) for part in parts]
        for name, parts in _tensors_of(plan).items()
        if name not in scattered
    }
    if rank == 0:
        pairs_of.update(scattered)
    for name, pairs in pairs_of.items():
        tensors = [tensor for _, tensor in pairs]
        shape = tuple(pairs[0][0].size)
        chunks = [told.chunk for told, _ in pairs]
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        if dtype not in _abi.ITEM_BYTES:
            raise UnsupportedError(
                f"'{name}' is of {dtype}: no step holds it", tensor=name
            )
        offset, size, local = _joined(name, shape, chunks, tensors)
        role, param = role_of(paths.get(name, ()), name, has_model)
        box = Box.of(dtype, shape, offset, size)
        found.add(name, param, role, box, local)
    return found


def _joined(
    name: str, shape: tuple[int, ...], chunks: list[Any], tensors: list[Any]
) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """Chunks as the one box that they fill."""
    none = (0,) * len(shape)
    pairs = [(c, t) for c, t in zip(chunks, tensors) if 0 not in c.sizes]
    if not pairs:
        return none, none, None
    begin, size = _box_around([chunk for chunk, _ in pairs])
    if len(pairs) == 1:
        return begin, size, pairs[0][1]
    whole = torch.empty(size, dtype=pairs[0][1].dtype)
    filled = torch.zeros(size, dtype=torch.bool)
    for chunk, tensor in pairs:
        place = tuple(
            slice(o - b, o - b + n) for o, b, n in zip(chunk.offsets, begin, chunk.sizes)
        )
        whole[place] = tensor.to("cpu")
        filled[place] = True
    if not filled.all() or sum(math.prod(c.sizes) for c, _ in pairs) != whole.numel():
        raise UnsupportedError(f"'{name}' is no box on every rank", tensor=name)
    return begin, size, whole


def role_of(path: Any, name: str, has_model: bool) -> tuple[str, str]:
    """What a tensor is to training, by its path, and its weight."""
    state = re.fullmatch(r"(?:.*?\.)?state\.(.+)\.(\w+)", name)
    if state and state[2] in MOMENTS and not state[1].isdigit():
        return state[2], state[1]
    if len(path) > 1 and str(path[0]).startswith("optim"):
        return "optim", name
    if len(path) == 2 and path[0] in MODELS:
        return "model", str(path[1])
    if len(path) == 1 and not has_model:
        return "model", name
    return "other", name


def _paths_of(plan: dcp.SavePlan) -> dict[str, list[Any]]:
    """Where names of this rank stand in the nested state dict."""
    mapping = plan.planner_data or {}
    names = {item.index.fqn for item in plan.items}
    return {name: list(mapping.get(name, (name,))) for name in names}


def _value_of(saved: bytes) -> Any:
    """A plain value where it comes back as it is, else what torch.save made of it."""
    if not _is_harmless(saved):
        return Pickle(saved)
    value = torch.load(io.BytesIO(saved), weights_only=True)
    return value if is_json(value) else Pickle(plain_pickle("", value) or saved)


def _is_harmless(saved: bytes) -> bool:
    """Whether no program can be in it."""
    try:
        torch.load(io.BytesIO(saved), weights_only=True)
    except Exception:
        return False
    return True


def _done(result: Any) -> Any:
    future: Any = Future()
    future.set_result(result)
    return future
