"""An optimizer goes on after a load as after PyTorch's own."""

from __future__ import annotations

import warnings

import pytest
from conftest import peer
from ranks import run_ranks

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


class Strange(torch.nn.Module):
    """Weights whose elements lie in another order, and one that no update can be of."""

    def __init__(self, *frozen):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.turned = torch.nn.Parameter(torch.randn(6, 4).t())
        if frozen:
            self.frozen = torch.nn.Parameter(*frozen, requires_grad=False)

    def forward(self, x):
        image = x.view(1, 5, 2, 2).repeat(6, 1, 2, 2)[:, :3]
        return self.turned * self.conv(image).mean()


@pytest.mark.parametrize("frozen", [(), (torch.zeros(2, dtype=torch.uint8),)])
def test_state_lies_as_weights_do(tmp_path, frozen):
    """Fused updates take it for granted, also of what is made for a load."""

    def fused(amsgrad):
        torch.manual_seed(0)
        net = Strange(*frozen)
        how = {"amsgrad": amsgrad, "fused": True}
        return {"model": net, "optim": torch.optim.AdamW(net.parameters(), 0.01, **how)}

    state = train(fused(True), 0, 1)
    libdcp.save(state, tmp_path, step=1)
    into = fused(False)
    libdcp.load(into, tmp_path)
    for weight, kept in into["optim"].state.items():
        assert len(kept) == 4
        moments = (kept[kind] for kind in kept if kind != "step")
        assert all(moment.stride() == weight.stride() for moment in moments)
    train(state, 2, 3), train(into, 2, 3)
    assert torch.equal(into["model"].conv.weight, state["model"].conv.weight)


def turned_parts(path):
    tensor = peer("torch.distributed.tensor")
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    local = torch.arange(12.0).view(3, 4).t()
    net = torch.nn.Module()
    net.part = torch.nn.Parameter(
        tensor.DTensor.from_local(
            local, mesh, [tensor.Shard(1)], shape=(4, 6), stride=(1, 4)
        )
    )
    for is_save in (True, False):
        optim = torch.optim.AdamW(net.parameters(), amsgrad=is_save)
        if is_save:
            net.part.grad = torch.ones_like(net.part)
            optim.step()
            libdcp.save({"model": net, "optim": optim}, path, step=1)
        else:
            libdcp.load({"model": net, "optim": optim}, path)
    kept = optim.state[net.part]["max_exp_avg_sq"]
    return kept.to_local().stride(), local.stride(), kept.stride(), net.part.stride()


def test_parts_lie_as_weights_do(tmp_path):
    for theirs, ours, *whole in run_ranks(2, turned_parts, f"{tmp_path}/run"):
        assert theirs == ours == (1, 4) and whole[0] == whole[1]


class Clips(torch.optim.AdamW):
    """Has an average of norms in its state dict, after its first update."""

    norm, seen = None, 0

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        self.norm = norm if self.norm is None else 0.9 * self.norm + 0.1 * norm
        self.seen += 1
        for p in params:
            p.grad.mul_((self.norm / norm).clamp(max=1))
        return super().step(closure)

    def state_dict(self):
        more = {} if self.norm is None else self.more()
        return {**super().state_dict(), **more}

    def more(self):
        return {"norm": self.norm, "seen": self.seen}

    def load_state_dict(self, state_dict):
        state_dict = dict(state_dict)
        self.norm, self.seen = state_dict.pop("norm", None), state_dict.pop("seen", 0)
        super().load_state_dict(state_dict)


class Nests(Clips):
    """Has a dict with both in it, which is there from the beginning, and text."""

    def state_dict(self):
        more = {} if self.norm is None else self.more()
        return {**torch.optim.AdamW.state_dict(self), "more": more, "text": "a"}

    def load_state_dict(self, state_dict):
        super().load_state_dict({**state_dict, **state_dict["more"]})


class Numbers(Clips):
    """Has no tensors in it, and keys that JSON has not."""

    def more(self):
        return {"norm": float(self.norm), "seen": {1: self.seen}}

    def load_state_dict(self, state_dict):
        seen = state_dict.get("seen", {1: 0})
        super().load_state_dict({**state_dict, "seen": seen[1]})


def hooked(params):
    """The same by hooks on it."""
    optim = Clips(params)
    optim.register_state_dict_post_hook(
        lambda one, found: found.update(n=torch.tensor(one.seen)) if one.seen else None
    )
    optim.register_load_state_dict_pre_hook(
        lambda one, found: setattr(one, "n", found.pop("n", None))
    )
    return optim


