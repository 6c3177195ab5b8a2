"""torchtitan's checkpoint manager on ours, with its containers of optimizers and
schedules: killed, and resumed at another world size. (Its trainer itself wants a GPU.)"""

from __future__ import annotations

import os
import pickle

import pytest
from conftest import flip, peer
from ranks import kill_ranks, run_ranks
from test_plugins import BATCH, END, KILL, SAMPLES, Net, Samples, die_at, mean

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.checkpoint.state_dict")
peer("torch.distributed.fsdp")
peer("torch._dynamo")
theirs = peer("torchtitan.components.checkpointer")
optimizers = peer("torchtitan.components.optimizer")
from libdcp.torchtitan import CheckpointManager  # noqa: E402


class Loader:
    """Where the data is: a pickle in a pickle, as torchtitan's loaders have it."""

    def __init__(self, count):
        self.count, self.seen = count, None

    def state_dict(self):
        return {"dp_rank_0": pickle.dumps({"seen": self.count.step})}

    def load_state_dict(self, state):
        self.seen = pickle.loads(state["dp_rank_0"])["seen"]


class Count:
    """As torchtitan's trainer: a step that is a tensor."""

    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step, dtype=torch.int32)}

    def load_state_dict(self, state):
        self.step = int(state["step"])


def train(run, kill, ours=True, **how):
    from torch.distributed.fsdp import fully_shard

    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    net, losses, world = Net(), {}, dist.get_world_size()
    for part in (net.up, net.down, net):
        fully_shard(part, mesh=dist.init_device_mesh("cpu", (world,)))
    group = optimizers.ParamGroupConfig(
        pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-2}
    )
    optim = optimizers.OptimizersContainer.Config(
        param_groups=[group], implementation="for-loop"
    ).build(model_parts=[net])
    sched = optimizers.LRSchedulersContainer.Config(warmup_steps=3).build(
        optimizers=optim, training_steps=END
    )
    count = Count()
    loader = Loader(count)
    kind = CheckpointManager if ours else theirs.CheckpointManager
    manager = kind.Config(
        enable=True,
        folder="checkpoint",
        interval=2,
        keep_latest_k=3,
        last_save_model_only=False,
        **how,
    ).build(
        dataloader=loader,
        model_parts=[net],
        optimizers=optim,
        lr_schedulers=sched,
        states={"train_state": count},
        sd_adapter=None,
        base_folder=run,
    )
    assert not manager.load() or loader.seen == count.step > 0
    dist.barrier()
    samples, size = Samples(), BATCH // world
    while count.step < END:
        step = count.step
        first = step * BATCH % SAMPLES + dist.get_rank() * size
        batch = [samples[i] for i in range(first, first + size)]
        loss = net(**{key: torch.stack([b[key] for b in batch]) for key in "xy"})["loss"]
        losses[step] = mean(loss)
        loss.backward()
        optim.step()
        sched.step()
        optim.zero_grad()
        count.step += 1
        manager.save(count.step, last_step=count.step == END)
        die_at(count.step, kill)
    manager.maybe_wait_for_saving()
    manager.close()
    return losses


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_goes_on_at_other_sizes(tmp_path, mode):
    (whole,) = run_ranks(1, train, str(tmp_path / "whole"), None)
    assert sorted(whole) == list(range(END))
    run = str(tmp_path / "run")

    def part(kill):
        return train(run, kill, parity=1, async_mode=mode)

    kill_ranks(2, part, KILL)
    begun = KILL - KILL % 2  # a save in the background may have died
    kill_ranks(1, part, KILL + 2)
    rest = run_ranks(2, part, None)[0]
    assert max(rest) == END - 1 and begun - 2 < min(rest) <= begun + 2
    assert rest == pytest.approx({step: whole[step] for step in rest}, rel=1e-5)
    steps = sorted(path.name for path in (tmp_path / "run" / "checkpoint").glob("step-*"))
    assert steps[-1] == f"step-{END:08}" and "step-00000002" not in steps
    with libdcp.open(tmp_path / "run" / "checkpoint") as ckpt:
        assert ckpt.verify().n_unproved == 0
        assert (ckpt.info.step, ckpt.info.world_size) == (END, 2)
        assert ckpt["up.weight"].role == "model"
        assert ckpt["optimizer.state.up.weight.exp_avg"].param == "up.weight"


def test_corrupt_and_theirs(tmp_path):
    """A newest step that is corrupt is refused; torchtitan's own are gone on with."""
    run = tmp_path / "run"
    (first,) = run_ranks(1, train, str(run), None)
    for shard in (run / "checkpoint" / f"step-{END:08}").glob("shard-*.safetensors"):
        flip(shard)
    with pytest.raises(AssertionError, match="CorruptError"):
        run_ranks(1, train, str(run), None)
    kill_ranks(1, train, str(tmp_path / "theirs"), KILL, False)
    (rest,) = run_ranks(1, train, str(tmp_path / "theirs"), None)
    assert rest == {step: first[step] for step in range(KILL - KILL % 2, END)}


def test_pinned_memory_of_another_process():
    config = CheckpointManager.Config(enable=True, async_mode="async_with_pinned_mem")
    with pytest.raises(libdcp.UnsupportedError, match="another process"):
        config.build(dataloader=None, model_parts=[], optimizers=None, lr_schedulers=None)
