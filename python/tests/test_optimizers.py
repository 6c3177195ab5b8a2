"""Optimizers: their settings, of several ones, and what is not theirs."""

from __future__ import annotations

import functools
import warnings

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")


def two_optimizers(lr):
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    adam = torch.optim.AdamW(net[0].parameters(), lr=lr)
    sgd = torch.optim.SGD(net[1].parameters(), lr=100 * lr, momentum=0.9)
    return {"model": net, "adam": adam, "sgd": sgd}


def test_several_optimizers_of_one_model(tmp_path):
    """Each keeps its own settings, as Muon and AdamW do side by side."""
    state, into = two_optimizers(1e-3), two_optimizers(7.0)
    for _ in range(2):
        state["model"](torch.ones(2, 4)).sum().backward()
        state["adam"].step()
        state["sgd"].step()
    libdcp.save(state, tmp_path, step=1)
    libdcp.load(into, tmp_path)
    for name in ("adam", "sgd"):
        ours, theirs = into[name].state_dict(), state[name].state_dict()
        assert ours["param_groups"] == theirs["param_groups"]
        for i, moments in theirs["state"].items():
            for kind, tensor in moments.items():
                assert torch.equal(ours["state"][i][kind], tensor), (name, i, kind)
    with libdcp.open(tmp_path) as ckpt:
        assert {"optimizer.adam", "optimizer.sgd"} < set(ckpt.objects)


def test_settings_of_any_kind(tmp_path):
    """Numbers of NumPy and of PyTorch come back; what cannot be kept is named."""
    numpy = pytest.importorskip("numpy")
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(net.parameters(), lr=1.0)
    mine = {"lr": numpy.float32(0.25), "scale": torch.tensor([1.0, 2.0]), "call": len}
    optim.param_groups[0].update(mine)
    with pytest.warns(RuntimeWarning, match="'optimizer' is saved without 'call'"):
        libdcp.save({"model": net, "optim": optim}, tmp_path, step=1)
    other = torch.optim.AdamW(net.parameters(), lr=torch.tensor(9.0))
    other.param_groups[0].update(scale=torch.zeros(2), call=max)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a load saves nothing
        libdcp.load({"model": net, "optim": other}, tmp_path)
    (group,) = other.param_groups
    assert torch.equal(group["lr"], torch.tensor(0.25)) and group["call"] is max
    assert torch.equal(group["scale"], mine["scale"])


