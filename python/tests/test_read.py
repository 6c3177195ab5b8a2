"""Tensors of every format are those that were written, whole and in parts."""

from __future__ import annotations

import itertools
import random
import shutil

import pytest
from conftest import DATA, expected, peer, sha256

import libdcp

CASES = expected()


def find(ckpt, facts):
    """By name, else by what it is to training."""
    if "name" in facts:
        return ckpt[facts["name"] or "tensor"]
    (found,) = (
        t
        for t in ckpt.tensors.values()
        if (t.role, t.param) == (facts["role"], facts["param"])
    )
    return found


@pytest.mark.parametrize("path, facts", CASES, ids=[path for path, _ in CASES])
def test_tensors_of_other_programs(path, facts):
    n = 0
    with libdcp.open(DATA / path) as ckpt:
        for want in facts["tensors"]:
            tensor = find(ckpt, want)
            assert (tensor.dtype, list(tensor.shape)) == (want["dtype"], want["shape"])
            if tensor.is_meta:
                with pytest.raises(libdcp.UnsupportedError):
                    tensor.tobytes()
                continue
            assert sha256(tensor.tobytes()) == want["sha256"]
            n += 1
    assert n or not facts["tensors"] or "meta" in path


def parts(shape, rng):
    """Random indices, in all the ways that an index may be spelled."""
    for _ in range(12):
        index = []
        for size in shape:
            begin, end = sorted(rng.choices(range(-size - 2, size + 3), k=2))
            index.append(
                rng.choice(
                    [
                        slice(begin, end),
                        slice(None),
                        slice(begin, None),
                        rng.randrange(-size, size) if size else slice(0),
                    ]
                )
            )
        cut = rng.randrange(len(shape) + 1)
        yield tuple(index)
        yield tuple(index[:cut])
        yield (*index[:cut], Ellipsis)


@pytest.mark.parametrize(
    "path",
    ["version-0.1.0/native", "deepspeed/z2", "dcp/torch-2.14.1-fsdp2", "torch/views.pt"],
)
def test_parts_are_those_of_numpy(path):
    peer("numpy")
    rng, n = random.Random(5), 0
    with libdcp.open(DATA / path) as ckpt:
        for tensor in itertools.islice(ckpt.tensors.values(), 40):
            if tensor.dtype.startswith(("bfloat", "float8")) or tensor.is_meta:
                continue
            whole = tensor.numpy()
            assert whole.tobytes() == tensor.tobytes()
            for index in parts(tensor.shape, rng):
                box, want = tensor[index], whole[index]
                assert box.shape == want.shape
                assert box.numpy().tobytes() == want.tobytes(), (tensor, index)
                n += 1
    assert n > 50


def test_indices_that_are_refused(run):
    tensor = libdcp.open(run)["transformer.wte.weight"]
    steps = slice(0, 9, 2)
    numbers = ((0, 0, 0), (256,), (-257,), (steps,), (..., ...), True, (0, False))
    for index in numbers:
        with pytest.raises(IndexError):
            tensor[index]
    for index in (1.5, None, [0, 1]):
        with pytest.raises(TypeError):
            tensor[index]
    assert [row.shape for row in tensor] == [(16,)] * 256
    assert tensor[-1, 3].shape == ()
    assert len(tensor[3:10]) == 7
    assert tensor[9:3].tobytes() == b""


def test_torch(run):
    torch = peer("torch")
    ckpt = libdcp.open(run)
    tensor = ckpt["transformer.wte.weight"]
    whole = tensor.torch()
    assert whole.dtype == torch.bfloat16 and tuple(whole.shape) == tensor.shape
    assert torch.equal(tensor[10:20].torch(), whole[10:20])
    assert torch.equal(tensor[:, 5].torch(device="cpu"), whole[:, 5])
    out = torch.zeros(10, 16, dtype=torch.bfloat16)
    assert tensor[10:20].torch(out=out) is out
    assert torch.equal(out, whole[10:20])
    strided = torch.zeros(16, 10, dtype=torch.bfloat16).T
    assert torch.equal(tensor[10:20].torch(out=strided), whole[10:20])
    parameter = torch.nn.Parameter(torch.zeros(16, 10, dtype=torch.bfloat16).T)
    assert torch.equal(tensor[10:20].torch(out=parameter), whole[10:20])
    for wrong in (torch.zeros(10, 16), torch.zeros(16, 10, dtype=torch.bfloat16)):
        with pytest.raises(libdcp.MismatchError, match=r"wte\.weight.*bfloat16"):
            tensor[10:20].torch(out=wrong)
    with pytest.raises(libdcp.UsageError, match="no memory"):
        tensor.torch(out=torch.empty_like(whole, device="meta"))
    with pytest.raises(IndexError):
        tensor[torch.tensor(True)]
    assert torch.equal(torch.from_dlpack(tensor[10:20]), whole[10:20])


