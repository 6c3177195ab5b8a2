#!/usr/bin/env python3
"""Learning rates, betas and batch sizes against DeepSpeed's and PyTorch's own classes, bit
for bit, with parameters that are drawn at random."""
import itertools
import json
import logging
import os
import random
import subprocess
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
from deepspeed.runtime import config, lr_schedules

logging.disable(logging.CRITICAL)

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
STEPS = 2000
BASE_LR = 3e-4
BETAS = (0.85, 0.995)
RANDOM = 20  # draws of each schedule


def run(test, *arguments):
    program = os.path.join(BUILD, "tests", "test_unit_" + test)
    return subprocess.run([program, *arguments], capture_output=True, text=True)


def write(folder, settings):
    path = os.path.join(folder, "c.json")
    with open(path, "w") as file:
        json.dump({"data": {"train": "x"}, **settings}, file)
    return path


def values_of_peer(name, params):
    """Rate and betas in the optimizer when it makes step 1, 2, …"""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=BASE_LR, betas=BETAS)
    home = lr_schedules if hasattr(lr_schedules, name) else torch.optim.lr_scheduler
    schedule = getattr(home, name)(optimizer, **params)
    optimizer.step()  # PyTorch warns of schedules that are stepped before
    values = []
    for _ in range(STEPS):
        group = optimizer.param_groups[0]
        values.append((group["lr"], *group["betas"]))
        schedule.step()
    return values


def grid():
    """Warm-ups that DeepSpeed treats each in its own way."""
    warmups = [{"warmup_num_steps": n, "warmup_type": t}
               for n in (1, 2, 3, 7, 20) for t in ("log", "linear")]
    for warmup in warmups:
        for more in ({}, {"warmup_min_lr": 1e-5}, {"warmup_max_lr": 0.1},
                     {"warmup_min_lr": 2e-4, "warmup_max_lr": 0.7}):
            yield "WarmupLR", {**warmup, **more}
            for total in (1, 40):
                yield "WarmupDecayLR", {**warmup, **more, "total_num_steps": total}
        for more in ({}, {"warmup_min_ratio": 0.3, "cos_min_ratio": 0}):
            for total in (1, 40):
                yield "WarmupCosineLR", {**warmup, **more, "total_num_steps": total}
    yield "WarmupLR", {}
    yield "WarmupDecayLR", {"total_num_steps": 2000}
    yield "WarmupCosineLR", {"total_num_steps": 2000}
    yield "OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2}
    yield "OneCycle", {"cycle_min_lr": 1e-2, "cycle_max_lr": 1e-4, "cycle_first_step_size": 1,
                       "cycle_second_step_size": 0, "decay_step_size": 1, "decay_lr_rate": 1}
    yield "LRRangeTest", {}
    yield "StepLR", {"step_size": 1}
    yield "CosineAnnealingLR", {"T_max": 1}
    yield "CosineAnnealingLR", {"T_max": 2, "eta_min": 1.0}
    yield "ConstantLR", {}
    yield "ConstantLR", {"factor": 0, "total_iters": 0}


def some(draw, **choices):
    """Each parameter, or its default, at random."""
    return {key: make() for key, make in choices.items() if draw.random() < 0.7}


def at_random(draw):
    def rate():
        return 10 ** draw.uniform(-6, 0)

    def share():
        return draw.choice((0, draw.random()))

    def steps(least=1):
        return int(max(least, 10 ** draw.uniform(0, 3.4) - 1))

    def warmup():
        return some(draw, warmup_num_steps=steps,
                    warmup_type=lambda: draw.choice(("log", "linear")))

    yield "WarmupLR", {**warmup(), **some(draw, warmup_min_lr=rate, warmup_max_lr=rate)}
    yield "WarmupDecayLR", {"total_num_steps": steps(), **warmup(),
                            **some(draw, warmup_min_lr=rate, warmup_max_lr=rate)}
    yield "WarmupCosineLR", {"total_num_steps": steps(), **warmup(),
                             **some(draw, warmup_min_ratio=share, cos_min_ratio=share)}
    yield "OneCycle", {
        "cycle_min_lr": rate(), "cycle_max_lr": rate(),
        **some(draw, decay_lr_rate=share, cycle_first_step_size=steps,
               cycle_second_step_size=lambda: steps(0),
               cycle_first_stair_count=lambda: draw.randrange(9),
               cycle_second_stair_count=lambda: draw.randrange(9),
               decay_step_size=lambda: steps(0), cycle_momentum=lambda: draw.random() < 0.8,
               cycle_min_mom=share, cycle_max_mom=share,
               decay_mom_rate=lambda: draw.uniform(-1, 1))}
    yield "LRRangeTest", some(draw, lr_range_test_min_lr=rate, lr_range_test_step_size=steps,
                              lr_range_test_step_rate=lambda: draw.uniform(0, 9),
                              lr_range_test_staircase=lambda: draw.random() < 0.5)
    yield "StepLR", {"step_size": steps(), **some(draw, gamma=lambda: draw.uniform(0, 1.5))}
    yield "CosineAnnealingLR", {"T_max": steps(), **some(draw, eta_min=rate)}
    yield "ConstantLR", some(draw, factor=lambda: draw.uniform(1e-3, 1),
                             total_iters=lambda: steps(0))


def schedules():
    yield from grid()
    seed = int(os.environ.get("DCP_SEED", random.randrange(1 << 32)))
    print(f"DCP_SEED={seed}", flush=True)
    draw = random.Random(seed)
    for _ in range(RANDOM):
        yield from at_random(draw)


def check_rates(folder):
    count = 0
    for name, params in schedules():
        path = write(folder, {
            "train_batch_size": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": BASE_LR, "betas": BETAS}},
            "scheduler": {"type": name, "params": params}})
        found = run("schedule", "rates", path, str(STEPS))
        assert found.returncode == 0, (name, params, found.stderr)
        ours = [tuple(map(float, line.split())) for line in found.stdout.splitlines()]
        theirs = values_of_peer(name, params)
        assert len(ours) == STEPS
        for step, (a, b) in enumerate(zip(ours, theirs), 1):
            assert a == b, f"{name} {params}: step {step}: {a!r} here, {b!r} there"
        count += 1
    print(f"{count} schedules × {STEPS} steps are equal to the last bit")


KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def batches():
    grid = itertools.product((None, 1, 8, 24, 30), (None, 1, 3, 4), (None, 1, 2), (1, 2, 3, 8))
    for train, micro, steps, world in grid:
        yield {key: value for key, value in zip(KEYS, (train, micro, steps)) if value}, world


def check_batches(folder):
    possible = impossible = uneven = 0
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
        if ours and not theirs:  # micro-batches are dealt out unevenly
            train, micro, steps = ours
            assert settings["train_batch_size"] == train and train % micro == 0, settings
            assert settings.get("train_micro_batch_size_per_gpu", micro) == micro, settings
            assert steps == -(-train // micro // world), f"{settings} on {world}: {ours}"
            uneven += 1
            continue
        assert ours == theirs, f"{settings} on {world}: {ours} here, {theirs} in DeepSpeed"
        possible += theirs is not None
        impossible += theirs is None
    assert possible > 50 and impossible > 50 and uneven > 10
    print(f"{possible} batch sizes are equal, {uneven} are uneven here and refused there, "
          f"{impossible} are refused by both")


with tempfile.TemporaryDirectory() as folder:
    check_rates(folder)
    check_batches(folder)
