"""Distributed checkpoints of any trainer: open, read, verify, compare, reshard, repair.

ckpt = libdcp.open("global_step1000")
ckpt["model.embed.weight"][1000:2000].torch()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _abi
from ._act import Progress
from ._acts import Format, RepairResult, ReshardResult, export, formats, repair, reshard
from ._checkpoint import Checkpoint, NoTensorError
from ._checkpoint import open_checkpoint as open
from ._errors import (
    BusyError,
    CancelledError,
    CommError,
    CorruptError,
    DiffersError,
    Error,
    ExistsError,
    IoError,
    MismatchError,
    NoSpaceError,
    NotFoundError,
    OutOfMemoryError,
    StoppedError,
    UnsupportedError,
    UsageError,
)
from ._facts import Diff, Difference, Finding, Info, Verification
from ._saver import Handle, SaveResult, StaleWarning
from ._tcp import TcpGroup
from ._tensor import Box, Piece, Tensor
from ._training import LoadResult, load, save, save_async

if TYPE_CHECKING:
    from . import accelerate as accelerate
    from . import deepspeed as deepspeed
    from . import lightning as lightning
    from . import torch as torch
    from . import torch_checkpointing as torch_checkpointing
    from . import torchtitan as torchtitan
    from . import transformers as transformers

_PLUGINS = (
    "accelerate",
    "deepspeed",
    "lightning",
    "torch",
    "torch_checkpointing",
    "torchtitan",
    "transformers",
)

__version__ = _abi.version()

__all__ = [
    "Box",
    "BusyError",
    "CancelledError",
    "Checkpoint",
    "CommError",
    "CorruptError",
    "Diff",
    "Difference",
    "DiffersError",
    "Error",
    "ExistsError",
    "Finding",
    "Format",
    "Handle",
    "Info",
    "IoError",
    "LoadResult",
    "MismatchError",
    "NoSpaceError",
    "NoTensorError",
    "NotFoundError",
    "OutOfMemoryError",
    "Piece",
    "Progress",
    "RepairResult",
    "ReshardResult",
    "SaveResult",
    "StaleWarning",
    "StoppedError",
    "TcpGroup",
    "Tensor",
    "UnsupportedError",
    "UsageError",
    "Verification",
    "export",
    "formats",
    "load",
    "open",
    "repair",
    "reshard",
    "save",
    "save_async",
]


def __getattr__(name: str) -> Any:
    """Import what stands beside a package that need not be there, when it is used."""
    if name in _PLUGINS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
