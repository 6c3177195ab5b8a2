"""Saves that go on in the background while training does."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from datetime import timedelta

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp
from libdcp import _saver, _state, _training

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.checkpoint.state_dict")
peer("torch.distributed.tensor")

MIB = 1 << 20


def loaded(path, step=None, n=4):
    state = {"w": torch.zeros(n)}
    libdcp.load(state, path, step=step)
    return state["w"].tolist()


def train_beside(path):
    """Each rank goes on, with collectives of its own, and changes what is saved."""
    state = {"w": torch.arange(4.0), "big": torch.ones(MIB), "step": 1}
    handles = []
    for step in (1, 2):
        handles.append(libdcp.save_async(state, path, step=step))
        for _ in range(20):
            dist.all_reduce(torch.ones(1000))
            state["w"] += 1
    assert handles[0].done()  # the second one waited for it
    results = [handle.wait() for handle in handles]
    assert handles[1].done() and handles[1].result is results[1]
    libdcp.save(state, path, step=3)
    return [(r.step, r.fingerprint is not None) for r in results]


def test_training_goes_on(tmp_path):
    run = tmp_path / "run"
    told = run_ranks(2, train_beside, run)
    assert told == [[(1, True), (2, True)], [(1, False), (2, False)]]
    for step in (1, 2, 3):
        assert loaded(run, step) == [n + 20 * (step - 1) for n in range(4)]


def test_a_save_waits_for_the_one_before(tmp_path):
    """So do a save in the foreground, and a load."""
    run, state = tmp_path / "run", {"w": torch.zeros(16 * MIB)}
    handle = libdcp.save_async(state, run, step=1)
    state["w"] += 1
    libdcp.save(state, run, step=2)
    assert handle.done()
    state["w"] += 1
    libdcp.save_async(state, run, step=3)
    assert libdcp.load(state, run).step == 3


def faults(state, path, step):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    handle = libdcp.save_async(state, path, step=step)
    n = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    handle.wait()
    state["w"] += 1
    return n


def test_staging_memory_is_kept(tmp_path):
    state = {"w": torch.zeros(16 * MIB)}
    first = faults(state, tmp_path / "run", 1)
    assert first > 64 * MIB // 4096 // 2
    assert max(faults(state, tmp_path / "run", step) for step in (2, 3)) < first / 8


def fail(path, n):
    """Rank 1 may write no file as large as its own, which nobody knows beforehand."""
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
    mine = {"w": torch.ones(4), f"big{dist.get_rank()}": torch.ones(n)}
    handle = libdcp.save_async(mine, path, step=1)
    with pytest.raises(libdcp.IoError) as first:
        handle.wait()
    with pytest.raises(libdcp.IoError):
        handle.wait()
    assert handle.done()
    libdcp.save_async({"w": torch.ones(4)}, path, step=1).wait()
    return first.value.message, first.value.rank


def test_all_ranks_raise_the_same():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as run:  # where no room is reserved
        told = run_ranks(2, fail, run, MIB)
        assert told[0] == told[1]
        assert told[0][1] == 1
        assert loaded(run) == [1] * 4


def test_what_fails_unheard_is_told(tmp_path):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as run:
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, old[1]))
        try:
            handle = libdcp.save_async({"w": torch.ones(MIB)}, run, step=1)
            handle._ended.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        with pytest.warns(RuntimeWarning, match="step 1 was not saved"):
            libdcp.save({"w": torch.ones(4)}, run, step=2)


def die(path):
    """Rank 1 is gone while a save is in the background."""
    handle = libdcp.save_async({"w": torch.ones(16 * MIB)}, path, step=1)
    if dist.get_rank() == 1:
        os._exit(0)
    with pytest.raises(libdcp.CommError, match="could not talk"):
        handle.wait(60)
    (path / "told").write_text("x", encoding="ascii")


def test_a_dead_rank(tmp_path):
    with pytest.raises(AssertionError, match="the rank died"):
        run_ranks(2, die, tmp_path)
    assert (tmp_path / "told").exists()
    assert not list(tmp_path.glob("step-*"))


def die_before(path):
    """Rank 1 is gone before the first of such saves, for which a group is made."""
    group = dist.new_group(timeout=timedelta(seconds=20), backend="gloo")
    if dist.get_rank() == 1:
        os._exit(0)
    with pytest.raises(libdcp.CommError, match="could not talk"):
        libdcp.save_async({"w": torch.ones(4)}, path, step=1, group=group)
    (path / "told").write_text("x", encoding="ascii")


def test_a_rank_that_is_dead_before(tmp_path):
    with pytest.raises(AssertionError, match="the rank died"):
        run_ranks(2, die_before, tmp_path)
    assert os.listdir(tmp_path) == ["told"]


SCRIPT = """
import libdcp, sys, torch
libdcp.save_async({"w": torch.ones(16 << 20)}, sys.argv[1], step=1)
"""


def test_the_interpreter_waits(tmp_path):
    subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "run"], check=True)
    assert libdcp.open(tmp_path / "run").info.step == 1


def test_a_working_folder_that_is_removed(tmp_path, monkeypatch):
    """Absolute paths need none; of others that is said."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    state = {"w": torch.rand(9)}
    libdcp.save(state, tmp_path / "run", step=1)
    libdcp.load(state, tmp_path / "run")
    with pytest.raises(libdcp.UsageError, match="begins at a folder that was removed"):
        libdcp.save(state, "run", step=2)
    monkeypatch.chdir(tmp_path)


