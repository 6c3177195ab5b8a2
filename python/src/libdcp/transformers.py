"""Checkpoints of the Trainer of Hugging Face: each is a step of libdcp.

trainer = libdcp.transformers.hook(transformers.Trainer(...), parity=1)
trainer.train(resume_from_checkpoint=True)
"""

from __future__ import annotations

import copy
import glob
import hashlib
import json
import os
from typing import Any

import torch
from transformers import PreTrainedModel, trainer_callback, trainer_utils

from ._act import Act
from ._checkpoint import open_checkpoint
from ._errors import CorruptError, UnsupportedError
from ._folder import published
from ._random import random_states, set_states_of
from ._ranks import Ranks, on_first
from ._training import load, save
from ._values import SETTINGS

__all__ = ["hook"]

STATE = "trainer_state.json"  # of which the Trainer reads where it was
DIGEST = f"{STATE}.sha256"  # the object of the step that it is held against


def hook(trainer: Any, *, trust_pickles: bool = False, **how: Any) -> Any:
    """Let this Trainer save and load its checkpoints as steps.

    `checkpoint-N` in the output folder has its name when all in it is complete, durable
    and read back, so that the newest one can always be resumed from. Checkpoints that
    the Trainer wrote itself are loaded by it. how: `parity`, `codec` and so on, as in
    `libdcp.save`.
    """
    if trainer.is_deepspeed_enabled or trainer.args.push_to_hub:
        raise UnsupportedError(
            "checkpoints of DeepSpeed, or that are pushed to the hub, are not steps",
            hint="libdcp.deepspeed.install(engine); libdcp.export for the hub",
        )
    theirs = {
        name: getattr(trainer, name)
        for name in (
            "_load_from_checkpoint",
            "_load_optimizer_and_scheduler",
            "_load_scaler",
            "_load_rng_state",
            "_load_best_model",
        )
    }

    def save_checkpoint(_model: Any, trial: Any = None, **_kwargs: Any) -> None:
        state, ranks = trainer.state, Ranks(Act())
        if trial is None:
            trainer.store_flos()
        run = trainer._get_output_dir(trial=trial)
        folder = _folder_of(run, state.global_step)
        best = _folder_of(run, state.best_global_step) if state.best_global_step else None
        if best == folder or (best and on_first(ranks, lambda: os.path.isdir(best))):
            state.best_model_checkpoint = best
        saved = _state_of(trainer, with_optim=not trainer.args.save_only_model)
        saved["random"] = ranks.gather(random_states())
        with published(folder, ranks) as hidden:
            saved |= on_first(ranks, lambda: _save_files(trainer, hidden))
            save(saved, hidden, step=state.global_step, **how)
        on_first(ranks, lambda: _rotate(trainer, run))

    def load_checkpoint(folder: str | None) -> None:
        if not _is_ours(folder):
            theirs["_load_optimizer_and_scheduler"](folder)
            return
        with open_checkpoint(folder) as ckpt:  # type: ignore[arg-type]
            _check_state(folder, ckpt)  # type: ignore[arg-type]
            whole = SETTINGS in ckpt.objects  # not so with save_only_model
        state = _state_of(trainer, with_optim=whole)
        load(state, folder, trust_pickles=trust_pickles)  # type: ignore[arg-type]

    def load_best() -> None:
        best = trainer.state.best_model_checkpoint
        if not _is_ours(best):
            theirs["_load_best_model"]()
            return
        load({"model": trainer.model}, best)

    def load_random(folder: str | None) -> None:
        if not _is_ours(folder):
            theirs["_load_rng_state"](folder)
            return
        state = {"random": None}
        load(state, folder)  # type: ignore[arg-type]
        set_states_of(state["random"], Ranks(Act()))  # type: ignore[arg-type]

    def load_model(folder: str | None, *args: Any, **kwargs: Any) -> None:
        """Leave it to be loaded with the rest; its state is read before that."""
        if not _is_ours(folder):
            theirs["_load_from_checkpoint"](folder, *args, **kwargs)
            return
        with open_checkpoint(folder) as ckpt:  # type: ignore[arg-type]
            _check_state(folder, ckpt)  # type: ignore[arg-type]

    def load_scaler(folder: str | None) -> None:
        if not _is_ours(folder):  # else it was loaded with the rest
            theirs["_load_scaler"](folder)

    trainer._save_checkpoint = save_checkpoint
    trainer._load_optimizer_and_scheduler = load_checkpoint
    trainer._load_from_checkpoint = load_model
    trainer._load_scaler = load_scaler
    trainer._load_rng_state = load_random
    trainer._load_best_model = load_best
    return trainer


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
        state["optim"] = getattr(optimizer, "optimizer", optimizer)
        state["sched"] = trainer.lr_scheduler
        if scaler is not None:
            state["scaler"] = scaler
    return state


def _save_files(trainer: Any, folder: str) -> dict[str, Any]:
    """Save what the Trainer does besides tensors; what the step is to tell of that."""
    _save_state(trainer, os.path.join(folder, STATE))
    told: dict[str, Any] = {DIGEST: _digest_of(os.path.join(folder, STATE))}
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


def _save_state(trainer: Any, path: str) -> None:
    """Save where the Trainer is, in the file that it looks for."""
    callbacks = [*trainer.callback_handler.callbacks, trainer.control]
    states = trainer.state.stateful_callbacks
    for callback in callbacks:
        if isinstance(callback, trainer_callback.ExportableState):
            name = type(callback).__name__
            if isinstance(states[name], list):
                states[name].append(callback.state())
            else:
                states[name] = callback.state()
    trainer.state.save_to_json(path)


def _digest_of(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _check_state(folder: str, ckpt: Any) -> None:
    """Hold the Trainer's file against what the step tells of it."""
    path = os.path.join(folder, STATE)
    if not os.path.exists(path):
        raise CorruptError(f"{path} is missing", file=path)
    if DIGEST in ckpt.objects:
        same = ckpt.objects[DIGEST] == _digest_of(path)
    else:
        state = trainer_callback.TrainerState.load_from_json(path)
        same = state.global_step == ckpt.info.step
    if not same:
        raise CorruptError(
            f"{path} is not what was saved with step {ckpt.info.step}",
            file=path,
            hint="take an older checkpoint, or a copy of this file",
        )


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
