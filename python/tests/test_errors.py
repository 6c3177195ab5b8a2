"""What is wrong is an exception that names file, tensor and the next act."""

from __future__ import annotations

import pickle
import shutil

import pytest
from conftest import peer

import libdcp

np = peer("numpy")


def test_corrupt_tensors_are_named(damaged):
    with libdcp.open(damaged) as ckpt:
        failed = []
        for name, tensor in ckpt.items():
            try:
                tensor.tobytes()
            except libdcp.CorruptError as why:
                failed.append(name)
                assert (why.code, why.tensor) == ("CORRUPT", name)
                assert why.file == "shard-00002-of-00004.safetensors"
                assert str(damaged) in why.message and "verify" in why.hint
        assert len(failed) == 1
        with pytest.raises(libdcp.CorruptError):
            ckpt[failed[0]].tobytes()  # again
    with libdcp.open(damaged, verify=False) as ckpt:
        assert len(ckpt[failed[0]].tobytes()) == ckpt[failed[0]].nbytes


def test_verify(run, damaged):
    with libdcp.open(run) as ckpt:
        found = ckpt.verify()
        assert found.n_tensors == len(ckpt) and found.n_unproved == 0
    with (
        libdcp.open(damaged) as ckpt,
        pytest.raises(libdcp.CorruptError) as raised,
    ):
        ckpt.verify()
    files = {finding.file for finding in raised.value.findings}
    assert files == {"shard-00002-of-00004.safetensors", "parity-00000-of-00001.bin"}


def test_not_found(tmp_path, run):
    with pytest.raises(libdcp.NotFoundError, match="nowhere"):
        libdcp.open(tmp_path / "nowhere")
    with pytest.raises(libdcp.NotFoundError) as raised:
        libdcp.open(run, step=3)
    assert "the newest of its 1 is 10" in raised.value.hint
    assert "hint" in str(raised.value)
    assert libdcp.open(run, step=10).info.step == 10
    with pytest.raises(libdcp.UsageError):
        libdcp.open(run, step=-1)


def test_errors_cross_processes():
    why = libdcp.CorruptError("it is", file="f", tensor="t", hint="h", errno=5)
    again = pickle.loads(pickle.dumps(why))
    assert type(again) is libdcp.CorruptError
    assert (again.message, again.file, again.tensor, again.hint) == (
        "it is",
        "f",
        "t",
        "h",
    )
    assert again.errno == 5
    assert issubclass(libdcp.UsageError, ValueError)
    assert issubclass(libdcp.OutOfMemoryError, MemoryError)


def test_closed(run):
    ckpt = libdcp.open(run)
    tensor = ckpt["transformer.wte.weight"]
    ckpt.close()
    ckpt.close()
    assert "closed" in repr(ckpt)
    for act in (tensor.tobytes, ckpt.verify, lambda: ckpt.info):
        with pytest.raises(libdcp.UsageError, match="is closed"):
            act()


@pytest.mark.parametrize("number", [3, None])
def test_a_step_that_is_named_in_place_of_its_run(tmp_path, number):
    """What is to be done is told, with the number that it has."""
    state = {"w": np.ones(2, np.float32)}
    libdcp.save(state, tmp_path / "run", step=number or 1)
    step = next((tmp_path / "run").glob("step-*"))
    if number is None:
        libdcp.export(step, tmp_path / "file.safetensors")
        step = tmp_path / "plain"
        libdcp.reshard(tmp_path / "file.safetensors", step)
    acts = [lambda: libdcp.load(state, step), lambda: libdcp.open(step, step=7)]
    for act in acts:
        with pytest.raises(libdcp.NotFoundError, match="there is no step") as why:
            act()
        assert "the folder itself is a step" in why.value.hint
        assert "libdcp.open reads it" in why.value.hint
        assert ("'step-00000003'" in why.value.hint) is (number == 3)
    if number:
        shutil.move(step, tmp_path / "other" / "step-00000003")
        assert libdcp.load(state, tmp_path / "other").step == 3
