"""A checkpoint that is open for reading."""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _abi
from ._act import Act, Progress, check
from ._errors import CorruptError, Error, NotFoundError, UnsupportedError, UsageError
from ._facts import Diff, Difference, Finding, Info, Verification
from ._tagged import checked, decoded
from ._tensor import Box, Tensor, flattened, torch_dtype
from ._values import unpickled
from ._warn import warn

if TYPE_CHECKING:
    import torch

LONG_BYTES = 8 << 20  # a read of so much may be stopped by Ctrl-C
_HOW = ("only a", "only b", "shape", "dtype", "bits")


class _Handle:
    """The library's checkpoint; it is closed when nobody holds it any more."""

    _close = staticmethod(_abi.lib.dcp_flat_checkpoint_close)  # also when Python ends

    def __init__(self, value: int | None) -> None:
        self.value = value

    def __del__(self) -> None:
        self._close(self.value)

    def __reduce__(self) -> Any:
        raise TypeError("an open checkpoint is not copied: it would be closed twice")


class _Table:
    """The facts of all tensors, a list for each."""

    def __init__(self, handle: _Handle) -> None:
        told, why = _abi.Tensors.new(), _abi.Error.new()
        check(
            _abi.lib.dcp_flat_tensors_list(
                handle.value, ctypes.byref(told), ctypes.byref(why)
            ),
            why,
        )
        n = told.n
        self.names = _abi.texts(told.names)
        self.params = _abi.texts(told.params)
        self.tied = _abi.texts(told.tied)
        self.quantized = _abi.texts(told.quantized)
        self.roles: list[int] = told.roles[:n]
        self.flags: list[int] = told.flags[:n]
        self.n_pieces: list[int] = told.n_pieces[:n]
        self.dtypes = [_abi.DTYPES[i] for i in told.dtypes[:n]]
        self.by_name = {name: i for i, name in enumerate(self.names)}
        ndims = told.ndims[:n]
        numbers = iter(told.shapes[: sum(ndims)])
        self.shapes = [tuple(next(numbers) for _ in range(ndim)) for ndim in ndims]
        self.weights = self._find_weights()

    def _find_weights(self) -> dict[str, int]:
        """Weights and buffers by their names in the model; else their masters."""
        weights: dict[str, int] = {}
        masters: dict[str, int] = {}
        kinds = {_abi.ROLES.index(role): weights for role in ("model", "buffer")}
        kinds[_abi.ROLES.index("master")] = masters
        for i, role in enumerate(self.roles):
            if role in kinds and not self.flags[i] & _abi.IS_META:
                kinds[role].setdefault(self.params[i] or self.names[i], i)
        return {**masters, **weights}


class _Tensors(Mapping[str, Tensor]):
    """All tensors by name, made when they are asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> Tensor:
        table = self._checkpoint._table
        i = table.by_name[name]
        return Tensor(self._checkpoint, i, table.dtypes[i], table.shapes[i])

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint._table.names)

    def __len__(self) -> int:
        return len(self._checkpoint._table.names)

    def __repr__(self) -> str:
        return f"<the {len(self)} tensors of {self._checkpoint!r}>"


class _Objects(Mapping[str, Any]):
    """What is not a tensor: values of JSON, or the bytes of what is none."""

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle  # which owns the data
        self._found: dict[str, _abi.Object] = {}
        told = _abi.Object.new()
        while not _abi.lib.dcp_flat_object_get(
            handle.value, len(self._found), ctypes.byref(told)
        ):
            self._found[_abi.text(told.name)] = told
            told = _abi.Object.new()

    def __getitem__(self, name: str) -> Any:
        data = self._data_of(name)
        return decoded(data) if self._found[name].is_json else data

    def check(self, name: str, trust: bool) -> None:
        """Refuse what a load cannot make, or only with trust."""
        if self._found[name].is_json:
            checked(name, self._data_of(name))
        elif not trust:
            unpickled(name, self._data_of(name), trust)

    def _data_of(self, name: str) -> bytes:
        told = self._found[name]
        return ctypes.string_at(told.data, told.size_bytes) if told.size_bytes else b""

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"<objects of a libdcp.Checkpoint: {', '.join(map(repr, self))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is a dict: it holds the data itself."""
        return dict, (dict(self),)


