"""Threads, forks, workers, and what is left behind."""

from __future__ import annotations

import copy
import dataclasses
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import pytest
from conftest import peer

import libdcp

NAME = "optimizer.exp_avg.transformer.wte.weight"


def rows(ckpt, begin, n):
    return ckpt[NAME][begin : begin + n].tobytes()


def test_threads(run):
    ckpt = libdcp.open(run)
    whole, wrong = ckpt[NAME].tobytes(), []

    def read(seed):
        for i in range(50):
            begin = (seed * 31 + i * 7) % 250
            if rows(ckpt, begin, 6) != whole[begin * 64 : (begin + 6) * 64]:
                wrong.append(begin)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_threads_run_meanwhile(run):
    """The interpreter is free while the library works, on a thread of its own."""
    ticks = []
    with libdcp.open(run) as ckpt:
        seen = []

        def tell(done, total):  # from the library's own thread, which holds nothing
            seen.append(threading.current_thread() is threading.main_thread())
            ticks.append(done)

        ckpt.verify(progress=tell)
    assert ticks and not any(seen)


def test_fork(run):
    """A checkpoint that was opened before is read in a child, as DataLoaders do."""
    ckpt = libdcp.open(run)
    whole = ckpt[NAME].tobytes()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        parts = pool.starmap(rows, [(ckpt, i * 64, 64) for i in range(4)])
    assert b"".join(parts) == whole
    pid = os.fork()
    if pid == 0:  # by the very object
        os._exit(0 if rows(ckpt, 3, 5) == whole[3 * 64 : 8 * 64] else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_pickle(run):
    ckpt = libdcp.open(run, step=10, threads=1)
    again = pickle.loads(pickle.dumps(ckpt))
    assert rows(again, 0, 256) == rows(ckpt, 0, 256)
    assert again.info.step == 10


def test_pickled_elsewhere(tmp_path, monkeypatch):
    """A relative path goes on to mean what it meant when it was opened."""
    np = peer("numpy")
    for i, place in enumerate(("a", "b")):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        libdcp.save({"w": np.full(3, i)}, "run", step=1)
    monkeypatch.chdir(tmp_path / "a")
    for how in ({}, {"step": 1}, {"base": "."}):
        ckpt = libdcp.open("run", **how)
        monkeypatch.chdir(tmp_path / "b")
        again = pickle.loads(pickle.dumps(ckpt))
        monkeypatch.chdir(tmp_path / "a")
        assert again["w"].numpy().tolist() == [0, 0, 0]
        assert pickle.loads(pickle.dumps(again["w"])).numpy().tolist() == [0, 0, 0]


def test_copies_of_what_it_says(run):
    """Copies outlive the checkpoint; none of them closes it a second time."""
    with libdcp.open(run) as ckpt:
        info, objects = ckpt.info, ckpt.objects
        copies = [
            dataclasses.asdict(info)["objects"],
            copy.deepcopy(info).objects,
            pickle.loads(pickle.dumps(info)).objects,
            copy.copy(objects),
            copy.deepcopy(objects),
        ]
        told = dict(objects)
        for act in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="closed twice"):
                act(ckpt._open)
    del ckpt, info, objects
    gc.collect()
    assert told and all(each == told for each in copies)


class Rows:
    """A data set of the rows of a tensor."""

    def __init__(self, path):
        self.ckpt = libdcp.open(path)

    def __len__(self):
        return 256

    def __getitem__(self, i):
        return self.ckpt[NAME][i].torch()


def test_data_loader(run):
    torch = peer("torch")
    loader = torch.utils.data.DataLoader(Rows(run), batch_size=64, num_workers=2)
    assert torch.equal(torch.cat(list(loader)), libdcp.open(run)[NAME].torch())


def n_files():
    return len(os.listdir("/proc/self/fd"))


def memory():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_nothing_is_left(run):
    def use():
        ckpt = libdcp.open(run)
        rows(ckpt, 0, 256)
        with pytest.raises(libdcp.NotFoundError):
            libdcp.open(run / "nothing")
        return ckpt.info

    for _ in range(30):
        use()
    gc.collect()
    files, before = n_files(), memory()
    for _ in range(300):
        use()
    gc.collect()  # for interpreters that count no references
    assert n_files() <= files
    assert memory() - before < 8 << 20


def test_without_numpy_and_torch(run):
    """As in an empty environment: what needs them says so, all else works."""
    code = f"""
import sys
sys.modules["numpy"] = sys.modules["torch"] = sys.modules["ml_dtypes"] = None
import libdcp
with libdcp.open({str(run)!r}) as ckpt:
    assert len(ckpt[{NAME!r}][:10].tobytes()) == 640
    ckpt.verify()
    try:
        ckpt[{NAME!r}].torch()
    except ImportError:
        print("no torch")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("no torch\n", "")
