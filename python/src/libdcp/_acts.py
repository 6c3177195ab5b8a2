"""Another checkpoint of one: reshard, export, repair; and the formats that there are."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from . import _abi, _abi_acts
from ._act import Act, Progress
from ._checkpoint import check_step, warn_of_lacks, warn_of_passed
from ._errors import NotFoundError, UsageError
from ._warn import warn

Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Format:
    """A format of checkpoints."""

    name: str
    alias: str
    help: str
    reads: bool
    writes: bool
    is_dir: bool
    sharded: bool  # one file for each rank
    optim: bool  # holds optimizer state
    objects: bool  # holds what is not a tensor


@dataclass(frozen=True)
class ReshardResult:
    """What a reshard or an export made."""

    n_tensors: int
    source_bytes: int
    target_bytes: int
    read_bytes: int
    n_files: int
    n_unproved: int  # tensors for which the source keeps no digest
    n_left: int  # tensors that the target cannot hold, with lossy=True
    n_objects_left: int  # that the target cannot hold, or nobody may load
    n_beside: int  # tensors that are no weights, where only the model was asked for
    n_overflows: int  # finite numbers that are infinite, or none, in the new dtype
    shared_bytes: int  # with reflink=True: blocks that are the source's, not written
    assumed: str | None  # what the source does not prove and the target says
    objects_left: tuple[str, ...]  # names of the first ones, at least


@dataclass(frozen=True)
class RepairResult:
    """What a repair rebuilt."""

    n_steps: int
    n_files: int
    n_units: int
    size_bytes: int
    files: tuple[tuple[str, str], ...]  # step and file


def formats() -> list[Format]:
    """All formats, in the order of `dcp-reshard formats`."""
    return [
        Format(
            _abi.text(told.name),
            _abi.text(told.alias),
            _abi.text(told.help),
            *(
                bool(getattr(told, fact))
                for fact in ("reads", "writes", "is_dir", "sharded", "optim", "objects")
            ),
        )
        for told in _abi.formats()
    ]


def reshard(
    source: Path,
    target: Path,
    *,
    step: int | None = None,
    world_size: int | None = None,
    to: str | None = None,
    layout: str | None = None,
    dtype: str | None = None,
    only: str | None = None,
    weights: str | None = None,
    rename: str | None = None,
    codec: str | None = None,
    parity: int = 0,
    select: Sequence[str] | None = None,
    trust: Sequence[str] | None = None,
    config: Mapping[str, Any] | Path | None = None,
    spelling: str | None = None,
    prefix: str | None = None,
    max_shard_bytes: int = 0,
    memory_bytes: int = 0,
    threads: int = 0,
    verify: bool = True,
    force: bool = False,
    lossy: bool = False,
    untie: bool = False,
    keep_unsafe: bool = False,
    reflink: bool = False,
    dry_run: bool = False,
    progress: Progress = None,
) -> ReshardResult:
    """Make another checkpoint of one: more ranks or fewer, another layout, dtype, format.

    What is written is proved before it has its name, and an act that fails, or is
    stopped, leaves nothing. Arguments are as the options of `dcp-reshard`: `to` a format
    of `formats()`, `layout` "zero1", `dtype` "bf16", `only` "model" or "optim", `weights`
    "model" or "master", `rename` rules, `codec` "split", `parity` files more, `select`
    patterns of names, `trust` globals of pickles, `config` the model's config.json or
    what is in it,
    `force` replaces the target, `lossy` leaves out what it cannot hold, `reflink` shares
    blocks of the file system with the source where they lie alike.
    """
    return _reshard(locals(), for_export=False)


def export(
    source: Path,
    target: Path,
    *,
    step: int | None = None,
    to: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    only: str | None = None,
    rename: str | None = None,
    select: Sequence[str] | None = None,
    trust: Sequence[str] | None = None,
    config: Mapping[str, Any] | Path | None = None,
    spelling: str | None = None,
    prefix: str | None = None,
    max_shard_bytes: int = 0,
    memory_bytes: int = 0,
    threads: int = 0,
    verify: bool = True,
    force: bool = False,
    lossy: bool = False,
    untie: bool = False,
    keep_unsafe: bool = False,
    reflink: bool = False,
    dry_run: bool = False,
    progress: Progress = None,
) -> ReshardResult:
    """Write the weights alone, in one piece.

    The format is that of the target's name (`model.safetensors`, `model.bin`), else a
    folder that `from_pretrained` reads. Arguments are those of `reshard`.
    """
    return _reshard(locals(), for_export=True)


def _config_of(given: Mapping[str, Any] | Path | None) -> str | None:
    """The text of a model's configuration, which may be in a file."""
    if isinstance(given, Mapping):
        return json.dumps(dict(given))
    if isinstance(given, str) and given.lstrip()[:1] == "{":
        return given
    if given is None:
        return None
    try:
        with open(given, encoding="utf-8") as file:
            return file.read()
    except OSError as why:
        raise NotFoundError(
            f"config: {os.fspath(given)!r} is no JSON, and no file: {why.strerror}"
        ) from None