def test_numpy(run):
    np = peer("numpy")
    tensor = libdcp.open(run)["optimizer.exp_avg.transformer.wte.weight"]
    whole = tensor.numpy()
    assert whole.dtype == np.float32
    out = np.zeros((10, 16), np.float32)
    assert tensor[10:20].numpy(out=out) is out
    assert np.array_equal(out, whole[10:20])
    backwards = np.zeros((10, 16), np.float32)[::-1]
    assert np.array_equal(tensor[10:20].numpy(out=backwards), whole[10:20])
    assert np.array_equal(np.asarray(tensor[10:20]), whole[10:20])
    assert np.array_equal(np.asarray(tensor[:2], dtype="f8"), whole[:2].astype("f8"))
    assert np.array_equal(np.from_dlpack(tensor[10:20]), whole[10:20])
    with pytest.raises(libdcp.MismatchError):
        tensor.numpy(out=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="new memory"):
        tensor.__array__(copy=False)


def test_no_dimensions(tmp_path):
    np = peer("numpy")
    libdcp.save({"x": np.array(3.0)}, tmp_path / "run", step=1)
    number = libdcp.open(tmp_path / "run")["x"]
    assert number[...].numpy() == number[()].numpy() == 3
    for use in (list, len):
        with pytest.raises(TypeError):
            use(number)


def test_buffers(run):
    tensor = libdcp.open(run)["transformer.wte.weight"]
    buffer = bytearray(tensor.nbytes)
    tensor.read_into(buffer)
    assert buffer == tensor.tobytes()
    for wrong in (bytearray(3), bytes(tensor.nbytes), memoryview(bytearray(9))[::2]):
        with pytest.raises(libdcp.UsageError, match="dense, writable buffer"):
            tensor.read_into(wrong)


def test_info(run):
    with libdcp.open(run) as ckpt:
        info = ckpt.info
        assert (info.format, info.step, info.world_size) == ("native", 10, 4)
        assert (info.layout, info.dp, info.tp) == ("zero3", 4, 1)
        assert info.corruption is None
        assert info.optimizer["type"] == "AdamW"
        assert ckpt.objects["trainer"]["step"] == 10
        assert info.n_tensors == len(ckpt) == len(list(ckpt.tensors))
        assert info.size_bytes == sum(t.nbytes for t in ckpt.values())
        tensor = ckpt["optimizer.master.transformer.wte.weight"]
        assert (tensor.role, tensor.param) == ("master", "transformer.wte.weight")
        pieces = tensor.pieces
        assert [piece.rank for piece in pieces] == [0, 1, 2, 3]
        assert (pieces[0].begin, pieces[-1].end) == (0, 256 * 16)
        assert "nothing" not in ckpt and "transformer.wte.weight" in ckpt
        with pytest.raises(KeyError, match=r"did you mean 'transformer\.wte\.weight'"):
            ckpt["transformer.wte.weigth"]
    box = libdcp.open(DATA / "dcp" / "torch-2.14.1-nested")["model.a.weight"]
    assert box.pieces[0].size == (3, 6) and box.pieces[1].offset == (3, 0)


def model_of(torch, seed):
    """A model with tied weights and a buffer."""
    torch.manual_seed(seed)
    model = torch.nn.ModuleDict(
        {
            "embed": torch.nn.Embedding(64, 16),
            "norm": torch.nn.BatchNorm1d(16),
            "head": torch.nn.Linear(16, 64, bias=False),
        }
    )
    model["head"].weight = model["embed"].weight
    return model


def test_state_dict_of_a_model(tmp_path):
    torch, safetensors = peer("torch"), peer("safetensors.torch")
    saved, loaded = model_of(torch, 1), model_of(torch, 2)
    torch.save(saved.state_dict(), tmp_path / "model.pt")
    safetensors.save_model(saved, tmp_path / "model.safetensors")
    for path in ("model.pt", "model.safetensors"):
        with libdcp.open(tmp_path / path) as ckpt:
            weights = ckpt.state_dict()
            some = ckpt.state_dict(["embed.weight"], device="cpu")
        assert torch.equal(some["embed.weight"], saved["embed"].weight)
        missing = loaded.load_state_dict(weights, strict=False)
        assert missing.unexpected_keys == []
        assert set(missing.missing_keys) <= {"head.weight"}
        for name, tensor in saved.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
        if path == "model.pt":  # one memory, as torch.load has it
            assert weights["head.weight"] is weights["embed.weight"]


