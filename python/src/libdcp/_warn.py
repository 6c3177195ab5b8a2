"""Warnings, which point at the line of who uses this package."""

from __future__ import annotations

import sys
import warnings

#: Whose lines say nothing to a user: ours, and those of trainers between.
_PASSED = {
    *("libdcp", "contextlib", "functools", "torch", "torch_checkpointing", "torchtitan"),
    *("lightning", "lightning_fabric", "pytorch_lightning"),
    *("accelerate", "deepspeed", "transformers"),
}


def warn(message: str, kind: type[Warning] = RuntimeWarning) -> None:
    """Warn, at the first line that is none of theirs."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _PASSED:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)
