"""Loads into tensors that share memory: each is what the step has, or is told of."""

from __future__ import annotations

import warnings

import numpy
import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")


class Average:
    """An average of weights that is the weights themselves until its first update."""

    def __init__(self, net):
        self.shadow = {n: p.detach() for n, p in net.named_parameters()}

    def state_dict(self):
        return {"shadow": self.shadow}

    def load_state_dict(self, state):
        self.shadow = state["shadow"]


def dense():
    return torch.nn.Linear(300, 300)


def channels_last():
    return torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("make", [dense, channels_last])
@pytest.mark.parametrize("order", [("model", "ema"), ("ema", "model")])
def test_an_average_that_begins_as_the_weights(tmp_path, order, make):
    net = make()
    ema = Average(net)
    ema.shadow = {n: v + 1 for n, v in ema.shadow.items()}
    state = {"model": net, "ema": ema}
    libdcp.save({key: state[key] for key in order}, tmp_path, step=1)
    other = make()
    into = {"model": other, "ema": Average(other)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load({key: into[key] for key in order}, tmp_path)
    assert torch.equal(other.weight, net.weight)
    assert torch.equal(into["ema"].shadow["weight"], net.weight + 1)


def sharded_average(path):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    def make():
        net = torch.nn.Linear(3, 5)  # uneven
        fully_shard(net)
        return {"model": net, "ema": Average(net)}

    state, into = make(), make()
    for tensor in state["ema"].shadow.values():
        tensor += 0  # still the weights themselves
    state["ema"].shadow = {n: v + 1 for n, v in state["ema"].shadow.items()}
    libdcp.save(state, path, step=1)
    libdcp.load(into, path)
    got, had = into["ema"].shadow, state["ema"].shadow
    assert all(type(v) is DTensor and v.shape == had[n].shape for n, v in got.items())
    assert all(torch.equal(v.full_tensor(), had[n].full_tensor()) for n, v in got.items())
    weight = into["model"].weight.full_tensor()
    return torch.equal(weight, state["model"].weight.full_tensor())


def gathered_average(path, original):
    """FSDP1's state dict has copies, and not the weights themselves."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    def make():
        net = FullyShardedDataParallel(
            torch.nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=original
        )
        rank = torch.distributed.get_rank()
        return {"model": net, f"ema{rank}": Average(net), f"slow{rank}": Average(net)}

    state, into = make(), make()
    averages = [key for key in state if key != "model"]
    for i, key in enumerate(averages, 1):
        state[key].shadow = {n: v + i for n, v in state[key].shadow.items()}
    libdcp.save(state, path, step=1)
    libdcp.load(into, path)
    weights = zip(state["model"].parameters(), into["model"].parameters())
    alike = all(torch.equal(a, b) for a, b in weights)
    pairs = [(into[key].shadow, state[key].shadow) for key in averages]
    return alike, all(torch.equal(a[n], v) for a, b in pairs for n, v in b.items())


@pytest.mark.parametrize("original", [True, False])
def test_an_average_of_gathered_weights(tmp_path, original):
    told = run_ranks(2, gathered_average, str(tmp_path), original)
    assert told == [(True, True)] * 2


def test_an_average_of_shards(tmp_path):
    assert run_ranks(2, sharded_average, str(tmp_path)) == [True, True]


class Tied(torch.nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.head, self.embed = (torch.nn.Linear(3, 3, bias=False) for _ in range(2))
        if tied:
            self.head.weight = self.embed.weight


def test_weights_that_are_tied_now(tmp_path):
    """One weight has one of the two, and that is told."""
    libdcp.save({"model": Tied(True)}, tmp_path / "tied", step=1)
    saved, net = Tied(False), Tied(True)
    libdcp.save({"model": saved}, tmp_path / "two", step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load({"model": net}, tmp_path / "tied")
    with pytest.warns(RuntimeWarning, match="are one weight, and were two in the step"):
        libdcp.load({"model": net}, tmp_path / "two")
    assert torch.equal(net.head.weight, saved.head.weight)


@pytest.mark.parametrize("zeros", [torch.zeros, numpy.zeros], ids=["torch", "numpy"])
def test_parts_of_a_tensor(tmp_path, zeros):
    """The first name has all it is to have; what the other lacks is told."""
    whole = zeros(6)
    whole[:] = 1
    libdcp.save({"a": whole, "b": whole[2:4]}, tmp_path / "alike", step=1)
    libdcp.save({"a": whole, "b": whole[2:4] * 5, "c": whole}, tmp_path / "two", step=1)
    into = zeros(6)
    state = {"a": into, "b": into[2:4]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load(state, tmp_path / "alike")
    assert into.sum() == 6
    turned = zeros((2, 2))
    with pytest.warns(RuntimeWarning, match="'b' shares memory with 'a'"):
        libdcp.save({"a": zeros((2, 2)) + 1, "b": zeros((2, 2))}, tmp_path / "t", step=1)
        libdcp.load({"a": turned, "b": turned.T}, tmp_path / "t")
    assert turned.sum() == 4
    with pytest.warns(RuntimeWarning, match="'b' shares memory with 'a'"):
        libdcp.load(state, tmp_path / "two")
    assert into.sum() == 6


class Holds:
    def __init__(self, **held):
        self.held = held

    def state_dict(self):
        return self.held

    def load_state_dict(self, told):
        self.held = told


def test_what_one_object_has_twice(tmp_path):
    """Each gets what it had, in memory of its own where that differs."""
    libdcp.save({"x": Holds(a=torch.ones(2), b=torch.zeros(2))}, tmp_path, step=1)
    same = torch.full((2,), 7.0)
    into = Holds(a=same, b=same)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load({"x": into}, tmp_path)
    assert into.held["a"] is same
    assert into.held["a"].tolist() == [1, 1] and into.held["b"].tolist() == [0, 0]


def test_schedulers_of_a_rate_that_is_a_tensor(tmp_path):
    """Those in others hold the one tensor that is the rate."""
    kinds = torch.optim.lr_scheduler

    def make():
        net = torch.nn.Linear(2, 2)
        optim = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.05))
        scheds = [
            kinds.LinearLR(optim, 0.1, total_iters=2),
            kinds.ExponentialLR(optim, 1),
        ]
        return {"net": net, "optim": optim, "s": kinds.SequentialLR(optim, scheds, [2])}

    state = make()
    for _ in range(3):
        state["optim"].step()
        state["s"].step()
    libdcp.save(state, tmp_path, step=1)
    into = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load(into, tmp_path)
    assert str(into["s"].state_dict()) == str(state["s"].state_dict())


def test_elements_that_share_memory(tmp_path):
    state = {"w": torch.ones(2), "x": torch.ones(1).expand(3)}
    libdcp.save(state, tmp_path, step=1)
    state["w"].zero_()
    with pytest.raises(libdcp.UsageError, match="elements of it share memory"):
        libdcp.load(state, tmp_path)
    assert state["w"].sum() == 0