def test_kinds_of_settings(tmp_path):
    """Tensors, tuples, arrays and numbers of NumPy are what they were, also where the
    new optimizer has nothing in their place.
    """
    numpy = pytest.importorskip("numpy")
    net = torch.nn.Linear(2, 2)
    betas = (torch.tensor(0.9), torch.tensor(0.99))
    optim = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.5), betas=betas)
    mine = {
        "d": torch.tensor([1e-6], dtype=torch.float64),
        "none": torch.zeros(0, 3, dtype=torch.int32),
        "pair": (1, (2, [3, (4,)])),
        "row": numpy.arange(3, dtype=numpy.int16),
        "rate": float("inf"),
        "bounds": (-float("inf"), [float("nan")], 1.0),
        "tops": torch.tensor([[1.0, float("inf")]]),
        "lows": numpy.array([-numpy.inf, 2.0]),
        "low": numpy.float32("-inf"),
        "names": numpy.array(["inf", "a"]),
        "n": numpy.float64(0.1),
        "k": numpy.int32(3),
    }
    optim.param_groups[0].update(mine)
    torch.optim.lr_scheduler.LambdaLR(optim, lambda _: 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.save({"model": net, "optim": optim}, tmp_path, step=1)
    other = torch.optim.AdamW(net.parameters())
    libdcp.load({"model": net, "optim": other}, tmp_path)
    ours, theirs = other.param_groups[0], optim.param_groups[0]
    assert repr([*sorted(ours.items())]) == repr([*sorted(theirs.items())])
    assert type(ours["n"]) is numpy.float64 and ours["d"].dtype is torch.float64
    assert ours["none"].shape == (0, 3) and ours["row"].dtype == numpy.int16


def test_state_of_an_optimizer_that_cannot_be_saved(tmp_path):
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.LBFGS(net.parameters())
    for _ in range(2):
        optim.step(lambda: net(torch.ones(1, 2)).square().sum())
    optim.state[net.weight]["old_dirs"] = [torch.ones(2)]
    with pytest.raises(libdcp.UnsupportedError, match=r"'optimizer\.old_dirs\.weight'"):
        libdcp.save({"model": net, "optim": optim}, tmp_path, step=1)


def test_optimizers_that_cannot_be_told_apart(tmp_path):
    state = two_optimizers(1e-3)
    one = {"model": state["model"], "adam": state["adam"]}
    with pytest.raises(libdcp.UsageError, match="two values are called 'optimizer'"):
        libdcp.save({**one, "optimizer": {"lr": 1}}, tmp_path, step=1)
    libdcp.save(one, tmp_path, step=1)
    others = torch.optim.SGD(state["model"][1].parameters(), lr=1)
    with pytest.raises(libdcp.MismatchError, match="trains other weights"):
        libdcp.load({"model": state["model"], "sgd": others}, tmp_path)
    assert others.param_groups[0]["lr"] == 1


def trained(make, dtype=torch.float32):
    """A model and its optimizer after an update."""
    net = torch.nn.Linear(2, 2, dtype=dtype)
    optim = make(net.parameters())
    net(torch.ones(1, 2, dtype=dtype)).sum().backward()
    optim.step()
    return {"model": net, "optim": optim}


def test_an_optimizer_of_another_kind(tmp_path):
    """It may have nothing in common with that of the step, and lack nothing either."""
    state = trained(torch.optim.AdamW)
    libdcp.save(state, tmp_path, step=1)
    state["optim"] = torch.optim.SGD(state["model"].parameters(), lr=1.0)
    with pytest.warns(RuntimeWarning) as told:
        libdcp.load(state, tmp_path)
    left, kind = (str(w.message) for w in told)
    assert kind.startswith("the step was trained with AdamW, and goes on with SGD: ")
    assert left.startswith("the step has 4 tensors that the optimizer has not, 'optim")
    assert {w.filename for w in told} == {__file__}


def test_what_an_optimizer_lacks(tmp_path):
    """SGD without momentum takes the settings of SGD with it, and its buffers."""
    state = trained(lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.5))
    libdcp.save(state, tmp_path, step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load(state, tmp_path)
        libdcp.load({"model": state["model"]}, tmp_path)  # nobody wants an optimizer
    before = str(state["optim"].state_dict())
    state["optim"] = torch.optim.SGD(state["model"].parameters(), lr=1.0)
    libdcp.load(state, tmp_path)
    assert str(state["optim"].state_dict()) == before


def test_gradients_beside_it(tmp_path):
    """PyTorch makes no state for an optimizer whose weights have gradients."""
    state = trained(torch.optim.AdamW)
    libdcp.save(state, tmp_path, step=1)
    before = state["optim"].state_dict()
    grad = state["model"].weight.grad
    state["optim"] = torch.optim.AdamW(state["model"].parameters(), lr=1.0)
    libdcp.load(state, tmp_path)
    assert str(state["optim"].state_dict()) == str(before)
    assert state["model"].weight.grad is grad and grad.any()


@pytest.mark.parametrize("to", ["deepspeed", "torch-dist"])
def test_settings_go_to_other_programs(tmp_path, to):
    """Of two optimizers, and of one whose model is not alone."""
    two = two_optimizers(0.25)
    two["model"](torch.ones(2, 4)).sum().backward()
    two["adam"].step()
    two["sgd"].step()
    libdcp.save(two, tmp_path / "two", step=1)
    one = trained(lambda params: torch.optim.AdamW(params, lr=0.125))
    libdcp.save({**one, "ema": torch.nn.Linear(2, 2)}, tmp_path / "one", step=1)
    for name, lrs in (("two", [0.25, 25.0]), ("one", [0.125])):
        libdcp.reshard(tmp_path / name, tmp_path / "made" / name, to=to)
        with libdcp.open(tmp_path / "made" / name) as ckpt:
            groups = ckpt.objects["optimizer"]["param_groups"]
            assert [group["lr"] for group in groups] == lrs
            weights = [t.param for t in ckpt.tensors.values() if t.role == "exp_avg"]
            assert set(weights) <= {name for group in groups for name in group["params"]}


def test_models_beside_it(tmp_path):
    """A step whose groups name weights as the model does, as older ones, loads, too."""
    state = trained(lambda params: torch.optim.AdamW(params, lr=0.125))
    state["ema"] = torch.nn.Linear(2, 2)
    libdcp.save(state, tmp_path, step=1)
    with libdcp.open(tmp_path) as ckpt:
        (group,) = ckpt.objects["optimizer.optim"]["param_groups"]
    assert group["params"] == ["model.weight", "model.bias"]
    state["optim"] = torch.optim.AdamW(state["model"].parameters(), lr=1.0)
    libdcp.load(state, tmp_path)
    assert state["optim"].param_groups[0]["lr"] == 0.125


MAKERS = {
    "AdamW": torch.optim.AdamW,
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "NAdam": torch.optim.NAdam,
    "Adafactor": torch.optim.Adafactor,
    "SGD": lambda params: torch.optim.SGD(params, 0.1, momentum=0.9, dampening=0.5),
}


def train(state, n):
    losses = []
    for _ in range(n):
        state["optim"].zero_grad()
        loss = state["model"](torch.ones(1, 4, dtype=torch.bfloat16)).square().sum()
        loss.backward()
        state["optim"].step()
        losses.append(loss.item())
    return losses


def fresh(make):
    torch.manual_seed(5)
    net = torch.nn.Linear(4, 4).bfloat16()
    return {"model": net, "optim": make(net.parameters())}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("done", [0, 2])
def test_a_save_changes_nothing(tmp_path, kind, done):
    """Nor does a load: training goes on as without, also before the first update."""
    ran, called = [], []
    for way in ("as it is", "with a save", "with a load"):
        state = fresh(MAKERS[kind])
        train(state, done)
        hook = functools.partial(lambda way, *_: called.append(way), way)
        state["optim"].register_step_post_hook(hook)
        if way != "as it is":
            libdcp.save(state, tmp_path / way, step=1)
        if way == "with a load":
            state = fresh(MAKERS[kind])
            train(state, 1)
            libdcp.load(state, tmp_path / way)
        ran.append(train(state, 3))
    assert ran[0] == ran[1] == ran[2]
    assert called == ["as it is"] * 3 + ["with a save"] * 3


def test_dtypes_of_their_own(tmp_path):
    """What is kept for a weight is of any dtype: masters, counts, masks."""
    state = trained(torch.optim.SGD)
    kept = {
        "master": torch.ones(2, 2, dtype=torch.float64) / 3,
        "count": torch.tensor(1 << 40),
        "mask": torch.tensor([True, False]),
        "note": (1, {2: "two"}),
        7: torch.ones(1),
    }
    state["optim"].state[state["model"].weight] = dict(kept)
    libdcp.save(state, tmp_path, step=1)
    for value in kept.values():
        value.zero_() if isinstance(value, torch.Tensor) else None
    state["optim"].state[state["model"].weight]["note"] = None
    libdcp.load(state, tmp_path)
    now = state["optim"].state[state["model"].weight]
    assert now["master"].dtype is torch.float64 and now["master"][0, 0] == 1 / 3
    assert now["count"] == 1 << 40 and now["mask"].tolist() == [True, False]
    assert now["note"] == (1, {2: "two"})


def test_weights_without_gradients(tmp_path):
    """Those of an unused head, and frozen ones, have no state, or an old one."""
    net = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))

    def make():
        return {"model": net, "optim": torch.optim.AdamW(net.parameters())}

    def update(state, *used):
        state["optim"].zero_grad()
        sum(net[i](torch.ones(1, 2)).sum() for i in used).backward()
        state["optim"].step()

    state = make()
    update(state, 0, 1)
    net[0].requires_grad_(False)
    update(state, 1)
    libdcp.save(state, tmp_path, step=1)
    before = str(state["optim"].state_dict())
    into = make()
    for old in (state, into):
        libdcp.load(old, tmp_path)
        assert str(old["optim"].state_dict()) == before
    net[0].requires_grad_(True)
    update(into, 0, 1, 2)
    libdcp.load(into, tmp_path)
    assert str(into["optim"].state_dict()) == before


