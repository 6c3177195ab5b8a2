"""State that optimizers make late, or in ways of their own, comes back all the same."""

from __future__ import annotations

import copy
import warnings

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")


class Late(torch.optim.Optimizer):
    """Makes a number and a tensor in its second update; its step takes no closure."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["k"] = state.get("k", 0) + 1
            if state["k"] > 1:
                state["scale"] = state.get("scale", 1.0) * 0.9
                state.setdefault("mean", torch.zeros_like(p)).add_(p.grad)
                state.setdefault("seen", torch.zeros(3)).add_(1)
            p.sub_(0.1 * state.get("scale", 1.0) * p.grad)


class Counts(torch.optim.SGD):
    """Has more in its state dict than state and groups."""

    def __init__(self, params, **how):
        super().__init__(params, lr=0.1, **how)
        self.k = 0

    def step(self, closure=None):
        self.k += 1
        return super().step(closure)

    def state_dict(self):
        return {**super().state_dict(), "k": self.k}

    def load_state_dict(self, state_dict):
        state_dict = dict(state_dict)
        self.k = state_dict.pop("k", 0)
        super().load_state_dict(state_dict)


class Masters(torch.optim.Optimizer):
    """Keeps weights in fp32."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            master = self.state[p].setdefault("master", p.float() + 1e-6)
            master.sub_(p.grad.float(), alpha=self.param_groups[0]["lr"])
            p.copy_(master)


def sgd(**how):
    return lambda params: torch.optim.SGD(params, lr=0.1, **how)


def adam(**how):
    return lambda params: torch.optim.AdamW(params, lr=0.1, **how)


def train(state, n):
    for _ in range(n):
        state["optim"].zero_grad()
        out = state["model"](
            torch.ones(1, 2, dtype=next(state["model"].parameters()).dtype)
        )
        out.square().sum().backward()
        state["optim"].step()
    return state


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (Late, Late),
        (Counts, Counts),
        (adam(amsgrad=True), adam()),
        (sgd(momentum=0.9), sgd()),
        (sgd(momentum=0.9, nesterov=True), sgd(momentum=0.1)),
    ],
    ids=["late", "counts", "amsgrad", "momentum", "nesterov"],
)
@pytest.mark.parametrize("updates", [1, 3])
def test_it_goes_on_as_it_would(tmp_path, make, other, updates):
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 2)
    state = train({"model": net, "optim": make(net.parameters())}, updates)
    libdcp.save(state, tmp_path, step=1)
    net = torch.nn.Linear(2, 2)
    into = {"model": net, "optim": other(net.parameters())}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load(into, tmp_path)
    assert same(into["optim"].state_dict(), state["optim"].state_dict())
    train(state, 2), train(into, 2)
    assert torch.equal(net.weight, state["model"].weight)


def test_an_optimizer_for_each_weight(tmp_path):
    """Names of their settings look like values of weights."""

    def make():
        net = torch.nn.Linear(2, 2)
        named = net.named_parameters()
        return {"model": net, "optims": {n: torch.optim.Adam([p]) for n, p in named}}

    state, into = make(), make()
    state["model"](torch.ones(1, 2)).sum().backward()
    for optim in state["optims"].values():
        optim.step()
    libdcp.save(state, tmp_path, step=1)
    for step in (2, 3):
        libdcp.load(into, tmp_path)
        libdcp.save(into, tmp_path, step=step)
    for name, optim in into["optims"].items():
        assert same(optim.state_dict(), state["optims"][name].state_dict())


