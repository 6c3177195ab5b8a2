"""Names of weights in wrappers, and values that ranks have otherwise."""

from __future__ import annotations

import datetime
import os
import pickle
import warnings

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp
from libdcp import _values

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.checkpoint.state_dict")
peer("torch.distributed.tensor")


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.a = torch.nn.Linear(4, 4, bias=False)
        self.b = torch.nn.Linear(4, 4, bias=False)
        self.b.weight = self.a.weight


class Net(torch.nn.Module):
    """Its children are called as wrappers call theirs."""

    def __init__(self):
        super().__init__()
        self.module = Inner()
        self.submodule = torch.nn.ModuleDict({"module": Inner()})


def save_wrapped(path):
    net = torch.nn.parallel.DistributedDataParallel(Net())
    libdcp.save({"model": net}, path, step=1)


@pytest.mark.parametrize("world", [0, 2], ids=["plain", "ddp"])
def test_names_in_wrappers(tmp_path, world):
    run = tmp_path / "run"
    if world:
        run_ranks(world, save_wrapped, run)
    else:
        libdcp.save({"model": Net()}, run, step=1)
    ckpt = libdcp.open(run)
    for name in Net().state_dict():
        role = "buffer" if "running" in name or "tracked" in name else "model"
        assert ckpt[name].role == role, name
    weights = {k: v for k, v in ckpt.state_dict().items() if ".b." not in k}
    libdcp.save(weights, run, step=2)
    libdcp.load({"model": Net()}, run)  # a tied weight by its other name


def values(path, act):
    rank = dist.get_rank()
    state = {
        "step": 7,
        "seed": None if act == "load" else 100 + rank,
        "set": None if act == "load" else {rank},
        "loader": {"at": -1 if act == "load" else rank // 2},
        "w": torch.ones(3),
    }
    if rank == 1:
        state["mine"] = 0 if act == "load" else "only here"
    if act == "save":
        libdcp.save(state, path, step=1)
    elif act == "save async":
        libdcp.save_async(state, path, step=1).wait()
    else:
        libdcp.load(state, path, trust_pickles=True)
    return [state[key] for key in ("step", "seed", "set", "loader")], state.get("mine")


@pytest.mark.parametrize("act", ["save", "save async"])
def test_values_of_ranks(tmp_path, act):
    """Each rank gets its own back; at another number of ranks all get those of one."""
    run = tmp_path / "run"
    saved = run_ranks(3, values, run, act)
    assert run_ranks(3, values, run, "load") == saved
    objects = libdcp.open(run).objects
    assert (objects["seed"], objects["seed@1"], objects["seed@2"]) == (100, 101, 102)
    assert "loader@1" not in objects and objects["loader@2"] == {"at": 1}
    assert "step@1" not in objects
    state = {"seed": 0, "mine": 0, "step": 0, "w": torch.zeros(3)}
    told = "3 ranks saved values of their own of 'mine', 'seed'"
    with pytest.warns(RuntimeWarning, match=told):
        libdcp.load(state, run)
    assert (state["seed"], state["mine"], state["step"]) == (100, "only here", 7)


def random_state(path):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    with pytest.raises(libdcp.MismatchError, match="'rng' is not the same on all ranks"):
        libdcp.save({"rng": torch.get_rng_state()}, path, step=1)
    libdcp.save({f"rng{rank}": torch.get_rng_state()}, path, step=2)
    wanted = torch.rand(3)
    loaded = {f"rng{rank}": torch.get_rng_state()}
    libdcp.load(loaded, path)
    torch.set_rng_state(loaded[f"rng{rank}"])
    assert torch.equal(torch.rand(3), wanted)


def test_states_of_generators(tmp_path):
    """Tensors, which no rank may lose."""
    run_ranks(2, random_state, tmp_path / "run")


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"a": {"b": 2, "t": torch.ones(1)}, "a.b": 1}, "two values are called 'a.b'"),
        ({"a": {1: 5, "1": 6, "t": torch.ones(1)}}, "two values are called 'a.1'"),
        ({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, "two tensors are called"),
        ({"x": 4, "x@1": 3}, "'x@1' is no name for a value"),
        ({1: torch.ones(1)}, "texts for keys, and not 1"),
    ],
)
def test_names_that_are_two(tmp_path, state, why):
    """What would come back as another value is refused, and nothing is saved."""
    with pytest.raises(libdcp.UsageError, match=why):
        libdcp.save({"w": torch.ones(1), **state}, tmp_path / "run", step=1)
    assert not (tmp_path / "run").exists()
    libdcp.save({"w": torch.ones(1), "x@1": 3, "y@z": 4}, tmp_path / "run", step=1)
    into = {"w": torch.zeros(1), "x@1": 0, "y@z": 0}
    libdcp.load(into, tmp_path / "run")
    assert (into["x@1"], into["y@z"]) == (3, 4)