def test_groups_of_any_kind(tmp_path):
    """Empty ones, and what a new optimizer has not set, a scheduler say."""
    net = torch.nn.Linear(2, 2)
    groups = [{"params": []}, {"params": net.parameters(), "layer": "head"}]
    optim = torch.optim.AdamW(groups, lr=0.5)
    torch.optim.lr_scheduler.StepLR(optim, 1)
    optim.param_groups[1]["nested"] = ((1, 2), (3,))
    libdcp.save({"model": net, "optim": optim}, tmp_path, step=1)
    groups = [{"params": []}, {"params": net.parameters(), "nested": ((0, 0), (0,))}]
    other = torch.optim.AdamW(groups, lr=0.1)
    libdcp.load({"model": net, "optim": other}, tmp_path)
    assert other.state_dict() == optim.state_dict()


def test_one_of_two_models(tmp_path):
    """An encoder and a decoder are trained by one."""
    nets = {"enc": torch.nn.Linear(2, 2), "dec": torch.nn.Linear(2, 2)}

    def make(lr):
        params = [p for net in nets.values() for p in net.parameters()]
        return torch.optim.AdamW(params, lr=lr)

    optim = make(0.5)
    nets["dec"](nets["enc"](torch.ones(1, 2))).sum().backward()
    optim.step()
    libdcp.save({**nets, "optim": optim}, tmp_path, step=1)
    other = make(0.1)
    libdcp.load({**nets, "optim": other}, tmp_path)
    assert str(other.state_dict()) == str(optim.state_dict())
    with pytest.raises(libdcp.UsageError, match=r"of shape \[2, 2\] .* in no model"):
        libdcp.save({"enc": nets["enc"], "optim": optim}, tmp_path, step=2)


