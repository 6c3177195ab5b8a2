"""What acts tell: what is left out, assumed, lost, or of another step."""

from __future__ import annotations

import argparse
import subprocess
import warnings

import pytest
from conftest import BIN, flip, peer

import libdcp


def test_values_beside_a_tensor_that_are_left(tmp_path):
    torch = peer("torch")
    args = argparse.Namespace(seed=7, lr=0.1, counts=torch.ones(3))
    torch.save({"model": {"w": torch.ones(2)}, "args": args}, tmp_path / "a.pt")
    for to, n in {"native": 0, "safetensors": 1, "deepspeed": 1}.items():
        assert libdcp.reshard(tmp_path / "a.pt", tmp_path / to, to=to).n_objects_left == n


def test_what_is_left_out_is_named(tmp_path):
    """A reshard warns of it; an export of weights is meant to be without."""
    objects = {f"{'n' * 60}{i}": (i, {1: 2}) for i in range(12)}
    numpy = pytest.importorskip("numpy")
    libdcp.save({"w": numpy.ones(3), "epoch": 1, **objects}, tmp_path / "a", step=1)
    said = "left out what the target cannot hold: epoch, n.* and 3 more"
    with pytest.warns(RuntimeWarning, match=said):
        made = libdcp.reshard(tmp_path / "a", tmp_path / "b", to="safetensors")
    assert (
        made.n_objects_left == 14
        and made.objects_left[0] == "epoch"
        and len(made.objects_left) == 11
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = libdcp.export(tmp_path / "a", tmp_path / "c", to="npz")
        assert len(made.objects_left) == 11
        libdcp.reshard(tmp_path / "a", tmp_path / "d", to="safetensors", lossy=True)
        assert libdcp.reshard(tmp_path / "a", tmp_path / "e").objects_left == ()


def test_what_is_assumed(tmp_path):
    """That numbers count the weights in the model's order, where names are made."""
    torch = peer("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    both = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(both, tmp_path / "a.pt")
    for to, is_said in {"torch-dist": True, "deepspeed": True, "torch": False}.items():
        made = libdcp.reshard(tmp_path / "a.pt", tmp_path / to, to=to)
        said = "the optimizer counts the weights in the model's order"
        assert made.assumed == (said if is_said else None)
        assert f"assumed={made.assumed!r}" in str(made)
    assert libdcp.export(tmp_path / "a.pt", tmp_path / "a.safetensors").assumed is None


def test_a_tensor_without_data_beside_others(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    torch.save({"none": torch.empty(3, device="meta"), "x": torch.ones(4)}, path)
    with libdcp.open(path) as ckpt:
        assert ckpt["x"].torch().sum() == ckpt["x"][1:].torch().sum() + 1 == 4
        with pytest.raises(libdcp.UnsupportedError):
            ckpt["none"].torch()
        ckpt.verify()  # it is what was saved


def test_overflows_to_bf16(tmp_path):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64):
        torch.save(
            {"x": torch.tensor([1, 3.4e38, -3.3999e38], dtype=dtype)}, tmp_path / "x.pt"
        )
        made = libdcp.export(
            tmp_path / "x.pt", tmp_path / "y.pt", dtype="bf16", force=True
        )
        assert made.n_overflows == 2


def test_counts_of_updates_go_to_deepspeed(tmp_path):
    """They need not be the number of the step; where weights differ in them there is no
    way to say so.
    """
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        net(torch.ones(1, 2)).sum().backward()
        optim.step()
    state = {"net": net, "optim": optim}
    libdcp.save(state, tmp_path / "run", step=100)
    libdcp.reshard(tmp_path / "run", tmp_path / "zero", to="deepspeed")
    libdcp.reshard(tmp_path / "zero", tmp_path / "back")
    with libdcp.open(tmp_path / "back") as ckpt:
        assert ckpt.objects["optimizer"]["step"] == 3
    net.bias.grad = None
    optim.step()
    libdcp.save(state, tmp_path / "run", step=101)
    with pytest.raises(libdcp.MismatchError, match="some more often than others"):
        libdcp.reshard(tmp_path / "run", tmp_path / "other", to="deepspeed")


def test_an_older_step_is_told_of(tmp_path):
    """Where the newest is corrupt: by an open and by a reshard, as by a load."""
    numpy = pytest.importorskip("numpy")
    for step in (1, 2):
        libdcp.save({"w": numpy.ones(3)}, tmp_path / "run", step=step)
    flip(tmp_path / "run" / "step-00000002" / "manifest.json", 10)
    said = "a newer step .* is incomplete or corrupt, and step 1 was taken"
    with pytest.warns(RuntimeWarning, match=said) as told:
        libdcp.open(tmp_path / "run").close()
        libdcp.reshard(tmp_path / "run", tmp_path / "other")
        libdcp.export(tmp_path / "run", tmp_path / "x.npz", only="all")
    assert [w.filename for w in told] == [__file__] * 3


def test_weights_that_cannot_be_read_are_named(tmp_path):
    """`state_dict` gives all weights, or none."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "x.pt"
    torch.save({"b": torch.empty(3, device="meta"), "w": torch.ones(1)}, path)
    with libdcp.open(path) as ckpt:
        with pytest.raises(libdcp.UnsupportedError, match="'b' was saved without data"):
            ckpt.state_dict()
        assert ckpt.state_dict(["w"])["w"] == 1


def test_optimizers_of_files_that_deepspeed_cannot_have(tmp_path):
    """Momentum by numbers that fit several weights is refused, as Adam's moments are."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(*(torch.nn.Linear(3, 3, bias=False) for _ in range(2)))
    groups = [{"params": [net[0].weight], "lr": 0.5}, {"params": [net[1].weight]}]
    for name, params in (("two", groups), ("one", net.parameters())):
        optim = torch.optim.SGD(params, lr=0.25, momentum=0.9)
        net(torch.ones(1, 3)).sum().backward()
        optim.step()
        state = {"model": net.state_dict(), "optimizer": optim.state_dict()}
        torch.save(state, tmp_path / f"{name}.pt")
    with pytest.raises(libdcp.MismatchError, match=r"'optimizer\.state\.0\.momentum_"):
        libdcp.reshard(tmp_path / "two.pt", tmp_path / "other", to="deepspeed")
    libdcp.reshard(tmp_path / "one.pt", tmp_path / "other", to="deepspeed")
    with libdcp.open(tmp_path / "other") as ckpt:
        (group,) = ckpt.objects["optimizer"]["param_groups"]
        assert group["lr"] == 0.25 and "optimizer.momentum_buffer.0.weight" in ckpt


def test_counts_of_a_universal_checkpoint(tmp_path):
    """Each weight has a file for it, and all are read."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optim.step()
    libdcp.save({"net": net, "optim": optim}, tmp_path / "run", step=1)
    libdcp.reshard(tmp_path / "run", tmp_path / "other", to="universal")
    files = sorted((tmp_path / "other").rglob("step.pt"))
    assert len(files) == 2
    count = torch.load(files[1], weights_only=False)
    torch.save(type(count)(9), files[1])
    with pytest.raises(libdcp.UnsupportedError, match="updates, and those before it"):
        libdcp.open(tmp_path / "other")
    files[1].write_bytes(b"garbage")
    with pytest.raises(libdcp.Error):
        libdcp.open(tmp_path / "other")


@pytest.mark.parametrize("to", ["native", "torch-dist"])
@pytest.mark.parametrize("key", ["optimizer", "optimizer_states"])
def test_diff_of_objects_between_formats(tmp_path, to, key):
    """What one side lacks is a difference, and how it spells what both have is none."""
    torch = peer("torch")
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.Adam(net.parameters())
    net(torch.ones(2)).sum().backward()
    optim.step()
    state = optim.state_dict()
    whole = {
        "model": net.state_dict(),
        key: [state] if key.endswith("s") else state,
        "scaler": {"scale": 2.0, "_growth_tracker": 3},
        "rng": {"python": (3, [1, 2]), "cpu": torch.ones(2)},
        "epoch": 7,
    }
    torch.save(whole, tmp_path / "whole.pt")

    def told(name):
        libdcp.reshard(tmp_path / f"{name}.pt", tmp_path / name, to=to)
        done = subprocess.run(
            [BIN / "dcp-inspect", "diff", tmp_path / "whole.pt", tmp_path / name],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        return done.returncode, [x for x in lines if x.startswith("only in")]

    assert told("whole") == (0, [])
    for name in ("scaler", "epoch", "rng.python"):
        first, _, last = name.partition(".")
        less = {k: dict(v) if k == "rng" else v for k, v in whole.items()}
        less[first].pop(last) if last else less.pop(first)
        torch.save(less, tmp_path / f"{name}.pt")
        assert told(name) == (1, [f"only in A {name}  (object)"])


def test_diff_of_an_object_and_its_parts(tmp_path):
    """PyTorch's planner makes parts of what a file has as one."""
    torch = peer("torch")
    dcp = peer("torch.distributed.checkpoint")
    whole = {"w": torch.ones(2), "sched": {"last_epoch": 3, "_last_lr": [0.5]}}
    torch.save(whole, tmp_path / "a.pt")
    for epoch in (3, 9):
        whole["sched"]["last_epoch"] = epoch
        dcp.save(whole, checkpoint_id=tmp_path / str(epoch), no_dist=True)
        done = subprocess.run(
            [BIN / "dcp-inspect", "diff", tmp_path / "a.pt", tmp_path / str(epoch)],
            capture_output=True,
            text=True,
            check=False,
        )
        told = done.stdout
        assert done.returncode == int(epoch == 9), told
        assert ("sched.last_epoch" in told) == (epoch == 9)
