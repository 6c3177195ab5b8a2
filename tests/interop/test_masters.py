# labels: interop
"""Weights out of their masters, judged by DeepSpeed's own zero_to_fp32: what export makes of
a ZeRO folder is what that makes of it, bit for bit, at every stage; so it is by way of a
native step. --weights model gives the 16-bit weights of the module."""

import glob
import os
import subprocess
import tempfile

import deepspeed_peer as peer
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from programs import BIN

CASES = {  # stage, dtype, model, groups, zero_optimization
    "z1-fp16": (1, "fp16", "gpt2", 2, {}),
    "z2-bf16": (2, "bf16", "odd", 1, {}),
    "z3-bf16": (3, "bf16", "gpt2", 2, {}),
}


def run(*arguments):
    done = subprocess.run([os.path.join(BIN, "dcp-reshard"), *arguments],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


def export(source, *options):
    target = source + ".bin"
    said = run("export", source, target, "--force", *options)
    return torch.load(target), said


def same(got, expected, plain, what, dtype=torch.float32):
    """Bit for bit. Of what is plain, no parameter or not trained, the dtype is its own:
    zero_to_fp32 widens buffers, and not what is frozen."""
    assert set(got) == set(expected), f"{what}: {set(got) ^ set(expected)}"
    for name, value in expected.items():
        wanted = value.to(dtype)
        mine = got[name].to(dtype) if name in plain or not value.numel() else got[name]
        assert torch.equal(mine, wanted) and mine.dtype == dtype, f"{what}: {name}"


def check(folder, name):
    expected = get_fp32_state_dict_from_zero_checkpoint(folder)
    expected = {k: v.contiguous() for k, v in expected.items()}
    native = folder + "-native"
    run(folder, native)
    # What is not trained has no master: it is as the module has it.
    file = sorted(glob.glob(os.path.join(folder, "*", "*model_states.pt")))[0]
    module = torch.load(file, weights_only=False)
    plain = set(module["buffer_names"]) | set(module["frozen_param_shapes"] or ())
    sixteen = torch.float16 if CASES[name][1] == "fp16" else torch.bfloat16

    def check_one(source, options, dtype=torch.float32, says=""):
        got, said = export(source, *options)
        same(got, expected, plain, f"{source} {options}", dtype)
        assert says in said, said

    masters = "made of the optimizer's masters"
    check_one(folder, [], says=masters)
    check_one(folder, ["--dtype", "fp32"], says=masters)
    check_one(native, ["--dtype", "fp32"], says=masters)
    for source in (folder, native):
        check_one(source, ["--weights", "model"], sixteen)
        check_one(source, ["--weights", "master", "--dtype", CASES[name][1]], sixteen)
    if CASES[name][0] < 3:  # both are stored
        check_one(native, [], sixteen, "--weights master takes")
    print(f"ok: {name}", flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="dcp-masters-") as work:
        jobs = [(case, os.path.join(work, name)) for name, case in CASES.items()]
        peer.launch(2, peer.save_all, jobs)
        for name in CASES:
            check(os.path.join(work, name), name)


if __name__ == "__main__":
    main()
