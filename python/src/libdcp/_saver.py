"""What is kept from one save to the next, and the save that goes on in the background.

Each process group has one saver, and one save in flight. The library keeps staging memory
in it, the weights of the step before, and the step that others are deltas on.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from . import _abi
from ._errors import CommError, Error, UsageError
from ._ranks import ByGroup, Ranks, check_group, not_heard
from ._tcp import SAVES
from ._warn import Told, warn, warn_all

if TYPE_CHECKING:
    from ._state import State

F = TypeVar("F", bound=Callable[..., Any])
SUSPICION = "was something else trained than saved?"  # ends what the library says of it


class StaleWarning(RuntimeWarning):
    """What was saved looks as if it were not what was trained."""


@dataclass(frozen=True)
class SaveResult:
    """A step that is complete and durable."""

    step: int
    size_bytes: int
    seconds: float
    #: Of the whole state, 16 hex digits; of rank 0 alone.
    fingerprint: str | None
    #: That training was held up.
    stall_seconds: float = 0.0
    #: Of the step's files: fewer than `size_bytes` in a delta. Of rank 0 alone.
    written_bytes: int = 0


class Handle:
    """A save that goes on in the background; `wait` says how it ended."""

    def __init__(self, step: int) -> None:
        """Belong to a save that was begun."""
        self.step = step
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._result: SaveResult | None = None
        self._why: BaseException | None = None
        self._at: Any = None  # where that was raised
        self._messages: list[str] = []
        self._warnings: list[Told] = []
        self._told = False

    def done(self) -> bool:
        """Say whether it has ended, well or not; asks no other rank."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> SaveResult:
        """Return when the step is complete and durable, or raise, on all ranks alike.

        timeout: in seconds, after which a TimeoutError is raised; the save goes on.
        """
        if self._pid != os.getpid():
            raise UsageError("a process that was forked off waits for no save")
        if not self._ended.wait(timeout):
            raise TimeoutError(f"step {self.step} is not complete after {timeout} s")
        if not self._told:
            self._told = True
            tell(self._messages)
            warn_all(self._warnings)
        if self._why is not None:
            raise self._why.with_traceback(self._at)  # it grows where it is raised again
        assert self._result is not None
        return self._result

    @property
    def result(self) -> SaveResult:
        """What `wait` returns."""
        return self.wait()

    def __repr__(self) -> str:
        """Say of which step, and how far it is."""
        how = "in flight" if not self.done() else "failed" if self._why else "complete"
        return f"<libdcp.Handle of step {self.step}: {how}>"

    def _run(self, saver: Saver, ranks: Ranks) -> None:
        """Finish it: what the thread does."""
        try:
            self._result = saver.finish(ranks)
        except BaseException as why:
            self._why, self._at = why, why.__traceback__
        self._messages = saver.messages()
        saver.in_flight = None
        if self._why is not None:
            _failed.append(self)
        self._ended.set()


_savers: ByGroup[Saver] = ByGroup()
_failed: list[Handle] = []  # which nobody may have heard of
_turns: ByGroup[threading.RLock] = ByGroup()
_turns_lock = threading.Lock()


def turn_of(given: Any) -> Any:
    """The lock of a group: one thread at a time saves or loads with it."""
    with _turns_lock:
        return _turns.setdefault(given, threading.RLock())


def in_turn(act: F) -> F:
    """A function with the argument `group`, for which threads wait for each other."""

    @functools.wraps(act)
    def call(*args: Any, **how: Any) -> Any:
        check_group(how.get("group"))
        with turn_of(how.get("group")):
            return act(*args, **how)

    return cast(F, call)


