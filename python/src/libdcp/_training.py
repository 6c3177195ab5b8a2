"""Saves and loads of training: what all ranks hold, as one step of a run."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import marshal
import operator
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._act import Act
from ._array import is_inferring, no_grad
from ._checkpoint import Checkpoint, check_step
from ._errors import MismatchError, UsageError
from ._loaded import Loaded
from ._look import look
from ._ranks import Ranks, on_all
from ._saver import (
    Handle,
    SaveResult,
    call,
    in_turn,
    saver_of,
    settle,
    tell,
    turn_of,
)
from ._state import Staging, State
from ._warn import warn, warn_all, warnings_later

EXPORT_NAME = "pytorch_model.bin"


@dataclass(frozen=True)
class LoadResult:
    """A step that was loaded."""

    step: int
    world_size: int  # that saved it
    size_bytes: int  # read by this rank
    n_tensors: int
    n_unproved: int


def _warn(level: int, message: bytes) -> None:
    warn(_abi.text(message))


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Tens of thousands of small objects that stay do not set off the collector, which
    would look through all that the program has.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def agreed(
    make: Callable[[], State], ranks: Ranks, act: str, how: Mapping[str, Any]
) -> State:
    """What all ranks hold; what is wrong on one of them is raised on all.

    act: that they do, and how: as all of them must do it. Warnings wait: where they are
    errors they must not be raised on one rank while the others go on.
    """
    with warnings_later() as told:
        made = _agreed(make, ranks, act, how)
    made.warnings = told
    return made


@no_collections()
def _agreed(
    make: Callable[[], State], ranks: Ranks, act: str, how: Mapping[str, Any]
) -> State:
    import hashlib  # which brings libraries with it

    states: list[State] = []  # this rank's, when it is made

    def tell() -> tuple[Any, bytes, bytes, bool, bool, bool]:
        with no_grad():
            try:
                made = make()
            except RecursionError:
                raise UsageError(
                    "the state is nested too deeply, or holds itself"
                ) from None
        made.check_names()
        digest = made.columns.digest
        if made.is_save:
            made.mark_replicas()
        # Version 0 of marshal: equal values have equal bytes.
        values = hashlib.sha256(marshal.dumps(made.values, 0)).digest()
        states.append(made)
        said = {"call": act, **how}
        has_optimizers = bool(made.optimizers)
        return said, digest, values, made.is_away, made.looks, has_optimizers

    said, digests, values, away, looks, optimizers = zip(*on_all(ranks, tell))
    _check_said(said)
    (made,) = states
    columns = made.columns
    made.is_away, made.looks = any(away), any(looks)
    made.any_optimizers = any(optimizers)
    made.unite(None if len(set(digests)) == 1 else ranks.gather(made.facts))
    if len(set(values)) > 1:
        made.keep_by_rank(ranks)
    columns.is_compared = columns.is_compared or made.is_save
    return made


def _check_said(said: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what ranks mean differently: each would do something else."""
    for rank, theirs in enumerate(said):
        for what, first in said[0].items():
            if theirs.get(what) != first:
                raise MismatchError(
                    f"ranks mean different things: {what} is {first!r} on rank 0, "
                    f"{theirs.get(what)!r} on rank {rank}"
                )


@in_turn
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
    delta: int = 0,
    export: str | None = None,
    export_name: str = EXPORT_NAME,
    verify_after_save: bool = False,
    diverged: bool = False,
    threads: int = 0,
) -> SaveResult:
    """Save a state as a step of a run folder. Collective under torch.distributed.

    state: models, optimizers (with their model), other objects with `state_dict` and
    `load_state_dict`, tensors, DTensors, plain values, and dicts of such. What several
    ranks hold is written once. Tensors may be on any device. What is no JSON is pickled.

    step: its number; one that is there is an ExistsError. group: the ranks, if not those
    of the default process group. keep: so many of the newest steps stay, 0: all;
    keep_every: and those whose number it divides; keep_optimizer: older ones lose the
    state of the optimizer. codec: "split" compresses. parity: so many lost files can be
    rebuilt. delta: of so many saves one is full; the others write what differs from it.
    export: "bf16", "fp16" or "fp32": all weights in one file besides, in that dtype.
    verify_after_save: what is read back comes from the disk. diverged: the loss is not
    finite, and older steps stay. threads: 0 is as many as there are cores.

    When it returns the step is complete and durable; when it raises, on all ranks, the
    step before is. A save in the background is waited for first.
    """
    given = dict(locals())
    act = Act()
    ranks = Ranks(act, group)
    made, how = _agreed_save(given, ranks, "save")
    return write(act, ranks, made, path=path, threads=threads, **how)


