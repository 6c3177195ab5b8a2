"""Reshard, export, repair, diff: the acts of the programs, and what stops them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest
from conftest import BIN, flip, peer

import libdcp
from libdcp._act import Act


def test_reshard(run, tmp_path):
    calls = []
    target = tmp_path / "eight"
    planned = libdcp.reshard(run, target, world_size=8, layout="zero1", dry_run=True)
    assert not target.exists()
    made = libdcp.reshard(
        run,
        target,
        world_size=8,
        layout="zero1",
        codec="split",
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls and all(done <= total for done, total in calls)
    assert calls[-1][0] == calls[-1][1]
    assert made.n_tensors == planned.n_tensors == 64
    with libdcp.open(run) as a, libdcp.open(target) as b:
        assert (b.info.world_size, b.info.layout) == (8, "zero1")
        assert {name: a.fingerprint(name) for name in a} == {
            name: b.fingerprint(name) for name in b
        }
        diff = a.diff(b)
        assert diff.same and diff.n_by_fingerprint == diff.n_same == 64
    with pytest.raises(libdcp.ExistsError):
        libdcp.reshard(run, target, world_size=8)
    libdcp.reshard(run, target, world_size=2, force=True)
    assert libdcp.open(target).info.world_size == 2


def test_shared_blocks(run, tmp_path):
    target = tmp_path / "same"
    with pytest.raises(libdcp.UsageError):
        libdcp.reshard(run, target, codec="split", reflink=True)
    assert libdcp.reshard(run, tmp_path / "plain").shared_bytes == 0
    try:
        made = libdcp.reshard(run, target, reflink=True)
    except libdcp.UnsupportedError as why:  # of most file systems
        assert "nothing can be shared" in str(why)
        assert not target.exists()
    else:
        assert 0 < made.shared_bytes <= made.target_bytes
        assert libdcp.open(target).verify().n_tensors == made.n_tensors


def test_reshard_to_other_programs(run, tmp_path):
    deepspeed = tmp_path / "deepspeed"
    libdcp.reshard(run, deepspeed, to="deepspeed", world_size=2, layout="zero2")
    with libdcp.open(run) as a, libdcp.open(deepspeed) as b:
        assert b.info.format == "deepspeed"
        assert b.diff(a).same or {d.how for d in b.diff(a).differences} <= {
            "only a",
            "only b",
        }
        name = "transformer.wte.weight"
        (master,) = (t for t in b.values() if (t.role, t.param) == ("master", name))
        assert b.fingerprint(master.name) == a.fingerprint(f"optimizer.master.{name}")


def test_arguments(run, tmp_path):
    for wrong, hint in (
        ({"codec": "splt"}, "did you mean 'split'?"),
        ({"to": "torch-dits"}, "formats"),
        ({"dtype": "int8"}, "bf16"),
    ):
        with pytest.raises(libdcp.UsageError) as raised:
            libdcp.reshard(run, tmp_path / "x", **wrong)
        assert hint in raised.value.hint
    libdcp.reshard(run, tmp_path / "some", select=["*.wte.*", "*.wpe.*"], dtype="fp32")
    with libdcp.open(tmp_path / "some") as ckpt:
        assert {t.param for t in ckpt.values()} == {
            "transformer.wte.weight",
            "transformer.wpe.weight",
        }
        assert {t.dtype for t in ckpt.values()} == {"float32"}


def test_export(run, tmp_path):
    torch, safetensors = peer("torch"), peer("safetensors.torch")
    libdcp.export(run, tmp_path / "model.bin", weights="master", dtype="fp32")
    libdcp.export(run, tmp_path / "model.safetensors")
    masters = torch.load(tmp_path / "model.bin")
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    with libdcp.open(run) as ckpt:
        assert set(weights) == set(ckpt.state_dict()) == set(masters)
        for name, weight in weights.items():
            assert torch.equal(weight, ckpt[name].torch())
            assert torch.equal(masters[name], ckpt[f"optimizer.master.{name}"].torch())


@pytest.mark.parametrize("dtype, is_wider", [("float32", False), ("float16", True)])
def test_masters_that_are_no_wider(tmp_path, dtype, is_wider):
    """They say no more than the weights, and may be older."""
    torch = peer("torch")
    weight = torch.ones(2, dtype=getattr(torch, dtype))
    torch.save({"w": weight, "optimizer.master.w": torch.zeros(2)}, tmp_path / "a.pt")
    for weights, is_master in (("auto", is_wider), ("master", True)):
        made = tmp_path / f"{weights}.pt"
        libdcp.export(tmp_path / "a.pt", made, dtype="bf16", weights=weights)
        assert torch.load(made)["w"].tolist() == [float(not is_master)] * 2


def test_what_is_left_beside_a_model(tmp_path):
    torch = peer("torch")
    model = {"w": torch.ones(3), "b": torch.zeros(2)}
    average = {name: weight + 1 for name, weight in model.items()}
    torch.save({"model": model, "ema": average}, tmp_path / "all.pt")
    made = libdcp.export(tmp_path / "all.pt", tmp_path / "model.safetensors")
    assert (made.n_tensors, made.n_beside, made.n_left) == (2, 2, 0)
    made = libdcp.reshard(tmp_path / "all.pt", tmp_path / "native")
    assert (made.n_tensors, made.n_beside) == (4, 0)
    with pytest.raises(libdcp.UsageError, match="is a file: runs have steps"):
        libdcp.open(tmp_path / "all.pt", step=3)


def test_a_weight_that_is_missing(tmp_path):
    """Of what a configuration promises: as the programs, verify and reshard tell it."""
    tensors, transformers = peer("safetensors.torch"), peer("transformers")
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "hf")

    def acts(path):
        with libdcp.open(path) as ckpt:
            ckpt.verify()
        libdcp.reshard(path, tmp_path / "step", force=True, lossy=True)
        libdcp.export(path, tmp_path / "model.npz", force=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        acts(tmp_path / "hf")
    file = tmp_path / "hf" / "model.safetensors"
    weights = tensors.load_file(file)
    del weights["transformer.h.0.mlp.c_fc.bias"]
    tensors.save_file(weights, file, metadata={"format": "pt"})
    with pytest.warns(RuntimeWarning, match=r"holds \('h\.0\.mlp\.c_fc\.bias'\)") as told:
        acts(tmp_path / "hf")
    assert [w.filename for w in told] == [__file__] * 3


@pytest.fixture
def folder(tmp_path):
    """A folder of Hugging Face, as far as it is looked at."""
    torch, tensors = peer("torch"), peer("safetensors.torch")
    path = tmp_path / "hf"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "other", "limit": [0.5, 2]}')
    tensors.save_file({"w": torch.ones(2, 2)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("to", ["hf", "native", "torch-dist", "safetensors"])
def test_weights_beside_those_that_are_read(folder, tmp_path, to):
    others = {"adapter_model.safetensors", "adapter_config.json", "pytorch_model.bin"}
    others |= {"model.fp16.safetensors", "model.fp16.safetensors.index.json"}
    plain = libdcp.reshard(folder, tmp_path / "plain", to=to).n_objects_left
    for name in others:
        (folder / name).write_bytes(b"{}")
    (folder / "training_args.bin").write_bytes(b"of no model")
    made = libdcp.reshard(folder, tmp_path / "made", to=to)
    assert made.n_objects_left == plain + len(others)
    told = subprocess.run(
        [BIN / "dcp-reshard", folder, tmp_path / "made", "--to", to, "--force"],
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (x for x in told.stdout.splitlines() if x.startswith("left out"))
    assert "adapter_model.safetensors" in line and "training_args" not in line
    if to == "hf":
        assert {p.name for p in (tmp_path / "made").iterdir()} == {
            "config.json",
            "model.safetensors",
        }


@pytest.mark.parametrize("is_of_trainer", [False, True])
def test_a_config_that_is_no_json(folder, tmp_path, is_of_trainer):
    torch, config = peer("torch"), folder / "config.json"
    if is_of_trainer:
        optim = torch.optim.SGD([torch.ones(2, 2, requires_grad=True)])
        torch.save(optim.state_dict(), folder / "optimizer.pt")
    whole = config.read_text()
    for text in (whole[:20], ""):
        config.write_text(text)
        with pytest.raises(libdcp.CorruptError, match=r"config\.json"):
            libdcp.open(folder)
        with pytest.raises(libdcp.CorruptError, match=r"config\.json"):
            libdcp.reshard(folder, tmp_path / "made")
    for text in ("{}", "[1]", whole.replace("2]", "Infinity]")):
        config.write_text(text)
        assert list(libdcp.open(folder)) == ["w"]


def test_diff(run, tmp_path):
    libdcp.export(run, tmp_path / "model.bin")
    with libdcp.open(run) as a, libdcp.open(tmp_path / "model.bin") as b:
        diff = a.diff(b)
        assert diff.n_same == 16 and not diff.same
        assert {d.how for d in diff.differences} == {"only a"}
        assert {a[d.a].role for d in diff.differences} == {
            "master",
            "exp_avg",
            "exp_avg_sq",
        }
        with pytest.raises(libdcp.UsageError):
            a.diff(a)
    torch = peer("torch")
    state = torch.load(tmp_path / "model.bin")
    state["transformer.wpe.weight"].view(torch.int16)[3, 5] ^= 1
    torch.save(state, tmp_path / "other.bin")
    with (
        libdcp.open(tmp_path / "model.bin") as a,
        libdcp.open(tmp_path / "other.bin") as b,
    ):
        (found,) = a.diff(b).differences
        assert (found.how, found.a, found.first) == (
            "bits",
            "transformer.wpe.weight",
            3 * 16 + 5,
        )
        assert a.fingerprint(found.a) != b.fingerprint(found.a)


def test_repair(run):
    before = libdcp.open(run).state_dict("all") if peer("torch") else {}
    shard = run / "step-00000010" / "shard-00001-of-00004.safetensors"
    whole = shard.read_bytes()
    flip(shard)
    with libdcp.open(run) as ckpt:  # reads through the parity
        after = ckpt.state_dict("all")
        assert all(before[name].equal(after[name]) for name in before)
        assert "shard-00001" in ckpt.info.corruption
    made = libdcp.repair(run)
    assert made.files == (("step-00000010", shard.name),)
    assert shard.read_bytes() == whole
    (run / "step-00000010" / "parity-00000-of-00001.bin").unlink()
    libdcp.reshard(run, run / "without", force=True)
    with pytest.raises(libdcp.NotFoundError, match="parity"):
        libdcp.repair(run / "without")


def test_formats():
    told = subprocess.run(
        [BIN / "dcp-reshard", "formats", "--json"], capture_output=True, check=True
    )
    rows = json.loads(told.stdout)["formats"]
    ours = libdcp.formats()
    assert [f.name for f in ours] == [row["name"] for row in rows]
    assert {f.name for f in ours if f.writes} >= {"native", "torch", "deepspeed"}


class Bar:
    """As tqdm is made and called."""

    made: list[Bar] = []  # noqa: RUF012

    def __init__(self, total: int, unit: str, unit_scale: bool) -> None:
        self.total, self.n, self.closed = total, 0, False
        Bar.made.append(self)

    def update(self, n: int) -> None:
        self.n += n

    def close(self) -> None:
        self.closed = True


def test_progress_of_bars(run, tmp_path):
    libdcp.reshard(run, tmp_path / "x", progress=Bar)
    (bar,) = Bar.made
    assert bar.n == bar.total > 0 and bar.closed
    libdcp.reshard(run, tmp_path / "y", codec="split", progress=Bar)  # fewer bytes
    assert Bar.made[1].n == Bar.made[1].total


def test_closed(run):
    """Nothing says that there is nothing."""
    with libdcp.open(run) as ckpt:
        assert "trainer" in ckpt.objects
        with pytest.raises(libdcp.UsageError, match=r"libdcp\.open opens it"):
            ckpt.diff(str(run))
    with pytest.raises(libdcp.UsageError, match="is closed"):
        ckpt.objects.get("trainer", {})
    with pytest.raises(libdcp.UsageError, match="a step is a whole number"):
        libdcp.open(run, step="1")


def test_configurations(run, tmp_path):
    """A model's, as a dict, a text or a file."""
    with libdcp.open(run) as ckpt:
        config = ckpt.objects["model_config"]
    (tmp_path / "c.json").write_text(json.dumps(config))
    ways = (config, json.dumps(config), tmp_path / "c.json", str(tmp_path / "c.json"))
    for i, way in enumerate(ways):
        libdcp.export(run, tmp_path / f"hf{i}", config=way)
        assert json.loads((tmp_path / f"hf{i}" / "config.json").read_text())
    libdcp.save({"w": peer("numpy").ones(2)}, tmp_path / "bare", step=1)
    with pytest.raises(libdcp.MismatchError) as told:
        libdcp.export(tmp_path / "bare", tmp_path / "hf")
    assert told.value.hint.startswith('config=FILE gives one; to="safetensors" writes')
    with pytest.raises(libdcp.NotFoundError, match=r"config: 'none\.json' is no JSON"):
        libdcp.export(run, tmp_path / "hf", config="none.json")


