#!/usr/bin/env python3
"""Training gives the same bits whatever does the work: for batches, micro-batches, world
sizes, stages, copies, threads, precisions and changes of all these on the way that are
drawn at random, losses, norms and the fingerprint of all weights of every step are those
of one rank that nobody disturbed.

SEED=n draws others; DRAWS=n more of them.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

BIN = os.path.abspath(os.environ.get("DCP_BIN_DIR", "build/bin"))
TESTS = os.environ.get(
    "DCP_TESTS_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
STEPS = 9
CONFIG = {
    "steps": STEPS,
    "fingerprint_every": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
    "gradient_clipping": 0.5,
    "model": {"n_layer": 2, "n_head": 2, "n_embd": 24, "n_positions": 16, "vocab_size": 256},
    "data": {"train": "text.txt", "seq_len": 16},
    "checkpoint": {"dir": "run", "save_every": 2, "keep": 1},
}

MUON = {"muon_lr": 0.02, "adam_lr": 0.01, "weight_decay": 0.1}


def train(overrides, world, threads, steps):
    command = [os.path.join(BIN, "dcp-train"), "-q", "-c", "train.json", "--ranks", str(world),
               "--steps", str(steps)]  # fmt: skip
    for key, value in overrides.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")


def known():
    steps = {}
    with open("run/metrics.jsonl", encoding="utf-8") as f:
        for m in map(json.loads, f):
            steps[m["step"]] = (m["loss"], m["grad_norm"], m["weights"])
    shutil.rmtree("run")
    return [steps[s] for s in range(1, STEPS + 1)]


def draw_way(draw, least_stage):
    world = draw.choice([1, 2, 3, 4, 5, 6, 7, 8])
    way = {"zero_optimization.stage": draw.randint(least_stage, 3)}
    copies = [n for n in range(1, world) if world % n == 0]
    if way["zero_optimization.stage"] == 3 and copies and draw.random() < 0.5:
        way["zero_optimization." + draw.choice(["mics_shard_size", "zero_hpz_partition_size"])] = (
            draw.choice(copies))
    if draw.random() < 0.5:
        way["zero_optimization.overlap_comm"] = True
        way["zero_optimization.stage3_prefetch_bucket_size"] = draw.choice([0, 20000])
    if draw.random() < 0.3:
        way["zero_optimization.reduce_bucket_size"] = draw.choice([1000, 500000000])
        way["zero_optimization.stage3_max_live_parameters"] = draw.choice([0, 30000, 10**9])
    return world, draw.randint(1, 4 if world < 3 else 1), way


def main():
    seed = int(os.environ.get("SEED", "20261123"))
    draw = random.Random(seed)
    shutil.copy(os.path.join(TESTS, "../LICENSE"), "text.txt")
    with open("train.json", "w", encoding="utf-8") as f:
        json.dump(CONFIG, f)
    n_draws = int(os.environ.get("DRAWS", "8"))
    for n in range(n_draws):
        micro = draw.randint(1, 3)
        base = {
            "train_batch_size": micro * draw.randint(1, 13),
            "train_micro_batch_size_per_gpu": micro,
            "seed": draw.randint(0, 1000),
        }
        base.update(draw.choice([{}, {"bf16.enabled": True}, {"fp16.enabled": True},
                                 {"bf16.enabled": True, "data_types.grad_accum_dtype": "fp32"},
                                 {"bf16.enabled": True, "stochastic_rounding": True}]))
        base.update(draw.choice([{}, {}, {"optimizer.type": "Muon", "optimizer.params": MUON},
                                 {"optimizer.type": "Adafactor", "optimizer.params": {}}]))
        # What is quantized is so from a stage on, and shows in the bits.
        least, quantized = draw.choice([(0, {})] * 3 + [
            (2, {"zero_optimization.zero_quantized_gradients": True}),
            (3, {"zero_optimization.zero_quantized_gradients": True,
                 "zero_optimization.zero_quantized_weights": True}),
        ])  # fmt: skip
        base.update(quantized)
        train({**base, "zero_optimization.stage": least}, 1, 1, STEPS)
        want, ways, at = known(), [], 0
        while at < STEPS:
            at = min(STEPS, at + draw.randint(1, STEPS))
            world, threads, way = draw_way(draw, least)
            ways.append((at, world, threads, way))
            train({**base, **way}, world, threads, at)
        got = known()
        if got != want:
            step = next(i for i, (a, b) in enumerate(zip(want, got), 1) if a != b)
            sys.exit(f"SEED={seed}, draw {n}: step {step} of {base} by way of {ways}: "
                     f"{got[step - 1]}, not {want[step - 1]}")
    print(f"{n_draws} draws, seed {seed}: the same bits")


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    main()
