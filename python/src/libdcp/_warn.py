"""Warnings, which point at the line of who uses this package."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import warnings
from collections.abc import Iterable, Iterator

#: Whose lines say nothing to a user: ours, and those of trainers between.
_PASSED = {
    *("libdcp", "contextlib", "functools", "torch", "torch_checkpointing", "torchtitan"),
    *("lightning", "lightning_fabric", "pytorch_lightning"),
    *("accelerate", "deepspeed", "transformers"),
}

Told = tuple[str, type[Warning]]  # a warning that is given later

_later: contextvars.ContextVar[list[Told] | None]
_later = contextvars.ContextVar("_later", default=None)


def warn(message: str, kind: type[Warning] = RuntimeWarning) -> None:
    """Warn, at the first line that is none of theirs."""
    later = _later.get()
    if later is not None:
        later.append((message, kind))
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _PASSED:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def warn_all(told: Iterable[Told]) -> None:
    """Give what was kept."""
    for message, kind in told:
        warn(message, kind)


@contextlib.contextmanager
def warnings_later() -> Iterator[list[Told]]:
    """Keep those that are given inside; who has them gives them with `warn_all`."""
    told: list[Told] = []
    before = _later.set(told)
    try:
        yield told
    finally:
        _later.reset(before)
