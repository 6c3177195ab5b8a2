"""What PyTorch's tests ask of its file-system storage, asked of ours: plain modules,
values of any kind, ShardedTensors whose chunks lie on ranks in any order, loads in other
ways."""

from __future__ import annotations

import itertools
import warnings

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
dcp = peer("torch.distributed.checkpoint")
peer("torch.distributed.checkpoint.state_dict")
sharded_tensor = peer("torch.distributed._shard.sharded_tensor")
specs = peer("torch.distributed._shard.sharding_spec")
from libdcp.torch import StorageReader, StorageWriter  # noqa: E402


def chunked(dim, *ranks):
    return specs.ChunkShardingSpec(dim=dim, placements=[f"rank:{r}/cpu" for r in ranks])


def listed(*rows):
    """Rows of a matrix by first row, number and rank."""
    return specs.EnumerableShardingSpec(
        [
            specs.ShardMetadata([first, 0], [n, 20], f"rank:{rank}/cpu")
            for first, n, rank in rows
        ]
    )


# Ways in which two ranks deal 10 x 20.
WAYS = (
    lambda: chunked(0, 0, 1),
    lambda: chunked(1, 0, 1),
    lambda: chunked(0, 0, 1, 1, 0),
    lambda: listed((0, 2, 0), (2, 1, 1), (3, 3, 0), (6, 3, 1), (9, 1, 0)),
    lambda: listed((0, 8, 1), (8, 2, 0)),
)


def whole_of(tensor):
    out = torch.zeros(tensor.shape) if dist.get_rank() == 0 else None
    tensor.gather(out=out)
    return out


def any_to_any(run):
    warnings.simplefilter("ignore")
    for step, (saved, loaded) in enumerate(itertools.permutations(WAYS, 2)):
        state = {"it": sharded_tensor.rand(saved(), 10, 20), "same": torch.arange(4.0)}
        dcp.save(state, storage_writer=StorageWriter(run, step=step, keep=1))
        # What was sharded is loaded whole, too, and the other way round.
        into = {"it": sharded_tensor.zeros(loaded(), 10, 20), "same": torch.zeros(4)}
        dcp.load(into, storage_reader=StorageReader(run))
        plain = {"it": torch.zeros(10, 20)}
        dcp.load(plain, storage_reader=StorageReader(run))
        want, got = whole_of(state["it"]), whole_of(into["it"])
        if dist.get_rank() == 0:
            assert torch.equal(want, got) and torch.equal(want, plain["it"]), step
            assert torch.equal(into["same"], state["same"])
    return step


def test_sharded_tensors(tmp_path):
    assert run_ranks(2, any_to_any, str(tmp_path / "run")) == [19, 19]
    with libdcp.open(tmp_path / "run") as ckpt:
        assert ckpt.info.world_size == 2


class Blob:
    """Bytes that are no tensor, behind a state dict."""

    def __init__(self, blob):
        self.blob = blob

    def state_dict(self):
        return {"blob": self.blob}

    def load_state_dict(self, state):
        self.blob = state["blob"]


