"""What save_state of accelerate leaves alone, whom it calls, and what it refuses."""

from __future__ import annotations

import os
import pathlib
import warnings

import pytest
from conftest import peer
from ranks import run_ranks

import libdcp

torch = peer("torch")
dist = peer("torch.distributed")
accelerate = peer("accelerate")
import libdcp.accelerate  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::libdcp.StaleWarning"),
    pytest.mark.usefixtures("accelerate_anew"),
]


def trained(n_models=1, **naming):
    """An accelerator of ours, with its models, and an optimizer of each."""
    config = accelerate.utils.ProjectConfiguration(**naming)
    accelerator = accelerate.Accelerator(cpu=True, project_config=config)
    models = [torch.nn.Linear(2, 2) for _ in range(n_models)]
    optims = [torch.optim.AdamW(model.parameters()) for model in models]
    made = accelerator.prepare(*models, *optims)
    for model, optim in zip(made[:n_models], made[n_models:]):
        model(torch.ones(1, 2)).sum().backward()
        optim.step()
    return libdcp.accelerate.hook(accelerator), made[:n_models]


def fill(models, value):
    with torch.no_grad():
        for model in models:
            model.weight.fill_(value)


def seen(folder):
    return sorted(n for n in os.listdir(folder) if n not in ("latest", ".dcp-lock"))


def test_folders_that_are_there(tmp_path, monkeypatch):
    """What others put there stays, also their steps; the last save takes the place."""
    accelerator, models = trained()
    (tmp_path / "out" / "src").mkdir(parents=True)
    (tmp_path / "out" / "train.py").touch()
    (tmp_path / "link").symlink_to("out")
    libdcp.save({"own": 1}, tmp_path / "out", step=7)
    monkeypatch.chdir(tmp_path / "out")
    for n, folder in enumerate([tmp_path / "out", tmp_path / "link", "."]):
        fill(models, float(n))
        accelerator.save_state(folder)
        steps = ["step-00000007", f"step-{8 + n:08}"]
        assert seen(tmp_path / "out") == ["src", *steps, "train.py"]
        fill(models, -1.0)
        accelerator.load_state(folder)
        assert models[0].weight.mean() == n
    assert (tmp_path / "link").is_symlink()
    libdcp.save({"own": 1}, tmp_path / "out", step=99)
    accelerator.load_state(tmp_path / "out")
    # Another process, which counts from 0.
    accelerator, models = trained()
    fill(models, 5.0)
    accelerator.save_state(tmp_path / "out")
    accelerator, models = trained()
    accelerator.load_state(tmp_path / "out")
    assert models[0].weight.mean() == 5.0


def with_hooks(accelerator, extra):
    """As diffusers do it: a model is written by a hook, and another thing, too."""

    def save(models, weights, folder):
        os.makedirs(os.path.join(folder, "unet"), exist_ok=True)
        torch.save(models[-1].state_dict(), os.path.join(folder, "unet", "it.pt"))
        weights.pop()
        torch.save(extra, os.path.join(folder, "extra.pt"))

    def load(models, folder):
        state = torch.load(os.path.join(folder, "unet", "it.pt"))
        models.pop().load_state_dict({k: v + 100 for k, v in state.items()})
        extra.update(torch.load(os.path.join(folder, "extra.pt")))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)


