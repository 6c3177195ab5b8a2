"""Values of Python that were converted: they are the same values again."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import math
import pathlib
import uuid

import pytest
from conftest import peer

import libdcp
from libdcp._tagged import checked, decoded

torch = peer("torch")
from torch.distributed.checkpoint import format_utils  # noqa: E402

VALUES = {
    "tuple": (1, [2, (3,)]),
    "dict": {1: 0.5, (2, 3): "x", None: {"a": ()}},
    "sets": [{1, 2}, frozenset([3])],
    "bytes": [b"\0\xff", bytearray(b"ab")],
    "numbers": [1 << 70, math.inf, -math.inf, 1 + 2j],
    "counter": collections.Counter({4: 1, 6: 2}),
    "ordered": collections.OrderedDict(a=1, b=(2,)),
    "default": collections.defaultdict(list, {"a": [1]}),
    "deque": collections.deque([1, (2,)], maxlen=5),
    "user": collections.UserDict(a=1),
    "times": [datetime.datetime(2026, 1, 2, 3, 4, 5), datetime.timedelta(3, 4)],
    "zone": datetime.timezone.utc,
    "exact": [decimal.Decimal("1.5"), fractions.Fraction(1, 3)],
    "names": [uuid.UUID(int=5), pathlib.PosixPath("/a/b"), "a\0b", slice(1, 2)],
    "marked": {"$tuple": [1], "x": {"$int": "7"}},
    "schema": {"$schema": "https://json-schema.org", "$id": [1]},
    "plain": {"a": [1, 2.5, None, True, "$tuple"]},
}


def same(now, before):
    return repr(now) == repr(before) and now == before


@pytest.mark.parametrize("road", ["file", "torch", "torch-dist", "deepspeed"])
def test_values_come_back(tmp_path, road):
    """From a file of torch.save, and from a step that became one of another program."""
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optim.step()
    first = tmp_path / "first"
    if road == "file":
        torch.save({"model": net.state_dict(), **VALUES}, first)
    else:
        libdcp.save({"model": net, "optim": optim, **VALUES}, first, step=1)
        libdcp.reshard(first, tmp_path / "other", to=road)
        first = tmp_path / "other"
    libdcp.reshard(first, tmp_path / "run" / "step-00000001", to="native")
    into = dict.fromkeys(VALUES, 0)
    libdcp.load(into, tmp_path / "run")
    for name, value in VALUES.items():
        assert same(into[name], value), name
    if road in ("file", "torch"):
        with libdcp.open(first) as ckpt:
            for name, value in VALUES.items():
                assert same(ckpt.objects[name], value), name


def test_values_that_are_in_a_file(tmp_path):
    """A step with pickles becomes a file of torch.save with the values themselves."""
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optim.step()
    libdcp.save({"model": net, "optim": optim, **VALUES}, tmp_path / "run", step=1)
    libdcp.reshard(tmp_path / "run", tmp_path / "a.pt", to="torch")
    libdcp.reshard(tmp_path / "run", tmp_path / "dist", to="torch-dist")
    format_utils.dcp_to_torch_save(tmp_path / "dist", tmp_path / "b.pt")
    for file in (
        "a.pt",
        "b.pt",
    ):  # PyTorch takes the dict of one apart, and not that of b
        told = torch.load(tmp_path / file, weights_only=False)
        for name in ("tuple", "sets", "bytes", "numbers", "deque", "times", "names"):
            assert same(told[name], VALUES[name]), name


def test_what_only_a_program_could_make(tmp_path):
    """It is told as JSON, and a load refuses it."""
    torch.save({"w": torch.ones(2), "kind": torch.bfloat16}, tmp_path / "a.pt")
    with libdcp.open(tmp_path / "a.pt") as ckpt:
        assert ckpt.objects["kind"] == {"$global": "torch.bfloat16"}
    run = tmp_path / "run"
    libdcp.reshard(tmp_path / "a.pt", run / "step-00000001", to="native")
    into = {"w": torch.zeros(2), "kind": None}
    with pytest.raises(libdcp.UnsupportedError, match=r"'kind' has a torch\.bfloat16 in"):
        libdcp.load(into, run)
    assert into["w"].sum() == 0


@pytest.mark.parametrize(
    "data",
    [
        b'{"$tuple": 5}',
        b'{"$object": "os.system", "args": ["true"]}',
        b'{"$object": 5}',
        b'{"$global": "builtins.eval"}',
        b'{"$global": "builtins:eval"}',
        b'{"$dict": [[[1], 2]]}',
        b'{"$bytes": "xx"}',
        b'{"$object": "uuid.UUID", "args": [{"$tuple": []}, 1, 2]}',
        b'{"$tensor": "w"}',
    ],
)
def test_what_looks_like_one(data):
    """Of hostile files nothing is run, and what cannot be is told."""
    assert decoded(data)
    with pytest.raises(libdcp.UnsupportedError):
        checked("x", data)


def test_schedulers_of_deepspeed(tmp_path):
    """One with tuples and Counters in it goes on where it was."""
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optim, [4, 6])
    torch.save(
        {
            "module": net.state_dict(),
            "lr_scheduler": schedule.state_dict(),
            "scheduler": schedule.state_dict(),
        },
        tmp_path / "a.pt",
    )
    run = tmp_path / "run"
    libdcp.reshard(tmp_path / "a.pt", run / "step-00000001", to="native")
    later = torch.optim.lr_scheduler.MultiStepLR(optim, [50, 60])
    libdcp.load({"scheduler": later}, run)
    assert later.milestones == collections.Counter({4: 1, 6: 1})


def test_schedulers_with_tensors(tmp_path):
    """DeepSpeed's has none: it is none of its, and not one without these."""
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.1), foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optim, lambda n: 1 / (1 + n))
    net(torch.ones(1, 2)).sum().backward()
    optim.step()
    schedule.step()
    state = {"model": net, "optim": optim, "scheduler": schedule}
    libdcp.save(state, tmp_path / "run", step=1)
    libdcp.reshard(tmp_path / "run", tmp_path / "ds", to="deepspeed")
    (file,) = tmp_path.glob("ds/**/*mp_rank_00_model_states.pt")
    assert torch.load(file, weights_only=False)["lr_scheduler"] is None


@pytest.mark.parametrize("to", ["deepspeed", "universal", "torch-dist"])
def test_infinity_in_groups(tmp_path, to):
    """Of other programs' checkpoints it is a number."""
    net = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optim.step()
    optim.param_groups[0]["most"] = math.inf
    libdcp.save({"model": net, "optim": optim}, tmp_path / "run", step=1)
    libdcp.reshard(tmp_path / "run", tmp_path / "b", to=to)
    with libdcp.open(tmp_path / "b") as ckpt:
        groups = ckpt.objects["optimizer"]["param_groups"]
        assert groups[0]["most"] == math.inf
    if to == "universal":
        (file,) = tmp_path.glob("b/*/zero/optimizer_state.pt")
        group = torch.load(file, weights_only=False)["param_groups"][0]
        assert group["most"] == math.inf
