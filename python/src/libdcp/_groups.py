"""What is set of an optimizer's groups: as JSON in a step, and as it was again."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ._array import is_array
from ._errors import MismatchError
from ._kinds import is_tensor
from ._values import FLOAT, is_json

if TYPE_CHECKING:
    from ._held import ByPyTorch, Plain

KINDS = "kinds"  # what JSON does not tell of groups
LEFT = "left"  # the kind of what no step has
OF_PARAMS = ("params", "param_names")
_SWITCHES = ("amsgrad", "centered", "momentum")  # they want state


def told_of(group: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """A group as JSON, the kinds of what JSON does not tell, and what it cannot hold."""
    told, kinds, left = dict[str, Any](), dict[str, Any](), list[str]()
    for name, value in group.items():
        plain, kind = _plain(value)
        if is_json(plain):
            told[name] = plain
        else:
            left.append(name)
            kind = LEFT
        if kind:
            kinds[name] = kind
    return told, kinds, left


def load_groups(
    optimizer: Any,
    held: Plain | ByPyTorch,
    settings: Mapping[str, Any],
    is_other: bool,
) -> list[str]:
    """Let groups have what those of the step have; of an optimizer of the same type
    nothing else stays but what no step has. Settings of other programs tell no kinds.

    Gives what is to be warned of.
    """
    remarks: list[str] = []
    all_saved, all_kinds = settings["param_groups"], settings.get(KINDS, ())
    is_told = len(all_kinds) == len(all_saved)
    defaults = getattr(optimizer, "defaults", {})
    pairs = zip(paired(held.groups, all_saved), optimizer.param_groups, held.likes)
    for i, ((group, at), mine, like) in enumerate(pairs):
        if at is None:
            remarks.append(
                f"parameter group {i} keeps its settings: the step has no group of its "
                "weights"
            )
            continue
        device = next((param.device for param in mine["params"]), "cpu")
        saved, kinds = _without_params(all_saved[at]), all_kinds[at] if is_told else {}
        for name, value in saved.items():
            if is_told:
                value = _rebuilt(value, kinds.get(name), device)
            else:
                value = _like(like.get(name), value)
            now = cast("Any", group.get(name))
            is_one = is_number(now) and name in defaults  # it was made with a tensor
            if is_one and _is_plain_number(value):
                value = now.new_tensor(float(value))
            is_off = name in _SWITCHES and not now
            if not is_other or (name in group and not is_off and _fits(now, value)):
                group[name] = value
        if is_told and not is_other:
            for name in _without_params(group).keys() - {*saved, *kinds, *defaults}:
                del group[name]
    return remarks


def _without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in OF_PARAMS}


def set_alike(settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ranks differ in weights alone, as stages of a pipeline do."""
    rest = [
        [_without_params(group) for group in groups]
        for groups in (one.get("param_groups", ()) for one in settings)
    ]
    return all(one == rest[0] for one in rest)


def paired(
    ours: Sequence[dict[str, Any]], saved: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Each group, and the place of that of the same weights in the step; without such
    its own, or None, where that is another's.
    """
    places = {
        param: i for i, group in enumerate(saved) for param in group.get("params", ())
    }
    all_found = [
        {places[param] for param in group["params"] if param in places} for group in ours
    ]
    taken = set().union(*all_found)
    for i, (group, found) in enumerate(zip(ours, all_found)):
        if len(found) > 1:
            raise MismatchError(
                f"weights of parameter group {i} are in several groups of the step",
                hint="make the optimizer with the groups that the step has",
            )
        yield group, min(found, default=None if i in taken else i)


def is_number(value: Any) -> bool:
    """Whether it is a tensor of one."""
    return is_tensor(value) and bool(value.dim() == 0)


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _fits(now: Any, value: Any) -> bool:
    """Whether the setting of another optimizer is of the same kind."""
    pair = now, value
    if all(isinstance(one, (tuple, list)) for one in pair):
        return len(now) == len(value) and all(map(_fits, now, value))
    if all(_is_plain_number(one) or is_number(one) for one in pair):
        return True
    return type(now) is type(value)


def _plain(value: Any) -> tuple[Any, Any]:
    """What is set of a group as JSON, where that holds it, and its kind, which JSON does
    not tell; None: it does.
    """
    if is_tensor(value):
        kind = str(value.dtype).rpartition(".")[2], list(value.shape), value.device.type
        return _plain(value.tolist())[0], {"tensor": list(kind)}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of NumPy
        shape = list(value.shape) if is_array(value) else None
        return _plain(value.tolist())[0], {"array": [value.dtype.str, shape]}
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: str(value)}, None
    if isinstance(value, (list, tuple)):
        told = [_plain(item) for item in value]
        kinds = [kind for _, kind in told]
        name = "tuple" if isinstance(value, tuple) else "list" if any(kinds) else None
        return [item for item, _ in told], {name: kinds} if name else None
    return value, None


def _rebuilt(value: Any, kind: Any, device: Any) -> Any:
    """What `_plain` has made plain; tensors that lay with the weights lie on `device`."""
    if not kind:
        return value
    ((name, how),) = kind.items()
    if name in ("tuple", "list"):
        made = [_rebuilt(item, of, device) for item, of in zip(value, how)]
        return tuple(made) if name == "tuple" else made
    if name == "array":
        import numpy

        dtype, shape = how
        array = numpy.array(value, dtype)
        return array[()] if shape is None else array.reshape(shape)
    import torch

    dtype, shape, place = how
    on = "cpu" if place == "cpu" else device
    return torch.tensor(value, dtype=getattr(torch, dtype), device=on).reshape(shape)


def _like(old: Any, new: Any) -> Any:
    """A value that was JSON, as what it takes the place of."""
    if isinstance(old, tuple):
        olds = old if len(old) == len(new) else new
        return tuple(_like(o, n) for o, n in zip(olds, new))
    return old.new_tensor(new) if is_tensor(old) else new
