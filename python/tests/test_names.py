"""Whose a tensor of an optimizer is, where names are alike or weights have several."""

from __future__ import annotations

import time
import warnings

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


class Wrap(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(3, 3))
        self.head = torch.nn.Linear(3, 3)


def test_a_name_that_is_short_for_another(tmp_path):
    """`encoder.0.weight` is of the model `encoder`, and in the model `model`, too."""

    def make(*rates):
        models = {"model": Wrap(), "encoder": torch.nn.Sequential(torch.nn.Linear(3, 3))}
        pairs = zip(models.values(), rates)
        groups = [{"params": m.parameters(), "lr": lr} for m, lr in pairs]
        return {**models, "optim": torch.optim.AdamW(groups)}

    libdcp.save(make(0.1, 0.001), tmp_path, step=1)
    into = make(0.5, 0.5)
    libdcp.load(into, tmp_path)
    assert [group["lr"] for group in into["optim"].param_groups] == [0.1, 0.001]


class Counts(torch.optim.SGD):
    """Keeps a number, and from the second update on a tensor."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["n"] = state.get("n", 0) + 1
            if state["n"] > 1:
                state.setdefault("mean", torch.zeros_like(p)).add_(p)


def nested(has_norm, has_blocks):
    net = torch.nn.Module()
    if has_norm:
        net.norm = torch.nn.LayerNorm(4)
    if has_blocks:
        norm = torch.nn.LayerNorm(4)
        net.blocks = torch.nn.ModuleList([torch.nn.ModuleDict({"norm": norm})])
    return net


def update(net, optims):
    for _ in range(3):
        for p in net.parameters():
            p.grad = torch.full_like(p, float(p.ndim) + len(optims))
        for optim in optims:
            optim.step()


def told(optims):
    return [optim.state_dict()["state"] for optim in optims]


@pytest.mark.parametrize("first", ("norm", "blocks"))
def test_names_that_end_as_others_do(tmp_path, first):
    """`norm.weight`, and `blocks.0.norm.weight`, which another optimizer trains."""

    def make():
        net = nested(True, True)
        parts = [net.norm, net.blocks] if first == "norm" else [net.blocks, net.norm]
        return net, [Counts(p.parameters(), lr=0.1) for p in parts]

    net, optims = make()
    update(net, optims)
    libdcp.save({"model": net, "a": optims[0], "b": optims[1]}, tmp_path, step=1)
    net, into = make()
    state = {"model": net, "a": into[0], "b": into[1]}
    libdcp.load(state, tmp_path)
    assert str(told(into)) == str(told(optims))
    update(net, into)
    libdcp.save(state, tmp_path, step=2)


def stages(path):
    """The other one is on another rank."""
    import torch.distributed as dist

    def make():
        net = nested(dist.get_rank() == 0, dist.get_rank() == 1)
        return net, [Counts(net.parameters(), lr=0.1)]

    net, optims = make()
    update(net, optims)
    libdcp.save({"model": net, "optim": optims[0]}, path, step=1)
    net, into = make()
    libdcp.load({"model": net, "optim": into[0]}, path)
    assert str(told(into)) == str(told(optims))


def test_names_of_other_stages(tmp_path):
    run_ranks(2, stages, tmp_path)


class Tied(torch.nn.Module):
    def __init__(self, names):
        super().__init__()
        for name in names:
            self.add_module(name, torch.nn.Linear(3, 3, bias=False))
        self.head.weight = self.wte.weight
        self.other = torch.nn.Linear(2, 2)


@pytest.mark.parametrize("make", (torch.optim.AdamW, Counts))
def test_tied_weights_in_another_order(tmp_path, make):
    """Its state has the first name, which is another one there."""
    net = Tied(["wte", "head"])
    optims = [make(net.parameters(), lr=0.1)]
    update(net, optims)
    libdcp.save({"model": net, "optim": optims[0]}, tmp_path, step=1)
    net = Tied(["head", "wte"])
    into = [make(net.parameters(), lr=0.5)]
    libdcp.load({"model": net, "optim": into[0]}, tmp_path)
    theirs, ours = (
        [{k: v[k] for k in sorted(v)} for v in told(some)[0].values()]
        for some in (optims, into)
    )
    assert str(ours) == str(theirs) and into[0].param_groups[0]["lr"] == 0.1
    update(net, into)
    libdcp.save({"model": net, "optim": into[0]}, tmp_path, step=2)


def test_many_optimizers(tmp_path):
    """Names are looked up once, and not for each."""
    net = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(2)) for _ in range(3000))
    optims = {str(i): torch.optim.SGD([net[i]], lr=0.1) for i in range(300)}
    begin = time.perf_counter()
    libdcp.save({"model": net, "optims": optims}, tmp_path, step=1)
    libdcp.load({"model": net, "optims": optims}, tmp_path)
    assert time.perf_counter() - begin < 6


@pytest.mark.parametrize("first", ("emb", "head"))
def test_a_name_that_is_the_end_of_a_tied_one(tmp_path, first):
    """State goes to the weight that it is of, by whichever of its names."""

    def made(order):
        net = torch.nn.Module()
        for name in order:
            setattr(net, name, torch.nn.Linear(4, 4, bias=False))
        net.head.weight = net.emb.weight
        net.weight = torch.nn.Parameter(torch.zeros(4))
        return {"model": net, "optim": torch.optim.AdamW(net.parameters())}

    state = made((first, "head" if first == "emb" else "emb"))
    into = made(("emb", "head"))
    for p in state["model"].parameters():
        p.grad = torch.full_like(p, float(p.dim()))
    state["optim"].step()
    libdcp.save(state, tmp_path, step=1)
    libdcp.load(into, tmp_path)
    for name in ("weight", "emb.weight"):
        ours, theirs = (
            s["optim"].state[s["model"].get_parameter(name)] for s in (state, into)
        )
        assert str(ours) == str(theirs) and ours


def stage(path, *rates):
    import torch.distributed as dist

    rank = dist.get_rank()
    net = torch.nn.ModuleDict({f"l{rank}": torch.nn.Linear(2, 2)})
    optim = Counts(net.parameters(), lr=rates[rank])
    for p in net.parameters():
        p.sum().backward()
    optim.step()
    libdcp.save({"model": net, "optim": optim}, path, step=1)


@pytest.mark.parametrize("rates", ((0.1, 0.1), (0.1, 0.2)))
def test_stages_that_one_rank_loads(tmp_path, rates):
    """Of what is set of the optimizer something is lost where they differ in it."""
    run_ranks(2, stage, tmp_path, *rates)
    net = torch.nn.ModuleDict({f"l{i}": torch.nn.Linear(2, 2) for i in (0, 1)})
    into = {"model": net, "optim": Counts(net.parameters(), lr=1.0)}
    if rates[0] == rates[1]:
        libdcp.load(into, tmp_path)
    else:
        with pytest.warns(RuntimeWarning, match="values of their own of 'optimizer'"):
            libdcp.load(into, tmp_path)
    assert into["optim"].param_groups[0]["lr"] == 0.1
    assert [s["n"] for s in into["optim"].state.values()] == [1] * 4


class Late(Counts):
    """Keeps another number, from the second update on."""

    def step(self, closure=None):
        super().step(closure)
        for state in self.state.values():
            if state["n"] > 1:
                state["late"] = 3 * state["n"]


def called(*names):
    return torch.nn.ParameterDict({n: torch.nn.Parameter(torch.ones(2)) for n in names})


def test_weights_that_end_as_values_of_ranks(tmp_path):
    """As `recall@1`: it is no value that rank 1 has of `recall`."""

    def made():
        net = called("recall@1", "recall@5")
        return net, [Late([p], lr=0.1) for p in net.values()]

    net, optims = made()
    update(net, optims)
    state = {"model": net, "by@1": optims[0], "by@5": optims[1]}
    libdcp.save(state, tmp_path, step=1)
    net, into = made()
    libdcp.load({"model": net, "by@1": into[0], "by@5": into[1]}, tmp_path)
    assert str(told(into)) == str(told(optims))
    assert into[0].state[net["recall@1"]]["late"] == 9


def of_ranks(path, *names):
    """Numbers of rank 1 are others."""
    import torch.distributed as dist

    def made(n):
        net = called(*names)
        optim = Late(net.values(), lr=0.1)
        for p in list(net.values())[:1]:
            optim.state[p]["n"] = n
        return net, optim

    net, optim = made(5 + dist.get_rank())
    try:
        libdcp.save({"model": net, "optim": optim}, path, step=1)
    except libdcp.UsageError as why:
        return str(why)
    net, optim = made(0)
    libdcp.load({"model": net, "optim": optim}, path)
    return optim.state[net[names[0]]]["n"]


def test_values_of_ranks_of_weights_with_an_at(tmp_path):
    assert run_ranks(2, of_ranks, tmp_path / "a", "a@1", "b") == [5, 6]
    why = (
        "'optimizer.n.a@1' is no name for a value: steps have so what rank 1 has of "
        "'optimizer.n.a'"
    )
    assert run_ranks(2, of_ranks, tmp_path / "b", "a", "a@1") == [why, why]


def of_one_weight(path):
    """`a` has no update, and no state, at any number of ranks."""
    net = called("a", "a@1")
    optim = Late(net.values(), lr=0.1)
    optim.state[net["a@1"]]["n"] = 5
    libdcp.save({"model": net, "optim": optim}, path, step=1)
    return into_one_weight(path)


def into_one_weight(path):
    net = called("a", "a@1")
    optim = Late(net.values(), lr=0.1)
    libdcp.load({"model": net, "optim": optim}, path)
    return "n" in optim.state[net["a"]], optim.state[net["a@1"]]["n"]


def test_a_weight_that_ends_as_a_rank(tmp_path):
    """Its number is not what rank 1 has of the other's."""
    assert run_ranks(2, of_one_weight, tmp_path) == [(False, 5)] * 2
    assert into_one_weight(tmp_path) == (False, 5)


