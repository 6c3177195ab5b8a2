"""Saves and loads of training: what all ranks hold, as one step of a run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._act import Act
from ._checkpoint import open_checkpoint
from ._errors import CommError
from ._ranks import Ranks
from ._state import State


@dataclass(frozen=True)
class SaveResult:
    """A step that is complete and durable."""

    step: int
    size_bytes: int
    seconds: float
    #: Of the whole state, 16 hex digits; of rank 0 alone.
    fingerprint: str | None


@dataclass(frozen=True)
class LoadResult:
    """A step that was loaded."""

    step: int
    world_size: int  # that saved it
    size_bytes: int  # read by this rank
    n_tensors: int
    n_unproved: int


def _warn(level: int, message: bytes) -> None:
    warnings.warn(_abi.text(message), RuntimeWarning, stacklevel=4)


def _run(act: Act, ranks: Ranks, function: Any, *args: Any) -> None:
    """Call on this thread, which the process group is used by."""
    try:
        act.run_here(function, *args, act.error)
    except CommError:
        if ranks.raised is not None:  # which says more
            raise ranks.raised from None
        raise


def agreed(make: Callable[[], State], ranks: Ranks) -> State:
    """What all ranks hold; what is wrong on one of them is raised on all."""
    import hashlib  # which brings libraries with it

    import torch

    made, why, digest = None, None, b""
    try:
        with torch.no_grad():
            made = make()
        digest = hashlib.sha256(repr(made.facts).encode()).digest()
    except Exception as error:
        why = error
    told = ranks.gather((why and f"{type(why).__name__}: {why}", digest))
    if why is not None:
        raise why
    for rank, (failed, _) in enumerate(told):
        if failed:
            raise CommError(f"rank {rank} failed: {failed}", rank=rank)
    assert made is not None
    alike = all(theirs == digest for _, theirs in told)
    made.unite([made.facts] if alike else ranks.gather(made.facts))
    return made


def _leave_out(
    made: State, ranks: Ranks, path: str | os.PathLike[str], step: int | None
) -> None:
    """Do not ask for what the step lacks and has otherwise, as steps of dcp-train do."""
    if not made.may_lack:
        return
    names: set[str] = set()
    if ranks.rank == 0:
        # What is wrong with the step is said by the load, on all ranks.
        with contextlib.suppress(Exception), open_checkpoint(path, step=step) as found:
            names = made.lacked_by(found)
    made.leave_out(ranks.gather(names)[0])


def save(
    state: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    step: int,
    group: Any = None,
    keep: int = 0,
    keep_every: int = 0,
    keep_optimizer: int = 0,
    codec: str | None = None,
    parity: int = 0,
    verify_after_save: bool = False,
    diverged: bool = False,
    threads: int = 0,
) -> SaveResult:
    """Save a state as a step of a run folder. Collective under torch.distributed.

    state: models, optimizers (with their model), other objects with `state_dict` and
    `load_state_dict`, tensors, DTensors, plain values, and dicts of such. What several
    ranks hold is written once. Tensors may be on any device. Plain values are those of
    rank 0; what is no JSON is pickled.

    When it returns the step is complete and durable; when it raises, on all ranks, the
    step before is.
    """
    act = Act()
    ranks = Ranks(act, group)
    made = agreed(lambda: State(state, ranks, step), ranks)
    return write(
        act,
        ranks,
        made,
        path=_abi.raw(path),
        step=step,
        codec=_abi.raw(codec),
        keep=keep,
        keep_every=keep_every,
        keep_optimizer=keep_optimizer,
        parity=parity,
        verify_after_save=verify_after_save,
        diverged=diverged,
        threads=threads,
    )


def write(act: Act, ranks: Ranks, made: State, **how: Any) -> SaveResult:
    """Save what all ranks agreed on."""
    result = _abi.SaveResult.new()
    options = _abi.SaveOptions.new(
        **how,
        log=_abi.OnLog(act.guarded(_warn)),
    )
    told = made.told(with_objects=True)
    _run(
        act,
        ranks,
        _abi.lib.dcp_flat_save,
        ctypes.byref(options),
        ranks.told,
        ctypes.byref(told),
        ctypes.byref(result),
    )
    return SaveResult(
        result.step,
        result.size_bytes,
        result.write_s,
        f"{result.fingerprint:016x}" if ranks.rank == 0 else None,
    )


def load(
    state: MutableMapping[str, Any],
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    group: Any = None,
    allow_cast: bool = False,
    verify: bool = True,
    trust_pickles: bool = False,
    threads: int = 0,
) -> LoadResult:
    """Load a step into a state, in place, at any number of ranks. Collective.

    state: as it was given to `save`: models, optimizers and tensors are filled, plain
    values are put into the dicts. The newest complete step is taken, or the one that
    `step` numbers. Pickles are only loaded with trust_pickles=True.
    """
    act = Act()
    ranks = Ranks(act, group)
    made = agreed(lambda: State(state, ranks), ranks)
    _leave_out(made, ranks, path, step)
    result, loaded = _abi.LoadResult.new(), ctypes.c_void_p()
    options = _abi.LoadOptions.new(
        path=_abi.raw(path),
        step=-1 if step is None else step,
        allow_cast=allow_cast,
        no_verify=not verify,
        threads=threads,
        log=_abi.OnLog(act.guarded(_warn)),
    )
    told = made.told(with_objects=False)
    try:
        _run(
            act,
            ranks,
            _abi.lib.dcp_flat_load,
            ctypes.byref(options),
            ranks.told,
            ctypes.byref(told),
            ctypes.byref(result),
            ctypes.byref(loaded),
        )
        made.fill(_objects(loaded), trust_pickles)
    finally:
        _abi.lib.dcp_flat_loaded_free(loaded)
    return LoadResult(
        result.step,
        result.world_size,
        result.size_bytes,
        result.n_tensors,
        result.n_unproved,
    )


def _objects(loaded: ctypes.c_void_p) -> dict[str, tuple[bool, bytes]]:
    """Whether it is JSON, and its bytes, of each."""
    found: dict[str, tuple[bool, bytes]] = {}
    told = _abi.Object.new()
    while not _abi.lib.dcp_flat_loaded_object(loaded, len(found), ctypes.byref(told)):
        data = ctypes.string_at(told.data, told.size_bytes) if told.size_bytes else b""
        found[_abi.text(told.name)] = bool(told.is_json), data
    return found
