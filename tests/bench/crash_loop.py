"""A small training that saves every third step, and goes on with its newest checkpoint:
what tests/bench/crashes kills. It prints "saved N" when a save has returned, and
"resumed from N" when it went on.

usage: crash_loop.py WAY FOLDER
"""

import functools
import glob
import os
import re
import sys

WAY, FOLDER = sys.argv[1:]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

END, EVERY = 12, 3


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * END

    def __getitem__(self, i):
        x = torch.randn(8, generator=torch.Generator().manual_seed(i))
        return {"x": x, "y": x.sum()[None]}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.up = torch.nn.Linear(8, 17)
        self.down = torch.nn.Linear(17, 1)

    def forward(self, x, y):
        out = self.down(torch.tanh(self.up(x)))
        return {"loss": torch.nn.functional.mse_loss(out, y), "logits": out}


def newest():
    """What programs take that look for `checkpoint-N`."""
    found = glob.glob(os.path.join(FOLDER, "checkpoint-*"))
    pairs = [(int(m[1]), path) for path in found if (m := re.search(r"-(\d+)$", path))]
    return max(pairs)[1] if pairs else None


def folder_of(step):
    return os.path.join(FOLDER, f"checkpoint-{step}")


def by_torch(state, step):
    if step:
        os.makedirs(folder_of(step), exist_ok=True)
        torch.save(state, os.path.join(folder_of(step), "state.pt"))
    elif newest():
        return torch.load(os.path.join(newest(), "state.pt"))
    return None


def by_dcp(state, step):
    import torch.distributed.checkpoint as dcp

    if step:
        dcp.save(state, checkpoint_id=folder_of(step))
    elif newest():
        dcp.load(state, checkpoint_id=newest())
        return state
    return None


def by_torch_checkpointing(state, step, hooked=False):
    import torch_checkpointing as theirs
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    if hooked:
        from libdcp.torch_checkpointing import StorageConfig

        storage = StorageConfig()
    else:  # with O_DIRECT, the default, 0.1.1 cannot write to many file systems
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
    how = theirs.CheckpointManager.Config(
        save=theirs.SyncCheckpointSaverConfig(), storage_config=storage
    )
    manager = how.build()
    if step:
        manager.save(folder_of(step), state)
    elif newest():
        loaded = manager.load(newest(), into=state)
        manager.close()
        return loaded
    manager.close()
    return None


def by_libdcp_torch(state, step):
    import torch.distributed.checkpoint as dcp

    import libdcp.torch as ours

    run = os.path.join(FOLDER, "run")
    if step:
        dcp.save(state, storage_writer=ours.StorageWriter(run, step=step))
    elif glob.glob(os.path.join(run, "step-*")):
        dcp.load(state, storage_reader=ours.StorageReader(run))
        return state
    return None


def loop(keep):
    net = Net()
    optim = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    samples, done = Samples(), 0
    for weight in net.parameters():  # the momentum is there before it is loaded
        weight.grad = torch.zeros_like(weight)
    optim.step()
    state = {"model": net.state_dict(), "optim": optim.state_dict(), "step": 0}
    loaded = keep(state, 0)
    if loaded is not None:
        net.load_state_dict(loaded["model"])
        optim.load_state_dict(loaded["optim"])
        done = loaded["step"]
    print(f"resumed from {done}", flush=True)
    for step in range(done, END):
        batch = [samples[i] for i in range(4 * step, 4 * step + 4)]
        net(**{k: torch.stack([b[k] for b in batch]) for k in "xy"})["loss"].backward()
        optim.step()
        optim.zero_grad()
        if (step + 1) % EVERY == 0:
            state = {"model": net.state_dict(), "optim": optim.state_dict()}
            keep({**state, "step": step + 1}, step + 1)
            print(f"saved {step + 1}", flush=True)
    return net


def by_libdcp():
    import libdcp

    net = Net()
    optim = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    state, run = {"model": net, "optim": optim, "step": 0}, os.path.join(FOLDER, "run")
    if glob.glob(os.path.join(run, "step-*")):
        libdcp.load(state, run)
    samples = Samples()
    print(f"resumed from {state['step']}", flush=True)
    for step in range(state["step"], END):
        batch = [samples[i] for i in range(4 * step, 4 * step + 4)]
        net(**{k: torch.stack([b[k] for b in batch]) for k in "xy"})["loss"].backward()
        optim.step()
        optim.zero_grad()
        state["step"] = step + 1
        if state["step"] % EVERY == 0:
            libdcp.save(state, run, step=state["step"])
            print(f"saved {state['step']}", flush=True)
    return net


def by_trainer(hooked):
    import transformers

    class Tell(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **_kwargs):
            print(f"resumed from {state.global_step}", flush=True)

        def on_save(self, args, state, control, **_kwargs):
            print(f"saved {state.global_step}", flush=True)

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_args):
            return torch.utils.data.SequentialSampler(Samples())

    arguments = transformers.TrainingArguments(
        output_dir=FOLDER,
        use_cpu=True,
        per_device_train_batch_size=4,
        max_steps=END,
        save_steps=EVERY,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    net = Net()
    trainer = InOrder(net, arguments, train_dataset=Samples(), callbacks=[Tell()])
    if hooked:
        import libdcp.transformers

        libdcp.transformers.hook(trainer)
    trainer.train(resume_from_checkpoint=newest() is not None or None)
    return net


def by_lightning(hooked):
    import lightning
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    class Tell(Callback):
        def on_train_start(self, trainer, _module):
            print(f"resumed from {trainer.global_step}", flush=True)

    plugins = []
    if hooked:
        from libdcp.lightning import CheckpointIO

        plugins = [CheckpointIO()]
    saves = ModelCheckpoint(
        FOLDER, "checkpoint-{step}", every_n_train_steps=EVERY, save_top_k=-1,
        auto_insert_metric_name=False,
    )
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, plugins=plugins, callbacks=[saves, Tell()],
    )  # fmt: skip
    module = Module()
    found = glob.glob(os.path.join(FOLDER, "checkpoint-*.ckpt"))
    last = max(found, key=lambda p: int(re.search(r"-(\d+)\.", p)[1])) if found else None
    trainer.fit(module, torch.utils.data.DataLoader(Samples(), 4), ckpt_path=last)
    return module.net


WAYS = {
    "torch.save": lambda: loop(by_torch),
    "DCP": lambda: loop(by_dcp),
    "torch_checkpointing": lambda: loop(by_torch_checkpointing),
    "torch_checkpointing + libdcp": lambda: loop(
        functools.partial(by_torch_checkpointing, hooked=True)
    ),
    "libdcp": by_libdcp,
    "libdcp.torch": lambda: loop(by_libdcp_torch),
    "Trainer": lambda: by_trainer(False),
    "Trainer + libdcp": lambda: by_trainer(True),
    "Lightning": lambda: by_lightning(False),
    "Lightning + libdcp": lambda: by_lightning(True),
}

if __name__ == "__main__":
    os.makedirs(FOLDER, exist_ok=True)
    trained = WAYS[WAY]()
    torch.save(trained.state_dict(), os.path.join(FOLDER, "final.part"))
    os.replace(os.path.join(FOLDER, "final.part"), os.path.join(FOLDER, "final.pt"))
