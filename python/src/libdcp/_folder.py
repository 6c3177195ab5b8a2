"""Folders that other programs name: they appear whole, or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator

from ._errors import UsageError
from ._ranks import Ranks, on_first

_PART = ".libdcp-part-"  # ".NAME.libdcp-part-XXXXXXXX": of NAME, while a save goes on
_LOCK = "lock"  # a file in it, locked for as long as its maker lives
_AT_FDCWD, _EXCHANGE = -100, 2
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse what would become folders of that name."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", os.fspath(path)):
        raise UsageError(
            f"'{os.fspath(path)}' is a URL, and no path",
            hint="the storage is written to where it is mounted",
        )


@contextlib.contextmanager
def published(path: str | os.PathLike[str], ranks: Ranks) -> Iterator[str]:
    """Give a hidden folder to save into; it has its name when all ranks are done.

    What had that name before is whole until then, and gone afterwards.
    """
    check_path(path)
    path = os.path.abspath(path)
    with hidden(path, ranks) as room:
        folder = os.path.join(room, "new")

        def end() -> None:
            _sync_files(folder)
            try:
                os.rename(folder, path)
            except OSError as why:
                if why.errno not in _TAKEN:
                    raise
                _exchange(folder, path)
            sync(os.path.dirname(path))

        on_first(ranks, lambda: os.mkdir(folder))
        yield folder
        on_first(ranks, end)


@contextlib.contextmanager
def hidden(path: str | os.PathLike[str], ranks: Ranks) -> Iterator[str]:
    """Give all ranks a hidden folder beside that path, of this use alone.

    It is gone afterwards; where rank 0 was killed, with the next use for that path.
    """
    check_path(path)
    path = os.path.abspath(path)
    with contextlib.ExitStack() as stack:
        name = on_first(ranks, lambda: stack.enter_context(_own_room(path)))
        yield os.path.join(os.path.dirname(path), name)
        on_first(ranks, stack.close)


@contextlib.contextmanager
def _own_room(path: str) -> Iterator[str]:
    """Make a hidden folder beside the path that is locked; give its name."""
    parent, name = os.path.split(path)
    short = os.fsencode(name)[:200].decode(errors="ignore")
    begin = f".{short}{_PART}"
    os.makedirs(parent, exist_ok=True)
    for left in os.listdir(parent):
        if left.startswith(begin):
            _remove_left(os.path.join(parent, left))
    room, lock = _locked_room(os.path.join(parent, begin))
    try:
        yield os.path.basename(room)
    finally:
        shutil.rmtree(room, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked_room(begin: str) -> tuple[str, int | None]:
    """Make it, and lock it before anybody takes it for one that was left."""
    while True:
        room = begin + secrets.token_hex(4)
        os.mkdir(room)
        try:
            lock = _lock(room)
        except (BlockingIOError, FileNotFoundError):
            continue  # somebody did
        except OSError as why:
            if why.errno in _NO_LOCKS:  # then nobody removes what was left, either
                return room, None
            shutil.rmtree(room, ignore_errors=True)
            raise
        if os.fstat(lock).st_nlink:
            return room, lock
        os.close(lock)


def _remove_left(room: str) -> None:
    """Remove what was killed: whoever lives has the lock."""
    with contextlib.suppress(OSError):
        lock = _lock(room)
        try:
            shutil.rmtree(room, ignore_errors=True)
        finally:
            os.close(lock)


def _lock(room: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    lock = os.open(os.path.join(room, _LOCK), flags, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(lock)
        raise
    return lock


def removed(path: str | os.PathLike[str]) -> None:
    """Take the name away first: what is half removed does not look whole."""
    path = os.path.abspath(path)
    if os.path.islink(path):
        os.unlink(path)
    elif os.path.exists(path):
        with _own_room(path) as room:
            os.rename(path, os.path.join(os.path.dirname(path), room, "old"))


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


def _sync_files(root: str) -> None:
    """Steps are durable; files that others put beside them are made so."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            file = os.path.join(folder, name)
            if os.path.isfile(file):
                sync(file)
        sync(folder)


def move_into(source: str, target: str) -> None:
    """Put all that is in one folder into another; what else is there stays."""
    _sync_files(source)
    _move_into(source, target)


def _move_into(source: str, target: str) -> None:
    for name in os.listdir(source):
        old, new = os.path.join(source, name), os.path.join(target, name)
        if os.path.isdir(old) and not os.path.islink(old) and os.path.isdir(new):
            _move_into(old, new)
        else:
            os.replace(old, new)
    sync(target)


def sync(path: str | os.PathLike[str]) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
