"""What must hold of long runs: they are killed, go on elsewhere, and leak nothing."""

from __future__ import annotations

import os
import pathlib
import signal
import tempfile

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.checkpoint.state_dict")
peer("torch.distributed.tensor")
peer("torch.distributed.fsdp")


def make(width=16):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(3)]
    net = torch.nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer)
    fully_shard(net)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2)


def learn(net, optim, step):
    x = torch.rand(8, 16, generator=torch.Generator().manual_seed(step))
    net(x).square().sum().backward()
    optim.step()
    optim.zero_grad()


def whole(net):
    """All weights, on every rank."""
    return {name: w.full_tensor() for name, w in net.state_dict().items()}


def train_and_be_killed(run, notes):
    net, optim = make()
    for step in range(1, 7):
        learn(net, optim, step)
        if step % 3 == 0:
            weights = whole(net)
            if dist.get_rank() == 0:
                torch.save(weights, notes / f"{step}.pt")
            dist.barrier()
            state = {"model": net, "optim": optim, "step": step}
            handle = libdcp.save_async(state, run, step=step)
            if step == 3:
                handle.wait()
    os.kill(os.getpid(), signal.SIGKILL)  # all ranks, in the middle of the second save


def go_on(run, notes):
    net, optim = make()
    state = {"model": net, "optim": optim, "step": 0}
    assert libdcp.load(state, run).step == state["step"] == 3
    saved = torch.load(notes / "3.pt")
    for name, weight in whole(net).items():
        assert torch.equal(weight, saved[name]), name
    for step in range(4, 7):
        learn(net, optim, step)
    weights = whole(net)
    for name, weight in torch.load(notes / "6.pt").items():
        assert torch.allclose(weights[name], weight, atol=1e-6)
    libdcp.save(state, f"{run}-{dist.get_world_size()}", step=6)


def test_killed_in_a_save(tmp_path):
    """Four ranks of FSDP2; two and three go on, with the very bits."""
    run = tmp_path / "run"
    with pytest.raises(AssertionError, match="the rank died"):
        run_ranks(4, train_and_be_killed, run, tmp_path)
    assert len(list(run.iterdir())) > 1  # it was begun
    for world in (2, 3):
        run_ranks(world, go_on, run, tmp_path)


class Adapted(torch.nn.Module):
    """A frozen weight, and what is learned beside it."""

    def __init__(self, width, rank):
        super().__init__()
        self.base = torch.nn.Linear(width, width, bias=False)
        self.base.weight.requires_grad_(False)
        self.down = torch.nn.Linear(width, rank, bias=False)
        self.up = torch.nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapt(run):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = torch.nn.Sequential(*(Adapted(1024, 8) for _ in range(2)))
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    optim = torch.optim.AdamW(w for w in net.parameters() if w.requires_grad)
    written = []
    for step in range(1, 4):
        net(torch.rand(2, 1024)).sum().backward()
        optim.step()
        optim.zero_grad()
        state = {"model": net, "optim": optim}
        written.append(libdcp.save(state, run, step=step, delta=10).written_bytes)
    saved = whole(net)
    torch.nn.init.zeros_(net[0].up.weight)
    libdcp.load({"model": net, "optim": optim}, run)
    assert all(torch.equal(w, saved[name]) for name, w in whole(net).items())
    return written


def test_what_is_frozen_costs_nothing(tmp_path):
    """Of a LoRA-like run of FSDP2 2 % is trained."""
    first, *others = run_ranks(2, adapt, tmp_path / "run")[0]
    assert max(others) * 10 < first


def used(folder):
    with open("/proc/self/statm", encoding="ascii") as file:
        rss = int(file.read().split()[1]) * 4096
    maps = len(pathlib.Path("/proc/self/maps").read_bytes().splitlines())
    files = len(os.listdir("/proc/self/fd"))
    threads = len(os.listdir("/proc/self/task"))
    return rss, (files, threads, sorted(os.listdir(folder)), maps // 16)


def test_a_thousand_saves_leak_nothing():
    """Memory, files, threads, and what lies in the folder."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as run:
        state = {"w": torch.ones(10000), "n": 1, "set": {1}}

        def cycle(step):
            save = libdcp.save_async if step % 2 else libdcp.save
            save(state, run, step=step, keep=1)
            state["w"] += 1

        def settle():
            libdcp.load(state, run, trust_pickles=True)
            for path in pathlib.Path(run).glob("step-*"):
                path.rename(pathlib.Path(run, "step-00009999"))
            found = used(run)
            pathlib.Path(run, "step-00009999").rename(path)
            return found

        for step in range(100):
            cycle(step)
        before, others = settle()
        for step in range(100, 1100):
            cycle(step)
        after, same = settle()
        assert same == others
        assert after - before < 4 << 20
