"""Objects of a state that hold what they like: they get back what they had."""

from __future__ import annotations

import collections
import enum
import random
from collections import OrderedDict, namedtuple
from collections.abc import MutableMapping

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*has none yet")

Pair = namedtuple("Pair", "weight name")


class Holder:
    """Gives what it holds, and takes what it is given."""

    def __init__(self, held):
        self.held = held

    def state_dict(self):
        return self.held

    def load_state_dict(self, held):
        self.held = held


def test_more_or_less_than_now(tmp_path):
    """A history that grew comes back whole, and one that is too long is cut."""
    numpy = pytest.importorskip("numpy")
    held = {
        "history": [torch.ones(2), torch.zeros(3)],
        "best": OrderedDict(loss=torch.tensor(0.5), step=7, at=(1, "a")),
        "array": numpy.arange(3.0),
        3: {"deep": (torch.ones(1), 2)},
    }
    libdcp.save({"x": Holder(held)}, tmp_path, step=1)
    longer = {"history": [torch.full((2,), float(i)) for i in range(4)], "other": 1}
    for now in ({}, {"history": []}, longer, {"array": numpy.zeros(5)}, torch.ones(2)):
        into = Holder(now)
        libdcp.load({"x": into}, tmp_path)
        assert str(into.held) == str(held) and list(into.held) == list(held)
        assert type(into.held["best"]) is OrderedDict


def test_in_place_where_it_fits(tmp_path):
    libdcp.save({"x": Holder({"a": torch.ones(2), "b": torch.ones(2)})}, tmp_path, step=1)
    into = Holder({"a": torch.zeros(2), "b": torch.zeros(3)})
    places = [into.held["a"], into.held["b"]]
    libdcp.load({"x": into}, tmp_path)
    assert into.held["a"] is places[0] and places[0].all()
    assert into.held["b"] is not places[1] and not places[1].any()


def test_values_beside_tensors_in_tuples(tmp_path):
    """In a state, in an object and in the extra state of a model."""

    class Net(torch.nn.Module):
        extra = (torch.ones(1), 5)

        def get_extra_state(self):
            return self.extra

        def set_extra_state(self, state):
            self.extra = state

    def make(n):
        net = Net()
        net.extra = (torch.full((1,), float(n)), n)
        own = {"rng": (torch.full((2,), n), random.Random(n).getstate(), n)}
        return {
            "net": net,
            "own": Holder(own),
            "pair": Pair(torch.full((1,), n), f"name {n}"),
            "deep": [(torch.full((1,), n), {"n": (n, [n])})],
        }

    def facts(state):
        held = state["net"].extra, state["own"].held, state["pair"], state["deep"]
        return str(held), type(state["pair"])

    libdcp.save(make(7), tmp_path, step=1)
    state = make(3)
    libdcp.load(state, tmp_path)
    assert facts(state) == facts(make(7))


class Table(dict):
    """A dict of its own."""


def one(n):
    return torch.full((2,), float(n))


@pytest.mark.parametrize(
    ("had", "has"),
    [
        (
            collections.defaultdict(list, a=[one(1), one(2)], b=[one(3)]),
            collections.defaultdict(list),
        ),
        ({(1, "x"): one(1), 2.5: one(2), None: one(3), True: one(4)}, {(1, "x"): one(0)}),
        ([Pair(one(1), 1), Pair(one(2), 2)], [Pair(one(0), 0)]),
        (Table(a=one(1), b=one(2)), Table(a=one(0))),
        ({"deep": [Table(a=(one(1), {"b": one(2)}))]}, {"deep": [Table()]}),
    ],
    ids=["defaultdict", "keys", "named", "dict", "deep"],
)
def test_containers_of_any_kind(tmp_path, had, has):
    """More of them than there are now, and none yet, come back as they were."""
    libdcp.save({"x": Holder(had)}, tmp_path, step=1)
    for there in (has, type(had)()):
        into = {"x": Holder(there)}
        libdcp.load(into, tmp_path, trust_pickles=not there)
        got = into["x"].held
        assert type(got) is type(had)
        assert str(got).partition("{")[2] == str(had).partition("{")[2]


