"""Whose state is whose in files of torch.save, which count weights by numbers."""

from __future__ import annotations

import json
import subprocess

import pytest
from conftest import BIN, peer

import libdcp

torch = peer("torch")
peer("torch.distributed.checkpoint")


def trained_by(make, *nets):
    """The optimizer of all of them, after two updates."""
    optim = make([p for net in nets for p in net.parameters()])
    for _ in range(2):
        optim.zero_grad()
        for net in nets:
            net(torch.randn(3, net[0].in_features)).square().sum().backward()
        optim.step()
    return optim


def perceptron(*sizes):
    pairs = zip(sizes, sizes[1:], strict=False)
    return torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in pairs))


def in_order(value):
    """As text, whatever the order of keys is, and whether they are numbers."""
    if isinstance(value, dict):
        return sorted((str(key), in_order(own)) for key, own in value.items())
    return str(value)


def converted(tmp_path, state, **options):
    """The state as stock PyTorch reads it, by way of a file of torch.save."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    torch.save(state, tmp_path / "from.pt")
    made = tmp_path / "made"
    libdcp.reshard(tmp_path / "from.pt", made, to="torch-dist", force=True, **options)
    dcp_to_torch_save(made, tmp_path / "stock.pt")
    libdcp.reshard(made, tmp_path / "back.pt", to="torch", force=True)
    stock = torch.load(tmp_path / "stock.pt", weights_only=False)
    back = torch.load(tmp_path / "back.pt")
    for key in "optG", "optD", "opt", "optim":
        assert in_order(back.get(key)) == in_order(stock.get(key))
    return stock


@pytest.mark.parametrize("named", ["G", "D"])
def test_several_optimizers_of_a_file(tmp_path, named):
    """Where one has names each still has its own state and settings."""
    nets = {"G": perceptron(4, 8, 3), "D": perceptron(3, 8, 1)}
    optims = {
        "G": trained_by(
            lambda p: torch.optim.Adam(p, 2e-4, betas=(0.5, 0.999)), nets["G"]
        ),
        "D": trained_by(lambda p: torch.optim.Adam(p, 4e-4, betas=(0.0, 0.9)), nets["D"]),
    }
    state = {key: net.state_dict() for key, net in nets.items()}
    if named == "D":  # what fits two models gets no names
        state["G_ema"] = {key: value + 1 for key, value in state["G"].items()}
    state |= {"opt" + key: optim.state_dict() for key, optim in optims.items()}
    stock = converted(tmp_path, state)
    for key, net in nets.items():
        names = [f"{key}.{name}" for name, _ in net.named_parameters()]
        ids = names if key == named else range(len(names))
        theirs, (group,) = state["opt" + key], stock["opt" + key]["param_groups"]
        assert group == theirs["param_groups"][0] | {"params": list(ids)}
        assert set(stock["opt" + key]["state"]) == {str(i) for i in ids}
        for i, own in zip(ids, theirs["state"].values(), strict=True):
            assert str(stock["opt" + key]["state"][str(i)]) == str(own)
    with libdcp.open(tmp_path / "made") as ckpt:
        (group,) = ckpt.objects["optimizer"]["param_groups"]
    assert group["lr"] == optims[named].param_groups[0]["lr"]
    with pytest.raises(libdcp.MismatchError, match="of a second optimizer"):
        converted(tmp_path, state, spelling="nested")


def whose(tmp_path, state, name="made"):
    """The weight that each first moment was given to, by its number in opt.state."""
    kept = [moments["exp_avg"] for moments in state["opt"]["state"].values()]
    with libdcp.open(tmp_path / name) as ckpt:
        moments = [t for t in ckpt.tensors.values() if t.name.endswith(".exp_avg")]
        return [
            next(t.param for t in moments if torch.equal(t.torch(), own)) for own in kept
        ]


def test_models_of_one_optimizer(tmp_path):
    """Nothing tells the order of two models that are alike: no weight is guessed."""
    alike = {"q1": perceptron(4, 8, 1), "q2": perceptron(4, 8, 1)}
    optim = trained_by(torch.optim.Adam, alike["q2"], alike["q1"])
    for more in {}, {"log_alpha": torch.zeros(1, 1)}:
        state = {key: net.state_dict() for key, net in alike.items()} | more
        stock = converted(tmp_path, state | {"opt": optim.state_dict()})
        assert in_order(stock["opt"]) == in_order(optim.state_dict())
    with pytest.raises(libdcp.MismatchError, match="a number that matches several"):
        converted(tmp_path, state | {"opt": optim.state_dict()}, spelling="nested")
    nets = {"encoder": perceptron(4, 4, 4), "decoder": perceptron(4, 4, 2)}
    optim = trained_by(torch.optim.Adam, nets["decoder"], nets["encoder"])
    state = {key: net.state_dict() for key, net in nets.items()}
    state["opt"] = optim.state_dict()
    converted(tmp_path, state)
    assert whose(tmp_path, state) == [
        f"{key}.{name}"
        for key in ("decoder", "encoder")
        for name, _ in nets[key].named_parameters()
    ]


@pytest.mark.parametrize("begin", ["module.", "_orig_mod.", ""])
def test_names_count_whatever_they_begin_with(tmp_path, begin):
    """Those that the optimizer has, also where the weights stand in another order."""
    net = torch.nn.ModuleDict({k: torch.nn.Linear(4, 4, bias=False) for k in "qk"})
    wrapped = net if begin else torch.nn.ModuleDict({"module": net})
    optim = torch.optim.AdamW(wrapped.named_parameters())
    (net["q"](torch.ones(4)).sum() + net["k"](torch.ones(4)).square().sum()).backward()
    optim.step()
    model = {begin + key: value for key, value in sorted(net.state_dict().items())}
    state = {"model": model, "opt": optim.state_dict()}
    converted(tmp_path, state, spelling="nested")
    assert whose(tmp_path, state) == [begin + "q.weight", begin + "k.weight"]
    state["model"] = {f"{n}.{key}": value for n in "ab" for key, value in model.items()}
    converted(tmp_path, state)
    assert whose(tmp_path, state) == ["opt.state.0.exp_avg", "opt.state.1.exp_avg"]


def test_shapes_of_factored_moments(tmp_path):
    """Rows and columns tell a weight's shape together, and none of them alone."""
    model = {"head.bias": torch.ones(11), "norm.weight": torch.ones(6)}
    model["head.weight"] = torch.ones(11, 6)
    own = {"step": 2, "exp_avg_sq_row": torch.ones(11), "exp_avg_sq_col": torch.ones(6)}
    opt = {"state": {0: own}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    stock = converted(tmp_path, {"model": model, "opt": opt})
    assert list(stock["opt"]["state"]) == ["head.weight"]
    model["embed.weight"] = torch.ones(11, 6)
    stock = converted(tmp_path, {"model": model, "opt": opt})
    assert list(stock["opt"]["state"]) == ["0"]
    del own["exp_avg_sq_col"]
    stock = converted(tmp_path, {"model": model, "opt": opt})
    assert list(stock["opt"]["state"]) == ["0"]


@pytest.mark.parametrize("kind", ["Adafactor", "Muon", "Rprop"])
def test_files_are_spelled_with_names(tmp_path, kind):
    """Settings that are tuples are tuples again, and what stock PyTorch asks for is
    there."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict as stock

    make = getattr(torch.optim, kind)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False))
    optim = trained_by(make, net)
    converted(
        tmp_path,
        {"model": net.state_dict(), "optim": optim.state_dict()},
        spelling="nested",
    )
    net.zero_grad()
    other = make(net.parameters())
    state = {"optim": stock.get_optimizer_state_dict(net, other)}
    dcp.load(state, checkpoint_id=tmp_path / "made", no_dist=True)
    stock.set_optimizer_state_dict(net, other, state["optim"])
    assert str(other.state_dict()) == str(optim.state_dict())


def test_files_whose_numbers_are_no_weights(tmp_path):
    """L-BFGS keeps one state for all weights, which no weight's name can stand for."""
    net = perceptron(4, 2)
    optim = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure():
        optim.zero_grad()
        loss = net(torch.ones(4)).square().sum()
        loss.backward()
        return loss

    optim.step(closure)
    state = {"model": net.state_dict(), "optim": optim.state_dict()}
    with pytest.raises(libdcp.MismatchError, match="a number that matches several"):
        converted(tmp_path, state, spelling="nested")


@pytest.mark.parametrize("by_native", [False, True])
def test_numbers_that_stock_pytorch_made_texts(tmp_path, by_native):
    """Its planner knows texts alone, by which an optimizer would find no state."""
    nets = [perceptron(3, 3), perceptron(3, 3)]
    optims = {
        "one": trained_by(torch.optim.Adam, nets[0]),
        "both": trained_by(torch.optim.Adam, *nets),
    }
    state = {key: optim.state_dict() for key, optim in optims.items()}
    state["nets"] = [net.state_dict() for net in nets]
    torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / "stock")
    source = tmp_path / "stock"
    if by_native:
        libdcp.reshard(source, tmp_path / "native", to="native")
        source = tmp_path / "native"
    libdcp.reshard(source, tmp_path / "it.pt", to="torch")
    loaded = torch.load(tmp_path / "it.pt")
    for key, optim in optims.items():
        assert str(loaded[key]["state"]) == str(optim.state_dict()["state"])


def test_what_is_said_of_a_tied_weight(tmp_path):
    """Its second name is trained as its first is: nothing of it is frozen."""
    net = torch.nn.ModuleDict({n: torch.nn.Linear(3, 3, bias=False) for n in "ab"})
    net["b"].weight = net["a"].weight
    optim = torch.optim.Adam(net.parameters())
    net["b"](torch.randn(2, 3)).square().sum().backward()
    optim.step()
    state = {"model": net.state_dict(), "optim": optim.state_dict()}
    torch.save(state, tmp_path / "it.pt")
    command = [BIN / "dcp-reshard", tmp_path / "it.pt", tmp_path / "it", "--json"]
    done = subprocess.run(
        [*command, "--to", "deepspeed"], capture_output=True, check=True
    )
    assert "frozen" not in (json.loads(done.stdout)["assumed"] or "")
    with libdcp.open(tmp_path / "it") as ckpt:
        assert ckpt["b.weight"].tied_to and ckpt["b.weight"].role == "model"
