#!/usr/bin/env python3
"""Muon against torch.optim.Muon: what test_unit_muon makes of matrices in 1,000 steps is what
PyTorch's class makes of them with the same gradients. That class rounds to bf16 before it
makes a momentum orthogonal; here its own code runs in fp32, but for one case that says how far
bf16 is from that."""
import json
import os
import subprocess
import sys

import torch

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
BOUND = 1e-5  # of the largest weight
to_bf16 = torch.Tensor.bfloat16


def gradient(param, step, n):
    i = torch.arange(1, n + 1, dtype=torch.int64)
    h = (i * 2654435761 + param * 97 + step * 31337) & 0xffffffff
    h ^= h >> 15
    return ((h % 2003 - 1001) / 512).float()


def peer(case):
    shape = case["shape"]
    weights = torch.nn.Parameter(torch.tensor(case["begin"]).reshape(shape))
    optimizer = torch.optim.Muon(
        [weights], lr=case["lr"], weight_decay=case["weight_decay"],
        momentum=case["momentum"], nesterov=bool(case["nesterov"]),
        adjust_lr_fn="match_rms_adamw" if case["match_rms"] else "original")
    for step in range(1, case["steps"] + 1):
        weights.grad = gradient(case["param"], step, weights.numel()).reshape(shape)
        optimizer.step()
    return {"w": weights.detach().flatten(),
            "momentum_buffer": optimizer.state[weights]["momentum_buffer"].flatten()}


def off(case, got):
    return max(((torch.tensor(case[key]) - want).abs().max() / want.abs().max()).item()
               for key, want in got.items())


def main():
    program = os.path.join(BUILD, "tests", "test_unit_muon")
    lines = subprocess.run([program, "print"], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    cases = [json.loads(line) for line in lines]
    torch.Tensor.bfloat16 = torch.Tensor.clone
    worst = max(off(case, peer(case)) for case in cases)
    torch.Tensor.bfloat16 = to_bf16
    rounded = off(cases[0], peer(cases[0]))
    print(f"{len(cases)} matrices: off by {worst:.2g}; torch.optim.Muon in bf16 by {rounded:.2g}")
    return 0 if cases and worst <= BOUND < rounded else 1


if __name__ == "__main__":
    sys.exit(main())
