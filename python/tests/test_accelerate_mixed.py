"""Folders of save_state in which accelerate and libdcp both saved, and other objects."""

from __future__ import annotations

import os

import pytest
from conftest import flip, peer

import libdcp

torch = peer("torch")
accelerate = peer("accelerate")
import libdcp.accelerate  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::libdcp.StaleWarning"),
    pytest.mark.usefixtures("accelerate_anew"),
]


class Holds:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def made(ours, values=(), n_scheds=1):
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(2, 2)
    optim = torch.optim.AdamW(model.parameters())
    scheds = [torch.optim.lr_scheduler.StepLR(optim, 1) for _ in range(n_scheds)]
    model, optim, *_ = accelerator.prepare(model, optim, *scheds)
    held = [Holds(value) for value in values]
    accelerator.register_for_checkpointing(*held)
    if ours:
        libdcp.accelerate.hook(accelerator)
    return accelerator, model, optim, held


def save(folder, ours, value):
    accelerator, model, optim, _ = made(ours)
    model(torch.ones(1, 2)).sum().backward()
    model.weight.grad.fill_(value)
    optim.step()
    with torch.no_grad():
        model.weight.fill_(value)
    accelerator.save_state(folder)


def loaded(folder):
    accelerator, model, _, _ = made(True)
    accelerator.load_state(folder)
    return model.weight.mean().item()


def test_the_newer_one_of_both(tmp_path):
    """Ours over theirs is loaded; theirs over ours is not passed over for what is old."""
    save(tmp_path, False, 1.0)
    assert loaded(tmp_path) == 1.0
    save(tmp_path, True, 2.0)
    assert loaded(tmp_path) == 2.0
    save(tmp_path, False, 3.0)
    with pytest.raises(
        libdcp.MismatchError, match="step-00000000 of libdcp, and optim"
    ) as why:
        loaded(tmp_path)
    assert "move away" in why.value.hint
    (tmp_path / "model.safetensors").touch()  # which others write, too
    save(tmp_path, True, 4.0)
    assert loaded(tmp_path) == 4.0
    for name in os.listdir(tmp_path):
        if not name.startswith(("step-", "latest")):
            (tmp_path / name).unlink()
    assert loaded(tmp_path) == 4.0


def test_a_step_of_somebody_else(tmp_path):
    """Theirs are loaded beside it; not where it cannot be told whose it is."""
    save(tmp_path, False, 1.0)
    libdcp.save({"own": 1}, tmp_path, step=7)
    assert loaded(tmp_path) == 1.0
    save(tmp_path, True, 2.0)
    flip(tmp_path / "step-00000008" / "manifest.json", 40)
    with pytest.raises(libdcp.CorruptError):
        loaded(tmp_path)


def test_other_objects(tmp_path):
    """Not as many registered ones: nothing is loaded. One schedule less: a warning."""
    made(True, (1, 2), 2)[0].save_state(tmp_path)
    for values in ((0,), (0, 0, 0), ()):
        accelerator, model, _, held = made(True, values, 2)
        before = model.weight.clone()
        with pytest.raises(libdcp.MismatchError, match="has 2 registered objects"):
            accelerator.load_state(tmp_path)
        assert torch.equal(model.weight, before) and all(h.value == 0 for h in held)
    accelerator, _, _, held = made(True, (0, 0), 1)
    with pytest.warns(RuntimeWarning, match="has 2 schedulers, and the accelerator 1"):
        accelerator.load_state(tmp_path)
    assert [h.value for h in held] == [1, 2]


def test_other_numbers_of_models(tmp_path):
    """A single one has another name than several: that is said before it is sought."""

    def prepared(n):
        accelerator = accelerate.Accelerator(cpu=True)
        libdcp.accelerate.hook(accelerator)
        models = [torch.nn.Linear(2, 2) for _ in range(n)]
        accelerator.prepare(*models)
        return accelerator

    prepared(2).save_state(tmp_path)
    with pytest.raises(libdcp.MismatchError, match="has 2 models, and the accelerator 1"):
        prepared(1).load_state(tmp_path)


def test_a_step_that_tells_nothing(tmp_path, monkeypatch):
    """As the first ones did; files of accelerate beside it may be older."""
    save(tmp_path, False, 1.0)
    monkeypatch.setattr(libdcp.accelerate, "_counts", lambda _: {})
    save(tmp_path, True, 2.0)
    monkeypatch.undo()
    monkeypatch.setattr(libdcp.accelerate, "_told_by", lambda _: {})
    assert loaded(tmp_path) == 2.0


def test_options():
    """What the first save would refuse is refused at once."""
    accelerator = accelerate.Accelerator(cpu=True)
    hook = libdcp.accelerate.hook
    with pytest.raises(libdcp.UsageError, match="does not take 'paritty'") as why:
        hook(accelerator, paritty=1)
    assert "'parity'" in why.value.hint
    for how in ({"step": -1}, {"keep": -2}, {"codec": 3}, {"parity": -1}, {"codec": "x"}):
        with pytest.raises(libdcp.UsageError):
            hook(accelerator, **how)
    with pytest.raises(libdcp.UsageError, match="there is no export in 'bf17'"):
        hook(accelerator, export="bf17")
    hook(accelerator, keep_every=0, export="bfloat16")  # as without the first
    accelerator.project_configuration.save_on_each_node = True
    with pytest.warns(RuntimeWarning, match="save_on_each_node does nothing"):
        hook(accelerator, parity=1, codec="split")
