"""Real ranks, each a process of its own: of torch.distributed (gloo), or over TCP."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import traceback
from typing import Any, Callable

DIED = "the rank died"


def _rank(rank: int, world: int, store: str, act: Callable[..., Any], args: Any) -> Any:
    if store.isdigit():  # a port: no process group
        told = {"RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": store}
        os.environ |= {name: str(value) for name, value in told.items()}
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        return act(*args)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0", "OMP_NUM_THREADS": "1"}
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # no rank leaves while others connect
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
    """What each rank returns; one that raises fails the test."""
    told = _told_by(world, act, args)
    failed = [why for _, why in told if why]
    assert not failed, "\n".join(failed)
    return [value for value, _ in told]


def run_tcp_ranks(world: int, act: Callable[..., Any], *args: Any) -> list[Any]:
    """The same as torchrun starts them, without a process group."""
    told = told_over_tcp(world, act, *args)
    failed = [why for _, why in told if why]
    assert not failed, failed[0]
    return [value for value, _ in told]


def told_over_tcp(world: int, act: Callable[..., Any], *args: Any) -> list[Any]:
    """What each returns, or how it failed. Somebody listens at the port, as torchrun."""
    with socket.create_server(("127.0.0.1", 0)) as agent:
        return _told_by(world, act, args, str(agent.getsockname()[1]))


def kill_ranks(world: int, act: Callable[..., Any], *args: Any) -> None:
    """All ranks are to end by a signal, on their own."""
    told = _told_by(world, act, args)
    assert told == [(None, DIED)] * world, told


def _told_by(world: int, act: Callable[..., Any], args: Any, port: str = "") -> list[Any]:
    context = multiprocessing.get_context("fork")
    ranks, told = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world):
            ours, theirs = context.Pipe()
            store = port or os.path.join(folder, "store")
            how = (theirs, rank, world, store, act, args)
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
