"""What is a tensor, a model, an optimizer, where PyTorch need not be there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ._array import is_array


def classes() -> tuple[Any, Any, Any]:
    return _classes_of(sys.modules.get("torch"))  # who has a tensor has imported it


@functools.cache
def _classes_of(torch: Any) -> tuple[Any, Any, Any]:
    if torch is None:
        return (), (), ()
    return torch.Tensor, torch.nn.Module, torch.optim.Optimizer


def is_tensor(value: Any) -> bool:
    return isinstance(value, classes()[0])


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value


def has_tensors(value: Any, arrays: bool = True) -> bool:
    """Whether there are such in it. A tuple with arrays in it is a plain value, since
    nothing can be put back into it: the state of NumPy's generators is one.
    """
    arrays = arrays and not isinstance(value, tuple)
    if is_tensor(value) or (arrays and is_array(value)):
        return True
    return any(has_tensors(item, arrays) for item in _items(value))


def is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def has_parts(value: Any) -> bool:
    """Whether it is a list or a dict with models, optimizers or other objects in it."""
    tensor = classes()[0]  # asked for first: most items are, by the ten thousands
    return any(
        not isinstance(item, tensor) and (is_stateful(item) or has_parts(item))
        for item in _items(value)
    )


def parts_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """All of them, with their names."""
    if is_stateful(value):
        yield name, value
    elif has_parts(value):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in pairs:
            yield from parts_of(f"{name}.{key}", item)
