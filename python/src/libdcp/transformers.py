"""Checkpoints of the Trainer of Hugging Face: each is a step of libdcp.

trainer = libdcp.transformers.hook(transformers.Trainer(...), parity=1)
trainer.train(resume_from_checkpoint=True)
"""

from __future__ import annotations

import copy
import glob
import hashlib
import inspect
import json
import os
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from transformers import PreTrainedModel, Trainer, trainer_callback, trainer_utils

from ._act import Act
from ._checkpoint import open_checkpoint
from ._errors import CorruptError, MismatchError, UnsupportedError, UsageError
from ._folder import published
from ._options import check_options
from ._random import random_states, set_states_of
from ._ranks import Ranks, on_all, on_first
from ._stateful import TREE
from ._training import load, save
from ._values import first_name
from ._warn import warn

__all__ = ["hook"]

STATE = "trainer_state.json"  # of which the Trainer reads where it was
DIGEST = f"{STATE}.sha256"  # the object of the step that it is held against
BESIDE = "trainer.files"  # the object with the names of what was saved beside the step
# What the Trainer itself saves: of a whole state, and of weights, as others do, too.
THEIRS = (
    "optimizer.*",
    "scheduler.pt",
    "rng_state*.pth",
    "optimizer_[0-9]*",
    "pytorch_model_fsdp*",
)
WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*", "adapter_model.*")
# Without their super() nothing is saved or loaded by libdcp.
OURS = (
    "_save_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_rng_state",
    "_load_best_model",
)


def hook(trainer: Any, *, trust_pickles: bool = False, **how: Any) -> Any:
    """Let this Trainer save and load its checkpoints as steps.

    `checkpoint-N` in the output folder has its name when all in it is complete, durable
    and read back, so that the newest one can always be resumed from. Checkpoints that
    the Trainer wrote itself are loaded by it. Methods that the trainer's class overrides
    are called as before; their `super()` is ours, and what they write is published with
    the step. how: `parity`, `codec` and so on, as in `libdcp.save`.
    """
    check_options(how, "hook", "a checkpoint has one step; see save_total_limit")
    if trainer.is_deepspeed_enabled or trainer.args.push_to_hub:
        raise UnsupportedError(
            "checkpoints of DeepSpeed, or that are pushed to the hub, are not steps",
            hint="libdcp.deepspeed.install(engine); libdcp.export for the hub",
        )
    kind = type(trainer)
    for name in OURS:
        if name in vars(trainer):
            raise UsageError(
                f"'{name}' was put on this trainer: libdcp would not be called",
                hint="override it in a class that calls super()",
            )
        if not _reaches_super(kind, name):
            if name == "_save_checkpoint":
                raise UsageError(
                    f"{kind.__name__}.{name} calls no super(): it would save without "
                    "libdcp",
                    hint="let it call super()._save_checkpoint(...)",
                )
            warn(
                f"{kind.__name__}.{name} calls no super(): what it does is not done by "
                "libdcp"
            )
    if getattr(trainer.args, "save_on_each_node", False):
        warn("save_on_each_node does nothing: all machines save to one folder")
    if not issubclass(kind, _Hooked):
        # Behind the trainer's own class, where its super() finds it.
        bases = (_Hooked,) if kind is Trainer else (kind, _Hooked)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        trainer.__class__ = type(kind.__name__, bases, names)
    trainer._libdcp = _Use(trust_pickles, how)
    return trainer


def _reaches_super(kind: Any, name: str) -> bool:
    """Whether an override in a class looks as if it called what it overrides."""
    for cls in kind.__mro__:
        if cls in (_Hooked, Trainer):
            return True
        if name in vars(cls):
            code = getattr(inspect.unwrap(vars(cls)[name]), "__code__", None)
            if code is not None and "super" not in code.co_names:
                return False
    return True


class _Use:
    """How a trainer saves, and what it is at."""

    def __init__(self, trust_pickles: bool, how: dict[str, Any]) -> None:
        self.trust, self.how = trust_pickles, how
        self.room: str | None = None  # the folder of the save that goes on
        self.weights_of: str | None = None  # from which weights were loaded by us


