"""The state of training as a list of tensors and objects, and back."""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from . import _abi
from ._alike import Replicas, differing
from ._array import Array, host_copy, is_array, no_grad, written
from ._columns import Columns, columns_of, ints
from ._entries import NOT_DENSE, Box, Boxes, Entries, Staging
from ._errors import MismatchError, UsageError
from ._held import kind_of
from ._kinds import classes, has_parts, has_tensors, is_stateful, parts_of
from ._model import Model, bare, dict_of, prefix_of
from ._names import Names, value_name
from ._optimizer import MOMENTS, Optimizer
from ._shared import Shared
from ._stateful import Places, Stateful
from ._values import (
    RANDOM,
    TRAINER,
    Pickle,
    check_trainer,
    code_of,
    digest,
    is_json,
    is_random,
)
from ._warn import Told, warn

if TYPE_CHECKING:
    from ._loaded import Loaded
    from ._look import More
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
        if not isinstance(state, Mapping):
            raise UsageError(
                f"a state is a dict, and not a {type(state).__name__}",
                hint='{"model": model, "optim": optim, "step": step}',
            )
        self._step = step  # None: a load
        self._n_ranks = ranks.world_size
        self._boxes = Boxes()
        self.entries = Entries()
        self._columns: Columns | None = None  # of the entries, when they are asked for
        self._copies: dict[int, Any] = {}  # dense ones, of entries that are not
        self._values: list[tuple[str, Any]] = []  # plain ones by name, for a save
        self._places = Places()  # where a load puts them
        self.asked: list[str] = []  # values of optimizers
        #: What a step calls its weights: a shorter name may be the end of any of them.
        self.step_weights: set[str] = set()
        self._parts: list[Any] = []
        self.containers: list[str] = []  # keys under which tensors are, that have none
        self.stateful: list[str] = []
        self.objects: list[Stateful] = []  # which have these names
        self.optimizers: list[Optimizer] = []
        self.any_optimizers = False  # on any rank
        self.of_objects: dict[str, str] = {}  # tensors that objects have: their keys
        self.warnings: list[Told] = []  # for when the act is over
        self._shared: Shared | None = None
        self.remarks: list[str] = []  # what a load warns of, once for all ranks
        self._left_out = Entries()
        #: Tensors of objects that some rank has whole.
        self.whole: set[str] = set()
        self._coded: dict[str, tuple[bool, bytes]] = {}
        self._replicas = Replicas()
        self._rank = ranks.rank
        self._tensor, self._model, self._optimizer = classes()
        rest = {k: v for k, v in state.items() if not isinstance(v, self._tensor)}
        parts = [part for key in rest for part in parts_of(key, rest[key])]
        self.models = {n: bare(p) for n, p in parts if isinstance(p, self._model)}
        # Before optimizers look at weights: a forward pass leaves those of FSDP2 whole.
        self._dicts = {n: dict_of(n, model) for n, model in self.models.items()}
        self._weight_names = Names(self.models, self._dicts)
        optimizers = [n for n, part in parts if isinstance(part, self._optimizer)]
        self._is_one = len(self.models) == len(optimizers) == 1
        for key, value in state.items():
            if not isinstance(key, str):
                raise UsageError(f"a state has texts for keys, and not {key!r}")
            if isinstance(value, self._tensor) or is_array(value):
                self._add_leaf(key, value)  # first: most are, and looking takes long
                continue
            self._take(key, value, state, key)
            if has_tensors(value):
                self.containers.append(key)
        if self.is_save:
            for name, value in self._values:
                self._code(name, value)
        del self._dicts
        #: Whether a load has to look at the step first.
        self.looks = bool(
            self.entries.instead or self._parts or self._values or self.containers
        )
        self._staging = staging
        self.is_away = staging is not None and any(
            local is not None and not local.is_cpu for local in self.entries.locals
        )

    def _take(self, name: str, value: Any, place: Any, key: Any) -> None:
        """Take what is given: a part, something plain, or a container of both."""
        if isinstance(value, self._model):
            prefix = prefix_of(name, self.models)
            self._parts.append(Model(self, prefix, self.models[name], self._dicts[name]))
        elif isinstance(value, self._optimizer):
            label, names = "" if self._is_one else name, self._weight_names
            self._parts.append(Optimizer(self, name, value, names, label))
        elif is_stateful(value):
            self._parts.append(self.object_of(name, value))
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
        self.entries.add(name, name, "other", box, local)
        if self._step is None and type(local) is Array and not value.flags.writeable:
            raise UsageError(f"the array '{name}' cannot be loaded into: read-only")
        if box.dtype in RANDOM and is_random(value):
            self._replicas.must[name] = digest(json.dumps(value.tolist()).encode())

    def object_of(self, name: str, value: Any, is_needed: bool = True) -> Stateful:
        """Take an object; of tensors that differ in it, those of the first rank that has
        them are saved. is_needed: a step that does not tell it is refused.
        """
        first = len(self.entries)
        made = Stateful(self, name, value, is_needed)
        self.stateful.append(name)
        self.objects.append(made)
        held = self.entries
        names = held.names[first:]
        self.of_objects.update(dict.fromkeys(names, name))
        whole = zip(names, held.boxes[first:])
        held.own.update((n, None) for n, box in whole if box.size == box.shape)
        return made

    def add_tensor(
        self,
        name: str,
        tensor: Any,
        role: str = "other",
        param: str = "",
        instead: tuple[str, ...] = (),
    ) -> None:
        """Take a tensor, of the weight `param`."""
        self.entries.add(name, param or name, role, *self._boxes.box_of(name, tensor))
        if instead:
            self.entries.instead[name] = instead

    def add_entries(self, entries: Entries) -> None:
        """Take what this rank holds of tensors."""
        self.entries.extend(entries)
        self._columns = None

    @property
    def is_alone(self) -> bool:
        """Whether no other rank is there."""
        return self._n_ranks == 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self._rank == 0

    @property
    def is_save(self) -> bool:
        """Whether values are saved, and not only places for them."""
        return self._step is not None

    def add_value(self, name: str, value: Any) -> None:
        """Take a value that is asked for by `value_of`."""
        self.asked.append(name)
        if self.is_save:
            self._code(name, value)

    def _code(self, name: str, value: Any) -> None:
        if name == TRAINER and self._step is not None:
            check_trainer(value, self._step)
        self._coded[name] = code_of(name, value, warns=self._rank == 0)

    # -- for the library ---------------------------------------------------------------

    @property
    def columns(self) -> Columns:
        """The entries, by what is told of them."""
        if self._columns is None:
            self._columns = columns_of(self.entries)
        return self._columns

    def told(self, with_objects: bool) -> _abi.State:
        """As the library takes it."""
        entries = self.columns
        objects: list[tuple[bytes, bool, bytes]] = []
        if with_objects:
            self._coded.setdefault(TRAINER, code_of(TRAINER, {"step": self._step}))
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
            data=ints(ctypes.c_void_p, self.entries.addresses),
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
        if self._step is not None:
            return host_copy(local)
        if isinstance(local, Array):  # a load, which needs no old values
            return local.dense(copied=False)
        import torch

        return torch.empty(local.shape, dtype=local.dtype)

    def unite(self, theirs: Sequence[Any] | None) -> None:
        """Bring the tensors of all ranks into one order: each tells its facts.

        None: all tell the same, in the same order.
        """
        if self.is_save and self._rank and self.entries.own:
            before = theirs[: self._rank] if theirs is not None else ()
            facts = chain.from_iterable(before)
            first = {name for name, *_, is_own in facts if is_own}
            self._leave_own(self.entries.own if theirs is None else first)
        self.whole.update(self.entries.own)
        if theirs is not None:
            for name, *_, key, is_own in chain.from_iterable(theirs):
                self.whole.update([name] if is_own else ())
                self.of_objects.update({name: key} if key else {})
            self.entries = self._united(theirs)
            self._columns = None
        held = self.entries
        if self._staging is not None and self.is_away:
            copies = self._staging.copies(held.locals)
            held.addresses = [0 if c is None else c.data_ptr() for c in copies]
            self._copies = dict(enumerate(copies))
        elif NOT_DENSE in held.addresses:
            for i, at in enumerate(held.addresses):
                if at == NOT_DENSE:
                    self._go_by_a_copy(i)

    def _go_by_a_copy(self, i: int) -> None:
        copy = self._copies[i] = self._dense(self.entries.locals[i])
        self.entries.addresses[i] = copy.data_ptr()

    def _leave_own(self, first: Collection[str]) -> None:
        """Let ranks before this one save theirs, if they have them: shared out among
        ranks, as other replicas are, those of several would be mixed.
        """
        held = self.entries
        for i, name in enumerate(held.names):
            if name in first and name in held.own:
                held.boxes[i] = Box.none(held.boxes[i].dtype, held.boxes[i].shape)
                held.locals[i], held.addresses[i] = None, 0
        self._columns = None

    def mark_replicas(self) -> None:
        """Let ranks compare what several of them hold whole."""
        if self._n_ranks > 1:
            is_first = not self.columns.is_compared
            self._replicas.mark(self.entries, is_first, self.of_objects)

    @property
    def values(self) -> tuple[dict[str, bytes], dict[str, bytes], dict[str, bytes]]:
        """A digest of each value, of each tensor that ranks must have alike, and of those
        that they should.
        """
        values = {n: digest(data) for n, (_, data) in self._coded.items()}
        return values, self._replicas.must, self._replicas.should

    def keep_by_rank(self, ranks: Ranks) -> None:
        """Let rank 0 save what the others have otherwise, too: "NAME@RANK"."""
        all_values, must, should = zip(*ranks.gather(self.values))
        for name in differing(must):
            raise MismatchError(
                f"tensor '{name}' is not the same on all ranks, and has one name",
                tensor=name,
                hint='give each its own: {f"rng{rank}": ...}, {f"stage{rank}": ...}',
            )
        for name in differing(should) if self._rank == 0 else ():
            first_rank = next(r for r, marks in enumerate(should) if name in marks)
            warn(
                f"tensor '{name}' is not the same on all ranks: that of rank "
                f"{first_rank} is saved"
            )
        first = all_values[0]
        names = {name for one in all_values for name in one}
        differ = {n for n in names if any(o.get(n) != first.get(n) for o in all_values)}
        codes = ranks.gather({n: c for n, c in self._coded.items() if n in differ})
        weights = {
            n for n, r in zip(self.entries.names, self.entries.roles) if r == "model"
        }
        for rank, others in enumerate(codes):
            for name, code in others.items():
                if rank and code != codes[0].get(name):
                    own = f"{name}@{rank}"
                    if own in names or value_name(own, weights) == own:
                        raise _no_name(own, name, rank)
                    self._coded[own] = code

    @property
    def value_names(self) -> list[str]:
        """Plain values that a load cannot do without, beside settings of optimizers."""
        return [name for name, _, _ in self._places.values]

    @property
    def values_in_objects(self) -> list[tuple[str, str]]:
        """Plain values that objects have now: keys and names."""
        return [(part.key, name) for part in self.objects for name in part.names]

    def take_more(self, told: Sequence[More], types: set[str], ranks: Ranks) -> None:
        """Ask for what a step has of optimizers of these types that have not such state
        yet: it is made in later updates than the first, or by settings of the step.
        """
        places: dict[str, Any] = {}
        alike = [o.places for o in self.optimizers if o.named_type in types]
        weights = self.step_weights
        for name, dtype, shape in told:
            kind, weight = kind_of(name, weights)
            makes = (held[weight] for held in alike if weight in held)
            places_of = (make(kind, dtype, shape) for make in makes)
            place = next((p for p in places_of if p is not None), None)
            if place is not None:
                places[name] = place
        wanted = {name for theirs in ranks.gather(list(places)) for name in theirs}
        for name, dtype, shape in told:
            if name not in wanted:
                continue
            kind, weight = kind_of(name, weights)
            role = kind if kind in MOMENTS else "optim"
            if name in places:
                self.add_tensor(name, places[name], role, weight)
            else:
                self.entries.add(name, weight, role, Box.none(dtype, shape), None)
            if self.entries.addresses[-1] == NOT_DENSE:
                self._go_by_a_copy(len(self.entries) - 1)
        self._columns = None

    def leave_out(self, names: set[str]) -> None:
        """Do not ask the step for these; `fill` finds what they are."""
        if not names:
            return
        places = range(len(self.entries))
        out = [i for i in places if self.entries.names[i] in names]
        kept = [i for i in places if self.entries.names[i] not in names]
        self._left_out = self.entries.only(out)
        self.entries = self.entries.only(kept)
        self._copies = {
            i: self._copies[old] for i, old in enumerate(kept) if old in self._copies
        }
        self._columns = None

    def part_shared(self) -> None:
        """Read tensors of a load that share memory into copies, until `fill`."""
        self._shared = Shared(
            self.entries,
            self._copies,
            self._dense,
            self.of_objects,
            list(self.models.values()),
        )

    @property
    def facts(self) -> list[tuple[Any, ...]]:
        """What this rank tells of its tensors."""
        held = self.entries
        return [
            (
                *(name, param, role, box.dtype, box.shape),
                *(held.instead.get(name, ()), self.of_objects.get(name, "")),
                name in held.own,
            )
            for name, param, role, box in zip(
                held.names, held.params, held.roles, held.boxes
            )
        ]

    def check_names(self) -> None:
        """See that each is of one tensor or value, and of no other rank's value."""
        values = [name for name, _ in self._values] + self.asked
        for what, names in (("tensors", self.entries.names), ("values", values)):
            if len(set(names)) < len(names):
                twice = next(name for name, n in Counter(names).items() if n > 1)
                raise UsageError(f"two {what} are called '{twice}'")
        for i, place in enumerate(self.entries.addresses if not self.is_save else ()):
            if place == NOT_DENSE and _overlaps_itself(self.entries.locals[i]):
                raise UsageError(
                    f"'{self.entries.names[i]}' cannot be loaded into: elements of it "
                    "share memory"
                )
        for name in self._coded:
            first, at, rank = name.rpartition("@")
            if at and rank.isdigit() and first in self._coded:
                raise _no_name(name, first, rank)

    def _united(self, theirs: Sequence[Any]) -> Entries:
        """Pipeline stages hold different tensors: what others have, this rank lacks."""
        mine = {name: i for i, name in enumerate(self.entries.names)}
        united, seen = Entries(), dict[str, Any]()
        for name, param, role, dtype, shape, instead, *_ in chain.from_iterable(theirs):
            if seen.setdefault(name, (dtype, shape)) != (dtype, shape):
                raise MismatchError(
                    f"ranks say different things of tensor '{name}'", tensor=name
                )
            if len(united) == len(seen):
                continue
            if name in mine:
                united.extend(self.entries.only([mine[name]]))
                continue
            united.add(name, param, role, Box.none(dtype, shape), None)
            if instead:
                united.instead[name] = instead
        return united

    # -- after a load ------------------------------------------------------------------

    def fill(self, loaded: Loaded) -> None:
        """Put what was loaded where it belongs."""
        loaded.filled = set(self.entries.names)
        weights = self.step_weights if self.optimizers else ()
        loaded.weights = weights
        names = {value_name(n, weights) for n in loaded.names} if weights else ()
        for name in names:
            kind, weight = kind_of(name, weights)
            if kind:
                loaded.of_weights.setdefault(weight, []).append((kind, name))
        with no_grad():
            for i, copy in self._copies.items():
                self.entries.locals[i].copy_(copy)
            if self._shared is not None:
                self._shared.fill(loaded)
            if len(self._left_out):
                self._fill_left_out(loaded)
        written(self.entries.locals)
        self._places.fill(loaded.value_of)
        for part in self._parts:
            part.load(loaded)

    def _fill_left_out(self, now: Loaded) -> None:
        loaded = dict(zip(self.entries.names, self.entries.locals))
        for name, local in zip(self._left_out.names, self._left_out.locals):
            instead = self._left_out.instead.get(name)
            if local is None or not instead:
                continue
            tied = [loaded[other] for other in instead if other in loaded]
            said = [n for n in instead if not tied and now.has_value(n)]
            counted = now.value_of(said[0]) if said else {}
            if tied and tied[0].data_ptr() != local.data_ptr():
                local.copy_(tied[0])
            elif "step" in counted:
                local.fill_(counted["step"])


def _no_name(name: str, first: str, rank: int | str) -> UsageError:
    return UsageError(
        f"'{name}' is no name for a value: steps have so what rank {rank} has of "
        f"'{first}'"
    )


def _overlaps_itself(local: Any) -> bool:
    strides = local.array.strides if isinstance(local, Array) else local.stride()
    twice = any(step == 0 and n > 1 for step, n in zip(strides, local.shape))
    return twice and 0 not in local.shape
