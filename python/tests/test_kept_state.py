"""What optimizers keep in unusual ways: as one tensor, in wrappers, as no step has it."""

from __future__ import annotations

import warnings

import numpy
import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
accelerate = peer("accelerate")
lightning = peer("lightning")


class Own(torch.optim.Optimizer):
    """Makes the state of each weight by `begin`, and goes on by `go`; wants a closure."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            closure()
        params = self.param_groups[0]["params"]
        if params[0] not in self.state:
            self.begin(params)
        for param in params:
            self.go(param, self.state[param])

    def go(self, param, state):
        state["m"] = state["m"] * 0.9 + param.grad
        param.sub_(state["m"] / (1 + state["count"]), alpha=0.1)


class OneCount(Own):
    """All weights have one count."""

    def begin(self, params):
        count = torch.zeros(())
        for param in params:
            self.state[param] = {"count": count, "m": torch.zeros_like(param)}

    def go(self, param, state):
        super().go(param, state)
        state["count"] += 1


class Wanted(torch.optim.Optimizer):
    """Its update can be tried; state begins as the weight, and as other state."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        if closure:
            with torch.enable_grad():
                closure()
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            if not state:
                now = torch.zeros_like(param)
                state.update(slow=param.data, now=now, before=now)
                continue
            new = state["now"] * 0.9 + param.grad
            param.sub_(new + 0.1 * state["before"] + 0.01 * state["slow"], alpha=0.1)
            state.update(slow=(state["slow"] + param) / 2, before=state["now"], now=new)


def trained(make, n):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    return go_on(net, make(net.parameters()), n)


def go_on(net, optim, n):
    def closure():
        optim.zero_grad()
        net(torch.arange(8.0).reshape(2, 4)).pow(2).mean().backward()

    for _ in range(n):
        optim.step(closure)
    return net, optim


