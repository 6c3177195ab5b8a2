"""What libdcp does to learn which state an optimizer keeps leaves no trace."""

from __future__ import annotations

import copy
import random
from collections import OrderedDict, defaultdict

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")


class Counting(torch.optim.Optimizer):
    """Writes into groups, attributes and weights at any rate, and rounds by chance."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.k, self.seen = 0, []
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        self.k += 1
        self.seen.append(self.k)
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            group["count"] = group.get("count", torch.zeros(())).add_(1)
            group["lr"] = group.pop("lr")
        for p, slow in zip(self.param_groups[0]["params"], self.slow):
            self.state[p].setdefault("mean", torch.zeros_like(p)).add_(p.grad)
            p.add_(torch.rand(()) - 0.7)
            p.data = p.data * 0.9
            slow.lerp_(p, 0.5)


class Own(Counting):
    """Has more in its state dict; a weight is the mean of two every second time."""

    def state_dict(self):
        return {**super().state_dict(), "slow": self.slow, "k": self.k}

    def load_state_dict(self, held):
        self.k, mine = held["k"], dict(held)
        for slow, value in zip(self.slow, mine.pop("slow")):
            slow.copy_(value)
        super().load_state_dict({n: mine[n] for n in ("state", "param_groups")})


class Wrapper(torch.optim.Optimizer):
    """Has no state; the one in it has, and more of it from the second update on."""

    def __init__(self, params):
        self.base = torch.optim.AdamW(params, lr=0.1)
        self.param_groups, self.defaults = self.base.param_groups, self.base.defaults
        self.state = defaultdict(dict)
        self.param_groups[0]["k"] = 0
        for name in ("step_pre", "step_post", "state_dict_pre", "state_dict_post"):
            setattr(self, f"_optimizer_{name}_hooks", OrderedDict())
        self._optimizer_load_state_dict_pre_hooks = OrderedDict()
        self._optimizer_load_state_dict_post_hooks = OrderedDict()

    @torch.no_grad()
    def step(self, closure=None):
        self.base.step()
        self.param_groups[0]["k"] += 1
        for p in self.param_groups[0]["params"]:
            if self.param_groups[0]["k"] % 2 == 0:
                slow = self.base.state[p].setdefault("slow", p.detach().clone())
                p.copy_(slow.lerp_(p, 0.5))

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, told):
        self.base.load_state_dict(told)
        self.param_groups = self.base.param_groups


def made(make):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    return {"model": net, "optim": make(net.parameters())}


def train(state, n):
    for i in range(n):
        torch.manual_seed(i)
        state["optim"].zero_grad()
        state["model"](torch.ones(1, 3)).square().sum().backward()
        state["optim"].step()


def numbers(state):
    """All that there is, as texts; the places of the weights, and of the groups."""
    optim = state["optim"]
    held = {k: v for k, v in vars(optim).items() if "hook" not in k}
    inner = [vars(v) for v in held.values() if isinstance(v, torch.optim.Optimizer)]
    places = [p.data_ptr() for p in state["model"].parameters()]
    groups = [id(group) for group in optim.param_groups]
    torch.set_printoptions(precision=20)
    rest = repr((held, [i["state"] for i in inner], state["model"].state_dict()))
    return places, groups, rest, torch.get_rng_state().tolist()


def told(optim):
    """Its state dict, as a text; keys of groups have no order."""
    held = optim.state_dict()
    groups = [sorted(group.items()) for group in held.pop("param_groups")]
    return str((held, groups))


@pytest.mark.parametrize("make", (Counting, Own, Wrapper))
def test_a_load_that_finds_nothing(tmp_path, make):
    state = made(make)
    before = numbers(state)
    with pytest.raises(libdcp.NotFoundError):
        libdcp.load(state, tmp_path)
    assert numbers(state) == before


@pytest.mark.parametrize("make", (Counting, Own, Wrapper))
def test_a_load_that_fails(tmp_path, make):
    libdcp.save({"model": torch.nn.Linear(5, 2)}, tmp_path, step=1)
    state = made(make)
    before = numbers(state)
    with pytest.raises(libdcp.Error):
        libdcp.load(state, tmp_path)
    assert numbers(state) == before


@pytest.mark.parametrize("done", (0, 1, 2, 5))
@pytest.mark.parametrize("make", (Counting, Own, Wrapper))
def test_training_goes_on(tmp_path, make, done):
    """Weights, slow copies and counts are those of the step, state made late, too."""
    state = made(make)
    train(state, done)
    if make is Counting:
        state["optim"].slow = []  # which nobody saves
    libdcp.save(state, tmp_path, step=done)
    into = made(make)
    if make is Counting:
        into["optim"].slow = []
    libdcp.load(into, tmp_path)
    assert all(map(torch.equal, *(s["model"].parameters() for s in (state, into))))
    assert told(into["optim"]) == told(state["optim"])
    for one in (state, into):
        train(one, 3)
    assert all(map(torch.equal, *(s["model"].parameters() for s in (state, into))))


def test_some_weights_have_state(tmp_path):
    """Those are not updated, nor is what is kept for them."""
    state = made(lambda params: torch.optim.AdamW(params, lr=0.1))
    state["model"].bias.requires_grad_(False)
    train(state, 2)
    before = copy.deepcopy([state["model"].state_dict(), state["optim"].state_dict()])
    with pytest.raises(libdcp.NotFoundError):
        libdcp.load(state, tmp_path)
    now = [state["model"].state_dict(), state["optim"].state_dict()]
    assert str(now) == str(before)


def test_state_of_what_is_frozen_now(tmp_path):
    """PyTorch takes none of it, and that is told."""

    def make(params):
        optim = torch.optim.AdamW(params, lr=0.1)
        optim.register_state_dict_post_hook(lambda *_: None)
        return optim

    state = made(make)
    train(state, 2)
    libdcp.save(state, tmp_path, step=1)
    into = made(make)
    into["model"].bias.requires_grad_(False)
    with pytest.warns(RuntimeWarning, match="has 2 tensors that the optimizer has not"):
        libdcp.load(into, tmp_path)


def test_hooks_of_all_optimizers(tmp_path):
    """None of an update that nobody has made is heard."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    heard = []
    hook = register_optimizer_step_post_hook(lambda *_: heard.append(1))
    try:
        for make in (torch.optim.AdamW, Own, Wrapper):
            with pytest.raises(libdcp.NotFoundError):
                libdcp.load(made(make), tmp_path)
        assert not heard
        train(made(torch.optim.AdamW), 1)
        assert heard
    finally:
        hook.remove()


