"""What a load asks of a step before anything is written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ._entries import Box
from ._errors import NotFoundError
from ._ranks import Ranks, on_first
from ._stateful import TREE
from ._values import SETTINGS, unpickled

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
    names = {name for theirs in ranks.gather(made.value_names) for name in theirs}

    def first() -> tuple[set[str], list[More], set[str]]:
        try:
            found = opened()
        except Exception:  # which the load finds, too, and says on all ranks
            return set(), [], set()
        with found:
            lacked = _lacked_by(made, found)
            _check(made, found, names, trust)
            _remark_on(made, found)
            more = _more_in(made, found)
            return lacked, more, _types_in(found) if more else set()

    lacked, more, types = on_first(ranks, first)
    made.leave_out(lacked)
    if more:
        made.take_more(more, types, ranks)


def _check(made: State, step: Checkpoint, names: set[str], trust: bool) -> None:
    """Refuse a step that has not what all ranks ask for, or not so."""
    saved = {n: n.rpartition("@")[0] or n for n in step.objects}
    missing = names.difference(saved, saved.values())
    if missing:
        name = min(missing)
        raise NotFoundError(
            f"the step has no value '{name}'",
            hint=_WITHOUT if name.split(".")[0] == SETTINGS else "",
        )
    begins = tuple(f"{key}." for key in made.stateful)
    asked = names.union(made.asked, made.stateful)
    for name, first in saved.items():
        if trust or (first not in asked and not name.startswith(begins)):
            continue
        value = step.objects[name]
        if isinstance(value, bytes):
            unpickled(name, value, trust)
    for optimizer in made.optimizers:
        settings = [
            step.objects[n] for n, of in saved.items() if of == optimizer.settings_name
        ]
        if settings:
            optimizer.check(settings)


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
    if made.optimizers:
        trained, objects = step._trained(), step.objects
        lacked.update(*(o.lacked_by(trained, objects) for o in made.optimizers))
    told = [key for key in made.stateful if _is_told(key, step)]
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
    if not made.optimizers:
        return []
    known = set(made.entries.names)
    more = [n for n in step if n.startswith(f"{SETTINGS}.") and n not in known]
    return [(n, step.tensors[n].dtype, step.tensors[n].shape) for n in more]


def _types_in(step: Checkpoint) -> set[str]:
    """The names of settings, and the types of their optimizers."""
    settings = {n: v for n, v in step.objects.items() if isinstance(v, dict)}
    return {f"{n.split('@')[0]} {v.get('type')}".lower() for n, v in settings.items()}


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
    """Warn of what a step has in given lists and dicts, and they have not, and of buffers
    that models have not.
    """
    known = set(made.entries.names)
    left = [name for name in step._buffers() if name not in known] if made.models else []
    if left:
        made.remarks.append(
            f"the step has {len(left)} buffers that no model has, '{left[0]}' the first"
        )
    if not made.containers:
        return
    known.update(made.value_names)
    for key in made.containers:
        has = [n for n in (*step, *step.objects) if n.startswith(f"{key}.")]
        left = [n for n in has if known.isdisjoint((n, n.rpartition("@")[0]))]
        if left:
            first = f"'{left[0]}'" + (" the first of them" if len(left) > 1 else "")
            made.remarks.append(
                f"the step has {len(left)} in '{key}' that the state has not, {first}"
            )


def _is_told(key: str, step: Checkpoint) -> bool:
    """Whether the step says all that an object has."""
    names = {name.split("@")[0] for name in step.objects}
    return key in names or f"{TREE}.{key}" in names


def _is_other(name: str, box: Box, step: Checkpoint) -> bool:
    """Whether the step has no such tensor, or, where it is no share, another one."""
    stored = step.tensors.get(name)
    if stored is None:
        return True
    whole = box.size == box.shape
    return whole and (stored.shape, stored.dtype) != (box.shape, box.dtype)
