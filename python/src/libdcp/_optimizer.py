"""Optimizers of a state: what they keep for each weight, and what is set of groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import MismatchError, NotFoundError, UnsupportedError
from ._groups import KINDS, is_number, load_groups, paired, set_alike, told_of
from ._held import ByPyTorch, Plain, has_ways_of_its_own
from ._kinds import has_tensors, is_tensor
from ._unchanged import with_inner
from ._values import SETTINGS
from ._warn import warn

if TYPE_CHECKING:
    from ._loaded import Loaded
    from ._look import Like
    from ._names import Names
    from ._state import State
    from ._stateful import Stateful

_WRAPPERS = {"AcceleratedOptimizer", "_FabricOptimizer", "LightningOptimizer"}
MOMENTS = ("exp_avg", "exp_avg_sq")
KEEPS = "keeps"  # kinds of state: of a weight another optimizer may keep others
SHARED = "shared"  # tensors that several weights have as one


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
        optimizer = self._optimizer = _bare(optimizer)
        self._type = type(optimizer).__name__
        #: Kinds of state by the texts in names; None: the step does not say them.
        self._kinds: dict[str, Any] | None = None
        make = ByPyTorch if has_ways_of_its_own(optimizer, names) else Plain
        self._held: Plain | ByPyTorch = make(key, optimizer, names, state.is_save)
        for weight, values in self._held.state.items():
            for kind, value in values.items():
                self._add(state, weight, kind, value)
        more = self._held.extra
        self._extra: Stateful | None = None
        if more is not None:
            self._extra = state.object_of(f"{key}.extra", more, is_needed=bool(more.held))
        state.add_value(self._name, self._settings() if state.is_save else None)
        state.optimizers.append(self)

    def _add(self, state: State, weight: str, kind: str, value: Any) -> None:
        name = _name_of(kind, weight)
        if type(kind) not in (str, int):
            raise UnsupportedError(
                f"'{weight}' has {kind!r} in the state of its optimizer: no text and no "
                "number"
            )
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
        told = [told_of(group) for group in self._held.groups]
        for left in (left for _, _, left in told if left):
            names = ", ".join(f"'{n}'" for n in left)
            warn(
                f"'{self._name}' is saved without {names}: no numbers, texts, or lists "
                "of such"
            )
        shared = _shared(self._held)
        return {
            "type": self._type,
            **_updates(self._held.state),
            **({SHARED: shared} if shared else {}),
            "param_groups": [group for group, _, _ in told],
            KINDS: [kinds for _, kinds, _ in told],
            KEEPS: sorted(self._kinds_here, key=str),
        }

    @property
    def _kinds_here(self) -> set[Any]:
        return {kind for kept in self._held.state.values() for kind in kept}

    def lacked_by(
        self, settings: Mapping[str, Any], trained: set[str], told: Collection[str]
    ) -> set[str]:
        """Names of tensors that a step of these settings does without: it has those told,
        and some of the weights `trained`.

        A step that may lack what was set, as those of dcp-train, must have what it makes.
        """
        self._held.is_told_of(trained)
        is_whole = KINDS in settings or self._is_other(settings)
        return {
            name
            for weight, name in self._tensors
            if name not in told and (is_whole or weight not in trained)
        }

    def kept_otherwise(
        self, now: Mapping[str, Like], told: Mapping[str, Like]
    ) -> set[str]:
        """Of those told, which are now, what gets a place as the step has it."""
        return {
            name
            for weight, name in self._tensors
            if name in told
            and told[name] != now[name]
            and self._held.has_place_of(weight, told[name][1])
        }

    @property
    def _tensors(self) -> list[tuple[str, str]]:
        """Weight and name of each."""
        return [
            (weight, _name_of(kind, weight))
            for weight, values in self._held.state.items()
            for kind, value in values.items()
            if is_tensor(value)
        ]

    def kept_as(self, kind: str) -> Any:
        """Under what it keeps state of that kind; None: another optimizer of the same
        weights does.
        """
        return kind if self._kinds is None else self._kinds.get(kind)

    @property
    def places(self) -> dict[str, Callable[[str, str, tuple[int, ...]], Any]]:
        """By weight, as the step calls it: what gives memory for a tensor of a kind, a
        dtype and a shape that the step has of it, or None.
        """
        return {
            told: functools.partial(self._place_of, weight)
            for told, weight in self._held.told_names.items()
        }

    def _place_of(
        self, weight: str, kind: str, dtype: str, shape: tuple[int, ...]
    ) -> Any:
        kept = self.kept_as(kind)
        return kept if kept is None else self._held.place_of(weight, kept, dtype, shape)

    def check(self, told: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Give the settings of these, of which stages of a pipeline have their own;
        refuse those that cannot be of this optimizer.
        """
        ours = self._held.groups
        mine = {param for group in ours for param in group["params"]}
        if all(KEEPS in settings for settings in told):
            kinds = {kind for settings in told for kind in settings[KEEPS]}
            self._kinds = {str(kind): kind for kind in kinds}
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
        list(paired(ours, saved))
        return settings

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

    def _is_other(self, settings: Mapping[str, Any]) -> bool:
        """Whether an optimizer of another type was trained."""
        kind: str | None = settings.get("type")
        return bool(kind and kind.lower() != self._type.lower())

    def load(self, loaded: Loaded) -> None:
        settings = loaded.all_of(self._name)
        if not settings:
            raise NotFoundError(f"the step has no value '{self._name}'")
        if loaded.is_resharded and not set_alike(settings):
            loaded.others.add(self._name)
        is_other = self._is_other(settings[0])
        if is_other:
            loaded.remarks.append(
                f"the step was trained with {settings[0]['type']}, and goes on with "
                f"{self._type}: what only one of them has is not loaded, and a weight of "
                "which the step lacks some begins without state"
            )
        first = self.check(settings)
        loaded.remarks += load_groups(self._optimizer, self._held, first, is_other)
        if not is_other:
            self._held.take_values(loaded, self.kept_as)
        # A step says once for all weights how often they were updated.
        self._take_state(loaded, is_other, any("step" in one for one in settings))
        for one in settings if not is_other else ():
            self._share(one.get(SHARED, ()))
        if self._extra is not None:
            self._extra.load(loaded)
        self._held.put(loaded)

    def _take_state(self, loaded: Loaded, is_other: bool, is_counted: bool) -> None:
        """Take what the step has of each weight, and drop what it lacks."""
        for weight, values in list(self._held.state.items()):
            told = self._held.told_as(weight)
            names = {kind: _name_of(kind, told) for kind in values}
            got = {kind for kind, name in names.items() if name in loaded.filled}
            for kind, name in names.items():
                if kind not in got and loaded.has_value(name):
                    values[kind] = loaded.of_weight(name)
                    got.add(kind)
            if got and is_counted and is_tensor(values.get("step")):
                got.add("step")
            lacked = values.keys() - got
            if is_other and weight not in self._held.made:
                continue  # its constructor may have made that, and nothing makes it again
            if lacked and (is_other or not got):
                self._held.drop(weight)
                continue
            for kind in lacked:
                del values[kind]

    def _share(self, all_shared: Sequence[Sequence[Sequence[str]]]) -> None:
        """Let several weights have one tensor, as in the step."""
        aliases, state = self._held.aliases, self._held.state
        for shared in all_shared:
            first = None
            for kind, weight in shared:
                name = aliases.get(weight, weight)
                if kind == "":
                    first = self._held.weight(name)
                    continue
                values = state.get(name, {})
                if is_tensor(values.get(kind)):
                    first = values[kind] if first is None else first
                    values[kind] = first


