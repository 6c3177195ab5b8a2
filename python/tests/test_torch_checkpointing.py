"""torch_checkpointing on our storage: its files, with digests, or no folder at all."""

from __future__ import annotations

import io
import os
import pathlib
import resource
import signal
import warnings

import pytest
from conftest import flip, peer
from ranks import kill_ranks, run_ranks

import libdcp
from libdcp import _sealed

torch = peer("torch")
peer("torch.distributed.checkpoint.state_dict")
peer("torch.distributed.tensor")
peer("torch._dynamo")  # once, not in each rank
theirs = peer("torch_checkpointing")
resharder = peer("torch_checkpointing.default_resharder")
storages = peer("torch_checkpointing.storage.base_storage")
plain = peer("torch_checkpointing.storage.filesystem")
from libdcp.torch_checkpointing import StorageConfig, verify  # noqa: E402

STEPS = (4, 8)


def manager(storage=None, in_background=False, **items):
    """All items as they are; those named are sharded."""
    save = theirs.AsyncCheckpointSaverConfig if in_background else None
    return theirs.CheckpointManager(
        theirs.CheckpointManager.Config(
            items={
                name: theirs.ItemSpec(resharder=resharder.DefaultResharder())
                for name in items
            },
            save=(save or theirs.SyncCheckpointSaverConfig)(),
            storage_config=storage or StorageConfig(),
        )
    )


def state_of(step):
    made = torch.Generator().manual_seed(step)
    return {
        "model": {"w": torch.randn(7, 6, generator=made), "b": torch.full((5,), step)},
        "step": step,
    }


def same(a, b):
    torch.testing.assert_close(dict(a), dict(b), rtol=0, atol=0)


@pytest.fixture
def saved(tmp_path):
    """A folder with the state of step 4."""
    made = manager()
    made.save(str(tmp_path / "step-4"), state_of(4))
    made.close()
    return tmp_path / "step-4"


def load(path, storage=None):
    made = manager(storage)
    try:
        return made.load(str(path), into=state_of(0))
    finally:
        made.close()


def test_there_and_back(saved):
    same(load(saved), state_of(4))
    files = sorted(p.name for p in saved.iterdir())
    assert files == ["libdcp.digests.json", "model_0.pt", "step_0.pt"]
    assert verify(saved) == 2
    # It reads them without us, and we read what it writes, and its files one by one.
    own = plain.LocalFileSystemStorageConfig(use_direct_io=False)
    same(load(saved, own), state_of(4))
    made = manager(own)
    made.save(str(saved.parent / "theirs"), state_of(8))
    same(load(saved.parent / "theirs"), state_of(8))
    with libdcp.open(saved / "model_0.pt") as ckpt:
        assert torch.equal(ckpt["w"].torch(), state_of(4)["model"]["w"])
    with pytest.raises(libdcp.CorruptError, match="has no digests"):
        verify(saved.parent / "theirs")
    # What is there is not written over.
    with pytest.raises(OSError, match="occupied"):
        made.save(str(saved), state_of(8))
    made.close()
    same(load(saved), state_of(4))


def test_in_the_background(tmp_path):
    made = manager(StorageConfig(verify_after_save=True), in_background=True)
    made.save(str(tmp_path / "step-8"), state_of(8)).result()
    made.close()
    assert verify(tmp_path / "step-8") == 2
    same(load(tmp_path / "step-8"), state_of(8))


@pytest.mark.parametrize("use_mmap", [True, False])
@pytest.mark.parametrize("name", ["model_0.pt", "step_0.pt"])
def test_a_flipped_byte(saved, name, use_mmap):
    flip(saved / name, -200)
    made = theirs.CheckpointManager(
        theirs.CheckpointManager.Config(
            save=theirs.SyncCheckpointSaverConfig(),
            load=theirs.CheckpointLoaderConfig(use_mmap=use_mmap),
            storage_config=StorageConfig(),
        )
    )
    with pytest.raises(libdcp.CorruptError, match=name):
        made.load(str(saved), into=state_of(0))
    with pytest.raises(libdcp.CorruptError, match=name):
        verify(saved)


