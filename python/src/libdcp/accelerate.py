"""States of Hugging Face accelerate: each is a step of libdcp.

accelerator = libdcp.accelerate.hook(accelerate.Accelerator(), parity=1)
"""

from __future__ import annotations

import glob
import os
import re
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType

from ._act import Act
from ._errors import NotFoundError, UnsupportedError, UsageError
from ._folder import on_first, published, removed
from ._random import random_states, set_states_of
from ._ranks import Ranks
from ._training import load, save

__all__ = ["hook"]


def hook(accelerator: Any, *, trust_pickles: bool = False, **how: Any) -> Any:
    """Let `save_state` and `load_state` of this accelerator save and load steps.

    A folder of `save_state` has its name when all in it is complete, durable and read
    back: models, optimizers, schedulers, what was registered, and the random states of
    each rank. Folders that accelerate wrote itself are loaded by it. how: `parity`,
    `codec` and so on, as in `libdcp.save`.
    """
    if accelerator.distributed_type in (
        DistributedType.DEEPSPEED,
        DistributedType.MEGATRON_LM,
    ):
        raise UnsupportedError(
            f"{accelerator.distributed_type} saves its states itself",
            hint="libdcp.deepspeed.install(engine) is for DeepSpeed",
        )

    def save_state(
        output_dir: str | os.PathLike[str] | None = None, *_args: Any, **_kwargs: Any
    ) -> str:
        ranks, naming = Ranks(Act()), accelerator.project_configuration
        folder = output_dir
        if naming.automatic_checkpoint_naming:
            folder = on_first(ranks, lambda: _next_folder(accelerator))
        if folder is None:
            raise UsageError("save_state needs the folder to save to")
        state = _state_of(accelerator)
        state["random"] = ranks.gather(random_states())
        with published(folder, ranks) as hidden:
            save(state, hidden, step=naming.iteration, **how)
        naming.iteration += 1
        return os.fspath(folder)

    def load_state(
        input_dir: str | os.PathLike[str] | None = None, *args: Any, **kwargs: Any
    ) -> None:
        folder = input_dir
        if folder is None:
            folder = _newest_folder(accelerator)
        if not glob.glob(os.path.join(glob.escape(os.fspath(folder)), "step-*")):
            Accelerator.load_state(accelerator, input_dir, *args, **kwargs)
            return
        state = _state_of(accelerator)
        state["random"] = None
        load(state, folder, trust_pickles=trust_pickles)
        accelerator.step = state["step"]
        set_states_of(state["random"], Ranks(Act()))

    accelerator.save_state, accelerator.load_state = save_state, load_state
    return accelerator


def _state_of(accelerator: Any) -> dict[str, Any]:
    """All that accelerate itself would save."""
    state: dict[str, Any] = {"step": accelerator.step}
    groups = {
        "model": accelerator._models,
        "optim": [optim.optimizer for optim in accelerator._optimizers],
        "sched": accelerator._schedulers,
        "custom": accelerator._custom_objects,
        "loader": [
            loader
            for loader in accelerator._dataloaders
            if getattr(loader, "use_stateful_dataloader", False)
        ],
        "scaler": [accelerator.scaler] if accelerator.scaler is not None else [],
    }
    for name, members in groups.items():
        for i, member in enumerate(members):
            state[f"{name}{i or ''}"] = member
    return state


def _numbered(accelerator: Any) -> list[tuple[int, str]]:
    """The folders that accelerate names by itself, the oldest first."""
    folder = os.path.join(accelerator.project_dir, "checkpoints")
    found = glob.glob(os.path.join(glob.escape(folder), "checkpoint_*"))
    pairs = [(re.fullmatch(r".*_(\d+)", path), path) for path in found]
    return sorted((int(match[1]), path) for match, path in pairs if match)


def _newest_folder(accelerator: Any) -> str:
    if accelerator.project_configuration.automatic_checkpoint_naming:
        folders = _numbered(accelerator)
        if folders:
            return folders[-1][1]
    raise NotFoundError("load_state finds no folder; say which")


def _next_folder(accelerator: Any) -> str:
    """Make room, and name the next one."""
    naming = accelerator.project_configuration
    folders = _numbered(accelerator)
    if naming.total_limit is not None:
        for _, path in folders[: max(0, len(folders) + 1 - naming.total_limit)]:
            removed(path)
    name = f"checkpoint_{naming.iteration}"
    path = os.path.join(accelerator.project_dir, "checkpoints", name)
    if os.path.exists(path):
        raise UsageError(
            f"{path} is there already",
            hint="set project_configuration.iteration to the number to go on with",
        )
    return path