def test_one_of_several_optimizers(tmp_path):
    """A step of two has names for what is set of each, and a step of one has none."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))

    def made(part, lr):
        return torch.optim.AdamW(part.parameters(), lr=lr)

    optims = {"head": made(net[1], 0.5), "body": made(net[0], 0.25)}
    net(torch.ones(1, 2)).sum().backward()
    for optim in optims.values():
        optim.step()
    libdcp.save({"net": net, **optims}, tmp_path, step=1)
    for key, part in ("head", net[1]), ("body", net[0]):
        other = made(part, 0.1)
        libdcp.load({"net": net, key: other}, tmp_path)
        assert str(other.state_dict()) == str(optims[key].state_dict())
    with pytest.raises(libdcp.NotFoundError, match="no value 'optimizer'") as why:
        libdcp.load({"net": net, "optim": made(net[1], 0.1)}, tmp_path)
    assert "optimizers are called 'body', 'head'" in why.value.hint
    libdcp.save({"net": net, "head": optims["head"]}, tmp_path / "one", step=1)
    other = made(net[1], 0.1)
    with pytest.raises(libdcp.MismatchError, match="trains other weights"):
        both = {"net": net, "head": other, "body": made(net[0], 0.1)}
        libdcp.load(both, tmp_path / "one")
    libdcp.load({"net": net, "head": other}, tmp_path / "one")
    assert str(other.state_dict()) == str(optims["head"].state_dict())


def test_one_of_several_models(tmp_path):
    """Its weights have other names in such a step: that is said, and nothing loaded."""
    nets = {"gen": torch.nn.Linear(2, 2), "disc": torch.nn.Linear(2, 2)}
    libdcp.save(nets, tmp_path, step=1)
    net = torch.nn.Linear(2, 2)
    before = net.weight.clone()
    with pytest.raises(libdcp.MismatchError, match="several models, of which 'disc' is"):
        libdcp.load({"disc": net}, tmp_path)
    assert torch.equal(net.weight, before)
    weights = libdcp.open(tmp_path).state_dict()
    net.load_state_dict({n[5:]: w for n, w in weights.items() if n.startswith("disc.")})
    assert torch.equal(net.weight, nets["disc"].weight)
    torch.save({"disc": net.state_dict(), "epoch": 3}, tmp_path / "other.pt")
    libdcp.reshard(tmp_path / "other.pt", tmp_path / "other", to="torch-dist")
    with pytest.raises(libdcp.MismatchError, match=r"begin with 'disc\.'") as why:
        libdcp.load({"disc": net}, tmp_path / "other")
    assert "without it" in why.value.hint


def own_parts():
    """FSDP2 with an optimizer that keeps plain tensors of a rank's part."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    net = torch.nn.Linear(4, 8, bias=False)
    if torch.distributed.is_initialized():
        fully_shard(net)
    optim = torch.optim.SGD(net.parameters(), lr=1.0)
    weight = net.weight
    local = weight.to_local() if hasattr(weight, "to_local") else weight
    return net, optim, weight, local