class Odd(torch.optim.Optimizer):
    """Keeps things under names with dots."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p]["n.k"] = self.state[p].get("n.k", 0) + 1
            if self.state[p]["n.k"] > 1:
                self.state[p]["m.k"] = 3
                self.state[p]["exp_avg.1"] = p + 1


def test_kinds_with_dots(tmp_path):
    def make(updates):
        net = torch.nn.Sequential(torch.nn.Linear(2, 2))
        state = {"model": net, "optim": Odd(net.parameters(), {"lr": 0.1})}
        return train(state, updates)

    state, into = make(3), make(0)
    libdcp.save(state, tmp_path, step=1)
    libdcp.load(into, tmp_path)
    assert same(into["optim"].state_dict(), state["optim"].state_dict())


def test_sparse_gradients(tmp_path):
    def make():
        net = torch.nn.Embedding(4, 2, sparse=True)
        return {"model": net, "optim": torch.optim.SparseAdam(net.parameters())}

    state, into = make(), make()
    state["model"](torch.tensor([1, 2])).sum().backward()
    state["optim"].step()
    libdcp.save(state, tmp_path, step=1)
    libdcp.load(into, tmp_path)
    assert same(into["optim"].state_dict(), state["optim"].state_dict())


def test_a_load_calls_no_step_of_wrappers(tmp_path):
    """A scheduler counts them; a save makes none at all."""
    net = torch.nn.Linear(2, 2)
    state = {"model": net, "optim": Counts(net.parameters())}
    libdcp.save(state, tmp_path, step=1)
    assert state["optim"].k == 0
    optim = torch.optim.AdamW(net.parameters())
    calls, step = [], optim.step
    optim.step = lambda *args, **how: calls.append(step(*args, **how))
    libdcp.save(train({"model": net, "optim": optim}, 1), tmp_path, step=2)
    optim.state.clear()
    libdcp.load({"model": net, "optim": optim}, tmp_path)
    assert len(calls) == 1 and len(optim.state) == 2


def test_masters_under_hooks(tmp_path):
    """PyTorch rounds what it loads to the dtype of the weight."""

    def make():
        net = torch.nn.Linear(2, 2, dtype=torch.bfloat16)
        optim = Masters(net.parameters(), {"lr": 0.1})
        optim.register_state_dict_post_hook(lambda _, state: state)
        return {"model": net, "optim": optim}

    state, into = train(make(), 1), make()
    libdcp.save(state, tmp_path, step=1)
    libdcp.load(into, tmp_path)
    for ours, theirs in zip(into["optim"].state.values(), state["optim"].state.values()):
        assert theirs["master"].dtype == torch.float32 and same(ours, theirs)


class Partly(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.both = False

    def forward(self, x):
        return self.used(x) + (self.other(x) if self.both else 0)


def partly(path, original):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    def make():
        net = FullyShardedDataParallel(
            Partly(),
            device_id=torch.device("cpu"),
            use_orig_params=original,
            auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        )
        return {"model": net, "optim": torch.optim.AdamW(net.parameters())}

    torch.manual_seed(0)
    state = train(make(), 2)
    libdcp.save(state, path, step=1)
    into = make()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        libdcp.load(into, path)
    for goes_on in (state, into):
        goes_on["model"].module.both = True
        train(goes_on, 2)
    with FullyShardedDataParallel.summon_full_params(state["model"]):
        ours = {n: p.clone() for n, p in state["model"].named_parameters()}
    with FullyShardedDataParallel.summon_full_params(into["model"]):
        theirs = dict(into["model"].named_parameters())
        alike = all(torch.equal(p, theirs[n]) for n, p in ours.items())
    return alike, any("PyTorch wants some: zeros" in str(w.message) for w in told)


def flat_of_plain(path):
    """One flat parameter of all weights has one count."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if torch.distributed.get_rank() == 0:
        net = Partly()
        state = {"model": net, "optim": torch.optim.AdamW(net.parameters())}
        libdcp.save(train(state, 3), path, step=1, group="alone")
    torch.distributed.barrier()
    net = FullyShardedDataParallel(Partly(), device_id=torch.device("cpu"))
    into = {"model": net, "optim": torch.optim.AdamW(net.parameters())}
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        libdcp.load(into, path)
    return [
        float(s["step"]) for s in into["optim"].state.values() if s["exp_avg"].numel()
    ]


def test_the_count_of_a_flat_parameter(tmp_path):
    assert run_ranks(2, flat_of_plain, str(tmp_path)) == [[3.0], [3.0]]


@pytest.mark.parametrize("original", [True, False])
def test_weights_of_fsdp1_without_updates(tmp_path, original):
    told = run_ranks(2, partly, str(tmp_path), original)
    assert told == [(True, True), (True, False)]


class Extra(torch.nn.Module):
    def __init__(self, extra):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


@pytest.mark.parametrize(
    ("had", "has"),
    [
        ({"t": torch.ones(2), "u": torch.ones(1), "v": [1]}, {"t": torch.zeros(2)}),
        ({"t": torch.ones(2)}, None),
        (torch.arange(9, dtype=torch.uint8), torch.zeros(0, dtype=torch.uint8)),
        ({"n": 3}, {"n": 1, "m": 2}),
        (None, {"t": torch.zeros(2)}),
    ],
    ids=["more", "none", "longer", "plain", "nothing"],
)
def test_extra_state_of_modules(tmp_path, had, has):
    libdcp.save({"model": torch.nn.Sequential(Extra(had))}, tmp_path, step=1)
    net = torch.nn.Sequential(Extra(has))
    libdcp.load({"model": net}, tmp_path)
    assert same(net[0].extra, had)


