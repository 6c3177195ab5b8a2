"""Objects with `state_dict` and `load_state_dict`: a scheduler, a data loader."""

from __future__ import annotations

import base64
import copy
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from typing import TYPE_CHECKING, Any

from ._array import is_array
from ._errors import MismatchError, UnsupportedError, UsageError
from ._held import cut_as
from ._kinds import has_tensors, is_tensor
from ._values import plain_pickle, unpickled
from ._warn import warn

if TYPE_CHECKING:
    from ._loaded import Loaded
    from ._state import State

TREE = "tree"  # the object "tree.KEY" says how the state of KEY is nested
_DICTS = {"dict": dict, "ordered dict": OrderedDict}
# Of a class that is said beside them: what they are otherwise.
_OF_CLASS = {
    "dict of class": "dict",
    "list of class": "list",
    "tuple of class": "list",
}
_TENSORS = ("tensor", "dtensor", "array")
_LISTS = {"list": list, "tuple": tuple}


class Places:
    """Where a load puts plain values, and the tuples that have some in them."""

    def __init__(self) -> None:
        self.values: list[tuple[str, Any, Any]] = []  # names, and where they go
        self._tuples: list[tuple[Any, list[Any], Any, Any]] = []

    def opened(self, value: Any, place: Any, key: Any) -> list[Any]:
        """A tuple as a list, which `fill` makes a tuple again."""
        items = list(value)
        self._tuples.append((getattr(type(value), "_make", tuple), items, place, key))
        return items

    def fill(self, value_of: Callable[[str], Any]) -> None:
        for name, place, key in self.values:
            _put(place, key, value_of(name))
        for make, items, place, key in reversed(self._tuples):  # inner ones first
            _put(place, key, make(items))


def _put(place: Any, key: Any, value: Any) -> None:
    if not isinstance(place, (MutableMapping, MutableSequence)):
        raise UsageError(
            f"nothing can be put back into a {type(place).__name__}: '{key}'"
        )
    place[key] = value


class Stateful:
    """An object that gets back what it had, be that more or less than it has now.

    Tensors are filled in place where it has them already, in the shape of the step.
    """

    def __init__(
        self, state: State, key: str, value: Any, is_needed: bool = True
    ) -> None:
        """is_needed: by a load, which changes nothing of others that no step tells."""
        self._value, self._key, self.is_needed = value, key, is_needed
        self._dict = {key: value.state_dict()}
        self._places = Places()
        mine = self._dict[key]
        state.add(key, mine, self._dict, key, self._places)
        self.names = [name for name, _, _ in self._places.values]  # of plain values
        # Where other ranks may have tensors in it, that this one has none is told, too.
        tree = _tree_of(key, mine) if has_tensors(mine) or not state.is_alone else None
        if state.is_save and tree:
            state.add_value(f"{TREE}.{key}", tree)
            _warn_of(key, mine, tree, state.is_first)

    @property
    def key(self) -> str:
        return self._key

    @property
    def classes(self) -> dict[str, Any]:
        """Those of its containers by their codes, which a load makes without trust."""
        return dict(_classes_in(self._dict[self._key]))

    def load(self, loaded: Loaded) -> None:
        key, tree = self._key, f"{TREE}.{self._key}"
        if loaded.has_value(tree):
            tree = loaded.value_of(tree)
            if not _is_tree(tree):
                raise MismatchError(f"'{TREE}.{key}' of the step is something else")
            leaves = (leaf for leaf in _nodes(tree) if leaf[0] in _TENSORS)
            missing = [leaf for leaf in leaves if leaf[1] not in loaded.filled]
            for name in (name for kind, name in missing if kind == "dtensor"):
                raise no_place(name, key)
            rest = {**loaded.apart, **loaded.read(missing)}
            loaded.classes.update(self.classes)
            self._dict[key] = _made(tree, self._dict[key], loaded, rest)
        elif loaded.has_value(key):
            self._dict[key] = loaded.value_of(key)
        elif self.is_needed:  # of steps before trees, and what is no list and no dict
            self._places.fill(loaded.value_of)
        self._value.load_state_dict(self._dict[key])