def test_state_dict_of_masters():
    """ZeRO stage 3 stores no weights of the model but their masters."""
    torch = peer("torch")
    with libdcp.open(DATA / "deepspeed" / "z3") as ckpt:
        weights = ckpt.state_dict()
        assert weights["embed.weight"].dtype == torch.float32
        (master,) = (
            t for t in ckpt.values() if (t.role, t.param) == ("master", "embed.weight")
        )
        assert torch.equal(weights["embed.weight"], master.torch())
        assert ckpt["embed.weight"].name == master.name and "embed.weight" in ckpt
        assert "embed.weight" not in ckpt.tensors and "embed.weight" not in list(ckpt)
        assert "running" in weights
        assert set(ckpt.state_dict("all")) == set(ckpt)
        with pytest.raises(libdcp.UsageError):
            ckpt.state_dict("wieghts")


def test_no_weights(tmp_path):
    """What is left out is said: there are tensors, and none is a weight's."""
    torch = peer("torch")
    libdcp.save({"model": {"w": torch.ones(2)}}, tmp_path, step=1)
    with libdcp.open(tmp_path) as ckpt:
        with pytest.raises(libdcp.NotFoundError, match=r"has no weights: .* other"):
            ckpt.state_dict()
        assert torch.equal(ckpt.state_dict("all")["model.w"], torch.ones(2))
    libdcp.save({"at": 3}, tmp_path, step=2)
    assert libdcp.open(tmp_path).state_dict() == {}


def test_files_that_peers_write(tmp_path):
    """Every dtype of PyTorch, by torch.save, safetensors and DCP."""
    torch, safetensors = peer("torch"), peer("safetensors.torch")
    dcp = peer("torch.distributed.checkpoint")
    state = {}
    for name in libdcp._abi.DTYPES:
        dtype = getattr(torch, name)
        numbers = torch.randint(0, 100, (7, 5 * dtype.itemsize), dtype=torch.uint8)
        state[name] = numbers.to(dtype) if name == "bool" else numbers.view(dtype)
    plain = {
        k: v for k, v in state.items() if not k.startswith(("complex128", "float8_e8"))
    }
    torch.save(state, tmp_path / "all.pt")
    safetensors.save_file(plain, tmp_path / "all.safetensors")
    dcp.save(dict(plain), checkpoint_id=tmp_path / "dcp", no_dist=True)
    for path, want in (("all.pt", state), ("all.safetensors", plain), ("dcp", plain)):
        with libdcp.open(tmp_path / path) as ckpt:
            got = ckpt.state_dict("all")
            assert set(got) == set(want)
            for name, tensor in want.items():
                assert got[name].dtype == tensor.dtype
                assert (
                    ckpt[name].tobytes()
                    == tensor.contiguous().view(torch.uint8).numpy().tobytes()
                )
                part = ckpt[name][2:5, 1:3].torch()
                assert torch.equal(
                    part.contiguous().view(torch.uint8),
                    tensor[2:5, 1:3].contiguous().view(torch.uint8),
                )


@pytest.mark.parametrize("as_number", [False, True])
def test_ranks_of_two_saves(tmp_path, as_number):
    """Files of FSDP: all ranks update a weight as often."""
    torch = peer("torch")
    folder = tmp_path / "three"
    shutil.copytree(DATA / "fsdp" / "three", folder)

    def set_steps(rank, change):
        path = folder / f"optim_world_size_3_rank_{rank}.pt"
        state = torch.load(path, weights_only=False)
        for kept in state["state"].values():
            step = kept["step"] + change
            kept["step"] = int(step) if as_number else step
        torch.save(state, path)

    for rank in range(3):
        set_steps(rank, 0)
    before = libdcp.open(folder).objects["optimizer"]["step"]
    for rank in range(3):
        set_steps(rank, 1)
        if rank < 2:
            with pytest.raises(libdcp.CorruptError, match="they are of two saves"):
                libdcp.open(folder)
            with pytest.raises(libdcp.CorruptError, match=r"optim_world_size_3_rank_."):
                libdcp.reshard(folder, tmp_path / "made")
    assert libdcp.open(folder).objects["optimizer"]["step"] == before + 1
