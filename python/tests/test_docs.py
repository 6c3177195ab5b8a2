"""The code in docs/PYTHON.md runs, block after block."""

from __future__ import annotations

import re

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


def test_code_runs(torch, tmp_path, monkeypatch, capsys):
    native = DATA / "version-0.1.0" / "native"
    monkeypatch.chdir(tmp_path)
    libdcp.reshard(native, "run/step-00000010")
    libdcp.reshard(native, "global_step1000", to="deepspeed", world_size=2)
    libdcp.reshard(native, "fsdp", to="torch-dist", world_size=2)
    loaded = []

    class Model:
        def load_state_dict(self, state):
            loaded.append(set(state))

    place = {"libdcp": libdcp, "torch": torch, "tqdm": Bar, "model": Model()}
    for block in BLOCKS:
        exec(compile(block, "docs/PYTHON.md", "exec"), place)
    assert len(BLOCKS) >= 5
    with libdcp.open("run") as ckpt:
        (names,) = loaded
        assert names >= set(ckpt.state_dict())
    for made in ("four", "model.safetensors", "eight", "dist", "model.bin", "hf"):
        assert len(libdcp.open(made)) > 10, made