class Checkpoint(Mapping[str, Tensor]):
    """A checkpoint of any format, open for reading: a mapping of names to tensors.

    Any threads may use it at once, and Python runs while the library reads. It is closed
    by `close`, at the end of a `with`, or when nothing refers to it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        base: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        verify: bool = True,
    ) -> None:
        """See `libdcp.open`."""
        check_step(step)
        if step is not None and os.path.isfile(path):
            raise UsageError(f"'{os.fsdecode(path)}' is a file: runs have steps")
        self._how = {"step": step, "base": base, "threads": threads, "verify": verify}
        self._path, self._cwd = path, _cwd()
        options = _abi.OpenOptions.new(
            path=_abi.raw(path),
            step=-1 if step is None else step,
            base=_abi.raw(base),
            threads=threads or min(os.cpu_count() or 1, 16),
            no_verify=not verify,
        )
        value, why = ctypes.c_void_p(), _abi.Error.new()
        check(
            _abi.lib.dcp_flat_checkpoint_open(
                ctypes.byref(options), ctypes.byref(value), ctypes.byref(why)
            ),
            why,
        )
        self._open: _Handle | None = _Handle(value.value)
        self._table = _Table(self._handle)
        self._objects = _Objects(self._handle)

    # -- what is there -----------------------------------------------------------------

    @property
    def objects(self) -> Mapping[str, Any]:
        """What is not a tensor, by name: JSON is parsed, anything else is bytes."""
        self._check_open()
        return self._objects

    def _of_role(self, role: str) -> list[str]:
        """Names of such tensors; without an object for each of many."""
        table, wanted = self._table, _abi.ROLES.index(role)
        return [name for name, kind in zip(table.names, table.roles) if kind == wanted]

    def _weights(self) -> set[str]:
        """Names of all weights and buffers, also of those with a moment alone."""
        table, other = self._table, _abi.ROLES.index("other")
        told = zip(table.params, table.names, table.roles)
        return {param or name for param, name, role in told if role != other}

    def _masters(self) -> dict[str, str]:
        """Their names, and whose they are."""
        table, role = self._table, _abi.ROLES.index("master")
        held = zip(table.names, table.params, table.roles)
        return {name: weight for name, weight, kind in held if kind == role}

    def _trained(self) -> set[str]:
        """Weights for which an optimizer keeps something besides a master."""
        table = self._table
        kept = [_abi.ROLES.index(role) for role in ("exp_avg", "exp_avg_sq", "optim")]
        return {p for p, role in zip(table.params, table.roles) if role in kept}

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors by name, in the order of the checkpoint."""
        return _Tensors(self)

    def __getitem__(self, name: str) -> Tensor:
        """Give a tensor, of which nothing is read: by its name, or by that of a weight.

        A weight is found under the name that it has in the model, too, as `state_dict`
        gives it. Raises NoTensorError, a KeyError.
        """
        if name in self._table.by_name:
            return self.tensors[name]
        weights = self._table.weights
        if name not in weights:
            raise _no_tensor(name, [*self._table.names, *weights])
        return self.tensors[self._table.names[weights[name]]]

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._table.names)

    def __len__(self) -> int:
        """Give the number of tensors."""
        return len(self._table.names)

    @property
    def info(self) -> Info:
        """Step, world size and so on: see Info."""
        told, handle = _abi.Info.new(), self._handle
        _abi.lib.dcp_flat_checkpoint_info(handle.value, ctypes.byref(told))
        return Info(
            path=_abi.text(told.path),
            format=_abi.text(told.format),
            version=_abi.text(told.version),
            layout=_abi.text(told.layout),
            producer=_abi.text(told.producer),
            step=told.step if told.step >= 0 else None,
            world_size=told.world_size,
            dp=told.dp,
            tp=told.tp,
            pp=told.pp,
            diverged=bool(told.diverged),
            passed_over=bool(told.passed_over),
            n_tensors=told.n_tensors,
            n_files=told.n_files,
            size_bytes=told.size_bytes,
            corruption=_abi.text(told.corruption) or None,
            objects=self.objects,
        )

    # -- reading -----------------------------------------------------------------------

    def state_dict(
        self,
        names: str | Iterable[str] = "weights",
        *,
        device: Any = None,
        progress: Progress = None,
    ) -> dict[str, torch.Tensor]:
        """Read tensors as tensors of PyTorch, all in one go.

        names: "weights", the weights and buffers under the names that a model's
        `load_state_dict` takes, where a weight has only an fp32 master (ZeRO stage 3),
        that; "all", every tensor under its own name; or names. Tied tensors are one.
        Raises NotFoundError where there are tensors, and none of them is a weight.
        """
        chosen = self._choose(names)
        import torch

        made: dict[str, torch.Tensor] = {}
        for tensor in chosen.values():
            first = tensor.tied_to or tensor.name
            if first not in made:
                made[first] = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
        boxes = {tensor.tied_to or tensor.name: tensor for tensor in chosen.values()}
        self._read(
            [boxes[name] for name in made],
            [t.data_ptr() for t in made.values()],
            progress,
        )
        if device is not None:
            made = {name: tensor.to(device) for name, tensor in made.items()}
        return {key: made[t.tied_to or t.name] for key, t in chosen.items()}

    def fingerprint(self, name: str, *, progress: Progress = None) -> str:
        """Give the CRC-64/XZ of a tensor's row-major bytes, in 16 hex digits.

        It is the same at every sharding, world size and codec. Where the format keeps
        none, the tensor is read.
        """
        out, act = ctypes.c_uint64(), Act(progress)
        index, handle = self[name]._index, self._handle
        act.run(
            _abi.lib.dcp_flat_tensor_fingerprint,
            handle.value,
            index,
            act.hooks,
            ctypes.byref(out),
            act.error,
        )
        return f"{out.value:016x}"

    def verify(self, *, threads: int = 0, progress: Progress = None) -> Verification:
        """Read everything, and hold it against every digest that there is.

        Raises CorruptError, whose `findings` are all that is corrupt or lost.
        """
        findings: list[Finding] = []

        def keep(told: Any) -> None:
            of = told.contents
            findings.append(
                Finding(
                    of.code,
                    _abi.text(of.file),
                    _abi.text(of.tensor),
                    _abi.text(of.what),
                    of.begin,
                    of.end,
                    of.offset,
                    of.size_bytes,
                )
            )

        act, result, handle = Act(progress), _abi.VerifyResult.new(), self._handle
        options = _abi.VerifyOptions.new(
            finding=_abi.OnFinding(act.guarded(keep)), threads=threads
        )
        try:
            act.run(
                _abi.lib.dcp_flat_checkpoint_verify,
                handle.value,
                ctypes.byref(options),
                act.hooks,
                ctypes.byref(result),
                act.error,
            )
        except CorruptError as why:
            why.findings = tuple(findings)
            raise
        warn_of_lacks(result.lacks)
        return Verification(
            result.size_bytes, result.n_blocks, result.n_tensors, result.n_unproved
        )

    def diff(self, other: Checkpoint, *, progress: Progress = None) -> Diff:
        """Compare all tensors with those of another one, bit by bit.

        They may be of any formats and world sizes: tensors are paired by name, else by
        what they are to training. What has equal fingerprints is not read.
        """
        if not isinstance(other, Checkpoint):
            raise UsageError(
                f"a checkpoint is compared with another, not with {other!r}",
                hint="libdcp.open opens it",
            )
        found: list[Difference] = []

        def keep(how: int, a: int, b: int, first: int) -> None:
            found.append(
                Difference(
                    _HOW[how],
                    self._table.names[a] if a >= 0 else None,
                    other._table.names[b] if b >= 0 else None,
                    first if first >= 0 else None,
                )
            )

        act, result = Act(progress), _abi.DiffResult.new()
        handles = self._handle, other._handle
        options = _abi.DiffOptions.new(differs=_abi.OnDifference(act.guarded(keep)))
        act.run(
            _abi.lib.dcp_flat_checkpoint_diff,
            handles[0].value,
            handles[1].value,
            ctypes.byref(options),
            act.hooks,
            ctypes.byref(result),
            act.error,
        )
        return Diff(tuple(found), result.n_same, result.n_by_fingerprint)

    # -- its end -----------------------------------------------------------------------

    def close(self) -> None:
        """Let go of files and memory, once what is being read has been."""
        self._open = None

    def __enter__(self) -> Checkpoint:
        """Be open inside a `with`."""
        return self

    def __exit__(self, *why: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Be opened anew where it is unpickled, as in workers of a DataLoader."""
        path, how = self.info.path, self._how  # of a run, this step
        if os.path.normpath(path) != os.path.normpath(os.fsdecode(self._path)):
            how = {**how, "step": None}
        base: Any = how["base"]
        if base is not None:
            how = {**how, "base": os.path.join(self._cwd, os.fsdecode(base))}
        return _reopen, (os.path.join(self._cwd, path), how)

    def __eq__(self, other: object) -> bool:
        """Be equal to itself alone; `diff` compares."""
        return self is other

    def __hash__(self) -> int:
        """Be a key of dicts."""
        return id(self)

    def __repr__(self) -> str:
        """Say which it is."""
        if self._open is None:
            return f"<libdcp.Checkpoint {os.fspath(self._path)!r}, closed>"
        info = self.info
        return f"<libdcp.Checkpoint {info.path!r}, {info.format}, {len(self)} tensors>"

    # -- private -----------------------------------------------------------------------

    @property
    def _handle(self) -> _Handle:
        if self._open is None:
            raise UsageError(f"the checkpoint '{os.fsdecode(self._path)}' is closed")
        return self._open

    def _check_open(self) -> None:
        """Raise where it is closed."""
        _ = self._handle

    def _choose(self, names: str | Iterable[str]) -> dict[str, Tensor]:
        """Tensors that are read, under the names that they are given."""
        if names == "all":
            return {name: self[name] for name in self}
        if names != "weights":
            if isinstance(names, str):
                raise UsageError(f"names are 'weights', 'all' or a list, not '{names}'")
            return {name: self[name] for name in names}
        table = self._table
        if table.names and not table.weights:
            raise NotFoundError(
                f"'{os.fspath(self._path)}' has no weights: its tensors are "
                + ", ".join(sorted({tensor.role for tensor in self.values()})),
                hint='state_dict("all") reads them under their own names',
            )
        self._check_weights()
        return {key: self[table.names[i]] for key, i in table.weights.items()}

    def _check_weights(self) -> None:
        """Refuse to give some of the weights where others cannot be read."""
        table = self._table
        kinds = [_abi.ROLES.index(role) for role in ("model", "buffer")]
        for i, role in enumerate(table.roles):
            name, key = table.names[i], table.params[i] or table.names[i]
            unread = role in kinds and table.flags[i] & _abi.IS_META
            if unread and key not in table.weights:
                why = f"is quantized ({table.quantized[i]})" if table.quantized[i] else ""
                raise UnsupportedError(
                    f"weight '{name}' {why or 'was saved without data'}",
                    tensor=name,
                    hint="state_dict([names]) reads others",
                )

    def _read(
        self, boxes: Sequence[Box], addresses: Sequence[int], progress: Progress = None
    ) -> None:
        """Read boxes to where there is memory for them."""
        handle, n = self._handle, len(boxes)
        offsets, sizes = flattened(boxes)
        told = _abi.Boxes.new(
            n=n,
            tensors=(ctypes.c_uint64 * n)(*(box.tensor._index for box in boxes)),
            offsets=(ctypes.c_int64 * len(offsets))(*offsets),
            sizes=(ctypes.c_int64 * len(sizes))(*sizes),
            data=(ctypes.c_void_p * n)(*addresses),
        )
        if progress is None and sum(box.nbytes for box in boxes) < LONG_BYTES:
            why = _abi.Error.new()
            code = _abi.lib.dcp_flat_boxes_read(
                handle.value, ctypes.byref(told), None, ctypes.byref(why)
            )
            check(code, why)
            return
        act = Act(progress)
        act.run(
            _abi.lib.dcp_flat_boxes_read,
            handle.value,
            ctypes.byref(told),
            act.hooks,
            act.error,
        )


class NoTensorError(NotFoundError, KeyError):
    """The checkpoint has no tensor of that name."""

    __str__ = Error.__str__


def _no_tensor(name: str, names: Sequence[str]) -> NoTensorError:
    import difflib

    near = difflib.get_close_matches(str(name), names, 1)
    return NoTensorError(
        f"there is no tensor '{name}'",
        tensor=str(name),
        hint=f"did you mean '{near[0]}'?" if near else "",
    )


def tensor_of(checkpoint: Checkpoint, name: str) -> Tensor:
    """Give a tensor by its own name."""
    if name not in checkpoint.tensors:
        raise _no_tensor(name, checkpoint._table.names)
    return checkpoint.tensors[name]


def _reopen(path: str, how: dict[str, Any]) -> Checkpoint:
    return Checkpoint(path, **how)


def check_step(step: int | None) -> None:
    """See that it is one, or None."""
    if step is None:
        return
    try:
        is_one = operator.index(step) >= 0
    except TypeError:
        is_one = False
    if not is_one:
        raise UsageError(f"a step is a whole number from 0 on, not {step!r}")


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    step: int | None = None,
    base: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    verify: bool = True,
) -> Checkpoint:
    """Open a checkpoint of any format: only headers are read.

    path: a file, or a folder; of a folder with the steps of a run the newest complete
    step, or the one that `step` numbers. base: of a delta that lies away from what it
    differs from. threads: that a large read works on. verify=False: what is read is not
    held against digests.
    """
    found = Checkpoint(path, step=step, base=base, threads=threads, verify=verify)
    if found.info.passed_over:
        warn_of_passed(path, found.info.step)
    return found


def warn_of_passed(path: str | os.PathLike[str], step: int | None) -> None:
    """Tell that it is an older step than who asked for the newest may think."""
    warn(
        f"a newer step of '{os.fspath(path)}' is incomplete or corrupt, and step {step} "
        "was taken"
    )


def warn_of_lacks(weight: bytes) -> None:
    """Tell which weight the configuration promises, if one is missing."""
    if weight:
        warn(f"the model has more weights than this holds ('{_abi.text(weight)}')")


def _cwd() -> str:
    """Where relative paths begin, while nobody changes it."""
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""