@in_turn
def save_async(
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
    delta: int = 0,
    export: str | None = None,
    export_name: str = EXPORT_NAME,
    verify_after_save: bool = False,
    diverged: bool = False,
    threads: int = 0,
) -> Handle:
    """Save as `save` does, in the background: training may change the state at once.

    Returns when the state has been copied, to memory that is kept for the next save. The
    handle's `wait` returns when the step is complete and durable, or raises, on all ranks
    alike. One save of a process group is in flight: the next one waits for it. The
    interpreter waits for it before it ends; `destroy_process_group` does not.
    """
    given = dict(locals())
    ranks = Ranks(Act(), group)
    known = settle(ranks)
    staging = (known and known.staging) or Staging()
    made, how = _agreed_save(given, ranks, "save_async", staging)
    saver = saver_of(ranks, _abi.raw(path) or b"", threads)
    saver.staging = staging
    # Now that all are there: making a group waits for its time-out where one is gone.
    beside = Ranks(Act(), group, beside=True)
    try:
        saver.start(ranks, made, in_place=made.is_away, **how)
    except BaseException:
        tell(saver.messages())
        raise
    return saver.finish_beside(step, beside, made.warnings)


def write(
    act: Act,
    ranks: Ranks,
    made: State,
    *,
    path: str | os.PathLike[str] | bytes | None,
    threads: int = 0,
    **how: Any,
) -> SaveResult:
    """Save what all ranks agreed on."""
    assert act is ranks.act
    with turn_of(ranks.given):
        saver = saver_of(ranks, _abi.raw(path) or b"", threads)
        try:
            saver.start(ranks, made, in_place=True, **how)
            result = saver.finish(ranks)
        finally:
            tell(saver.messages())
    warn_all(made.warnings)
    return result


def _agreed_save(
    given: Mapping[str, Any], ranks: Ranks, act: str, staging: Staging | None = None
) -> tuple[State, dict[str, Any]]:
    """The state that all ranks save, and how; given: the arguments of `save`."""
    how: dict[str, Any] = {}
    said: dict[str, Any] = {}

    def make() -> State:
        others = ("state", "path", "group", "threads")
        how.update(options_of(**{k: v for k, v in given.items() if k not in others}))
        check_place(given["path"], given["threads"])
        said.update(how, path=os.path.abspath(os.fsdecode(given["path"])))
        return State(given["state"], ranks, given["step"], staging)

    return agreed(make, ranks, act, said), how


def check_place(path: Any, threads: Any) -> None:
    """Refuse what is no path, and no number of threads."""
    try:
        given = _abi.raw(path)
    except (TypeError, ValueError) as why:
        raise UsageError(f"{path!r} is no path of a run folder: {why}") from None
    if not given:
        raise UsageError(f"{path!r} is no path of a run folder")
    if not os.path.isabs(given):
        try:
            os.getcwd()
        except OSError:
            raise UsageError(
                f"{path!r} begins at a folder that was removed",
                hint="give an absolute path",
            ) from None
    _whole("threads", threads)


