"""A venv in which PyTorch is not installed: states are of NumPy, ranks talk over TCP."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys

import pytest
from conftest import peer

import libdcp

np = peer("numpy")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def python(tmp_path_factory, wheel):
    """With libdcp and NumPy, and nothing else."""
    venv = tmp_path_factory.mktemp("no-torch") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    interpreter = venv / "bin" / "python"
    subprocess.run(
        [*PIP, "--python", interpreter, "install", "--quiet", "--no-index", wheel],
        check=True,
    )
    (site,) = (venv / "lib").glob("python*/site-packages")
    for module in np, peer("ml_dtypes"):
        package = pathlib.Path(module.__file__).parent
        for name in package.name, f"{package.name}.libs":
            if (package.parent / name).exists():
                (site / name).symlink_to(package.parent / name)
    return interpreter


def run_ranks(python, world, code, *args):
    """What each of the ranks says."""
    code = f"import sys, numpy as np, libdcp\n{code}\nassert 'torch' not in sys.modules"
    with socket.create_server(("127.0.0.1", 0)) as agent:
        told = {"WORLD_SIZE": world, "MASTER_PORT": agent.getsockname()[1]}
        env = {name: str(value) for name, value in told.items()}
        ranks = [
            subprocess.Popen(
                [python, "-c", code, *map(str, args)],
                env={**os.environ, **env, "MASTER_ADDR": "127.0.0.1", "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world
    return said


SAVE = """
try:
    import torch
    raise SystemExit("there is a torch")
except ImportError:
    pass
path = sys.argv[1]
state = {
    "w": np.arange(12, dtype=np.float32).reshape(3, 4),
    "deep": {"list": [np.full((), 2.5), "text"], "half": np.ones(3, "f2")},
    "columns": np.arange(12).reshape(3, 4).T,
    "big": np.arange(5, dtype=">i4"),
    "mask": np.array([True, False]),
    "none": np.zeros((0, 3), ">f4"),
    "random": np.random.RandomState(1).get_state(),
    "step": 3,
}
libdcp.save(state, path, step=3)
handle = libdcp.save_async({**state, "step": 4}, path, step=4, keep=1)
state["w"] += 1
print(handle.wait().step)
"""

LOAD = """
state = {
    "w": np.zeros((4, 3), np.float32).T,
    "deep": {"list": [np.zeros(()), ""], "half": np.zeros(3, "f2")},
    "columns": np.zeros((4, 3), int),
    "big": np.zeros(5, ">i4"),
    "mask": np.zeros(2, bool),
    "none": np.zeros((0, 3), ">f4"),
    "random": None,
    "step": 0,
}
w = state["w"]
print(libdcp.load(state, sys.argv[1], trust_pickles=True).world_size)
assert state["w"] is w and (w == np.arange(12).reshape(3, 4)).all()
assert state["deep"]["list"][0] == 2.5 and state["deep"]["list"][1] == "text"
assert (state["deep"]["half"] == 1).all()
assert (state["columns"] == np.arange(12).reshape(3, 4).T).all()
assert state["big"].dtype == np.dtype(">i4") and (state["big"] == np.arange(5)).all()
assert state["mask"].tolist() == [True, False]
again = np.random.RandomState()
again.set_state(state["random"])
assert again.randint(1000) == np.random.RandomState(1).randint(1000)
print(state["step"])
"""


@pytest.mark.parametrize("world", [1, 2])
def test_arrays_are_saved_and_loaded_in_place(python, tmp_path, world):
    run = tmp_path / "run"
    assert run_ranks(python, world, SAVE, run) == ["4\n"] * world
    for others in 1, 2:
        assert run_ranks(python, others, LOAD, run) == [f"{world}\n4\n"] * others
    with libdcp.open(run) as ckpt:
        ckpt.verify()
        assert ckpt["big"].numpy().tolist() == [0, 1, 2, 3, 4]
        assert (ckpt["deep.half"].dtype, ckpt["columns"].shape) == ("float16", (4, 3))


REFUSED = """
path = sys.argv[1]
libdcp.save({"w": np.ones(3, np.float32)}, path, step=1, group="alone")
fixed = np.zeros(3, np.float32)
fixed.flags.writeable = False
for state in {"w": fixed}, {"w": np.zeros(4, np.float32)}, {"w": np.zeros(3)}:
    try:
        libdcp.load(state, path)
    except libdcp.Error as why:
        print(type(why).__name__)
"""


def test_what_an_array_cannot_take(python, tmp_path):
    told = run_ranks(python, 1, REFUSED, tmp_path / "run")
    assert told[0].split() == ["UsageError", "MismatchError", "MismatchError"]


SHORT = """
import ml_dtypes
w = np.arange(4).astype(ml_dtypes.bfloat16)
libdcp.save({"w": w}, sys.argv[1], step=1)
again = np.zeros(4, ml_dtypes.bfloat16)
libdcp.load({"w": again}, sys.argv[1])
assert (again == w).all()
with libdcp.open(sys.argv[1]) as ckpt:
    print(ckpt["w"].dtype, ckpt["w"].numpy().tolist())
    sys.modules["ml_dtypes"] = None
    try:
        ckpt["w"].numpy()
    except libdcp.UnsupportedError as why:
        print(why.hint)
"""


def test_short_floats_are_those_of_ml_dtypes(python, tmp_path):
    told, hint = run_ranks(python, 1, SHORT, tmp_path)[0].splitlines()
    assert told == "bfloat16 [0.0, 1.0, 2.0, 3.0]"
    assert "pip install ml_dtypes" in hint


DIFFER = """
import os
key = np.full(624, int(os.environ["RANK"]), np.uint32)
try:
    libdcp.save({"rng": {"key": key}}, sys.argv[1], step=1)
except libdcp.MismatchError as why:
    print(why.tensor)
"""


def test_generators_of_ranks_are_not_one(python, tmp_path):
    assert run_ranks(python, 2, DIFFER, tmp_path) == ["rng.key\n"] * 2


def test_with_torch(tmp_path):
    """Arrays and tensors in one state."""
    torch = peer("torch")
    state = {"a": np.arange(3.0), "t": torch.arange(3.0), "both": (torch.ones(2),)}
    libdcp.save(state, tmp_path, step=1)
    loaded = {"a": np.zeros(3), "t": torch.zeros(3), "both": (torch.zeros(2),)}
    libdcp.load(loaded, tmp_path)
    assert (loaded["a"] == state["a"]).all() and torch.equal(loaded["t"], state["t"])
    libdcp.load(loaded | {"a": torch.zeros(3, dtype=torch.float64)}, tmp_path)
