"""Optimizers of a state: what they keep for each weight, and what is set of groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import MismatchError, NotFoundError, UnsupportedError
from ._held import ByPyTorch, Plain, has_ways_of_its_own
from ._kinds import has_tensors, is_tensor
from ._values import SETTINGS, is_json, lists
from ._warn import warn

if TYPE_CHECKING:
    from ._loaded import Loaded
    from ._names import Names
    from ._state import State

MOMENTS = ("exp_avg", "exp_avg_sq")
_OF_PARAMS = ("params", "param_names")  # of what is in groups


class Optimizer:
    """An optimizer: its tensors by the names of weights, its settings as an object."""

    def __init__(
        self,
        state: State,
        key: str,
        optimizer: Any,
        names: Names,
        label: str,
    ) -> None:
        """names: of all weights of the state; label: of its settings, where there are
        others.
        """
        # Of settings: a step of one optimizer has the first, one of several the second.
        self._name = f"{SETTINGS}.{label}" if label else SETTINGS
        self.settings_names = self._name, SETTINGS if label else f"{SETTINGS}.{key}"
        self._type = type(optimizer).__name__
        make = ByPyTorch if has_ways_of_its_own(optimizer, names) else Plain
        self._held: Plain | ByPyTorch = make(key, optimizer, names, state.is_save)
        for weight, values in self._held.state.items():
            for kind, value in values.items():
                self._add(state, weight, kind, value)
        for name, value in self._held.extra.items():
            state.add(f"{key}.{name}", value, self._held.extra, name)
        state.add_value(self._name, self._settings() if state.is_save else None)
        state.optimizers.append(self)

    def _add(self, state: State, weight: str, kind: str, value: Any) -> None:
        name = _name_of(kind, weight)
        if is_tensor(value):
            role = kind if kind in MOMENTS else "optim"
            counted = self.settings_names if kind == "step" else ()
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

    def lacked_by(self, trained: set[str]) -> set[str]:
        """Names of what a step has nothing of; it has some of the weights `trained`."""
        self._held.is_told_of(trained)
        state = self._held.state
        lacked = ((w, kinds) for w, kinds in state.items() if w not in trained)
        return {_name_of(kind, w) for w, kinds in lacked for kind in kinds}

    def misses(self, trained: set[str], values: set[str]) -> list[str]:
        """Values that a step lacks, which has these, of weights of which it has some."""
        missing = []
        for weight, held in self._held.state.items():
            told = self._held.told_as(weight)
            names = {kind: _name_of(kind, told) for kind in held}
            if told in trained or not values.isdisjoint(names.values()):
                wanted = (n for kind, n in names.items() if not is_tensor(held[kind]))
                missing += [n for n in wanted if n not in values]
        return missing

    @property
    def places(self) -> dict[str, Callable[[str, str, tuple[int, ...]], Any]]:
        """By weight, as the step calls it: what gives memory for a tensor of a kind, a
        dtype and a shape that the step has of it, or None.
        """
        return {
            told: functools.partial(self._held.place_of, weight)
            for told, weight in self._held.told_names.items()
        }

    def check(self, told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Give the groups of settings, of which stages of a pipeline have their own;
        refuse those that cannot be of this optimizer.
        """
        ours = self._held.groups
        mine = {param for group in ours for param in group["params"]}
        for settings in told:
            saved = self._saved(settings)
            theirs = {param for group in saved for param in group.get("params", ())}
            if not (theirs and mine and theirs.isdisjoint(mine)):
                break
        else:
            raise MismatchError(f"'{self._name}' of the step trains other weights")
        if len(saved) != len(ours):
            raise MismatchError(
                f"the step has {len(saved)} parameter groups, the optimizer {len(ours)}"
            )
        list(_paired(ours, saved))
        return saved

    @property
    def named_type(self) -> str:
        """The name of its settings and its type, as steps are asked for them."""
        return f"{self._name} {self._type}".lower()

    @property
    def settings_name(self) -> str:
        """Of the object with what is set."""
        return self._name

    def take_name(self, told: Collection[str]) -> bool:
        """Go by the name that a step has for its settings; False: it has none."""
        found = [name for name in self.settings_names if name in told]
        self._name = found[0] if found else self._name
        return bool(found)

    def _saved(self, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Its groups, with the names that weights have now."""
        groups: list[dict[str, Any]] = settings["param_groups"]
        aliases = self._held.aliases
        for group in groups:
            if "params" in group:
                group["params"] = [aliases.get(n, n) for n in group["params"]]
        return groups

    def load(self, loaded: Loaded) -> None:
        settings = loaded.all_of(self._name)
        if not settings:
            raise NotFoundError(f"the step has no value '{self._name}'")
        if loaded.is_resharded and not _set_alike(settings):
            loaded.others.add(self._name)
        kind = settings[0].get("type")
        is_other = kind and kind.lower() != self._type.lower()
        if is_other:
            loaded.remarks.append(
                f"the step was trained with {kind}, and goes on with {self._type}: what "
                "only one of them has is not loaded"
            )
        pairs = _paired(self._held.groups, self.check(settings))
        for like, (group, saved) in zip(self._held.likes, pairs):
            for name, value in saved.items():
                if name not in _OF_PARAMS:
                    group[name] = _like(like.get(name), value)
        if not is_other:
            self._held.take_values(loaded)
        for weight, values in list(self._held.state.items()):
            told = self._held.told_as(weight)
            names = {kind: _name_of(kind, told) for kind in values}
            has = (n in loaded.filled or loaded.has_value(n) for n in names.values())
            if values and not any(has):
                self._held.drop(weight)
                continue
            for kind, name in names.items():
                if not is_tensor(values[kind]):
                    values[kind] = loaded.of_weight(name)
        self._held.put(loaded)


def _name_of(kind: str, weight: str) -> str:
    """Of what an optimizer keeps for a weight; `kind_of` takes it apart."""
    return f"{SETTINGS}.{kind}.{weight}"


def _set_alike(settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ranks differ in weights alone, as stages of a pipeline do."""
    rest = [
        [{k: v for k, v in group.items() if k not in _OF_PARAMS} for group in groups]
        for groups in (one.get("param_groups", ()) for one in settings)
    ]
    return all(one == rest[0] for one in rest)


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
        warn(f"'{name}' is saved without {left}: no numbers, texts, or lists of such")
    return kept


def _like(old: Any, new: Any) -> Any:
    """A value that was JSON, as what it takes the place of."""
    if isinstance(old, tuple):
        olds = old if len(old) == len(new) else new
        return tuple(_like(o, n) for o, n in zip(olds, new))
    return old.new_tensor(new) if is_tensor(old) else new
