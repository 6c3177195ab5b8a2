"""The real DeepSpeed on CPUs: several ranks of this machine train a small model, save it,
and load what they are given. Imported by test_deepspeed.py, and by the program that makes
the fixtures of tests/formats/data/deepspeed."""

import argparse
import faulthandler
import logging
import os
import queue
import socket
import sys
import tempfile
import time
import traceback

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import deepspeed  # noqa: E402
import multiprocessing  # noqa: E402
import torch  # noqa: E402
import functorch.compile  # noqa: E402, F401  this and the next, or each rank imports them
import torch._dynamo.testing  # noqa: E402, F401
import torch._inductor.compile_fx  # noqa: E402, F401
import transformers  # noqa: E402
from deepspeed.accelerator import get_accelerator  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param  # noqa: E402
from deepspeed.utils import safe_get_full_optimizer_state  # noqa: E402

GPT2 = transformers.GPT2LMHeadModel  # likewise: transformers imports it when it is named
torch.set_num_threads(1)
deepspeed.utils.logger.setLevel(logging.ERROR)
# No kernel is compiled for these ranks, or a lock that a killed compiler left in the user's
# cache of PyTorch's extensions would hold up each of them for ever.
deepspeed.ops.__compatible_ops__ = {}
type(get_accelerator()).is_fp16_supported = lambda self: True  # torch can, on a CPU too

BATCH, LENGTH, VOCABULARY = 12, 8, 23


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.factor


class Odd(torch.nn.Module):
    """What is unusual: a frozen weight, buffers, a tied head, one element, no elements."""

    def __init__(self, empty=True):
        super().__init__()
        torch.manual_seed(1)
        self.embed = torch.nn.Embedding(VOCABULARY, 6)
        self.frozen = torch.nn.Linear(6, 6)
        self.frozen.weight.requires_grad_(False)
        self.up = torch.nn.Linear(6, 5)
        self.down = torch.nn.Linear(5, 6)
        self.scale = Scale()
        self.nothing = torch.nn.Parameter(torch.empty(0)) if empty else None
        self.norm = torch.nn.LayerNorm(6)
        self.register_buffer("running", torch.full((6,), 0.5))
        self.register_buffer("mask", torch.arange(6))
        self.register_buffer("count", torch.tensor(7))
        self.head = torch.nn.Linear(6, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids, labels):
        h = self.embed(input_ids)
        h = h + self.frozen(h)
        h = h + self.scale(self.down(torch.tanh(self.up(h))))
        h = self.head(self.norm(h) * self.running.to(h.dtype))
        loss = torch.nn.functional.cross_entropy(h.float().flatten(0, 1), labels.flatten())
        return type("Output", (), {"loss": loss})()


def gpt2(layers=1, width=8):
    torch.manual_seed(0)
    return GPT2(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=width, n_layer=layers, n_head=2,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))  # fmt: skip


def model_of(kind, stage):
    return Odd(stage < 3) if kind == "odd" else gpt2()


def config_of(stage, dtype, world, universal=False, **zero):
    config = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // world,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, **zero},
        "scheduler": {"type": "WarmupLR", "params": {
            "warmup_min_lr": 0, "warmup_max_lr": 0.05, "warmup_num_steps": 6,
            "warmup_type": "linear"}},
        "steps_per_print": 10**9,
    }  # fmt: skip
    if dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if dtype == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 8}
    if universal:
        config["checkpoint"] = {"load_universal": True}
    return config


