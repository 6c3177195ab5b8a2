"""What a load asks of a step before anything is written to."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._entries import Box
from ._errors import MismatchError, NotFoundError
from ._held import kind_of
from ._names import value_name
from ._ranks import Ranks, on_all, on_first
from ._stateful import TREE, classes_of, leaves_of, no_place
from ._values import SETTINGS, first_name, unpickled

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint
    from ._state import State

Like = tuple[str, "tuple[int, ...]"]  # dtype and shape of a tensor
More = tuple[str, str, "tuple[int, ...]"]  # and its name before
_Wants = tuple["list[str]", "list[str]"]  # what a tree does: see `_wants_of`
_WITHOUT = (
    "it was saved without optimizer, or keep_optimizer removed its state: load the model "
    "alone"
)


def look(
    made: State,
    ranks: Ranks,
    opened: Callable[[], Checkpoint],
    trust: bool,
    allow_cast: bool,
) -> None:
    """See what the step has: refuse what cannot be loaded, and do not ask for what it
    lacks and has otherwise, as steps of dcp-train do.
    """
    if not made.looks:
        return
    of_optimizers = [o.settings_names for o in made.optimizers]
    in_objects = made.values_in_objects
    asked = made.value_names, of_optimizers, made.asked, made.stateful, in_objects
    all_asked = [
        list(dict.fromkeys(chain.from_iterable(of_ranks)))
        for of_ranks in zip(*ranks.gather(asked))
    ]
    names, settings, asked_for, objects, in_objects = all_asked

    def first() -> _Found:
        try:
            found = opened()
        except Exception:  # which the load finds, too, and says on all ranks
            return _Found()
        with found:
            lacked = _lacked_by(made, found, objects)
            _check_models(made, found)
            _check_settings(found, settings)
            _check_objects(made, found, objects, in_objects)
            others = [*asked_for, *(name for _, name in in_objects)]
            others += _kept_in(found) if settings else ()
            _check(found, set(names), others, objects, trust)
            _remark_on(made, found)
            trees = _wants_of(made, found, objects, lacked, trust)
            rest = _of_optimizers(found, settings) if settings else {}
            return _Found(lacked, found.info.world_size, trees=trees, **rest)

    found = _Found(**on_first(ranks, lambda: vars(first())))  # ranks tell plain values
    lacked = found.lacked
    if found.trees:
        on_all(ranks, lambda: _check_trees(made, found, ranks))
    if found.settings:
        theirs = on_all(ranks, lambda: _lacked_here(made, found, allow_cast))
        lacked = lacked.union(*theirs)
    made.leave_out(lacked)
    made.step_weights = found.weights
    # Who does not keep masters would leave them as they are, and old.
    known = found.masters.union(made.entries.names)
    more = [(name, *like) for name, like in found.tensors.items() if name not in known]
    if more:
        made.take_more(more, found.types, ranks)


@dataclass
class _Found:
    """What rank 0 found in the step, for all."""

    lacked: set[str] = field(default_factory=set)
    saved_by: int = 0
    tensors: dict[str, Like] = field(default_factory=dict)  # of optimizers
    masters: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    settings: dict[str, list[Any]] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)
    trees: dict[str, _Wants] = field(default_factory=dict)


def _of_optimizers(step: Checkpoint, wanted: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What each rank asks for its own: stages of a pipeline have other weights."""
    names, settings = set(chain.from_iterable(wanted)), dict[str, list[Any]]()
    for name, value in step.objects.items():
        if _is_settings(value):
            first = name if name in names else first_name(name)
            settings.setdefault(first, []).append(value)
    weights = step._weights()
    others = {*step._of_role("model"), *step._of_role("buffer")}
    named = (n for n in step if n.startswith(f"{SETTINGS}.") and n not in others)
    kept = ((n, step.tensors[n]) for n in named)
    return {
        "tensors": {n: (t.dtype, t.shape) for n, t in kept},
        "masters": set(step._masters()),
        "types": {
            f"{n} {v.get('type')}".lower() for n, vs in settings.items() for v in vs
        },
        "settings": settings,
        "weights": weights,
        "trained": step._trained(),
    }


def _lacked_here(made: State, found: _Found, allow_cast: bool) -> set[str]:
    """Tensors of this rank's optimizers that the step has not, or has otherwise; refuses
    a step of others.
    """
    lacked: set[str] = set()
    boxes = zip(made.entries.names, made.entries.boxes)
    now = {name: (box.dtype, box.shape) for name, box in boxes}
    for optimizer in made.optimizers:
        if optimizer.take_name(found.settings):
            settings = optimizer.check(found.settings[optimizer.settings_name])
            lacked |= optimizer.lacked_by(settings, found.trained, found.tensors)
            if optimizer.named_type in found.types and not allow_cast:
                lacked |= optimizer.kept_otherwise(now, found.tensors)
    return lacked


