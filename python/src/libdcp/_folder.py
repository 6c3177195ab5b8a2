"""Folders that other programs name: they appear whole, or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from ._errors import CommError
from ._ranks import Ranks

HIDDEN = ".libdcp-part"  # beside them, while a save goes on
_AT_FDCWD, _EXCHANGE = -100, 2


@contextlib.contextmanager
def published(path: str | os.PathLike[str], ranks: Ranks) -> Iterator[str]:
    """Give a hidden folder to save into; it has its name when all ranks are done.

    What had that name before is whole until then, and gone afterwards.
    """
    path = os.path.abspath(path)
    hidden = os.path.join(os.path.dirname(path), HIDDEN)

    def begin() -> None:
        remove(hidden)
        os.makedirs(hidden)

    def end() -> None:
        _sync_files(hidden)
        if os.path.lexists(path):
            _exchange(hidden, path)
        else:
            os.rename(hidden, path)
        sync(os.path.dirname(path))
        remove(hidden)

    on_first(ranks, begin)
    yield hidden
    on_first(ranks, end)


def on_first(ranks: Ranks, act: Callable[[], Any]) -> Any:
    """Do it on rank 0 alone; what it comes to, or raises, is of all ranks."""
    told: Any = None
    try:
        told = act() if ranks.rank == 0 else None
        why = None
    except Exception as error:
        why = error
    text, told = ranks.gather((why and f"{type(why).__name__}: {why}", told))[0]
    if why is not None:
        raise why
    if text:
        raise CommError(f"rank 0 failed: {text}", rank=0)
    return told


def removed(path: str | os.PathLike[str]) -> None:
    """Take the name away first: what is half removed does not look whole."""
    path = os.path.abspath(path)
    hidden = os.path.join(os.path.dirname(path), HIDDEN)
    remove(hidden)
    if os.path.islink(path):
        os.unlink(path)
    elif os.path.exists(path):
        os.rename(path, hidden)
        remove(hidden)


def remove(path: str) -> None:
    """Remove a file or a folder that may be there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def write_file(path: str, text: str) -> None:
    """Write a small file that is there whole, or as it was."""
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync(os.path.dirname(path))


def _exchange(a: str, b: str) -> None:
    """Let two names change places, in one act of the file system."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(a), os.fsencode(b)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _EXCHANGE):
        errno = ctypes.get_errno()
        raise OSError(errno, f"{os.strerror(errno)}: '{b}' is there already", b)


def _sync_files(folder: str) -> None:
    """Steps are durable; files that others put beside them are made so."""
    for name in os.listdir(folder):
        file = os.path.join(folder, name)
        if os.path.isfile(file):
            sync(file)
    sync(folder)


def sync(path: str | os.PathLike[str]) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
