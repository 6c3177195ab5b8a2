"""How ranks talk for the library: by torch.distributed, over TCP, or not at all."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Iterator, MutableMapping
from datetime import timedelta
from typing import Any, Callable, TypeVar

from . import _abi
from ._act import Act
from ._errors import CommError, UsageError
from ._tcp import CALLS, SAVES, Line, TcpGroup, group_of_environment

ALONE = "alone"  # in place of a group: this process saves and loads by itself

T = TypeVar("T")


class ByGroup(MutableMapping[Any, T]):
    """What belongs to the group of each `group=`, for as long as others have the group.

    So destroy_process_group ends the threads of a group while Python still runs.
    """

    def __init__(self) -> None:
        """Know of nothing."""
        self._of_groups: MutableMapping[Any, T] = weakref.WeakKeyDictionary()
        self._of_others: dict[Any, T] = {}

    def _where(self, given: Any) -> MutableMapping[Any, T]:
        is_group = given is not None and not isinstance(given, str)
        return self._of_groups if is_group else self._of_others

    def __getitem__(self, given: Any) -> T:
        """Look one up."""
        return self._where(given)[given]

    def __setitem__(self, given: Any, what: T) -> None:
        """Remember one; it must not keep the group itself."""
        self._where(given)[given] = what

    def __delitem__(self, given: Any) -> None:
        """Forget one."""
        del self._where(given)[given]

    def __iter__(self) -> Iterator[Any]:
        """Go through what was given."""
        return iter([*self._of_others, *self._of_groups])

    def __len__(self) -> int:
        """Count them."""
        return len(self._of_others) + len(self._of_groups)


_gloo: ByGroup[Any] = ByGroup()  # a group for the CPU, of each group that has none
_beside: ByGroup[Any] = ByGroup()  # and one for saves in the background


class Ranks:
    """The ranks of a group, or a single one. `told` goes to the library."""

    def __init__(self, act: Act, group: Any = None, beside: bool = False) -> None:
        """Take the group that is given, else that of torch.distributed where it was
        initialized, else the ranks that the environment tells of.

        beside: talk through connections that nothing else uses, from a thread of its own.
        """
        self.act, self.given = act, group
        self.raised: BaseException | None = None
        self.rank, self.world_size = 0, 1
        self.told: Any = None
        self.group: Any = None  # None: nobody else is there
        self._line: Line | None = None
        found = _group_of(group)
        if found is None:
            return
        self.group = found
        if isinstance(found, TcpGroup):
            self._line = found.line(SAVES if beside else CALLS)
            self.rank, self.world_size = found.rank, found.world_size
        else:
            import torch.distributed as dist

            self._dist = dist
            self.group = (group_beside if beside else group_for_cpu)(dist, group)
            self.rank = dist.get_rank(self.group)
            self.world_size = dist.get_world_size(self.group)
        self._comm = self.comm_of(weakref.ref(self))
        self.told = self._comm and ctypes.byref(self._comm)

    def gather(self, mine: Any) -> list[Any]:
        """Give what each rank has."""
        if self.group is None:
            return [mine]
        if self._line is not None:
            return self._line.gather(mine)
        all_of_them: list[Any] = [None] * self.world_size
        try:
            self._dist.all_gather_object(all_of_them, mine, group=self.group)
        except RuntimeError as why:
            raise not_heard(why) from why
        return all_of_them

    def comm_of(
        self, now: Callable[[], Ranks | None], use: str = CALLS
    ) -> _abi.Comm | None:
        """How the library talks to these ranks: by those that are `now`."""
        if self.group is None:
            return None
        if isinstance(self.group, TcpGroup):
            return _abi.Comm.new(group=self.group.line(use).handle)

        def talk(how: str, args: Any) -> int:
            ranks = now()
            return 0 if ranks is None else ranks._kept(how, args)

        return _abi.Comm.new(
            rank=self.rank,
            world_size=self.world_size,
            allgather=_abi.OnAllgather(lambda _, *args: talk("_allgather", args)),
            bcast=_abi.OnBcast(lambda _, *args: talk("_bcast", args)),
        )

    def _kept(self, talk: str, args: Any) -> int:
        """Keep what is raised: the library only hears that it failed."""
        try:
            getattr(self, talk)(*args)
            return 1
        except BaseException as why:
            self.raised = why
            return 0

    def _allgather(self, given: int, n: int, out: int, _timeout_ms: int) -> None:
        if n:
            parts = list(_bytes(out, n * self.world_size).chunk(self.world_size))
            self._dist.all_gather(parts, _bytes(given, n), group=self.group)

    def _bcast(self, data: int, n: int, root: int, _timeout_ms: int) -> None:
        if n:
            source = self._dist.get_global_rank(self.group, root)
            self._dist.broadcast(_bytes(data, n), source, group=self.group)


def not_heard(why: BaseException, rank: int = -1) -> CommError:
    """What is raised for what torch.distributed raised: its first line says enough."""
    return CommError(f"the ranks could not talk: {str(why).splitlines()[0]}", rank=rank)


def check_group(given: Any) -> None:
    """Refuse what torch.distributed gives to ranks that are in no group: a number."""
    if isinstance(given, int):
        raise UsageError("this rank is not in the group: only its ranks save and load")
    if isinstance(given, (list, tuple, set, dict)):
        raise UsageError(
            f"a group is one of torch.distributed or a TcpGroup, not {given!r}",
            hint="torch.distributed.new_group makes one of some ranks, on all of them",
        )


def _group_of(given: Any) -> Any:
    """The group that is meant; None: nobody else is there."""
    if given == ALONE:
        return None
    check_group(given)
    dist = sys.modules.get("torch.distributed")  # who made a group has imported it
    if given is None and dist and dist.is_available() and dist.is_initialized():
        given = dist.group.WORLD
    found = group_of_environment() if given is None else given
    if isinstance(found, str):
        raise UsageError(f"a group is one of ranks, or '{ALONE}', not '{found}'")
    return None if isinstance(found, TcpGroup) and found.world_size == 1 else found


def _bytes(address: int, n: int) -> Any:
    import torch

    return torch.frombuffer((ctypes.c_char * n).from_address(address), dtype=torch.uint8)


def group_for_cpu(dist: Any, group: Any) -> Any:
    """A group of the same ranks that moves memory of the host."""
    group = group or dist.group.WORLD
    if "gloo" in str(dist.get_backend_config(group)) or dist.get_backend(group) == "mpi":
        return group
    if group not in _gloo:
        _gloo[group] = _like(dist, group)
    return _gloo[group]


def group_beside(dist: Any, group: Any) -> Any:
    """A group of the same ranks for a thread: training's calls never meet its own."""
    group = group or dist.group.WORLD
    if group not in _beside:
        _beside[group] = _like(dist, group)
    return _beside[group]


