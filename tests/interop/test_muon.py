# labels: interop
"""Muon between dcp-train and the real DeepSpeed, whose ZeRO 1 and 2 keep of every rank the
momenta of whole matrices, and of the largest matrices first.

1. What dcp-train trained goes on in DeepSpeed, with the losses of dcp-train itself.
2. What DeepSpeed trained is read, every momentum bit for bit; it goes on in dcp-train, and
   in DeepSpeed at other stages and ranks, with the losses that it goes on with.

The text is one letter, so that every sample is the same. DeepSpeed makes momenta orthogonal
in fp16, dcp-train in fp32: here DeepSpeed's code has fp32, too."""

import json
import os
import subprocess
import sys
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what DeepSpeed compiles is slower to come than to run

import deepspeed_peer as peer
import torch
import transformers
from deepspeed.runtime.zero.muon import muon_optimizer, original_muon
from programs import BIN, reshard

SEQ, BEFORE, AFTER, LETTER = 8, 3, 3, ord("a")
GPT2 = {"n_layer": 1, "n_head": 3, "n_embd": 9, "n_positions": SEQ, "vocab_size": 256}
CUT = ("offload", "bf16-sums")  # where DeepSpeed keeps momenta as it keeps weights
MUON = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
ADAM = {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-10}
original_muon.ns_compute_dtype = lambda method="gram": torch.float32

