"""Storage for torch.distributed.checkpoint, under the real dcp.save and dcp.load."""

from __future__ import annotations

import subprocess

import pytest
from conftest import BIN, flip, peer
from ranks import run_ranks
from test_training import make, train

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
dcp = peer("torch.distributed.checkpoint")
states = peer("torch.distributed.checkpoint.state_dict")
from libdcp.torch import StorageReader, StorageWriter  # noqa: E402


def state_of(net, optim):
    model, optimizer = states.get_state_dict(net, optim)
    return {
        "model": model,
        "optim": optimizer,
        "at": {"step": 3, "names": ["a", None], "pair": (1, 2.5)},
    }


def save(way, path, theirs):
    """Train, save with our storage and with PyTorch's own, and go on."""
    net, optim, sched = make(way, 1)
    train(net, optim, sched, range(3))
    state = state_of(net, optim)
    dcp.save(state, storage_writer=StorageWriter(path, step=3, keep=2, codec="split"))
    dcp.save(state, checkpoint_id=theirs)
    return train(net, optim, sched, range(3, 6))


def resume(way, path):
    """Load into what was made of another seed, and go on."""
    net, optim, sched = make(way, 2)
    state = state_of(net, optim)
    state["at"] = {"step": 0, "names": [None, 5], "pair": None}
    dcp.load(state, storage_reader=StorageReader(path))
    assert state["at"] == {"step": 3, "names": ["a", None], "pair": (1, 2.5)}
    states.set_state_dict(
        net,
        optim,
        model_state_dict=state["model"],
        optim_state_dict=state["optim"],
    )
    sched.last_epoch = 3
    return train(net, optim, sched, range(3, 6))


@pytest.mark.parametrize(
    "way, world, others",
    [
        ("plain", 1, [("fsdp", 2)]),
        ("fsdp", 2, [("plain", 1), ("ddp", 2)]),
        ("hsdp", 4, [("fsdp", 3)]),
    ],
    ids=["1", "2", "4"],
)
def test_goes_on_at_other_sizes(tmp_path, way, world, others):
    """As PyTorch's own storage holds it, name by name and bit by bit."""
    run, theirs = str(tmp_path / "run"), str(tmp_path / "theirs")
    losses = run_ranks(world, save, way, run, theirs)[0]
    subprocess.run([BIN / "dcp-inspect", "verify", run], check=True)
    with libdcp.open(run) as ours, libdcp.open(theirs) as other:
        assert set(ours) == set(other) and ours.info.format == "native"
        pairs = zip(
            ours.state_dict("all").values(), other.state_dict(list(ours)).values()
        )
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)
    for other_way, n in others:
        for got in run_ranks(n, resume, other_way, run):
            assert got == pytest.approx(losses, abs=1e-6), (other_way, n)


def test_steps_are_ordinary(tmp_path):
    """Roles by the places in the state dict; what is plain is JSON."""
    net, optim, sched = make("plain", 1)
    train(net, optim, sched, range(2))
    writer = StorageWriter(tmp_path / "run", step=7)
    dcp.save(state_of(net, optim), storage_writer=writer)
    with libdcp.open(tmp_path / "run") as ckpt:
        assert (ckpt.info.step, ckpt.objects["trainer"]) == (7, {"step": 7})
        moment = ckpt["optim.state.up.weight.exp_avg_sq"]
        assert (moment.role, moment.param) == ("exp_avg_sq", "up.weight")
        assert torch.equal(ckpt["up.weight"].torch(), net.up.weight)
        assert ckpt.objects["at.step"] == 3
    libdcp.export(tmp_path / "run", tmp_path / "model.bin")
    exported = torch.load(tmp_path / "model.bin")
    assert torch.equal(exported["down.weight"], net.down.weight)
    dcp.save(net.state_dict(), storage_writer=StorageWriter(tmp_path / "flat", step=1))
    with libdcp.open(tmp_path / "flat") as ckpt:
        assert ckpt["up.weight"].role == "model"
    options = states.StateDictOptions(flatten_optimizer_state_dict=True)
    flat = states.get_optimizer_state_dict(net, optim, options=options)
    state = {**net.state_dict(), "optimizer": flat}  # as torchtitan lays it out
    dcp.save(state, storage_writer=StorageWriter(tmp_path / "flat", step=2))
    with libdcp.open(tmp_path / "flat") as ckpt:
        moment = ckpt["optimizer.state.up.weight.exp_avg"]
        assert (moment.role, moment.param) == ("exp_avg", "up.weight")
        assert ckpt["optimizer.state.up.weight.step"].role == "optim"
        assert ckpt["up.weight"].role == "model"