def _like(dist: Any, group: Any) -> Any:
    """A group of gloo of the same ranks, made by them alone."""
    return dist.new_group(
        dist.get_process_group_ranks(group),
        timeout=_timeout(group),
        backend="gloo",
        use_local_synchronization=group is not dist.group.WORLD,
    )


def _timeout(group: Any) -> timedelta | None:
    """After which a silent rank is taken for dead; None: what is usual."""
    for device in group._device_types:
        found = getattr(group._get_backend(device).options, "_timeout", None)
        if isinstance(found, timedelta):
            return found
    return None


def on_first(ranks: Ranks, act: Callable[[], Any]) -> Any:
    """Do it on rank 0 alone; what it comes to, or raises, is of all ranks."""
    return on_all(ranks, lambda: act() if ranks.rank == 0 else None)[0]


def on_all(ranks: Ranks, act: Callable[[], Any]) -> list[Any]:
    """Do it on each rank; what it comes to there. What one raises is raised on all."""
    told: Any = None
    try:
        told = act()
        why = None
    except BaseException as error:  # Ctrl-C, too: the others are not to wait
        why = error
    all_told = ranks.gather((why and f"{type(why).__name__}: {why}", told))
    if why is not None:
        raise why
    for rank, (text, _) in enumerate(all_told):
        if text:
            raise CommError(f"rank {rank} failed: {text}", rank=rank)
    return [told for _, told in all_told]
