"""Going back to an older step: training goes on from there, and so does the next load."""

from __future__ import annotations

import os
import warnings

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

np = peer("numpy")


def steps(path):
    return sorted(name for name in os.listdir(path) if name.startswith("step-"))


def saved(path, *numbers, **how):
    for n in numbers:
        libdcp.save({"w": np.full(5000, float(n)), "step": n}, path, step=n, **how)


def found(path, **how):
    state = {"w": np.zeros(5000), "step": 0}
    result = libdcp.load(state, path, **how)
    assert state["w"].tolist() == [float(state["step"])] * 5000
    assert result.step == state["step"]
    return state["step"]


@pytest.mark.parametrize("delta", [0, 2, 3])
def test_the_new_course_is_followed(tmp_path, delta):
    """Also where the step that the next one would be a delta on is set aside."""
    run = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved(run, 100, 110, 120, 130, delta=delta)
    with pytest.warns(RuntimeWarning, match="step-00000130 is no part of the run any"):
        assert found(run, step=110, rewind=True) == 110
    assert steps(run) == [
        "step-00000100",
        "step-00000110",
        "step-00000120.aside",
        "step-00000130.aside",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved(run, 113, 120, delta=delta)
        assert found(run) == 120
        assert found(run, rewind=True) == 120  # nothing lies above it
    for name in steps(run):
        assert libdcp.open(run / name).verify().n_unproved == 0


def test_without_it_the_save_warns(tmp_path):
    """Of the first save below, in this process and in another one."""
    saved(tmp_path, 10, 20)
    said = "step 13 is saved below step 20, which a load takes as the newest"
    with pytest.warns(RuntimeWarning, match=said) as told:
        saved(tmp_path, 13)
    assert [w.filename for w in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved(tmp_path, 16)
    assert found(tmp_path) == 20
    libdcp._saver._savers[None].close()  # as another process has none
    with pytest.warns(RuntimeWarning, match="step 17 is saved below step 20"):
        saved(tmp_path, 17)


class Refuses:
    """An object that takes no state."""

    def state_dict(self):
        return {"n": 1}

    def load_state_dict(self, state):
        raise ValueError("not mine")


def test_a_load_that_fails_sets_nothing_aside(tmp_path):
    libdcp.save({"w": np.ones(3), "o": Refuses()}, tmp_path / "own", step=1)
    libdcp.save({"w": np.ones(3), "o": Refuses()}, tmp_path / "own", step=2)
    with pytest.raises(ValueError, match="not mine"):
        into = {"w": np.zeros(3), "o": Refuses()}
        libdcp.load(into, tmp_path / "own", step=1, rewind=True)
    assert steps(tmp_path / "own") == ["step-00000001", "step-00000002"]
    saved(tmp_path, 1, 2)
    with pytest.raises(libdcp.MismatchError):
        libdcp.load({"w": np.zeros(3)}, tmp_path, step=1, rewind=True)
    assert steps(tmp_path) == ["step-00000001", "step-00000002"]


def go_back(path):
    dist = peer("torch.distributed")
    torch = peer("torch")
    state = {"w": torch.ones(4), f"own{dist.get_rank()}": torch.ones(2), "step": 0}
    for n in (1, 2, 3):
        state["step"] = n
        state["w"] += 1
        libdcp.save(state, path, step=n)
    libdcp.load(state, path, step=1, rewind=True)
    state["w"] += 7
    libdcp.save(state, path, step=2)
    state["w"].zero_()
    return libdcp.load(state, path).step, state["w"].tolist()


def test_ranks(tmp_path):
    assert run_ranks(2, go_back, str(tmp_path)) == [(2, [9.0] * 4)] * 2
    assert steps(tmp_path) == [
        "step-00000001",
        "step-00000002",
        "step-00000002.aside",
        "step-00000003.aside",
    ]
