# labels: interop
"""The scheduler in DeepSpeed's checkpoints, judged by the real DeepSpeed.

1. dcp-train goes on from a checkpoint of DeepSpeed's with the rates that DeepSpeed itself
   went on with, bit for bit, and finds nothing changed.
2. DeepSpeed loads what dcp-reshard made of a step of dcp-train, and goes on with the rates
   and betas that dcp-train itself goes on with; also where dcp-train resumed it from
   DeepSpeed before.
3. A schedule that was stepped less often than the optimizer goes on where it was.
4. The state of a scheduler in a file of torch.save is loaded by PyTorch's class.
"""

import json
import os
import subprocess
import sys
import tempfile

import deepspeed_peer as peer
import torch

BIN = os.environ.get("DCP_BIN_DIR", "build/bin")
BEFORE, AFTER = 3, 4
LR, BETAS = 0.05, (0.9, 0.95)

CYCLE = {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 2,
         "cycle_second_step_size": 2, "decay_step_size": 1, "decay_lr_rate": 0.5,
         "decay_mom_rate": -0.01, "cycle_min_mom": 0.7}  # fmt: skip

#    name: stage, the schedule, its parameters
CASES = {
    "warmup": (2, "WarmupLR", {"warmup_num_steps": 6}),
    "cosine": (3, "WarmupCosineLR", {"warmup_num_steps": 2, "total_num_steps": 9,
                                     "warmup_type": "linear"}),
    "cycle": (2, "OneCycle", CYCLE),
    "cycle-0": (0, "OneCycle", CYCLE),
    "range": (1, "LRRangeTest", {"lr_range_test_min_lr": 1e-3, "lr_range_test_step_size": 3}),
    "steps": (0, "StepLR", {"step_size": 2, "gamma": 0.3}),
    "steps-2": (2, "StepLR", {"step_size": 2, "gamma": 0.3}),
    "annealing": (3, "CosineAnnealingLR", {"T_max": 5, "eta_min": 1e-4}),
    "constant": (1, "ConstantLR", {"factor": 0.3, "total_iters": 5}),
}  # fmt: skip


def engine_of(case, universal=False):
    """PyTorch's classes do not take DeepSpeed's own optimizers: those are made by hand."""
    stage, name, params = case
    import deepspeed

    config = peer.config_of(stage, "fp32", 1, universal)
    config["scheduler"] = {"type": name, "params": params}
    made = None
    if stage and hasattr(torch.optim.lr_scheduler, name):
        del config["scheduler"]

        def made(optimizer):
            return getattr(torch.optim.lr_scheduler, name)(optimizer, **params)

    model = peer.gpt2()
    weights = list(model.parameters())
    groups = [{"params": [w for w in weights if w.ndim >= 2], "weight_decay": 0.1},
              {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=1e-8)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config,
                                lr_scheduler=made)[0]  # fmt: skip


def train(engine, first, n):
    """What the optimizer makes each step with."""
    rates = []
    for step in range(first, first + n):
        group = engine.optimizer.param_groups[-1]
        rates.append((float(group["lr"]), *map(float, group["betas"])))
        peer.train(engine, 0, 1, step, 1)
    return rates


def save(rank, world, jobs):
    """A checkpoint of every case, and what DeepSpeed goes on with."""
    for name, folder in jobs:
        engine = engine_of(CASES[name])
        train(engine, 0, BEFORE)
        if name == "warmup":
            engine.lr_scheduler.step(0)  # a position that the count of updates is not
        engine.save_checkpoint(folder)
        torch.save(train(engine, BEFORE, AFTER), os.path.join(folder, "rates.pt"))


def resume(rank, world, jobs):
    for name, folder in jobs:
        engine = engine_of(CASES[name])
        path, _ = engine.load_checkpoint(folder)
        assert path, "DeepSpeed found nothing to load"
        torch.save(train(engine, engine.global_steps, AFTER), os.path.join(folder, "got.pt"))