class _Hooked(Trainer):  # type: ignore[misc]
    """What the Trainer calls, by steps."""

    _libdcp: _Use

    def _save_checkpoint(self, _model: Any, trial: Any = None, **_kwargs: Any) -> None:
        use, state, ranks = self._libdcp, self.state, Ranks(Act())
        if trial is None:
            self.store_flos()
        run = self._get_output_dir(trial=trial)
        folder = _folder_of(run, state.global_step)
        with published(folder, ranks) as hidden:
            told = on_first(ranks, lambda: _save_files(self, hidden))
            use.room = hidden
            try:
                on_all(ranks, lambda: self._save_overridden(hidden))
            finally:
                use.room = None
            best = state.best_global_step and _folder_of(run, state.best_global_step)
            is_there = best and on_first(ranks, lambda: os.path.isdir(best))
            if best == folder or is_there:
                state.best_model_checkpoint = best
            saved = _state_of(self, with_optim=not self.args.save_only_model)
            saved["random"] = ranks.gather(random_states())
            saved |= told
            saved |= on_first(ranks, lambda: _save_state(self, hidden))
            save(saved, hidden, step=state.global_step, **use.how)
        on_first(ranks, lambda: _rotate(self, run))

    def _save_overridden(self, folder: str) -> None:
        """Call what the trainer's class has of its own, in the Trainer's order."""
        if self._overrides("save_model") or self._overrides("_save"):
            self.save_model(folder, _internal_call=True)
        if self.args.save_only_model:
            return
        for name in ("_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state"):
            if self._overrides(name):
                getattr(self, name)(folder)

    def _overrides(self, name: str) -> bool:
        own = getattr(type(self), name, None) is not getattr(_Hooked, name)
        return own or name in vars(self)

    def save_model(self, output_dir: Any = None, *args: Any, **kwargs: Any) -> None:
        """Save as the Trainer does; in a checkpoint weights are in the step."""
        if not self._is_room(output_dir) or self._overrides("_save"):
            super().save_model(output_dir, *args, **kwargs)

    def _save(self, output_dir: Any = None, *args: Any, **kwargs: Any) -> None:
        if not self._is_room(output_dir):
            super()._save(output_dir, *args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: Any) -> None:
        if not self._is_room(output_dir):
            super()._save_optimizer_and_scheduler(output_dir)

    def _save_scaler(self, output_dir: Any) -> None:
        if not self._is_room(output_dir):
            super()._save_scaler(output_dir)

    def _save_rng_state(self, output_dir: Any) -> None:
        if not self._is_room(output_dir):
            super()._save_rng_state(output_dir)

    def _is_room(self, folder: Any) -> bool:
        return folder is not None and folder == self._libdcp.room

    def _load_from_checkpoint(self, folder: Any, *args: Any, **kwargs: Any) -> None:
        """Load weights where the Trainer does, before there is an optimizer of them.

        Not so with FSDP, where all is loaded in one place; its state is read before.
        """
        if not _is_ours(folder):
            super()._load_from_checkpoint(folder, *args, **kwargs)
            return
        with open_checkpoint(folder) as ckpt:
            _check_files(folder, ckpt)
        if not self.is_fsdp_enabled:
            load({"model": self.model}, folder)
        self._libdcp.weights_of = folder

    def _load_optimizer_and_scheduler(self, folder: Any) -> None:
        if not _is_ours(folder):
            super()._load_optimizer_and_scheduler(folder)
            return
        with open_checkpoint(folder) as ckpt:
            _check_files(folder, ckpt)
            has = set(map(first_name, ckpt.objects))
        whole = not has.isdisjoint(("sched", f"{TREE}.sched"))  # not with save_only_model
        state = _state_of(self, with_optim=whole)
        # Weights that an override loaded in its own way stay; an optimizer is loaded
        # with its model.
        own = self._libdcp.weights_of != folder and not self.is_fsdp_enabled
        weights = self.model.state_dict() if own else {}
        weights = {name: _copy(value) for name, value in weights.items()}
        load(state, folder, trust_pickles=self._libdcp.trust)
        if own:
            self.model.load_state_dict(weights)

    def _load_scaler(self, folder: Any) -> None:
        if not _is_ours(folder):  # else it was loaded with the rest
            super()._load_scaler(folder)

    def _load_rng_state(self, folder: Any) -> None:
        if not _is_ours(folder):
            super()._load_rng_state(folder)
            return
        state: dict[str, Any] = {"random": None}
        load(state, folder)
        set_states_of(state["random"], Ranks(Act()))

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if not _is_ours(best):
            super()._load_best_model()
            return
        with open_checkpoint(best) as ckpt:
            _check_files(best, ckpt)
        load({"model": self.model}, best)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _folder_of(run: str, step: int) -> str:
    return os.path.join(run, f"{trainer_utils.PREFIX_CHECKPOINT_DIR}-{step}")


