"""Trainers with methods of their own, what is loaded when, and saves of both kinds."""

from __future__ import annotations

import os
import types

import pytest
from conftest import peer
from test_plugins import Net, Samples

import libdcp

torch = peer("torch")
transformers = peer("transformers")
peer("accelerate")
import libdcp.transformers  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::libdcp.StaleWarning"),
    pytest.mark.usefixtures("accelerate_anew"),
]


def trainer_of(run, kind=transformers.Trainer, ours=True, steps=2, optim=None, **more):
    arguments = transformers.TrainingArguments(
        output_dir=str(run),
        use_cpu=True,
        max_steps=steps,
        save_steps=2,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **more,
    )
    made = kind(
        model=Net(),
        args=arguments,
        train_dataset=Samples(),
        optimizer_cls_and_kwargs=optim,
    )
    return libdcp.transformers.hook(made, parity=0) if ours else made


SAVES = ("_save_checkpoint", "save_model", "_save", "_save_rng_state")
SAVES += ("_save_optimizer_and_scheduler", "_save_scaler")
LOADS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state")


def with_own(names, calls):
    """A class that overrides these, and puts a file into what is saved."""

    def override(name):
        def own(self, *args, **kwargs):
            getattr(super(Own, self), name)(*args, **kwargs)
            calls.append(name)
            if name in SAVES[1:]:
                with open(os.path.join(args[0], f"of{name}"), "w", encoding="utf-8"):
                    pass

        return own

    Own = type("Own", (transformers.Trainer,), {name: override(name) for name in names})
    return Own


@pytest.mark.parametrize("ours", [False, True])
def test_overrides_are_called(tmp_path, ours):
    """As the Trainer calls them; what they save is published with the step."""
    calls = []
    own = with_own(SAVES + LOADS, calls)
    trainer_of(tmp_path, own, ours).train()
    ckpt = tmp_path / "checkpoint-2"
    expected = ["_save", "save_model", "_save_optimizer_and_scheduler", "_save_scaler"]
    assert calls == [*expected, "_save_rng_state", "_save_checkpoint"]
    assert {f"of{name}" for name in SAVES[1:]} <= set(os.listdir(ckpt))
    weights = {"model.safetensors", "optimizer.pt", "rng_state.pth"}
    assert weights.isdisjoint(os.listdir(ckpt)) == ours
    calls.clear()
    trainer = trainer_of(tmp_path, own, ours, steps=3)
    trainer.train(resume_from_checkpoint=True)
    assert calls[:3] == list(LOADS) and isinstance(trainer, own)
    trainer.save_model(str(tmp_path / "model"))  # no checkpoint: the Trainer's own
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_overrides_that_leave_ours_out():
    """Are told of when they are hooked."""

    class Alone(transformers.Trainer):
        def _save_checkpoint(self, *args, **kwargs):
            transformers.Trainer._save_checkpoint(self, *args, **kwargs)

    with pytest.raises(
        libdcp.UsageError, match=r"Alone\._save_checkpoint calls no super"
    ):
        trainer_of("unused", Alone)

    class Random(transformers.Trainer):
        def _load_rng_state(self, checkpoint):
            pass

    with pytest.warns(RuntimeWarning, match=r"Random\._load_rng_state calls no super"):
        trainer_of("unused", Random)
    trainer = trainer_of("unused", ours=False)
    trainer._load_rng_state = types.MethodType(lambda *_: None, trainer)
    with pytest.raises(libdcp.UsageError, match="'_load_rng_state' was put on"):
        libdcp.transformers.hook(trainer)


class Copies(torch.optim.AdamW):
    """Copies weights when it is made, as those do that keep an average."""

    def __init__(self, params, **how):
        super().__init__(params, **how)
        params = [p for group in self.param_groups for p in group["params"]]
        self.copies = [(param, param.detach().clone()) for param in params]