def test_buffers_that_the_model_has_not(tmp_path):
    libdcp.save({"model": torch.nn.BatchNorm1d(2)}, tmp_path, step=1)
    net = torch.nn.BatchNorm1d(2, track_running_stats=False)
    with pytest.warns(RuntimeWarning, match="the step has 3 buffers that no model has"):
        libdcp.load({"model": net}, tmp_path)


def test_gradients_in_a_dtype_of_their_own(tmp_path):
    """bf16 weights may have gradients in fp32."""

    def made():
        net = torch.nn.Linear(3, 2).bfloat16()
        if not hasattr(net.weight, "grad_dtype"):
            pytest.skip("this PyTorch has no grad_dtype")
        for p in net.parameters():
            p.grad_dtype = torch.float32
        return {"model": net, "optim": torch.optim.SGD(net.parameters(), momentum=0.9)}

    state, into = made(), made()
    for p in state["model"].parameters():
        p.grad = torch.ones_like(p, dtype=torch.float32)
    state["optim"].step()
    libdcp.save(state, tmp_path, step=1)
    libdcp.load(into, tmp_path)
    told = [s["optim"].state_dict()["state"] for s in (state, into)]
    assert str(told[0]) == str(told[1]) and told[0]
    assert into["model"].weight.grad is None


class Growing(torch.optim.SGD):
    """Writes into its groups from the first update on, and makes state at some."""

    def __init__(self, params, makes):
        super().__init__(params, lr=0.1, momentum=0.9)
        self.makes = makes

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            n = group["n"] = group.get("n", 0) + 1
            for p in group["params"]:
                made = self.makes.get(n, dict)()
                self.state[p].update(k=n, **made)
                self.state[p].update(late=n * 1.5) if n > 1 else None


def ones():
    return {"buf": torch.ones(3), "t": None}


def growing(params):
    """State is a number or nothing first, then a tensor, and one of another dtype."""
    twos = torch.full((2,), 2.0, dtype=torch.float64)
    makes = {1: lambda: {"t": None, "b": "x"}, 3: ones, 4: lambda: {"t": twos.clone()}}
    return Growing(params, makes)


