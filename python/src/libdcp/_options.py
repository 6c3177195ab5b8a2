"""Options of `libdcp.save` that are kept until something is saved: checked at once."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping
from typing import Any

from ._errors import UsageError
from ._training import options_of, save

OF_RUNS = ("delta", "keep", "keep_every", "keep_optimizer")  # of more than one step
CODECS = ("none", "planes", "split", "zstd")
EXPORTS = (
    *("bf16", "bfloat16", "fp16", "f16", "float16", "half"),
    *("fp32", "f32", "float32", "float", "fp64", "f64", "float64", "double"),
)
_OF_CALLS = ("state", "path", "step", "group", "diverged")


def check_options(given: Mapping[str, Any], taker: str, one_step: str = "") -> None:
    """Refuse names and values that the first save would refuse, hours later.

    taker: who was given them; one_step: why there is no more than one step in a folder.
    """
    others = (*_OF_CALLS, *(OF_RUNS if one_step else ()))
    known = [name for name in inspect.signature(save).parameters if name not in others]
    for name in given:
        if one_step and name in OF_RUNS:
            if not given[name]:
                continue  # as without it
            raise UsageError(f"{taker} does not take '{name}' here: {one_step}")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                f"{taker} does not take '{name}'",
                hint=f"did you mean '{near[0]}'?" if near else ", ".join(known),
            )
    check_values(given)


def check_values(given: Mapping[str, Any]) -> None:
    """Refuse values that no save takes."""
    options_of(**given)
    codec = given.get("codec")
    if codec is not None and codec not in (*CODECS, *map(str.encode, CODECS)):
        raise UsageError(f"there is no codec '{codec}': {', '.join(CODECS)}")
    export = given.get("export")
    if export is not None and _dtype_text(export) not in EXPORTS:
        raise UsageError(f"there is no export in '{export}': bf16, fp16, fp32")
    if "/" in str(given.get("export_name", "")):
        raise UsageError("export_name is the name of a file, and no path")


def _dtype_text(value: Any) -> str:
    """A dtype as the library compares it."""
    text = os.fsdecode(value).lower()
    return text[len("torch.") :] if text.startswith("torch.") else text
