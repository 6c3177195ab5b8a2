"""Optimizers: their settings, of several ones, and what is not theirs."""

from __future__ import annotations

import warnings

import pytest
from conftest import peer

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


def trained(make):
    """A model and its optimizer after an update."""
    net = torch.nn.Linear(2, 2)
    optim = make(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
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
    """SGD without momentum takes the settings of SGD with it, and none of its buffers."""
    state = trained(lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.5))
    libdcp.save(state, tmp_path, step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load(state, tmp_path)
        libdcp.load({"model": state["model"]}, tmp_path)  # nobody wants an optimizer
    state["optim"] = torch.optim.SGD(state["model"].parameters(), lr=1.0)
    with pytest.warns(RuntimeWarning, match="2 tensors that the optimizer has not"):
        libdcp.load(state, tmp_path)


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
