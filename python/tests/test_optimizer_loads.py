"""An optimizer goes on after a load as after PyTorch's own."""

from __future__ import annotations

import warnings

import pytest
from conftest import peer

import libdcp

torch = peer("torch")


def made(make, seed=0):
    torch.manual_seed(seed)
    net = torch.nn.Linear(4, 3)
    return {"model": net, "optim": make(net.parameters())}


def train(state, *batches):
    for i in batches:
        state["optim"].zero_grad()
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i))
        state["model"](x).square().mean().backward()
        state["optim"].step()
    return state


class Warm(torch.optim.AdamW):
    """Takes the count of its warm-up, and one buffer of all, from what was loaded."""

    n, flat = 0, None

    def __setstate__(self, state):
        super().__setstate__(state)
        self.n = max(int(kept["step"]) for kept in self.state.values())
        self.flat = torch.cat([k["exp_avg"].view(-1) for k in self.state.values()])
        begin = 0
        for param, kept in self.state.items():
            end = begin + param.numel()
            kept["exp_avg"] = self.flat[begin:end].view_as(param)
            begin = end

    def step(self, closure=None):
        self.n += 1
        if self.flat is not None:
            self.flat.mul_(0.5)
        for group in self.param_groups:
            group["lr"] = 0.1 * min(1, self.n / 10)
        return super().step(closure)


def test_setstate_hears_of_a_load(tmp_path):
    """Groups, which schedulers hold, and the dict of states stay the same ones."""
    state = train(made(Warm), 0, 1, 2)
    libdcp.save(state, tmp_path, step=3)
    held = state["model"].state_dict(), state["optim"].state_dict()
    theirs, ours = made(Warm, 1), made(Warm, 2)
    theirs["model"].load_state_dict(held[0])
    theirs["optim"].load_state_dict(held[1])
    optim = ours["optim"]
    before = optim.state, *optim.param_groups
    libdcp.load(ours, tmp_path)
    assert all(a is b for a, b in zip(before, (optim.state, *optim.param_groups)))
    assert optim.n == 3
    train(theirs, 3, 4), train(ours, 3, 4)
    assert torch.equal(ours["model"].weight, theirs["model"].weight)


def test_counts_and_settings_of_another_release(tmp_path):
    """PyTorch once counted by numbers, and had fewer settings."""
    state = train(made(torch.optim.Adam), 0)
    for kept in state["optim"].state.values():
        kept["step"] = 1
    del state["optim"].param_groups[0]["decoupled_weight_decay"]
    libdcp.save(state, tmp_path, step=1)
    into = made(torch.optim.Adam, 1)
    libdcp.load(into, tmp_path)
    counts = [kept["step"] for kept in into["optim"].state.values()]
    assert [(type(c), c.dtype, c.item()) for c in counts] == [
        (torch.Tensor, torch.float32, 1.0)
    ] * 2
    train(into, 1)


def test_a_setstate_that_fails(tmp_path):
    """It is told whose."""

    class Fails(torch.optim.SGD):
        def __setstate__(self, state):
            raise KeyError("mine")

    libdcp.save(made(Fails), tmp_path, step=1)
    with pytest.raises(libdcp.UnsupportedError, match=r"'optim' \(Fails\): KeyError"):
        libdcp.load(made(Fails), tmp_path)
