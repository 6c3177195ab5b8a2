"""What ranks have alike, what each has of its own, and what they must agree on."""

from __future__ import annotations

import contextlib
import functools
import warnings

from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
import torch.distributed as dist  # noqa: E402


def said(act):
    """What it raises, and what it warns of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            act()
            why = None
        except libdcp.Error as error:
            why = f"{type(error).__name__}: {error}"
    return why, [str(w.message) for w in told if "tensor '" in str(w.message)]


class Meter:
    """Counts in tensors, on each rank its own."""

    def __init__(self):
        self.sums, self.n = [torch.zeros(500) for _ in range(6)], 0

    def state_dict(self):
        return {"sums": self.sums, "n": self.n}

    def load_state_dict(self, state):
        self.sums, self.n = state["sums"], state["n"]


def steps_that_differ(path):
    rank = dist.get_rank()
    state = {"w": torch.ones(3)}
    found = [
        said(lambda: libdcp.save(state, path, step=rank)),
        said(lambda: libdcp.save(state, path, step=5, parity=rank)),
        said(lambda: libdcp.save_async(state, path, step=5, keep=rank)),
    ]
    with contextlib.suppress(libdcp.Error):  # of one rank alone
        libdcp.save(state, path, step=5, keep=-rank)
    libdcp.save(state, path, step=6)
    found.append(said(lambda: libdcp.load(state, path, step=6 + rank)))
    act = (libdcp.save, libdcp.load)[rank]
    found.append(said(lambda: act(state, path, step=6)))
    libdcp.load(state, path)
    return [why for why, _ in found]


def test_ranks_that_mean_different_things(tmp_path):
    first, second = run_ranks(2, steps_that_differ, str(tmp_path))
    assert first == second
    for why, what in zip(first, ("step", "parity", "keep", "step", "call")):
        assert why.startswith(f"MismatchError: ranks mean different things: {what} is ")
    assert sorted(p.name for p in tmp_path.iterdir() if "step" in p.name) == [
        "step-00000006"
    ]


def counting(path):
    rank, meter, told = dist.get_rank(), Meter(), []
    for step in (1, 2):
        told.append(
            said(functools.partial(libdcp.save, {"meter": meter}, path, step=step))
        )
        torch._foreach_add_(meter.sums, 1 + rank)
        meter.n += 1 + rank
    got = Meter()
    libdcp.load({"meter": got}, path)
    counter = torch.zeros(1)
    libdcp.save({"count": counter}, path, step=3)
    counter += rank
    told.append(said(lambda: libdcp.save({"count": counter}, path, step=4)))
    turned = (torch.zeros(3, 2) + rank).T  # never saved so far
    told.append(said(lambda: libdcp.save({"turned": turned}, f"{path}-2", step=1)))
    return told, {float(x) for part in got.sums for x in part}, got.n


def arguments_that_are_wrong(path):
    first = dist.get_rank() == 0
    state = {"w": torch.ones(3)}

    def one(wrong, right):
        return right if first else wrong

    acts = [
        lambda: libdcp.save(state, one(None, path), step=1),
        lambda: libdcp.save_async(state, one("", path), step=1),
        lambda: libdcp.save(state, path, step=1, threads=one("two", 0)),
        lambda: libdcp.load(state, one(None, path)),
        lambda: libdcp.load(state, path, threads=one(-1, 0)),
        lambda: one(libdcp.save_async, libdcp.save)(state, path, step=1),
        lambda: libdcp.save(state, one(path + "/b", path + "/a"), step=1),
    ]
    found = []
    for act in acts:
        found.append(said(act)[0])
        with contextlib.suppress(libdcp.ExistsError):
            libdcp.save(state, path, step=len(found), threads=1 + len(found) % 2)
    return found


def test_what_is_wrong_on_one_rank(tmp_path):
    """It is raised on all ranks, and the next save works; threads may differ."""
    first, second = run_ranks(2, arguments_that_are_wrong, str(tmp_path))
    for of_first, of_second in zip(first[:5], second[:5]):
        assert of_second.startswith("UsageError: "), of_second
        assert of_first == f"CommError: rank 1 failed: {of_second}"
    assert first[5:] == second[5:]
    assert "call is 'save' on rank 0, 'save_async' on rank 1" in first[5]
    assert "path is '" in first[6] and not (tmp_path / "a").exists()


def warnings_are_errors(path):
    meter = Meter()
    meter.sums[0] += dist.get_rank()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = []
        for n, act in enumerate((libdcp.save, libdcp.save_async)):
            try:
                made = act({"meter": meter}, path, step=n)
                found.append(made.wait().step if n else made.step)
            except RuntimeWarning as why:
                found.append(str(why))
    libdcp.save({"w": torch.ones(3)}, path, step=9)
    return found


def test_warnings_that_are_errors(tmp_path):
    """They are raised when the step is complete, and nobody waits for who raises."""
    first, second = run_ranks(2, warnings_are_errors, str(tmp_path))
    assert second == [0, 1]
    assert all("'meter.sums.0' is not the same on all" in why for why in first), first
    for n in (0, 1, 9):
        libdcp.open(tmp_path, step=n).verify()


def test_what_differs_after_the_first_save(tmp_path):
    """Of objects rank 0's tensors are saved, and that is told; a tensor is refused."""
    ((first, *more), (others, *rest)) = run_ranks(2, counting, str(tmp_path))
    names = [f"tensor 'meter.sums.{i}'" for i in range(6)]
    why = "is not the same on all ranks: that of rank 0 is saved"
    assert first[:2] == [(None, []), (None, [f"{name} {why}" for name in names])]
    assert others[:2] == [(None, [])] * 2
    assert first[2][0] == others[2][0]
    assert first[2][0].startswith("MismatchError: tensor 'count' is not the same on all")
    assert first[3][0].startswith("MismatchError: tensor 'turned' is not the same on all")
    assert more == [{1.0}, 1] and rest == [{1.0}, 2]