def _tree_of(name: str, value: Any) -> Any:
    """How it is nested, with the names that `State.add` gives; None: it comes back as
    something else.
    """
    if is_tensor(value):
        return {"dtensor" if hasattr(value, "_local_tensor") else "tensor": name}
    if is_array(value):
        return {"array": name}
    if not has_tensors(value):
        return {"value": name}
    for kind, make in _LISTS.items():
        if type(value) is make:
            items = [_tree_of(f"{name}.{i}", item) for i, item in enumerate(value)]
            return None if None in items else {kind: items}
    if isinstance(value, MutableMapping):
        pairs = [
            [_code_of_key(k), _tree_of(f"{name}.{k}", item)] for k, item in value.items()
        ]
        if any(code is None or item is None for code, item in pairs):
            return None
        for kind, make in _DICTS.items():
            if type(value) is make:
                return {kind: pairs}
        code = _code_of_class(value)
        held = {"dict of class": [code, pairs, *_attributes(value)[0]]}
        return None if code is None else held
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return _list_of_class("tuple of class", name, value)
    if isinstance(value, list):
        return _list_of_class("list of class", name, value)
    return None


def _list_of_class(kind: str, name: str, value: Sequence[Any]) -> Any:
    items = [_tree_of(f"{name}.{i}", item) for i, item in enumerate(value)]
    code = _code_of_class(value)
    is_lost = code is None or None in items
    return None if is_lost else {kind: [code, items, *_attributes(value)[0]]}


def _attributes(value: Any) -> tuple[list[str], list[str]]:
    """The code of those that are plain data, where there are some, and names of others.

    Those whose tensors are all items are where a class keeps these.
    """
    held = dict(getattr(value, "__dict__", {}))
    if isinstance(value, defaultdict) and value.default_factory is not None:
        held["default_factory"] = value.default_factory
    items = set(_ids_in(value))
    keeps = [
        k for k, v in held.items() if has_tensors(v) and items.issuperset(_ids_in(v))
    ]
    held = {k: v for k, v in held.items() if k not in keeps}
    plain = {k: v for k, v in held.items() if plain_pickle(k, v) is not None}
    data = plain_pickle("attributes", plain) if plain else None
    codes = [base64.b64encode(data).decode()] if data else []
    return codes, [k for k in held if k not in plain]


def _ids_in(value: Any) -> Iterator[int]:
    """Those of all tensors and arrays in it."""
    if isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _ids_in(item)
    elif is_tensor(value) or is_array(value):
        yield id(value)


def _of_class(name: str, value: Any, tree: Any) -> Iterator[tuple[str, Any, str]]:
    """Containers of classes, with their names, and the codes of the classes."""
    ((kind, held),) = tree.items()
    if kind in _OF_CLASS:
        yield name, value, held[0]
        held = held[1]
    if kind in _TENSORS or kind == "value":
        return
    if isinstance(value, Mapping):
        for (key, item), (_, inner) in zip(value.items(), held):
            yield from _of_class(f"{name}.{key}", item, inner)
    else:
        for i, (item, inner) in enumerate(zip(value, held)):
            yield from _of_class(f"{name}.{i}", item, inner)


def _warn_of(name: str, value: Any, tree: Any, is_first: bool) -> None:
    """Warn of what does not come back of containers; on rank 0 of what takes trust."""
    told: set[str] = set()
    for inner, held, code in _of_class(name, value, tree):
        lost = ", ".join(f"'{k}'" for k in _attributes(held)[1])
        if lost:
            warn(f"'{inner}' is saved without its {lost}: no plain data")
        if is_first and code not in told and not is_plain_class(code):
            made = f"{type(held).__module__}.{type(held).__qualname__}"
            begin = f"'{inner}' is a {made}: a load into an object that has none yet"
            warn(f"{begin} wants trust_pickles=True")
        told.add(code)


def is_plain_class(code: str) -> bool:
    """Whether a load makes such without trust."""
    try:
        unpickled("the class of a container", base64.b64decode(code), trust=False)
    except UnsupportedError:
        return False
    return True


def classes_of(tree: Any) -> list[str]:
    """Codes of the classes in a tree that take trust; [] of what is no tree."""
    nodes = _nodes(tree) if _is_tree(tree) else ()
    codes = {held[0] for kind, held in nodes if kind in _OF_CLASS}
    return sorted(code for code in codes if not is_plain_class(code))


def no_place(name: str, key: str) -> MismatchError:
    return MismatchError(
        f"'{name}' of the step is a DTensor, and '{key}' has none yet that says how it "
        "lies on the ranks",
        hint="let the object make its state before the load",
    )


def leaves_of(tree: Any, *kinds: str) -> list[str]:
    """Names of what is of these kinds in a tree; [] of what is no tree."""
    nodes = _nodes(tree) if _is_tree(tree) else ()
    return [held for kind, held in nodes if kind in kinds]


