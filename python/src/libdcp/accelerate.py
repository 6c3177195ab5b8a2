"""States of Hugging Face accelerate: each is a step of libdcp.

accelerator = libdcp.accelerate.hook(accelerate.Accelerator(), parity=1)
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType

from ._act import Act
from ._checkpoint import open_checkpoint
from ._errors import (
    Error,
    MismatchError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from ._folder import check_path, hidden, move_into, published, removed
from ._options import check_options
from ._random import random_states, set_states_of
from ._ranks import Ranks, on_all, on_first
from ._training import load, save
from ._values import lists
from ._warn import warn

__all__ = ["hook"]

MARK = "accelerate"  # the object that a step of `save_state` has
# Files of every save_state of accelerate itself, and of no other save.
THEIRS = re.compile(
    r"(random_states_\d+\.pkl|(optimizer|scheduler)(_\d+)?\.bin|optimizer_\d+/.+)"
)
TAIL_BYTES = 1 << 16  # torch.save ends its files with checksums of all that is in them


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
    check_options(how, "hook", "a folder of save_state has one step")
    if getattr(accelerator.project_configuration, "save_on_each_node", False):
        warn("save_on_each_node does nothing: all machines save to one folder")

    def save_state(
        output_dir: str | os.PathLike[str] | None = None,
        safe_serialization: bool = True,
        **kwargs: Any,
    ) -> str:
        if not safe_serialization:
            warn("safe_serialization=False does nothing: steps are files of safetensors")
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
            theirs = on_first(ranks, lambda: _theirs_in(folder))
            state[MARK] = {"counts": _counts(accelerator), "theirs": theirs}
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
        ranks = Ranks(Act())
        is_ours, step, told = on_first(ranks, lambda: _newest_in(folder))
        if not is_ours:
            Accelerator.load_state(accelerator, folder, load_kwargs, **kwargs)
            return
        kwargs.pop("map_location", None)  # all is loaded to where it is
        if kwargs.get("strict") is True:
            del kwargs["strict"]
        if load_kwargs:
            kwargs["load_kwargs"] = load_kwargs
        _refuse(kwargs, "load_state", f"{folder} is loaded by libdcp")
        on_all(ranks, lambda: _check_counts(accelerator, folder, told, ranks.rank == 0))
        models = on_all(ranks, lambda: _call_load_hooks(accelerator, folder))
        state = _state_of(accelerator, models[ranks.rank])
        state["random"] = None
        load(state, folder, step=step, trust_pickles=trust_pickles)
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
            for n, (name, _) in _steps_of_ours(folder).items():
                if n != step:
                    removed(os.path.join(folder, name))

        on_first(ranks, end)


def _steps_in(folder: str) -> dict[int, str]:
    """The names of all steps, by their numbers."""
    found = (re.fullmatch(r"step-(\d+)", name) for name in os.listdir(folder))
    return {int(match[1]): match[0] for match in found if match}


def _steps_of_ours(folder: str) -> dict[int, tuple[str, dict[str, Any]]]:
    """Those that `save_state` saved, and what they tell; `libdcp.save` may have saved
    others there.
    """
    found = {}
    for n, name in _steps_in(folder).items():
        with contextlib.suppress(Error):
            told = _told_by(os.path.join(folder, name))
            if told is not None:
                found[n] = name, told
    return found


def _told_by(step: str) -> dict[str, Any] | None:
    """What `save_state` put into a step of its own."""
    with open_checkpoint(step) as ckpt:
        told = ckpt.objects.get(MARK)
    return {} if told is True else told  # the first steps had nothing to tell


def _newest_in(folder: str) -> tuple[bool, int | None, dict[str, Any]]:
    """Whether a folder is to be loaded by libdcp, which step, and what that tells.

    Where accelerate saved after the step of ours nothing is loaded: it would be old.
    """
    steps = _steps_in(folder) if os.path.isdir(folder) else {}
    ours = _steps_of_ours(folder) if steps else {}
    theirs = _theirs_in(folder)
    if not ours:
        for name in steps.values() if theirs else ():
            _told_by(os.path.join(folder, name))  # one that is corrupt may be ours
        return bool(steps and not theirs), None, {}
    step, (name, told) = max(ours.items())
    known = told.get("theirs", theirs)
    later = [n for n in theirs if known.get(n) != theirs[n]]
    if later:
        raise MismatchError(
            f"{folder} has {name} of libdcp, and {min(later)}, which "
            "accelerate saved after it without libdcp",
            hint="move away the one that is not wanted: the step, or accelerate's files",
        )
    return True, step, told


def _theirs_in(folder: str) -> dict[str, str]:
    """The files of accelerate's own save_state, as they are now."""
    found = {}
    begin = glob.escape(folder)
    for path in (*glob.glob(f"{begin}/*"), *glob.glob(f"{begin}/optimizer_*/*")):
        name = os.path.relpath(path, folder)
        if THEIRS.fullmatch(name) and os.path.isfile(path):
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                digest = hashlib.sha256(b"%d " % size + file.read())
            found[name] = digest.hexdigest()
    return found


