"""Nested states come back as they were, and folders appear whole."""

from __future__ import annotations

import collections
import datetime
import math
import multiprocessing
import os
import pathlib

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.checkpoint.state_dict")
from libdcp import _folder, _tree  # noqa: E402

ALONE = _tree.Alone()


def saved_and_loaded(path, tree, **how):
    _tree.save_tree(tree, path, 1, ALONE)
    return _tree.load_tree(path, **how)


def test_trees(tmp_path):
    weight = torch.arange(6.0).view(2, 3)
    tree = {
        "state": {0: {"exp_avg": weight.T, "step": 3}, 1: [], "1": None},
        "a.b": torch.ones(2, dtype=torch.bfloat16),
        "a": {"b": torch.zeros(0, 4), "c": torch.tensor(True)},
        "same": [weight, (weight, weight[:1])],
        "ordered": collections.OrderedDict(b=1, a=(2.5, "x")),
        "size": torch.Size([2, 3]),
        "odd": [math.inf, -1 << 70, b"\0\xff", {1, 2}, torch.float16, "a\0b"],
        "path": pathlib.Path("/a/b"),
        "device": torch.device("cpu"),
        "": {(1, "x"): True},
    }
    got = saved_and_loaded(tmp_path / "run", tree)
    flat, spec = torch.utils._pytree.tree_flatten(tree)
    flat_got, spec_got = torch.utils._pytree.tree_flatten(got)
    assert spec == spec_got
    for a, b in zip(flat, flat_got):
        same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        assert type(a) is type(b) and same, (a, b)
    assert got["same"][0] is got["same"][1][0] and got["size"].numel() == 6
    assert got["same"][1][1].shape == (1, 3)
    with libdcp.open(tmp_path / "run") as ckpt:
        assert ckpt["state.0.exp_avg"].shape == (3, 2)


def test_state_dicts_keep_their_versions(tmp_path):
    """`_metadata`, without which a module takes its own state for an old one."""
    net = torch.nn.BatchNorm1d(2)
    got = saved_and_loaded(tmp_path / "run", {"net": net.state_dict()})["net"]
    assert type(got) is collections.OrderedDict
    assert got._metadata == net.state_dict()._metadata == {"": {"version": 2}}
    assert type(got._metadata) is collections.OrderedDict
    old = {"dict": {"net": {"ordered dict": [["a", {"path": "/a"}]]}}}  # without them
    made = _tree._Decoder({}, {}, False).decoded(old)
    assert made == {"net": collections.OrderedDict(a=pathlib.Path("/a"))}


def test_texts_that_are_no_json(tmp_path):
    """Keys, values and paths; tensors below such keys have names without them."""
    tree = {
        "a\0b": torch.ones(1),
        "a?b": torch.zeros(1),
        "\ud800": {"x\udcff": [1, "\ud800"]},
        "path": [pathlib.Path(os.fsdecode(b"/x\xff")), pathlib.Path("/a")],
        "state_dict": {"w\0": torch.ones(2), "w?": torch.ones(3)},
        "text": {"text": "a"},
    }
    got = saved_and_loaded(tmp_path / "run", tree)
    tensors = [got.pop("a\0b"), got.pop("a?b"), *got.pop("state_dict").values()]
    assert [t.tolist() for t in tensors] == [[1], [0], [1, 1], [1, 1, 1]]
    assert got == {key: tree[key] for key in got} and len(got) == 3
    with libdcp.open(tmp_path / "run") as ckpt:
        assert sorted(ckpt)[:2] == ["a?b", "a?b~2"]
        assert isinstance(ckpt.objects["tree"], dict)


def test_plain_values_of_other_classes(tmp_path):
    """They come back as what they were, and need no trust."""
    tree = {
        "posix": pathlib.PurePosixPath("/a/b"),
        "when": datetime.datetime(2026, 1, 2),
        "deque": collections.deque([1, (2, 3)], maxlen=4),
        "slice": slice(1, 2),
        "frozen": frozenset({1}),
        "default": collections.defaultdict(list, a=[1]),
    }
    got = saved_and_loaded(tmp_path / "run", tree)
    assert got == tree and [type(v) for v in got.values()] == [
        type(v) for v in tree.values()
    ]