#     name: stage, configuration, then the stage at which a checkpoint of it goes on
OWN = {
    "round": (2, {"bf16": {"enabled": True},
                  "zero_optimization": {"round_robin_gradients": True}}, 3),
    "aligned": (1, {"zero_optimization": {"parameter_alignment": True}}, 2),
    "offload": (2, {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, 2),
    "bf16-sums": (1, {"bf16": {"enabled": True},
                      "data_types": {"grad_accum_dtype": "fp32"}}, 1),
}


def model_of(seed=0):
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager", **GPT2))


def groups_of(model):
    """As dcp-train has them."""
    hidden = {n for n, w in model.named_parameters() if w.ndim == 2 and ".h." in n}
    muon, matrices, rest = [], [], []
    for name, weight in model.named_parameters():
        weight.use_muon = name in hidden
        (muon if weight.use_muon else matrices if weight.ndim == 2 else rest).append(weight)
    return [{"params": muon, "use_muon": True, **MUON},
            {"params": matrices, "use_muon": False, "weight_decay": 0.1, **ADAM},
            {"params": rest, "use_muon": False, "weight_decay": 0.0, **ADAM}]


def engine_of(stage, world, own, seed=0):
    """DeepSpeed's; `own`, a configuration: it finds the matrices itself, by their names."""
    model = model_of(seed)
    config = {"train_batch_size": 6, "train_micro_batch_size_per_gpu": 6 // world,
              "gradient_clipping": 0.0,
              "zero_optimization": {"stage": stage, "reduce_scatter": False}}
    if own is not None:
        zero = {**config["zero_optimization"], **own.get("zero_optimization", {})}
        config = {**config, **own, "zero_optimization": zero}
        config["optimizer"] = {"type": "Muon", "params": {
            **MUON, "adam_lr": 0.01, "torch_adam": True}}
        return peer.deepspeed.initialize(model=model, config=config)[0]
    optimizer = muon_optimizer.MuonWithAuxAdam(groups_of(model))
    return peer.deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(engine, world, n):
    tokens = torch.full((6 // world, SEQ), LETTER)
    losses = []
    for _ in range(n):
        logits = engine(tokens).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def momenta_of(engine, names):
    """By name, of the matrices of which this rank of ZeRO 1 or 2 has a part."""
    optimizer, found = engine.optimizer, {}
    for g, group in enumerate(optimizer.optimizer.param_groups):
        flat = optimizer.optimizer.state[group["params"][0]].get("momentum_buffer")
        if flat is None:
            continue
        for param in optimizer.params_in_partition[g]:
            found[names[param]], flat = flat[:param.numel()].clone(), flat[param.numel():]
    return found


def save(rank, world, stage, folder, own):
    engine = engine_of(stage, world, own)
    names = {p: n for n, p in engine.module.named_parameters()}
    train(engine, world, BEFORE)
    engine.save_checkpoint(folder)
    momenta = {} if stage == 3 or folder in CUT else momenta_of(engine, names)
    torch.save(momenta, os.path.join(folder, f"momenta-{rank}.pt"))
    losses = train(engine, world, AFTER)
    if rank == 0:
        torch.save(losses, os.path.join(folder, "losses.pt"))


def resume(rank, world, stage, folder, own):
    engine = engine_of(stage, world, own, seed=5)
    path, _ = engine.load_checkpoint(folder)
    assert path, "DeepSpeed found nothing to load"
    losses = train(engine, world, AFTER)
    if rank == 0:
        torch.save(losses, os.path.join(folder, "got.pt"))


def all_of(rank, world, jobs):
    for act, stage, folder, own in jobs:
        act(rank, world, stage, folder, own)



def dcp_train(run, steps, *arguments, ranks=1):
    """The losses in the run folder, by step, and what was said."""
    optimizer = {"type": "Muon", "params": {
        "muon_lr": MUON["lr"], "adam_lr": ADAM["lr"], "betas": ADAM["betas"],
        "momentum": MUON["momentum"], "weight_decay": MUON["weight_decay"]}}
    config = {"model": GPT2, "data": {"train": "text.txt", "seq_len": SEQ},
              "train_batch_size": 6, "train_micro_batch_size_per_gpu": 1,
              "gradient_clipping": 0, "checkpoint": {"dir": run}, "optimizer": optimizer}
    with open("c.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    done = subprocess.run(
        [os.path.join(BIN, "dcp-train"), "--config", "c.json", "--ranks", str(ranks),
         "--steps", str(steps), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as lines:
        losses = {line["step"]: line["loss"] for line in map(json.loads, lines)}
    return [losses[step] for step in sorted(losses)], done.stdout + done.stderr


def near(got, want, what, relative=2e-5):
    assert len(got) == len(want) >= 2, f"{what}: {got}, not {want}"
    off = max(abs(a - b) for a, b in zip(got, want))
    assert off < relative * (want[0] + 0.1), f"{what}: {got}, not {want}"
    print(f"ok: {what}", flush=True)


def check_momenta(folder):
    """What is read of a checkpoint are the momenta that DeepSpeed had."""
    reshard(folder, folder + ".pt", "torch")
    read = torch.load(folder + ".pt", weights_only=False)
    for rank in range(2):
        for name, flat in torch.load(os.path.join(folder, f"momenta-{rank}.pt")).items():
            held = read["optimizer.momentum_buffer." + name]
            assert torch.equal(held.flatten(), flat), f"{folder}: {name} differs"


def main():
    with open("text.txt", "w", encoding="utf-8") as text:
        text.write(chr(LETTER) * 4000)
    dcp_train("run", BEFORE, ranks=2)
    jobs = [(save, stage, name, config) for name, (stage, config, _) in OWN.items()]
    for stage in (1, 2, 3):
        made = f"made{stage}"
        reshard("run", made, "deepspeed", "--world", 2, "--layout", f"zero{stage}")
        jobs.append((resume, stage, made, None))
    jobs += [(save, stage, f"theirs{stage}", None) for stage in (2, 3)]
    peer.launch(2, all_of, jobs)
    here, _ = dcp_train("run", BEFORE + AFTER)
    for stage in (1, 2, 3):
        near(torch.load(f"made{stage}/got.pt"), here[BEFORE:],
             f"a step of dcp-train in DeepSpeed at stage {stage}")
    for stage in (2, 3):
        theirs = f"theirs{stage}"
        check_momenta(theirs)
        losses, said = dcp_train(f"run{stage}", BEFORE + AFTER, "--resume", theirs, ranks=2)
        assert "start from zero" not in said, said
        near(losses, torch.load(f"{theirs}/losses.pt"),
             f"DeepSpeed at stage {stage} in dcp-train")

    jobs = []
    for name, (_, config, stage) in OWN.items():
        check_momenta(name)
        made = name + "-made"
        reshard(name, made, "deepspeed", "--world", 3, "--layout", f"zero{stage}")
        jobs.append((resume, stage, made, config))
    peer.launch(3, all_of, jobs)
    for name, (stage, config, then) in OWN.items():
        # In bf16 the sums of 2 and of 3 ranks round apart, and each step widens that: it
        # is the first step from the state that tells whether it came over.
        until, relative = (2, 1e-4) if "bf16" in config else (AFTER, 2e-5)
        near(torch.load(f"{name}-made/got.pt")[:until],
             torch.load(f"{name}/losses.pt")[:until],
             f"{name}: DeepSpeed from stage {stage} of 2 ranks to stage {then} of 3",
             relative)
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="dcp-muon-") as work:
        os.chdir(work)
        try:
            sys.exit(main())
        finally:
            os.chdir("/")
