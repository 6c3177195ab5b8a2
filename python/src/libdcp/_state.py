"""The state of training as a list of tensors and objects, and back."""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from . import _abi
from ._array import Array, is_array, no_grad, written
from ._columns import Columns, columns_of, digest_at, ints
from ._entries import NOT_DENSE, Box, Boxes, Entries, Staging
from ._errors import MismatchError, NotFoundError, UsageError
from ._kinds import classes, has_parts, has_tensors, is_stateful, parts_of
from ._model import Model, prefix_of
from ._optimizer import MOMENTS, Optimizer
from ._stateful import TREE, Places, Stateful
from ._values import RANDOM, Pickle, code_of, digest, is_json, is_random, unpickled

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint
    from ._loaded import Loaded
    from ._ranks import Ranks

__all__ = ["MOMENTS", "Pickle", "Staging", "State", "is_json"]


class State:
    """All entries of a state, in one order on all ranks, and its objects."""

    def __init__(
        self,
        state: Mapping[str, Any],
        ranks: Ranks,
        step: int | None = None,
        staging: Staging | None = None,
    ) -> None:
        """Look through what is given; models and optimizers say what they hold.

        staging: where a state goes that does not lie in memory of the host.
        """
        self._step = step  # None: a load
        self._n_ranks = ranks.world_size
        self._boxes = Boxes()
        self._entries = Entries()
        self._columns: Columns | None = None  # of the entries, when they are asked for
        self._copies: dict[int, Any] = {}  # dense ones, of entries that are not
        self._values: list[tuple[str, Any]] = []  # plain ones by name, for a save
        self._places = Places()  # where a load puts them
        self._asked: list[str] = []  # values of optimizers
        self._parts: list[Any] = []
        self._containers: list[str] = []  # keys under which tensors are, that have none
        self._stateful: list[str] = []
        self.optimizers: list[Optimizer] = []
        self.buffers: set[str] = set()  # each rank has its own, as statistics of its data
        self.remarks: list[str] = []  # what a load warns of, once for all ranks
        self._left_out = Entries()
        self._coded: dict[str, tuple[bool, bytes]] = {}
        self._marks: dict[str, bytes] = {}  # of what the ranks must not differ in
        self._rank = ranks.rank
        self._tensor, self._model, self._optimizer = classes()
        rest = {k: v for k, v in state.items() if not isinstance(v, self._tensor)}
        parts = [part for key in rest for part in parts_of(key, rest[key])]
        self._models = {n: part for n, part in parts if isinstance(part, self._model)}
        optimizers = [n for n, part in parts if isinstance(part, self._optimizer)]
        self._is_one = len(self._models) == len(optimizers) == 1
        for key, value in state.items():
            if not isinstance(key, str):
                raise UsageError(f"a state has texts for keys, and not {key!r}")
            if isinstance(value, self._tensor) or is_array(value):
                self._add_leaf(key, value)  # first: most are, and looking takes long
                continue
            self._take(key, value, state, key)
            if has_tensors(value):
                self._containers.append(key)
        if self.is_save:
            self._coded.update((n, code_of(n, value)) for n, value in self._values)
        #: Whether a load has to look at the step first.
        self.looks = bool(
            self._entries.instead or self._parts or self._values or self._containers
        )
        self._staging = staging
        self.is_away = staging is not None and any(
            local is not None and not local.is_cpu for local in self._entries.locals
        )

    def _take(self, name: str, value: Any, place: Any, key: Any) -> None:
        """Take what is given: a part, something plain, or a container of both."""
        if isinstance(value, self._model):
            prefix = prefix_of(name, self._models)
            self._parts.append(Model(self, prefix, value))
        elif isinstance(value, self._optimizer):
            label = "" if self._is_one else name
            self._parts.append(Optimizer(self, name, value, self._models, label))
        elif is_stateful(value):
            self._parts.append(Stateful(self, name, value))
            self._stateful.append(name)
        elif has_parts(value):
            if isinstance(value, tuple):
                value = self._places.opened(value, place, key)
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            for inner, item in pairs:
                self._take(f"{name}.{inner}", item, value, inner)
        else:
            self.add(name, value, place, key)

    def add(
        self,
        name: str,
        value: Any,
        place: Any,
        key: Any,
        places: Places | None = None,
    ) -> None:
        """Take a tensor, a plain value, or what has such in it.

        places: get what is no tensor, in place of those that `fill` fills.
        """
        places = self._places if places is None else places
        if isinstance(value, self._tensor) or is_array(value):
            self._add_leaf(name, value)
        elif isinstance(value, Mapping) and has_tensors(value):
            for inner, item in value.items():
                self.add(f"{name}.{inner}", item, value, inner, places)
        elif isinstance(value, (list, tuple)) and has_tensors(value):
            if isinstance(value, tuple):
                value = places.opened(value, place, key)
            for i, item in enumerate(value):
                self.add(f"{name}.{i}", item, value, i, places)
        else:
            self._values.append((name, value))
            places.values.append((name, place, key))

    def _add_leaf(self, name: str, value: Any) -> None:
        box, local = self._boxes.box_of(name, value)
        self._entries.add(name, name, "other", box, local)
        if self._step is None and type(local) is Array and not value.flags.writeable:
            raise UsageError(f"the array '{name}' cannot be loaded into: read-only")
        if box.dtype in RANDOM and is_random(value):
            self._marks[name] = digest(json.dumps(value.tolist()).encode())

    def add_tensor(
        self,
        name: str,
        tensor: Any,
        role: str = "other",
        param: str = "",
        instead: tuple[str, ...] = (),
    ) -> None:
        """Take a tensor, of the weight `param`."""
        self._entries.add(name, param or name, role, *self._boxes.box_of(name, tensor))
        if instead:
            self._entries.instead[name] = instead

    def add_entries(self, entries: Entries) -> None:
        """Take what this rank holds of tensors."""
        self._entries.extend(entries)
        self._columns = None

    @property
    def is_save(self) -> bool:
        """Whether values are saved, and not only places for them."""
        return self._step is not None

    def add_value(self, name: str, value: Any) -> None:
        """Take a value that is asked for by `value_of`."""
        self._asked.append(name)
        if self.is_save:
            self._coded[name] = code_of(name, value)

    # -- for the library ---------------------------------------------------------------

    @property
    def columns(self) -> Columns:
        """The entries, by what is told of them."""
        if self._columns is None:
            self._columns = columns_of(self._entries)
        return self._columns

    def told(self, with_objects: bool) -> _abi.State:
        """As the library takes it."""
        entries = self.columns
        objects: list[tuple[bytes, bool, bytes]] = []
        if with_objects:
            self._coded.setdefault("trainer", code_of("trainer", {"step": self._step}))
            objects = [(name.encode(), *code) for name, code in self._coded.items()]
        self._alive = objects, entries
        return _abi.State.new(
            n=entries.n,
            names=entries.names,
            names_bytes=len(entries.names),
            params=entries.params,
            params_bytes=len(entries.params),
            roles=entries.roles,
            boxes=entries.numbers,
            n_boxes=len(entries.boxes),
            dtypes=entries.dtypes,
            ndims=entries.ndims,
            shapes=entries.shapes,
            offsets=entries.offsets,
            sizes=entries.sizes,
            data=ints(ctypes.c_void_p, self._entries.addresses),
            dp=self._n_ranks,
            n_objects=len(objects),
            object_names=(ctypes.c_char_p * len(objects))(*(o[0] for o in objects)),
            objects_are_json=ints(ctypes.c_int32, (o[1] for o in objects)),
            object_data=(ctypes.c_void_p * len(objects))(
                *(ctypes.cast(ctypes.c_char_p(o[2]), ctypes.c_void_p) for o in objects)
            ),
            object_sizes=ints(ctypes.c_uint64, (len(o[2]) for o in objects)),
        )

    def _dense(self, local: Any) -> Any:
        """Memory of the host for it that is dense."""
        if isinstance(local, Array):
            return local.dense(copied=self._step is not None)
        import torch

        if self._step is None:  # a load, which needs no old values
            return torch.empty(local.shape, dtype=local.dtype)
        return local.cpu().resolve_conj().resolve_neg().contiguous()

    def unite(self, theirs: Sequence[Any] | None) -> None:
        """Bring the tensors of all ranks into one order: each tells its facts.

        None: all tell the same, in the same order.
        """
        if self.is_save and self._rank and self.buffers:
            first = None if theirs is None else {name for name, *_ in theirs[0]}
            self._leave_buffers(first)
        if theirs is not None:
            self._entries = self._united(theirs)
            self._columns = None
        held = self._entries
        if self._staging is not None and self.is_away:
            copies = self._staging.copies(held.locals)
            held.addresses = [0 if c is None else c.data_ptr() for c in copies]
            self._copies = dict(enumerate(copies))
        elif NOT_DENSE in held.addresses:
            away = (i for i, at in enumerate(held.addresses) if at == NOT_DENSE)
            self._copies = {i: self._dense(held.locals[i]) for i in away}
            for i, copy in self._copies.items():
                held.addresses[i] = copy.data_ptr()

    def _leave_buffers(self, first: set[str] | None) -> None:
        """Let rank 0 save its own, if it has them: shared out among ranks, as other
        replicas are, those of several would be mixed.
        """
        held = self._entries
        for i, name in enumerate(held.names):
            if name in self.buffers and (first is None or name in first):
                held.boxes[i] = Box.none(held.boxes[i].dtype, held.boxes[i].shape)
                held.locals[i], held.addresses[i] = None, 0
        self._columns = None

    def mark_replicas(self) -> None:
        """Let ranks compare what several of them hold whole: the first time, since that
        reads all of it. Stages of a pipeline may use a name for different weights.
        """
        if self.columns.is_compared or self._n_ranks == 1:
            return
        held = self._entries
        for i, (name, box) in enumerate(zip(held.names, held.boxes)):
            whole = box.size == box.shape and held.addresses[i] > 0
            if whole and name not in self.buffers:
                n_bytes = held.locals[i].nbytes
                self._marks.setdefault(name, digest_at(held.addresses[i], n_bytes))

    @property
    def values(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """A digest of each value, and of each tensor that ranks must have alike."""
        return {n: digest(data) for n, (_, data) in self._coded.items()}, self._marks

    def keep_by_rank(self, ranks: Ranks) -> None:
        """Let rank 0 save what the others have otherwise, too: "NAME@RANK"."""
        theirs = ranks.gather(self.values)
        for name in sorted({name for _, marks in theirs for name in marks}):
            if len({marks[name] for _, marks in theirs if name in marks}) > 1:
                raise MismatchError(
                    f"tensor '{name}' is not the same on all ranks, and has one name",
                    tensor=name,
                    hint='give each its own: {f"rng{rank}": ...}, {f"stage{rank}": ...}',
                )
        first = theirs[0][0]
        names = {name for one, _ in theirs for name in one}
        differ = {n for n in names if any(o.get(n) != first.get(n) for o, _ in theirs)}
        codes = ranks.gather({n: c for n, c in self._coded.items() if n in differ})
        for rank, others in enumerate(codes):
            for name, code in others.items():
                if rank and code != codes[0].get(name):
                    self._coded[f"{name}@{rank}"] = code

    @property
    def value_names(self) -> list[str]:
        """Plain values that a load cannot do without."""
        settings = [o.settings_name for o in self.optimizers]
        return [*(name for name, _, _ in self._places.values), *settings]

    def check(self, step: Checkpoint, names: set[str], trust: bool) -> None:
        """Refuse a step that has not what all ranks ask for, or not so."""
        saved = {n: n.rpartition("@")[0] or n for n in step.objects}
        missing = names.difference(saved, saved.values())
        if missing:
            raise NotFoundError(f"the step has no value '{min(missing)}'")
        begins = tuple(f"{key}." for key in self._stateful)
        asked = names.union(self._asked, self._stateful)
        for name, first in saved.items():
            if trust or (first not in asked and not name.startswith(begins)):
                continue
            value = step.objects[name]
            if isinstance(value, bytes):
                unpickled(name, value, trust)
        for optimizer in self.optimizers:
            if optimizer.settings_name in step.objects:
                optimizer.check(step.objects[optimizer.settings_name])

    def lacked_by(self, step: Checkpoint) -> set[str]:
        """Tensors that a step does without: it has what they follow from, or it says what
        their object has.
        """
        counts = {
            name
            for name, value in step.objects.items()
            if isinstance(value, dict) and isinstance(value.get("step"), int)
        }
        known = counts.union(step)
        lacked = {
            name
            for name, instead in self._entries.instead.items()
            if name not in known and not known.isdisjoint(instead)
        }
        if self.optimizers:
            trained, objects = step._trained(), step.objects
            lacked.update(*(o.lacked_by(trained, objects) for o in self.optimizers))
        told = [key for key in self._stateful if _is_told(key, step)]
        begins = tuple(f"{key}." for key in told)
        for name, box in zip(self._entries.names, self._entries.boxes) if told else ():
            theirs = name.startswith(begins) or name in told
            if theirs and _is_other(name, box, step):
                lacked.add(name)
        return lacked

    def remark_on(self, step: Checkpoint) -> None:
        """Warn of what a step has in given lists and dicts, and they have not."""
        if not self._containers:
            return
        asked = {*self._entries.names, *(name for name, _ in self._values)}
        for key in self._containers:
            has = [n for n in (*step, *step.objects) if n.startswith(f"{key}.")]
            left = [n for n in has if asked.isdisjoint((n, n.rpartition("@")[0]))]
            if left:
                first = f"'{left[0]}'" + (" the first of them" if len(left) > 1 else "")
                self.remarks.append(
                    f"the step has {len(left)} in '{key}' that the state has not, {first}"
                )

    def leave_out(self, names: set[str]) -> None:
        """Do not ask the step for these; `fill` finds what they are."""
        if not names:
            return
        places = range(len(self._entries))
        out = [i for i in places if self._entries.names[i] in names]
        kept = [i for i in places if self._entries.names[i] not in names]
        self._left_out = self._entries.only(out)
        self._entries = self._entries.only(kept)
        self._copies = {
            i: self._copies[old] for i, old in enumerate(kept) if old in self._copies
        }
        self._columns = None

    @property
    def facts(self) -> list[tuple[Any, ...]]:
        """What this rank tells of its tensors."""
        held = self._entries
        return [
            (name, param, role, box.dtype, box.shape, held.instead.get(name, ()))
            for name, param, role, box in zip(
                held.names, held.params, held.roles, held.boxes
            )
        ]

    def check_names(self) -> None:
        """See that each is of one tensor or value, and of no other rank's value."""
        values = [name for name, _ in self._values] + self._asked
        for what, names in (("tensors", self._entries.names), ("values", values)):
            if len(set(names)) < len(names):
                twice = next(name for name, n in Counter(names).items() if n > 1)
                raise UsageError(f"two {what} are called '{twice}'")
        for name in self._coded:
            first, at, rank = name.rpartition("@")
            if at and rank.isdigit() and first in self._coded:
                raise UsageError(
                    f"'{name}' is no name for a value: steps have so what rank {rank} "
                    f"has of '{first}'"
                )

    def _united(self, theirs: Sequence[Any]) -> Entries:
        """Pipeline stages hold different tensors: what others have, this rank lacks."""
        mine = {name: i for i, name in enumerate(self._entries.names)}
        united, seen = Entries(), dict[str, Any]()
        for name, param, role, dtype, shape, instead in chain.from_iterable(theirs):
            if seen.setdefault(name, (dtype, shape)) != (dtype, shape):
                raise MismatchError(
                    f"ranks say different things of tensor '{name}'", tensor=name
                )
            if len(united) == len(seen):
                continue
            if name in mine:
                united.extend(self._entries.only([mine[name]]))
                continue
            united.add(name, param, role, Box.none(dtype, shape), None)
            if instead:
                united.instead[name] = instead
        return united

    # -- after a load ------------------------------------------------------------------

    def fill(self, loaded: Loaded) -> None:
        """Put what was loaded where it belongs."""
        loaded.filled = set(self._entries.names)
        with no_grad():
            for i, copy in self._copies.items():
                self._entries.locals[i].copy_(copy)
            if len(self._left_out):
                self._fill_left_out(loaded)
        written(self._entries.locals)
        self._places.fill(loaded.value_of)
        for part in self._parts:
            part.load(loaded)

    def _fill_left_out(self, now: Loaded) -> None:
        loaded = dict(zip(self._entries.names, self._entries.locals))
        for name, local in zip(self._left_out.names, self._left_out.locals):
            instead = self._left_out.instead.get(name)
            if local is None or not instead:
                continue
            tied = [loaded[other] for other in instead if other in loaded]
            counted = now.value_of(instead[0]) if not tied else {}
            if tied:
                local.copy_(tied[0])
            elif "step" in counted:
                local.fill_(counted["step"])


def _is_told(key: str, step: Checkpoint) -> bool:
    """Whether the step says all that an object has."""
    names = {name.split("@")[0] for name in step.objects}
    return key in names or f"{TREE}.{key}" in names


def _is_other(name: str, box: Box, step: Checkpoint) -> bool:
    """Whether the step has no such tensor, or, where it is no share, another one."""
    stored = step.tensors.get(name)
    if stored is None:
        return True
    whole = box.size == box.shape
    return whole and (stored.shape, stored.dtype) != (box.shape, box.dtype)
