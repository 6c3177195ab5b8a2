"""What the library cannot do, as exceptions: one class for each of its codes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import _abi

if TYPE_CHECKING:
    from ._facts import Finding


class Error(Exception):
    """Something failed: one sentence that says what, where and why.

    `code` is the name of the library's code, `file` and `tensor` are those concerned or
    "", `hint` is the next act or "", `errno` is of the system call behind it or 0.
    """

    code = ""

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        tensor: str = "",
        hint: str = "",
        errno: int = 0,
        rank: int = -1,
    ) -> None:
        """Say what failed."""
        super().__init__(message)
        self.message = message
        self.file = file
        self.tensor = tensor
        self.hint = hint
        self.errno = errno
        self.rank = rank

    def __str__(self) -> str:
        """Give the sentence, and the next act."""
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class DiffersError(Error):
    """The check failed."""

    code = "DIFFERS"


class UsageError(Error, ValueError):
    """An argument is wrong."""

    code = "USAGE"


class NotFoundError(Error):
    """A file, a step or a tensor is not there."""

    code = "NOT_FOUND"


class CorruptError(Error):
    """Bytes are not what was written. `findings` lists them, of a verify."""

    code = "CORRUPT"
    findings: tuple[Finding, ...] = ()


class MismatchError(Error):
    """What is there does not match what is asked for."""

    code = "MISMATCH"


class ExistsError(Error):
    """The target is there already; `force=True` replaces it."""

    code = "EXISTS"


class BusyError(Error):
    """Another process uses it."""

    code = "BUSY"


class IoError(Error):
    """Reading or writing failed."""

    code = "IO"


class NoSpaceError(Error):
    """The disk or a quota is full."""

    code = "NO_SPACE"


class CommError(Error):
    """A rank failed, or did not answer in time."""

    code = "COMM"


class UnsupportedError(Error):
    """The library does not do that."""

    code = "UNSUPPORTED"


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory."""

    code = "MEMORY"


class StoppedError(Error):
    """It was stopped, and can be resumed."""

    code = "STOPPED"


class CancelledError(Error):
    """Somebody asked to stop."""

    code = "INTERRUPTED"


_BY_CODE = {cls.code: cls for cls in Error.__subclasses__()}


# Options of the programs, as the functions here call them.
_FLAGS = "force|lossy|reflink|untie"
_TEXTS = "to|dtype|layout|only|weights"
_VALUES = "fp32|fp16|bf16|model|master|dim0|hf|npz|llmc|safetensors-sharded|safetensors"
_ARGUMENTS = (
    (rf"--({_FLAGS})\b", r"\1=True"),
    (rf"--({_TEXTS}) ({_VALUES})\b", r'\1="\2"'),
    (r"--keep-unsafe-objects", "keep_unsafe=True"),
    (r"--model-config FILE\b", "config=FILE"),
    (r"--trust-global\b", "trust="),
    (r"--max-shard-size\b", "max_shard_bytes="),
    (rf"--({_TEXTS}|select|rename)\b", r"\1="),
)


def _in_python(hint: str) -> str:
    """What to do next, by arguments and not by options; commands stay commands."""
    if "'dcp-" not in hint:
        for option, argument in _ARGUMENTS:
            hint = re.sub(option, argument, hint)
    return hint


def error_of(told: _abi.Error) -> Error:
    """The exception for an error of the library."""
    return _BY_CODE.get(_abi.text(told.name), Error)(
        _abi.text(told.message),
        file=_abi.text(told.file),
        tensor=_abi.text(told.tensor),
        hint=_in_python(_abi.text(told.hint)),
        errno=told.sys_errno,
        rank=told.rank,
    )