def test_what_is_missing(saved):
    (saved / "model_0.pt").rename(saved / "other_0.pt")
    with pytest.raises(libdcp.CorruptError, match="does not list it"):
        StorageConfig().create_storage().read(saved / "other_0.pt")
    with pytest.raises(libdcp.CorruptError, match=r"model_0\.pt is missing"):
        verify(saved)
    (saved / "other_0.pt").rename(saved / "model_0.pt")
    os.truncate(saved / "model_0.pt", 100)
    with pytest.raises(libdcp.CorruptError, match="has 100 bytes"):
        load(saved)
    (saved / "libdcp.digests.json").write_text("{", encoding="ascii")
    with pytest.raises(libdcp.CorruptError, match="cannot be read"):
        load(saved)


class Bomb:
    """Kills the process that saves it, in the middle of the save."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def save_and_die(run):
    made = manager()
    made.save(os.path.join(run, "step-4"), state_of(4))
    made.save(os.path.join(run, "step-8"), {**state_of(8), "z": Bomb()})


def test_killed_in_a_save(tmp_path):
    """The step before is whole, and the save that died is none; it can be done again."""
    kill_ranks(2, save_and_die, str(tmp_path))
    assert not (tmp_path / "step-8").exists() and (tmp_path / "tmp_step-8").exists()
    same(load(tmp_path / "step-4"), state_of(4))
    made = manager()
    made.save(str(tmp_path / "step-8"), state_of(8))
    made.close()
    same(load(tmp_path / "step-8"), state_of(8))
    verify(tmp_path / "step-8")


def by_rank(run):
    """Each rank has its own, in files of its own, and one commits for both."""
    rank = torch.distributed.get_rank()
    made = manager()
    made.save(run, state_of(1 + rank))
    torch.distributed.barrier()  # rank 0 commits when all have written
    same(made.load(run, into=state_of(0)), state_of(1 + rank))
    made.close()


def test_two_ranks(tmp_path):
    run_ranks(2, by_rank, str(tmp_path / "run"))
    names = {p.name for p in (tmp_path / "run").glob("*.pt")}
    assert names == {"model_0.pt", "model_1.pt", "step_0.pt", "step_1.pt"}
    assert verify(tmp_path / "run") == 4


WHOLE = torch.arange(3000.0).reshape(1000, 3)


def sharded(run):
    """Loads one's part of what one rank had whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    into = distribute_tensor(torch.zeros_like(WHOLE), mesh, [Shard(0)])
    made = manager(model=True)
    made.load(run, into={"model": {"w": into}})
    made.close()
    assert torch.equal(into.full_tensor(), WHOLE)


def test_other_world_sizes(tmp_path):
    """Slices of a file. To save shards 0.1.1 needs CUDA, to gather their places on."""
    run = tmp_path / "run"
    made = manager(model=True)
    made.save(str(run), {"model": {"w": WHOLE}})
    made.close()
    assert {p.name for p in run.iterdir()} >= {"model_0.pt", "metadata.pkl"}
    assert verify(run) == 2
    run_ranks(2, sharded, str(run))
    flip(run / "model_0.pt", -1500)
    with pytest.raises(AssertionError, match=r"CorruptError: .*model_0\.pt"):
        run_ranks(2, sharded, str(run))


# -- the storage itself, by what its interface demands ---------------------------------


@pytest.fixture
def storage():
    return StorageConfig().create_storage()


def put(path, what):
    """As rows of the table of `Storage.rename` have it."""
    if what in ("empty", "populated"):
        path.mkdir()
    if what == "populated":
        (path / "old").write_bytes(b"old")
    if what == "file":
        path.write_bytes(b"old")


@pytest.mark.parametrize("source", ["directory", "file"])
@pytest.mark.parametrize("target", ["absent", "empty", "populated", "file"])
def test_rename(tmp_path, storage, source, target):
    at, to = tmp_path / "at", tmp_path / "to"
    put(to, target)
    if source == "directory":
        storage.mkdir(at)
        storage.write(at / "new", b"new")
        commits = target in ("absent", "empty")
    else:
        storage.write(at, b"new")
        commits = target in ("absent", "file")
    if not commits:
        with pytest.raises(OSError, match="occupied"):
            storage.rename(at, to, is_directory=source == "directory")
        assert at.exists() and not (at / "libdcp.digests.json").exists()
        old = to / "old" if target == "populated" else to
        assert target == "empty" or old.read_bytes() == b"old"
        return
    storage.rename(at, to, is_directory=source == "directory")
    new = to / "new" if source == "directory" else to
    assert storage.read(new) == b"new" and not at.exists()
    flip(new, 0)
    with pytest.raises(libdcp.CorruptError):
        storage.read(new)


