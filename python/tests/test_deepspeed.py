"""Loads of DeepSpeed in other ways, and damage to the files beside the step."""

from __future__ import annotations

import os

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


def engine_at(stage):
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
        model=net, model_parameters=net.parameters(), config=config
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
