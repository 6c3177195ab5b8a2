"""Optimizers of a state: what they keep for each weight, and what is set of groups."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import MismatchError, UnsupportedError, UsageError
from ._kinds import has_tensors, is_tensor
from ._model import plain_name, prefix_of
from ._values import SETTINGS, is_json, lists

if TYPE_CHECKING:
    from ._loaded import Loaded
    from ._state import State

MOMENTS = ("exp_avg", "exp_avg_sq")
_HOOKS_OF_STEPS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


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
        self._name = f"{SETTINGS}.{label}" if label else SETTINGS
        self._type = type(optimizer).__name__
        make = _ByPyTorch if _has_ways_of_its_own(optimizer, models) else _Plain
        self._held: _Plain | _ByPyTorch = make(key, optimizer, models, state.is_save)
        for weight, values in self._held.state.items():
            for kind, value in values.items():
                self._add(state, weight, kind, value)
        state.add_value(self._name, self._settings() if state.is_save else None)
        state.optimizers.append(self)

    def _add(self, state: State, weight: str, kind: str, value: Any) -> None:
        name = f"{SETTINGS}.{kind}.{weight}"
        if is_tensor(value):
            role = kind if kind in MOMENTS else "optim"
            counted = (self._name,) if kind == "step" else ()
            state.add_tensor(
                name, self._held.placed(weight, value), role, weight, counted
            )
        elif has_tensors(value):
            raise UnsupportedError(f"'{name}' cannot be saved: tensors are in it")
        else:
            state.add_value(name, value)

    def _settings(self) -> dict[str, Any]:
        groups = [_settings(self._name, group) for group in self._held.groups]
        return {"type": self._type, **_updates(self._held.state), "param_groups": groups}

    def lacked_by(self, trained: set[str], objects: Mapping[str, Any]) -> set[str]:
        """Names of what a step has nothing of; it has some of the weights `trained`."""
        weights = self._held.state
        lacked = [w for w in weights if w not in trained]
        if self._name not in objects or (
            isinstance(self._held, _ByPyTorch) and len(lacked) < len(weights)
        ):
            return set()
        return {f"{SETTINGS}.{kind}.{w}" for w in lacked for kind in weights[w]}

    def check(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give the groups of settings; refuse those that cannot be of this optimizer."""
        saved, ours = self._saved(settings), self._held.groups
        if len(saved) != len(ours):
            raise MismatchError(
                f"the step has {len(saved)} parameter groups, the optimizer {len(ours)}"
            )
        theirs = {param for group in saved for param in group.get("params", ())}
        mine = {param for group in ours for param in group["params"]}
        if theirs and mine and theirs.isdisjoint(mine):
            raise MismatchError(f"'{self._name}' of the step trains other weights")
        list(_paired(ours, saved))
        return saved

    @property
    def settings_name(self) -> str:
        """Of the object with what is set."""
        return self._name

    def _saved(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Its groups; weights of older steps lack the name of the model."""
        groups: list[dict[str, Any]] = settings["param_groups"]
        by_short = self._held.by_short_name
        for group in groups:
            if "params" in group:
                group["params"] = [by_short.get(n, n) for n in group["params"]]
        return groups

    def load(self, loaded: Loaded) -> None:
        settings = loaded.value_of(self._name)
        kind = settings.get("type")
        if kind and kind.lower() != self._type.lower():
            loaded.remarks.append(
                f"the step was trained with {kind}, and goes on with {self._type}: what "
                "only one of them has is not loaded"
            )
        for group, saved in _paired(self._held.groups, self.check(settings)):
            for name, value in saved.items():
                if name not in ("params", "param_names"):
                    old = group.get(name)
                    self._held.set(group, name, _like(old, value))
        for weight, values in list(self._held.state.items()):
            names = {kind: f"{SETTINGS}.{kind}.{weight}" for kind in values}
            has = (n in loaded.filled or loaded.has_value(n) for n in names.values())
            if values and not any(has):
                self._held.drop(weight)
                continue
            for kind, name in names.items():
                if not is_tensor(values[kind]):
                    values[kind] = loaded.value_of(name)
        self._held.put()


class _Plain:
    """One that keeps its state where every optimizer of PyTorch does.

    PyTorch's own functions would make state for it in a save, round what it keeps to the
    dtype of weights in a load, and leave out what they do not expect.
    """

    def __init__(
        self, key: str, optimizer: Any, models: Mapping[str, Any], is_save: bool
    ) -> None:
        self._optimizer = optimizer
        self._names: dict[Any, str] = {}
        self.by_short_name: dict[str, str] = {}
        names = _names_of(models)
        for group in optimizer.param_groups:
            for param in group["params"]:
                if id(param) not in names:
                    _refuse(key, optimizer, names)
                self._names[param], short = names[id(param)]
                self.by_short_name[short] = self._names[param]
        strange = [k for k in optimizer.state if k not in self._names]
        if strange:
            raise UnsupportedError(
                f"'{key}' keeps something for no weight: {strange[0]!r}"
            )
        self._params = {name: param for param, name in self._names.items()}
        state = dict(optimizer.state)
        if not is_save and any(param not in state for param in self._names):
            state.update(_made_state(key, optimizer))
        self.state = {self._names[p]: v for p, v in state.items()}
        self.groups = [
            {**group, "params": [self._names[p] for p in group["params"]]}
            for group in optimizer.param_groups
        ]

    def placed(self, weight: str, value: Any) -> Any:
        """As it lies on the ranks: of a DTensor there may be a part on each."""
        param = self._params[weight]
        mine = getattr(param, "_local_tensor", None)
        if mine is None or hasattr(value, "_local_tensor") or value.dim() == 0:
            return value
        if value.shape != mine.shape or mine.shape == param.shape:
            return value
        return type(param.data).from_local(
            value,
            param.device_mesh,
            param.placements,
            run_check=False,
            shape=param.shape,
            stride=param.stride(),
        )

    def set(self, group: dict[str, Any], name: str, value: Any) -> None:
        group[name] = value

    def drop(self, weight: str) -> None:
        """Keep nothing for it, as before its first update."""
        del self.state[weight]
        self._optimizer.state.pop(self._params[weight], None)

    def put(self) -> None:
        """Set what was loaded; tensors are in their places already."""
        for weight, values in self.state.items():
            self._optimizer.state[self._params[weight]] = values
        for group, ours in zip(self._optimizer.param_groups, self.groups):
            group.update((k, v) for k, v in ours.items() if k != "params")
            if group.get("capturable") or group.get("fused"):  # where counts lie
                for param in group["params"]:
                    count = self._optimizer.state.get(param, {}).get("step")
                    if is_tensor(count) and count.device != param.device:
                        self._optimizer.state[param]["step"] = count.to(param.device)


class _ByPyTorch:
    """One that says itself what its state is, or whose weights FSDP1 keeps as one."""

    def __init__(
        self, key: str, optimizer: Any, models: Mapping[str, Any], is_save: bool
    ) -> None:
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        owners = [(k, m) for k, m in models.items() if _trains(optimizer, m)]
        if len(owners) > 1:
            raise UnsupportedError(
                f"'{key}', a {type(optimizer).__name__}, trains 2 models"
            )
        if not owners:
            _refuse(key, optimizer, {})
        model, self._model = owners[0]
        prefix = prefix_of(model, models)
        self._prefix, self._optimizer = prefix, optimizer
        is_new = not optimizer.state
        with _apart(optimizer):
            self._dict = get_optimizer_state_dict(self._model, optimizer)
        if is_new:  # it stays so, until there is something to load
            optimizer.state.clear()
        if is_new and is_save:
            self._dict["state"] = {}
        self.state = {prefix + name: v for name, v in self._dict["state"].items()}
        self._is_dropped = False
        self.groups = [
            {**group, "params": [prefix + name for name in group["params"]]}
            for group in self._dict["param_groups"]
        ]
        self.by_short_name = {
            name[len(prefix) :]: name for group in self.groups for name in group["params"]
        }

    def placed(self, _weight: str, value: Any) -> Any:
        return value

    def set(self, group: dict[str, Any], name: str, value: Any) -> None:
        if name in group:  # it would be refused
            group[name] = value

    def drop(self, weight: str) -> None:
        self._is_dropped = True  # all of them are, or none

    def put(self) -> None:
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        for group, ours in zip(self._dict["param_groups"], self.groups):
            group.update((k, v) for k, v in ours.items() if k != "params")
        with _apart(self._optimizer):
            set_optimizer_state_dict(self._model, self._optimizer, self._dict)
        if self._is_dropped:
            self._optimizer.state.clear()


def _has_ways_of_its_own(optimizer: Any, models: Mapping[str, Any]) -> bool:
    import torch

    base, cls = torch.optim.Optimizer, type(optimizer)
    own = ("state_dict", "load_state_dict")
    if any(getattr(cls, n) is not getattr(base, n) or n in vars(optimizer) for n in own):
        return True
    hooks = (f"_optimizer_{n}" for n in ("state_dict_pre_hooks", "state_dict_post_hooks"))
    loads = (
        f"_optimizer_load_{n}" for n in ("state_dict_pre_hooks", "state_dict_post_hooks")
    )
    if any(getattr(optimizer, n, None) for n in (*hooks, *loads)):
        return True
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(
        isinstance(part, fsdp.FullyShardedDataParallel)
        for model in models.values()
        for part in model.modules()
    )


def _names_of(models: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
    """The name of each weight, and the one that it has in its model."""
    names: dict[int, tuple[str, str]] = {}
    for key, model in models.items():
        prefix = prefix_of(key, models)
        for name, param in model.named_parameters():
            short = plain_name(model, name)
            names.setdefault(id(param), (prefix + short, short))
    return names


def _trains(optimizer: Any, model: Any) -> bool:
    ours = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in ours for p in model.parameters())


def _refuse(key: str, optimizer: Any, names: Mapping[int, Any]) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(id(p) in names for p in params):
        raise UsageError(
            f"'{key}' is an optimizer, whose model must be in the state, too",
            hint='{"model": model, "optim": optim}',
        )
    lost = next(p for p in params if id(p) not in names)
    raise UsageError(
        f"'{key}' trains a weight of shape {list(lost.shape)} that is in no model of the "
        "state"
    )


@contextlib.contextmanager
def _apart(optimizer: Any) -> Iterator[None]:
    """Keep gradients and hooks from an update that only makes state."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [p.grad for p in params]
    hooks = {name: dict(getattr(optimizer, name, {})) for name in _HOOKS_OF_STEPS}
    try:
        for name, held in hooks.items():
            if held:
                getattr(optimizer, name).clear()
        for param in params:
            param.grad = None
        yield
    finally:
        for param, grad in zip(params, grads):
            param.grad = grad
        for name, held in hooks.items():
            if held:
                getattr(optimizer, name).update(held)


def _made_state(key: str, optimizer: Any) -> dict[Any, Any]:
    """Places for a load, which it makes by an update of nothing: the state of those
    weights that have none. The optimizer itself is as before.
    """
    import torch

    old = set(optimizer.state)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    # Whatever it calls its rate, if that is not "lr": weights stay as they are.
    has_rate = all("lr" in group for group in optimizer.param_groups)
    weights = [] if has_rate else [p.detach().clone() for p in params]
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    with _apart(optimizer):
        try:
            for group in optimizer.param_groups:
                if "lr" in group:
                    lr = group["lr"]
                    group["lr"] = torch.zeros_like(lr) if is_tensor(lr) else 0.0
                for param in group["params"]:
                    param.grad = None if param in old else torch.zeros_like(param)
            optimizer.step(closure=None)
        except RuntimeError as why:
            raise UnsupportedError(
                f"'{key}' has no state to load into, and makes none: {why}",
                hint="make an update first",
            ) from why
        finally:
            with_rate = [g for g in optimizer.param_groups if "lr" in g]
            for group, lr in zip(with_rate, rates):
                group["lr"] = lr
            for param, weight in zip(params, weights):
                param.detach().copy_(weight)
            new = [p for p in optimizer.state if p not in old]
            made = {p: optimizer.state.pop(p) for p in new}
    return made


def _updates(state: Mapping[str, Any]) -> dict[str, Any]:
    """How often weights were updated, where they count that: the `step` of all, else the
    least and the most.
    """
    import torch

    counts = [values["step"] for values in state.values() if "step" in values]
    if not counts or not all(is_tensor(c) and c.dim() == 0 for c in counts):
        return {}
    if len({(c.dtype, c.device) for c in counts}) > 1:
        return {}
    all_of = torch.stack([c.detach() for c in counts])
    least, most = int(all_of.min()), int(all_of.max())
    return {"step": least} if least == most else {"steps": [least, most]}


def _paired(
    ours: Sequence[dict[str, Any]], saved: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each group with that of the same weights in the step, else in the same place."""
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
        yield group, saved[found.pop() if found else i]


def _settings(name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """What is set of a group, as JSON; tensors, also of NumPy, are what they hold."""
    found = {
        k: lists(v.tolist() if hasattr(v, "tolist") else v) for k, v in group.items()
    }
    kept = {k: v for k, v in found.items() if is_json(v)}
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
        olds = old if len(old) == len(new) else new
        return tuple(_like(o, n) for o, n in zip(olds, new))
    return old.new_tensor(new) if is_tensor(old) else new
