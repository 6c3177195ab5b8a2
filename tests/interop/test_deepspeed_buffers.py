# labels: interop
"""Models with buffers and frozen weights, from files that do not say which tensors are
trained, judged by the real DeepSpeed: torch.save of {model, optimizer} and of the weights
alone, and FSDP2's distributed checkpoints. DeepSpeed loads each at stages 2 and 3, holds the
same parameters, moments and buffers, and its next loss is that of the model itself."""

import os
import subprocess
import tempfile

import deepspeed_peer as peer
import torch
import torch.distributed.checkpoint as dcp
from deepspeed.utils import safe_get_full_fp32_param
from programs import BIN
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

WORLD = 2


class Buffered(peer.Odd):
    """Buffers of floats and integers, with usual names and without; a batch norm in use.
    Kinds: "odd" has a frozen weight, and one with two names; "cut" has not; of "plain" all
    buffers have usual names, too."""

    def __init__(self, kind="odd"):
        super().__init__(empty=False)
        self.register_buffer("running", self.running, persistent=kind != "plain")
        if kind != "odd":
            self.frozen.weight.requires_grad_(True)
            self.head = torch.nn.Linear(6, peer.VOCABULARY, bias=False)
        self.batch = torch.nn.BatchNorm1d(peer.VOCABULARY)
        self.register_buffer("position_ids", torch.arange(9).reshape(1, 9))

    def train(self, mode=True):
        super().train(mode)
        self.batch.eval()
        return self

    def forward(self, input_ids, labels):
        h = self.embed(input_ids)
        h = h + self.frozen(h)
        h = h + self.scale(self.down(torch.tanh(self.up(h))))
        h = self.head(self.norm(h) * self.running).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(self.batch(h), labels.flatten())
        return type("Output", (), {"loss": loss})()


def trained(kind):
    """The model and its optimizer after a few steps; its buffers are not as they began."""
    model = Buffered(kind).train()
    model.batch.running_mean.uniform_(-1, 1)
    model.batch.running_var.uniform_(1, 2)
    if kind != "plain":
        model.running.uniform_(0, 1)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return model, optimizer


def loss_of(model, step):
    seeded = torch.Generator().manual_seed(1000 + step)
    batch = torch.randint(0, peer.VOCABULARY, (peer.BATCH, peer.LENGTH), generator=seeded)
    return model(input_ids=batch, labels=batch).loss


def save_fsdp2(rank, world, with_optim, weights):
    """What FSDP2 saves of those models, with an optimizer and without."""
    for folder, kind in ((with_optim, "odd"), (weights, "cut")):
        torch.manual_seed(2)
        model, optimizer = trained(kind)
        for layer in (model.up, model.down):
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        loss_of(model, 2).backward()
        optimizer.step()
        states = dict(zip(("model", "optim"), get_state_dict(model, optimizer)))
        if folder == weights:
            states = states["model"]
        dcp.save(states, checkpoint_id=folder)
        full = {k: v.full_tensor() if hasattr(v, "full_tensor") else v
                for k, v in model.state_dict().items()}  # fmt: skip
        if rank == 0:
            torch.save(full, folder + ".pt")


def resume(rank, world, jobs):
    """Loads each; what it then holds, and the next loss, go to *out*."""
    for folder, stage, kind, out in jobs:
        torch.manual_seed(7)
        model = Buffered(kind).train()
        config = peer.config_of(stage, "fp32", world)
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": 2}}
        engine = peer.engine_of(model, config, 1)
        path, _ = engine.load_checkpoint(folder, load_lr_scheduler_states=False)
        assert path, "DeepSpeed found nothing to load"
        held = {name: buffer.clone() for name, buffer in engine.module.named_buffers()}
        for name, param in engine.module.named_parameters():
            if param.requires_grad:
                held[name] = safe_get_full_fp32_param(param).clone()
        state = peer.state_of(engine, stage) if kind == "odd" else {}  # with an optimizer
        losses = peer.train(engine, rank, world, 3, 1)
        if rank == 0:
            torch.save((held, state, losses), out)


def make_sources(work):
    """name: (path, kind of model, its state dict, the optimizer's state)."""
    sources = {}

    def add(name, value, model, kind, moments):
        path = os.path.join(work, name)
        torch.save(value, path)
        sources[name] = (path, kind, model.state_dict(), moments)

    torch.manual_seed(1)
    model, optimizer = trained("odd")
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    moments = {names[i]: s for i, s in optimizer.state_dict()["state"].items()}
    both = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    add("both.pt", both, model, "odd", moments)
    model, _ = trained("plain")
    add("weights.pt", model.state_dict(), model, "plain", {})
    with_optim, weights = (os.path.join(work, name) for name in ("fsdp2", "fsdp2-weights"))
    peer.launch(WORLD, save_fsdp2, with_optim, weights)
    for folder, kind in ((with_optim, "odd"), (weights, "cut")):
        state = torch.load(folder + ".pt")
        sources[os.path.basename(folder)] = (folder, kind, state, {})
    return sources


def check(name, stage, source, out):
    held, state, losses = torch.load(out, weights_only=False)
    _, kind, weights, moments = source
    what = f"{name} at stage {stage}"
    for key, value in held.items():
        assert torch.equal(value, weights.get(key, value)), f"{what}: {key}"
    assert "batch.running_mean" in held and "position_ids" in held, what
    for param, values in moments.items():
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(state[key, param], values[key]), f"{what}: {key} of {param}"
    model = Buffered(kind).train()
    model.load_state_dict(weights)
    off = abs(loss_of(model, 3).item() - losses[0])
    assert off < 1e-5, f"{what}: its next loss is off by {off}"
    print(f"ok: {what}", flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="dcp-buffers-") as work:
        sources, jobs, checks = make_sources(work), [], []
        for name, source in sources.items():
            for stage in (2, 3):
                made = os.path.join(work, f"{name}-{stage}")
                done = subprocess.run(
                    [os.path.join(BIN, "dcp-reshard"), source[0], made, "--to", "deepspeed",
                     "--layout", f"zero{stage}", "--world", str(WORLD)],
                    capture_output=True, text=True, check=False)  # fmt: skip
                assert done.returncode == 0, f"{name}: {done.stderr}"
                # What nothing proves is said, and what the names prove is not.
                assert "running_mean" not in done.stdout, done.stdout
                jobs.append((made, stage, source[1], made + ".pt"))
                checks.append((name, stage, source, made + ".pt"))
        peer.launch(WORLD, resume, jobs)
        for row in checks:
            check(*row)


if __name__ == "__main__":
    main()