def engine_of(model, config, groups):
    """The engine; with two groups what has one dimension does not decay."""
    params = [p for p in model.parameters() if p.requires_grad]
    made = [{"params": params, "weight_decay": 0.1}]
    if groups == 2:
        made = [{"params": [p for p in params if p.ndim >= 2], "weight_decay": 0.1},
                {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(made, lr=0.05, betas=(0.9, 0.95), eps=1e-8)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(engine, rank, world, first, n):
    """Steps first .. first + n on batches that depend on the step alone. Mean losses."""
    losses = []
    mine = slice(rank * (BATCH // world), (rank + 1) * (BATCH // world))
    for step in range(first, first + n):
        seeded = torch.Generator().manual_seed(1000 + step)
        batch = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=seeded)[mine]
        loss = engine(input_ids=batch, labels=batch).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / world)
    return losses


def state_of(engine, stage):
    """What DeepSpeed itself says of every trained parameter, in full."""
    state = {}
    if 0 < stage < 3:
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    for name, param in engine.module.named_parameters():
        n = param.ds_numel if hasattr(param, "ds_numel") else param.numel()
        if stage == 0 or not param.requires_grad or not n:
            continue
        state["master", name] = safe_get_full_fp32_param(param).clone()
        for key in ("exp_avg", "exp_avg_sq"):
            state[key, name] = safe_get_full_optimizer_state(param, key).clone()
    return state


def facts_of(engine):
    """What else must go on as it was."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in engine.optimizer.param_groups]
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    return {
        "steps": (engine.global_steps, engine.global_samples, engine.skipped_steps),
        "groups": groups,
        "scheduler": engine.lr_scheduler.state_dict(),
        "scaler": {k: str(v) for k, v in vars(scaler).items()} if scaler else None,
    }


def save(rank, world, case, folder, client=None):
    """Three steps, a checkpoint, and three steps more. *folder*/truth.pt gets the state."""
    stage, dtype, kind, groups, zero = case
    engine = engine_of(model_of(kind, stage), config_of(stage, dtype, world, **zero), groups)
    train(engine, rank, world, 0, 3)
    engine.save_checkpoint(folder, client_state=client or {})
    truth = {"state": state_of(engine, stage), "facts": facts_of(engine)}
    truth["losses"] = train(engine, rank, world, 3, 3)
    if rank == 0:
        torch.save(truth, os.path.join(folder, "truth.pt"))


def resume(rank, world, case, folder, universal=False):
    """Loads a checkpoint, says what it got, and goes on for three steps."""
    stage, dtype, kind, groups, zero = case
    torch.manual_seed(99)
    model = model_of(kind, stage)
    with torch.no_grad():
        for param in model.parameters():
            if param.requires_grad:
                param.add_(1.0)  # what is not loaded is wrong
    engine = engine_of(model, config_of(stage, dtype, world, universal, **zero), groups)
    path, client = engine.load_checkpoint(folder)
    assert path, "DeepSpeed found nothing to load"
    got = {"facts": facts_of(engine), "client": client}
    got["state"] = {} if universal and stage < 3 else state_of(engine, stage)
    got["losses"] = train(engine, rank, world, 3, 3)
    if rank == 0:
        torch.save(got, os.path.join(folder, "got.pt"))


def save_all(rank, world, jobs):
    for job in jobs:
        save(rank, world, *job)


def resume_all(rank, world, jobs):
    for job in jobs:
        resume(rank, world, *job)


def convert(rank, world, folder, target):
    """DeepSpeed's own conversion to a universal checkpoint."""
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(argparse.Namespace(
        input_folder=folder, output_folder=target, num_extract_workers=1,
        num_merge_workers=1, keep_temp_folder=False, strict=True,
        inject_missing_state=True))  # fmt: skip


PATIENCE = 240  # seconds, for all ranks


def rank_main(rank, world, port, act, arguments, failures, stuck):
    faulthandler.dump_traceback_later(PATIENCE - 10, file=stuck)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))  # fmt: skip
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stdout = nowhere
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            deepspeed.init_distributed(dist_backend="gloo", verbose=False)
            act(rank, world, *arguments)
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
        except BaseException:
            failures.put(f"rank {rank}: {traceback.format_exc()}")
            raise


def launch(world, act, *arguments):
    """act(rank, world, …) in a process for each rank. Fails with what a rank said."""
    context = multiprocessing.get_context("fork")
    failures = context.Queue()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as stuck:
        ranks = [context.Process(target=rank_main,
                                 args=(rank, world, port, act, arguments, failures, stuck))
                 for rank in range(world)]  # fmt: skip
        for process in ranks:
            process.start()
        end = time.monotonic() + PATIENCE
        for process in ranks:
            process.join(max(0, end - time.monotonic()))
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()
        stuck.seek(0)
        where = stuck.read()
    try:
        raise AssertionError(failures.get_nowait())
    except queue.Empty:
        ends = [process.exitcode for process in ranks]
        assert not any(ends), f"exit statuses {ends}; stuck in:\n{where or 'nothing'}"
