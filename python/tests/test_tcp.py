"""Ranks without a process group: the environment says where rank 0 is."""

from __future__ import annotations

import os
import pickle
import time

import pytest
from conftest import peer
from ranks import DIED, run_ranks, run_tcp_ranks, told_over_tcp

import libdcp
from libdcp import TcpGroup
from libdcp._tcp import _plain

np = peer("numpy")


def rank():
    return int(os.environ["RANK"])


def state_of(own):
    return {"w": np.arange(12.0).reshape(3, 4) * own, "own": f"of {own}", "step": own}


def train(path, steps):
    """Save on all ranks, in both ways; load what is there."""
    group = libdcp.TcpGroup() if steps == "given" else None
    libdcp.save(state_of(1), path, step=1, group=group)
    state = {**state_of(2), "own": rank()}
    handle = libdcp.save_async(state, path, step=2, group=group)
    state["w"][:] = 0
    libdcp.load({"w": np.zeros((3, 4))}, path, step=1, group=group)
    assert handle.wait().step == 2
    result = libdcp.load(state, path, group=group)
    if group:
        group.close()
    return result.step, result.world_size, state["w"].sum(), state["own"]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("how", ["environment", "given"])
def test_saves_and_loads(tmp_path, world, how):
    told = run_tcp_ranks(world, train, tmp_path / "run", how)
    assert told == [(2, world, 132.0, r) for r in range(world)]
    with libdcp.open(tmp_path / "run") as ckpt:
        assert ckpt.info.world_size == world
        ckpt.verify()


def one_of(path):
    """Each rank holds another tensor, as stages of a pipeline do."""
    state = {f"stage{rank()}": np.full((2, 2), float(rank()))}
    libdcp.save(state, path, step=1)
    state[f"stage{rank()}"][:] = 9
    libdcp.load(state, path)
    return state[f"stage{rank()}"][0, 0]


def test_ranks_hold_different_tensors(tmp_path):
    assert run_tcp_ranks(2, one_of, tmp_path) == [0.0, 1.0]
    with libdcp.open(tmp_path) as ckpt:
        assert set(ckpt) == {"stage0", "stage1"}


class Broken:
    """What cannot say its state."""

    def state_dict(self):
        raise ValueError("not now")

    load_state_dict = None


def fail(path):
    state = {"w": np.zeros(2) if rank() else Broken()}
    try:
        libdcp.save(state, path, step=1)
    except Exception as why:
        return str(why)


def test_what_fails_on_one_fails_on_all(tmp_path):
    first, second = run_tcp_ranks(2, fail, tmp_path)
    assert (first, second) == ("not now", "rank 0 failed: ValueError: not now")


def die(path, where):
    group = libdcp.TcpGroup(timeout=60)
    libdcp.save(state_of(1), path, step=1, group=group)
    if rank() == 1:
        os._exit(0)
    begin = time.monotonic()
    with pytest.raises(libdcp.CommError) as told:
        if where == "save":
            libdcp.save(state_of(2), path, step=2, group=group)
        else:
            libdcp.load(state_of(2), path, group=group)
    return told.value.rank, time.monotonic() - begin < 50


@pytest.mark.parametrize("where", ["save", "load"])
def test_a_dead_rank(tmp_path, where):
    told = told_over_tcp(3, die, tmp_path, where)
    assert told == [((1, True), None), (None, DIED), ((1, True), None)]
    with libdcp.open(tmp_path) as ckpt:
        assert ckpt.info.step == 1


def come_alone():
    if rank() == 1:
        return None
    with pytest.raises(libdcp.CommError, match="rank 1 of 2 did not connect"):
        libdcp.save(state_of(1), "nowhere", step=1, group=libdcp.TcpGroup(timeout=0.3))
    return "told"


def test_a_rank_that_does_not_come():
    assert run_tcp_ranks(2, come_alone) == ["told", None]


def both(path):
    os.environ |= {"WORLD_SIZE": "7", "RANK": "3"}  # of whoever started the job
    libdcp.save(state_of(1), path, step=1)


def test_a_process_group_goes_before_the_environment(tmp_path):
    peer("torch")
    run_ranks(2, both, tmp_path)
    with libdcp.open(tmp_path) as ckpt:
        assert ckpt.info.world_size == 2


def test_an_argument_goes_before_all(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(libdcp.UsageError, match="RANK is not set"):
        libdcp.save(state_of(1), tmp_path, step=1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(libdcp.UsageError, match=r"do not say where rank 0 is.*\n.*alone"):
        libdcp.save(state_of(1), tmp_path, step=1)
    libdcp.save(state_of(1), tmp_path, step=1, group="alone")
    libdcp.save(state_of(1), tmp_path, step=2, group=libdcp.TcpGroup(0, 1))
    with pytest.raises(libdcp.UsageError, match="not 'alon'"):
        libdcp.save(state_of(1), tmp_path, step=3, group="alon")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(libdcp.UsageError, match="WORLD_SIZE is 'two'"):
        libdcp.load(state_of(1), tmp_path)


def fork(path):
    libdcp.save(state_of(1), path / "run", step=1)
    pid = os.fork()
    if pid == 0:  # it is none of the ranks, and saves by itself
        libdcp.save(state_of(1), path / f"child{rank()}", step=1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    libdcp.save(state_of(2), path / "run", step=2)
    return status


def test_a_forked_child_is_no_rank(tmp_path):
    assert run_tcp_ranks(2, fork, tmp_path) == [0, 0]
    for name, world in ("child0", 1), ("child1", 1), ("run", 2):
        with libdcp.open(tmp_path / name) as ckpt:
            assert ckpt.info.world_size == world


def test_what_ranks_say_runs_nothing():
    said = ("text", 1, {"a": (b"x", True)}, {"set"}, None)
    assert _plain(pickle.dumps(said, protocol=4)) == said
    with pytest.raises(libdcp.CommError, match=r"posix.system"):
        _plain(pickle.dumps(os.system))


def secret(path):
    group = libdcp.TcpGroup(secret=f"{rank()} is not what the others know", timeout=1)
    with pytest.raises(libdcp.CommError, match=r"another secret|answer"):
        libdcp.save(state_of(1), path, step=1, group=group)


def test_a_secret_is_of_all(tmp_path, monkeypatch):
    run_tcp_ranks(2, secret, tmp_path)
    file = tmp_path / "secret"
    file.write_text("so says the file of all ranks\n", encoding="utf-8")
    monkeypatch.setenv("DCP_JOB_SECRET_FILE", str(file))
    assert TcpGroup(0, 1)._secret == "so says the file of all ranks"
    assert run_tcp_ranks(2, train, tmp_path / "run", "environment")[0][0] == 2
