"""Loads of DeepSpeed in other ways, and damage to the files beside the step."""

from __future__ import annotations

import os
import warnings

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.checkpoint.state_dict")
for part in ("deepspeed", "functorch.compile", "torch._dynamo.testing"):
    peer(part)
peer("torch._inductor.compile_fx")


def engine_at(stage, schedule=None):
    """The engine of a small model, on each rank, with ours installed."""
    deepspeed = peer("deepspeed")
    import libdcp.deepspeed

    deepspeed.ops.__compatible_ops__ = {}
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)
    net = torch.nn.Linear(4, 4)
    config = {
        "train_batch_size": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(
        model=net,
        model_parameters=net.parameters(),
        config=config,
        lr_scheduler=schedule,
    )
    return libdcp.deepspeed.install(engine)


def load_without_states(folder, stage):
    """Save two steps; load the first one's weights to another engine."""
    deepspeed = peer("deepspeed")

    def weights(engine):
        params = list(engine.module.parameters())
        with deepspeed.zero.GatheredParameters(params, enabled=stage == 3):
            return [param.detach().clone() for param in params]

    engine, kept = engine_at(stage), []
    for step in range(2):
        loss = engine(torch.ones(1, 4)).sum()
        engine.backward(loss)
        engine.step()
        kept.append(weights(engine))
        engine.save_checkpoint(folder, tag=f"step-{step}", client_state={"seen": step})
    other = engine_at(stage)
    found, told = other.load_checkpoint(folder, "step-0", load_optimizer_states=False)
    assert os.path.exists(found) and told["seen"] == 0
    assert all(torch.equal(a, b) for a, b in zip(weights(other), kept[0]))
    dist.barrier()
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("stage", [1, 3])
def test_without_the_states_of_the_optimizer(tmp_path, stage):
    """Of ZeRO-3 DeepSpeed reads the files itself, which it is given then."""
    told = run_ranks(2, load_without_states, str(tmp_path), stage)
    names = [n for n in told[0] if not n.endswith(".py")]
    assert names == ["latest", "step-0", "step-1"]


def test_marks_that_are_damaged(tmp_path):
    """No flip of a bit is taken for another mark, or for a file of DeepSpeed."""
    from libdcp import _tree
    from libdcp.deepspeed import CheckpointEngine, _mark

    tree = {"it_states.pt": {"w": torch.ones(2)}}
    _tree.save_tree(tree, tmp_path / "state", 1, _tree.Alone())
    engine = CheckpointEngine(None, trust_pickles=False)
    path = tmp_path / "it_states.pt"
    good = _mark(0).encode()
    path.write_bytes(good)
    assert engine.load(str(path))["w"].tolist() == [1, 1]
    path.rename(tmp_path / "other_states.pt")  # the mark of another file
    with pytest.raises(libdcp.CorruptError, match="other_states"):
        engine.load(str(tmp_path / "other_states.pt"))
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with pytest.raises(libdcp.CorruptError) as why:
            engine.load(str(path))
        assert why.value.file == str(path)
    torch.save({"theirs": 1}, path)
    assert engine.load(str(path)) == {"theirs": 1}


def trained(**more):
    """A state after an update of the model of `engine_at`."""
    torch.manual_seed(1)
    net = torch.nn.Linear(4, 4)
    optim = torch.optim.AdamW(net.parameters(), lr=0.5)
    net(torch.ones(1, 4)).sum().backward()
    optim.step()
    return {"model": net, "optim": optim, **more}


def converted(state, folder, to):
    """The state as a step, in a format of DeepSpeed's, and as a step again."""
    libdcp.save(state, folder / "run", step=1)
    told = libdcp.reshard(folder / "run", folder / "theirs", to=to)
    (folder / "back").mkdir()
    libdcp.reshard(folder / "theirs", folder / "back" / "step-00000001", to="native")
    return folder / "theirs", folder / "back", told


def model_file(folder):
    (path,) = folder.glob("*/*_model_states.pt")
    return torch.load(path, weights_only=False)


VALUES = {
    "deepspeed": [True, {"stage": 2, "offload": True}, {"tag": "best"}],
    "deepspeed_config": [{"zero_optimization": {"stage": 2}}, {"mine": 3}, 5],
    "scheduler": ["cosine", 5, None, [{"a": 1}], {"type": "cosine", "x": [1]}],
    "loss_scaler": [{"scale": 64.0, "growth_factor": 2.0}, {"mine": 1}, 128.0],
    "extra": [
        (1, (2, "x")),
        {"best": float("inf")},
        [b"\xff", bytearray(b"x"), {1, 2}],
        {"a": {(1, 2): 3}},
    ],
}


@pytest.mark.parametrize("to", ["deepspeed", "universal"])
@pytest.mark.parametrize("key", VALUES)
def test_values_under_any_key_come_back(tmp_path, key, to):
    """Also those that only have the names of what DeepSpeed has."""
    for i, value in enumerate(VALUES[key]):
        folder = tmp_path / str(i)
        theirs, back, told = converted(trained(**{key: value}), folder, to)
        assert told.n_objects_left == 0
        if key == "extra":
            assert model_file(theirs)["dcp_objects"][key] == value
        found = trained(**{key: "other"})
        libdcp.load(found, back)
        assert found[key] == value and type(found[key]) is type(value)


@pytest.mark.parametrize("key", ["scheduler", "sched"])
@pytest.mark.parametrize("to", ["deepspeed", "universal"])
def test_schedulers_that_json_does_not_hold(tmp_path, key, to):
    """The best loss of all is infinite at first."""

    def make():
        state = trained()
        make = torch.optim.lr_scheduler.ReduceLROnPlateau
        return {**state, key: make(state["optim"], patience=3)}

    state = make()
    saved = state[key].state_dict()
    assert saved["best"] == float("inf")
    theirs, back, _ = converted(state, tmp_path, to)
    assert model_file(theirs)["lr_scheduler"] == saved
    state = make()
    state[key].best = 0
    libdcp.load(state, back)
    assert state[key].state_dict() == saved


def test_two_schedulers(tmp_path):
    """DeepSpeed has a place for one: which, nobody knows."""
    pair = {"a": {"last_batch_iteration": 3}, "b": {"last_batch_iteration": 4}}
    theirs, back, _ = converted(trained(**pair), tmp_path, "deepspeed")
    assert model_file(theirs)["lr_scheduler"] is None
    found = trained(a=None, b=None)
    libdcp.load(found, back)
    assert {key: found[key] for key in pair} == pair


def scheduled(optim):
    return torch.optim.lr_scheduler.StepLR(optim, 3)


def load_scheduled(folder, stage):
    engine = engine_at(stage, scheduled)
    assert type(engine).load_checkpoint(engine, folder)[0]  # DeepSpeed's own
    return engine.lr_scheduler.state_dict()


@pytest.mark.parametrize("stage", [1, 3])
def test_engines_load_schedulers_of_any_name(tmp_path, stage):
    state = trained()
    state["sched"] = scheduled(state["optim"])
    state["sched"].last_epoch = 2
    libdcp.save(state, tmp_path / "run", step=1)
    how = {"to": "deepspeed", "layout": f"zero{stage}"}
    libdcp.reshard(tmp_path / "run", tmp_path / "theirs", **how)
    (told,) = run_ranks(1, load_scheduled, str(tmp_path / "theirs"), stage)
    assert told == state["sched"].state_dict()


class Mine:
    """A class of somebody's own."""


def save_client(folder):
    engine = engine_at(1)
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    engine.save_checkpoint(folder, "tag", client_state={"mine": Mine(), "n": 3})


def load_client(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, state = engine_at(1).load_checkpoint(folder, "tag")
    return type(state["mine"]).__name__, sorted(state)


def test_classes_at_another_number_of_ranks(tmp_path):
    """What the engine trusts, the reshard before its load does; nothing is added."""
    run_ranks(2, save_client, str(tmp_path))
    (same, _) = run_ranks(2, load_client, str(tmp_path))
    (other,) = run_ranks(1, load_client, str(tmp_path))
    assert other == same and other[0] == "Mine"