def save_own_parts(path):
    net, optim, weight, local = own_parts()
    optim.state[weight]["sum"] = local.detach().clone()
    libdcp.save({"model": net, "optim": optim}, path, step=1)
    load_own_parts(path)


def load_own_parts(path):
    net, optim, weight, local = own_parts()
    optim.state[weight]["sum"] = torch.zeros_like(local.detach())
    libdcp.load({"model": net, "optim": optim}, path)
    assert torch.equal(optim.state[weight]["sum"], local.detach())


def test_parts_that_are_no_dtensors(tmp_path):
    run_ranks(2, save_own_parts, tmp_path)
    run_ranks(3, load_own_parts, tmp_path)
    load_own_parts(tmp_path)


def differ(path):
    rank = torch.distributed.get_rank()
    net = torch.nn.BatchNorm1d(4)
    net.running_mean += rank
    net.running_var += rank
    libdcp.save({"model": net}, path, step=1)
    libdcp.load({"model": net}, path)
    assert not net.running_mean.any() and net.running_var.eq(1).all()
    torch.manual_seed(rank)
    stage = {"stage": torch.nn.Linear(2, 2, bias=False)}
    for _ in range(2):  # also when it was refused once
        with pytest.raises(libdcp.MismatchError, match="'weight' is not the same on all"):
            libdcp.save(stage, path, step=2)


def test_ranks_that_differ(tmp_path):
    """Statistics are those of rank 0; other weights of one name are refused."""
    run_ranks(2, differ, tmp_path)


class Decayed(torch.optim.Optimizer):
    """Its rate has a name of its own, and an update without gradients is one, too."""

    def __init__(self, params):
        super().__init__(params, {"rate": 0.5})

    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.state[param].setdefault("sum", torch.zeros_like(param))
                    param.data.mul_(group["rate"])


@pytest.mark.parametrize("make", [torch.optim.AdamW, Decayed])
def test_a_load_that_fails_changes_nothing(tmp_path, make):
    """Who finds no step to load begins with an optimizer that is new."""
    net = torch.nn.Linear(2, 2)
    state = {"model": net, "optim": make(net.parameters())}
    before = net.weight.detach().clone()
    with pytest.raises(libdcp.NotFoundError):
        libdcp.load(state, tmp_path)
    libdcp.save({"model": torch.nn.Linear(3, 3), "x": 1}, tmp_path, step=1)
    with pytest.raises(libdcp.Error):
        libdcp.load(state, tmp_path)
    assert not state["optim"].state and torch.equal(net.weight, before)