def _counts(accelerator: Any) -> dict[str, int]:
    """How many it has, of what is loaded by its number."""
    return {
        "registered objects": len(accelerator._custom_objects),
        "models": len(accelerator._models),
        "optimizers": len(accelerator._optimizers),
        "schedulers": len(accelerator._schedulers),
    }


def _check_counts(
    accelerator: Any, folder: str, told: Mapping[str, Any], is_first: bool
) -> None:
    """Refuse other registered objects, as accelerate does; warn of what is left."""
    saved = told.get("counts", {})
    for name, n in _counts(accelerator).items():
        if n == saved.get(name, n):
            continue
        text = f"{folder} has {saved[name]} {name}, and the accelerator {n}"
        if name == "registered objects":
            raise MismatchError(
                text, hint="register as many before load_state as there were"
            )
        if n == 1 and name in ("models", "optimizers"):  # has names of its own in a step
            raise MismatchError(text, hint="prepare as many before load_state")
        if is_first and n < saved[name]:
            warn(f"{text}: the others are not loaded")


def _call_save_hooks(accelerator: Any, folder: str) -> list[int]:
    """Call them as accelerate does; which models they leave to be saved."""
    models = accelerator._models
    sharded = accelerator.distributed_type == DistributedType.FSDP  # they get none then
    hooks = list(accelerator._save_model_state_pre_hook.values())
    given = [] if sharded or not hooks else [model.state_dict() for model in models]
    weights = list(given)
    before = [dict(own) for own in given]
    for call in hooks:
        call(models, weights, folder)
    kept = [i for i, own in enumerate(given) if any(own is one for one in weights)]
    if any(all(one is not own for own in given) for one in weights) or any(
        before[i].get(name) is not value for i in kept for name, value in given[i].items()
    ):
        raise UnsupportedError(
            "a hook of save_state put other weights in the list",
            hint="let it write them to its folder, and remove those in the list",
        )
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


_GO_ON = "set project_configuration.iteration to the number to go on with"


def _next_folder(accelerator: Any) -> str:
    """Name the next one."""
    iteration = accelerator.project_configuration.iteration
    name = f"checkpoint_{iteration}"
    path = os.path.join(accelerator.project_dir, "checkpoints", name)
    if os.path.exists(path):
        raise UsageError(
            f"{path} is there already",
            hint=_GO_ON,
        )
    later = max((number for number, _ in _numbered(accelerator)), default=-1)
    if later > iteration:
        warn(f"{name} is below checkpoint_{later}, which load_state takes: {_GO_ON}")
    return path


def _keep_to_limit(accelerator: Any, newest: str) -> None:
    """Remove the oldest, now that the newest is complete."""
    limit = accelerator.project_configuration.total_limit
    if limit is not None:
        others = [path for _, path in _numbered(accelerator) if path != newest]
        for path in others[: max(0, len(others) + 1 - limit)]:
            removed(path)