def test_hooks(tmp_path, monkeypatch):
    """They are called, and what they write is published with the step."""
    accelerator, models = trained(2)
    extra = {"ema": 1}
    with_hooks(accelerator, extra)
    fill(models, 1.0)
    accelerator.save_state(tmp_path / "it")
    assert seen(tmp_path / "it") == ["extra.pt", "step-00000000", "unet"]
    with libdcp.open(tmp_path / "it") as ckpt:
        assert "bias" in ckpt.tensors and "1.weight" not in ckpt.tensors
    moments = [
        dict(o.optimizer.state_dict()["state"][0]) for o in accelerator._optimizers
    ]

    def resumed():
        accelerator, models = trained(2)
        with_hooks(accelerator, extra)
        fill(models, 0.0)
        extra["ema"] = 0
        accelerator.load_state(tmp_path / "it")
        for before, optim in zip(moments, accelerator._optimizers):
            now = optim.optimizer.state_dict()["state"][0]
            assert all(torch.equal(before[key], now[key]) for key in before)
        return [model.weight.mean().item() for model in models], extra["ema"]

    assert resumed() == ([1.0, 101.0], 1)  # what the hook loads is the last word
    # In a folder that is there: others stay, and a failed save changes nothing.
    (tmp_path / "it" / "unet" / "theirs").touch()
    fill(models, 2.0)
    extra["ema"] = 2

    def fail(*_args, **_how):
        raise libdcp.IoError("it fails")

    with monkeypatch.context() as patch:
        patch.setattr(libdcp.accelerate, "save", fail)
        with pytest.raises(libdcp.IoError, match="it fails"):
            accelerator.save_state(tmp_path / "it")
    assert seen(tmp_path / "it") == ["extra.pt", "step-00000000", "unet"]
    assert resumed() == ([1.0, 101.0], 1)
    extra["ema"] = 2
    accelerator.save_state(tmp_path / "it")
    assert seen(tmp_path / "it") == ["extra.pt", "step-00000001", "unet"]
    assert seen(tmp_path / "it" / "unet") == ["it.pt", "theirs"]
    assert resumed() == ([2.0, 102.0], 2)
    accelerator, models = trained(2)
    saved = models[0].state_dict()
    for change in (lambda w: w.append({"x": 1}), lambda w: w[0].update(saved)):
        hook = accelerator.register_save_state_pre_hook(lambda _m, w, _f, c=change: c(w))
        with pytest.raises(libdcp.UnsupportedError, match="other weights"):
            accelerator.save_state(tmp_path / "it")
        hook.remove()


def test_a_number_below_those_there(tmp_path):
    """load_state would take the newest number."""
    where = {"project_dir": str(tmp_path), "automatic_checkpoint_naming": True}
    for number, warned in ((3, 0), (4, 0), (0, 1)):
        accelerator, _ = trained(**where)
        accelerator.project_configuration.iteration = number
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            accelerator.save_state()
        told = [one for one in told if "checkpoint_4, which" in str(one.message)]
        assert len(told) == warned


def test_old_ones_stay_until_the_new_one_is_complete(tmp_path, monkeypatch):
    naming = {"automatic_checkpoint_naming": True, "total_limit": 1}
    accelerator, _ = trained(project_dir=str(tmp_path), **naming)
    accelerator.save_state()
    with monkeypatch.context() as patch:
        patch.setattr(libdcp.accelerate, "save", lambda *_args, **_how: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            accelerator.save_state()
    assert os.listdir(tmp_path / "checkpoints") == ["checkpoint_0"]
    accelerator.save_state()
    assert os.listdir(tmp_path / "checkpoints") == ["checkpoint_1"]


def test_arguments(tmp_path):
    """Each is honoured, or named in what is raised."""
    accelerator, _ = trained()
    with pytest.warns(RuntimeWarning, match="safe_serialization=False does nothing"):
        accelerator.save_state(tmp_path / "it", safe_serialization=False)
    accelerator.load_state(tmp_path / "it", map_location="cpu", strict=True)
    with pytest.raises(libdcp.UsageError, match="does not take 'strict'"):
        accelerator.load_state(tmp_path / "it", strict=False)
    with pytest.raises(libdcp.UsageError, match="does not take 'load_kwargs'"):
        accelerator.load_state(tmp_path / "it", {"weights_only": False})
    with pytest.raises(libdcp.UsageError, match="does not take 'exclude'"):
        accelerator.save_state(tmp_path / "it", exclude=True)
    with pytest.raises(libdcp.UsageError, match="does not take 'keep'"):
        libdcp.accelerate.hook(accelerator, keep=3)


def save_on_ranks(folder):
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    os.environ |= {"ACCELERATE_USE_CPU": "true"}
    accelerator, _ = trained()

    def write(_models, _weights, folder):
        pathlib.Path(folder, f"of-rank-{rank}").touch()
        if rank == "1" and accelerator.step == 9:
            raise ValueError("on rank 1")

    accelerator.register_save_state_pre_hook(write)
    accelerator.save_state(folder)
    accelerator.save_state(folder)
    accelerator.step = 9
    with pytest.raises((ValueError, libdcp.CommError), match="on rank 1"):
        accelerator.save_state(folder)
    dist.barrier()
    accelerator.load_state(folder)
    return seen(folder)


def test_ranks(tmp_path):
    """All of them save, also what hooks write on each; what one raises, all do."""
    told = run_ranks(2, save_on_ranks, str(tmp_path / "it"))
    assert told == [["of-rank-0", "of-rank-1", "step-00000001"]] * 2
