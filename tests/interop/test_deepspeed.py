# labels: interop
"""DeepSpeed and dcp-reshard, judged by the real DeepSpeed.

1. What DeepSpeed saved is read: every master and moment equals, bit for bit, what its own
   safe_get_full_… functions say, at all stages, dtypes and worlds.
2. What dcp-reshard wrote for another world or stage is loaded by DeepSpeed, holds there the
   same bits, options of groups, scheduler, steps and loss scaler, and training goes on
   with the losses of the run that was never resharded.
3. The same for universal checkpoints, in both forms; and those that DeepSpeed's own
   converter made are read.
4. A step of dcp-train goes on in DeepSpeed.
5. Folders that are not whole are refused with a sentence that says what is missing.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import deepspeed_peer as peer
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

TESTS = os.environ.get("DCP_TESTS_DIR", os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.join(TESTS, "oracle"))
import read_dcp  # noqa: E402

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16,
          "I64": torch.int64, "U8": torch.uint8}  # fmt: skip
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 2e-3}
CLIENT = {"epoch": 3, "best": 0.5, "nested": {"pair": (1, 2), 5: "five"},
          "rng": torch.arange(10, dtype=torch.uint8)}  # fmt: skip

#          stage, dtype, model, groups, zero_optimization
CASES = {
    "z1": (1, "fp32", "gpt2", 2, {}),
    "z1-bf16": (1, "bf16", "gpt2", 2, {}),  # BF16_Optimizer
    "z2": (2, "bf16", "odd", 1, {}),
    "z2-fp16": (2, "fp16", "gpt2", 2, {}),
    "z2-aligned": (2, "bf16", "odd", 2, {"parameter_alignment": True}),
    "z2-elastic": (2, "fp32", "gpt2", 1, {"elastic_checkpoint": True}),
    "z2-round": (2, "fp32", "gpt2", 2, {"round_robin_gradients": True}),
    "z3": (3, "fp32", "gpt2", 2, {}),
    "z3-odd": (3, "bf16", "odd", 1, {"stage3_param_persistence_threshold": 0}),
    "z3-parts": (3, "bf16", "gpt2", 2, {"sub_group_size": 100}),
    "z0": (0, "fp32", "gpt2", 2, {}),
    "z0-bf16": (0, "bf16", "gpt2", 2, {}),
}
SOURCES = [  # case, world, then the target: stage, world
    ("z1", 2, (3, 2)),
    ("z1-bf16", 4, (2, 2)),
    ("z2", 2, (2, 3)),
    ("z2-fp16", 2, (3, 3)),
    ("z2-aligned", 3, (2, 2)),
    ("z2-elastic", 2, None),
    ("z2-round", 3, (2, 2)),
    ("z3", 4, (3, 2)),
    ("z3-odd", 2, (3, 3)),
    ("z3-parts", 3, (1, 4)),
    ("z0", 2, (2, 2)),
    ("z0-bf16", 2, (3, 2)),
]
UNIVERSAL = [("z2", (2, 3)), ("z3", (3, 2)), ("z3-odd", (1, 2))]


def reshard(source, target, *options, status=0):
    shutil.rmtree(target, ignore_errors=True)
    done = subprocess.run([os.path.join(BIN, "dcp-reshard"), source, target, *options],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == status, f"{options}: {done.returncode} {done.stderr}"
    return done.stderr


class Native:
    """A checkpoint as a native step, read by the independent reader: its tensors by role
    and parameter, its objects by name."""

    def __init__(self, source, work):
        folder = os.path.join(work, "native")
        reshard(source, folder)
        step = read_dcp.Step(folder)
        self.objects = {entry["name"]: entry.get("value") for entry in step.objects}
        self.ties = step.manifest.get("ties", {})
        self.tensors = {}
        for index, entry in enumerate(step.tensors):
            data, _ = step.read(index)
            flat = torch.empty(0, dtype=DTYPES[entry["dtype"]])
            if data:
                flat = torch.frombuffer(bytearray(data), dtype=flat.dtype)
            key = entry["role"], entry.get("param") or entry["name"]
            self.tensors[key] = flat.reshape(entry["shape"])


def same_state(state, expected, what):
    for key, value in expected.items():
        assert key in state, f"{what}: {key} is missing"
        mine = state[key].reshape(value.shape)
        assert torch.equal(mine, value), f"{what}: {key} differs"


def same_facts(got, expected, what):
    for key, value in expected.items():
        assert got[key] == value or value is None, f"{what}: {key}: {got[key]}, not {value}"


def same_losses(got, expected, dtype, what):
    off = max(abs(a - b) for a, b in zip(got, expected))
    assert off < TOLERANCE[dtype], f"{what}: losses {got}, not {expected}"
    assert abs(expected[0] - expected[2]) > 3 * off, f"{what}: losses say nothing"


def is_shuffled(case):
    return bool(case[4].get("round_robin_gradients"))


def check_read(folder, name, truth, work):
    """Every tensor of the optimizer, and what zero_to_fp32 makes of the folder."""
    case = CASES[name]
    native = Native(folder, work)
    if not is_shuffled(case):  # there DeepSpeed's own functions mix parameters up
        same_state(native.tensors, truth["state"], name)
    assert native.objects["trainer"] == {"step": 3, "samples": 36, "skipped_steps": 0}
    assert native.objects["scheduler"] == {"type": "WarmupLR", "last_batch_iteration": 2}
    if case[0] > 0 and name != "z1-bf16":
        for param, value in get_fp32_state_dict_from_zero_checkpoint(folder).items():
            keys = [(role, param) for role in ("master", "buffer", "model")]
            held = next((native.tensors[k] for k in keys if k in native.tensors), None)
            if held is None:
                assert param in native.ties, f"{name}: {param} is missing"
                continue
            assert torch.equal(held.float(), value.float()), f"{name}: {param} differs"
    if case[2] == "odd":
        assert native.tensors["buffer", "mask"].tolist() == [0, 1, 2, 3, 4, 5]
        assert ("master", "frozen.weight") not in native.tensors
    return native


def expected_facts(truth, dtype):
    facts = dict(truth["facts"])
    if dtype != "fp16":
        facts["scaler"] = None
    return facts


class Resumes:
    """Loads to be done: all of one world in one go, which is much faster. Then checks."""

    def __init__(self):
        self.jobs = {}
        self.checks = []

    def add(self, world, case, folder, universal, check):
        self.jobs.setdefault(world, []).append((case, folder, universal))
        self.checks.append((folder, check))

    def run(self):
        for world, jobs in self.jobs.items():
            peer.launch(world, peer.resume_all, jobs)
        for folder, check in self.checks:
            check(torch.load(os.path.join(folder, "got.pt"), weights_only=False))


def add_target(name, world, target, truth, work, resumes):
    """The folder at another stage and world, in DeepSpeed."""
    case = CASES[name]
    stage, new_world = target
    what = f"{name} of {world} ranks to stage {stage} of {new_world}"
    made = os.path.join(work, f"{name}-made")
    reshard(os.path.join(work, name), made, "--to", "deepspeed", "--layout",
            f"zero{stage}", "--world", str(new_world))  # fmt: skip

    def check(got):
        if not is_shuffled(case) and case[0] > 0:
            same_state(got["state"], truth["state"], what)
        same_facts(got["facts"], expected_facts(truth, case[1]), what)
        same_losses(got["losses"], truth["losses"], case[1], what)
        client = {key: got["client"][key] for key in CLIENT}
        assert torch.equal(client.pop("rng"), CLIENT["rng"]), f"{what}: the client's tensor"
        assert client == {k: v for k, v in CLIENT.items() if k != "rng"}, f"{what}: {client}"
        print(f"ok: {what}", flush=True)

    resumes.add(new_world, (stage, *case[1:]), made, False, check)


def save_sources(work):
    """All checkpoints of DeepSpeed's; those of one world in one go."""
    worlds = {}
    for name, world, _ in SOURCES:
        worlds.setdefault(world, []).append((CASES[name], os.path.join(work, name), CLIENT))
    for world, jobs in worlds.items():
        peer.launch(world, peer.save_all, jobs)
    return {name: torch.load(os.path.join(work, name, "truth.pt"), weights_only=False)
            for name, _, _ in SOURCES}  # fmt: skip