def test_streams(tmp_path, storage):
    """Pieces of any length, across the blocks of the digests; reads from anywhere."""
    made, path = torch.Generator().manual_seed(1), tmp_path / "file"
    parts = [
        torch.randint(256, (n,), dtype=torch.uint8, generator=made).numpy()
        for n in (3, 1 << 20, (1 << 20) - 3, 0, 3 << 20, 5, (1 << 20) + 1)
    ]
    whole = b"".join(part.tobytes() for part in parts)
    with storage.stream_write(path) as file:
        for part in parts:
            assert file.write(part) == len(part)
    assert path.read_bytes() == storage.read(path) == whole
    assert storage.ls(tmp_path) == ["file"] and storage.getsize(path) == len(whole)
    lazy = storages.ReadArgs(pre_read_full_file=False)
    with storage.stream_read(path, lazy) as file:
        for begin, n in ((0, 4), (1 << 20, 1 << 20), (1048570, 12), (5242870, 1 << 22)):
            assert file.seek(begin) == begin
            assert file.read(n) == whole[begin : begin + n]
        assert file.seek(-5, io.SEEK_END) == len(whole) - 5
        assert file.read() == whole[-5:] and file.read() == b""
    storage.delete(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [_sealed.Writer, _sealed.Reader])
def test_a_file_that_cannot_be_opened(tmp_path, make):
    """Python closes what was begun, and prints what that raises from 3.13 on."""
    file = make.__new__(make)
    with pytest.raises(FileNotFoundError):
        file.__init__(tmp_path / "none" / "file", {})
    file.close()


def test_a_write_that_fails(tmp_path, storage):
    with pytest.raises(KeyError), storage.stream_write(tmp_path / "file") as file:
        file.write(b"half")
        raise KeyError
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # without digests


def test_a_disk_that_is_full(tmp_path, storage):
    """It is named, and not what torch.save makes of a write that fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 21, limits[1]))
    try:
        with (
            pytest.raises(
                libdcp.IoError, match=r"w.pt cannot be written: File too large"
            ),
            storage.stream_write(tmp_path / "w.pt") as file,
        ):
            torch.save(torch.zeros(1 << 20), file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not os.path.exists(tmp_path / "w.pt.digests")


def test_folders(tmp_path, storage):
    """Files in folders of it, and those that others put there, are published, too."""
    at, to = tmp_path / "at", tmp_path / "to"
    storage.mkdir(at / "deep")
    storage.write(at / "deep" / "a", b"a" * 10)
    pathlib.Path(at / "b").write_bytes(b"")
    storage.rename(at, to, is_directory=True)
    assert verify(to) == 2
    assert sorted(storage.ls(to)) == ["b", "deep"] and storage.ls(to / "deep") == ["a"]
    flip(to / "deep" / "a", 3)
    with pytest.raises(libdcp.CorruptError, match="deep/a"):
        verify(to)
    storage.write(to / "deep" / "a", b"anew")  # in the place of what is corrupt
    assert storage.read(to / "deep" / "a") == b"anew"
    storage.rmdir(to)
    assert list(tmp_path.iterdir()) == []


def test_what_the_disk_made_of_it(tmp_path, storage, monkeypatch):
    """It is read again, and not sealed when it is something else."""
    write = os.write

    def spoil(file, data):
        return write(file, bytes(data)[:-1] + b"?")

    monkeypatch.setattr(os, "write", spoil)
    with pytest.raises(libdcp.CorruptError, match="is corrupt"):
        storage.write(tmp_path / "a", b"what was to be written")
    monkeypatch.undo()
    assert not (tmp_path / "a.digests").exists()
    with pytest.raises(libdcp.CorruptError):
        verify(tmp_path)


def test_a_file_that_vanishes_before_the_commit(tmp_path, storage):
    storage.mkdir(tmp_path / "at")
    storage.write(tmp_path / "at" / "a", b"a")
    (tmp_path / "at" / "a").unlink()
    with pytest.raises(FileNotFoundError):
        storage.rename(tmp_path / "at", tmp_path / "to", is_directory=True)
    assert not (tmp_path / "to").exists()