def accumulate(path, saves, late):
    """FSDP1: saves in the middle of an accumulation, before or after the first update."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    net = FullyShardedDataParallel(
        torch.nn.Linear(5, 3), device_id=torch.device("cpu"), use_orig_params=late
    )
    optim = torch.optim.AdamW(net.parameters(), lr=0.1)
    heard, losses = [], []
    optim.register_step_post_hook(lambda *_: heard.append(1))
    for i in range(3):
        with net.no_sync():
            net(torch.full((2, 5), float(i))).square().mean().backward()
        if saves:
            libdcp.save({"model": net, "optim": optim}, path, step=i)
        losses.append(net(torch.ones(2, 5)).square().mean())
        losses[-1].backward()
        optim.step()
        optim.zero_grad()
    return [loss.item() for loss in losses], len(heard)


@pytest.mark.parametrize("original", (False, True))
def test_the_middle_of_an_accumulation(tmp_path, original):
    saved = run_ranks(2, accumulate, tmp_path, True, original)
    assert saved == run_ranks(2, accumulate, tmp_path, False, original)


def flat_groups(path):
    from torch.distributed.fsdp import FullyShardedDataParallel

    def make():
        torch.manual_seed(0)
        net = FullyShardedDataParallel(
            torch.nn.Linear(5, 3), device_id=torch.device("cpu"), use_orig_params=True
        )
        return {"model": net, "optim": torch.optim.AdamW(net.parameters(), lr=0.1)}

    state = make()
    state["model"](torch.ones(2, 5)).square().mean().backward()
    state["optim"].step()
    state["optim"].param_groups[0]["lr_scale"] = 0.5
    libdcp.save(state, path, step=1)
    into = make()
    libdcp.load(into, path)
    return into["optim"].param_groups[0]["lr_scale"]


def test_keys_of_groups_that_a_new_optimizer_lacks(tmp_path):
    assert run_ranks(2, flat_groups, tmp_path) == [0.5, 0.5]


def test_all_is_put_back_though_one_thing_cannot_be():
    """Hooks and the gradients of the others come back."""
    from libdcp._unchanged import apart

    state = made(torch.optim.AdamW)
    train(state, 1)
    optim, (weight, bias) = state["optim"], state["model"].parameters()
    optim.register_step_post_hook(lambda *_: None)
    grad = weight.grad
    with pytest.raises(RuntimeError), apart(optim):
        assert weight.grad is None and not optim._optimizer_step_post_hooks
        bias.data = bias.data.to("meta")
    assert weight.grad is grad and optim._optimizer_step_post_hooks


class Drawing(torch.optim.SGD):
    """Draws from generators of all kinds, and counts in what it holds."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.numpy = pytest.importorskip("numpy")
        self.random = {"torch": torch.Generator(), "own": random.Random(1)}
        self.drawn = [self.numpy.random.default_rng(1), self.numpy.random.RandomState(1)]
        self.counts = self.numpy.zeros(2)
        self.helper = type("Helper", (), {})()
        self.helper.n, self.helper.seen = 0, []

    def step(self, closure=None):
        self.counts += 1
        self.helper.n += 1
        self.helper.seen.append(self.draws())

    def draws(self):
        return [
            *(random.random(), self.numpy.random.rand(), torch.rand(()).item()),
            torch.rand((), generator=self.random["torch"]).item(),
            *(self.random["own"].random(), self.drawn[0].random(), self.drawn[1].rand()),
        ]


def test_generators_arrays_and_helpers(tmp_path):
    told = []
    for loads in (False, True):
        state = made(Drawing)
        optim, helper = state["optim"], state["optim"].helper
        random.seed(0)
        optim.numpy.random.seed(0)
        optim.random["torch"].manual_seed(0)
        if loads:
            with pytest.raises(libdcp.NotFoundError):
                libdcp.load(state, tmp_path)
        assert optim.helper is helper and (helper.n, helper.seen) == (0, [])
        assert not optim.counts.any()
        told.append(optim.draws())
    assert told[0] == told[1]
