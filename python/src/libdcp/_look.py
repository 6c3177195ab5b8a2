"""What a load asks of a step before anything is written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._entries import Box
from ._errors import NotFoundError
from ._ranks import Ranks, on_all, on_first
from ._stateful import TREE
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
    of_optimizers = [o.settings_name for o in made.optimizers]
    told = ranks.gather((made.value_names, of_optimizers))
    names = {name for theirs, _ in told for name in theirs}
    settings = {name for _, theirs in told for name in theirs}

    def first() -> _Found:
        try:
            found = opened()
        except Exception:  # which the load finds, too, and says on all ranks
            return _Found()
        with found:
            lacked = _lacked_by(made, found)
            _check(made, found, names, trust)
            _remark_on(made, found)
            return _Found(lacked, **(_of_optimizers(made, found) if settings else {}))

    found = _Found(**on_first(ranks, lambda: vars(first())))  # ranks tell plain values
    lacked = found.lacked
    if found.settings:
        lacked = lacked.union(*on_all(ranks, lambda: _lacked_here(made, found)))
    made.leave_out(lacked)
    if found.more:
        made.take_more(found.more, found.types, ranks)


@dataclass
class _Found:
    """What rank 0 found in the step, for all."""

    lacked: set[str] = field(default_factory=set)
    more: list[More] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    settings: dict[str, list[Any]] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)


def _of_optimizers(made: State, step: Checkpoint) -> dict[str, Any]:
    """What each rank asks for its own: stages of a pipeline have other weights."""
    settings: dict[str, list[Any]] = {}
    for name, value in step.objects.items():
        if isinstance(value, dict) and "param_groups" in value:
            settings.setdefault(first_name(name), []).append(value)
    return {
        "more": _more_in(made, step),
        "types": {
            f"{n} {v.get('type')}".lower() for n, vs in settings.items() for v in vs
        },
        "settings": settings,
        "trained": step._trained(),
    }


def _lacked_here(made: State, found: _Found) -> set[str]:
    """Tensors of this rank's optimizers that the step has nothing of; refuses a step of
    others.
    """
    lacked: set[str] = set()
    for optimizer in made.optimizers:
        if optimizer.settings_name in found.settings:
            optimizer.check(found.settings[optimizer.settings_name])
            lacked |= optimizer.lacked_by(found.trained)
    return lacked


def _check(made: State, step: Checkpoint, names: set[str], trust: bool) -> None:
    """Refuse a step that has not what all ranks ask for, or not so."""
    saved = {n: first_name(n) for n in step.objects}
    missing = names.difference(saved, saved.values())
    if missing:
        name = min(missing)
        raise NotFoundError(
            f"the step has no value '{name}'",
            hint=_WITHOUT if name == SETTINGS else "",
        )
    begins = tuple(f"{key}." for key in made.stateful)
    asked = names.union(made.asked, made.stateful)
    for name, first in saved.items():
        is_asked = name in asked or first in asked or name.startswith(begins)
        if trust or not is_asked:
            continue
        value = step.objects[name]
        if isinstance(value, bytes):
            unpickled(name, value, trust)
    for key in made.stateful:
        if not _has_state_of(key, step, saved):
            raise NotFoundError(f"the step has no state of '{key}'")


def _lacked_by(made: State, step: Checkpoint) -> set[str]:
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
    told = _told_in(made, step)
    begins = tuple(f"{key}." for key in told)
    for name, box in zip(made.entries.names, made.entries.boxes) if told else ():
        theirs = name.startswith(begins) or name in told
        if theirs and _is_other(name, box, step):
            lacked.add(name)
    return lacked


def _more_in(made: State, step: Checkpoint) -> list[More]:
    """Tensors of optimizers that these have not: they are made in later updates than the
    first, or by settings that the step has, too.
    """
    known = set(made.entries.names)
    more = [n for n in step if n.startswith(f"{SETTINGS}.") and n not in known]
    return [(n, step.tensors[n].dtype, step.tensors[n].shape) for n in more]


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
    left = [name for name in step._buffers() if name not in known] if made.models else []
    if left:
        made.remarks.append(
            f"the step has {len(left)} buffers that no model has, '{left[0]}' the first"
        )
    told = set(_told_in(made, step))
    keys = [*made.containers, *(key for key in made.stateful if key not in told)]
    if not keys:
        return
    known.update(made.value_names, made.names_in_objects)
    for key in keys:
        has = [n for n in (*step, *step.objects) if n.startswith(f"{key}.")]
        left = [n for n in has if known.isdisjoint((n, first_name(n)))]
        if left:
            first = f"'{left[0]}'" + (" the first of them" if len(left) > 1 else "")
            made.remarks.append(
                f"the step has {len(left)} in '{key}' that the state has not, {first}"
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


def _told_in(made: State, step: Checkpoint) -> list[str]:
    """Objects of which the step says all that they have."""
    names = {*step.objects, *map(first_name, step.objects)} if made.stateful else ()
    return [k for k in made.stateful if k in names or f"{TREE}.{k}" in names]


def _is_other(name: str, box: Box, step: Checkpoint) -> bool:
    """Whether the step has no such tensor, or, where it is no share, another one."""
    stored = step.tensors.get(name)
    if stored is None:
        return True
    whole = box.size == box.shape
    return whole and (stored.shape, stored.dtype) != (box.shape, box.dtype)
