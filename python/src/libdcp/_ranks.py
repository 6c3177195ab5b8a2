"""How the ranks of torch.distributed talk for the library."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _abi
from ._act import Act

_gloo: dict[Any, Any] = {}  # a group for the CPU, of each group that has none


class Ranks:
    """The ranks of a process group, or a single one. `told` goes to the library."""

    def __init__(self, act: Act, group: Any = None) -> None:
        """Take the default group where none is given."""
        import torch.distributed as dist

        self.raised: BaseException | None = None
        self.rank, self.world_size = 0, 1
        self.told: Any = None
        self._act = act
        if not dist.is_available() or not dist.is_initialized():
            return
        self._dist = dist
        self._group = group_for_cpu(dist, group)
        self.rank = dist.get_rank(self._group)
        self.world_size = dist.get_world_size(self._group)
        self._comm = _abi.Comm.new(
            rank=self.rank,
            world_size=self.world_size,
            allgather=_abi.OnAllgather(self._kept(self._allgather)),
            bcast=_abi.OnBcast(self._kept(self._bcast)),
        )
        self.told = ctypes.byref(self._comm)

    def gather(self, mine: Any) -> list[Any]:
        """Give what each rank has."""
        if self.told is None:
            return [mine]
        all_of_them: list[Any] = [None] * self.world_size
        self._dist.all_gather_object(all_of_them, mine, group=self._group)
        return all_of_them

    def _kept(self, talk: Any) -> Any:
        """Keep what is raised: the library only hears that it failed."""

        def call(_self: object, *args: Any) -> int:
            try:
                talk(*args)
                return 0
            except BaseException as why:
                self.raised = why
                return 1

        return call

    def _allgather(self, given: int, n: int, out: int, _timeout_ms: int) -> None:
        if n:
            parts = list(_bytes(out, n * self.world_size).chunk(self.world_size))
            self._dist.all_gather(parts, _bytes(given, n), group=self._group)

    def _bcast(self, data: int, n: int, root: int, _timeout_ms: int) -> None:
        if n:
            source = self._dist.get_global_rank(self._group, root)
            self._dist.broadcast(_bytes(data, n), source, group=self._group)


def _bytes(address: int, n: int) -> Any:
    import torch

    return torch.frombuffer((ctypes.c_char * n).from_address(address), dtype=torch.uint8)


def group_for_cpu(dist: Any, group: Any) -> Any:
    """A group of the same ranks that moves memory of the host."""
    group = group or dist.group.WORLD
    if "gloo" in str(dist.get_backend_config(group)) or dist.get_backend(group) == "mpi":
        return group
    if group not in _gloo:
        _gloo[group] = dist.new_group(dist.get_process_group_ranks(group), backend="gloo")
    return _gloo[group]
