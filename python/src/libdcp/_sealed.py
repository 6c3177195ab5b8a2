"""Files that others lay out: digested block by block while they are written, durable and
read back before they count as written, and held against their digests when read."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
from typing import Any

from . import _abi
from ._errors import CorruptError, IoError, NoSpaceError
from ._folder import sync, write_file

DIGESTS = "libdcp.digests.json"  # of all files of a folder that was published
SEAL = ".digests"  # of one file, beside it, before that
BLOCK = 1 << 20

Seal = dict[str, Any]  # size, block_bytes, and the digests as one text in hex


class Writer(io.RawIOBase):
    """Writes a file anew. Its seal is there when the file is, and is what was meant."""

    _file = -1  # also of one that cannot be opened, which Python closes, too

    def __init__(self, path: str | os.PathLike[str], from_disk: bool) -> None:
        """Begin. from_disk: what is read back comes from the disk."""
        super().__init__()
        self._path, self._from_disk = os.fspath(path), from_disk
        _unlink(self._path + SEAL)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o666)
        self._rest, self._size = bytearray(), 0
        self._digests: list[str] = []
        self._failure: IoError | NoSpaceError | None = None

    def writable(self) -> bool:
        """Say that it can be written."""
        return True

    def write(self, data: Any) -> int:
        """Write all of it."""
        with memoryview(data) as given, given.cast("B") as view:
            n, at = len(view), 0
            if self._rest:
                at = min(n, BLOCK - len(self._rest))
                self._rest += view[:at]
                if len(self._rest) == BLOCK:
                    self._put(self._rest)
                    self._rest = bytearray()
            while n - at >= BLOCK:
                self._put(view[at : at + BLOCK])
                at += BLOCK
            self._rest += view[at:]
        return n

    def __exit__(self, *raised: Any) -> None:
        """Close it; what failed half way gets no seal.

        What was wrong with the disk is raised, and not what torch.save makes of it.
        """
        if raised[0] is not None:
            self._end()
        self.close()
        if raised[0] is not None and self._failure is not None:
            raise self._failure from raised[1]

    def close(self) -> None:
        """Make it durable, read it back, and seal it."""
        if self.closed:
            return
        try:
            if self._file >= 0:
                if self._rest:
                    self._put(self._rest)
                os.fsync(self._file)
                if self._from_disk:
                    os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
                told = {
                    "size": self._size,
                    "block_bytes": BLOCK,
                    "xxh3": "".join(self._digests),
                }
                with Reader(self._path, told) as reader:
                    reader.check()
                write_file(self._path + SEAL, json.dumps(told) + "\n")
        finally:
            self._end()
            super().close()

    def _put(self, block: Any) -> None:
        self._digests.append(_digest(block))
        with memoryview(block) as view:
            at = 0
            while at < len(view):
                try:
                    at += os.write(self._file, view[at:])
                except OSError as why:
                    full = why.errno in (errno.ENOSPC, errno.EDQUOT)
                    self._failure = (NoSpaceError if full else IoError)(
                        f"{self._path} cannot be written: {why.strerror}",
                        file=self._path,
                        hint="free some space, or keep fewer checkpoints" if full else "",
                    )
                    raise self._failure from why
        self._size += len(block)

    def _end(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class Reader(io.RawIOBase):
    """Reads a file, of which no block is handed out that its digest does not hold of."""

    _file = -1  # as in Writer

    def __init__(self, path: str | os.PathLike[str], told: Seal) -> None:
        """Open a file that has this seal."""
        super().__init__()
        self._path, self._told, self._at = os.fspath(path), told, 0
        self._last: tuple[int, bytearray] = (-1, bytearray())
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size, self._block, digests = (
                int(told["size"]),
                int(told["block_bytes"]),
                str(told["xxh3"]),
            )
            n = -(-size // self._block)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as why:
            self.close()
            raise _unreadable(self._path) from why
        self._digests = [digests[i : i + 16] for i in range(0, len(digests), 16)]
        self._size, has = size, os.fstat(self._file).st_size
        if has != size or len(self._digests) != n:
            self.close()
            raise CorruptError(
                f"{self._path} has {has} bytes; {size} were written", file=self._path
            )

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from anywhere."""
        return True

    def tell(self) -> int:
        """Say where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to where the next read begins."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        self._at = start[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, as far as the file goes."""
        with memoryview(buffer) as given, given.cast("B") as view:
            n = max(0, min(len(view), self._size - self._at))
            done = 0
            while done < n:
                i, skip = divmod(self._at + done, self._block)
                length = self._length_of(i)
                # Released also when it raises: whose buffer it is may close it then.
                with view[done : done + min(n - done, length - skip)] as part:
                    if len(part) == length:
                        self._fetch(i, part)
                    else:
                        part[:] = self._kept(i)[skip : skip + len(part)]
                    done += len(part)
        self._at += n
        return n

    def readall(self) -> bytes:
        """Read to the end."""
        rest = bytearray(max(0, self._size - self._at))
        self.readinto(rest)
        return bytes(rest)

    def check(self) -> None:
        """Read all, and keep nothing."""
        block = bytearray(self._block)
        for i in range(len(self._digests)):
            with memoryview(block) as view:
                self._fetch(i, view[: self._length_of(i)])

    def close(self) -> None:
        """Close it."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        super().close()

    def _length_of(self, i: int) -> int:
        return min(self._block, self._size - i * self._block)

    def _kept(self, i: int) -> bytearray:
        """A block, for many small reads of it."""
        if self._last[0] != i:
            block = bytearray(self._length_of(i))
            self._fetch(i, block)
            self._last = (i, block)
        return self._last[1]

    def _fetch(self, i: int, into: Any) -> None:
        begin = i * self._block
        with memoryview(into) as view:
            at = 0
            while at < len(view):
                got = os.preadv(self._file, [view[at:]], begin + at)
                if not got:
                    raise IoError(f"{self._path} has become shorter", file=self._path)
                at += got
        if _digest(into) != self._digests[i]:
            raise CorruptError(
                f"{self._path} is corrupt in the {len(into)} bytes from {begin} on",
                file=self._path,
                hint="take an older checkpoint, or a copy of this file",
            )


def seal_of(path: str | os.PathLike[str]) -> Seal | None:
    """The seal of a file, beside it or in the folder; None of what others wrote."""
    folder, name = os.path.split(os.fspath(path))
    own = _read_json(os.path.join(folder, name + SEAL))
    if own is not None:
        return own
    all_files = _read_json(os.path.join(folder, DIGESTS))
    if all_files is None:
        return None
    if name not in all_files:
        raise CorruptError(
            f"{os.fspath(path)} is not what was published: {DIGESTS} does not list it",
            file=os.fspath(path),
        )
    told: Seal = all_files[name]
    return told


def is_seal(name: str) -> bool:
    """Whether it is a file of ours, beside those of others."""
    return name == DIGESTS or name.endswith(SEAL)


def move_seal(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a file that took another's place its own seal; call `drop_seal` before."""
    if os.path.exists(os.fspath(source) + SEAL):
        os.replace(os.fspath(source) + SEAL, os.fspath(target) + SEAL)


