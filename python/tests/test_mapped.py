"""Boxes that are mapped, and not read."""

from __future__ import annotations

import json
import pickle
import random
import struct

import pytest
from conftest import DATA, expected, flip, peer

import libdcp

torch = peer("torch")
numpy = peer("numpy")
FILES = [name for name, _ in expected()]


def boxes_of(tensor, seed):
    """All of it, and some parts."""
    yield tensor
    rng = random.Random(seed)
    for _ in range(3):
        parts = []
        for n in tensor.shape:
            begin = rng.randrange(n) if n else 0
            one = n > 0 and rng.random() < 0.3
            parts.append(begin if one else slice(begin, rng.randint(begin, n)))
        yield tensor[tuple(parts)]


def bits(tensor):
    dense = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
    return dense.view(-1).view(torch.uint8)


def count_mapped(path, **how):
    """How many boxes could be mapped, all being what is read; and how many were not."""
    n, others = 0, []
    with libdcp.open(path, **how) as ckpt:
        for seed, tensor in enumerate(ckpt.tensors.values()):
            if tensor.is_meta:
                with pytest.raises(libdcp.UnsupportedError):
                    tensor.torch(mmap=True)
                continue
            for box in boxes_of(tensor, seed):
                if not box.nbytes:
                    assert box.torch(mmap=True).shape == box.shape
                    continue
                try:
                    got = box.torch(mmap=True)
                except libdcp.UnsupportedError as why:
                    others.append(str(why))
                    continue
                want = box.torch()
                assert got.dtype == want.dtype and got.shape == want.shape
                assert torch.equal(bits(got), bits(want)), box
                n += 1
    return n, others


@pytest.mark.parametrize("name", FILES)
def test_files_of_others(name):
    n, others = count_mapped(DATA / name)
    known = "compressed", "highest byte", "several pieces", "was made while"
    assert n or all(any(why in other for why in known) for other in others)


@pytest.mark.parametrize("layout", ["zero3", "dim0", "replicated"])
def test_pieces_of_steps(run, tmp_path, layout):
    """Flat ranges, boxes, and whole tensors."""
    libdcp.reshard(run, tmp_path / "other", world_size=3, layout=layout)
    n, others = count_mapped(tmp_path / "other")
    assert n > 30
    assert all("several pieces" in why for why in others)
    assert bool(others) == (layout != "replicated")


def test_what_cannot_be_mapped(run, tmp_path):
    for target, how, why in (
        ("codec", {"codec": "split"}, "compressed"),
        ("step.tar.zst", {}, "archive"),
    ):
        libdcp.reshard(run, tmp_path / target, world_size=1, layout="replicated", **how)
        n, others = count_mapped(tmp_path / target)
        assert others and all(why in other for other in others)
        assert n == 0 or why == "compressed"  # where that made no less of it, it is not
    (run / "step-00000010" / "shard-00002-of-00004.safetensors").unlink()
    n, others = count_mapped(run)
    assert n == 0 and any("reconstructed" in other for other in others)
    with libdcp.open(run) as ckpt, pytest.raises(libdcp.UsageError):
        ckpt["transformer.wte.weight"].torch(mmap=True, out=torch.zeros(1))


def test_it_is_the_files_memory(tmp_path):
    """It cannot be written to, or stays with who wrote; no digest is looked at."""
    np = peer("numpy")
    libdcp.save({"w": torch.arange(6.0).view(2, 3)}, tmp_path, step=1)
    ckpt = libdcp.open(tmp_path)
    array = ckpt["w"].numpy(mmap=True)
    assert not array.flags.writeable and array.base is not None
    ours = ckpt["w"].torch(mmap=True)
    ours += 1
    assert ckpt["w"].torch()[0, 0] == 0 and ours[0, 0] == 1
    (piece,) = ckpt["w"].pieces
    (shard,) = tmp_path.glob("step-*/" + piece.file)
    ckpt.close()
    assert array[1].tolist() == [3, 4, 5]  # it lives as long as somebody has it
    flip(shard, piece.file_offset)
    with libdcp.open(tmp_path) as ckpt:
        assert ckpt["w"].numpy(mmap=True)[0, 0] != 0
        with pytest.raises(libdcp.CorruptError):
            ckpt["w"].numpy()
    assert isinstance(array, np.ndarray)


def read_bytes():
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])


