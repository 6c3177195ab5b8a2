"""Ranks that find each other over TCP, where there is no process group of PyTorch."""

from __future__ import annotations

import ctypes
import io
import os
import pickle
from typing import Any

from . import _abi
from ._act import check
from ._errors import CommError, UsageError

TIMEOUT_S = 600.0  # after which a silent rank is taken for dead
CALLS, SAVES = "calls", "saves"  # the second: of savers, also in the background


class TcpGroup:
    """The ranks of a job, which talk over TCP: what `group=` of save and load takes.

    All ranks make one, and use it in the same order. They connect at the first use. What
    is not given is in the environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as
    torchrun sets them, and DCP_JOB_SECRET or DCP_JOB_SECRET_FILE. Rank 0 listens at a
    free port of the 16 behind `port`, and never at `port` itself.
    """

    def __init__(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        host: str | None = None,
        port: int | None = None,
        *,
        job: str | None = None,
        secret: str | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """Connect to nobody yet.

        job: the same on all ranks, and best on no others. secret: proves to each rank
        that the others are of the job. timeout: in seconds, of the start and each call.
        """
        self.rank = _number("RANK") if rank is None else rank
        self.world_size = _number("WORLD_SIZE") if world_size is None else world_size
        self.timeout = timeout
        self._host = host or os.environ.get("MASTER_ADDR", "")
        self._port = _number("MASTER_PORT", 0) if port is None else port
        self._job = _job() if job is None else job
        self._secret = secret or _secret()
        self._lines: dict[str, Line] = {}
        self.pid = os.getpid()
        if self.world_size > 1 and not (self._host and self._port):
            raise UsageError(
                f"this is one of {self.world_size} ranks, but MASTER_ADDR and "
                "MASTER_PORT do not say where rank 0 is",
                hint='set both on all ranks, or give group="alone" where this process '
                "saves by itself",
            )

    def line(self, use: str) -> Line:
        """Give the connections for one use, and make them first. Collective."""
        if self.pid != os.getpid():
            raise UsageError("a process that was forked off is none of the ranks")
        if use not in self._lines:
            self._lines[use] = Line(self, use)
        return self._lines[use]

    def open(self, use: str) -> ctypes.c_void_p:
        """Connect, as the library has it; the caller owns it."""
        options = _abi.GroupOptions.new(
            rank=self.rank,
            world_size=self.world_size,
            host=self._host.encode(),
            port=self._port,
            timeout_ms=max(1, min(round(self.timeout * 1000), 2**31 - 1)),
            job=f"{self._job} libdcp {use}".encode(),
            secret=self._secret and os.fsencode(self._secret),
        )
        handle, why = ctypes.c_void_p(), _abi.Error.new()
        code = _abi.lib.dcp_flat_group_open(
            ctypes.byref(options), ctypes.byref(handle), ctypes.byref(why)
        )
        check(code, why)
        return handle

    def close(self) -> None:
        """Hang up, after the save in flight; ranks that still wait learn of it."""
        from ._saver import close_saver

        if self.pid == os.getpid():
            close_saver(self)
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.close()

    def __enter__(self) -> TcpGroup:
        """Be open inside a `with`."""
        return self

    def __exit__(self, *why: object) -> None:
        """Close."""
        self.close()


class Line:
    """Connections that one thread at a time talks by."""

    def __init__(self, group: TcpGroup, use: str) -> None:
        self._of = group
        self.handle = group.open(use)

    def gather(self, mine: Any) -> list[Any]:
        """Give what each rank has: texts, bytes, numbers, and what is made of such."""
        data = pickle.dumps(mine, protocol=4)
        sizes = self._allgather(len(data).to_bytes(8, "little"))
        n_bytes = [int.from_bytes(size, "little") for size in sizes]
        parts = self._allgather(data.ljust(max(n_bytes), b"\0"))
        return [_plain(part[:n]) for part, n in zip(parts, n_bytes)]

    def _allgather(self, data: bytes) -> list[bytes]:
        n, why = len(data), _abi.Error.new()
        out = ctypes.create_string_buffer(n * self._of.world_size)
        code = _abi.lib.dcp_flat_group_allgather(
            self.handle, data, n, out, ctypes.byref(why)
        )
        check(code, why)
        return [out.raw[i * n : (i + 1) * n] for i in range(self._of.world_size)]

    def close(self) -> None:
        """Hang up."""
        handle, self.handle = self.handle, ctypes.c_void_p()
        if self._of.pid == os.getpid():  # a child must not speak for its parent
            _abi.lib.dcp_flat_group_close(handle)


class _Plain(pickle.Unpickler):
    """Whoever is taken for a rank makes nothing run here."""

    def find_class(self, module: str, name: str) -> Any:
        raise CommError(f"a rank sent a value of {module}.{name}, which is none of ours")


def _plain(data: bytes) -> Any:
    return _Plain(io.BytesIO(data)).load()


def group_of_environment() -> TcpGroup | None:
    """The ranks that the environment tells of; None: this process is alone."""
    known = _of_environment
    if known and known[0].pid != os.getpid():  # the parent is one of them
        return None
    if not known and _number("WORLD_SIZE", 1) > 1:
        known.append(TcpGroup())
    return known[0] if known else None


_of_environment: list[TcpGroup] = []  # at most one


def _number(name: str, otherwise: int | None = None) -> int:
    value = os.environ.get(name, "").strip()
    if not value and otherwise is not None:
        return otherwise
    try:
        return int(value)
    except ValueError:
        what = f"is '{value}'" if value else "is not set"
        raise UsageError(
            f"{name} {what} in the environment, and must be a number"
        ) from None


def _job() -> str:
    """What the ranks of one start share, and no others."""
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env:
        start = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"torch {env['TORCHELASTIC_RUN_ID']}, start {start}"
    if "SLURM_JOB_ID" in env:
        return f"slurm {env['SLURM_JOB_ID']}.{env.get('SLURM_STEP_ID', '0')}"
    return ""


def _secret() -> str | None:
    found = os.environ.get("DCP_JOB_SECRET")
    file = os.environ.get("DCP_JOB_SECRET_FILE")
    if not found and file:
        with open(file, encoding="utf-8") as opened:
            found = opened.read()
    return found.strip() if found else None
