"""Checkpoints of Lightning: each is a step of libdcp.

trainer = lightning.Trainer(plugins=[libdcp.lightning.CheckpointIO(parity=1)])
"""

from __future__ import annotations

import inspect
import io
import os
from typing import Any

import torch

try:
    from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
except ModuleNotFoundError:  # the package of Lightning's trainer alone
    from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from ._errors import UnsupportedError
from ._folder import published, removed
from ._options import check_options
from ._tree import Alone, load_tree, save_tree
from ._warn import warn

__all__ = ["CheckpointIO", "as_file"]


class CheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Saves folders that are complete, durable and read back, or not there at all."""

    def __init__(self, *, trust_pickles: bool = False, **how: Any) -> None:
        """Save with `parity`, `codec`, `verify_after_save`, `threads` of `libdcp.save`.

        trust_pickles: values that could run a program are loaded, too.
        """
        check_options(how, "CheckpointIO", "a checkpoint has one step; see save_top_k")
        super().__init__()
        self._trust, self._how = trust_pickles, how

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | os.PathLike[str],
        storage_options: Any = None,
    ) -> None:
        """Save what Lightning made on this rank, which calls on one rank alone."""
        if storage_options is not None:
            raise TypeError("storage_options are given to CheckpointIO(...)")
        _check_strategy(inspect.currentframe())
        step = int(checkpoint.get("global_step", 0))
        with published(path, Alone()) as folder:
            save_tree(checkpoint, folder, step, Alone(), **self._how)

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a folder of `save_checkpoint`, or a file that Lightning wrote itself.

        map_location: of such a file; what is in a folder is loaded to the CPU.
        """
        if os.path.isfile(path):
            loaded = super().load_checkpoint(path, map_location, weights_only)
        else:
            if isinstance(map_location, (str, dict, torch.device)):
                _check_place(map_location)
            trust = self._trust or weights_only is False
            loaded = load_tree(path, trust_pickles=trust)
        return dict(loaded)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint, at once."""
        removed(path)


def _check_strategy(frame: Any) -> None:
    """Refuse one that would not load a folder again: nobody else says who saves."""
    strategy = frame.f_back.f_locals.get("self")
    is_full = getattr(strategy, "_state_dict_type", "") == "full"
    if is_full or getattr(strategy, "_save_distributed_checkpoint", True) is False:
        raise UnsupportedError(
            f"{type(strategy).__name__} loads full checkpoints from files alone",
            hint="leave out CheckpointIO; libdcp.torch is for sharded ones",
        )


def _check_place(place: Any) -> None:
    """Warn of what does not come to be."""
    places = place.values() if isinstance(place, dict) else [place]
    if any(str(one).partition(":")[0] != "cpu" for one in places):
        warn(f"map_location={place!r} does nothing: tensors of a step come to the CPU")


def as_file(path: str | os.PathLike[str], *, trust_pickles: bool = False) -> io.BytesIO:
    """Give a checkpoint as the file that Lightning itself would have written.

    In memory, for `load_from_checkpoint` of a module, which opens files alone.
    trust_pickles: values that could run a program are loaded, too.
    """
    loaded = CheckpointIO(trust_pickles=trust_pickles).load_checkpoint(path)
    file = io.BytesIO()
    torch.save(loaded, file)
    file.seek(0)
    return file
