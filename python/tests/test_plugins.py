"""Trainers of others that save through libdcp: killed, and resumed at other world sizes.

Each trains the same net on the same samples, so that its losses tell whether it went on.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from conftest import BIN, flip, peer
from ranks import kill_ranks, run_ranks

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.checkpoint.state_dict")  # once, not in each rank
peer("torch._dynamo")

BATCH, SAMPLES, END, KILL = 4, 24, 12, 7  # a save each 2 steps; an epoch is of 6


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        x = torch.randn(8, generator=torch.Generator().manual_seed(i))
        return {"x": x, "y": x.sum()[None]}


class Net(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.up = torch.nn.Linear(8, 17)
        self.drop = torch.nn.Dropout(dropout)
        self.down = torch.nn.Linear(17, 1)

    def forward(self, x, y):
        out = self.down(self.drop(torch.tanh(self.up(x))))
        return {"loss": torch.nn.functional.mse_loss(out, y), "logits": out}


def launched():
    """Tell trainers which rank this is, as torchrun does."""
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "TORCHELASTIC_RUN_ID": "tests",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "ACCELERATE_USE_CPU": "true",
        "DS_ACCELERATOR": "cpu",
    }
    return dist.get_world_size()


def mean(loss):
    """Over all ranks."""
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def die_at(step, kill):
    if step == kill:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


def begun(folder):
    """Whether there is one, before any rank makes it."""
    there = os.path.isdir(folder)
    dist.barrier()
    return there


def as_fsdp(accelerator, version):
    """Let accelerate shard on CPUs: it takes FSDP for GPUs only. The rest is real."""
    accelerate = peer("accelerate")
    state = accelerator.state
    if version:
        state._shared_state["distributed_type"] = accelerate.DistributedType.FSDP
        state._shared_state["device"] = torch.device("cpu")  # not "cpu:0"
        state.fsdp_plugin = accelerate.FullyShardedDataParallelPlugin(
            fsdp_version=version,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Linear"],
            state_dict_type="SHARDED_STATE_DICT",
        )


def assert_sharded(model, version):
    kind = {1: "FullyShardedDataParallel", 2: "FSDPNet"}
    assert not version or type(model).__name__ == kind[version]


# -- Lightning -------------------------------------------------------------------------


def train_lightning(run, kill, dropout=0.0):
    lightning = peer("lightning")
    callbacks = peer("lightning.pytorch.callbacks")
    from libdcp.lightning import CheckpointIO

    world, losses = launched(), {}

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net(dropout)

        def training_step(self, batch, _index):
            loss = self.net(**batch)["loss"]
            losses[self.trainer.global_step] = mean(loss)
            die_at(self.trainer.global_step, kill)
            return loss

        def configure_optimizers(self):
            optim = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optim], [torch.optim.lr_scheduler.StepLR(optim, 1, 0.5)]

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        max_epochs=2,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[CheckpointIO(parity=1)],
        callbacks=[
            callbacks.ModelCheckpoint(
                run, every_n_train_steps=2, save_top_k=-1, save_last=True
            )
        ],
    )
    order = torch.utils.data.DistributedSampler(Samples(), shuffle=False)
    loader = torch.utils.data.DataLoader(Samples(), BATCH // world, sampler=order)
    last = os.path.join(run, "last.ckpt")
    trainer.fit(Module(), loader, ckpt_path=last if os.path.exists(last) else None)
    return losses


# -- Trainer of transformers -----------------------------------------------------------


def train_transformers(run, kill, dropout=0.0, fsdp=0):
    transformers = peer("transformers")
    import libdcp.transformers

    world, losses = launched(), {}

    class Watch(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_kwargs):
            if "loss" in logs:
                losses[state.global_step - 1] = logs["loss"]

        def on_step_end(self, args, state, control, **_kwargs):
            assert_sharded(trainer.model_wrapped, fsdp)
            die_at(state.global_step, kill)

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_args):
            return torch.utils.data.SequentialSampler(Samples())

    resume = begun(run) or None
    arguments = transformers.TrainingArguments(
        output_dir=run,
        use_cpu=True,
        ddp_backend="gloo" if world > 1 else None,
        per_device_train_batch_size=BATCH // world,
        num_train_epochs=2,
        learning_rate=1e-2,
        save_steps=2,
        save_total_limit=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        max_grad_norm=0,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )
    trainer = InOrder(
        model=Net(dropout),
        args=arguments,
        train_dataset=Samples(),
        callbacks=[Watch()],
    )
    as_fsdp(trainer.accelerator, fsdp)
    trainer.is_fsdp_enabled = bool(fsdp)
    libdcp.transformers.hook(trainer, parity=1)
    trainer.train(resume_from_checkpoint=resume)
    return losses


# -- a loop of accelerate --------------------------------------------------------------


def train_accelerate(run, kill, dropout=0.0, fsdp=0):
    accelerate = peer("accelerate")
    import libdcp.accelerate

    world, losses = launched(), {}
    naming = accelerate.utils.ProjectConfiguration(
        project_dir=run, automatic_checkpoint_naming=True, total_limit=2
    )
    accelerator = accelerate.Accelerator(
        cpu=True, project_config=naming, step_scheduler_with_optimizer=False
    )
    as_fsdp(accelerator, fsdp)
    libdcp.accelerate.hook(accelerator, parity=1)
    net = Net(dropout)
    if fsdp == 1:  # which makes parameters of its own
        net = accelerator.prepare(net)
    optim = torch.optim.AdamW(net.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.StepLR(optim, 3)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=BATCH // world)
    if fsdp == 1:
        optim, sched, loader = accelerator.prepare(optim, sched, loader)
    else:
        net, optim, sched, loader = accelerator.prepare(net, optim, sched, loader)
    assert_sharded(net, fsdp)

    class Count:
        step = 0

        def state_dict(self):
            return {"step": self.step}

        def load_state_dict(self, state):
            self.step = state["step"]

    count = Count()
    accelerator.register_for_checkpointing(count)
    if begun(os.path.join(run, "checkpoints")):
        accelerator.load_state()
        naming.iteration = count.step // 2
    for epoch in range(count.step // 6, 2):
        for i, batch in enumerate(loader):
            if i < count.step - 6 * epoch:
                continue
            loss = net(**batch)["loss"]
            losses[count.step] = mean(loss)
            accelerator.backward(loss)
            optim.step()
            sched.step()
            optim.zero_grad()
            count.step += 1
            if count.step % 2 == 0:
                accelerator.save_state()
            die_at(count.step, kill)
    return losses


# -- DeepSpeed -------------------------------------------------------------------------


def read_late(engine):
    """Every file a moment later than the others do."""
    read = engine.checkpoint_engine.load

    def load(*args, **kwargs):
        time.sleep(0.3)
        return read(*args, **kwargs)

    engine.checkpoint_engine.load = load


def train_deepspeed(run, kill, dropout=0.0, stage=0, ours=True):
    deepspeed = peer("deepspeed")
    import libdcp.deepspeed

    # Nothing is compiled: its lock in the user's cache outlives a killed rank.
    deepspeed.ops.__compatible_ops__ = {}
    world, losses = launched(), {}
    deepspeed.init_distributed("gloo")
    net = Net(dropout)
    engine, *_ = deepspeed.initialize(
        model=net,
        model_parameters=net.parameters(),
        config={
            "train_batch_size": BATCH,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    if ours:
        libdcp.deepspeed.install(engine, parity=1)
    if dist.get_rank() == 1:
        read_late(engine)
    if os.path.exists(os.path.join(run, "latest")):
        found, told = engine.load_checkpoint(run)
        folder = os.path.dirname(found)
        assert folder.startswith(run) and os.path.isdir(folder)
        assert told["seen"] == engine.global_steps - 1
        assert not [name for name in os.listdir(run) if name.startswith(".")]
    samples, size = Samples(), BATCH // world
    while engine.global_steps < END:
        step = engine.global_steps
        first = step * BATCH % SAMPLES + dist.get_rank() * size
        batch = [samples[i] for i in range(first, first + size)]
        loss = engine(**{key: torch.stack([b[key] for b in batch]) for key in "xy"})
        losses[step] = mean(loss["loss"])
        engine.backward(loss["loss"])
        engine.step()
        if engine.global_steps % 2 == 0:
            engine.save_checkpoint(run, client_state={"seen": step})
        die_at(engine.global_steps, kill)
    return losses


WAYS = {
    "deepspeed": train_deepspeed,
    "lightning": train_lightning,
    "transformers": train_transformers,
    "accelerate": train_accelerate,
}
PARTS = {  # what is imported once, not by each rank
    "deepspeed": (
        "deepspeed",
        "functorch.compile",
        "torch._dynamo.testing",
        "torch._inductor.compile_fx",
    ),
    "lightning": ("lightning", "lightning.pytorch.callbacks"),
    "transformers": ("transformers", "transformers.trainer", "deepspeed"),
    "accelerate": ("accelerate", "deepspeed"),
}


@pytest.fixture(params=WAYS)
def train(request):
    for part in PARTS[request.param]:
        peer(part)
    return WAYS[request.param]


def test_goes_on_at_other_sizes(tmp_path, train):
    """Killed on two ranks, it goes on with one, to the losses of a run without that."""
    (whole,) = run_ranks(1, train, str(tmp_path / "whole"), None)
    assert sorted(whole) == list(range(END))
    run = str(tmp_path / "run")
    kill_ranks(2, train, run, KILL)
    (rest,) = run_ranks(1, train, run, None)
    assert sorted(rest) == list(range(KILL - KILL % 2, END))
    assert rest == pytest.approx({step: whole[step] for step in rest}, rel=1e-5)


@pytest.mark.parametrize("train", ["transformers", "accelerate"], indirect=True)
def test_goes_on_as_it_was(tmp_path, train):
    """To the very bits, with the states of the random numbers."""
    (whole,) = run_ranks(1, train, str(tmp_path / "whole"), None, 0.5)
    run = str(tmp_path / "run")
    kill_ranks(1, train, run, KILL, 0.5)
    (rest,) = run_ranks(1, train, run, None, 0.5)
    assert rest == {step: whole[step] for step in rest}


@pytest.mark.parametrize("way", ["transformers", "accelerate"])
def test_fsdp(tmp_path, way):
    """Sharded in both ways: killed on two ranks, then on one, it ends on two."""
    for part in PARTS[way]:
        peer(part)
    train = WAYS[way]
    (whole,) = run_ranks(1, train, str(tmp_path / "whole"), None)
    for version in (1, 2):
        run = str(tmp_path / f"fsdp{version}")
        kill_ranks(2, train, run, KILL, 0.0, version)
        kill_ranks(1, train, run, KILL + 2, 0.0, version)
        rest = run_ranks(2, train, run, None, 0.0, version)[0]
        assert sorted(rest) == list(range(KILL + 1, END))
        assert rest == pytest.approx({step: whole[step] for step in rest}, rel=1e-5)
        with libdcp.open(newest_of(run)) as ckpt:
            assert ckpt.info.world_size == 2
            assert ckpt["up.weight"].shape == (17, 8)
            assert ckpt["optimizer.exp_avg.up.weight"].shape == (17, 8)


def newest_of(run):
    """Where the trainer put its last checkpoint."""
    found = [*pathlib.Path(run).glob("**/checkpoint*[0-9]")]
    return max(found, key=lambda path: int(re.search(r"\d+$", path.name)[0]))


@pytest.mark.parametrize("stage", [1, 3])
def test_zero(tmp_path, stage):
    """Partitions of each rank; DeepSpeed's own files of a step are a checkpoint of it."""
    for part in PARTS["deepspeed"]:
        peer(part)
    whole = run_ranks(2, train_deepspeed, str(tmp_path / "whole"), None, 0.0, stage)[0]
    run = tmp_path / "run"
    kill_ranks(2, train_deepspeed, str(run), KILL, 0.0, stage)
    rest = run_ranks(2, train_deepspeed, str(run), None, 0.0, stage)[0]
    assert rest == {step: whole[step] for step in range(KILL - KILL % 2, END)}
    # On one rank, and back on two: resharded when it is loaded.
    other = str(tmp_path / "other")
    kill_ranks(2, train_deepspeed, other, KILL, 0.0, stage)
    kill_ranks(1, train_deepspeed, other, KILL + 2, 0.0, stage)
    rest = run_ranks(2, train_deepspeed, other, None, 0.0, stage)[0]
    assert sorted(rest) == list(range(KILL + 1, END))
    assert rest == pytest.approx({step: whole[step] for step in rest}, rel=1e-5)
    # By the one command, to files that DeepSpeed alone goes on with.
    from libdcp.deepspeed import unpack

    unpack(run / "global_step8", tmp_path / "own" / "global_step8")
    command = [BIN / "dcp-reshard", tmp_path / "own" / "global_step8", tmp_path / "one"]
    command += ["--to", "deepspeed", "--world", "1", "--quiet"]
    subprocess.run(command, check=True)
    how = (0.0, stage, False)
    (rest,) = run_ranks(1, train_deepspeed, str(tmp_path / "one"), None, *how)
    assert rest == pytest.approx({step: whole[step] for step in range(8, END)}, rel=1e-5)
    unpack(run / "global_step12", tmp_path / "theirs")
    with libdcp.open(tmp_path / "theirs") as theirs:
        assert (theirs.info.format, theirs.info.step) == ("deepspeed", END)
        assert theirs["up.weight"].shape == (17, 8)
        assert theirs["optimizer.exp_avg.up.weight"].role == "exp_avg"
    (shard, *_) = (run / "global_step12" / "state").glob("step-*/shard-*.safetensors")
    flip(shard)
    with pytest.raises(libdcp.CorruptError):
        libdcp.open(run / "global_step12" / "state").verify()