def waiting(path):
    """Tensors are in it on one rank only."""
    import torch.distributed as dist

    rank = dist.get_rank()
    for step, many in ((1, rank), (2, 1 - rank)):
        held = {"pos": rank, "waiting": [one(rank)] * many}
        libdcp.save({"q": Holder(held)}, path, step=step)
        into = Holder({"pos": -1, "waiting": []})
        libdcp.load({"q": into}, path, step=step)
        assert str(into.held) == str(held), (step, into.held)


def test_tensors_on_some_ranks(tmp_path):
    run_ranks(2, waiting, str(tmp_path))


def test_objects_that_the_step_has_not(tmp_path):
    """They are named before anything is written to."""
    net = torch.nn.Linear(2, 2)
    libdcp.save({"model": net}, tmp_path, step=1)
    other = torch.nn.Linear(2, 2)
    before = other.weight.clone()
    optim = torch.optim.SGD(other.parameters())
    state = {"model": other, "sched": torch.optim.lr_scheduler.StepLR(optim, 1)}
    with pytest.raises(libdcp.NotFoundError, match="the step has no state of 'sched'"):
        libdcp.load(state, tmp_path)
    assert torch.equal(other.weight, before)


def test_parts_in_lists_and_dicts(tmp_path):
    """Objects in them are filled, and none is put in their place."""

    def make(seed):
        torch.manual_seed(seed)
        nets = {"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)}
        optims = [torch.optim.AdamW(net.parameters(), lr=seed) for net in nets.values()]
        for net, optim in zip(nets.values(), optims):
            net(torch.ones(1, 2)).sum().backward()
            optim.step()
        scheds = tuple(torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in optims)
        for sched in scheds[:seed]:
            sched.step()
        return {
            "nets": nets,
            "optims": optims,
            "scheds": scheds,
            "n": [seed, {"x": seed}],
        }

    def facts(state):
        parts = [*state["nets"].values(), *state["optims"], *state["scheds"]]
        return str([part.state_dict() for part in parts]), state["n"]

    saved, state = make(1), make(2)
    libdcp.save(saved, tmp_path, step=1)
    ours = [*state["nets"].values(), *state["optims"], *state["scheds"]]
    libdcp.load(state, tmp_path)
    assert facts(state) == facts(saved)
    now = [*state["nets"].values(), *state["optims"], *state["scheds"]]
    assert all(a is b for a, b in zip(ours, now))
    with libdcp.open(tmp_path) as ckpt:
        assert ckpt["nets.a.weight"].role == "model"
        assert ckpt["optimizer.exp_avg.nets.a.weight"].param == "nets.a.weight"
    one = {"nets": [saved["nets"]["a"]], "optim": saved["optims"][0]}
    libdcp.save(one, tmp_path, step=2)
    with libdcp.open(tmp_path) as ckpt:
        params = {tensor.param for tensor in ckpt.values() if tensor.role != "other"}
        assert params == {"nets.0.weight", "nets.0.bias"}


def test_containers_tell_what_they_lack(tmp_path):
    libdcp.save({"x": {"a": torch.ones(1), "b": torch.ones(1), "n": 1}}, tmp_path, step=1)
    with pytest.warns(RuntimeWarning, match=r"has 2 in 'x' .* has not, 'x\.b'"):
        libdcp.load({"x": {"a": torch.zeros(1)}}, tmp_path)


class Some(list):
    """A list of a class."""


@pytest.mark.parametrize(
    "make", (lambda v: collections.UserDict(v), lambda v: Some(v.values()))
)
def test_containers_that_are_alike(tmp_path, make):
    """A mapping that is no dict, and a list of a class, have more than now."""
    held = {"m": make({"a": torch.ones(2), "b": torch.zeros(2), "n": 5})}
    libdcp.save({"x": Holder(held)}, tmp_path, step=1)
    into = Holder({"m": make({"a": torch.zeros(2)})})
    libdcp.load({"x": into}, tmp_path)
    assert str(into.held) == str(held) and type(into.held["m"]) is type(held["m"])


def test_containers_of_a_class_that_nobody_finds(tmp_path):
    """They come back as far as they are there, and what is not is told."""

    class Local(list):
        pass

    held = Local([torch.ones(2), torch.zeros(2), 5])
    libdcp.save({"x": Holder({"l": held})}, tmp_path, step=1)
    into = Holder({"l": Local([torch.zeros(2), torch.ones(2), 0])})
    libdcp.load({"x": into}, tmp_path)
    assert str(into.held["l"]) == str(held)
    into = Holder({"l": Local([torch.zeros(2)])})
    with pytest.warns(RuntimeWarning, match=r"has 2 in 'x' that the .* 'x\.l\.1' the"):
        libdcp.load({"x": into}, tmp_path)
    assert into.held["l"][0].all()


@pytest.mark.parametrize("held", ({"shadow": torch.ones(2), "n": 3}, {"n": 3}))
def test_names_with_an_at(tmp_path, held):
    """They are no values of ranks."""
    libdcp.save({"ema@0.999": Holder(held), "a@b": 1}, tmp_path, step=1)
    for now in ({}, {"shadow": torch.zeros(3), "other": torch.zeros(1)}):
        into = {"ema@0.999": Holder(now), "a@b": 0}
        libdcp.load(into, tmp_path)
        assert str(into["ema@0.999"].held) == str(held) and into["a@b"] == 1


def test_schedulers_need_no_trust(tmp_path):
    """Their states hold infinity, and counters: plain data, which runs nothing."""
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.SGD(net.parameters(), lr=1.0)
    kinds = torch.optim.lr_scheduler
    scheds = {
        "plateau": kinds.ReduceLROnPlateau(optim, patience=0),
        "steps": kinds.MultiStepLR(optim, [2, 2, 3]),
    }
    before = {name: sched.state_dict() for name, sched in scheds.items()}
    libdcp.save({"net": net, "optim": optim, **scheds}, tmp_path, step=1)
    scheds["plateau"].step(3.0)
    libdcp.load({"net": net, "optim": optim, **scheds}, tmp_path)
    assert {name: sched.state_dict() for name, sched in scheds.items()} == before


class Mode(enum.IntEnum):
    """A number that is more than that."""

    A = 1


def test_values_come_back_as_they_are_or_not_at_all(tmp_path):
    values = {"optimizer": {0: 5, "t": (1, 2)}, "mode": Mode.A}
    with pytest.warns(RuntimeWarning, match=r"'mode' .* a load wants trust_pickles=True"):
        libdcp.save(values, tmp_path, step=1)
    state = dict.fromkeys(values)
    with pytest.raises(libdcp.UnsupportedError, match=r"'mode' .* run any program"):
        libdcp.load(state, tmp_path)
    libdcp.load(state, tmp_path, trust_pickles=True)
    assert state == values and state["mode"] is Mode.A


class Store(MutableMapping):
    """Keeps its items in a dict of its own, and cannot be copied."""

    def __init__(self, **held):
        self._held = held

    def __getitem__(self, key):
        return self._held[key]

    def __setitem__(self, key, value):
        self._held[key] = value

    def __delitem__(self, key):
        del self._held[key]

    def __iter__(self):
        return iter(self._held)

    def __len__(self):
        return len(self._held)


class Ring(list):
    at = 0


@pytest.mark.parametrize("now", ({}, {"a": torch.zeros(1), "b": 0}))
def test_a_mapping_that_is_emptied_first(tmp_path, now):
    """What it gets has no memory of the one that it has."""

    class Taking(Holder):
        def load_state_dict(self, held):
            self.held["in"].clear()
            self.held["in"].update(held["in"])

    held = {"in": Store(a=torch.ones(1), b=7)}
    libdcp.save({"x": Holder(held)}, tmp_path, step=1)
    into = Taking({"in": Store(**now)})
    libdcp.load({"x": into}, tmp_path)
    assert dict(into.held["in"]) == {"a": torch.ones(1), "b": 7}


def test_attributes_of_containers(tmp_path):
    def make(n):
        ring = Ring([torch.full((1,), float(n))])
        ring.at, ring.seen = n, {n: "x"}
        return {"ring": ring}

    late = collections.defaultdict(list, a=[torch.ones(1)])
    libdcp.save({"x": Holder({**make(3), "late": late})}, tmp_path, step=1)
    into = Holder(make(0))
    libdcp.load({"x": into}, tmp_path)
    ring = into.held["ring"]
    assert (ring, ring.at, ring.seen) == ([torch.full((1,), 3.0)], 3, {3: "x"})
    assert into.held["late"].default_factory is list
    assert into.held["late"] == late


@pytest.mark.parametrize("lost", (torch.ones(1), [torch.ones(1)], Holder(1)))
def test_attributes_that_are_not_saved(tmp_path, lost):
    ring = Ring([torch.zeros(1)])
    ring.last, ring.same = lost, [ring[0]]
    with pytest.warns(RuntimeWarning, match=r"'x\.r' is saved without its 'last': no p"):
        libdcp.save({"x": Holder({"r": ring})}, tmp_path, step=1)
    made = collections.defaultdict(lambda: 3, a=torch.ones(1))
    with pytest.warns(RuntimeWarning, match="'x' is saved without its 'default_factory'"):
        libdcp.save({"x": Holder(made)}, tmp_path, step=2)


@pytest.mark.parametrize("where", ("object", "model"))
def test_a_late_container_that_takes_trust(tmp_path, where):
    """The save tells of it, and a load refuses it before it writes to anything."""

    class Net(torch.nn.Module):
        def __init__(self, extra):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((1,), float(bool(extra))))
            self.extra = extra

        def get_extra_state(self):
            return self.extra

        def set_extra_state(self, extra):
            self.extra = extra

    def made(held):
        is_extra = where == "model"
        return {"m": Net(held if is_extra else None), "x": Holder(held)}

    held = {"deep": [Pair(torch.ones(1), "a"), Pair(torch.ones(1), "b")]}
    state = made(held) if where == "object" else {"m": Net(held)}
    with pytest.warns(RuntimeWarning, match=r"deep\.0' is a test_stateful.Pair: a load"):
        libdcp.save(state, tmp_path, step=1)
    into = made({}) if where == "object" else {"m": Net({})}
    before = into["m"].weight.clone()
    with pytest.raises(libdcp.UnsupportedError, match=r"test_stateful\.Pair is in"):
        libdcp.load(into, tmp_path)
    assert torch.equal(into["m"].weight, before)
    libdcp.load(into, tmp_path, trust_pickles=True)
    assert str(into["x"].held if where == "object" else into["m"].extra) == str(held)


