"""Where the files of other programs lie, and what several tests start from."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pathlib
import shutil
from typing import Any

import pytest

import libdcp

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "formats" / "data"
BIN = pathlib.Path(os.environ.get("DCP_BIN_DIR", ROOT / "build" / "bin"))


def peer(name: str) -> Any:
    """A package of the peers; without it the test is skipped, and CI fails."""
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(
            f"no peers ({name} is missing; ./scripts/test.sh makes them)",
            allow_module_level=True,
        )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def expected() -> list[tuple[str, dict[str, Any]]]:
    """Files of other programs with their tensors: see tests/formats/data."""
    found = []
    for folder in ("fsdp", "gguf", "hf-trainer", "npy", "safetensors", "torch"):
        told = json.loads((DATA / folder / "expected.json").read_text(encoding="utf-8"))
        for name, facts in told["files"].items():
            if facts["verdict"] == "accept":
                found.append((f"{folder}/{name}", facts))
    told = json.loads((DATA / "deepspeed" / "expected.json").read_text(encoding="utf-8"))
    return found + [(f"deepspeed/{name}", facts) for name, facts in told.items()]


@pytest.fixture(scope="session")
def wheel() -> pathlib.Path:
    """The wheel that is installed."""
    found = sorted((ROOT / "build" / "dist").glob("libdcp-*.whl"))
    if not found:
        pytest.skip("no peers (no wheel in build/dist; ./scripts/test.sh makes it)")
    (path,) = found
    return path


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    """A run folder with one step of 4 ranks, ZeRO-3, and a parity file."""
    libdcp.reshard(
        DATA / "version-0.1.0" / "native", tmp_path / "step-00000010", parity=1
    )
    return tmp_path


def flip(path: pathlib.Path, at: int = -20) -> None:
    """Damage a byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture
def damaged(run: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A step with a corrupt shard, and nothing to read it through."""
    target = tmp_path / "damaged"
    shutil.copytree(run / "step-00000010", target)
    (target / "parity-00000-of-00001.bin").unlink()
    flip(target / "shard-00002-of-00004.safetensors")
    return target


@pytest.fixture
def accelerate_anew():
    """Let forked ranks of other tests begin anew."""
    yield
    accelerate = peer("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