def _is_ours(folder: str | None) -> bool:
    return bool(folder and glob.glob(os.path.join(glob.escape(folder), "step-*")))


def _state_of(trainer: Any, with_optim: bool) -> dict[str, Any]:
    """All that the Trainer itself would save, besides its own state."""
    state: dict[str, Any] = {"model": trainer.model}
    scaler = getattr(trainer.accelerator, "scaler", None)
    if with_optim:
        optimizer = trainer.optimizer
        is_theirs = isinstance(optimizer, AcceleratedOptimizer)
        state["optim"] = optimizer.optimizer if is_theirs else optimizer
        state["sched"] = trainer.lr_scheduler
        if scaler is not None:
            state["scaler"] = scaler
    return state


def _save_files(trainer: Any, folder: str) -> dict[str, Any]:
    """Save what the Trainer does beside tensors; what the step is to tell of that."""
    told: dict[str, Any] = {}
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    if isinstance(model, PreTrainedModel):
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__.removeprefix("FSDP")]
        config.dtype = model.dtype
        config.save_pretrained(folder)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            told["model_config"] = json.load(file)  # which exports look for
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
    collator = getattr(trainer.data_collator, "tokenizer", None)
    processing = getattr(trainer, "processing_class", None) or collator
    if processing is not None:
        processing.save_pretrained(folder)
    torch.save(trainer.args, os.path.join(folder, "training_args.bin"))
    return told


def _save_state(trainer: Any, folder: str) -> dict[str, Any]:
    """Save where the Trainer is, in the file that it looks for; what the step tells of
    that, and of all that is beside it.
    """
    callbacks = [*trainer.callback_handler.callbacks, trainer.control]
    states = trainer.state.stateful_callbacks
    for callback in callbacks:
        if isinstance(callback, trainer_callback.ExportableState):
            name = type(callback).__name__
            if isinstance(states[name], list):
                states[name].append(callback.state())
            else:
                states[name] = callback.state()
    path = os.path.join(folder, STATE)
    trainer.state.save_to_json(path)
    return {DIGEST: _digest_of(path), BESIDE: sorted(os.listdir(folder))}


def _digest_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _check_files(folder: str, ckpt: Any) -> None:
    """Hold the Trainer's file against what the step tells of it, and see that the Trainer
    did not save over the step.
    """
    path = os.path.join(folder, STATE)
    if not os.path.exists(path):
        raise CorruptError(f"{path} is missing", file=path)
    if DIGEST in ckpt.objects:
        same = ckpt.objects[DIGEST] == _digest_of(path)
    else:
        state = trainer_callback.TrainerState.load_from_json(path)
        same = state.global_step == ckpt.info.step
    later, weights = _came_later(folder, ckpt, THEIRS), _came_later(folder, ckpt, WEIGHTS)
    if later or (weights and not same):
        raise MismatchError(
            f"{folder} has step {ckpt.info.step} of libdcp, and "
            f"{(later + weights)[0]}, which was saved over it without libdcp",
            file=path,
            hint="move away the one that is not wanted: step-*, or those files",
        )
    if not same:
        raise CorruptError(
            f"{path} is not what was saved with step {ckpt.info.step}",
            file=path,
            hint="take an older checkpoint, or a copy of this file",
        )
    if weights:
        warn(
            f"{weights[0]} was put into {folder} after step {ckpt.info.step}, which is "
            "loaded"
        )


def _came_later(folder: str, ckpt: Any, patterns: tuple[str, ...]) -> list[str]:
    """Names in a folder that were not there when its step was saved."""
    begin = glob.escape(folder)
    found = (path for p in patterns for path in glob.glob(os.path.join(begin, p)))
    told = ckpt.objects.get(BESIDE, ())
    return sorted({os.path.basename(path) for path in found}.difference(told))


def _rotate(trainer: Any, run: str) -> None:
    """Remove old checkpoints, as the Trainer is told to keep some."""
    if hasattr(trainer_utils, "rotate_checkpoints"):
        trainer_utils.rotate_checkpoints(
            output_dir=run,
            save_total_limit=trainer.args.save_total_limit,
            best_model_checkpoint=trainer.state.best_model_checkpoint,
            use_mtime=True,
        )
    else:  # before transformers 5
        trainer._rotate_checkpoints(use_mtime=True, output_dir=run)
