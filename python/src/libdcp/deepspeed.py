"""Checkpoints of DeepSpeed: each is a step of libdcp.

engine, *rest = deepspeed.initialize(...)
libdcp.deepspeed.install(engine, parity=1)
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import pickle
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

from ._act import Act
from ._acts import reshard
from ._checkpoint import open_checkpoint
from ._errors import (
    CorruptError,
    Error,
    MismatchError,
    NotFoundError,
    UnsupportedError,
)
from ._folder import hidden, published, write_file
from ._options import check_options
from ._ranks import Ranks, on_first
from ._tree import TREE, load_tree, save_tree
from ._warn import warn

__all__ = ["CheckpointEngine", "install", "unpack"]

STATE = "state"  # the folder with the step, beside the files that DeepSpeed looks for
STATES = re.compile(r".*_states\.pt")  # what is of the training; other files are exports
MARK = "libdcp"
MARK_BYTES = 100  # more than any has
# What DeepSpeed has in the states of a model; the rest is the caller's.
DEEPSPEEDS = {
    "autoep_layers",
    "buffer_names",
    "checkpoint_parallel_dimensions",
    "data_sampler",
    "dp_world_size",
    "ds_autoep_layers",
    "ds_config",
    "ds_version",
    "folding",
    "frozen_param_fragments",
    "frozen_param_shapes",
    "global_samples",
    "global_steps",
    "lr_scheduler",
    "module",
    "mp_world_size",
    "num_experts",
    "optimizer",
    "param_shapes",
    "random_ltd",
    "shared_params",
    "skipped_steps",
    "sparse_tensor_module_names",
    "universal_checkpoint_info",
}
TORCH = (b"PK", b"\x80")  # how files of torch.save begin: as archives, or as pickles


class CheckpointEngine(TorchCheckpointEngine):  # type: ignore[misc]
    """Holds what DeepSpeed saves until it commits, and makes one step of it then.

    In place of each file there is a short one that tells which part of the step it is.
    """

    def __init__(self, config: Any, *, trust_pickles: bool, **how: Any) -> None:
        """See `install`."""
        check_options(how, "install", "a checkpoint has one step")
        super().__init__(config)
        self.name = type(self).__name__
        self._trust, self._how = trust_pickles, how
        self._held: dict[str, Any] = {}
        self.with_latest = True

    def create(self, info: Any) -> None:
        """Begin a checkpoint."""
        self._held = {}

    def save(self, state_dict: Any, path: str) -> None:
        """Hold a file of a checkpoint; write any other."""
        if STATES.fullmatch(os.path.basename(path)):
            self._held[path] = state_dict
        else:
            super().save(state_dict, path)

    def commit(self, info: Any) -> bool:
        """Save what all ranks hold, and let it be the newest."""
        ranks, held, self._held = Ranks(Act()), self._held, {}
        if not any(ranks.gather(bool(held))):
            return True
        found = re.search(r"(\d+)\D*$", info.tag)
        step = int(found[1]) if found else 0
        tree = {os.path.basename(path): state for path, state in held.items()}
        folder = os.path.join(info.save_dir, info.tag)
        with published(os.path.join(folder, STATE), ranks) as room:
            save_tree(tree, room, step, ranks, **self._how)
        files = ranks.gather([os.path.basename(path) for path in held])

        def mark() -> None:
            for rank, names in enumerate(files):
                for name in names:
                    write_file(os.path.join(folder, name), _mark(rank))
            if self.with_latest:
                write_file(os.path.join(info.save_dir, "latest"), info.tag)

        on_first(ranks, mark)
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        """Load what `save` was given, or a file that DeepSpeed wrote itself."""
        mark = _mark_of(path)
        if mark is None:
            return super().load(path, map_location)
        state = os.path.join(os.path.dirname(path), mark[MARK])
        try:
            return load_tree(
                state,
                rank=mark["rank"],
                part=os.path.basename(path),
                trust_pickles=self._trust,
            )
        except NotFoundError as why:
            if not os.path.isdir(state):
                raise
            raise CorruptError(f"{path} is not what was saved: {why}", file=path) from why

    def preserves_storage_sharing(self) -> bool:
        """Say that tensors are saved without what else is in their memory."""
        return False


def install(engine: Any, *, trust_pickles: bool = True, **how: Any) -> Any:
    """Let this engine of DeepSpeed save and load through libdcp.

    DeepSpeed takes no other engines by its configuration. What ZeRO saved is loaded at
    any number of ranks: `load_checkpoint` reshards it first, where that differs.
    trust_pickles: values that could run a program are loaded, as DeepSpeed itself loads
    all. how: `parity`, `codec` and so on, as in `libdcp.save`.
    """
    if engine.checkpoint_engine.is_decoupled():
        raise UnsupportedError("saves of DeepSpeed in the background are its own")
    ours = CheckpointEngine(engine._config, trust_pickles=trust_pickles, **how)
    engine.checkpoint_engine = ours
    theirs = engine.save_checkpoint

    def save_checkpoint(
        save_dir: str,
        tag: Any = None,
        client_state: Any = None,
        save_latest: bool = True,
        **kwargs: Any,
    ) -> Any:
        # DeepSpeed truncates `latest` before it writes it.
        ours.with_latest = save_latest
        return theirs(save_dir, tag, client_state or {}, False, **kwargs)

    load = engine.load_checkpoint

    def load_checkpoint(load_dir: str, tag: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(load).bind(load_dir, tag, *args, **kwargs).arguments
        # Without its states the weights of ZeRO-3 are read by DeepSpeed itself.
        by_itself = (
            engine.zero_optimization_partition_weights()
            and not given.get("load_optimizer_states", True)
            and not engine.has_moe_layers
        )
        with _for_deepspeed(engine, load_dir, tag, trust_pickles, by_itself) as folder:
            found, told = load(folder, tag, *args, **kwargs)
        if found is not None:  # a name that is there afterwards, too
            found = os.path.join(load_dir, os.path.relpath(found, folder))
            if _is_resharded(told):
                del told[MARK]
        return found, told

    engine.save_checkpoint, engine.load_checkpoint = save_checkpoint, load_checkpoint
    return engine


@contextlib.contextmanager
def _for_deepspeed(
    engine: Any, load_dir: str, tag: Any, trust: bool, by_itself: bool
) -> Iterator[str]:
    """Give where DeepSpeed finds the partitions of as many ranks as there are now.

    It loads those of ZeRO at the world size that saved them alone. Others are resharded
    into a hidden folder beside them, of DeepSpeed's own files, that is gone afterwards.
    by_itself: it is to have such files in any case.
    """
    ranks = Ranks(Act())

    def look() -> tuple[str, str, bool] | None:
        if engine.load_universal_checkpoint():
            return None  # DeepSpeed's own, for any number of ranks
        name = str(tag if tag is not None else _newest_of(load_dir))
        state = os.path.join(load_dir, name, STATE)
        if not _is_ours(state) or not engine.zero_optimization():
            return None
        with open_checkpoint(state) as ckpt:
            same = ckpt.info.world_size == ranks.world_size
        if not same and engine.mp_world_size > 1:
            raise UnsupportedError(
                f"{state} is of another number of ranks, in parts of a model",
                hint="libdcp.deepspeed.unpack and dcp-reshard",
            )
        return None if same and not by_itself else (name, state, same)

    found = on_first(ranks, look)
    if found is None:
        yield load_dir
        return
    name, state, same = found
    with _room(load_dir, ranks) as room:
        theirs, own = os.path.join(room, "theirs"), os.path.join(room, "own")

        def make() -> None:
            made = os.path.join(theirs, name)
            differing = _unpack(os.path.dirname(state), made, trust)
            write_file(os.path.join(theirs, "latest"), name)
            if same:
                os.rename(theirs, own)
                return
            _reshard(made, own, ranks.world_size, trust, os.path.dirname(state))
            made = os.path.join(own, name)
            if not os.path.isdir(made):  # a tag that is not named by its step
                (only,) = (path for path in os.scandir(own) if path.is_dir())
                os.rename(only.path, made)
                write_file(os.path.join(own, "latest"), name)
            if differing:
                warn(
                    "each rank saved values of its own of "
                    f"{', '.join(map(repr, differing))} in {os.path.dirname(state)}; all "
                    f"{ranks.world_size} have got those of rank 0"
                )

        on_first(ranks, make)
        yield own
        ranks.gather(None)  # all have read it


def _is_ours(state: str) -> bool:
    """Whether the files beside a step lead to it: DeepSpeed may have saved its own over
    them. A mixture of both is refused.
    """
    if not os.path.isdir(state):
        return False
    folder = os.path.dirname(state)
    names = [name for name in os.listdir(folder) if STATES.fullmatch(name)]
    theirs = {n for n in names if _mark_of(os.path.join(folder, n)) is None}
    if theirs and len(theirs) < len(names):
        # Some may be left of a save by more ranks, before ours.
        with open_checkpoint(state) as ckpt:
            for rank in range(ckpt.info.world_size):
                tree = ckpt.objects.get(f"{TREE}.{rank}" if rank else TREE)
                for name in theirs.intersection(tree["dict"] if tree else ()):
                    raise MismatchError(
                        f"{folder} has a step of libdcp, and {name}, which DeepSpeed "
                        "saved over it without libdcp",
                        hint="load another tag; libdcp.deepspeed.unpack gives the step",
                    )
        return True
    return not theirs


@contextlib.contextmanager
def _room(folder: str, ranks: Ranks) -> Iterator[str]:
    """Give all ranks a folder for a load: beside the checkpoint, if that may be."""

    def is_writable() -> bool:
        with (
            contextlib.suppress(OSError),
            tempfile.TemporaryDirectory(prefix=".load.", dir=folder),
        ):
            return True
        return False

    if on_first(ranks, is_writable):
        with hidden(os.path.join(folder, "load"), ranks) as room:
            yield room
        return
    with contextlib.ExitStack() as stack:
        make = tempfile.TemporaryDirectory
        room = on_first(ranks, lambda: stack.enter_context(make(prefix="libdcp-load-")))
        if not all(ranks.gather(os.path.isdir(room))):
            raise UnsupportedError(
                f"{folder} cannot be written to, and {room} is not seen by all ranks",
                hint="TMPDIR may name a folder that all machines see",
            )
        yield room


def _reshard(source: str, target: str, world_size: int, trust: bool, named: str) -> None:
    """Reshard what was unpacked; errors name the checkpoint that it is of."""
    try:
        reshard(source, target, to="deepspeed", world_size=world_size, keep_unsafe=trust)
    except Error as why:
        raise type(why)(
            why.message.replace(source, named),
            file=why.file.replace(source, named),
            tensor=why.tensor,
            hint=why.hint
            or "load it with as many ranks as saved it, in the same parallel layout",
            errno=why.errno,
        ) from None


def _is_resharded(told: dict[str, Any]) -> bool:
    """Whether a state of the client has what a reshard says of each file."""
    said = told.get(MARK)
    return isinstance(said, dict) and set(said) == {"version", "step", "world", "rank"}


def _newest_of(folder: str) -> str | None:
    try:
        with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return None


def unpack(path: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write the files that DeepSpeed itself would have written.

    path: a folder `global_step…`. DeepSpeed's tools read them, and `libdcp.open` and
    `dcp-reshard`, by the names of weights.
    """
    _unpack(path, target, True)