def _check_models(made: State, step: Checkpoint) -> None:
    """Refuse one model of a step of several, where its key stands before its weights."""
    if len(made.models) != 1:
        return
    (key,) = made.models
    held = zip(made.entries.names, made.entries.roles)
    weights = [name for name, role in held if role == "model"]
    is_other = weights and not any(name in step.tensors for name in weights)
    if not is_other or not any(f"{key}.{name}" in step.tensors for name in weights):
        return
    begin = f"{key}."
    if all(n.startswith(begin) for n, t in step.tensors.items() if t.role == "model"):
        raise MismatchError(
            f"the weights in the step begin with '{key}.', as in PyTorch's checkpoints",
            hint="take them from libdcp.open(…).state_dict(), without it, and save once",
        )
    raise MismatchError(
        f"the step has several models, of which '{key}' is one",
        hint="give the others, too; libdcp.open reads the tensors of one",
    )


def _check_settings(step: Checkpoint, wanted: Sequence[tuple[str, str]]) -> None:
    """Refuse a step without what is set of an optimizer, under either of its names."""
    begin = f"{SETTINGS}."
    has = _values_in(step)
    for names in wanted:
        if has.isdisjoint(names):
            others = {first_name(n) for n in step.objects if n.startswith(begin)}
            others.intersection_update(step.objects)
            keys = [
                f"'{n[len(begin) :]}'"
                for n in sorted(others)
                if _is_settings(step.objects[n])
            ]
            raise NotFoundError(
                f"the step has no value '{names[0]}'",
                hint=f"in it optimizers are called {', '.join(keys)}"
                if keys
                else _WITHOUT,
            )


def _values_in(step: Checkpoint) -> set[str]:
    """Names of values, those of single ranks also without the rank."""
    return {*step.objects, *map(first_name, step.objects)}


def _kept_in(step: Checkpoint) -> list[str]:
    """Values that optimizers keep for weights."""
    weights = step._weights()
    return [
        name
        for name in step.objects
        if kind_of(value_name(name, weights), weights)[1] in weights
    ]


def _is_settings(value: Any) -> bool:
    return isinstance(value, dict) and "param_groups" in value


def _check(
    step: Checkpoint,
    names: set[str],
    others: Collection[str],
    objects: Collection[str],
    trust: bool,
) -> None:
    """Refuse a step that has not what ranks ask for, or not so.

    names: of values that are wanted; others: of those that are loaded where they are.
    """
    saved = {n: first_name(n) for n in step.objects}
    missing = names.difference(saved, saved.values())
    if missing:
        raise NotFoundError(f"the step has no value '{min(missing)}'")
    asked = names.union(others, objects, _values_told(step, objects))
    for name, first in saved.items():
        if not asked.isdisjoint((name, first)):
            step._objects.check(name, trust)


def _check_objects(
    made: State,
    step: Checkpoint,
    objects: Sequence[str],
    values: Collection[tuple[str, str]],
) -> None:
    """Refuse a step without the state of an object; values: what they have now. What
    begins with a key may be of a model, whose part is called so, too.
    """
    has = _values_in(step)
    told = {part.key for part in made.objects if not part.is_needed}
    told.update(_told_in(step, objects))
    found = told.union(key for key, name in values if name in has)
    found.update(key for n, key in made.of_objects.items() if n in step.tensors)
    for key in objects:
        if key not in found:
            raise NotFoundError(f"the step has no state of '{key}'")
    for key, name in values:
        if key not in told and name not in has:
            raise NotFoundError(f"the step has no value '{name}'")


def _trees_in(step: Checkpoint, objects: Collection[str]) -> dict[str, Any]:
    """Trees of these, also those of ranks that had other ones."""
    trees = {f"{TREE}.{key}" for key in objects}
    return {
        name: value
        for name, value in step.objects.items()
        if name in trees or first_name(name) in trees
    }


def _values_told(step: Checkpoint, objects: Collection[str]) -> set[str]:
    """Plain values that trees of these say they have."""
    trees = _trees_in(step, objects).values()
    return {name for tree in trees for name in leaves_of(tree, "value")}


def _wants_of(
    made: State,
    step: Checkpoint,
    objects: Collection[str],
    lacked: Collection[str],
    trust: bool,
) -> dict[str, _Wants]:
    """Of each tree of these, where some wants such: codes of classes that take trust,
    and DTensors that have no place.
    """
    there = set(made.entries.names).difference(lacked)
    found = {
        name: (
            [] if trust else classes_of(tree),
            [leaf for leaf in leaves_of(tree, "dtensor") if leaf not in there],
        )
        for name, tree in _trees_in(step, objects).items()
    }
    return found if any(map(any, found.values())) else {}


