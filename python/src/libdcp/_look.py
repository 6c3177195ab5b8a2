"""What a load asks of a step before anything is written to."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._entries import Box
from ._errors import MismatchError, NotFoundError
from ._ranks import Ranks, on_all, on_first
from ._stateful import TREE, classes_of
from ._values import SETTINGS, first_name, unpickled

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint
    from ._state import State

More = tuple[str, str, "tuple[int, ...]"]  # name, dtype and shape of a tensor
_WITHOUT = (
    "it was saved without optimizer, or keep_optimizer removed its state: load the model "
    "alone"
)


def look(
    made: State, ranks: Ranks, opened: Callable[[], Checkpoint], trust: bool
) -> None:
    """See what the step has: refuse what cannot be loaded, and do not ask for what it
    lacks and has otherwise, as steps of dcp-train do.
    """
    if not made.looks:
        return
    of_optimizers = [o.settings_names for o in made.optimizers]
    asked = made.value_names, of_optimizers, made.asked, made.stateful
    all_asked = [
        list(dict.fromkeys(chain.from_iterable(of_ranks)))
        for of_ranks in zip(*ranks.gather(asked))
    ]
    names, settings, asked_for, objects = all_asked

    def first() -> _Found:
        try:
            found = opened()
        except Exception:  # which the load finds, too, and says on all ranks
            return _Found()
        with found:
            lacked = _lacked_by(made, found, objects)
            _check_models(made, found)
            _check_settings(found, settings)
            _check(found, set(names), asked_for, objects, trust)
            _remark_on(made, found)
            classes = {} if trust else _classes_in(found, objects)
            rest = _of_optimizers(made, found) if settings else {}
            return _Found(lacked, found.info.world_size, classes=classes, **rest)

    found = _Found(**on_first(ranks, lambda: vars(first())))  # ranks tell plain values
    lacked = found.lacked
    if found.classes:
        on_all(ranks, lambda: _check_classes(made, found, ranks))
    if found.settings:
        lacked = lacked.union(*on_all(ranks, lambda: _lacked_here(made, found)))
    made.leave_out(lacked)
    if found.more:
        made.take_more(found.more, found.types, ranks)


@dataclass
class _Found:
    """What rank 0 found in the step, for all."""

    lacked: set[str] = field(default_factory=set)
    saved_by: int = 0
    more: list[More] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    settings: dict[str, list[Any]] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)  # of optimizers
    classes: dict[str, list[str]] = field(default_factory=dict)  # in trees, with codes


def _of_optimizers(made: State, step: Checkpoint) -> dict[str, Any]:
    """What each rank asks for its own: stages of a pipeline have other weights."""
    settings: dict[str, list[Any]] = {}
    for name, value in step.objects.items():
        if _is_settings(value):
            settings.setdefault(first_name(name), []).append(value)
    return {
        "more": _more_in(made, step),
        "types": {
            f"{n} {v.get('type')}".lower() for n, vs in settings.items() for v in vs
        },
        "settings": settings,
        "trained": step._trained(),
        "values": {n for n in map(first_name, step.objects) if n.startswith(SETTINGS)},
    }


def _lacked_here(made: State, found: _Found) -> set[str]:
    """Tensors of this rank's optimizers that the step has nothing of; refuses a step of
    others.
    """
    lacked: set[str] = set()
    for optimizer in made.optimizers:
        if optimizer.take_name(found.settings):
            optimizer.check(found.settings[optimizer.settings_name])
            lacked |= optimizer.lacked_by(found.trained)
            missing = optimizer.misses(found.trained, found.values)
            if missing:
                raise NotFoundError(f"the step has no value '{missing[0]}'")
    return lacked


def _check_models(made: State, step: Checkpoint) -> None:
    """Refuse one model of a step of several, where its key stands before its weights."""
    if len(made.models) != 1:
        return
    (key,) = made.models
    held = zip(made.entries.names, made.entries.roles)
    weights = [name for name, role in held if role == "model"]
    is_other = weights and not any(name in step.tensors for name in weights)
    if is_other and any(f"{key}.{name}" in step.tensors for name in weights):
        raise MismatchError(
            f"the step has several models, of which '{key}' is one",
            hint="give the others, too; libdcp.open reads the tensors of one",
        )


def _check_settings(step: Checkpoint, wanted: Sequence[tuple[str, str]]) -> None:
    """Refuse a step without what is set of an optimizer, under either of its names."""
    begin = f"{SETTINGS}."
    has = {first_name(n) for n in step.objects}
    for names in wanted:
        if has.isdisjoint(names):
            others = sorted(n for n in has if n.startswith(begin) and n in step.objects)
            keys = [
                f"'{n[len(begin) :]}'" for n in others if _is_settings(step.objects[n])
            ]
            raise NotFoundError(
                f"the step has no value '{names[0]}'",
                hint=f"in it optimizers are called {', '.join(keys)}"
                if keys
                else _WITHOUT,
            )


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
    begins = tuple(f"{key}." for key in objects)
    asked = names.union(others, objects)
    for name, first in saved.items():
        is_asked = name in asked or first in asked or name.startswith(begins)
        if trust or not is_asked:
            continue
        value = step.objects[name]
        if isinstance(value, bytes):
            unpickled(name, value, trust)
    for key in objects:
        if not _has_state_of(key, step, saved):
            raise NotFoundError(f"the step has no state of '{key}'")


def _classes_in(step: Checkpoint, objects: Collection[str]) -> dict[str, list[str]]:
    """What takes trust of each tree of these, where there is some at all."""
    trees = {f"{TREE}.{key}" for key in objects}
    found = {
        name: classes_of(tree)
        for name, tree in step.objects.items()
        if name in trees or first_name(name) in trees
    }
    return found if any(found.values()) else {}


def _check_classes(made: State, found: _Found, ranks: Ranks) -> None:
    """Refuse containers of classes that an object of this rank has not yet."""
    own = f"@{ranks.rank}" if found.saved_by == ranks.world_size else ""
    for part in made.objects:
        tree = f"{TREE}.{part.key}"
        others = (name for name in found.classes if first_name(name) == tree)
        names = (name for name in (tree + own, tree, *others) if name in found.classes)
        codes = found.classes.get(next(names, ""), ())
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
    told = _told_in(step, objects)
    begins = tuple(f"{key}." for key in told)
    for name, box in zip(made.entries.names, made.entries.boxes) if told else ():
        theirs = name.startswith(begins) or name in told
        if theirs and _is_other(name, box, step, name in made.whole):
            lacked.add(name)
    return lacked


def _more_in(made: State, step: Checkpoint) -> list[More]:
    """Tensors of optimizers that these have not: they are made in later updates than the
    first, or by settings that the step has, too. Masters are none of them: who does not
    keep them would leave them as they are, and old.
    """
    known = set(made.entries.names)
    more = [n for n in step if n.startswith(f"{SETTINGS}.") and n not in known]
    told = [step.tensors[n] for n in more]
    return [(t.name, t.dtype, t.shape) for t in told if t.role != "master"]


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
    left = [name for name in step._buffers() if name not in known] if made.models else []
    if left:
        made.remarks.append(
            f"the step has {len(left)} buffers that no model has, '{left[0]}' the first"
        )
    told = set(_told_in(step, made.stateful))
    keys = [*made.containers, *(key for key in made.stateful if key not in told)]
    if not keys:
        return
    settings = (name for o in made.optimizers for name in o.settings_names)
    known.update(made.value_names, made.names_in_objects, settings)
    for key in keys:
        has = [n for n in (*step, *step.objects) if n.startswith(f"{key}.")]
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
    weights = {
        name
        for name, role, box in zip(
            made.entries.names, made.entries.roles, made.entries.boxes
        )
        if role == "model" and box.dtype != "float32"
    }
    if any(name not in known and weight in weights for name, weight in masters.items()):
        made.remarks.append(
            "the step has fp32 masters of weights, which no optimizer here keeps: the "
            "training goes on from the weights, which are less exact"
        )


def _has_state_of(key: str, step: Checkpoint, saved: Mapping[str, str]) -> bool:
    begin = f"{key}."
    names = {*saved, *saved.values()}
    return (
        key in names
        or f"{TREE}.{key}" in names
        or key in step
        or any(name.startswith(begin) for name in (*names, *step))
    )


def _told_in(step: Checkpoint, objects: Sequence[str]) -> list[str]:
    """Objects of which the step says all that they have."""
    names = {*step.objects, *map(first_name, step.objects)} if objects else ()
    return [k for k in objects if k in names or f"{TREE}.{k}" in names]


def _is_other(name: str, box: Box, step: Checkpoint, whole: bool) -> bool:
    """Whether the step has no such tensor, or, where it is no share, another one."""
    stored = step.tensors.get(name)
    if stored is None:
        return True
    return whole and (stored.shape, stored.dtype) != (box.shape, box.dtype)