@pytest.mark.parametrize("make", [OneCount, Wanted])
def test_tensors_that_are_one(tmp_path, make):
    """They are one after a load if they were in the step, and only then."""
    net, optim = trained(make, 5)
    libdcp.save({"model": net, "optim": optim}, tmp_path, step=5)
    other, into = trained(make, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load({"model": other, "optim": into}, tmp_path)
    assert str(list(into.state.values())) == str(list(optim.state.values()))
    go_on(net, optim, 3)
    go_on(other, into, 3)
    assert torch.equal(other.weight, net.weight)


def fabric(net, optim):
    return lightning.fabric.Fabric(accelerator="cpu", devices=1).setup(net, optim)


def accelerated(net, optim):
    return accelerate.Accelerator(cpu=True).prepare(net, optim)


def bare(net, optim):
    return net, optim


@pytest.mark.parametrize("wrap", [fabric, accelerated, bare])
@pytest.mark.parametrize("again", [fabric, accelerated, bare])
def test_wrappers(tmp_path, wrap, again):
    """Steps say nothing of them: the optimizer inside has the state, and its type."""
    net = torch.nn.Linear(4, 3)
    optim = torch.optim.AdamW(net.parameters(), amsgrad=True)
    outer, ours = wrap(net, optim)
    outer(torch.ones(2, 4)).sum().backward()
    ours.step()
    libdcp.save({"model": outer, "optim": ours}, tmp_path / "run", step=1)
    other = torch.nn.Linear(4, 3)
    into = torch.optim.AdamW(other.parameters(), amsgrad=True)
    outer, theirs = again(other, into)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load({"model": outer, "optim": theirs}, tmp_path / "run")
    assert torch.equal(other.weight, net.weight)
    assert str(into.state_dict()) == str(optim.state_dict())
    libdcp.reshard(tmp_path / "run", tmp_path / "ds", to="deepspeed")
    with libdcp.open(tmp_path / "ds") as ckpt:
        assert torch.equal(ckpt["weight"].torch(), net.weight)
    sgd = torch.optim.SGD(other.parameters())
    with pytest.warns(RuntimeWarning, match="with AdamW, and goes on with SGD"):
        libdcp.load({"model": outer, "optim": again(other, sgd)[1]}, tmp_path / "run")


class Outer(torch.optim.Optimizer):
    """Around another, whose state and groups it shows, with something of its own."""

    def __init__(self, optim):
        self.optim, self.seen = optim, 0
        self.defaults = optim.defaults

    state = property(lambda self: self.optim.state)
    param_groups = property(lambda self: self.optim.param_groups)

    def step(self, closure=None):
        self.optim.step()
        self.seen += 1

    def state_dict(self):
        return {**self.optim.state_dict(), "seen": self.seen}

    def load_state_dict(self, state_dict):
        state = dict(state_dict)
        self.seen = state.pop("seen")
        self.optim.load_state_dict(state)


def test_wrappers_with_more(tmp_path):
    """Nobody knows what others keep: they say it themselves."""

    def made():
        net = torch.nn.Linear(4, 3)
        return net, Outer(torch.optim.SGD(net.parameters(), momentum=0.9))

    net, optim = made()
    net(torch.ones(2, 4)).sum().backward()
    optim.step()
    libdcp.save({"model": net, "optim": optim}, tmp_path, step=1)
    other, into = made()
    libdcp.load({"model": other, "optim": into}, tmp_path)
    assert into.seen == 1
    assert str(into.optim.state_dict()) == str(optim.optim.state_dict())


def test_a_part_with_the_name_of_fabric(tmp_path):
    """The rest of the model is saved, too."""
    net = torch.nn.Module()
    net._forward_module = torch.nn.Linear(2, 2)
    net.head = torch.nn.Linear(2, 2)
    libdcp.save({"model": net}, tmp_path, step=1)
    with libdcp.open(tmp_path) as ckpt:
        assert set(ckpt.tensors) == set(net.state_dict())


class Master(torch.optim.Optimizer):
    """Trains fp32 weights in place, as its own master of them."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            master = self.state[param].setdefault("copy", param.detach().float())
            master.sub_(param.grad, alpha=0.1)


@pytest.mark.parametrize("pre", [0, 1])
def test_state_that_is_the_weight(tmp_path, pre):
    """It is the weight after a load, too."""

    def made(n):
        net = torch.nn.Linear(4, 3)
        optim = Master(net.parameters())
        for _ in range(n):
            net(torch.ones(2, 4)).sum().backward()
            optim.step()
        return net, optim

    net, optim = made(2)
    libdcp.save({"model": net, "optim": optim}, tmp_path, step=2)
    net, optim = made(pre)
    libdcp.load({"model": net, "optim": optim}, tmp_path)
    before = net.weight.detach().clone()
    net(torch.ones(2, 4)).sum().backward()
    optim.step()
    assert not torch.equal(net.weight, before)
    assert torch.equal(optim.state[net.weight]["copy"], net.weight)


def in_ddp(path):
    """Fabric wraps the module once more there."""
    from lightning.fabric.wrappers import _FabricModule

    net = torch.nn.Linear(4, 3)
    strategy = lightning.fabric.Fabric(accelerator="cpu", devices=1).strategy
    outer = torch.nn.parallel.DistributedDataParallel(net)
    outer = _FabricModule(outer, strategy, original_module=net)
    optim = torch.optim.SGD(net.parameters(), momentum=0.9)
    outer(torch.ones(2, 4)).sum().backward()
    optim.step()
    libdcp.save({"model": outer, "optim": optim}, path, step=1)
    with libdcp.open(path) as ckpt:
        return sorted(ckpt.tensors)


def test_fabric_at_several_ranks(tmp_path):
    names = ["bias", *(f"optimizer.momentum_buffer.{n}" for n in ("bias", "weight"))]
    assert run_ranks(2, in_ddp, tmp_path / "run") == [[*names, "weight"]] * 2


@pytest.mark.parametrize(
    "kept, why",
    [
        ({(0, 1): torch.ones(2)}, r"'weight' has \(0, 1\) in the state of its optimizer"),
        (torch.ones(2), "'optim' keeps a Tensor for 'weight', and no dict"),
    ],
)
def test_state_that_no_step_can_have(tmp_path, kept, why):
    net = torch.nn.Linear(4, 3)
    optim = torch.optim.SGD(net.parameters())
    optim.state[net.weight] = kept
    with pytest.raises(libdcp.UnsupportedError, match=why):
        libdcp.save({"model": net, "optim": optim}, tmp_path, step=1)


class Turns(torch.optim.SGD):
    """Has two buffers by turns, which it makes in its second and third update."""

    @torch.no_grad()
    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            state["n"] = state.get("n", 0) + 1
            if state["n"] > 1:
                state.setdefault(state["n"] % 2, torch.zeros(2)).add_(1)
                state[9] = "some"


def test_kinds_that_are_numbers(tmp_path):
    net = torch.nn.Linear(2, 2)
    optim = Turns(net.parameters())
    for _ in range(3):
        optim.step()
    libdcp.save({"model": net, "optim": optim}, tmp_path, step=3)
    into = Turns(net.parameters())
    libdcp.load({"model": net, "optim": into}, tmp_path)
    kept = into.state[net.weight]
    assert {k: str(v) for k, v in kept.items()} == {
        k: str(v) for k, v in optim.state[net.weight].items()
    }


class Scaled(torch.optim.SGD):
    """Keeps a number of NumPy, which is a pickle, from the second update on."""

    def step(self, closure=None):
        super().step(closure)
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            state["n"] = state.get("n", 0) + 1
            if state["n"] > 1:
                state["scale"] = numpy.float32(3)


def test_a_pickle_that_an_optimizer_keeps(tmp_path):
    """A load that is refused has written nothing."""
    net = torch.nn.Linear(4, 3)
    optim = Scaled(net.parameters(), momentum=0.9)
    for _ in range(2):
        net(torch.ones(2, 4)).sum().backward()
        optim.step()
    with pytest.warns(RuntimeWarning, match="trust_pickles=True"):
        libdcp.save({"model": net, "optim": optim}, tmp_path, step=2)
    other = torch.nn.Linear(4, 3)
    into = Scaled(other.parameters(), momentum=0.9)
    before = other.weight.detach().clone()
    with pytest.raises(libdcp.UnsupportedError, match="scale"):
        libdcp.load({"model": other, "optim": into}, tmp_path)
    assert torch.equal(other.weight, before)
    libdcp.load({"model": other, "optim": into}, tmp_path, trust_pickles=True)
    assert into.state[other.weight]["scale"] == 3