def check_elastic(folder, work):
    """Such files do not hold the options of the groups."""
    said = reshard(folder, os.path.join(work, "never"), "--to", "deepspeed", status=5)
    assert "groups of parameters without their options" in said, said


# -- universal checkpoints --------------------------------------------------------------


def check_converted(name, truth, work):
    """What DeepSpeed's own converter made is read."""
    folder = os.path.join(work, name)
    target = os.path.join(folder, "universal")
    peer.launch(1, peer.convert, os.path.join(folder, "global_step3"), target)
    native = Native(target, work)
    same_state(native.tensors, truth["state"], f"universal {name}")
    assert native.objects["optimizer"]["step"] == 3


def add_universal(name, target, truth, work, resumes):
    case = CASES[name]
    stage, world = target
    what = f"{name} to a universal one, loaded at stage {stage} by {world} ranks"
    made = os.path.join(work, f"{name}-universal")
    reshard(os.path.join(work, name), made, "--to", "universal", "--layout", f"zero{stage}")
    same_state(Native(made, work).tensors, truth["state"], what)

    def check(got):
        same_state(got["state"], truth["state"] if got["state"] else {}, what)
        facts = expected_facts(truth, case[1])
        if stage == 3 and case[3] > 1:  # DeepSpeed gives all groups the options of the first
            facts["groups"] = got["facts"]["groups"]
        else:
            same_losses(got["losses"], truth["losses"], case[1], what)
        same_facts(got["facts"], facts, what)
        print(f"ok: {what}", flush=True)

    resumes.add(world, (stage, *case[1:]), made, True, check)


