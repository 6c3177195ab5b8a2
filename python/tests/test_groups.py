"""What is kept of a process group ends with it."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.nn.functional")  # its default arguments keep WORLD, else


def _gloo_threads():
    tasks = "/proc/self/task"
    names = [Path(f"{tasks}/{t}/comm").read_text() for t in os.listdir(tasks)]
    return sum("gloo" in name for name in names)


def _save_and_destroy(run, name, beside):
    gc.disable()
    world, rank = dist.get_world_size(), dist.get_rank()
    model = torch.nn.Linear(3, 5)
    alive = [weakref.ref(dist.group.WORLD)]
    how = {}
    if name == "sub":
        how["group"] = dist.new_group(range(world))
        alive.append(weakref.ref(how["group"]))
    libdcp.save({"model": model}, run, step=1, **how)
    if beside:
        model.weight.data.zero_()
        libdcp.save_async({"model": model}, run, step=2, **how).wait()
    libdcp.load({"model": model}, run, **how)
    how.clear()
    dist.destroy_process_group()
    left = [ref() is not None for ref in alive], _gloo_threads()

    # The next one is another, and nobody waits for the ranks of the first.
    store = f"file://{run}.again"
    dist.init_process_group("gloo", store, rank=rank, world_size=world)
    model.weight.data.fill_(7)
    libdcp.save({"model": model}, run, step=3)
    model.weight.data.zero_()
    assert libdcp.load({"model": model}, run).step == 3
    return left, float(model.weight.sum())


@pytest.mark.parametrize("name", ["world", "sub"])
@pytest.mark.parametrize("beside", [False, True])
def test_destroyed_groups_are_let_go(tmp_path, name, beside):
    """Their threads end in destroy_process_group, not after Python has."""
    for left, total in run_ranks(2, _save_and_destroy, f"{tmp_path}/run", name, beside):
        assert left == ([False] * (1 + (name == "sub")), 0)
        assert total == 7 * 15


def _save_alone_afterwards(run):
    model = torch.nn.Linear(3, 5)
    libdcp.save({"model": model}, f"{run}/all", step=1)
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    libdcp.save({"model": model}, f"{run}/{rank}", step=1)
    dist.init_process_group("gloo", f"file://{run}/store", rank=rank, world_size=world)
    with libdcp.open(f"{run}/{rank}") as ckpt:
        return ckpt.info.world_size


def test_alone_after_a_group(tmp_path):
    """A process whose group is destroyed saves by itself."""
    (tmp_path / "run").mkdir()
    assert run_ranks(2, _save_alone_afterwards, f"{tmp_path}/run") == [1, 1]
