"""Tensors whose memory is not what they are, or that have none."""

from __future__ import annotations

import pytest
from conftest import peer

import libdcp

torch = peer("torch")
dcp = peer("torch.distributed.checkpoint")
fake = peer("torch._subclasses.fake_tensor")
from libdcp import _tree  # noqa: E402
from libdcp.torch import StorageReader, StorageWriter  # noqa: E402


def put_off():
    """Tensors that PyTorch has marked, to conjugate or to negate them later."""
    numbers = torch.arange(12.0).view(torch.complex64)
    state = {
        "conjugated": numbers.conj(),
        "negated": torch._neg_view(torch.arange(5.0)),
        "imaginary": numbers.conj().imag,
        "both": torch._neg_view(numbers.conj()),
    }
    assert all(t.is_conj() or t.is_neg() for t in state.values())
    return state


def zeros():
    """Tensors to load into: plain ones, and ones that are marked themselves."""
    plain = {name: torch.zeros_like(t.clone()) for name, t in put_off().items()}
    marked = {
        name: torch._neg_view(t.conj() if t.is_complex() else t)
        for name, t in ((name, torch.zeros_like(t)) for name, t in plain.items())
    }
    return plain, marked


def check(loaded):
    for name, tensor in put_off().items():
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize("background", [False, True])
def test_saved_as_they_are_meant(tmp_path, background):
    state = put_off()
    if background:
        libdcp.save_async(state, tmp_path, step=1).wait()
    else:
        libdcp.save(state, tmp_path, step=1)
    for into in zeros():
        libdcp.load(into, tmp_path)
        check(into)
    with libdcp.open(tmp_path) as ckpt:
        check(ckpt.state_dict("all"))
        for into in zeros():
            check({name: ckpt[name].torch(out=t) for name, t in into.items()})


def test_under_dcp(tmp_path):
    dcp.save(put_off(), storage_writer=StorageWriter(tmp_path, step=1))
    for into in zeros():
        dcp.load(into, storage_reader=StorageReader(tmp_path))
        check(into)


def test_in_trees(tmp_path):
    """A view of the same memory that is marked is not the same tensor."""
    numbers = torch.arange(12.0).view(torch.complex64)
    state = {"plain": numbers, "twice": numbers, **put_off(), "conj": numbers.conj()}
    _tree.save_tree(state, tmp_path, 1, _tree.Alone())
    got = _tree.load_tree(tmp_path)
    assert got["plain"] is got["twice"]
    check(got)
    assert torch.equal(got["plain"], numbers) and torch.equal(got["conj"], numbers.conj())


class Wrapper(torch.Tensor):
    """A tensor by what it can do: it has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        made = function(*plain, **(kwargs or {}))
        return cls(made) if isinstance(made, torch.Tensor) else made


@pytest.mark.parametrize(
    "make",
    [
        lambda: Wrapper(torch.ones(3)),
        lambda: fake.FakeTensorMode().from_tensor(torch.ones(3)),
        lambda: torch._efficientzerotensor((4,)),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.ones(3, device="meta"),
        lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.quint8),
    ],
    ids=["wrapper", "fake", "zero", "nested", "sparse", "meta", "quantized"],
)
def test_no_memory_to_save(tmp_path, make):
    """Each is refused by its name, and the step before stays."""
    libdcp.save({"odd": torch.ones(3)}, tmp_path, step=1)
    for save in (libdcp.save, lambda *a, **how: libdcp.save_async(*a, **how).wait()):
        with pytest.raises(libdcp.UnsupportedError, match="'odd'"):
            save({"fine": torch.ones(2), "odd": make()}, tmp_path, step=2)
    into = {"odd": torch.zeros(3)}
    libdcp.load(into, tmp_path)
    assert into["odd"].tolist() == [1, 1, 1]
