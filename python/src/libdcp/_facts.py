"""What is known of a checkpoint, and what a verify or a diff found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Info:
    """What is known of a checkpoint without reading tensors."""

    path: str
    format: str
    version: str
    layout: str  # "zero3", "dim0", …; "" where unknown
    producer: str  # who wrote it, or ""
    step: int | None
    world_size: int
    dp: int
    tp: int
    pp: int
    diverged: bool  # its weights or its loss were not finite
    passed_over: bool  # a newer step of the run is there, and is not whole
    n_tensors: int
    n_files: int
    size_bytes: int  # of all tensors
    #: What was corrupt so far and was read through the parity of the step, or None.
    corruption: str | None
    #: What is not a tensor, by name: see `Checkpoint.objects`.
    objects: Mapping[str, Any]

    @property
    def optimizer(self) -> Any:
        """Type, updates and parameter groups of the optimizer; None: unknown."""
        return self.objects.get("optimizer")

    @property
    def scheduler(self) -> Any:
        """The state of the scheduler; None: unknown."""
        return self.objects.get("scheduler")


@dataclass(frozen=True)
class Finding:
    """Something that a verify found corrupt, or lost."""

    code: int
    file: str
    tensor: str
    what: str
    begin: int  # the first and the last element concerned, of a tensor
    end: int
    offset: int  # and the bytes, of a file
    size_bytes: int


@dataclass(frozen=True)
class Verification:
    """A checkpoint in which nothing is corrupt."""

    size_bytes: int
    n_blocks: int
    n_tensors: int
    n_unproved: int  # tensors for which the format keeps no digest


@dataclass(frozen=True)
class Difference:
    """Two tensors that differ, or one that has no counterpart."""

    how: str  # "only a", "only b", "shape", "dtype", "bits"
    a: str | None
    b: str | None
    first: int | None  # the first element whose bits differ


@dataclass(frozen=True)
class Diff:
    """How two checkpoints differ."""

    differences: tuple[Difference, ...]
    n_same: int
    n_by_fingerprint: int  # of those, known without reading

    @property
    def same(self) -> bool:
        """Whether they do not."""
        return not self.differences