class Keeping(torch.optim.Optimizer):
    """Keeps a number and, later, a tensor of each weight that has a gradient."""

    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            if param.grad is not None:
                kept = self.state[param]
                kept["n"] = kept.get("n", 0) + 1
                if kept["n"] > 1:
                    kept["sum"] = param.detach() + 1


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_optimizers_of_one_weight(tmp_path, order):
    """Each has what it kept: that the other makes none of a load does not matter."""

    def made():
        net = torch.nn.Embedding(9, 4, sparse=True)
        a = Keeping(net.parameters(), {"lr": 0.1})
        both = {"a": a, "b": torch.optim.SparseAdam(net.parameters())}
        return {"model": net, **{key: both[key] for key in order}}

    state, into = made(), made()
    state["model"](torch.tensor([1, 2])).sum().backward()
    for _ in range(2):
        state["a"].step()
    libdcp.save(state, tmp_path, step=1)
    libdcp.load(into, tmp_path)
    for key in order:
        ours, theirs = into[key].state_dict(), state[key].state_dict()
        assert str(ours) == str(theirs)
    into["model"](torch.tensor([1, 2])).sum().backward()
    into["b"].step()


def test_one_of_several_with_weights_without_updates(tmp_path):
    """The count of the others has the name of one of several."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    net[1].bias.requires_grad_(False)
    optims = {str(i): torch.optim.AdamW(net[i].parameters()) for i in (0, 1)}
    net(torch.ones(1, 2)).sum().backward()
    for optim in optims.values():
        optim.step()
    libdcp.save({"net": net, **optims}, tmp_path, step=1)
    other = torch.optim.AdamW(net[1].parameters())
    libdcp.load({"net": net, "1": other}, tmp_path)
    assert str(other.state_dict()) == str(optims["1"].state_dict())


@pytest.mark.parametrize(
    "way",
    ["torch", "torch-dist", "safetensors", "deepspeed", "universal", "torch-dist torch"],
)
def test_what_an_optimizer_calls_its_master(tmp_path, way):
    """It may be older than the weight, which is what an export gives."""
    state = trained(torch.optim.SGD, torch.bfloat16)
    net, optim = state["model"], state["optim"]
    for weight in net.parameters():
        optim.state[weight]["master"] = torch.zeros(weight.shape)
    libdcp.save(state, tmp_path / "run", step=1)
    source = tmp_path / "run"
    for to in way.split():
        libdcp.reshard(source, tmp_path / to, to=to)
        source = tmp_path / to
    ckpt = libdcp.open(source)
    masters = [t for t in ckpt.values() if t.role == "master"]
    assert {t.param for t in ckpt.values() if t.role == "optim"} == {"weight", "bias"}
    assert all(torch.equal(t.torch(), net.get_parameter(t.param)) for t in masters)
    if way == "torch-dist":
        assert "optim.state.weight.master" in ckpt
    libdcp.export(source, tmp_path / "e.pt", dtype="fp32")
    exported = torch.load(tmp_path / "e.pt")
    (weight,) = (t for name, t in exported.items() if name.endswith("weight"))
    assert torch.equal(weight, net.weight.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_masters_of_a_step_are_not_kept(tmp_path, dtype):
    """AdamW would carry them along as they are."""
    first, second = (trained(torch.optim.AdamW, dtype) for _ in range(2))
    libdcp.save(first, tmp_path / "run", step=1)
    libdcp.reshard(tmp_path / "run", tmp_path / "ds", to="deepspeed")
    libdcp.reshard(tmp_path / "ds", tmp_path / "other" / "step-00000001")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        libdcp.load(second, tmp_path / "other")
    is_less = dtype is torch.bfloat16  # than the masters
    assert any("fp32 masters" in str(w.message) for w in told) == is_less
    for kept in second["optim"].state.values():
        assert set(kept) == {"step", "exp_avg", "exp_avg_sq"}
