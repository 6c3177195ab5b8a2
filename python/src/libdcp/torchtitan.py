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

from ._checkpoint import open_checkpoint
from ._errors import NotFoundError, UnsupportedError
from .torch import StorageReader, StorageWriter

__all__ = ["CheckpointManager"]

PINNED = theirs.AsyncMode.ASYNC_WITH_PINNED_MEM


class CheckpointManager(theirs.CheckpointManager):  # type: ignore[misc]
    """torchtitan's own manager, whose folder is a run of libdcp.

    What it saves, when, and which steps stay, is as before; `step-00000100` is complete,
    durable and read back, or not there. Checkpoints that torchtitan wrote are loaded by
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
            """Check what torchtitan checks."""
            theirs.CheckpointManager.Config.__post_init__(self)

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
        self._how = {
            "parity": config.parity,
            "codec": config.codec,
            "verify_after_save": config.verify_after_save,
        }
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
        if os.path.isdir(plain):
            return plain
        return re.sub(r"\d+$", lambda digits: digits[0].zfill(8), plain)

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
