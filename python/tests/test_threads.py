"""Many threads at once: what the interpreter's lock, where there is one, must not be
needed for."""

from __future__ import annotations

import sys
import threading

import pytest
from conftest import peer

import libdcp

np = peer("numpy")
N_THREADS, N_ROUNDS = 8, 12


def at_once(act):
    """Run it on many threads, which begin together; what one raises is raised."""
    wrong, begin = [], threading.Barrier(N_THREADS)

    def run(i):
        begin.wait()
        try:
            act(i)
        except BaseException as why:
            wrong.append(why)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


@pytest.fixture(autouse=True)
def often():
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def state_of(i, n):
    return {"w": np.full((16, 16), i * 1000 + n, np.int32), "n": n}


def test_saves_and_loads(tmp_path):
    """Each thread has a run of its own; the savers of a process are shared."""

    def act(i):
        run = tmp_path / f"run{i}"
        for n in range(1, N_ROUNDS):
            handle = libdcp.save_async(state_of(i, n), run, step=n, keep=2)
            if n % 3 == 0:
                assert handle.wait().step == n
            if n % 4 == 0:
                libdcp.save(state_of(i, n), run, step=n + 100, keep=2)
                loaded = state_of(0, 0)
                libdcp.load(loaded, run)
                assert (loaded["w"] == i * 1000 + n).all() and loaded["n"] == n
        handle.wait()

    at_once(act)


def test_one_checkpoint_and_many(run):
    """Reads, listings, views and facts of a shared one, while others come and go."""
    name = "optimizer.exp_avg.transformer.wte.weight"
    shared = libdcp.open(run)
    whole = shared[name].numpy()

    def act(i):
        for n in range(N_ROUNDS):
            begin = (i * 31 + n * 7) % 250
            part = shared[name][begin : begin + 6]
            assert (part.numpy() == whole[begin : begin + 6]).all()
            with libdcp.open(run) as own:
                assert own.fingerprint(name) == shared.fingerprint(name)
                assert len(own.objects) == len(shared.info.objects)
                assert own[name].pieces == shared[name].pieces
            try:
                assert (shared[name][:1].numpy(mmap=True) == whole[:1]).all()
            except libdcp.UnsupportedError as why:
                assert why.tensor == name

    at_once(act)


def test_one_closes_what_others_read(run):
    """They get what is there, or are told."""
    name = "optimizer.exp_avg.transformer.wte.weight"
    whole = libdcp.open(run)[name].numpy()
    told = []

    for _ in range(5):
        shared = libdcp.open(run)

        def act(i, shared=shared):
            try:
                for n in range(N_ROUNDS * 4):
                    if i == 0 and n == N_ROUNDS:
                        shared.close()
                    assert (shared[name][n : n + 2].numpy() == whole[n : n + 2]).all()
                    assert shared.info.step == 10 and shared[name].pieces
            except libdcp.UsageError as why:
                told.append(str(why))

        at_once(act)
    assert told and all("is closed" in why for why in told)


def test_acts(run, tmp_path):
    """Reshards, verifies and what fails, with progress."""

    def act(i):
        seen = []

        def tell(done, total):
            seen.append((done, total))

        target = tmp_path / f"other{i}"
        libdcp.reshard(run, target, world_size=i + 1, progress=tell)
        assert seen[-1][0] == seen[-1][1]
        with libdcp.open(target) as ckpt:
            ckpt.verify()
        with pytest.raises(libdcp.NotFoundError, match=f"nothing{i}"):
            libdcp.open(tmp_path / f"nothing{i}")

    at_once(act)