def by_rank(path, now, later):
    """Each rank has an object of its own; rank 0's is called otherwise."""
    import torch.distributed as dist

    key = f"x{dist.get_rank()}"
    first = {"model": torch.nn.Linear(2, 2), key: Holder(now[dist.get_rank()])}
    libdcp.save(first, path, step=1)
    net = torch.nn.Linear(2, 2)
    before = net.weight.clone()
    into = Holder(later)
    try:
        libdcp.load({"model": net, key: into}, path)
    except libdcp.Error as why:
        return str(why), torch.equal(net.weight, before)
    return str(into.held)


def test_objects_by_rank_that_grow_or_shrink(tmp_path):
    held = {"a": torch.ones(5)}
    for later in ({"a": torch.zeros(3)}, {}, {"a": torch.zeros(5), "b": torch.ones(1)}):
        got = run_ranks(2, by_rank, tmp_path / str(len(str(later))), [held] * 2, later)
        assert got == [str(held)] * 2


def test_a_pickle_of_another_rank(tmp_path):
    now = [{"a": 1}, {"a": Pair}]
    for why, is_kept in run_ranks(2, by_rank, tmp_path, now, {"a": None}):
        assert "could run any program" in why and is_kept


class Keeps(torch.nn.Module):
    """Keeps something beside tensors."""

    def __init__(self, extra):
        super().__init__()
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, extra):
        self.extra = extra