def _whole(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is a whole number, not {value!r}") from None
    if number < 0:
        raise UsageError(f"{name} is no number below 0, as {value} is")
    return number


def options_of(
    *,
    codec: str | bytes | None = None,
    export: str | None = None,
    export_name: str = EXPORT_NAME,
    **how: Any,
) -> dict[str, Any]:
    """As the library takes them."""
    if not export_name:
        raise UsageError("export_name is the name of a file, and not empty")
    for text in (codec, export, export_name):
        if not isinstance(text, (str, bytes, type(None))):
            raise UsageError(f"{text!r} is no text")
    for name, value in how.items():
        if name in ("verify_after_save", "diverged"):
            how[name] = bool(value)
            continue
        how[name] = _whole(name, value)
    if codec is not None:
        how["codec"] = _abi.raw(codec)
    if export is not None:
        how["export_dtype"] = _abi.raw(export)
        how["export_name"] = _abi.raw(export_name)
        tensors = export_name.endswith(".safetensors")
        how["export_format"] = b"safetensors" if tensors else b"torch"
    return how


@in_turn
def load(
    state: MutableMapping[str, Any],
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    group: Any = None,
    rewind: bool = False,
    allow_cast: bool = False,
    verify: bool = True,
    trust_pickles: bool = False,
    threads: int = 0,
) -> LoadResult:
    """Load a step into a state, in place, at any number of ranks. Collective.

    state: as it was given to `save`: models, optimizers and tensors are filled, plain
    values are put into the dicts. The newest complete step is taken, or the one that
    `step` numbers. rewind: training goes on from this step: those above it, of a course
    that is given up, are renamed to `step-….aside`, and are no part of the run any more.
    Pickles are only loaded with trust_pickles=True.
    """
    act = Act()
    ranks = Ranks(act, group)
    known = settle(ranks)
    if rewind and known is not None:
        known.close()  # which may have based deltas on what is set aside
    how = {
        "step": step,
        "rewind": bool(rewind),
        "allow_cast": bool(allow_cast),
        "verify": bool(verify),
        "trust_pickles": bool(trust_pickles),
    }

    def make() -> State:
        check_step(step)
        check_place(path, threads)
        if is_inferring():
            raise UsageError(
                "a load under torch.inference_mode() makes what cannot be trained",
                hint="load before it, or under torch.no_grad()",
            )
        return State(state, ranks)

    made = agreed(make, ranks, "load", how)
    look(made, ranks, lambda: Checkpoint(path, step=step), trust_pickles, allow_cast)
    made.part_shared()
    result, loaded = _abi.LoadResult.new(), ctypes.c_void_p()
    options = _abi.LoadOptions.new(
        path=_abi.raw(path),
        step=-1 if step is None else step,
        with_optimizer=made.any_optimizers,
        allow_cast=how["allow_cast"],
        no_verify=not how["verify"],
        threads=threads,
        log=_abi.OnLog(act.guarded(_warn)),
    )
    told = made.told(with_objects=False)
    try:
        call(
            ranks,
            _abi.lib.dcp_flat_load,
            ctypes.byref(options),
            ranks.told,
            ctypes.byref(told),
            ctypes.byref(result),
            ctypes.byref(loaded),
        )
        objects = _objects(loaded)
    finally:
        _abi.lib.dcp_flat_loaded_free(loaded)

    got = Loaded(
        objects,
        result.world_size,
        ranks,
        trust_pickles,
        lambda: Checkpoint(path, step=result.step, verify=verify),
    )

    def fill() -> set[str]:
        made.fill(got)
        return got.others

    others = on_all(ranks, fill)[ranks.rank] if made.looks else fill()
    if rewind:  # now that nothing of the load can fail
        options.step = result.step
        call(ranks, _abi.lib.dcp_flat_rewind, ctypes.byref(options), ranks.told)
    if others:
        names = ", ".join(f"'{name}'" for name in sorted(others))
        got.remarks.append(
            f"{result.world_size} ranks saved values of their own of {names}; "
            f"all {ranks.world_size} have got those of one"
        )
    warn_all(made.warnings)
    for remark in [*made.remarks, *got.remarks] if ranks.rank == 0 else ():
        warn(remark)
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