def drop_seal(path: str | os.PathLike[str]) -> None:
    """Let a file be one without a seal."""
    _unlink(os.fspath(path) + SEAL)


def seal_folder(root: str | os.PathLike[str]) -> None:
    """Gather the seals of all files below, and make all of it durable.

    Files without one were put there by others: they are digested as they are.
    """
    for folder, _, names in os.walk(root, topdown=False):
        seals = [name for name in names if name.endswith(SEAL)]
        files = {name for name in names if not is_seal(name)}
        files.update(name[: -len(SEAL)] for name in seals)
        told = {}
        for name in sorted(files):
            path = os.path.join(folder, name)
            if name + SEAL not in seals:
                told[name] = _digested(path)
                continue
            told[name] = seal_of(path) or {}
            Reader(path, told[name]).close()  # it is there, with all its bytes
        if told:
            write_file(os.path.join(folder, DIGESTS), json.dumps(told, indent=0) + "\n")
        for name in seals:
            os.unlink(os.path.join(folder, name))
        sync(folder)


def check_folder(root: str | os.PathLike[str]) -> int:
    """Read all files below; give their number. Raises of the first that is corrupt."""
    n = 0
    for folder, _, names in os.walk(root):
        listed = _read_json(os.path.join(folder, DIGESTS)) or {}
        for name in sorted({*listed, *(n for n in names if not is_seal(n))}):
            path = os.path.join(folder, name)
            told = seal_of(path)
            if told is None:
                raise CorruptError(f"{path} has no digests", file=path)
            try:
                with Reader(path, told) as reader:
                    reader.check()
            except FileNotFoundError as why:
                raise CorruptError(f"{path} is missing", file=path) from why
            n += 1
    return n


def _digested(path: str) -> Seal:
    digests, size = [], 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digests.append(_digest(bytearray(block)))
            size += len(block)
    sync(path)
    return {"size": size, "block_bytes": BLOCK, "xxh3": "".join(digests)}


def _digest(block: Any) -> str:
    out = ctypes.c_uint64()
    with memoryview(block) as view:
        start = bytes(view) if view.readonly else (ctypes.c_char * 0).from_buffer(view)
        _abi.lib.dcp_flat_bytes_digest(start, view.nbytes, ctypes.byref(out))
        del start
    return f"{out.value:016x}"


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as why:
        raise _unreadable(path) from why
    if not isinstance(told, dict):
        raise _unreadable(path)
    return told


def _unreadable(path: str) -> CorruptError:
    return CorruptError(f"the digests of {path} cannot be read", file=path)


def _unlink(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