def with_loss(*parts):
    """A part of the model is called as an object of the state is."""
    net = torch.nn.Module()
    net.body, net.loss = torch.nn.Linear(2, 2), torch.nn.Module()
    for name, part in parts:
        net.loss.add_module(name, part)
    return net


def refused(state, path, why, match):
    before = state["model"].body.weight.clone()
    with pytest.raises(why, match=match):
        libdcp.load(state, path)
    assert torch.equal(state["model"].body.weight, before)


def test_an_object_called_as_a_part_of_the_model(tmp_path):
    """What the step lacks of the model, or has otherwise, is not left to the object."""

    def made(*parts, n):
        return {"model": with_loss(*parts), "loss": Holder({"n": n})}

    norm, wider = (torch.nn.BatchNorm1d(n, affine=False) for n in (2, 3))
    libdcp.save(made(("norm", norm), n=3), tmp_path, step=1)
    into = made(("norm", norm), n=0)
    libdcp.load(into, tmp_path)
    assert into["loss"].held == {"n": 3}
    refused(made(("norm", wider), n=0), tmp_path, libdcp.Error, r"'loss\.norm\.running_")
    more = (("norm", norm), ("new", torch.nn.Linear(2, 2)))
    refused(made(*more, n=0), tmp_path, libdcp.Error, r"'loss\.new\.")


