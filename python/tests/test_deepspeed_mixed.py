"""Tags that DeepSpeed and libdcp both saved to, and what a load at other sizes says."""

from __future__ import annotations

import os
import types
import warnings

import pytest
from conftest import peer
from ranks import run_ranks
from test_deepspeed import engine_at

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
peer("torch.distributed.checkpoint.state_dict")
for part in ("deepspeed", "functorch.compile", "torch._dynamo.testing"):
    peer(part)
peer("torch._inductor.compile_fx")
import libdcp.deepspeed  # noqa: E402
from libdcp import _tree  # noqa: E402

NAMES = ("a_states.pt", "b_states.pt")


@pytest.fixture
def saved(tmp_path):
    """A tag with a step and its marks, as the engine leaves it."""
    (tmp_path / "latest").write_text("tag", encoding="utf-8")
    tree = {name: {"w": torch.ones(2)} for name in NAMES}
    _tree.save_tree(tree, tmp_path / "tag" / "state", 1, _tree.Alone())
    for name in NAMES:
        (tmp_path / "tag" / name).write_text(libdcp.deepspeed._mark(0), encoding="utf-8")
    return tmp_path


def folder_for(engine, load_dir, **how):
    """Where DeepSpeed is let load from."""
    given = {"tag": None, "trust": False, "by_itself": False, **how}
    with libdcp.deepspeed._for_deepspeed(engine, str(load_dir), **given) as folder:
        return folder


def engine_of(universal=False):
    return types.SimpleNamespace(
        load_universal_checkpoint=lambda: universal,
        zero_optimization=lambda: True,
        mp_world_size=1,
    )


def test_deepspeeds_own_over_ours(saved):
    """They are loaded, not the step that they took the place of; a mixture is not."""
    by_itself = {"by_itself": True}
    assert folder_for(engine_of(), saved, **by_itself) != str(saved)
    torch.save({"of": "more ranks, before"}, saved / "tag" / "c_states.pt")
    assert folder_for(engine_of(), saved, **by_itself) != str(saved)
    (saved / "tag" / "c_states.pt").unlink()
    torch.save({"w": torch.zeros(2)}, saved / "tag" / NAMES[1])
    with pytest.raises(libdcp.MismatchError, match=r"and b_states\.pt, which DeepSpeed"):
        folder_for(engine_of(), saved)
    torch.save({"w": torch.zeros(2)}, saved / "tag" / NAMES[0])
    assert folder_for(engine_of(), saved, **by_itself) == str(saved)


def test_universal_checkpoints(saved):
    """DeepSpeed finds them by a file of their own."""
    assert folder_for(engine_of(True), saved, by_itself=True) == str(saved)


def test_folders_that_cannot_be_written_to(saved, monkeypatch):
    make, made = os.mkdir, []

    def mkdir(path, *args, **kwargs):
        if str(path).startswith(str(saved)):
            raise PermissionError(30, "Read-only file system", str(path))
        made.append(path)
        make(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", mkdir)
        with libdcp.deepspeed._room(str(saved), _tree.Alone()) as room:
            assert os.path.isdir(room) and room in made
        assert not os.path.exists(room)
        patch.setattr(os.path, "isdir", lambda _path: False)  # as another machine
        with (
            pytest.raises(libdcp.UnsupportedError, match="not seen by all ranks"),
            libdcp.deepspeed._room(str(saved), _tree.Alone()),
        ):
            pass


def test_errors_name_what_the_user_named(monkeypatch):
    def fail(source, *_args, **_how):
        raise libdcp.UnsupportedError(f"'{source}' has experts", file=f"{source}/it.pt")

    monkeypatch.setattr(libdcp.deepspeed, "reshard", fail)
    with pytest.raises(libdcp.UnsupportedError) as why:
        libdcp.deepspeed._reshard("run/.load/tag", "run/.load/own", 2, True, "run/tag")
    assert why.value.message == "'run/tag' has experts"
    assert why.value.file == "run/tag/it.pt" and "as many ranks" in why.value.hint


def test_options():
    """What the first save would refuse is refused at once."""
    for how in ({"paritty": 1}, {"step": -1}, {"keep": 2}, {"codec": 3}, {"parity": "1"}):
        with pytest.raises(libdcp.UsageError):
            libdcp.deepspeed.CheckpointEngine(None, trust_pickles=False, **how)


def save_own(folder):
    engine = engine_at(3)
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    state = {"mine": {"rank": dist.get_rank()}, "alike": [1, torch.ones(2)]}
    engine.save_checkpoint(folder, "tag", client_state=state)


def load_own(folder):
    engine = engine_at(3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _, state = engine.load_checkpoint(folder, "tag")
    return state["mine"]["rank"], [
        str(w.message) for w in told if w.category is RuntimeWarning
    ]


def test_values_of_each_rank(tmp_path):
    """At another number of ranks all get those of rank 0, and are told."""
    run_ranks(2, save_own, str(tmp_path))
    ((rank, told),) = run_ranks(1, load_own, str(tmp_path))
    (told,) = [text for text in told if "values of its own" in text]
    assert rank == 0 and "of 'mine' in" in told and told.endswith("those of rank 0")
    assert [rank for rank, _ in run_ranks(2, load_own, str(tmp_path))] == [0, 1]