def dtensors(path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tree = {
        str(i): distribute_tensor(torch.full((4, 4), i), mesh, [Replicate()])
        for i in range(3)
    }
    if dist.get_rank() == 0:
        got = saved_and_loaded(f"{path}/whole", tree)
        assert all((got[name] == int(name)).all() for name in tree)
    part = distribute_tensor(torch.arange(8), mesh, [Shard(0)])
    if dist.get_world_size() > 1:
        with pytest.raises(libdcp.UnsupportedError, match="this rank saves alone"):
            saved_and_loaded(f"{path}/part{dist.get_rank()}", {"part": part})


@pytest.mark.parametrize("world", [1, 2])
def test_dtensors(tmp_path, world):
    """They say of no memory where it lies: each is itself all the same."""
    run_ranks(world, dtensors, str(tmp_path))


def test_parameters(tmp_path):
    """They are such again, and one that stands twice is one."""
    weight = torch.nn.Parameter(torch.ones(2))
    fixed = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    tree = {
        "it": [weight, fixed, weight.detach(), torch.zeros(2, requires_grad=True)],
        "same": weight,
    }
    got = saved_and_loaded(tmp_path / "run", tree)
    assert [type(t) for t in got["it"]] == [type(t) for t in tree["it"]]
    assert [t.requires_grad for t in got["it"]] == [True, False, False, True]
    assert got["same"] is got["it"][0] and torch.equal(got["same"], weight)


def test_pickles_are_not_trusted(tmp_path):
    with pytest.raises(libdcp.UnsupportedError, match="'it' is a pickle"):
        saved_and_loaded(tmp_path / "run", {"it": pytest.approx})
    got = _tree.load_tree(tmp_path / "run", trust_pickles=True)
    assert got == {"it": pytest.approx}
    with pytest.raises(libdcp.UnsupportedError, match="'w'"):
        saved_and_loaded(tmp_path / "no", {"w": torch.ones(3).to_sparse()})
    assert not (tmp_path / "no").exists() or not list((tmp_path / "no").glob("step-*"))


def ranks_save(path, fails):
    from libdcp._act import Act
    from libdcp._ranks import Ranks

    ranks = Ranks(Act())
    tree = {"mine": torch.full((3,), float(dist.get_rank())), "n": dist.get_rank()}
    if fails and dist.get_rank() == 1:
        tree["bad"] = torch.ones(3).to_sparse()
    try:
        with _folder.published(path, ranks) as hidden:
            _tree.save_tree(tree, hidden, 4, ranks)
    except libdcp.Error as why:
        return type(why).__name__
    return _tree.load_tree(path, rank=1)["mine"].tolist()


def test_ranks_and_failures(tmp_path):
    """Each has a tree of its own; a failure of one leaves what was there."""
    path = tmp_path / "it"
    assert run_ranks(2, ranks_save, path, False) == [[1.0] * 3] * 2
    told = run_ranks(2, ranks_save, path, True)
    assert told == ["CommError", "UnsupportedError"]
    assert _tree.load_tree(path, rank=1)["n"] == 1
    assert run_ranks(2, ranks_save, path, False) == [[1.0] * 3] * 2  # in its place
    assert [p.name for p in tmp_path.iterdir()] == ["it"]


def test_folders(tmp_path):
    """A name is taken at once, given back at once, and old files make room."""
    (tmp_path / "it").write_text("a file", encoding="utf-8")
    with pytest.raises(ZeroDivisionError), _folder.published(tmp_path / "it", ALONE):
        raise ZeroDivisionError
    assert (tmp_path / "it").read_text(encoding="utf-8") == "a file"
    with _folder.published(tmp_path / "it", ALONE) as hidden:
        pathlib.Path(hidden, "new").touch()
    assert [p.name for p in tmp_path.rglob("*")] == ["it", "new"]
    (tmp_path / "link").symlink_to("it")
    _folder.removed(tmp_path / "link")
    assert (tmp_path / "it" / "new").exists()
    _folder.removed(tmp_path / "it")
    assert list(tmp_path.iterdir()) == []


def put(folder, name):
    pathlib.Path(folder, name).touch()


def names_in(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_saves_at_the_same_time(tmp_path):
    """Each has a hidden folder of its own, also two of one name; so has a removal."""
    (tmp_path / "old").mkdir()
    with _folder.published(tmp_path / "a", ALONE) as a:
        put(a, "of-a")
        with _folder.published(tmp_path / "b", ALONE) as b:
            put(b, "of-b")
            _folder.removed(tmp_path / "old")
        assert names_in(tmp_path / "b") == ["of-b"]
        with _folder.published(tmp_path / "a", ALONE) as same:
            put(same, "of-the-other-a")
        assert names_in(tmp_path / "a") == ["of-the-other-a"]
        put(a, "more-of-a")
    assert names_in(tmp_path) == ["a", "a/more-of-a", "a/of-a", "b", "b/of-b"]


def hold(path, ready, go_on):
    with _folder.published(path, ALONE) as folder:
        put(folder, "mine")
        ready.set()
        go_on.wait()


def test_killed_saves_are_cleaned_up(tmp_path):
    """By the next one of that name, and not while the process lives."""
    context = multiprocessing.get_context("fork")
    ready, go_on = context.Event(), context.Event()
    args = (tmp_path / "a", ready, go_on)
    saver = context.Process(target=hold, args=args, daemon=True)
    saver.start()
    assert ready.wait(60)

    def save(name):
        with _folder.published(tmp_path / name, ALONE) as folder:
            put(folder, name)
        return [name for name in os.listdir(tmp_path) if name.startswith(".")]

    assert len(save("a")) == 1  # the other one's
    saver.kill()
    saver.join()
    (left,) = save("b")
    assert names_in(tmp_path / left) == ["lock", "new", "new/mine"]
    assert save("a") == []
    assert names_in(tmp_path) == ["a", "a/a", "b", "b/b"]
    long = "n" * 250  # names have up to 255 bytes
    assert save(long) == [] and names_in(tmp_path / long) == [long]