def test_an_object_that_only_the_model_is_called_as(tmp_path):
    libdcp.save({"model": with_loss(("own", torch.nn.Linear(2, 2)))}, tmp_path, step=1)
    for now in ({"n": 0}, {"w": torch.zeros(2)}):
        into = {"model": with_loss(), "loss": Holder(now)}
        refused(into, tmp_path, libdcp.NotFoundError, "no state of 'loss'")


@pytest.mark.filterwarnings("ignore:.*wants trust_pickles")
def test_a_pickle_of_the_model_that_is_not_loaded(tmp_path):
    state = {"model": with_loss(("own", Keeps(Pair))), "loss": Holder({"n": 3})}
    libdcp.save(state, tmp_path, step=1)
    into = {"model": with_loss(), "loss": Holder({})}
    libdcp.load(into, tmp_path)
    assert into["loss"].held == {"n": 3}


def test_values_that_the_step_lacks_of_an_object(tmp_path):
    """They are refused before anything is written to, where no tree says what it has."""

    class Local(list):
        pass

    def made(**held):
        return {"model": with_loss(), "x": Holder({"l": Local([torch.ones(2)]), **held})}

    libdcp.save(made(), tmp_path, step=1)
    refused(made(n=1), tmp_path, libdcp.NotFoundError, r"no value 'x\.n'")


@pytest.mark.filterwarnings("ignore:.*wants trust_pickles")
def test_a_pickle_that_the_object_has_not_yet(tmp_path):
    held = {"w": torch.ones(2), "kind": Pair}
    libdcp.save({"model": with_loss(), "x": Holder(held)}, tmp_path, step=1)
    into = {"model": with_loss(), "x": Holder({})}
    refused(into, tmp_path, libdcp.UnsupportedError, r"'x\.kind' is a pickle")
