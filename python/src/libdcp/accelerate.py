"""States of Hugging Face accelerate: each is a step of libdcp.

accelerator = libdcp.accelerate.hook(accelerate.Accelerator(), parity=1)
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType

from ._act import Act
from ._checkpoint import open_checkpoint
from ._errors import Error, NotFoundError, UnsupportedError, UsageError
from ._folder import check_path, hidden, move_into, published, removed
from ._random import random_states, set_states_of
from ._ranks import Ranks, on_all, on_first
from ._training import load, save
from ._values import lists

__all__ = ["hook"]

MARK = "accelerate"  # the object that a step of `save_state` has
OF_RUNS = {"keep", "keep_every", "keep_optimizer", "delta"}  # of more than one step


def hook(accelerator: Any, *, trust_pickles: bool = False, **how: Any) -> Any:
    """Let `save_state` and `load_state` of this accelerator save and load steps.

    A folder of `save_state` has its name when all in it is complete, durable and read
    back: models, optimizers, schedulers, what was registered, and the random states of
    each rank. In a folder that is there the step appears beside what it holds, and takes
    the place of the one of the last `save_state`. Folders that accelerate wrote itself
    are loaded by it. how: `parity`, `codec` and so on, as in `libdcp.save`.
    """
    if accelerator.distributed_type in (
        DistributedType.DEEPSPEED,
        DistributedType.MEGATRON_LM,
    ):
        raise UnsupportedError(
            f"{accelerator.distributed_type} saves its states itself",
            hint="libdcp.deepspeed.install(engine) is for DeepSpeed",
        )
    _refuse(OF_RUNS.intersection(how), "hook", "a folder of save_state has one step")

    def save_state(
        output_dir: str | os.PathLike[str] | None = None,
        _safe_serialization: bool = True,
        **kwargs: Any,
    ) -> str:
        kwargs.pop("safe_serialization", None)  # steps are safetensors
        _refuse(kwargs, "save_state", "models are saved by libdcp")
        ranks, naming = Ranks(Act()), accelerator.project_configuration
        folder = output_dir
        if naming.automatic_checkpoint_naming:
            folder = on_first(ranks, lambda: _next_folder(accelerator))
        if folder is None:
            raise UsageError("save_state needs the folder to save to")
        check_path(folder)
        folder = os.path.expanduser(folder)
        with _place_in(os.path.realpath(folder), ranks, naming.iteration) as place:
            run, step, beside = place
            models = on_all(ranks, lambda: _call_save_hooks(accelerator, beside))
            state = _state_of(accelerator, models[ranks.rank])
            state["random"] = ranks.gather(random_states())
            state[MARK] = True
            save(state, run, step=step, **how)
        if naming.automatic_checkpoint_naming:
            on_first(ranks, lambda: _keep_to_limit(accelerator, os.fspath(folder)))
        naming.iteration += 1
        return os.fspath(folder)

    def load_state(
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if input_dir is None:
            input_dir = _newest_folder(accelerator)
        folder = os.path.expanduser(input_dir)
        if not glob.glob(os.path.join(glob.escape(folder), "step-*")):
            Accelerator.load_state(accelerator, folder, load_kwargs, **kwargs)
            return
        kwargs.pop("map_location", None)  # all is loaded to where it is
        if kwargs.get("strict") is True:
            del kwargs["strict"]
        if load_kwargs:
            kwargs["load_kwargs"] = load_kwargs
        _refuse(kwargs, "load_state", f"{folder} is loaded by libdcp")
        ranks = Ranks(Act())
        steps = on_first(ranks, lambda: _steps_of_ours(folder))
        models = on_all(ranks, lambda: _call_load_hooks(accelerator, folder))
        state = _state_of(accelerator, models[ranks.rank])
        state["random"] = None
        load(
            state,
            folder,
            step=max(steps, default=None),
            trust_pickles=trust_pickles,
        )
        accelerator.step = state["step"]
        set_states_of(state["random"], ranks)

    accelerator.save_state, accelerator.load_state = save_state, load_state
    return accelerator


def _refuse(names: Any, function: str, why: str) -> None:
    if names:
        raise UsageError(f"{function} does not take '{min(names)}' here: {why}")


@contextlib.contextmanager
def _place_in(folder: str, ranks: Ranks, step: int) -> Iterator[tuple[str, int, str]]:
    """Give where the step is saved, its number, and a folder for the files of hooks.

    A new folder appears with all that. In one that is there, files of hooks follow the
    step, and then the steps go whose place it took.
    """
    if not on_first(ranks, lambda: os.path.lexists(folder)):
        with published(folder, ranks) as new:
            yield new, step, new
        return
    found = on_first(ranks, lambda: _steps_in(folder))
    step = max([step, *(n + 1 for n in found)])
    with hidden(os.path.join(folder, "hooks"), ranks) as room:
        beside = os.path.join(room, "new")
        on_first(ranks, lambda: os.mkdir(beside))
        yield folder, step, beside

        def end() -> None:
            move_into(beside, folder)
            for n, name in _steps_of_ours(folder).items():
                if n != step:
                    removed(os.path.join(folder, name))

        on_first(ranks, end)


def _steps_in(folder: str) -> dict[int, str]:
    """The names of all steps, by their numbers."""
    found = (re.fullmatch(r"step-(\d+)", name) for name in os.listdir(folder))
    return {int(match[1]): match[0] for match in found if match}


def _steps_of_ours(folder: str) -> dict[int, str]:
    """Those that `save_state` saved; `libdcp.save` may have saved others there."""
    found = {}
    for n, name in _steps_in(folder).items():
        with (
            contextlib.suppress(Error),
            open_checkpoint(os.path.join(folder, name)) as step,
        ):
            if MARK in step.objects:
                found[n] = name
    return found


def _call_save_hooks(accelerator: Any, folder: str) -> list[int]:
    """Call them as accelerate does; which models they leave to be saved."""
    models = accelerator._models
    sharded = accelerator.distributed_type == DistributedType.FSDP  # they get none then
    hooks = list(accelerator._save_model_state_pre_hook.values())
    given = [] if sharded or not hooks else [model.state_dict() for model in models]
    weights = list(given)
    for call in hooks:
        call(models, weights, folder)
    if any(all(one is not own for own in given) for one in weights):
        raise UnsupportedError(
            "a hook of save_state put other weights in the list",
            hint="let it write them to its folder, and remove those in the list",
        )
    kept = [i for i, own in enumerate(given) if any(own is one for one in weights)]
    return kept if given else list(range(len(models)))


def _call_load_hooks(accelerator: Any, folder: str) -> list[int]:
    """Call them as accelerate does; which models they leave to be loaded."""
    models = accelerator._models
    sharded = accelerator.distributed_type == DistributedType.FSDP
    left = [] if sharded else list(models)
    for call in accelerator._load_model_state_pre_hook.values():
        call(left, folder)
    kept = [i for i, model in enumerate(models) if any(model is one for one in left)]
    return list(range(len(models))) if sharded else kept


class _Plain:
    """An optimizer by the numbers of its weights, for models that hooks save."""

    def __init__(self, optim: Any) -> None:
        self._optim, self.load_state_dict = optim, optim.load_state_dict

    def state_dict(self) -> dict[str, Any]:
        """With lists, which are no pickles, in place of tuples."""
        state = dict(self._optim.state_dict())
        state["param_groups"] = [
            {key: lists(value) for key, value in group.items()}
            for group in state["param_groups"]
        ]
        return state


def _state_of(accelerator: Any, models: list[int]) -> dict[str, Any]:
    """All that accelerate itself would save, with these of its models."""
    state: dict[str, Any] = {"step": accelerator.step}
    others = {
        id(weight)
        for i, model in enumerate(accelerator._models)
        for weight in model.parameters()
        if i not in models
    }

    def of_others(optim: Any) -> bool:
        groups = optim.param_groups
        return any(id(weight) in others for group in groups for weight in group["params"])

    optims = [optim.optimizer for optim in accelerator._optimizers]
    groups = {
        "model": [accelerator._models[i] for i in models],
        "optim": [_Plain(optim) if of_others(optim) else optim for optim in optims],
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
    """Name the next one."""
    iteration = accelerator.project_configuration.iteration
    name = f"checkpoint_{iteration}"
    path = os.path.join(accelerator.project_dir, "checkpoints", name)
    if os.path.exists(path):
        raise UsageError(
            f"{path} is there already",
            hint="set project_configuration.iteration to the number to go on with",
        )
    return path


def _keep_to_limit(accelerator: Any, newest: str) -> None:
    """Remove the oldest, now that the newest is complete."""
    limit = accelerator.project_configuration.total_limit
    if limit is not None:
        others = [path for _, path in _numbered(accelerator) if path != newest]
        for path in others[: max(0, len(others) + 1 - limit)]:
            removed(path)
