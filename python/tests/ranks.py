"""Real ranks of torch.distributed (gloo), each a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from typing import Any, Callable

DIED = "the rank died"


def _rank(rank: int, world: int, store: str, act: Callable[..., Any], args: Any) -> Any:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0", "OMP_NUM_THREADS": "1"}
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)
    try:
        return act(*args)
    finally:
        dist.destroy_process_group()


def _run(pipe: Any, *how: Any) -> None:
    try:
        pipe.send((_rank(*how), None))
    except BaseException:
        pipe.send((None, traceback.format_exc()))


def run_ranks(world: int, act: Callable[..., Any], *args: Any) -> list[Any]:
    """What each rank returns; the first that raises fails the test."""
    told = _told_by(world, act, args)
    failed = [why for _, why in told if why]
    assert not failed, failed[0]
    return [value for value, _ in told]


def kill_ranks(world: int, act: Callable[..., Any], *args: Any) -> None:
    """All ranks are to end by a signal, on their own."""
    told = _told_by(world, act, args)
    assert told == [(None, DIED)] * world, told


def _told_by(world: int, act: Callable[..., Any], args: Any) -> list[Any]:
    context = multiprocessing.get_context("fork")
    ranks, told = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            ours, theirs = context.Pipe()
            how = (theirs, rank, world, os.path.join(folder, "store"), act, args)
            process = context.Process(target=_run, args=how)
            process.start()
            theirs.close()
            ranks.append((process, ours))
        for process, pipe in ranks:
            try:
                told.append(pipe.recv())
            except EOFError:
                told.append((None, DIED))
            process.join()
    return told