class Trusts(torch.optim.SGD):
    """Keeps something small, which only later differs."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("trust", torch.zeros(4))


def small_state(path):
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    optim = Trusts(net.parameters(), lr=0.1)
    told = []
    for step in (1, 2, 3):
        net(torch.ones(1, 2)).sum().backward()
        optim.step()
        if step == 3:
            optim.state[net.module.bias]["trust"] += dist.get_rank()
        act = functools.partial(libdcp.save, {"model": net, "optim": optim}, path)
        told.append(said(functools.partial(act, step=step))[0])
    return told


def test_state_of_an_optimizer_after_the_first_save(tmp_path):
    """What is small of it is compared each time."""
    for *first, last in run_ranks(2, small_state, str(tmp_path)):
        assert first == [None, None]
        assert last.startswith("MismatchError: tensor 'optimizer.trust.bias' is not the")


def shared_statistics(path):
    """One BatchNorm stands in two places of the model."""
    norm = torch.nn.BatchNorm1d(2)
    net = torch.nn.Sequential(norm, torch.nn.Linear(2, 2), norm)
    ddp = torch.nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    for step in (1, 2):
        ddp(torch.randn(4, 2) + dist.get_rank())
        libdcp.save({"model": ddp}, path, step=step)
    into = torch.nn.Sequential(norm, net[1], norm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        libdcp.load({"model": into}, path)


def test_statistics_in_two_places(tmp_path):
    run_ranks(2, shared_statistics, str(tmp_path))


def statistics_of_a_stage(path):
    """Rank 0 has none: those of rank 1 are saved, also in the second save."""
    net, rank = torch.nn.Module(), dist.get_rank()
    net.add_module(f"own{rank}", torch.nn.Linear(1, 1))
    if rank:
        net.stage = torch.nn.ModuleList(torch.nn.BatchNorm1d(500) for _ in range(4))
    for step in (1, 2):
        for norm in net.stage if rank else ():
            norm(torch.randn(10, 500) * (rank + step))
        libdcp.save({"model": net}, path, step=step)
        first = {n: b.clone() for n, b in net.named_buffers()} if rank == 1 else None
        told = [None] * 3
        dist.all_gather_object(told, first)
        if rank:
            libdcp.load({"model": net}, path)
            assert all(torch.equal(b, told[1][n]) for n, b in net.named_buffers())
        else:
            libdcp.load({"model": net}, path)


def test_statistics_that_rank_0_has_not(tmp_path):
    run_ranks(3, statistics_of_a_stage, tmp_path)


class Holds:
    def __init__(self, held):
        self.held = held

    def state_dict(self):
        return {"t": self.held}

    def load_state_dict(self, told):
        self.held = told["t"]


def objects_of_other_ranks(path):
    """A DTensor whole on ranks 1 and 2, and one that lies on rank 1 alone."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    rank = dist.get_rank()
    mesh = DeviceMesh("cpu", [1, 2])
    for n_rows, placement in ((2, Replicate()), (1, Shard(0))):
        n_mine = n_rows if isinstance(placement, Replicate) else int(rank == 1)

        def made(value, n_mine=n_mine, n_rows=n_rows, placement=placement):
            local = torch.full((n_mine, 4), value)
            how = {"shape": torch.Size((n_rows, 4)), "stride": (4, 1)}
            return Holds(DTensor.from_local(local, mesh, [placement], **how))

        for step in (1, 2):
            libdcp.save({"x": made(float(step))}, f"{path}-{n_rows}", step=step)
            into = made(0.0)
            libdcp.load({"x": into}, f"{path}-{n_rows}")
            if rank:
                assert (into.held._local_tensor == step).all()