def _check_trees(made: State, found: _Found, ranks: Ranks) -> None:
    """Refuse containers of classes, and DTensors, that an object of this rank has not
    yet.
    """
    own = f"@{ranks.rank}" if found.saved_by == ranks.world_size else ""
    for part in made.objects:
        tree = f"{TREE}.{part.key}"
        others = (name for name in found.trees if first_name(name) == tree)
        names = (name for name in (tree + own, tree, *others) if name in found.trees)
        codes, nowhere = found.trees.get(next(names, ""), ([], []))
        for name in nowhere:
            raise no_place(name, part.key)
        for code in sorted(set(codes).difference(part.classes if codes else ())):
            unpickled(part.key, base64.b64decode(code), trust=False)


def _lacked_by(made: State, step: Checkpoint, objects: Sequence[str]) -> set[str]:
    """Tensors that a step does without: it has what they follow from, or it says what
    their object has.
    """
    counts = {
        name
        for name, value in step.objects.items()
        if isinstance(value, dict) and isinstance(value.get("step"), int)
    }
    known = counts.union(step)
    lacked = {
        name
        for name, instead in made.entries.instead.items()
        if name not in known and not known.isdisjoint(instead)
    }
    lacked |= _tied_again(made, step)
    told = set(_told_in(step, objects))
    for name, box in zip(made.entries.names, made.entries.boxes) if told else ():
        is_told = made.of_objects.get(name) in told  # its name may begin as a model's
        if is_told and _is_other(name, box, step, name in made.whole):
            lacked.add(name)
    return lacked


def _tied_again(made: State, step: Checkpoint) -> set[str]:
    """Names of weights that are read under another name already."""
    again, first = set(), set[str]()
    for name, others in made.entries.instead.items():
        twin = next((other for other in others if other in first), None)
        if name not in step.tensors:
            continue
        if twin is None:
            first.add(name)
            continue
        again.add(name)
        if step.fingerprint(name) != step.fingerprint(twin):
            made.remarks.append(
                f"'{name}' and '{twin}' are one weight, and were two in the step: it has "
                f"got '{twin}'"
            )
    return again


def _remark_on(made: State, step: Checkpoint) -> None:
    """Warn of what a step has in given lists and dicts, and in objects that it does not
    say all of, and these have not, and of buffers that models have not.
    """
    known = set(made.entries.names)
    _remark_on_masters(made, step, known)
    buffers = step._of_role("buffer") if made.models else []
    left = [name for name in buffers if name not in known]
    if left:
        made.remarks.append(
            f"the step has {len(left)} buffers that no model has, '{left[0]}' the first"
        )
    told = set(_told_in(step, made.stateful))
    keys = [*made.containers, *(key for key in made.stateful if key not in told)]
    if not keys:
        return
    settings = (name for o in made.optimizers for name in o.settings_names)
    in_objects = (name for _, name in made.values_in_objects)
    known.update(made.value_names, in_objects, settings)
    names = *step._of_role("other"), *step.objects  # others are of models of that name
    for key in keys:
        has = [n for n in names if n.startswith(f"{key}.")]
        left = [n for n in has if known.isdisjoint((n, first_name(n)))]
        if left:
            first = f"'{left[0]}'" + (" the first of them" if len(left) > 1 else "")
            made.remarks.append(
                f"the step has {len(left)} in '{key}' that the state has not, {first}"
            )


def _remark_on_masters(made: State, step: Checkpoint, known: set[str]) -> None:
    """Warn of what is lost with masters that no optimizer keeps: bits of weights that
    have fewer.
    """
    masters = step._masters() if made.optimizers else {}
    held = zip(made.entries.names, made.entries.roles, made.entries.boxes)
    weights = {n for n, role, box in held if role == "model" and box.dtype != "float32"}
    if any(name not in known and weight in weights for name, weight in masters.items()):
        made.remarks.append(
            "the step has fp32 masters of weights, which no optimizer here keeps: the "
            "training goes on from the weights, which are less exact"
        )


def _told_in(step: Checkpoint, objects: Sequence[str]) -> list[str]:
    """Objects of which the step says all that they have."""
    names = _values_in(step) if objects else ()
    return [k for k in objects if k in names or f"{TREE}.{k}" in names]


def _is_other(name: str, box: Box, step: Checkpoint, whole: bool) -> bool:
    """Whether the step has no such tensor, or, where it is no share, another one."""
    stored = step.tensors.get(name)
    if stored is None:
        return True
    return whole and (stored.shape, stored.dtype) != (box.shape, box.dtype)
