"""Python's values in steps that were files of torch.save: the library has read their
pickles, and spells as JSON what that has not (formats/pickle/py.h).
"""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Callable
from typing import Any

from ._errors import UnsupportedError
from ._values import PLAIN, TAG

_SIGN = f'"{TAG}'.encode()
_OBJECT = f"{TAG}object"
_OF_FILES = {f"{TAG}{of}" for of in ("tensor", "again", "value", "view", "array")}
_MADE: dict[str, Callable[[Any], Any]] = {
    f"{TAG}tuple": lambda items: tuple(map(untagged, items)),
    f"{TAG}set": lambda items: set(map(untagged, items)),
    f"{TAG}frozenset": lambda items: frozenset(map(untagged, items)),
    f"{TAG}dict": lambda pairs: dict((untagged(k), untagged(v)) for k, v in pairs),
    f"{TAG}bytes": bytes.fromhex,
    f"{TAG}bytearray": bytearray.fromhex,
    f"{TAG}text": lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    f"{TAG}int": int,
    f"{TAG}float": float,
    f"{TAG}global": lambda name: _class_of(name),
}


class _UnknownError(Exception):
    """A class that is no plain data."""


def decoded(data: bytes) -> Any:
    """The value; where only a program could make it, the JSON that says so."""
    value = json.loads(data)
    if _SIGN not in data:
        return value
    try:
        return untagged(value)
    except Exception:  # of what looks like one, too
        return value


def checked(name: str, data: bytes) -> Any:
    """The value, or an error."""
    value = json.loads(data)
    try:
        return untagged(value) if _SIGN in data else value
    except Exception as why:
        what = why if isinstance(why, _UnknownError) else "value that is none"
        raise UnsupportedError(
            f"'{name}' has a {what} in it, which only a program could make",
            hint="libdcp.open(…).objects tells it as JSON",
        ) from None


def untagged(value: Any) -> Any:
    """What is meant; raises _UnknownError where only a program could make it."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if tag == _OBJECT:
        return _object_of(value)
    if tag in _OF_FILES:
        raise _UnknownError(tag)
    make = _MADE.get(tag)
    if make is None or len(value) != 1:  # a dict of JSON, whatever its keys are
        return {key: untagged(item) for key, item in value.items()}
    return make(value[tag])


def _class_of(name: str) -> Any:
    module, _, kind = name.replace(":", ".").rpartition(".")
    if kind not in PLAIN.get(module, ()):
        raise _UnknownError(name)
    return getattr(importlib.import_module(module), kind)


def _object_of(told: dict[str, Any]) -> Any:
    cls = _class_of(told[_OBJECT])
    args = untagged(told.get("args", []))
    if told.get("new"):
        made = cls.__new__(cls, *args)
    else:
        made = cls(*args, **untagged(told.get("kwargs") or {}))
    if "state" in told:
        state = untagged(told["state"])
        made.__setstate__(state) if cls is uuid.UUID else vars(made).update(state)
    for item in told.get("items", ()):
        made.append(untagged(item))
    for key, item in told.get("pairs", ()):
        made[untagged(key)] = untagged(item)
    return made
