"""Values of a state that are no tensors: JSON where that holds them, else pickles."""

from __future__ import annotations

import enum
import io
import json
import math
import pickle
from typing import Any

from ._array import is_array
from ._errors import UnsupportedError, UsageError
from ._warn import warn

TAG = "$"  # how keys begin by which the library says what JSON does not
FLOAT = f"{TAG}float"
SETTINGS = "optimizer"  # the object with what an optimizer has besides tensors
TRAINER = "trainer"  # the object with the step of training, which all programs go by
RANDOM = frozenset(("uint8", "uint32", "uint64"))  # what generators have their state in


class Pickle(bytes):
    """A value that is a pickle already."""


def lists(value: Any) -> Any:
    return [lists(item) for item in value] if isinstance(value, tuple) else value


def is_json(value: Any) -> bool:
    """Whether it comes back as it is."""
    if isinstance(value, enum.Enum):  # also of those that are numbers or texts
        return False
    if value is None or isinstance(value, (bool, int)):
        return not isinstance(value, int) or abs(value) < 1 << 63
    if isinstance(value, str):
        return is_text(value)
    if isinstance(value, float):
        return math.isfinite(value)
    if type(value) is list:
        return all(is_json(item) for item in value)
    if type(value) is dict:
        return all(
            isinstance(k, str) and is_text(k) and is_json(v) for k, v in value.items()
        )
    return False


def _is_tagged(value: Any) -> bool:
    """Whether a dict in it looks like what the library says of other values."""
    if isinstance(value, list):
        return any(map(_is_tagged, value))
    if not isinstance(value, dict):
        return False
    return any(k.startswith(TAG) for k in value) or any(map(_is_tagged, value.values()))


def is_text(value: str) -> bool:
    """Whether the library can have it: UTF-8 that ends at the first NUL."""
    return "\0" not in value and (
        value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
    )


def is_random(tensor: Any) -> bool:
    """Whether it looks like the state of a generator: each rank has its own."""
    if is_array(tensor):
        small = tensor.ndim == 1 and tensor.nbytes <= 1 << 16
        return small and tensor.dtype.name in RANDOM
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.dtype is torch.uint8
        and tensor.dim() == 1
        and tensor.device.type == "cpu"
        and tensor.nbytes <= 1 << 16
    )


def check_name(name: str) -> None:
    """See that it is one that steps can have."""
    if not is_text(name):
        raise UsageError(f"{name!r} is no name: it has a NUL or half a character in it")


def check_trainer(value: Any, step: int) -> None:
    """See that it counts as the save does: `dcp-train` and conversions go by it."""
    if not isinstance(value, dict) or value.get("step") != step:
        raise UsageError(
            f"'{TRAINER}' is where a step has its number, {{'step': {step}}}, and not "
            "what was given",
            hint="call it something else",
        )


def first_name(name: str) -> str:
    """Without the rank, in "NAME@RANK": a value of which ranks have their own."""
    first, _, rank = name.rpartition("@")
    return first if first and rank.isdecimal() else name


def digest(data: bytes) -> bytes:
    import hashlib  # which brings libraries with it

    return hashlib.sha256(data).digest()


def code_of(name: str, value: Any, warns: bool = False) -> tuple[bool, bytes]:
    """Whether it is JSON, and its bytes; warns: of what a load refuses without trust."""
    check_name(name)
    if isinstance(value, Pickle):
        return False, bytes(value)
    is_ours = f"{name}.".startswith(f"{SETTINGS}.")
    if is_json(value) and (is_ours or not _is_tagged(value)):
        return True, json.dumps(value).encode()
    data, is_plain = _pickled(name, value)
    if warns and not is_plain:
        try:
            unpickled(name, data, trust=False)
        except UnsupportedError as why:
            warn(f"{why.message}; a load wants trust_pickles=True for it")
    return False, data


def _pickled(name: str, value: Any) -> tuple[bytes, bool]:
    """The pickle, and whether there is surely nothing but plain data in it."""
    made = io.BytesIO()
    try:
        pickler = _Pickler(made)
        pickler.dump(value)
    except UsageError as why:
        raise UsageError(f"'{name}': {why}", hint=why.hint) from None
    except Exception as why:
        raise UnsupportedError(f"'{name}' cannot be pickled: {why}") from why
    return made.getvalue(), pickler.is_plain


def plain_pickle(name: str, value: Any) -> bytes | None:
    """Its pickle, where that is plain data; None: it could run a program, or is none."""
    try:
        data, _ = _pickled(name, value)
        unpickled(name, data, trust=False)
    except UnsupportedError:
        return None
    return data


class _Pickler(pickle.Pickler):
    """Refuses what would only say where another checkpoint was."""

    is_plain = True

    def reducer_override(self, value: Any) -> Any:
        """Leave all else to pickle."""
        from ._checkpoint import Checkpoint
        from ._tensor import Box

        if isinstance(value, (Box, Checkpoint)):
            raise UsageError(
                f"a {type(value).__name__} of an open checkpoint is not saved",
                hint="read it first: .torch(), .numpy(), .state_dict()",
            )
        made = value if isinstance(value, type) else type(value)
        self.is_plain &= made.__name__ in PLAIN.get(made.__module__, ())
        return NotImplemented


def unpickled(name: str, data: bytes, trust: bool) -> Any:
    """What was pickled: plain data, or, where the caller says so, anything."""
    if trust:
        return pickle.loads(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as why:
        raise UnsupportedError(
            f"'{name}' is a pickle, which could run any program: {why}",
            hint="trust_pickles=True loads it, of a step that you trust",
        ) from None


class _PlainUnpickler(pickle.Unpickler):
    """Makes containers, numbers and times, and runs nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Give a class, if it is one of those."""
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        if module == "__builtin__":  # of protocol 2
            module = "builtins"
        if name not in PLAIN.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is in it")
        return super().find_class(module, name)


def _latin1(text: str, encoding: str) -> bytes:
    """Bytes, as protocol 2 spells them: it has none."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"a text in {encoding} is in it")
    return text.encode(encoding)


PLAIN = {
    "builtins": [
        "set",
        "frozenset",
        "complex",
        "slice",
        "int",
        "float",
        "bool",
        "str",
        "bytes",
        "bytearray",
        "list",
        "dict",
        "tuple",
    ],
    "collections": ("OrderedDict", "defaultdict", "deque", "Counter", "UserDict"),
    "datetime": ("datetime", "date", "time", "timedelta", "timezone"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "uuid": ("UUID",),
    "pathlib": ("PosixPath", "PurePosixPath"),
}
