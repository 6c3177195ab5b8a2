"""The code in docs/PYTHON.md runs, block after block."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from conftest import DATA, ROOT, peer

import libdcp

TEXT = (ROOT / "docs" / "PYTHON.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


class Bar:
    """In place of tqdm, which may be missing."""

    def __init__(self, total: int, **how: object) -> None:
        self.total, self.n = total, 0

    def update(self, n: int) -> None:
        self.n += n

    def close(self) -> None:
        assert self.n == self.total


@pytest.fixture
def torch():
    return peer("torch")


def sides(block):
    """What a diff takes away, and what it puts there."""
    lines = block.splitlines()
    return ["\n".join(line[1:] for line in lines if line[0] == s) for s in "-+"]


@pytest.mark.parametrize("title", ["torch.save", "torch.distributed.checkpoint"])
def test_both_sides_of_a_move(torch, tmp_path, monkeypatch, title):
    """The save and the load of before, then those of libdcp: both bring all back."""
    monkeypatch.chdir(tmp_path)
    part = TEXT.split(f"### From {title}\n")[1].split("### ")[0]
    diffs = re.findall(r"^```diff\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    saves, loads = map(sides, diffs)
    dcp = peer("torch.distributed.checkpoint")
    for save, load in zip(saves, loads):
        model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
        optim = torch.optim.AdamW(model.parameters())
        model(torch.arange(8)).sum().backward()
        optim.step()
        place = {"torch": torch, "dcp": dcp, "libdcp": libdcp}
        place |= {"model": model, "optim": optim, "step": 3}
        exec(save, place)
        before = [w.clone() for w in model.parameters()]
        moments = [optim.state[w]["exp_avg"].clone() for w in model.parameters()]
        optim.step()
        place.pop("state", None)
        exec(load, place)
        assert place["step"] == 3
        assert all(map(torch.equal, model.parameters(), before))
        after = [optim.state[w]["exp_avg"] for w in model.parameters()]
        assert all(map(torch.equal, after, moments))


def test_plugins_need_no_import_of_their_own():
    """The lines of README.md and of the table are written after `import libdcp`."""
    named = set(re.findall(r"\blibdcp\.([a-z_]+)(?:`|\.[A-Z])", TEXT))
    assert named >= {"torch", "lightning", "torchtitan"}, named
    for name in {*named, *libdcp._PLUGINS}:
        code = f"import libdcp; libdcp.{name}; libdcp.nothing"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True
        )
        assert "module 'libdcp' has no attribute 'nothing'" in done.stderr, done.stderr


def test_code_runs(torch, tmp_path, monkeypatch, capsys):
    native = DATA / "version-0.1.0" / "native"
    monkeypatch.chdir(tmp_path)
    libdcp.reshard(native, "run/step-00000010")
    libdcp.reshard(native, "global_step1000", to="deepspeed", world_size=2)
    libdcp.reshard(native, "fsdp", to="torch-dist", world_size=2)
    with libdcp.open(native) as ckpt:
        (tmp_path / "config.json").write_text(json.dumps(ckpt.objects["model_config"]))
    loaded = []

    class Model:
        def load_state_dict(self, state):
            loaded.append(set(state))

    place = {"libdcp": libdcp, "torch": torch, "tqdm": Bar, "model": Model()}
    for block in BLOCKS:
        exec(compile(block, "docs/PYTHON.md", "exec"), place)
    assert len(BLOCKS) >= 5
    with libdcp.open("from-deepspeed") as moved, libdcp.open("global_step1000") as old:
        for kind in "exp_avg", "exp_avg_sq":
            name = f"optimizer.{kind}.transformer.h.0.attn.c_attn.weight"
            assert moved.fingerprint(name) == old.fingerprint(name)
    with libdcp.open("run") as ckpt:
        (names,) = loaded
        assert names >= set(ckpt.state_dict())
    for made in ("four", "model.safetensors", "eight", "dist", "model.bin", "hf"):
        assert len(libdcp.open(made)) > 10, made