def test_callbacks_that_raise(run, tmp_path):
    def fail(done: int, total: int) -> None:
        raise RuntimeError(f"at {done}")

    with pytest.raises(RuntimeError, match="at "):
        libdcp.reshard(run, tmp_path / "x", progress=fail)
    assert not (tmp_path / "x").exists()
    with libdcp.open(run) as ckpt:
        with pytest.raises(RuntimeError):
            ckpt.verify(progress=fail)
        with pytest.raises(RuntimeError):
            ckpt.state_dict(progress=fail) if peer("torch") else None


def test_ctrl_c(run, tmp_path):
    """In the middle of an act: it stops, KeyboardInterrupt is raised, nothing is left."""
    code = """
import os, signal, sys, threading, time, libdcp
signal.signal(signal.SIGINT, signal.default_int_handler) # ignored below a shell's "&"
begun, sent = threading.Event(), threading.Event()
def wait(done, total):
    begun.set()
    sent.wait()
    time.sleep(0.05)
def interrupt():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)
    sent.set()
threading.Thread(target=interrupt, daemon=True).start()
try:
    libdcp.reshard(sys.argv[1], sys.argv[2], world_size=3, progress=wait)
except KeyboardInterrupt:
    print("stopped")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
with libdcp.open(sys.argv[1]) as ckpt: # which goes on working
    ckpt.verify()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, run, tmp_path / "x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")
    assert os.listdir(tmp_path) == ["step-00000010"]


@pytest.mark.parametrize("begins", [False, True])
def test_ctrl_c_as_the_call_begins(monkeypatch, begins):
    """Then it is not made, or its end is waited for: it uses the caller's memory."""
    start, said, threads = threading.Thread.start, [], []

    def slow():
        said.append("begun")
        time.sleep(0.1)
        said.append("ended")
        return 0

    def interrupted(thread):
        if begins:
            start(thread)
            threads.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Act().run(slow)
    before = list(said)
    for thread in threads:
        thread.join()
    assert said == before and len(said) in ((0, 2) if begins else (0,))


def test_what_ctypes_would_cut_off(tmp_path):
    """A text is no list of texts, and numbers have the range that the library has."""
    numpy = pytest.importorskip("numpy")
    state = {"a.bias": numpy.ones(2), "a.weight": numpy.ones(3)}
    libdcp.save(state, tmp_path / "run", step=1)
    for wrong in (
        {"select": "*.bias"},
        {"select": ["a.bias", None]},
        {"trust": "mine.*"},
        {"parity": 1 << 32},
        {"world_size": (1 << 32) + 3},
        {"memory_bytes": -1},
        {"step": (1 << 64) + 1},
    ):
        with pytest.raises(libdcp.UsageError):
            libdcp.reshard(tmp_path / "run", tmp_path / "other", **wrong)
    assert not (tmp_path / "other").exists()
    made = libdcp.export(
        tmp_path / "run", tmp_path / "a.npz", only="all", threads=1 << 30
    )
    assert made.n_objects_left == 1  # of the trainer
