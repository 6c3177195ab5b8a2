#!/usr/bin/env python3
"""Optimizers over 2,000 steps against PyTorch's own classes; Lion, whose kernels DeepSpeed
must build for a GPU, against the formulas of its FusedLion in numpy.

test_unit_optim_torch has the cases. With --values it prints what peers make of them, for
the table in tests/unit/trainer/ops."""
import json
import os
import subprocess
import sys

import numpy
import torch

BUILD = os.environ.get("DCP_BUILD_DIR",
                       os.path.join(os.path.dirname(__file__), "..", "..", "build"))
STEPS, N = 2000, 4


def gradient(step):
    return [((step * 7919 + i * 1047) % 2003 - 1001 + i) / 512 for i in range(N)]


def lion(case):
    """csrc/lion/multi_tensor_lion.cu, where no sum is 0."""
    f32 = numpy.float32
    (beta1, beta2), lr = case["betas"], f32(case["lr"])
    beta1, beta2 = f32(beta1), f32(beta2)
    w = numpy.array([(i + 1) / 4 for i in range(N)], f32)
    m = numpy.zeros(N, f32)
    keep = f32(1) - lr * f32(case["weight_decay"])
    for step in range(1, STEPS + 1):
        g = numpy.array(gradient(step), f32)
        c = beta1 * m + (f32(1) - beta1) * g
        assert (c != 0).all()
        w = w * keep + numpy.where(c > 0, -lr, lr)
        m = beta2 * m + (f32(1) - beta2) * g
    return w.tolist(), {"exp_avg": m.tolist()}


def optimizer_of(case, weights):
    kind = case["name"].split("-")[0]
    common = {"lr": case["lr"], "weight_decay": case["weight_decay"], "foreach": False}
    if kind == "sgd":
        return torch.optim.SGD([weights], momentum=case["momentum"],
                               dampening=case["dampening"],
                               nesterov=bool(case["nesterov"]), **common)
    if kind == "adagrad":
        return torch.optim.Adagrad([weights], lr_decay=case["lr_decay"], eps=case["eps"],
                                   **common)
    made = torch.optim.AdamW if case["decoupled"] else torch.optim.Adam
    return made([weights], betas=case["betas"], eps=case["eps"], **common)


def peer(case):
    if case["name"].startswith("lion"):
        return lion(case)
    weights = torch.nn.Parameter(torch.tensor([(i + 1) / 4 for i in range(N)]))
    optimizer = optimizer_of(case, weights)
    for step in range(1, STEPS + 1):
        weights.grad = torch.tensor(gradient(step))
        optimizer.step()
    states = {name: value.tolist() for name, value in optimizer.state[weights].items()
              if value is not None and value.ndim}
    return weights.tolist(), states


def listed(numbers):
    return ", ".join(f"{number:.9g}f" if "." in f"{number:.9g}" or "e" in f"{number:.9g}"
                     else f"{number:.9g}.0f" for number in numbers)


def main():
    program = os.path.join(BUILD, "tests", "test_unit_optim_torch")
    lines = subprocess.run([program, "print"], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    worst, failed = 0.0, 0
    for line in lines:
        case = json.loads(line)
        w, states = peer(case)
        if "--values" in sys.argv:
            last = list(states.values())[-1] if states else [0] * N
            print(f"{case['name']}: {{ {listed(w)} }}, {{ {listed(last)} }}")
            continue
        if set(states) != set(case["states"]):
            print(f"{case['name']}: states {sorted(case['states'])}, peer {sorted(states)}")
            failed += 1
            continue
        for name, got, want in [("w", case["w"], w)] + [
                (key, case["states"][key], states[key]) for key in states]:
            for x, y in zip(got, want):
                difference = abs(x - y) / (abs(y) + 0.1)
                worst = max(worst, difference)
                if not difference <= 2e-5:
                    print(f"{case['name']}: {name} {x!r}, peer {y!r}")
                    failed += 1
    if "--values" not in sys.argv:
        print(f"{len(lines)} cases, {STEPS} steps, largest difference {worst:.2g}")
    return 1 if failed or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