def _unpack(
    path: str | os.PathLike[str], target: str | os.PathLike[str], trust: bool
) -> list[str]:
    """Do it; give the names of the caller's values that ranks have otherwise."""
    state = os.path.join(path, STATE)
    with open_checkpoint(state) as ckpt:
        world_size = ckpt.info.world_size
    os.makedirs(target)
    first: dict[Any, Any] = {}
    differing = set()
    for rank in range(world_size):
        for name, value in load_tree(state, rank=rank, trust_pickles=trust).items():
            torch.save(value, os.path.join(target, name))
            if name.endswith("_model_states.pt") and "module" in value:
                for key in set(value).difference(DEEPSPEEDS):
                    if not _alike(first.setdefault(key, value[key]), value[key]):
                        differing.add(str(key))
    return sorted(differing)


def _alike(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return bool(a.dtype == b.dtype and torch.equal(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_alike, a, b))
    return pickle.dumps(a) == pickle.dumps(b)


def _mark_of(path: str) -> dict[str, Any] | None:
    """What stands in a file of ours; None: it is what torch.save wrote."""
    with open(path, "rb") as file:
        text = file.read(MARK_BYTES)
    if text.startswith(TORCH):
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        mark: dict[str, Any] = json.loads(text)
        if text == _mark(mark["rank"]).encode():
            return mark
    raise CorruptError(
        f"{path} is no file of DeepSpeed, and not what was saved", file=path
    )


def _mark(rank: int) -> str:
    return json.dumps({MARK: STATE, "rank": rank}) + "\n"