AT_EXIT = """
import atexit, sys
late = []
atexit.register(lambda: late[0]())  # runs after what this package registers
import libdcp, numpy
late.append(lambda: libdcp.save_async({"w": numpy.ones(8 << 20)}, sys.argv[1], step=1))
"""
DAEMON = """
import sys, threading, time
import libdcp, numpy
w = numpy.ones(8 << 20)
libdcp.save({"w": w}, sys.argv[1], step=1)
save = lambda: libdcp.save({"w": w}, sys.argv[1], step=2)
threading.Thread(target=save, daemon=True).start()
time.sleep(float(sys.argv[2]))
"""


def test_begun_while_the_interpreter_ends(tmp_path):
    subprocess.run([sys.executable, "-c", AT_EXIT, tmp_path / "run"], check=True)
    assert libdcp.open(tmp_path / "run").info.step == 1


@pytest.mark.parametrize("after", ["0.01", "0.04", "0.08"])
def test_a_thread_that_nobody_waits_for(tmp_path, after):
    """Its save may be lost; the process ends, and the step before is whole."""
    run = tmp_path / "run"
    subprocess.run([sys.executable, "-c", DAEMON, run, after], check=True)
    libdcp.open(run, step=1).verify()


def test_a_handle_is_asked_again(tmp_path):
    handle = libdcp.save_async({"w": torch.ones(3)}, tmp_path / "run", step=2)
    assert handle.wait().step == 2 and "step 2: complete" in repr(handle)
    handle = libdcp._saver.Handle(3)
    handle._why = libdcp.IoError("lost")
    handle._ended.set()
    depths = []
    for _ in range(3):
        with pytest.raises(libdcp.IoError) as raised:
            handle.wait()
        depths.append(len(raised.traceback))
    assert depths[1] == depths[2] and "step 3: failed" in repr(handle)


def test_a_folder_that_is_removed(tmp_path, monkeypatch):
    """It is made again; nothing is a delta on what was in it. Paths may be relative."""
    monkeypatch.chdir(tmp_path)
    state = {"w": torch.rand(100000)}
    for step in (1, 2):
        libdcp.save_async(state, "run", step=step, delta=10).wait()
        state["w"][step] = 7
    shutil.rmtree("run")
    libdcp.save(state, "run", step=3, delta=10)
    assert loaded("run", 3, 100000) == state["w"].tolist()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    libdcp.save(state, "run", step=1)
    assert (tmp_path / "other" / "run" / "step-00000001").is_dir()


def test_time_out(tmp_path):
    handle = libdcp.save_async({"w": torch.ones(16 * MIB)}, tmp_path / "run", step=1)
    with pytest.raises(TimeoutError, match="step 1"):
        handle.wait(0)
    assert handle.wait(60).step == 1


def test_forks(tmp_path):
    """A child waits for nothing of its parent's, and saves by itself."""
    handle = libdcp.save_async({"w": torch.ones(16 * MIB)}, tmp_path / "run", step=1)
    child = os.fork()
    if not child:
        try:
            with pytest.raises(libdcp.UsageError, match="forked"):
                handle.wait()
            libdcp.save({"w": torch.ones(4)}, tmp_path / "child", step=1)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert handle.wait().step == 1
    assert loaded(tmp_path / "child") == [1] * 4


def test_what_lies_on_devices(tmp_path, monkeypatch):
    """The copy on the host is what is saved, and its memory is kept."""

    class Away(_state.State):
        def __init__(self, *args):
            super().__init__(*args)
            self.is_away = True

    monkeypatch.setattr(_training, "State", Away)
    t = torch.arange(12.0).view(3, 4).T
    state = {"t": t, "n": torch.tensor(3), "w": torch.ones(4)}
    kept = set()
    for step in (1, 2):
        handle = libdcp.save_async(state, tmp_path / "run", step=step)
        for tensor in state.values():
            tensor += 1
        handle.wait()
        kept.add(_saver._savers[None].staging._memory.data_ptr())
    assert len(kept) == 1
    ckpt = libdcp.open(tmp_path / "run")
    assert torch.equal(ckpt["t"].torch(), torch.arange(12.0).view(3, 4).T + 1)
    assert ckpt["n"].torch() == 4


def test_stale_saves_are_told(tmp_path):
    run, net = tmp_path / "run", torch.nn.Linear(2, 2)
    libdcp.save_async({"model": net}, run, step=1).wait()
    handle = libdcp.save_async({"model": net}, run, step=2)
    with pytest.warns(libdcp.StaleWarning, match="step 2 are those of step 1"):
        handle.wait()
    _saver._savers[None].close()  # as a process that goes on does not know of step 2
    with pytest.warns(libdcp.StaleWarning, match="step 5 are those of step 2") as told:
        libdcp.save({"model": net}, run, step=5)
    assert told[0].filename == __file__  # where the caller is
    optim = torch.optim.AdamW(net.parameters())
    net(torch.ones(2)).sum().mul(0).backward()
    optim.step()
    with pytest.warns(libdcp.StaleWarning, match="moments in step 6 are all zero"):
        libdcp.save({"model": net, "optim": optim}, run, step=6)


def test_consolidated_export(tmp_path):
    run, w = tmp_path / "run", torch.randn(3, 5)
    libdcp.save({"w": w}, run, step=1, export="bf16")
    got = torch.load(run / "step-00000001" / "pytorch_model.bin")
    assert torch.equal(got["w"], w.bfloat16())
    handle = libdcp.save_async(
        {"w": w + 1}, run, step=2, export="fp16", export_name="model.safetensors"
    )
    handle.wait()
    with libdcp.open(run / "step-00000002" / "model.safetensors") as ckpt:
        assert torch.equal(ckpt["w"].torch(), (w + 1).half())
    for wrong in ({"export": "bf17"}, {"export": "bf16", "export_name": "../x"}):
        with pytest.raises(libdcp.UsageError):
            libdcp.save({"w": w + 2}, run, step=3, **wrong)