@pytest.mark.parametrize("gone", ("enc", "optimizer"))
def test_a_part_that_is_gone(tmp_path, gone):
    """Its `0.weight` is no weight called `weight`, and it is no state of one."""

    def made(*parts):
        net = torch.nn.Module()
        for name in parts:
            net.add_module(name, torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False)))
        net.weight = torch.nn.Parameter(torch.ones(2, 2))
        return net, [Late(net.parameters(), lr=0.1)]

    net, optims = made(gone)
    update(net, optims)
    libdcp.save({"model": net, "optim": optims[0]}, tmp_path, step=1)
    net, into = made()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        libdcp.load({"model": net, "optim": into[0]}, tmp_path)
    assert "has 1 weight that the model has not" in str(heard[0].message)
    assert sorted(into[0].state[net.weight]) == ["late", "mean", "n"]


class Fused(torch.nn.Module):
    """Its state dict calls the weights of a part its own, as those of torchtune do."""

    def __init__(self):
        super().__init__()
        self.part, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.register_state_dict_post_hook(self.shorten)
        self.register_load_state_dict_pre_hook(self.lengthen)

    @staticmethod
    def shorten(_, state, prefix, *_rest):
        for name in ("weight", "bias"):
            state[prefix + name] = state.pop(f"{prefix}part.{name}")

    @staticmethod
    def lengthen(_, state, prefix, *_rest):
        for name in ("weight", "bias"):
            state[f"{prefix}part.{name}"] = state.pop(prefix + name)


def test_names_that_hooks_make(tmp_path):
    def made():
        net = torch.nn.Sequential(Fused())
        return net, [Late(net.parameters(), lr=0.1)]

    net, optims = made()
    update(net, optims)
    libdcp.save({"model": net, "optim": optims[0]}, tmp_path, step=1)
    with libdcp.open(tmp_path) as ckpt:
        assert list(ckpt.state_dict()) == list(net.state_dict())
    first = net.state_dict()
    net, into = made()
    libdcp.load({"model": net, "optim": into[0]}, tmp_path)
    assert str(net.state_dict()) == str(first) and str(told(into)) == str(told(optims))
    with pytest.raises(libdcp.UnsupportedError, match="'model', a wrapped model, has na"):
        libdcp.save({"model": torch.compile(net, backend="eager")}, tmp_path, step=2)
