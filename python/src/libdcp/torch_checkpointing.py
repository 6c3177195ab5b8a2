"""Storage for torch_checkpointing: what it commits is digested, durable and read back.

ours = libdcp.torch_checkpointing.StorageConfig()
manager = CheckpointManager(CheckpointManager.Config(storage_config=ours))
"""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any

from torch_checkpointing.storage import base_storage, filesystem

from . import _sealed
from ._folder import removed, sync

__all__ = ["Storage", "StorageConfig", "verify"]


@dataclasses.dataclass
class StorageConfig(base_storage.StorageConfig):  # type: ignore[misc]
    """For `storage_config=` of a CheckpointManager, on all ranks.

    verify_after_save: what is read back comes from the disk.
    """

    verify_after_save: bool = False

    def create_storage(self) -> Storage:
        """Make the storage."""
        return Storage(self)


class Storage(filesystem.LocalFileSystemStorage):  # type: ignore[misc]
    """Writes the files of torch_checkpointing, which reads them without it, too.

    Each file is durable and was read back when it is closed. `rename`, by which
    torch_checkpointing commits, puts the digests of all files beside them, and then lets
    the folder have its name. Reads hand out nothing that its digest does not hold of;
    files that other storages wrote are read as they are.
    """

    def __init__(self, config: StorageConfig | None = None) -> None:
        """Write and read local files."""
        plain = filesystem.LocalFileSystemStorageConfig(use_direct_io=False)
        super().__init__(plain)
        self._from_disk = config is not None and config.verify_after_save

    def stream_read(
        self, path: Any, read_args: base_storage.ReadArgs | None = None
    ) -> io.IOBase:
        """Open a file; each block is held against its digest when it is read."""
        told = _sealed.seal_of(path)
        if told is None:
            plain: io.IOBase = super().stream_read(path, read_args)
            return plain
        reader = _sealed.Reader(path, told)
        if read_args is not None and not read_args.pre_read_full_file:
            return reader
        with reader:
            return io.BytesIO(reader.readall())

    def stream_write(self, path: Any) -> io.IOBase:
        """Give a file to write to; it counts as written when it is closed."""
        return _sealed.Writer(path, self._from_disk)

    def write(self, path: Any, data: Any) -> None:
        """Write a file."""
        with self.stream_write(path) as file:
            file.write(data)

    def rename(
        self,
        src_path: Any,
        dst_path: Any,
        is_directory: bool = False,
        background_cleanup: bool = False,
    ) -> None:
        """Publish: the digests first, then the name, then the name for good."""
        folder = os.path.isdir(src_path)
        free = not os.path.exists(dst_path) or _is_empty(dst_path)
        if folder and free:
            _sealed.seal_folder(src_path)
        elif not (folder or os.path.isdir(dst_path)):
            _sealed.drop_seal(dst_path)
        super().rename(src_path, dst_path, is_directory, background_cleanup)
        if not folder:
            _sealed.move_seal(src_path, dst_path)
        for name in {os.path.dirname(os.path.abspath(p)) for p in (src_path, dst_path)}:
            sync(name)

    def delete(self, path: Any) -> None:
        """Remove a file."""
        super().delete(path)
        _sealed.drop_seal(path)

    def rmdir(self, path: Any) -> None:
        """Remove a checkpoint: its name first, so that no half of it looks whole."""
        if not os.path.isdir(path):
            super().rmdir(path)  # raises
        removed(path)

    def ls(self, path: Any) -> list[str]:
        """List a folder, without our digests."""
        return [name for name in super().ls(path) if not _sealed.is_seal(name)]


def verify(path: str | os.PathLike[str]) -> int:
    """Read a whole checkpoint of `Storage`; give the number of its files.

    Raises a CorruptError of the first file that is not what was written.
    """
    return _sealed.check_folder(path)


def _is_empty(path: Any) -> bool:
    return os.path.isdir(path) and not os.listdir(path)
