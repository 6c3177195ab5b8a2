"""The checkpoints of torchtitan: each is a step of libdcp.

config.checkpoint = libdcp.torchtitan.CheckpointManager.Config(enable=True, parity=1)
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from typing import Any

import torch.distributed.checkpoint as dcp
from torchtitan.components.checkpointer import dcp as theirs
from torchtitan.components.checkpointer.base import MODEL

from ._act import Act
from ._checkpoint import open_checkpoint
from ._errors import NotFoundError, UnsupportedError
from ._folder import removed
from ._options import check_options
from ._ranks import Ranks, on_first
from ._warn import warn
from .torch import StorageReader, StorageWriter

__all__ = ["CheckpointManager"]

OURS = "step-{:08}"
# What is written last, of a step of libdcp and of torchtitan's own.
ENDS = ("manifest.json", ".metadata", "model.safetensors.index.json")
PINNED = theirs.AsyncMode.ASYNC_WITH_PINNED_MEM


class CheckpointManager(theirs.CheckpointManager):  # type: ignore[misc]
    """torchtitan's own manager, whose folder is a run of libdcp.

    What it saves, when, and which steps stay, is as before (in the background a step
    counts from when it is complete); `step-00000100` is complete, durable and read back,
    or not there. Checkpoints that torchtitan wrote are loaded by
    it, and those in the layout of Hugging Face are written by it, too.
    """

    # As torchtitan has it, which needs Python 3.10.
    @dataclasses.dataclass(kw_only=True, slots=True)  # novm
    class Config(theirs.CheckpointManager.Config):  # type: ignore[misc]
        """The options of torchtitan, and some of `libdcp.save`."""

        parity: int = 0
        """How many lost shards of a step can be rebuilt."""

        codec: str | None = None
        """How blocks are compressed: "split", or not at all."""

        verify_after_save: bool = False
        """Whether what is read back comes from the disk."""

        trust_pickles: bool = False
        """Whether values that could run a program are loaded."""

        def __post_init__(self) -> None:
            """Check what torchtitan checks, and what `libdcp.save` would."""
            theirs.CheckpointManager.Config.__post_init__(self)
            check_options(_options(self), "CheckpointManager.Config")

    def __init__(self, config: Any, **how: Any) -> None:
        """Make it; torchtitan's trainer does."""
        if config.enable and config.async_mode == PINNED.value:
            config.enable = False  # nothing is to be closed
            self.enable = False
            raise UnsupportedError(
                "async_with_pinned_mem saves in another process",
                hint='checkpoint.async_mode="async" stages in pinned memory, too',
            )
        self._trust = config.trust_pickles
        self._how = _options(config)
        self._begun: int | None = None  # from which step, if that was asked for
        super().__init__(config, **how)

    def dcp_save(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        async_mode: Any,
        enable_garbage_collection: bool = False,
        to_hf: bool = False,
    ) -> Any:
        """Save a step of the run; the layout of Hugging Face as before."""
        if to_hf:
            return super().dcp_save(
                state_dict, checkpoint_id, async_mode, enable_garbage_collection, to_hf
            )
        folder, name = os.path.split(checkpoint_id)
        step = int(name.removeprefix("step-"))
        if self._begun is not None:
            on_first(Ranks(Act()), lambda: self._leave(folder, step))
        if async_mode == theirs.AsyncMode.ASYNC:
            writer = StorageWriter(folder, step=step, group=self.pg, **self._how)
            return dcp.async_save(
                state_dict, storage_writer=writer, process_group=self.pg
            )
        dcp.save(state_dict, storage_writer=StorageWriter(folder, step=step, **self._how))
        if enable_garbage_collection:
            theirs.GarbageCollection.collect("GC collection invoked by checkpointer.")
        return None

    def dcp_load(
        self,
        state_dict: dict[str, Any],
        checkpoint_id: str,
        from_hf: bool,
        from_quantized: bool,
    ) -> None:
        """Load whatever `libdcp.open` opens; the layout of Hugging Face as before."""
        _warn_of_other(checkpoint_id)
        own = os.path.exists(os.path.join(checkpoint_id, ".metadata"))
        if from_hf or own:
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
            return
        reader = StorageReader(checkpoint_id, trust_pickles=self._trust)
        dcp.load(state_dict, storage_reader=reader)
        if MODEL in self.states:
            self.states[MODEL].load_state_dict(state_dict)

    def _create_checkpoint_id(self, step: int, folder: str = "") -> str:
        """Give the folder of a step: that of torchtitan, where it wrote one."""
        plain: str = super()._create_checkpoint_id(step, folder)
        ours = os.path.join(os.path.dirname(plain), OURS.format(step))
        if os.path.isdir(plain) and os.path.isdir(ours):
            return plain if _ended(plain) > _ended(ours) else ours
        return plain if os.path.isdir(plain) else ours

    def _load(self, step: int = -1) -> bool:
        """Load as torchtitan does; it may be told to go back to an older step."""
        if step != -1:
            self._begun = step
        return bool(super()._load(step))

    def _leave(self, folder: str, step: int) -> None:
        """Remove a later step than the one that was gone back to, to save it anew.

        Set aside it would count, by its name, as one of the `keep_latest_k`.
        """
        path = os.path.join(folder, OURS.format(step))
        if self._begun is not None and step > self._begun and os.path.isdir(path):
            warn(f"{path} was saved before step {self._begun} was loaded: it is replaced")
            removed(path)

    def _find_load_step(self, folder: str = "") -> int:
        """Find the newest complete step, of libdcp or of torchtitan."""
        newest, folder = int(super()._find_load_step(folder)), folder or self.folder
        if not glob.glob(os.path.join(glob.escape(folder), "step-" + 8 * "[0-9]")):
            return newest
        try:
            with open_checkpoint(folder) as ckpt:
                return max(newest, ckpt.info.step or 0)
        except NotFoundError:
            return newest


def _options(config: Any) -> dict[str, Any]:
    return {
        name: getattr(config, name) for name in ("parity", "codec", "verify_after_save")
    }


def _warn_of_other(path: str) -> None:
    """Tell which of two is loaded, where both programs saved a step of one number."""
    run, name = os.path.split(path)
    n = re.fullmatch(r"step-(\d+)", name)
    names = {f"step-{int(n[1])}", OURS.format(int(n[1]))}.difference([name]) if n else ()
    for other in names:
        if _ended(os.path.join(run, other)) >= 0:
            warn(f"{path} is loaded: {other} beside it is older")


def _ended(folder: str) -> int:
    """When the save of a step ended; -1: it did not."""
    ends = [os.path.join(folder, name) for name in ENDS]
    return max(
        (os.stat(path).st_mtime_ns for path in ends if os.path.exists(path)), default=-1
    )
