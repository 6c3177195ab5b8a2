"""The states of random number generators of a rank, as plain values."""

from __future__ import annotations

import random
import sys
from typing import Any

from ._ranks import Ranks


def random_states() -> dict[str, Any]:
    """Those of Python, NumPy and PyTorch."""
    import torch

    version, words, gauss = random.getstate()
    states = {
        "python": [version, list(words), gauss],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in _cuda_states(torch)],
    }
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = [kind, keys.tolist(), *rest]
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Go on where `random_states` was called."""
    import torch

    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(_tensor(states["torch"]))
    if len(states["cuda"]) == len(_cuda_states(torch)):
        torch.cuda.set_rng_state_all([_tensor(text) for text in states["cuda"]])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(states["numpy"]))


def set_states_of(states: list[dict[str, Any]], ranks: Ranks) -> None:
    """Set this rank's, of what all ranks of a save had; a new rank keeps its own."""
    if ranks.rank < len(states):
        set_random_states(states[ranks.rank])


def _cuda_states(torch: Any) -> list[Any]:
    used = torch.cuda.is_available() and torch.cuda.is_initialized()
    return list(torch.cuda.get_rng_state_all()) if used else []


def _text(state: Any) -> str:
    return bytes(state.cpu().tolist()).hex()


def _tensor(text: str) -> Any:
    import torch

    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