def test_objects_that_rank_0_has_nothing_of(tmp_path):
    run_ranks(3, objects_of_other_ranks, str(tmp_path / "run"))


def late_average(path):
    """An average makes its DTensors in its first update."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    mesh, net = init_device_mesh("cpu", (2,)), torch.nn.Linear(2, 2)
    average = Holds(distribute_tensor(torch.ones(4, 2), mesh))
    libdcp.save({"model": net, "average": average}, path, step=1)
    libdcp.load({"model": net, "average": average}, path)
    into = torch.nn.Linear(2, 2)
    before = into.weight.clone()
    why, _ = said(lambda: libdcp.load({"model": into, "average": Holds({})}, path))
    return why.partition(", and")[0], torch.equal(into.weight, before)


def test_dtensors_that_an_object_has_not_yet(tmp_path):
    """They are refused before anything is written to."""
    told = run_ranks(2, late_average, str(tmp_path))
    assert told == [("MismatchError: 'average.t' of the step is a DTensor", True)] * 2


def not_of_the_group(path):
    group = dist.new_group([0])
    return said(lambda: libdcp.save({"w": torch.ones(3)}, path, step=1, group=group))


def test_ranks_that_are_not_in_the_group(tmp_path):
    first, second = run_ranks(2, not_of_the_group, str(tmp_path))
    assert first[0] is None
    assert second[0].startswith("UsageError: this rank is not in the group")


def stages(path, world):
    """A pipeline's part of four layers."""
    rank = dist.get_rank()
    per = 4 // world
    mine = range(rank * per, (rank + 1) * per)
    model = torch.nn.ModuleDict({str(i): torch.nn.Linear(2, 2) for i in mine})
    return {"model": model, "optim": torch.optim.AdamW(model.parameters(), lr=rank + 1.0)}


def save_stages(path):
    state = stages(path, 2)
    sum(layer(torch.ones(1, 2)).sum() for layer in state["model"].values()).backward()
    state["optim"].step()
    libdcp.save(state, path, step=1)


def load_stages(path):
    state = stages(path, 4)
    libdcp.load(state, path)
    (group,) = state["optim"].param_groups
    return group["lr"], len(state["optim"].state)


def test_another_number_of_stages(tmp_path):
    """Each has the settings of those that had its weights."""
    run_ranks(2, save_stages, str(tmp_path))
    told = run_ranks(4, load_stages, str(tmp_path))
    assert told == [(1.0, 2), (1.0, 2), (2.0, 2), (2.0, 2)]


def late_stage(path):
    """Rank 1 alone trains, some of its weights; fresh ones know of no momentum."""
    rank = dist.get_rank()
    net = torch.nn.ModuleDict(
        {str(rank): torch.nn.Linear(2, 2), f"un{rank}": torch.nn.Linear(1, 1)}
    )

    def make(momentum):
        if rank == 0:
            return {"model": net}
        return {"model": net, "optim": torch.optim.SGD(net.parameters(), 0.1, momentum)}

    state = make(0.9)
    if rank:
        net["1"](torch.ones(1, 2)).sum().backward()
        state["optim"].step()
    libdcp.save(state, path, step=1)
    into = make(0.0)
    libdcp.load(into, path)
    if not rank:
        return None
    ours, theirs = (s["optim"].state[net["1"].weight] for s in (into, state))
    group = into["optim"].param_groups[0]
    equal = torch.equal(ours["momentum_buffer"], theirs["momentum_buffer"])
    return equal, group["momentum"], len(into["optim"].state)


def test_an_optimizer_of_the_second_rank(tmp_path):
    assert run_ranks(2, late_stage, str(tmp_path)) == [None, (True, 0.9, 2)]


def unused(path):
    """A weight of the second stage had no gradient yet."""
    rank = dist.get_rank()
    net = torch.nn.ModuleDict({f"{n}{rank}": torch.nn.Linear(2, 2) for n in "ab"})

    def make():
        return {"model": net, "optim": torch.optim.AdamW(net.parameters())}

    state, into = make(), make()
    out = net[f"a{rank}"](torch.ones(1, 2)) + (
        net["b0"](torch.ones(1, 2)) if not rank else 0
    )
    out.sum().backward()
    state["optim"].step()
    libdcp.save(state, path, step=1)
    libdcp.load(into, path)
    return len(into["optim"].state)


def test_a_stage_with_weights_without_updates(tmp_path):
    assert run_ranks(2, unused, str(tmp_path)) == [4, 2]


def optimizer_first(path):
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(4, 4)
    fully_shard(model)
    optim = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        model(torch.ones(1, 4))  # weights stay whole until they are asked for
    return said(lambda: libdcp.save({"optim": optim, "model": model}, path, step=1))[0]


def test_an_optimizer_before_its_model(tmp_path):
    assert run_ranks(2, optimizer_first, str(tmp_path)) == [None, None]