def _nodes(tree: Any) -> Iterator[tuple[str, Any]]:
    """The kind of a tree and what is said of it, and those of all in it."""
    ((kind, held),) = tree.items()
    yield kind, held
    if kind in _OF_CLASS:
        yield from _nodes({_OF_CLASS[kind]: held[1]})
    elif kind in _LISTS or kind in _DICTS:
        for item in held:
            yield from _nodes(item if kind in _LISTS else item[1])


def _code_of_key(key: Any) -> Any:
    """A text or a number is itself; None: it is no plain data."""
    if type(key) in (str, int):
        return key
    plain = plain_pickle("a key", key)
    return None if plain is None else {"plain": base64.b64encode(plain).decode()}


def _key_of(code: Any) -> Any:
    if not isinstance(code, dict):
        return code
    return unpickled("a key", base64.b64decode(code["plain"]), trust=False)


def _code_of_class(value: Any) -> str | None:
    """None: a class of a function, which nobody else can find."""
    try:
        return base64.b64encode(pickle.dumps(type(value))).decode()
    except (pickle.PicklingError, AttributeError):
        return None


def _classes_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Classes of containers that are there now, by their codes: others take trust."""
    if isinstance(value, (MutableMapping, list, tuple)):
        if type(value) not in (dict, list, tuple):
            code = _code_of_class(value)
            yield from [(code, type(value))] if code else []
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _classes_in(item)


def _is_tree(value: Any) -> bool:
    """Whether it is one, and no value that somebody has called so."""
    if type(value) is not dict or len(value) != 1:
        return False
    ((kind, held),) = value.items()
    if kind in _LISTS:
        return type(held) is list and all(map(_is_tree, held))
    if kind in _DICTS:
        return type(held) is list and all(
            type(pair) is list
            and len(pair) == 2
            and _is_key(pair[0])
            and _is_tree(pair[1])
            for pair in held
        )
    if kind in _OF_CLASS:
        parts = held if type(held) is list and len(held) in (2, 3) else [None]
        texts = all(type(part) is str for part in (parts[0], *parts[2:]))
        return texts and _is_tree({_OF_CLASS[kind]: parts[1]})
    return kind in (*_TENSORS, "value") and type(held) is str


def _is_key(code: Any) -> bool:
    if type(code) is not dict:
        return type(code) in (str, int)
    return list(code) == ["plain"] and type(code["plain"]) is str


def _emptied(like: Any) -> Any:
    """A container as this one that is empty, and shares no memory for items with it."""
    if isinstance(like, (list, dict)) or hasattr(like, "__copy__"):
        made = copy.copy(like)
    else:  # a shallow copy would have the dict that it keeps them in
        try:
            made = copy.deepcopy(like, {id(item): item for item in like.values()})
        except Exception:
            made = type(like)()
    made.clear()
    return made


def _set_attributes(made: Any, plain: Mapping[str, Any]) -> None:
    for name, value in plain.items():
        if name == "default_factory" and isinstance(made, defaultdict):
            made.default_factory = value
        else:
            vars(made)[name] = value


def _made(tree: Any, like: Any, loaded: Loaded, rest: Mapping[str, Any]) -> Any:
    """The state; `like`: what stands there now, filled where the step has it, too."""
    ((kind, held),) = tree.items()
    if kind == "value":
        return loaded.value_of(held)
    if kind in _TENSORS:
        got = rest.get(held, like)
        is_part = hasattr(like, "_local_tensor") and not hasattr(got, "_local_tensor")
        return cut_as(like, got) if is_part else got
    if kind in _OF_CLASS:
        make = loaded.classes.get(held[0])
        if make is None:
            code = base64.b64decode(held[0])
            make = unpickled("the class of a container", code, loaded.trust)
        plain = _made({_OF_CLASS[kind]: held[1]}, like, loaded, rest)
        if kind == "tuple of class":
            filled = make._make(plain)
        else:
            filled = _emptied(like) if type(like) is make else make()
            put = filled.extend if kind == "list of class" else filled.update
            put(plain)
        for code in held[2:]:
            _set_attributes(
                filled, unpickled("attributes", base64.b64decode(code), False)
            )
        return filled
    if kind in _LISTS:
        old = like if isinstance(like, (list, tuple)) else ()
        pairs = zip(held, [*old, *[None] * len(held)])
        return _LISTS[kind](_made(v, at, loaded, rest) for v, at in pairs)
    olds = like if isinstance(like, Mapping) else {}
    keys = ((_key_of(code), v) for code, v in held)
    made: Any = _DICTS[kind]((k, _made(v, olds.get(k), loaded, rest)) for k, v in keys)
    if kind == "ordered dict" and hasattr(like, "_metadata"):
        made._metadata = like._metadata  # versions of a module's parts
    return made
