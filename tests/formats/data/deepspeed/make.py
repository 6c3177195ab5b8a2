"""Made the folders beside it, with DeepSpeed 0.19.8 and torch 2.13.0 on CPUs:

    PYTHONPATH=../../../interop python make.py

expected.json has what DeepSpeed's own safe_get_full_… functions say of every parameter. The
files are kept as they were written; only the copies of DeepSpeed's scripts are left out.
"""

import glob
import hashlib
import json
import os
import shutil

import deepspeed_peer as peer
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENT = {"epoch": 3, "nested": {"pair": (1, 2), 5: "five"},
          "rng": torch.arange(10, dtype=torch.uint8)}  # fmt: skip
CASES = {  # world; stage, dtype, model, groups, zero_optimization
    "z0": (2, (0, "fp32", "gpt2", 2, {})),
    "z0-bf16": (2, (0, "bf16", "gpt2", 1, {})),
    "z1-bf16": (2, (1, "bf16", "gpt2", 2, {})),
    "z2": (3, (2, "bf16", "odd", 1, {})),
    "z2-aligned": (2, (2, "bf16", "odd", 2, {"parameter_alignment": True})),
    "z2-elastic": (2, (2, "fp32", "odd", 1, {"elastic_checkpoint": True})),
    "z2-fp16": (2, (2, "fp16", "odd", 1, {})),
    "z3": (4, (3, "fp32", "odd", 2, {})),
    "z3-parts": (2, (3, "bf16", "odd", 1, {"sub_group_size": 40})),
}
UNIVERSAL = {"universal-z2": "z2", "universal-z3": "z3-parts"}


def describe(state):
    tensors = []
    for (role, param), value in sorted(state.items()):
        data = value.contiguous().view(-1).numpy().tobytes()
        tensors.append({"role": role, "param": param, "shape": list(value.shape),
                        "dtype": str(value.dtype).removeprefix("torch."),
                        "sha256": hashlib.sha256(data).hexdigest()})  # fmt: skip
    return tensors


def main():
    expected = {}
    states = {}
    for name, (world, case) in CASES.items():
        folder = os.path.join(HERE, name)
        shutil.rmtree(folder, ignore_errors=True)
        peer.launch(world, peer.save, case, folder, CLIENT)
        truth = torch.load(os.path.join(folder, "truth.pt"), weights_only=False)
        states[name] = truth["state"]
        expected[name] = {"layout": f"zero{case[0]}" if case[0] else "replicated",
                          "world": world, "tensors": describe(states[name])}  # fmt: skip
    for name, source in UNIVERSAL.items():
        folder = os.path.join(HERE, name)
        shutil.rmtree(folder, ignore_errors=True)
        peer.launch(1, peer.convert, os.path.join(HERE, source, "global_step3"), folder)
        entry = expected[source]
        expected[name] = {**entry, "tensors": describe(states[source])}
    for path in glob.glob(os.path.join(HERE, "*", "*.p*")):
        if os.path.basename(path) in ("truth.pt", "zero_to_fp32.py", "zero_to_torch.py"):
            os.remove(path)
    for path in glob.glob(os.path.join(HERE, "latest_universal")):
        os.remove(path)
    with open(os.path.join(HERE, "expected.json"), "w", encoding="utf-8") as out:
        json.dump(expected, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