def _list(texts: Sequence[str] | None) -> Any:
    if texts is None:
        return None
    if isinstance(texts, (str, bytes)) or not texts or None in texts:
        raise UsageError(f"a list of texts is wanted, not {texts!r}")
    return (ctypes.c_char_p * (len(texts) + 1))(*map(_abi.raw, texts), None)


def _reshard(given: dict[str, Any], for_export: bool) -> ReshardResult:
    check_step(given["step"])
    config = _config_of(given["config"])
    options = _abi_acts.ReshardOptions.new(
        source=_abi.raw(given["source"]),
        target=_abi.raw(given["target"]),
        step=-1 if given["step"] is None else given["step"],
        for_export=for_export,
        world_size=given.get("world_size") or 0,
        format=_abi.raw(given["to"]),
        config_json=_abi.raw(config),
        select=_list(given["select"]),
        trust=_list(given["trust"]),
        no_verify=not given["verify"],
        parity=given.get("parity", 0),
        **{
            name: _abi.raw(given.get(name))
            for name in (
                "layout",
                "dtype",
                "only",
                "weights",
                "rename",
                "codec",
                "spelling",
                "prefix",
            )
        },
        **{
            name: given[name]
            for name in (
                "max_shard_bytes",
                "memory_bytes",
                "threads",
                "force",
                "lossy",
                "untie",
                "keep_unsafe",
                "reflink",
                "dry_run",
            )
        },
    )
    act, result = Act(given["progress"]), _abi_acts.ReshardResult.new()
    act.run(
        _abi.lib.dcp_flat_reshard,
        ctypes.byref(options),
        act.hooks,
        ctypes.byref(result),
        act.error,
    )
    if result.passed_over:
        warn_of_passed(given["source"], result.step)
    warn_of_lacks(result.lacks)
    left = tuple(filter(None, _abi.text(result.objects_left).split("\n")))
    if left and not (for_export or given["lossy"] or given["only"] == "model"):
        more = result.n_objects_left - len(left)
        rest = f" and {more} more" if more else ""
        warn(f"left out what the target cannot hold: {', '.join(left)}{rest}")
    facts = {name: getattr(result, name) for name in ReshardResult.__dataclass_fields__}
    assumed = _abi.text(result.assumed) or None
    return ReshardResult(**{**facts, "assumed": assumed, "objects_left": left})


def repair(path: Path, *, threads: int = 0, progress: Progress = None) -> RepairResult:
    """Rebuild what is lost or corrupt of a step, or of all steps of a run, by parity."""
    if not path or not os.fspath(path):
        raise UsageError("a repair needs the path of a step or of a run folder")
    files: list[tuple[str, str]] = []

    def keep(step: bytes, file: bytes, _size_bytes: int) -> None:
        files.append((_abi.text(step), _abi.text(file)))

    act, result = Act(progress), _abi_acts.RepairResult.new()
    options = _abi_acts.RepairOptions.new(
        path=_abi.raw(path),
        repaired=_abi_acts.OnRepaired(act.guarded(keep)),
        threads=threads,
    )
    act.run(
        _abi.lib.dcp_flat_repair,
        ctypes.byref(options),
        act.hooks,
        ctypes.byref(result),
        act.error,
    )
    return RepairResult(
        result.n_steps, result.n_files, result.n_units, result.size_bytes, tuple(files)
    )