def test_100_gigabytes(tmp_path):
    """A file of holes: nothing but its header, and the rows that are asked for."""
    path, n = tmp_path / "large.safetensors", 10**11
    rows = n // 4 // 25000
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [rows, 25000], "data_offsets": [0, n]}}
    ).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + n)
        file.seek(-4, 2)
        file.write(struct.pack("<f", 7))
    before = read_bytes()
    with libdcp.open(path) as ckpt:
        assert ckpt["w"].shape == (rows, 25000)
        last = ckpt["w"][-1:]
        assert last.torch()[0, -1] == 7
        assert last.torch(mmap=True)[0, -1] == 7
        assert ckpt["w"].torch(mmap=True)[-1, -1] == 7
    assert read_bytes() - before < 2 << 20


def test_complex_numbers_that_lie_elsewhere(tmp_path):
    """Instructions that move them end the process; NumPy looks where they lie."""
    for n in range(1, 9):
        path = tmp_path / f"{n}.npz"
        numpy.savez(path, **{"x" * n: numpy.arange(6.0).astype("c16")})
        with libdcp.open(path) as ckpt:
            tensor = ckpt["x" * n]
            assert tensor.numpy(mmap=True).sum() == tensor.torch().sum() == 15
            try:
                assert tensor.torch(mmap=True).sum() == 15
            except libdcp.UnsupportedError as why:
                assert "as PyTorch needs it" in str(why)


@pytest.mark.parametrize("how", ["renamed", "written"])
def test_files_that_are_replaced(tmp_path, how):
    """What was indexed says nothing of a file that was put in the place of the other."""
    path, other = tmp_path / "x.npy", tmp_path / "y.npy"
    numpy.save(path, numpy.arange(4.0))
    with libdcp.open(path) as ckpt:
        (tensor,) = ckpt.tensors.values()
        assert tensor.numpy(mmap=True)[-1] == 3
        if how == "renamed":
            numpy.save(other, numpy.arange(5.0))
            other.replace(path)
        else:
            numpy.save(path, numpy.ones(4))
        for read in (
            tensor.numpy,
            lambda: tensor.numpy(mmap=True),
            lambda: ckpt.state_dict("all"),
            lambda: tensor.fingerprint(),
            ckpt.verify,
        ):
            with pytest.raises(
                libdcp.NotFoundError, match="replaced since it was opened"
            ):
                read()


def test_folders_that_are_saved_into_again(tmp_path):
    """The files that a tensor lies in are looked at, and no others."""
    safetensors = pytest.importorskip("safetensors.numpy")
    first = {"a": numpy.arange(4.0), "b": numpy.ones(4)}
    libdcp.save(first, tmp_path / "run", step=1)
    libdcp.reshard(tmp_path / "run", tmp_path / "hf", to="safetensors-sharded")
    libdcp.reshard(tmp_path / "run", tmp_path / "dist", to="torch-dist")
    with libdcp.open(tmp_path / "hf") as ckpt, libdcp.open(tmp_path / "dist") as dist:
        assert ckpt["a"].numpy()[-1] == dist["a"].numpy()[-1] == 3
        (path,) = (tmp_path / "hf").glob("*.safetensors")
        safetensors.save_file({"a": -first["a"], "b": first["b"]}, path)
        for path in (tmp_path / "dist").glob("*.distcp"):
            path.write_bytes(bytes(path.stat().st_size))
        for read in (
            ckpt["a"].numpy,
            lambda: ckpt["a"].torch(mmap=True),
            ckpt["b"].fingerprint,
            lambda: ckpt.diff(dist),
            ckpt.verify,
            dist["a"].numpy,
        ):
            with pytest.raises(libdcp.NotFoundError, match="replaced since"):
                read()


def test_pickles_go_by_the_step_and_the_name(tmp_path):
    """What is sent to a worker is the same there, whatever was saved meanwhile."""
    first = {"a": numpy.full(3, 1.0), "b": numpy.full(3, 2.0)}
    libdcp.save(first, tmp_path, step=1)
    with libdcp.open(tmp_path) as ckpt:
        sent = [pickle.dumps(x) for x in (ckpt, ckpt["b"], ckpt["b"][1:])]
        libdcp.save({"aa": numpy.zeros(3), **first}, tmp_path, step=2)
        again, tensor, box = map(pickle.loads, sent)
        assert again.info.step == 1
        assert tensor.name == "b" and tensor.numpy()[0] == 2 and box.numpy()[0] == 2
