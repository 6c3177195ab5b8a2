#!/usr/bin/env python3
"""The loss scale against DeepSpeed's own class, over overflows that are drawn at random."""
import logging
import os
import random
import subprocess
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
from deepspeed.runtime.fp16 import loss_scaler

logging.disable(logging.CRITICAL)
loss_scaler.dist.get_rank = lambda: 1  # it logs on rank 0, of a group that is not there

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
PROGRAM = os.path.join(BUILD, "tests", "test_unit_loss_scale")
STEPS, DRAWS = 2000, 60


def theirs(initial, window, hysteresis, consecutive, least, overflows):
    scaler = loss_scaler.DynamicLossScaler(
        init_scale=initial, scale_window=window, min_scale=least, delayed_shift=hysteresis,
        consecutive_hysteresis=consecutive)
    for overflow in overflows:
        try:
            scaler.update_scale(overflow == "1")
        except Exception:  # pylint: disable=broad-except
            yield "least"
            return
        yield f"{scaler.cur_scale:.17g} {scaler.cur_hysteresis}"


def main():
    draw = random.Random(os.environ.get("SEED", 7))
    for n in range(DRAWS):
        rule = (2.0 ** draw.randint(0, 30), draw.choice([1, 2, 7, 100, 1000]),
                draw.randint(1, 4), draw.random() < 0.5, draw.choice([1, 0.25, 2]))
        share = draw.choice([0.001, 0.02, 0.2, 0.6])
        overflows = "".join("01"[draw.random() < share] for _ in range(STEPS))
        if rule[4] > rule[0]:
            continue
        want = list(theirs(*rule, overflows))
        initial, window, hysteresis, consecutive, least = rule
        done = subprocess.run([PROGRAM, str(initial), str(window), str(hysteresis),
                               str(int(consecutive)), str(least), overflows],
                              capture_output=True, text=True, check=True)
        got = done.stdout.split("\n")[:-1]
        if got != want:
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), None)
            sys.exit(f"draw {n}, {rule}: step {at} differs: {got[at]} and {want[at]}")
    print(f"{DRAWS} rules, {STEPS} steps each: the same scales")


main()