class Saver:
    """Saves of one process group to one run folder. It does not keep the group."""

    def __init__(self, path: bytes, ranks: Ranks, threads: int) -> None:
        """Open the run folder, on all ranks."""
        self.path, self.threads = path, threads
        self._group = None if ranks.group is None else weakref.ref(ranks.group)
        self.in_flight: Handle | None = None
        self.staging: Any = None  # see Staging
        self.broken = False  # ranks did not hear each other
        self._now: Ranks | None = ranks  # whom the library talks by, in a call
        self._heard: list[str] = []
        self._handle = ctypes.c_void_p()
        hear = self._heard.append
        self._log = _abi.OnLog(lambda _, _level, message: hear(_abi.text(message)))
        options = _abi.SaverOptions.new(path=path, threads=threads, log=self._log)
        saver = weakref.ref(self)
        self._comm = ranks.comm_of(lambda: getattr(saver(), "_now", None), SAVES)
        told = ctypes.byref(self._comm) if self._comm else None
        call(
            ranks,
            _abi.lib.dcp_flat_saver_new,
            ctypes.byref(options),
            told,
            ctypes.byref(self._handle),
        )
        self._now = None
        self._free = weakref.finalize(self, _abi.lib.dcp_flat_saver_free, self._handle)
        self._free.atexit = False  # a thread that nobody waits for may be in a save
        self._place = place_of(path)

    def is_of(self, group: Any) -> bool:
        """Say whether it saves for that very group."""
        if self._group is None or group is None:
            return self._group is group
        return self._group() is group

    def is_gone(self) -> bool:
        """Say whether somebody removed the folder, and perhaps made another."""
        return place_of(self.path) != self._place

    def messages(self) -> list[str]:
        """What the library said since the last time."""
        heard = self._heard[:]
        del self._heard[: len(heard)]
        return heard

    def start(self, ranks: Ranks, made: State, **how: Any) -> None:
        """Begin to save what all ranks agreed on."""
        options = _abi.SaveOptions.new(**how)
        told = made.told(with_objects=True)
        self._call(
            ranks,
            _abi.lib.dcp_flat_save_start,
            ctypes.byref(options),
            ctypes.byref(told),
        )

    def finish(self, ranks: Ranks) -> SaveResult:
        """Return when it is saved."""
        result = _abi.SaveResult.new()
        self._call(ranks, _abi.lib.dcp_flat_save_wait, ctypes.byref(result))
        first = ranks.rank == 0
        return SaveResult(
            result.step,
            result.size_bytes,
            result.write_s,
            f"{result.fingerprint:016x}" if first else None,
            result.stall_s,
            result.written_bytes,
        )

    def finish_beside(self, step: int, ranks: Ranks, warnings: list[Told]) -> Handle:
        """Let it be finished by a thread, which has its own way to talk to the others.

        warnings: that are given when it is waited for.
        """
        self.in_flight = handle = Handle(step)
        handle._warnings = warnings
        # No daemon: the interpreter waits for it before it ends, unless it does already.
        if threading.main_thread().is_alive():
            threading.Thread(
                target=handle._run, args=(self, ranks), name="libdcp-save"
            ).start()
        else:
            handle._run(self, ranks)
        return handle

    def _call(self, ranks: Ranks, function: Any, *args: Any) -> None:
        self._now = ranks
        try:
            call(ranks, function, self._handle, *args)
        except BaseException as why:
            # Who knows what the others are at, or whether a save has begun.
            self.broken |= isinstance(why, CommError) or not isinstance(why, Error)
            raise
        finally:
            self._now = None

    def settle(self) -> None:
        """Wait for the save in flight, however it ends."""
        handle = self.in_flight
        if handle is not None:
            handle._ended.wait()

    def close(self) -> None:
        """Give memory back."""
        for given, known in list(_savers.items()):
            if known is self:
                del _savers[given]
        self.settle()
        self._free()
        self._handle = ctypes.c_void_p()
        self.staging = None

    def forget(self) -> None:
        """Leave alone what another process has."""
        self._free.detach()


def saver_of(ranks: Ranks, path: bytes, threads: int) -> Saver:
    """The saver of a process group, when no save is in flight; alike on all ranks."""
    if not path:
        raise UsageError("a save needs the path of a run folder")
    # Not abspath: "..", behind a link, is of where that leads, as for a load.
    if not os.path.isabs(path):
        path = os.path.join(os.getcwdb(), path)
    known = settle(ranks)
    fits = (
        known is not None
        and (known.path, known.threads) == (path, threads)
        and known.is_of(ranks.group)
        and not known.broken
        and not known.is_gone()
    )
    if all(ranks.gather(fits)) and known is not None:
        return known
    if known is not None:
        known.close()
    _savers[ranks.given] = made = Saver(path, ranks, threads)
    return made


def close_saver(group: Any) -> None:
    """Let go of the savers of a group that is about to be gone."""
    for known in list(_savers.values()):
        if known.is_of(group):
            known.close()


def place_of(path: bytes) -> tuple[int, int] | None:
    """Which folder it is; None: none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def settle(ranks: Ranks) -> Saver | None:
    """Wait for the save in flight, and tell of one that failed unheard."""
    known = _savers.get(ranks.given)
    if known is not None:
        known.settle()
    _tell_failed()
    return known


def call(ranks: Ranks, function: Any, *args: Any) -> None:
    """Call on this very thread, which the process group is used by."""
    try:
        ranks.act.run_here(function, *args, ranks.act.error)
    except CommError as failed:
        raised, ranks.raised = ranks.raised, None
        if raised is None:
            raise
        if not isinstance(raised, Exception):  # Ctrl-C
            raise raised from None
        raise not_heard(raised, failed.rank) from raised


def tell(messages: list[str]) -> None:
    """Warn of what the library said."""
    for message in messages:
        warn(message, StaleWarning if message.endswith(SUSPICION) else RuntimeWarning)


def _tell_failed() -> None:
    while True:
        try:
            handle = _failed.pop()
        except IndexError:
            return
        if not handle._told:
            handle._told = True
            warn(f"step {handle.step} was not saved: {handle._why}")


def _forget() -> None:
    """A child has none of the threads: nothing of a saver can be used or freed."""
    global _turns_lock
    for known in _savers.values():
        known.forget()
    _savers.clear()
    _failed.clear()
    _turns.clear()
    _turns_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
atexit.register(_tell_failed)