def net():
    return torch.nn.ModuleDict(
        {"one": torch.nn.Linear(5, 5), "bag": torch.nn.EmbeddingBag(5, 10)}
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_modules_and_blobs(tmp_path, threads):
    run = tmp_path / "run"
    state = {**net().state_dict(), "blob": Blob(b"\0some bytes"), "list": [1], "s": "x"}
    dcp.save(state, storage_writer=StorageWriter(run, step=1, threads=threads))
    into = {**net().state_dict(), "blob": Blob(b""), "list": [2], "s": "other"}
    assert not torch.equal(into["one.weight"], state["one.weight"])
    dcp.load(into, storage_reader=StorageReader(run, threads=threads))
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(into[name], value), name
    assert (into["blob"].blob, into["list"], into["s"]) == (b"\0some bytes", [1], "x")


def test_dtypes(tmp_path):
    """The dtype that is there is filled; PyTorch's planner says what it lets pass."""
    run = tmp_path / "run"
    state = {"w": torch.rand(4, 3)}
    dcp.save(state, storage_writer=StorageWriter(run, step=1))
    into = {"w": torch.zeros(4, 3, dtype=torch.bfloat16)}
    dcp.load(into, storage_reader=StorageReader(run))
    assert torch.equal(into["w"], state["w"].bfloat16())


def test_plain_names(tmp_path):
    """Without a nested state there are no paths of names, which hides no values."""
    state = {"w": torch.ones(2), "step": 5, "of": {"a": [1]}}
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    writer = StorageWriter(tmp_path / "run", step=1)
    dcp.save(state, storage_writer=writer, planner=planner)
    libdcp.save({**state, "torch.distributed.checkpoint": {}}, tmp_path / "other", step=1)
    for path in ("run", "other"):
        reader = StorageReader(tmp_path / path)
        told = reader.read_metadata()
        assert {"w", "step"} <= set(told.state_dict_metadata)
        got = {"w": torch.zeros(2), "step": -1}
        dcp.load(got, storage_reader=StorageReader(tmp_path / path))
        assert got["step"] == 5 and got["w"].tolist() == [1, 1]
    with pytest.raises(dcp.api.CheckpointException, match="is the name of"):
        dcp.save(
            {"torch.distributed.checkpoint": 1, "w": torch.ones(1)},
            storage_writer=StorageWriter(tmp_path / "no", step=1),
        )
    assert not list(tmp_path.glob("no/step-*"))


def each_alone(folder):
    path, mine = f"{folder}/{dist.get_rank()}", float(dist.get_rank())
    writer = StorageWriter(path, step=1, group="alone")
    dcp.save({"w": torch.tensor([mine]), "v": mine}, storage_writer=writer, no_dist=True)
    got = {"w": torch.zeros(1), "v": None}
    dcp.load(got, storage_reader=StorageReader(path), no_dist=True)
    with libdcp.open(path) as ckpt:
        return got["w"].item(), got["v"], ckpt.info.world_size


def test_alone(tmp_path):
    """Ranks of a process group save steps of their own."""
    assert run_ranks(2, each_alone, str(tmp_path)) == [(0, 0, 1), (1, 1, 1)]


GROUPS = {"lr": 0.25, "betas": (0.8, 0.9), "weight_decay": 0.5}


def planned():
    """What PyTorch makes of a model, its optimizer and its schedule, after an update."""
    state_dict = peer("torch.distributed.checkpoint.state_dict")
    torch.manual_seed(1)
    net = torch.nn.Linear(4, 4)
    optim = torch.optim.AdamW(net.parameters(), **GROUPS)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 3)
    net(torch.ones(1, 4)).sum().backward()
    optim.step()
    model, optim = state_dict.get_state_dict(net, optim)
    return {"model": model, "optim": optim, "sched": schedule.state_dict()}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tuples_are_plain_values(tmp_path):
    """So that a step becomes any format, and the groups of its optimizer are known."""
    state = {**planned(), "inf": [float("inf")], "times": ((1, 2), {3})}
    writer = StorageWriter(tmp_path / "run", step=1)
    dcp.save(state, storage_writer=writer, no_dist=True)
    into = {**planned(), "inf": None, "times": None}
    group = into["optim"]["param_groups"][0]
    group["lr"], group["betas"] = 0, None
    dcp.load(into, storage_reader=StorageReader(tmp_path / "run"), no_dist=True)
    assert into["optim"]["param_groups"] == state["optim"]["param_groups"]
    assert (into["inf"], into["times"]) == (state["inf"], state["times"])
    for to in ("torch-dist", "deepspeed", "universal"):
        libdcp.reshard(tmp_path / "run", tmp_path / to, to=to)
        with libdcp.open(tmp_path / to) as ckpt:
            (told,) = ckpt.objects["optimizer"]["param_groups"]
        assert {key: told[key] for key in GROUPS} == {**GROUPS, "betas": [0.8, 0.9]}
    del into["inf"], into["times"]
    into["optim"]["param_groups"][0]["betas"] = None
    dcp.load(into, checkpoint_id=tmp_path / "torch-dist", no_dist=True)
    assert into["optim"]["param_groups"] == state["optim"]["param_groups"]
    (file,) = (tmp_path / "deepspeed").glob("*/*_model_states.pt")
    assert torch.load(file, weights_only=False)["lr_scheduler"] == state["sched"]