def both(run):
    """async_save, on a group of its own, while training goes on; then part of it."""
    group = dist.new_group(backend="gloo")
    net, optim, sched = make("fsdp", 1)
    train(net, optim, sched, range(2))
    want = net.up.weight.full_tensor().clone()
    saved = dcp.async_save(
        state_of(net, optim),
        storage_writer=StorageWriter(run, step=1, group=group),
        process_group=group,
    )
    train(net, optim, sched, range(2, 4))
    saved.result()
    staging = peer("torch.distributed.checkpoint.staging")
    stager = staging.DefaultStager(staging.StagingOptions(False, False, True, False))
    shares = {"w": torch.ones(3)}
    response = dcp.async_save(
        shares,
        storage_writer=StorageWriter(f"{run}-staged", step=1, group=group),
        process_group=group,
        async_stager=stager,
    )
    response.staging_completion.result()
    shares["w"].zero_()  # what is saved was staged before
    response.upload_completion.result()
    stager.close()
    dcp.load(shares, storage_reader=StorageReader(f"{run}-staged"))
    assert shares["w"].sum() == 3
    got = {"model": {"up.weight": torch.zeros(16, 10)}, "missing": torch.ones(1)}
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(got, storage_reader=StorageReader(run), planner=planner)
    assert torch.equal(got["model"]["up.weight"], want) and got["missing"] == 1
    assert not torch.equal(net.up.weight.full_tensor(), want)
    try:
        dcp.save({"w": torch.ones(2)}, storage_writer=StorageWriter(run, step=1))
    except dcp.CheckpointException as why:
        dcp.save({"w": torch.ones(2)}, storage_writer=StorageWriter(run, step=2))
        return {rank: type(one[0]).__name__ for rank, one in why.failures.items()}


def test_async_and_partial_and_failures(tmp_path):
    told = run_ranks(2, both, tmp_path / "run")
    assert told == [{0: "ExistsError", 1: "ExistsError"}] * 2
    assert libdcp.open(tmp_path / "run").info.step == 2


def test_values(tmp_path):
    """All of a step comes back nested; what could run a program only on demand."""
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    run = tmp_path / "run"
    value = {
        "a": {"w": torch.arange(6.0).view(2, 3).T, "n": torch.tensor(2)},
        "p": (1, 2),
    }
    dcp.save(value, storage_writer=StorageWriter(run, step=1))
    got = _load_state_dict_from_keys(storage_reader=StorageReader(run))
    assert torch.equal(got["a"]["w"], value["a"]["w"]) and got["a"]["n"] == 2
    assert got["p"] == (1, 2) and set(got) == {"a", "p"}

    value = {"w": torch.ones(2), "ways": pytest.approx}
    dcp.save(value, storage_writer=StorageWriter(run, step=2))
    into = {"w": torch.zeros(2, dtype=torch.float64), "ways": None}
    with pytest.raises(dcp.CheckpointException, match="is a pickle"):
        dcp.load(into, storage_reader=StorageReader(run))
    dcp.load(into, storage_reader=StorageReader(run, trust_pickles=True))
    assert into["ways"] is pytest.approx and into["w"].sum() == 2


def test_other_checkpoints_and_corrupt_ones(tmp_path):
    torch.save({"w": torch.arange(12.0)}, tmp_path / "model.pt")
    into = {"w": torch.zeros(12)}
    dcp.load(into, storage_reader=StorageReader(tmp_path / "model.pt"))
    assert torch.equal(into["w"], torch.arange(12.0))

    dcp.save(into, storage_writer=StorageWriter(tmp_path / "run", step=1))
    (shard,) = (tmp_path / "run" / "step-00000001").glob("*.safetensors")
    flip(shard)
    with pytest.raises(dcp.CheckpointException, match="CorruptError"):
        dcp.load(into, storage_reader=StorageReader(tmp_path / "run"))


def hand_out(run, gap):
    """A planner of its own gives this rank two chunks of one tensor."""
    from dataclasses import replace

    class Halves(dcp.DefaultSavePlanner):
        def create_local_plan(self):
            plan = super().create_local_plan()
            items = []
            for item in plan.items:
                size = item.tensor_data.size
                for part in (0, 2):
                    offsets = torch.Size([part, 0])
                    sizes = torch.Size([1 if gap and not part else 2, size[1]])
                    chunk = replace(item.tensor_data.chunk, offsets=offsets, sizes=sizes)
                    data = replace(item.tensor_data, chunk=chunk)
                    index = replace(item.index, offset=offsets, index=part // 2)
                    kind = type(item.type).SHARD
                    items.append(replace(item, index=index, type=kind, tensor_data=data))
            return replace(plan, items=items)

        def resolve_data(self, item):
            chunk = item.tensor_data.chunk
            first = chunk.offsets[0]
            return self.state_dict["w"][first : first + chunk.sizes[0]]

        def create_global_plan(self, plans):
            return plans, dcp.Metadata({})

    state = {"w": torch.arange(12.0).view(4, 3)}
    dcp.save(state, storage_writer=StorageWriter(run, step=1), planner=Halves())


def test_chunks(tmp_path):
    """Several chunks on a rank are one box, and no element can be lost."""
    hand_out(tmp_path / "run", False)
    weight = libdcp.open(tmp_path / "run")["w"].torch()
    assert torch.equal(weight, torch.arange(12.0).view(4, 3))
    with pytest.raises(dcp.CheckpointException, match="'w'"):
        hand_out(tmp_path / "gap", True)


def test_arguments(tmp_path):
    with pytest.raises(TypeError, match="keeep"):
        StorageWriter(tmp_path / "run", step=1, keeep=3)
    for how in (
        {"step": -1},
        {"keep": -2},
        {"codec": 3},
        {"parity": "1"},
        {"threads": -1},
    ):
        with pytest.raises(libdcp.UsageError):
            StorageWriter(tmp_path / "run", **{"step": 1, **how})
    plans = [dcp.LoadPlan([], storage_data=step) for step in (1, 2)]
    with pytest.raises(libdcp.MismatchError, match="different steps"):
        StorageReader(tmp_path).prepare_global_plan(plans)
    assert not StorageWriter.validate_checkpoint_id("s3://bucket/run")
