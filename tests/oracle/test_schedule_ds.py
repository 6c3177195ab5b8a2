#!/usr/bin/env python3
"""Learning rates and batch sizes against DeepSpeed's own classes, bit for bit.

Needs deepspeed in the Python that DCP_PEERS names; skipped without it."""
import itertools
import json
import os
import subprocess
import sys
import tempfile

PEERS = os.environ.get("DCP_PEERS")
if PEERS and os.environ.get("DCP_IN_PEERS") != "1":
    os.environ["DCP_IN_PEERS"] = "1"
    os.execv(PEERS, [PEERS, __file__])

os.environ.setdefault("DS_ACCELERATOR", "cpu")
try:
    import logging
    import torch
    from deepspeed.runtime import config, lr_schedules
except ImportError as error:
    print(f"skipped: {PEERS or 'python3'} (DCP_PEERS) has no deepspeed: {error}")
    sys.exit(77)
logging.disable(logging.CRITICAL)

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
STEPS = 60
BASE_LR = 3e-4


def run(test, *arguments):
    program = os.path.join(BUILD, "tests", "test_unit_" + test)
    return subprocess.run([program, *arguments], capture_output=True, text=True)


def write(folder, settings):
    path = os.path.join(folder, "c.json")
    with open(path, "w") as file:
        json.dump({"data": {"train": "x"}, **settings}, file)
    return path


def rates_of_deepspeed(name, params):
    """The rate in the optimizer when it makes step 1, 2, …"""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=BASE_LR)
    schedule = getattr(lr_schedules, name)(optimizer, **params)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    return rates


def schedules():
    warmups = [{"warmup_num_steps": n, "warmup_type": t}
               for n in (1, 2, 3, 7, 20) for t in ("log", "linear")]
    for warmup in warmups:
        for more in ({}, {"warmup_min_lr": 1e-5}, {"warmup_max_lr": 0.1},
                     {"warmup_min_lr": 2e-4, "warmup_max_lr": 0.7}):
            yield "WarmupLR", {**warmup, **more}
            for total in (1, 15, 40, 1000):
                yield "WarmupDecayLR", {**warmup, **more, "total_num_steps": total}
        for more in ({}, {"warmup_min_ratio": 0.1}, {"cos_min_ratio": 0.25},
                     {"warmup_min_ratio": 0.3, "cos_min_ratio": 0}):
            for total in (1, 15, 40, 1000):
                yield "WarmupCosineLR", {**warmup, **more, "total_num_steps": total}
    yield "WarmupLR", {}
    yield "WarmupDecayLR", {"total_num_steps": 2000}
    yield "WarmupCosineLR", {"total_num_steps": 2000}


def check_rates(folder):
    count = 0
    for name, params in schedules():
        path = write(folder, {
            "train_batch_size": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": BASE_LR}},
            "scheduler": {"type": name, "params": params}})
        found = run("schedule", "rates", path, str(STEPS))
        assert found.returncode == 0, (name, params, found.stderr)
        ours = [float(line) for line in found.stdout.split()]
        theirs = rates_of_deepspeed(name, params)
        assert len(ours) == STEPS
        for step, (a, b) in enumerate(zip(ours, theirs), 1):
            assert a == b, f"{name} {params}: step {step}: {a!r} here, {b!r} in DeepSpeed"
        count += 1
    print(f"{count} schedules × {STEPS} steps are equal to the last bit")


KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def batches():
    grid = itertools.product((None, 1, 8, 24, 30), (None, 1, 3, 4), (None, 1, 2), (1, 2, 3, 8))
    for train, micro, steps, world in grid:
        yield {key: value for key, value in zip(KEYS, (train, micro, steps)) if value}, world


def check_batches(folder):
    possible = impossible = 0
    base = config.DeepSpeedConfig({"train_batch_size": 1})
    for settings, world in batches():
        for key in KEYS:
            setattr(base, key, settings.get(key))
        base.world_size = world
        try:
            base._configure_train_batch_size()
            theirs = [getattr(base, key) for key in KEYS]
        except AssertionError:
            theirs = None
        found = run("settings", "resolve", write(folder, settings), str(world))
        ours = None
        if found.returncode == 0:
            ours = [json.loads(found.stdout)[key] for key in KEYS]
        else:
            assert found.returncode == 2, found.stderr
        assert ours == theirs, f"{settings} on {world}: {ours} here, {theirs} in DeepSpeed"
        possible += theirs is not None
        impossible += theirs is None
    assert possible > 50 and impossible > 50
    print(f"{possible} batch sizes are equal, {impossible} are refused by both")


with tempfile.TemporaryDirectory() as folder:
    check_rates(folder)
    check_batches(folder)