def test_weights_are_there_before_the_optimizer(tmp_path):
    optim = (Copies, {"lr": 1e-2})
    trainer_of(tmp_path, optim=optim).train()
    resumed = trainer_of(tmp_path, optim=optim)  # whose rate is 0 at the end
    resumed.train(resume_from_checkpoint=True)
    assert not torch.equal(resumed.model.up.weight, Net().up.weight)
    assert all(torch.equal(*pair) for pair in resumed.optimizer.optimizer.copies)


class Slow:
    """An optimizer around another, with weights of its own, as Lookahead has them."""

    def __init__(self, optimizer):
        self.optimizer, self.n = optimizer, 0
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    def step(self, closure=None):
        self.optimizer.step(closure)
        self.n += 1
        for slow, param in zip(self.slow, self.param_groups[0]["params"]):
            slow.lerp_(param.detach(), 0.5)

    def zero_grad(self, **how):
        self.optimizer.zero_grad(**how)

    def state_dict(self):
        return {"n": self.n, "slow": self.slow, "inner": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.n, self.slow = state["n"], [slow.clone() for slow in state["slow"]]
        self.optimizer.load_state_dict(state["inner"])


def test_an_optimizer_around_another(tmp_path):
    """All of it is saved, as the Trainer does, not the one within alone."""

    class Wrapped(transformers.Trainer):
        def create_optimizer(self, *_args, **_how):
            if self.optimizer is None:
                self.optimizer = Slow(torch.optim.AdamW(self.model.parameters(), 1e-2))
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            inner = self.optimizer.optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(inner, 2)
            return self.lr_scheduler

    first = trainer_of(tmp_path, Wrapped)
    first.train()
    resumed = trainer_of(tmp_path, Wrapped)
    resumed.create_optimizer_and_scheduler(2)
    resumed._load_optimizer_and_scheduler(str(tmp_path / "checkpoint-2"))
    assert resumed.optimizer.n == 2
    assert str(resumed.optimizer.state_dict()) == str(first.optimizer.state_dict())


def test_weights_of_a_class_that_loads_its_own(tmp_path):
    """They are not loaded over; the optimizer goes on."""

    class Own(transformers.Trainer):
        def _load_from_checkpoint(self, _folder, model=None):
            torch.nn.init.ones_(self.model.up.weight)

    trainer_of(tmp_path).train()
    trainer = trainer_of(tmp_path, Own)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.model.up.weight.eq(1).all()
    assert trainer.optimizer.optimizer.state[trainer.model.up.weight]["step"] == 3


@pytest.mark.parametrize("only", [False, True])
def test_a_save_of_the_trainer_over_ours(tmp_path, only):
    """Neither the rest of a training nor its best model comes from what is old."""
    trainer_of(tmp_path, save_only_model=only).train()
    other = trainer_of(tmp_path, ours=False, save_only_model=only, logging_steps=1)
    other.train()
    ckpt = str(tmp_path / "checkpoint-2")
    first = "model.safetensors" if only else "optimizer.pt"
    trainer = trainer_of(tmp_path)
    before = trainer.model.up.weight.clone()
    with pytest.raises(libdcp.MismatchError, match=f"step 2 of libdcp, and {first}"):
        trainer.train(resume_from_checkpoint=ckpt)
    trainer.state.best_model_checkpoint = ckpt
    with pytest.raises(libdcp.MismatchError, match="saved over it"):
        trainer._load_best_model()
    assert torch.equal(trainer.model.up.weight, before)


def test_weights_that_others_put_beside_the_step(tmp_path):
    trainer_of(tmp_path).train()
    ckpt = tmp_path / "checkpoint-2"
    (ckpt / "model.safetensors").touch()
    trainer = trainer_of(tmp_path)
    with pytest.warns(
        RuntimeWarning, match=r"model\.safetensors was put into .* after step 2"
    ):
        trainer.train(resume_from_checkpoint=str(ckpt))


def test_options():
    for how in ({"paritty": 1}, {"step": 1}, {"keep": 2}, {"codec": 3}, {"threads": -1}):
        with pytest.raises(libdcp.UsageError):
            libdcp.transformers.hook(None, **how)
    with pytest.warns(RuntimeWarning, match="save_on_each_node does nothing"):
        trainer_of("unused", save_on_each_node=True)