def dcp_train(folder, case, steps, *options):
    """Runs on until that many steps; what was said, and the rate of every step."""
    stage, name, params = case
    os.makedirs(folder, exist_ok=True)
    seeded = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, peer.VOCABULARY, (5000,), generator=seeded)
    with open(os.path.join(folder, "tokens.bin"), "wb") as out:  # as nanoGPT has them
        out.write(tokens.to(torch.uint16).numpy().tobytes())
    config = {
        "steps": steps,
        "train_batch_size": peer.BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": BETAS, "eps": 1e-8,
                                                  "weight_decay": 0.1}},
        "scheduler": {"type": name, "params": params},
        "zero_optimization": {"stage": stage},
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": peer.LENGTH,
                  "vocab_size": peer.VOCABULARY},
        "data": {"train": "tokens.bin", "seq_len": peer.LENGTH},
        "checkpoint": {"dir": "run"},
    }  # fmt: skip
    with open(os.path.join(folder, "train.json"), "w", encoding="utf-8") as out:
        json.dump(config, out)
    done = subprocess.run([os.path.join(BIN, "dcp-train"), "--config", "train.json", *options],
                          cwd=folder, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rates = {}
    with open(os.path.join(folder, "run", "metrics.jsonl"), encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            rates[line["step"]] = line["lr"]
    return done.stderr, [rates[step] for step in sorted(rates)]


def reshard(source, target, *options):
    subprocess.run([os.path.join(BIN, "dcp-reshard"), source, target, *options], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip


def changes(said):
    return [line for line in said.splitlines() if " was " in line]


def check_from_deepspeed(name, work):
    """The rates with which dcp-train goes on; its run is then ours."""
    folder = os.path.join(work, name)
    theirs = [rate[0] for rate in torch.load(os.path.join(folder, "rates.pt"))]
    run = os.path.join(work, f"{name}-here")
    said, ours = dcp_train(run, CASES[name], BEFORE + AFTER, "--resume", folder)
    assert ours == theirs, f"{name}: {ours} here, {theirs} in DeepSpeed"
    assert not changes(said), f"{name}: {said}"
    print(f"ok: {name} from DeepSpeed", flush=True)


def make_for_deepspeed(name, work, tag, *options, begin=BEFORE):
    """A step of ours as DeepSpeed has it, and the rates with which we go on."""
    run = os.path.join(work, f"{name}-{tag}")
    dcp_train(run, CASES[name], begin, *options)
    made = os.path.join(work, f"{name}-{tag}-made")
    reshard(os.path.join(run, "run"), made, "--to", "deepspeed", "--layout",
            f"zero{CASES[name][0]}", "--world", "1")  # fmt: skip
    _, rates = dcp_train(run, CASES[name], begin + AFTER)
    return made, rates[-AFTER:]


def expected_betas(name, first, n):
    """Of steps first + 1, …, by the real class."""
    _, schedule, params = CASES[name]
    from deepspeed.runtime import lr_schedules

    home = lr_schedules if hasattr(lr_schedules, schedule) else torch.optim.lr_scheduler
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR, betas=BETAS)
    made = getattr(home, schedule)(optimizer, **params)
    optimizer.step()  # PyTorch warns of schedules that are stepped before
    betas = []
    for _ in range(first + n):
        betas.append(tuple(optimizer.param_groups[0]["betas"]))
        made.step()
    return betas[first:]


def check_changes(work):
    """Each changed value has a line; unchanged ones have none."""
    folder = os.path.join(work, "cycle")
    stage, name, params = CASES["cycle"]
    now = {**params, "cycle_max_lr": 0.5, "cycle_momentum": False}
    said, _ = dcp_train(os.path.join(work, "changed"), (stage, name, now), BEFORE + 1,
                        "--resume", folder)  # fmt: skip
    lines = changes(said)
    assert len(lines) == 2, said
    assert "scheduler.params.cycle_max_lr was 0.01 and is 0.5" in lines[0], said
    assert "scheduler.params.cycle_momentum was true and is false" in lines[1], said
    # Nothing in the configuration says what the user's own code made, but its state does.
    folder = os.path.join(work, "steps-2")
    stage, name, params = CASES["steps-2"]
    said, _ = dcp_train(os.path.join(work, "changed-2"), (stage, name, {**params, "gamma": 0.4}),
                        BEFORE + 1, "--resume", folder)  # fmt: skip
    assert len(changes(said)) == 1, said
    assert "scheduler.params.gamma was 0.3 and is 0.4" in said, said
    print("ok: what has changed is told", flush=True)


def check_torch(work):
    """The object in a file of torch.save."""
    for name in ("steps", "annealing", "constant"):
        _, schedule, params = CASES[name]
        run = os.path.join(work, f"{name}-torch")
        dcp_train(run, CASES[name], BEFORE)
        path = os.path.join(work, f"{name}.pt")
        reshard(os.path.join(run, "run"), path, "--to", "torch")
        state = torch.load(path, weights_only=False)
        optimizer = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.zeros(1))]},
                                       {"params": [torch.nn.Parameter(torch.zeros(1))]}],
                                      lr=LR)  # fmt: skip
        made = getattr(torch.optim.lr_scheduler, schedule)(optimizer, **params)
        expected = made.state_dict().keys()
        saved = state["scheduler"]
        assert saved["last_epoch"] == BEFORE and saved["_step_count"] == BEFORE + 1, saved
        assert set(saved) - {"type"} <= set(expected), (saved, expected)
        made.load_state_dict(saved)
        groups = state["optimizer"]["param_groups"]
        rates = []
        for group, lr in zip(optimizer.param_groups, groups):
            group["lr"] = lr["lr"]
        assert made.get_last_lr() == [group["lr"] for group in groups], (saved, groups)
        optimizer.step()
        for _ in range(AFTER):
            rates.append(optimizer.param_groups[1]["lr"])
            made.step()
        _, ours = dcp_train(run, CASES[name], BEFORE + AFTER)
        assert rates == ours[-AFTER:], f"{name}: {rates} in PyTorch, {ours[-AFTER:]} here"
        print(f"ok: {name} to PyTorch", flush=True)


def main():
    with tempfile.TemporaryDirectory(prefix="dcp-schedules-") as work:
        peer.launch(1, save, [(name, os.path.join(work, name)) for name in CASES])
        for name in CASES:
            check_from_deepspeed(name, work)
        check_changes(work)
        check_torch(work)
        jobs = {}
        for name in (name for name, case in CASES.items() if case[0] > 0):
            made, rates = make_for_deepspeed(name, work, "new")
            jobs[made] = name, BEFORE, rates
        made, rates = make_for_deepspeed("cycle", work, "again", "--resume",
                                         os.path.join(work, "cycle"), begin=BEFORE + 1)
        jobs[made] = "cycle", BEFORE + 1, rates
        peer.launch(1, resume, [(name, made) for made, (name, _, _) in jobs.items()])
        for made, (name, first, rates) in jobs.items():
            got = torch.load(os.path.join(made, "got.pt"))
            assert [rate[0] for rate in got] == rates, f"{made}: {got}, here {rates}"
            betas = expected_betas(name, first, AFTER)
            assert [rate[1:] for rate in got] == betas, f"{made}: {got}, expected {betas}"
            print(f"ok: {os.path.basename(made)} in DeepSpeed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
