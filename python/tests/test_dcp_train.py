"""Steps of dcp-train go on in PyTorch: a GPT-2 of transformers has the losses that
dcp-train itself has after the same step, and that only with its optimizer state."""

from __future__ import annotations

import json
import subprocess

import pytest
from conftest import BIN, peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
peer("torch.distributed.checkpoint.state_dict")  # once, not in each rank
peer("torch.distributed.fsdp")
GPT2 = peer("transformers.models.gpt2.modeling_gpt2")

SEQ, SAMPLES, SAVED, END = 32, 8, 5, 9
TEXT = bytes(range(32, 127)) * 3  # eight samples, all in one batch: no order matters
SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": SEQ, "vocab_size": 256}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run, and the losses of the steps after the one that goes on."""
    work = tmp_path_factory.mktemp("dcp-train")
    (work / "text.bin").write_bytes(TEXT[: SEQ * SAMPLES + 1])
    config = {
        "train_batch_size": SAMPLES,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3},
        "seed": 5,
        "model": {"family": "gpt2", **SIZES},
        "data": {"train": "text.bin", "tokenizer": "bytes", "seq_len": SEQ},
        "checkpoint": {"dir": str(work / "run"), "save_every": SAVED},
    }
    (work / "config.json").write_text(json.dumps(config), encoding="utf-8")
    how = ("--config", work / "config.json", "--ranks", "2", "--steps", str(END))
    subprocess.run([BIN / "dcp-train", *how], check=True, capture_output=True)
    lines = (work / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = {line["step"]: line["loss"] for line in map(json.loads, lines)}
    return work / "run", [losses[step] for step in range(SAVED + 1, END + 1)]


def make(shard=False):
    """A GPT-2 with tied weights, and the groups of parameters that dcp-train makes."""
    config = GPT2.GPT2Config(
        **SIZES,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    model = GPT2.GPT2LMHeadModel(config).float()
    if shard:
        torch.distributed.fsdp.fully_shard(model)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.5},
    ]
    return model, torch.optim.AdamW(groups, lr=1.0)


def train(model, optim):
    torch.set_num_threads(1)
    tokens = torch.tensor(list(TEXT))
    starts = range(0, SEQ * SAMPLES, SEQ)
    inputs = torch.stack([tokens[i : i + SEQ] for i in starts])
    targets = torch.stack([tokens[i + 1 : i + SEQ + 1] for i in starts])
    losses = []
    for _ in range(SAVED, END):
        logits = model(inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
    return losses


def go_on(run, shard):
    """What is in the dict of settings is the step's: rate, decay, count of updates."""
    model, optim = make(shard)
    libdcp.load({"model": model, "optim": optim}, run, step=SAVED)
    assert {s["step"].item() for s in optim.state.values()} == {SAVED}
    assert [(g["lr"], g["weight_decay"]) for g in optim.param_groups] == [
        (3e-3, 0.0),
        (3e-3, 0.1),
    ]
    return train(model, optim)


@pytest.mark.parametrize("world", [1, 2], ids=["plain", "fsdp"])
def test_goes_on(trained, world):
    run, losses = trained
    told = run_ranks(2, go_on, run, True) if world > 1 else [go_on(run, False)]
    for got in told:
        assert got == pytest.approx(losses, rel=1e-6)


def test_weights_alone_go_elsewhere(trained):
    """The judge tells a lost optimizer state."""
    run, losses = trained
    model, _ = make()
    libdcp.load({"model": model}, run, step=SAVED)
    _, optim = make()
    optim = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    got = train(model, optim)
    assert got[0] == pytest.approx(losses[0], rel=1e-6)
    assert got[2:] != pytest.approx(losses[2:], rel=1e-3)


def test_other_groups(trained):
    """Decay of other weights than the step's is not taken for the same."""
    run, _ = trained
    model, _ = make()
    weights = list(model.parameters())
    for groups in ([weights], [weights[:5], weights[5:]]):
        optim = torch.optim.AdamW([{"params": group} for group in groups])
        with pytest.raises(libdcp.MismatchError, match="group"):
            libdcp.load({"model": model, "optim": optim}, run)


def test_what_else_is_missing_is_said(trained):
    """Only what follows from the step may be missing."""
    run, _ = trained
    model, optim = make()
    for group in optim.param_groups:
        group["amsgrad"] = True
    with pytest.raises(libdcp.MismatchError, match="max_exp_avg_sq"):
        libdcp.load({"model": model, "optim": optim}, run)
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(libdcp.MismatchError, match=r"extra\.weight"):
        libdcp.load({"model": model}, run)


@pytest.mark.parametrize("way", [["universal"], ["deepspeed", "native"]])
def test_dcp_train_takes_masters_for_weights(trained, tmp_path, way):
    """And does not warn then of weights that it has not."""
    run, losses = trained
    source = run / f"step-{SAVED:08}"
    for to in way:
        source, old = tmp_path / to, source
        libdcp.reshard(old, source, to=to, layout="zero1")
    config = json.loads((run.parent / "config.json").read_text(encoding="utf-8"))
    config["checkpoint"]["dir"] = str(tmp_path / "run")
    config["zero_optimization"]["stage"] = 1
    path = run.parent / f"{way[0]}.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    how = ("--config", path, "--ranks", "2", "--steps", str(END), "--resume", source)
    said = subprocess.run(
        [BIN / "dcp-train", *how], check=True, capture_output=True, text=True
    ).stderr
    assert "the model has not" not in said
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    got = [line["loss"] for line in map(json.loads, lines) if "loss" in line]
    assert got == pytest.approx(losses, rel=1e-6)