def _bare(optimizer: Any) -> Any:
    """The one inside, where the wrapper is known to keep nothing, as those of accelerate
    and Lightning.
    """
    known = _WRAPPERS.intersection(cls.__name__ for cls in type(optimizer).__mro__)
    inner = [one for one in with_inner(optimizer) if one is not optimizer]
    return inner[0] if known and len(inner) == 1 else optimizer


def _name_of(kind: str, weight: str) -> str:
    """Of what an optimizer keeps for a weight; `kind_of` takes it apart."""
    return f"{SETTINGS}.{kind}.{weight}"


def _shared(held: Plain | ByPyTorch) -> list[list[list[str]]]:
    """Kinds and weights of each tensor that stands there more than once; "" is the weight
    itself, which a tensor in its memory is.
    """
    places: dict[int, list[list[str]]] = {}
    shared = []
    for weight, values in held.state.items():
        for kind, value in values.items():
            if is_tensor(value):
                places.setdefault(id(value), []).append([kind, weight])
                if held.is_weight(weight, value):
                    shared.append([["", weight], [kind, weight]])
    return [*(found for found in places.values() if len(found) > 1), *shared]


def _updates(state: Mapping[str, Any]) -> dict[str, Any]:
    """How often weights were updated, where they count that: the `step` of all, else the
    least and the most.
    """
    import torch

    counts = [values["step"] for values in state.values() if "step" in values]
    if not counts or not all(map(is_number, counts)):
        return {}
    if len({(c.dtype, c.device) for c in counts}) > 1:
        return {}
    all_of = torch.stack([c.detach() for c in counts])
    if not all_of.isfinite().all():
        return {}
    least, most = int(all_of.min()), int(all_of.max())
    return {"step": least} if least == most else {"steps": [least, most]}