@pytest.mark.parametrize("key", ["optim", "optimizer"])
@pytest.mark.parametrize("now", [0, 4])
@pytest.mark.parametrize("done", [0, 3])
@pytest.mark.parametrize("make", [Clips, Nests, Numbers, hooked])
def test_more_in_a_state_dict(tmp_path, make, done, now, key):
    """It comes back whole, be that more or less than there is now."""
    state, into = train(made(make), *range(done)), train(made(make, 1), *range(now))
    libdcp.save({"model": state["model"], key: state["optim"]}, tmp_path, step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load({"model": into["model"], key: into["optim"]}, tmp_path)
    ours, theirs = (s["optim"] for s in (into, state))
    assert (ours.norm, ours.seen) == (theirs.norm, theirs.seen)
    assert make is not hooked or ours.n == (done or None)
    assert str(ours.state_dict()) == str(theirs.state_dict()) or done == 0
    train(state, 5, 6), train(into, 5, 6)
    assert torch.equal(into["model"].weight, state["model"].weight)


def test_steps_that_tell_no_more(tmp_path):
    """One that has nothing yet needs none; one that has some would keep it."""
    libdcp.save(train(made(torch.optim.AdamW), 0), tmp_path, step=1)
    with pytest.warns(RuntimeWarning, match="goes on with Clips"):
        libdcp.load(made(Clips), tmp_path)
    into = train(made(Clips), 0)
    before = into["model"].weight.clone()
    with pytest.raises(libdcp.NotFoundError, match=r"no state of 'optim\.extra'"):
        libdcp.load(into, tmp_path)
    assert torch.equal(into["model"].weight, before)


def optim(name, **how):
    return lambda params: getattr(torch.optim, name)(params, **how)


class OwnRMSprop(torch.optim.RMSprop):
    """Of another name."""


@pytest.mark.parametrize(
    ("theirs", "ours", "taken"),
    [
        (
            optim("Adam", lr=0.5, weight_decay=0.25, amsgrad=True),
            optim("AdamW"),
            {"lr": 0.5, "weight_decay": 0.25},
        ),
        (
            optim("Adam", weight_decay=0.25, maximize=True),
            optim("AdamW"),
            {"weight_decay": 0.25, "maximize": True},
        ),
        (
            optim("AdamW", lr=0.5, weight_decay=0.25, betas=(0.5, 0.25)),
            optim("SGD", momentum=0.75),
            {"lr": 0.5, "weight_decay": 0.25},
        ),
        (
            optim("AdamW", lr=0.5, weight_decay=0.25, betas=(0.5, 0.25)),
            optim("NAdam"),
            {
                "lr": 0.5,
                "weight_decay": 0.25,
                "betas": (0.5, 0.25),
                "decoupled_weight_decay": True,
            },
        ),
        (
            optim("Adafactor", lr=0.5, weight_decay=0.25),
            optim("AdamW"),
            {"lr": 0.5, "weight_decay": 0.25},
        ),
        (optim("AdamW", lr=0.5), optim("Adafactor"), {"lr": 0.5, "weight_decay": 0.01}),
        (optim("RMSprop", momentum=0.5, lr=0.25), OwnRMSprop, {"lr": 0.25}),
        (
            optim("AdamW", lr=0.5, weight_decay=0.25, amsgrad=True, maximize=True),
            optim("Adam", lr=0.0),
            {
                **{"lr": 0.5, "weight_decay": 0.25, "maximize": True},
                "decoupled_weight_decay": True,
            },
        ),
        (optim("RMSprop", momentum=0.5, lr=0.25), optim("SGD"), {"lr": 0.25}),
    ],
)
def test_settings_of_another_type(tmp_path, theirs, ours, taken):
    """It takes those that it has, too, of the same kind, and turns nothing on whose
    state it has not.
    """
    libdcp.save(train(made(theirs), 0, 1), tmp_path, step=1)
    into = made(ours, 1)
    (group,) = into["optim"].param_groups
    before = {name: value for name, value in group.items() if name != "params"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        libdcp.load(into, tmp_path)
    after = {name: value for name, value in group.items() if name != "params"}
    assert after == {**before, **taken}
    train(into, 2, 3)


@pytest.mark.parametrize(
    ("theirs", "ours", "rates", "left"),
    [
        ((1, 2), (0, 1), [9.0, 0.0], [0]),
        ((0, 1), (0, 2), [0.0, 1.0], []),
        ((0, None, 2), (2, 0, None), [2.0, 0.0, 9.0], [2]),
        ((0, None), (None, 0), [9.0, 0.0], [0]),
        ((0, None), (0, None), [0.0, 1.0], []),
    ],
)
def test_groups_of_other_weights(tmp_path, theirs, ours, rates, left):
    """They get the settings of no group whose weights are elsewhere."""

    def grouped(order, *lrs):
        net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
        groups = [
            {"params": [] if i is None else list(net[i].parameters()), "lr": lr}
            for i, lr in zip(order, lrs)
        ]
        return {"model": net, "optim": torch.optim.SGD(groups)}

    libdcp.save(grouped(theirs, 0.0, 1.0, 2.0), tmp_path, step=1)
    into = grouped(ours, 9.0, 9.0, 9.0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        libdcp.load(into, tmp_path)
    assert [group["lr"] for group in into["optim"].param_groups] == rates
    assert [str(w.message)[:31] for w in told] == [
        f"parameter group {i} keeps its set" for i in left
    ]