# -- from dcp-train ---------------------------------------------------------------------

TRAINED = {
    "seed": 7,
    "steps": 3,
    "train_batch_size": peer.BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "betas": [0.9, 0.95], "eps": 1e-8,
                                              "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6}},
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": peer.LENGTH,
              "vocab_size": peer.VOCABULARY},
    "data": {"train": "tokens.bin", "seq_len": peer.LENGTH},
    "checkpoint": {"dir": "run"},
}  # fmt: skip


def train_here(folder):
    """A run of dcp-train."""
    os.mkdir(folder)
    seeded = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, peer.VOCABULARY, (5000,), generator=seeded)
    with open(os.path.join(folder, "tokens.bin"), "wb") as out:  # as nanoGPT has them
        out.write(tokens.to(torch.uint16).numpy().tobytes())
    with open(os.path.join(folder, "train.json"), "w", encoding="utf-8") as out:
        json.dump(TRAINED, out)
    done = subprocess.run(
        [os.path.join(BIN, "dcp-train"), "--config", "train.json", "--ranks", "2", "-q"],
        cwd=folder, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return os.path.join(folder, "run")


def add_trained(work, resumes):
    """A step of dcp-train, by DeepSpeed at two stages."""
    run = train_here(os.path.join(work, "trained"))
    roles = ("master", "exp_avg", "exp_avg_sq")
    expected = {k: v for k, v in Native(run, work).tensors.items() if k[0] in roles}
    losses = []

    def add(stage, world):
        what = f"a step of dcp-train to stage {stage} of {world} ranks"
        made = os.path.join(work, f"trained-{stage}")
        reshard(run, made, "--to", "deepspeed", "--layout", f"zero{stage}", "--world",
                str(world))  # fmt: skip

        def check(got):
            same_state(got["state"], expected, what)
            facts = got["facts"]
            decay = [group["weight_decay"] for group in facts["groups"]]
            assert facts["steps"] == (3, 3 * peer.BATCH, 0), f"{what}: {facts}"
            assert decay == [0.1, 0.0], f"{what}: {facts}"
            assert facts["scheduler"] == {"last_batch_iteration": 2}, f"{what}: {facts}"
            losses.append(got["losses"])
            off = max(abs(a - b) for a, b in zip(losses[0], losses[-1]))
            assert off < TOLERANCE["bf16"], f"{what}: losses {losses}"
            print(f"ok: {what}", flush=True)

        resumes.add(world, (stage, "bf16", "gpt2", 2, {}), made, False, check)

    add(2, 2)
    add(3, 3)


# -- what is incomplete ------------------------------------------------------------------


def check_refused(folder, work):
    """Every corruption is told by name. The folder is of stage 3 and four ranks."""
    broken = os.path.join(work, "broken")

    def told(words, act):
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(folder, broken)
        act(os.path.join(broken, "global_step3"))
        said = reshard(broken, os.path.join(work, "never"), status=words[1])
        assert words[0] in said, said

    name = "zero_pp_rank_{}_mp_rank_00_{}_states.pt"
    told(("expected 4 optimizer shards, found 3: missing " + name.format(2, "optim"), 4),
         lambda tag: os.remove(os.path.join(tag, name.format(2, "optim"))))  # fmt: skip
    told(("expected 4 model shards, found 3: missing " + name.format(1, "model"), 4),
         lambda tag: os.remove(os.path.join(tag, name.format(1, "model"))))  # fmt: skip
    told(("is stale", 4),
         lambda tag: shutil.copy(os.path.join(tag, name.format(3, "optim")),
                                 os.path.join(tag, name.format(4, "optim"))))  # fmt: skip
    told(("names 'global_step3', and there is no such folder", 4),
         lambda tag: os.rename(tag, tag + "0"))  # fmt: skip
    told(("second model-parallel rank", 8),
         lambda tag: shutil.copy(
             os.path.join(tag, name.format(0, "optim")),
             os.path.join(tag, "zero_pp_rank_0_mp_rank_01_optim_states.pt")))  # fmt: skip
    told(("pipeline stages", 8),
         lambda tag: open(os.path.join(tag, "layer_01-model_00-model_states.pt"), "w"))
    print("ok: folders that are incomplete", flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="dcp-deepspeed-") as work:
        truths = save_sources(work)
        resumes = Resumes()
        for name, world, target in SOURCES:
            native = check_read(os.path.join(work, name), name, truths[name], work)
            if CASES[name][0] == 0:
                held = {key[0] for key in native.tensors}
                assert {"exp_avg", "exp_avg_sq"} <= held, f"{name}: {held}"
            if target:
                add_target(name, world, target, truths[name], work, resumes)
        check_elastic(os.path.join(work, "z2-elastic"), work)
        for name, target in UNIVERSAL:
            check_converted(name, truths[name], work)
            add_universal(name, target, truths[name], work, resumes)
        add_trained(work, resumes)
        check_refused(os.path.join(work, "z3"), work)
        resumes.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