def test_arrays_with_more_than_numbers(tmp_path):
    """A mask is no part of a tensor: such arrays are kept whole."""
    numpy = pytest.importorskip("numpy")
    masked = numpy.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    libdcp.save({"w": numpy.ones(3), "m": masked}, tmp_path, step=1)
    into = {"w": numpy.zeros(3), "m": None}
    libdcp.load(into, tmp_path, trust_pickles=True)
    assert into["m"].mask.tolist() == [False, True, False]
    assert into["w"].tolist() == [1, 1, 1]


def test_what_is_no_state(tmp_path):
    """What somebody gives at first, and what would say where another checkpoint was."""
    numpy, torch = peer("numpy"), peer("torch")
    net = torch.nn.Linear(1, 1)
    for wrong in (net, [net], None, net.weight):
        for act in (libdcp.save, libdcp.load):
            how = {"step": 1} if act is libdcp.save else {}
            with pytest.raises(libdcp.UsageError, match="a state is a dict") as told:
                act(wrong, tmp_path / "run", **how)
            assert "model" in told.value.hint
    libdcp.save({"w": numpy.ones(2)}, tmp_path / "first", step=1)
    with libdcp.open(tmp_path / "first") as ckpt:
        for lazy in (ckpt["w"], {"a": [ckpt["w"][1:]]}, ckpt):
            with pytest.raises(
                libdcp.UsageError, match=r"'x': a .* of an open checkpoint"
            ):
                libdcp.save({"x": lazy}, tmp_path / "run", step=1)
    with pytest.raises(libdcp.UnsupportedError, match="'f' cannot be pickled"):
        libdcp.save({"f": lambda: 1}, tmp_path / "run", step=1)
    for wrong, why in (
        ({"step": "1"}, "step is a whole number"),
        ({"step": 1.5}, "step is a whole number"),
        ({"step": 1, "keep": -1}, "keep is no number below 0"),
    ):
        with pytest.raises(libdcp.UsageError, match=why):
            libdcp.save({"x": 1}, tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("url", ["s3://bucket/run", "gs://a/b", "hf://me/x"])
def test_urls(tmp_path, monkeypatch, url):
    """They are no folders here."""
    monkeypatch.chdir(tmp_path)
    libdcp.save({"w": peer("numpy").ones(2)}, "run", step=1)
    for act in (
        lambda: libdcp.save({"x": 1}, url, step=1),
        lambda: libdcp.save_async({"x": 1}, url, step=1),
        lambda: libdcp.reshard("run", url),
        lambda: libdcp.export("run", f"{url}.npz", only="all"),
    ):
        with pytest.raises(libdcp.UsageError, match="is a URL, and no path"):
            act()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_values_that_want_trust(tmp_path):
    """The save says so; of those that are plain nothing is said."""
    numpy = pytest.importorskip("numpy")
    plain = {
        "t": (1, {2}),
        "inf": float("inf"),
        "when": datetime.timedelta(1),
        3: {"a": 1},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.save({"plain": plain, "x": numpy.ones(2)}, tmp_path, step=1)
    refused = "'rates' is a pickle.* numpy.* a load wants trust_pickles=True for it"
    for rates in (numpy.float32(0.1), [1, (numpy.float64(0.1),)]):
        with pytest.warns(RuntimeWarning, match=refused):
            libdcp.save({"rates": rates}, tmp_path, step=2 + isinstance(rates, list))


def test_inference_mode(tmp_path):
    torch = peer("torch")
    state = {"w": torch.ones(2)}
    libdcp.save(state, tmp_path, step=1)
    refused = pytest.raises(libdcp.UsageError, match="makes what cannot be trained")
    with torch.inference_mode(), refused:
        libdcp.load(state, tmp_path)


def test_paths(tmp_path, monkeypatch):
    """A save goes where a load looks, also behind a link, and nowhere without a path."""
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    monkeypatch.chdir(tmp_path)
    libdcp.save({"w": torch.ones(1)}, "link/../run", step=1)
    assert (tmp_path / "far" / "run" / "latest").exists()
    into = {"w": torch.zeros(1)}
    libdcp.load(into, "link/../run")
    assert into["w"] == 1
    for nothing in ("", b"", None):
        with pytest.raises(libdcp.UsageError, match="path of a run folder"):
            libdcp.save({"w": torch.ones(1)}, nothing, step=2)
    assert sorted(os.listdir()) == ["far", "link"]


def test_bytes_of_protocol_2():
    """It spells them as texts in Latin-1, which alone is let be a call."""
    for value in (b"\xff\0", bytearray(b"x"), {1, 2}, (b"", complex(1, 2))):
        data = pickle.dumps(value, 2)
        assert _values.unpickled("it", data, trust=False) == value
    data = pickle.dumps(b"\xff", 2).replace(b"latin1", b"utf_16")
    with pytest.raises(libdcp.UnsupportedError, match="a text in utf_16 is in it"):
        _values.unpickled("it", data, trust=False)
