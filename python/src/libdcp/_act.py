"""An act of the library that may take long: progress, Ctrl-C, what callbacks raise."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from ctypes import byref, c_int32, pointer
from typing import Any, Callable, Optional, Union

from . import _abi
from ._errors import error_of

#: Called with the bytes that are done, and all of them; or a class of bars like `tqdm`.
Progress = Optional[Union[Callable[[int, int], object], type]]


class Act:
    """One call. Its `hooks` and `error` go to the library, `run` makes the call."""

    def __init__(self, progress: Progress = None) -> None:
        """Tell progress to `progress`."""
        self._cancel = c_int32(0)
        self._raised: BaseException | None = None
        self._bar: Any = None
        self._progress = progress
        self._told = _abi.Error.new()
        on_progress = self.guarded(self._tell, 1) if progress else None
        self._hooks = _abi.Hooks.new(
            progress=_abi.Progress(on_progress) if on_progress else _abi.Progress(),
            cancel=pointer(self._cancel),
        )
        self.hooks = byref(self._hooks)
        self.error = byref(self._told)

    def guarded(
        self, callback: Callable[..., Any], failed: Any = None
    ) -> Callable[..., Any]:
        """A callback whose exceptions stop the act, and are raised when it has ended."""

        def call(_self: object, *args: Any) -> Any:
            try:
                return callback(*args)
            except BaseException as why:
                self._raised = self._raised or why
                self._cancel.value = 1
                return failed

        return call

    def run(self, function: Callable[..., int], *args: Any) -> None:
        """Call, without holding up Ctrl-C; raise what the library or a callback says."""
        code = -1
        try:
            if threading.current_thread() is threading.main_thread():
                code = self._run_beside(function, args)
            else:
                code = function(*args)
        finally:
            self._end_bar(code == 0)
        if self._raised:
            raise self._raised
        if code:
            raise error_of(self._told)

    def run_here(self, function: Callable[..., int], *args: Any) -> None:
        """Call on this very thread, which callbacks are to run on."""
        with _no_lost_interrupt():
            code = function(*args)
        if self._raised:
            raise self._raised
        if code:
            raise error_of(self._told)

    def _run_beside(self, function: Callable[..., int], args: tuple[Any, ...]) -> int:
        """Call on another thread: a signal is handled only where Python runs."""
        codes: list[int] = []
        gate = threading.Lock()  # taken once: the call begins, or nobody wants it now
        ended = threading.Event()  # a join that a signal interrupts forgets the thread

        def work() -> None:
            try:
                if gate.acquire(blocking=False):
                    codes.append(function(*args))
            finally:
                ended.set()

        try:
            threading.Thread(target=work).start()
            ended.wait()
        except BaseException:
            self._cancel.value = 1
            begun = not gate.acquire(blocking=False)
            while begun and not ended.is_set():  # it uses the caller's memory
                with contextlib.suppress(KeyboardInterrupt):
                    ended.wait()
            raise
        return codes[0]

    def _tell(self, done: int, total: int) -> int:
        progress: Any = self._progress
        if not hasattr(progress, "update"):
            progress(done, total)
            return 0
        if self._bar is None:
            self._bar = progress(total=total, unit="B", unit_scale=True)
        self._bar.total = total
        self._bar.update(done - self._bar.n)
        return 0

    def _end_bar(self, done: bool) -> None:
        if self._bar is None:
            return
        if done:  # in fewer bytes than were planned, where they were compressed
            self._bar.update(self._bar.total - self._bar.n)
        self._bar.close()


@contextlib.contextmanager
def _no_lost_interrupt() -> Iterator[None]:
    """Raise what a signal raised as a callback began or ended: ctypes only prints it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    lost: list[BaseException] = []
    others = sys.unraisablehook

    def hear(what: Any) -> None:
        here = threading.current_thread() is threading.main_thread()
        if here and what.exc_value and "ctypes callback" in (what.err_msg or ""):
            lost.append(what.exc_value)
        else:
            others(what)

    sys.unraisablehook = hear
    try:
        yield
    finally:
        if sys.unraisablehook is hear:
            sys.unraisablehook = others
    if lost:
        raise lost[0]


def check(code: int, told: _abi.Error) -> None:
    """Raise what a short call came to."""
    if code:
        raise error_of(told)