class Plainly(torch.optim.Optimizer):
    """Keeps a number first, and tensors of the same weight later."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            n = self.state[p]["n"] = self.state[p].get("n", 0) + 1
            if n > 1:
                self.state[p]["buf"] = p.detach() * n


class OwnGrowing(Growing):
    """PyTorch reads and writes it."""

    def state_dict(self):
        return {**super().state_dict(), "own": 1}


REWOUND = {
    "plain": growing,
    "by PyTorch": lambda params: OwnGrowing(params, growing([torch.ones(1)]).makes),
    "numbers alone": lambda params: Plainly(params, {"lr": 0.1}),
    "adam": adam(),
}


@pytest.mark.parametrize("make", REWOUND.values(), ids=REWOUND)
@pytest.mark.parametrize("at", [0, 1, 2, 4])
@pytest.mark.parametrize("new", [False, True], ids=["here", "anew"])
def test_nothing_of_a_later_course_stays(tmp_path, make, at, new):
    """Groups and weights have what they had, as after load_state_dict of PyTorch."""
    net = torch.nn.Linear(2, 2)
    state = train({"model": net, "optim": make(net.parameters())}, at)
    libdcp.save(state, tmp_path, step=1)
    before = copy.deepcopy(state["optim"].state_dict())
    if new:
        state["optim"] = make(net.parameters())
    else:
        train(state, 5)
        state["optim"].param_groups[0].update(warm=True, call=len)
    libdcp.load(state, tmp_path, step=1, rewind=True)
    assert same(state["optim"].state_dict(), before)


def test_a_setting_that_was_turned_on_later(tmp_path):
    net = torch.nn.Linear(2, 2)
    state = train({"model": net, "optim": adam()(net.parameters())}, 1)
    libdcp.save(state, tmp_path, step=1)
    state["optim"] = adam(amsgrad=True)(net.parameters())
    train(state, 1)
    libdcp.load(state, tmp_path)
    (group,) = train(state, 1)["optim"].param_groups
    assert group["amsgrad"] is False
    assert all("max_exp_avg_sq" not in kept for kept in state["optim"].state.values())


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (sgd(momentum=0.9), []),
        (torch.optim.Adamax, []),
        (torch.optim.Adagrad, ["step", "sum"]),
        (torch.optim.Adam, ["exp_avg", "exp_avg_sq", "step"]),
    ],
    ids=["sgd", "adamax", "adagrad", "adam"],
)
@pytest.mark.parametrize("done", [0, 2])
def test_another_type_goes_on(tmp_path, make, kept, done):
    """With what it keeps, all of it or none; Adagrad makes its own when it is made."""
    net = torch.nn.Linear(2, 2)
    state = train({"model": net, "optim": adam()(net.parameters())}, done)
    libdcp.save(state, tmp_path, step=1)
    into = {"model": net, "optim": make(net.parameters())}
    fresh = {k for values in into["optim"].state.values() for k in values}
    with pytest.warns(RuntimeWarning, match="lacks some begins without state"):
        libdcp.load(into, tmp_path)
    found = {k for values in into["optim"].state.values() for k in values}
    assert sorted(found) == (kept if done else sorted(fresh))
    train(into, 1)


def test_moments_of_weights_that_became_bf16(tmp_path):
    """They come back as they were, and with allow_cast as they are here."""

    def made():
        net = torch.nn.Linear(2, 2)
        return {"model": net, "optim": adam()(net.parameters())}

    state = train(made(), 1)
    state["model"].bfloat16()
    libdcp.save(state, tmp_path, step=1)
    for cast in (False, True):
        into = made()
        into["model"].bfloat16()
        libdcp.load(into, tmp_path, allow_cast=cast)
        ours, theirs = (s["optim"].state_dict()["state"][0] for s in (into, state))
        assert ours["exp_avg"].dtype == (torch.bfloat16 if cast else torch.float32)
        assert cast or same(ours, theirs)


def test_a_count_that_is_no_number(tmp_path):
    net = torch.nn.Linear(2, 2)
    state = train({"model": net, "optim": adam()(net.parameters())}, 1)
    state["optim"].state[net.weight]["step"].fill_(float("nan"))
    libdcp.save(state, tmp_path, step=1)
    with libdcp.open(tmp_path) as ckpt:
        assert not {"step", "steps"} & set(ckpt.objects["optimizer"])


class Divides(OwnGrowing):
    """Its updates fail at a rate of 0, and take no closure."""

    def step(self):
        for group in self.param_groups:
            group["decay"] = 1 / group["lr"]
        super().step()


def test_updates_that_fail_in_a_load(tmp_path):
    """What they would have made is in the step."""

    def made(n):
        net = torch.nn.Linear(2, 2)
        makes = growing([torch.ones(1)]).makes
        return train({"model": net, "optim": Divides(net.parameters(), makes)}, n)

    for n in (0, 1, 4):
        state, into = made(n), made(0)
        state["optim"].state.pop(state["model"].bias, None)
        libdcp.save(state, tmp_path, step=n)
        libdcp.load(into, tmp_path, step=n)
        assert same(into["optim"].state_dict(), state["optim"].state_dict())


class Keyed(Counts):
    """Keeps something for no weight."""

    def step(self, closure=None):
        super().step(closure)
        self.state["k"] = torch.tensor(3)


class Given:
    """What is no optimizer, and has the state of one."""

    def __init__(self, optim):
        self.state_dict, self.load_state_dict = optim.state_dict, optim.load_state_dict


def test_state_that_pytorch_cannot_handle(tmp_path):
    """It is told whose; an object that hands it on is saved as it is."""
    net = torch.nn.Linear(2, 2)
    state = train({"model": net, "optim": Keyed(net.parameters(), momentum=0.9)}, 1)
    with pytest.raises(libdcp.UnsupportedError, match=r"'optim' \(Keyed\): KeyError"):
        libdcp.save(state, tmp_path, step=1)
    other = Keyed(net.parameters(), momentum=0.9)
    libdcp.save({"model": net, "optim": Given(state["optim"])}, tmp_path, step=1)
    libdcp.load({"model": net, "optim": Given(other)}, tmp_path)
    assert same(other.state_dict(), state["optim"].state_dict())


def test_a_number_that_the_step_lacks(tmp_path):
    """An optimizer of another type makes it, with the rest."""

    class Numbered(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for p in self.param_groups[0]["params"]:
                self.state[p]["n"] = 1

    state = {"model": torch.nn.Linear(2, 2)}
    state["optim"] = sgd(momentum=0.9)(state["model"].parameters())
    train(state, 1)
    libdcp.save(state, tmp_path, step=1)
    into = {"model": torch.nn.Linear(2, 2)}
    into["optim"] = Numbered(into["model"].parameters(), lr=0.1, momentum=0.9)
    with pytest.warns(RuntimeWarning, match="goes on with Numbered"):
        libdcp.load(into, tmp_path)
    assert not into["optim"].state and torch.equal(
        into["model"].weight, state["model"].weight
    )
