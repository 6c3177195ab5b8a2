"""Models and optimizers of a state: what they have, and get back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import MismatchError, UsageError
from ._kinds import is_tensor
from ._values import SETTINGS, is_json, lists

if TYPE_CHECKING:
    from ._state import State

MOMENTS = ("exp_avg", "exp_avg_sq")
WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")


class Model:
    """A module: its state dict, in whatever way it is parallel."""

    def __init__(self, state: State, prefix: str, module: Any) -> None:
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        self._module = module
        self._dict = get_model_state_dict(module)
        buffers = {_plain(module, name) for name, _ in module.named_buffers()}
        ties = _ties(module)
        for name, value in self._dict.items():
            role = "buffer" if name in buffers else "model"
            full = f"{prefix}.{name}" if prefix else name
            if is_tensor(value):
                tied = ties.get(name, ())
                others = tuple(f"{prefix}.{n}" if prefix else n for n in tied)
                state.add_tensor(full, value, role, instead=others)
            else:
                state.add(full, value, self._dict, name)

    def load(self, state: State) -> None:
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        set_model_state_dict(self._module, self._dict)


class Optimizer:
    """An optimizer: its tensors by the names of weights, its settings as an object."""

    def __init__(
        self,
        state: State,
        key: str,
        optimizer: Any,
        models: Mapping[str, Any],
        label: str,
    ) -> None:
        """label: of its settings, where there are others."""
        owners = [(k, m) for k, m in models.items() if _trains(optimizer, m)]
        if len(owners) != 1:
            raise UsageError(
                f"'{key}' is an optimizer, whose model must be in the state, too",
                hint='{"model": model, "optim": optim}',
            )
        prefix, self._model = owners[0]
        self._prefix = "" if len(models) == 1 else f"{prefix}."
        self._name = f"{SETTINGS}.{label}" if label else SETTINGS
        self._optimizer = optimizer
        self._dict = _state_dict(self._model, optimizer)
        self._plain: list[tuple[str, Any, Any]] = []
        for param, values in self._dict["state"].items():
            weight = self._prefix + param
            for kind, value in values.items():
                name = f"{SETTINGS}.{kind}.{weight}"
                if is_tensor(value):
                    role = kind if kind in MOMENTS else "optim"
                    counted = (self._name,) if kind == "step" else ()
                    state.add_tensor(name, value, role, weight, counted)
                else:
                    self._plain.append((name, values, kind))
                    state.add_value(name, value)
        state.add_value(self._name, self._settings() if state.is_save else None)
        state.has_optimizer = True

    def _settings(self) -> dict[str, Any]:
        groups = [_settings(self._name, group) for group in self._dict["param_groups"]]
        for group in groups:
            group["params"] = [self._prefix + param for param in group["params"]]
        return {"type": type(self._optimizer).__name__, "param_groups": groups}

    def _saved(self, state: State) -> list[dict[str, Any]]:
        """The groups of the step, with weights by the names that they have here."""
        settings = state.value_of(self._name)
        kind, ours = settings.get("type"), type(self._optimizer).__name__
        if kind and kind.lower() != ours.lower():
            state.remarks.append(
                f"the step was trained with {kind}, and goes on with {ours}: what only "
                "one of them has is not loaded"
            )
        groups: list[dict[str, Any]] = settings["param_groups"]
        for group in groups:
            if "params" in group:
                names = group["params"]
                group["params"] = [name.removeprefix(self._prefix) for name in names]
        return groups

    def load(self, state: State) -> None:
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        for name, values, kind in self._plain:
            values[kind] = state.value_of(name)
        groups = self._saved(state)
        ours = self._dict["param_groups"]
        if len(groups) != len(ours):
            raise MismatchError(
                f"the step has {len(groups)} parameter groups, the optimizer {len(ours)}"
            )
        _check_weights(self._name, ours, groups)
        for group, saved in zip(ours, _paired(ours, groups)):
            for name, value in saved.items():
                if name != "params" and name in group:
                    group[name] = _like(group[name], value)
        set_optimizer_state_dict(self._model, self._optimizer, self._dict)


def _state_dict(model: Any, optimizer: Any) -> Any:
    """What PyTorch gives, which makes the state of a new optimizer, from gradients of
    zero, only where there are no gradients yet.
    """
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    if optimizer.state:
        return get_optimizer_state_dict(model, optimizer)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [p.grad for p in params]
    try:
        for param in params:
            param.grad = None
        return get_optimizer_state_dict(model, optimizer)
    finally:
        for param, grad in zip(params, grads):
            param.grad = grad


def _trains(optimizer: Any, model: Any) -> bool:
    ours = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in ours for p in model.parameters())


def _ties(module: Any) -> dict[str, tuple[str, ...]]:
    """Weights that have several names: by each, the others."""
    names: dict[int, list[str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(_plain(module, name))
    return {
        name: tuple(other for other in same if other != name)
        for same in names.values()
        for name in same
    }


def _check_weights(name: str, ours: Sequence[Any], saved: Sequence[Any]) -> None:
    """Refuse the settings of an optimizer of other weights; some have no names."""
    theirs = {param for group in saved for param in group.get("params", ())}
    mine = {param for group in ours for param in group["params"]}
    if theirs and mine and theirs.isdisjoint(mine):
        raise MismatchError(f"'{name}' of the step trains other weights")


def _paired(ours: Sequence[Any], saved: Sequence[Any]) -> Iterator[Any]:
    """What was saved of each group: that of the same weights, else in the same place."""
    places = {
        param: i for i, group in enumerate(saved) for param in group.get("params", ())
    }
    for i, group in enumerate(ours):
        found = {places[param] for param in group["params"] if param in places}
        if len(found) > 1:
            raise MismatchError(
                f"weights of parameter group {i} are in several groups of the step",
                hint="make the optimizer with the groups that the step has",
            )
        yield saved[found.pop() if found else i]


def _settings(name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """What is set of a group, as JSON; tensors and NumPy's numbers are what they hold."""
    found = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in group.items()}
    kept = {k: v for k, v in found.items() if is_json(lists(v))}
    if len(kept) < len(found):
        left = ", ".join(f"'{k}'" for k in found if k not in kept)
        warnings.warn(
            f"'{name}' is saved without {left}: no numbers, texts, or lists of such",
            RuntimeWarning,
            stacklevel=2,
        )
    return kept


def _like(old: Any, new: Any) -> Any:
    """A value that was JSON, as what it takes the place of."""
    if isinstance(old, tuple):
        return tuple(new)
    return old.new_tensor(new) if is_tensor(old) else new


def _plain(module: Any, name: str) -> str:
    """Without what wrappers put into names, as PyTorch's own functions give them."""
    from torch.nn.parallel import DistributedDataParallel

    kept, at = [], module
    for part in name.split("."):
        wraps = part == "module" and isinstance(at, DistributedDataParallel)
        if not wraps and part not in WRAPPERS:
            kept.append(part)
        at = getattr(at, part)
    return ".".join(kept)
