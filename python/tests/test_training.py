"""Saves and loads of training: plain, sharded and tensor parallel, on real ranks."""

from __future__ import annotations

import datetime
import os
import subprocess
import warnings

import pytest
from conftest import BIN, flip, peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.checkpoint.state_dict")  # once, not in each rank
peer("torch.distributed.tensor.parallel")
peer("torch._dynamo")
peer("torch.distributed.fsdp")


class Net(torch.nn.Module):
    """Uneven at 2, 3 and 4 ranks, with a buffer and tied weights."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(33, 10)
        self.up = torch.nn.Linear(10, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.down = torch.nn.Linear(16, 10, bias=False)
        self.head = torch.nn.Linear(10, 33, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        h = torch.nn.functional.gelu(self.up(self.embed(x)))
        return self.head(self.down(self.norm(h)))


def parallel(net, way):
    """The net, in the way that it is parallel."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    n = dist.get_world_size() if dist.is_initialized() else 1
    if way == "ddp":
        return torch.nn.parallel.DistributedDataParallel(net)
    if way == "fsdp":
        for part in (net.up, net.down):
            fully_shard(part)
        fully_shard(net)
    elif way.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        mesh = init_device_mesh("cpu", (n,)) if way == "fsdp1 mesh" else None
        return FullyShardedDataParallel(
            net, use_orig_params=True, device_id=torch.device("cpu"), device_mesh=mesh
        )
    elif way == "hsdp":
        names = ("replicate", "shard")
        fully_shard(net, mesh=init_device_mesh("cpu", (2, n // 2), mesh_dim_names=names))
    elif way == "fsdp x tp":
        mesh = init_device_mesh("cpu", (n // 2, 2), mesh_dim_names=("dp", "tp"))
        net.norm = torch.nn.Identity()
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(net, mesh["tp"], plan)
        fully_shard(net, mesh=mesh["dp"])
    return net


def make(way, seed):
    net = parallel(Net(seed), way)
    optim = torch.optim.AdamW(net.parameters(), lr=1e-2)
    return net, optim, torch.optim.lr_scheduler.StepLR(optim, 2)


def train(net, optim, sched, steps):
    """All ranks learn from the same samples, so that every way learns the same."""
    losses = []
    for step in steps:
        x = torch.randint(33, (8,), generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.cross_entropy(net(x), x)
        loss.backward()
        optim.step()
        optim.zero_grad()
        sched.step()
        losses.append(loss.item())
    return losses


def save(way, path):
    """Train, save, and go on."""
    net, optim, sched = make(way, 1)
    train(net, optim, sched, range(3))
    state = {
        "model": net,
        "optim": optim,
        "sched": sched,
        "step": 3,
        "extra": {"seen": torch.arange(5), "names": ["a", 1, 2.5, None]},
    }
    result = libdcp.save(state, path, step=3, codec="split")
    return result.fingerprint, train(net, optim, sched, range(3, 6))


def resume(way, path):
    """Load into what was made of another seed, and go on."""
    net, optim, sched = make(way, 2)
    extra = {"seen": torch.zeros(5, dtype=torch.int64), "names": None}
    state = {"model": net, "optim": optim, "sched": sched, "step": 0, "extra": extra}
    result = libdcp.load(state, path)
    assert (result.step, state["step"]) == (3, 3)
    assert extra["names"] == ["a", 1, 2.5, None]
    assert torch.equal(extra["seen"], torch.arange(5))
    assert sched.last_epoch == 3
    again = libdcp.save(state, f"{path}-{way}", step=3)
    return again.fingerprint, train(net, optim, sched, range(3, 6))


@pytest.mark.parametrize(
    "way, world, others",
    [
        ("plain", 1, [("fsdp", 2), ("ddp", 2), ("fsdp1", 2)]),
        ("fsdp1", 3, [("fsdp1 mesh", 2)]),
        ("fsdp", 4, [("plain", 1), ("fsdp", 3), ("hsdp", 4)]),
    ],
    ids=["plain", "fsdp1", "fsdp"],
)
def test_goes_on_in_other_ways(tmp_path, way, world, others):
    run = str(tmp_path / "run")
    saved = run_ranks(world, save, way, run)
    (fingerprint, losses) = saved[0]
    subprocess.run([BIN / "dcp-inspect", "verify", run], check=True)
    for other, n in others:
        for rank, (again, got) in enumerate(run_ranks(n, resume, other, run)):
            assert got == pytest.approx(losses, abs=1e-6), (other, n)
            if rank == 0:  # the very same state, as it was saved at another world size
                assert again == fingerprint


def test_meshes(tmp_path):
    """FSDP x TP on 4 ranks goes on with 2, to the same losses."""
    run = str(tmp_path / "run")
    fingerprint, losses = run_ranks(4, save, "fsdp x tp", run)[0]
    again, got = run_ranks(2, resume, "fsdp x tp", run)[0]
    assert again == fingerprint
    assert got == pytest.approx(losses, abs=1e-5)


class Counter:
    """An object with a step of its own."""

    def state_dict(self):
        return {"step": 70}

    def load_state_dict(self, _state):
        pass


def test_the_trainer_counts_as_the_save_does(tmp_path):
    """Conversions and dcp-train number by it; ranks refuse it together."""
    for trainer in ({"step": 70}, {"epoch": 3}, 5, None, [1], Counter()):
        with pytest.raises(libdcp.UsageError, match=r"'trainer' is .*'step': 5\}"):
            libdcp.save({"trainer": trainer}, tmp_path / "run", step=5)
    assert not os.path.exists(tmp_path / "run")
    state = {"trainer": {"step": 70, "epoch": 3}, "w": torch.ones(2)}
    libdcp.save(state, tmp_path / "run", step=70)
    into = {"trainer": None, "w": torch.zeros(2)}
    libdcp.load(into, tmp_path / "run")
    assert into["trainer"] == state["trainer"]


def test_steps_are_ordinary(tmp_path):
    fingerprint, _ = save("plain", tmp_path / "run")
    with libdcp.open(tmp_path / "run") as ckpt:
        assert (ckpt.info.step, ckpt.info.format) == (3, "native")
        assert ckpt["up.weight"].role == "model"
        assert ckpt["norm.running_mean"].role == "buffer"
        moment = ckpt["optimizer.exp_avg.up.weight"]
        assert (moment.role, moment.param) == ("exp_avg", "up.weight")
        assert ckpt.objects["trainer"] == {"step": 3}
        group = ckpt.info.optimizer["param_groups"][0]
        assert group["betas"] == [0.9, 0.999] and "up.weight" in group["params"]
        net = Net(3)
        net.load_state_dict(ckpt.state_dict())
    libdcp.export(tmp_path / "run", tmp_path / "model.bin")
    state = torch.load(tmp_path / "model.bin")
    assert all(
        torch.equal(state[k], v) for k, v in net.state_dict().items() if k in state
    )
    assert len(fingerprint) == 16


def stage(path, load):
    """A pipeline: each rank has layers of its own."""
    rank = dist.get_rank()
    mine = {f"layer{rank}": torch.full((3, 2), float(0 if load else rank + 1))}
    state = {"net": mine, "both": torch.zeros(2) if load else torch.arange(2.0)}
    if load:
        libdcp.load(state, path)
    else:
        libdcp.save(state, path, step=1)
    return mine[f"layer{rank}"].sum().item(), state["both"].tolist()


def test_pipeline(tmp_path):
    run_ranks(2, stage, tmp_path / "run", False)
    assert set(libdcp.open(tmp_path / "run")) == {"net.layer0", "net.layer1", "both"}
    assert run_ranks(2, stage, tmp_path / "run", True) == [
        (6.0, [0.0, 1.0]),
        (12.0, [0.0, 1.0]),
    ]


def fail(path, how):
    """What this rank says of a save that cannot be, and whether training goes on."""
    state = {"w": torch.zeros(4)}
    if how == "one rank" and dist.get_rank() == 1:
        state["w"] = torch.zeros(4).to_sparse()
    try:
        libdcp.save(state, path, step=1)
    except libdcp.Error as why:
        libdcp.save({"w": torch.zeros(4)}, path, step=2)
        return type(why).__name__, why.message
    return None


def test_failures_are_of_all_ranks(tmp_path):
    run = tmp_path / "run"
    libdcp.save({"w": torch.ones(4)}, run, step=1)
    told = run_ranks(2, fail, run, "step is there")
    assert told[0] == told[1] and told[0][0] == "ExistsError"
    told = run_ranks(2, fail, tmp_path / "other", "one rank")
    assert told[1][0] == "UnsupportedError"
    assert told[0][0] == "CommError" and told[1][1] in told[0][1]
    assert libdcp.open(tmp_path / "other").info.step == 2


def refuse(path):
    """What is said of DTensors that are no boxes of numbers."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard

    mesh = init_device_mesh("cpu", (2,))
    summed = DTensor.from_local(torch.ones(4), mesh, [Partial()])
    changed = DTensor.from_local(torch.ones(4), mesh, [Shard(0)])
    changed._local_tensor = changed._local_tensor.double()
    longer = DTensor.from_local(torch.ones(4), mesh, [Shard(0)])
    longer._local_tensor = torch.ones(5)
    told = []
    for tensor in (summed, changed, longer):
        with pytest.raises(libdcp.UnsupportedError) as why:
            libdcp.save({"w": tensor}, path, step=1)
        told.append(why.value.message)
    return told


def test_no_boxes(tmp_path):
    told = run_ranks(2, refuse, tmp_path / "run")
    assert told[0] == told[1]
    for text, words in zip(told[0], ("were not made", "of float32, and its", "no box")):
        assert text.startswith("'w' ") and words in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["a\0b", "half \ud800"])
def test_names_that_c_cannot_have(tmp_path, name):
    """In C it would be another name: what is saved would come back under that."""
    for value in torch.ones(1), 5:
        with pytest.raises(libdcp.UsageError, match="is no name"):
            libdcp.save({name: value, "b?": torch.ones(1)}, tmp_path / "run", step=1)
    with pytest.raises(libdcp.UsageError, match="is no name"):
        libdcp.load({name: torch.ones(1)}, tmp_path / "run")
    libdcp.save({"ü?": torch.ones(2), "w": torch.ones(3)}, tmp_path / "run", step=1)
    found = libdcp.open(tmp_path / "run").tensors
    assert {key: held.shape for key, held in found.items()} == {"ü?": (2,), "w": (3,)}


def test_paths_that_c_would_cut(tmp_path):
    run, cut = tmp_path / "run", f"{tmp_path}/run\0other"
    libdcp.save({"w": torch.ones(1)}, run, step=1)
    for act in (
        lambda: libdcp.open(cut),
        lambda: libdcp.save({"w": torch.ones(1)}, cut, step=2),
        lambda: libdcp.save_async({"w": torch.ones(1)}, cut, step=2),
        lambda: libdcp.load({"w": torch.ones(1)}, cut),
        lambda: libdcp.reshard(run, cut),
        lambda: libdcp.reshard(cut, tmp_path / "out"),
        lambda: libdcp.export(cut, tmp_path / "out"),
        lambda: libdcp.repair(cut),
    ):
        with pytest.raises(ValueError, match=r"NUL|null byte"):
            act()
    assert sorted(p.name for p in run.glob("step-*")) == ["step-00000001"]


def die(path):
    """Rank 1 is gone in the middle of a job."""
    dist.barrier()  # it was there
    if dist.get_rank() == 1:
        os._exit(0)
    state = {"w": torch.zeros(4)}
    with pytest.raises(libdcp.CommError, match="could not talk"):
        libdcp.save(state, path / "run", step=1)
    with pytest.raises(libdcp.CommError, match="could not talk"):
        libdcp.load(state, path / "run")
    (path / "told").touch()


def test_a_dead_rank(tmp_path):
    with pytest.raises(AssertionError, match="the rank died"):
        run_ranks(2, die, tmp_path)
    assert os.listdir(tmp_path) == ["told"]


class Opaque:
    """Of no kind that a pickle may have in it."""

    def __eq__(self, other):
        return type(other) is Opaque


def test_values(tmp_path):
    """What is no JSON is a pickle; one that could run a program is loaded when the caller
    says so, and nothing is written to before.
    """
    run = tmp_path / "run"
    odd = ["a\0b", {"half \ud800": "of a character"}]  # no JSON that the library reads
    values = {"set": {1, 2}, "tuple": (1, 2), "nul": odd[0], "half": odd[1]}
    values.update(numbers={1: float("inf"), None: 2j}, when=datetime.timedelta(3))
    libdcp.save({**values, "w": torch.ones(3)}, run, step=1)
    state = {**dict.fromkeys(values), "w": torch.zeros(3)}
    libdcp.load(state, run)
    assert {name: state[name] for name in values} == values
    libdcp.save({**values, "own": Opaque(), "w": torch.ones(3)}, run, step=2)
    state = {**dict.fromkeys(values), "own": None, "w": torch.zeros(3)}
    with pytest.raises(libdcp.UnsupportedError, match="'own' is a pickle"):
        libdcp.load(state, run)
    with pytest.raises(libdcp.NotFoundError, match="'other'"):
        libdcp.load({"w": state["w"], "other": 1}, run)
    assert not state["w"].any() and state["set"] is None
    libdcp.load(state, run, trust_pickles=True)
    assert state["own"] == Opaque()


def test_states_like_the_one_before(tmp_path):
    """What was told of the last state is told again, where nothing of it is other."""
    run = tmp_path / "run"
    a, b = torch.randn(4, 6), torch.randn(4, 6)
    states = [
        {"a": a, "b": b},
        {"a": b, "b": a},
        {"b": a, "a": b},
        {"a": a.bfloat16(), "b": b},
        {"a": a.view(6, 4), "b": b},
        {"a": a, "b": b, "c": b[:1]},
        {"a": a, "b": b},
        {"a": a, "d": b},
        {"n": {"a": a, "b": b}},
    ]
    for step, state in enumerate(states):
        libdcp.save(state, run, step=step)
    weight = torch.nn.Linear(6, 4, bias=False)
    libdcp.save({"weight": weight.weight.detach()}, run, step=len(states))
    libdcp.save({"model": weight}, run, step=len(states) + 1)  # the role alone
    for step, state in enumerate(states):
        with libdcp.open(run, step=step) as found:
            saved = {name: tensor.torch() for name, tensor in found.tensors.items()}
        wanted = {f"n.{k}": v for k, v in state["n"].items()} if "n" in state else state
        assert saved.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert saved[name].dtype == tensor.dtype
            assert torch.equal(saved[name], tensor)
    for step, role in enumerate(("other", "model"), len(states)):
        with libdcp.open(run, step=step) as found:
            assert found.tensors["weight"].role == role


def test_memory_that_is_not_dense(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    libdcp.save({"t": whole.T, "part": whole[:, 1:3]}, tmp_path / "run", step=1)
    place = torch.zeros(3, 4)
    loaded = {"t": torch.zeros(3, 4).T, "part": place[:, 1:3]}
    libdcp.load(loaded, tmp_path / "run")
    assert torch.equal(loaded["t"], whole.T)
    assert torch.equal(place[:, 1:3], whole[:, 1:3]) and place[:, 0].sum() == 0


def test_what_does_not_fit(tmp_path):
    run = tmp_path / "run"
    libdcp.save({"w": torch.ones(3, 4)}, run, step=1)
    for wrong in (torch.zeros(3, 5), torch.zeros(3, 4, dtype=torch.bfloat16)):
        with pytest.raises(libdcp.MismatchError, match="'w'"):
            libdcp.load({"w": wrong}, run)
    cast = {"w": torch.zeros(3, 4, dtype=torch.bfloat16)}
    libdcp.load(cast, run, allow_cast=True)
    assert cast["w"].sum() == 12
    with pytest.raises(libdcp.MismatchError, match="'v'"):
        libdcp.load({"v": torch.zeros(3)}, run)
    with pytest.raises(libdcp.UsageError, match="model must be in the state"):
        optim = torch.optim.SGD(Net(1).parameters(), lr=1)
        libdcp.save({"optim": optim}, run, step=2)


def test_a_model_that_is_smaller(tmp_path):
    """What the step has besides is named: it may be the wrong model, or the wrong run."""
    layers = [torch.nn.Linear(2, 2) for _ in range(3)]
    net, less = torch.nn.Sequential(*layers), torch.nn.Sequential(*layers[:2])
    libdcp.save({"model": net}, tmp_path, step=1)
    with pytest.warns(RuntimeWarning, match=r"2 weights .* not, '2\.(bias|weight)'"):
        libdcp.load({"model": less}, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load({"model": net}, tmp_path)
        libdcp.load({"0.weight": torch.zeros(2, 2)}, tmp_path)  # asked for by its name


def test_subnormal_numbers_are_kept(tmp_path):
    """PyTorch may flush them to zero; what it sets for its own sums is not for casts."""
    halves = torch.arange(1, 1001, dtype=torch.int16).view(torch.float16)
    small = torch.arange(1, 1001).float() * 2**-24
    run, out = str(tmp_path / "run"), str(tmp_path / "out.safetensors")
    libdcp.save({"w": halves, "x": small}, run, step=0)
    into = {"w": torch.zeros(1000), "x": torch.zeros(1000, dtype=torch.float16)}
    assert torch.set_flush_denormal(True)
    try:
        libdcp.load(into, run, allow_cast=True)
        libdcp.export(run, out, dtype="fp16", only="all")
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(into["w"], halves.float())
    assert torch.equal(into["x"], halves)
    with libdcp.open(out) as ckpt:
        assert torch.equal(ckpt["x"].torch(), halves)


def test_scales_keep_subnormal_numbers(tmp_path):
    """FP8 by its scale is cast, too: what comes out may be subnormal in FP32."""
    save_file = peer("safetensors.torch").save_file
    scale = torch.full((1, 1), 2.0**-130)
    tensors = {"w.weight": torch.ones(4, 4).to(torch.float8_e4m3fn)}
    source, out = tmp_path / "f8.safetensors", tmp_path / "f32.safetensors"
    save_file({**tensors, "w.weight_scale_inv": scale}, source)
    assert torch.set_flush_denormal(True)
    try:
        libdcp.export(source, out, dtype="fp32", only="all")
    finally:
        torch.set_flush_denormal(False)
    with libdcp.open(out) as ckpt:
        assert (ckpt["w.weight"].torch().view(torch.int32) == 1 << 19).all()


def test_tied_weights_under_one_name(tmp_path):
    """Whichever of its names a step has a tied weight by."""
    for step, name in enumerate(("embed.weight", "head.weight")):
        net = Net(1)
        weights = {k: v for k, v in net.state_dict().items() if k != name}
        libdcp.save(weights, tmp_path / "run", step=step)
        other = Net(2)
        libdcp.load({"model": other}, tmp_path / "run", step=step)
        assert torch.equal(other.embed.weight, net.embed.weight)
        assert other.head.weight is other.embed.weight
    del weights["embed.weight"]
    libdcp.save(weights, tmp_path / "run", step=2)
    with pytest.raises(libdcp.MismatchError, match=r"embed\.weight"):
        libdcp.load({"model": Net(2)}, tmp_path / "run")


def test_older_steps(tmp_path):
    """keep, a corrupt newest step that is passed over, parity."""
    run = tmp_path / "run"
    for step in range(1, 5):
        libdcp.save({"w": torch.full((9,), float(step))}, run, step=step, keep=3)
    assert sorted(p.name for p in run.glob("step-*"))[0] == "step-00000002"
    (shard,) = (run / "step-00000004").glob("*.safetensors")
    flip(shard)
    state = {"w": torch.zeros(9)}
    with pytest.warns(RuntimeWarning, match="step-00000004"):
        assert libdcp.load(state, run).step == 3
    assert state["w"][0] == 3
    assert libdcp.load(state, run, step=2).step == 2
