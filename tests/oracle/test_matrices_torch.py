#!/usr/bin/env python3
"""Muon and Adafactor against torch.optim: what test_unit_muon and test_unit_adafactor make of
parameters in 1,000 steps is what PyTorch's classes make of them with the same gradients.
torch.optim.Muon rounds to bf16 before it makes a momentum orthogonal; here its own code runs
in fp32, but for one case that says how far bf16 is from that."""
import json
import os
import subprocess
import sys

import torch

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
BOUND = 1e-5  # of the largest number of an array
ARRAYS = ("momentum_buffer", "row_var", "col_var", "variance")
to_bf16 = torch.Tensor.bfloat16


def gradient(param, step, n):
    i = torch.arange(1, n + 1, dtype=torch.int64)
    h = (i * 2654435761 + param * 97 + step * 31337) & 0xffffffff
    h ^= h >> 15
    return ((h % 2003 - 1001) / 512).float()


def optimizer_of(case, weights):
    common = {"lr": case["lr"], "weight_decay": case["weight_decay"]}
    if case["optimizer"] == "Adafactor":
        return torch.optim.Adafactor([weights], **common)
    return torch.optim.Muon(
        [weights], momentum=case["momentum"], nesterov=bool(case["nesterov"]),
        adjust_lr_fn="match_rms_adamw" if case["match_rms"] else "original", **common)


def off(case):
    """How far what we made of a case is from what PyTorch makes of it."""
    shape = case["shape"]
    weights = torch.nn.Parameter(torch.tensor(case["begin"], dtype=torch.float32).reshape(shape))
    optimizer = optimizer_of(case, weights)
    for step in range(1, case["steps"] + 1):
        weights.grad = gradient(case["param"], step, weights.numel()).reshape(shape)
        optimizer.step()
    wanted = {"w": weights.detach()}
    wanted.update((key, value) for key, value in optimizer.state[weights].items()
                  if key in ARRAYS)
    assert set(wanted) == set(case) & {"w", *ARRAYS}
    return max(((torch.tensor(case[key]) - want.flatten()).abs().max() / want.abs().max())
               .item() for key, want in wanted.items())


def cases_of(program):
    done = subprocess.run([os.path.join(BUILD, "tests", program), "print"],
                          capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    adafactor, muon = cases_of("test_unit_adafactor"), cases_of("test_unit_muon")
    torch.Tensor.bfloat16 = torch.Tensor.clone
    worst = [max(map(off, cases)) for cases in (adafactor, muon)]
    torch.Tensor.bfloat16 = to_bf16
    rounded = off(muon[0])
    print(f"{len(adafactor)} parameters of Adafactor are off by {worst[0]:.2g}, {len(muon)} "
          f"matrices of Muon by {worst[1]:.2g}, and one in bf16 by {rounded:.2g}")
    return 0 if max(worst) <= BOUND < rounded else 1


if __name__ == "__main__":
    sys.exit(main())
