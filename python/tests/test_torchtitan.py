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
from libdcp import torchtitan as titan  # noqa: E402
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


def train(run, kill, ours=True, begin=-1, **how):
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
    assert not manager.load(begin) or loader.seen == count.step > 0
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


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_goes_back_to_an_older_step(tmp_path, mode):
    """Later ones are saved anew, as torchtitan does it; and those of torchtitan."""

    def again(begin):
        with pytest.warns(RuntimeWarning, match="before step 8 was loaded"):
            return train(str(tmp_path), None, begin=begin, async_mode=mode)

    (whole,) = run_ranks(1, train, str(tmp_path), None)
    last = tmp_path / "checkpoint" / f"step-{END:08}"
    old = last.stat().st_mtime_ns
    (rest,) = run_ranks(1, again, 8)
    assert rest == {step: whole[step] for step in range(8, END)}
    assert last.stat().st_mtime_ns > old
    with pytest.raises(AssertionError, match="ExistsError"):
        run_ranks(1, save_again, str(tmp_path))
    manager = object.__new__(CheckpointManager)
    manager.enable, manager._begun = False, END
    manager._leave(str(last.parent), END)  # the one that was gone back to
    assert last.exists()


def save_again(run):
    """One that no load went back from."""
    writer = libdcp.torch.StorageWriter(os.path.join(run, "checkpoint"), step=END)
    torch.distributed.checkpoint.save({"w": torch.ones(2)}, storage_writer=writer)


def test_both_saved_a_step_of_one_number(tmp_path):
    """The newer one that is complete is loaded; of the other there is a warning."""
    manager = object.__new__(CheckpointManager)
    manager.enable = False
    plain, ours = tmp_path / "step-6", tmp_path / "step-00000006"

    def found():
        return manager._create_checkpoint_id(6, str(tmp_path))

    assert found() == str(ours)
    plain.mkdir()
    assert found() == str(plain)  # whose error says what is missing
    libdcp.save({"w": torch.ones(2)}, tmp_path, step=6)
    assert found() == str(ours)  # half written
    (plain / ".metadata").touch()
    for newer, older in ((ours / "manifest.json", plain), (plain / ".metadata", ours)):
        os.utime(plain / ".metadata", (1, 1))
        os.utime(ours / "manifest.json", (1, 1))
        os.utime(newer, (2, 2))
        assert found() == str(newer.parent)
        with pytest.warns(RuntimeWarning, match=f"{older.name} beside it is older"):
            titan._warn_of_other(found())


def test_options():
    for how in ({"parity": -1}, {"codec": 3}, {"codec": "spilt"}, {"parity": "1"}):
        with pytest.raises(libdcp.UsageError):
            CheckpointManager.Config(enable=True, **how)


def test_pinned_memory_of_another_process():
    config = CheckpointManager.Config(enable=True, async_mode="async_with_pinned_mem")
    with pytest.raises(libdcp.UnsupportedError, match="another process"):
        config.build(dataloader=None, model_parts=[], optimizers=None, lr_schedulers=None)
