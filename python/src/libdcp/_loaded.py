"""What a load has got from a step: values by name, as this rank is to have them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._errors import NotFoundError
from ._names import value_name
from ._tagged import checked
from ._values import unpickled

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint
    from ._ranks import Ranks


class Loaded:
    """Values of a step, and what else it says when it is asked again.

    `filled` are the tensors that are in place already. `others` are values of which each
    of the ranks that saved had its own, and of which this rank has got that of another,
    since their number is not the same. `remarks` is what is to be warned of.
    """

    def __init__(
        self,
        objects: Mapping[str, tuple[bool, bytes]],
        saved_by: int,
        ranks: Ranks,
        trust: bool,
        reopen: Callable[[], Checkpoint],
    ) -> None:
        """`saved_by` so many ranks, for one of these; reopen gives the step."""
        self._objects = objects
        self._saved_by = saved_by
        self.trust = trust
        self._reopen = reopen
        self._rank, self._n_ranks = ranks.rank, ranks.world_size
        self.filled: set[str] = set()
        #: As the step calls them: names of theirs may end as those of single ranks do.
        self.weights: Collection[str] = ()
        #: Kind and name of what is told of weights, and is no tensor.
        self.of_weights: dict[str, list[tuple[str, str]]] = {}
        self.others: set[str] = set()
        self.remarks: list[str] = []
        #: Tensors of objects that are not in place, since models have their memory.
        self.apart: dict[str, Any] = {}
        self.classes: dict[str, Any] = {}  # of containers, that are known without trust

    def read(self, leaves: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Read more of the step: "tensor" or "array", and its name, of each."""
        if not leaves:
            return {}
        with self._reopen() as step:
            tensors = [name for kind, name in leaves if kind == "tensor"]
            found: dict[str, Any] = dict(step.state_dict(tensors)) if tensors else {}
            for kind, name in leaves:
                if kind == "array":
                    found[name] = step[name].numpy()
        return found

    @property
    def is_resharded(self) -> bool:
        """Whether other ranks saved it: as many as these each get their own."""
        return self._saved_by != self._n_ranks

    @property
    def names(self) -> set[str]:
        """Of all values, those of single ranks among them."""
        return set(self._objects)

    def all_of(self, name: str) -> list[Any]:
        """A value of each rank that has it: this rank's own first, where it has one."""
        own = name if self.is_resharded else f"{name}@{self._rank}"
        held = self._held(name)
        return list(map(self._decoded, [own, *held] if own in held else held))

    def _held(self, name: str) -> list[str]:
        """Names of a value, by the ranks that saved one: rank 0's is without a number."""
        first = [name] if name in self._objects else []
        return first + [f"{name}@{rank}" for rank in self._ranks_of(name)]

    def _ranks_of(self, name: str) -> list[int]:
        """Ranks but the first that have their own of a value."""
        all_ranks = ((rank, f"{name}@{rank}") for rank in range(1, self._saved_by))
        return [
            rank
            for rank, own in all_ranks
            if own in self._objects and value_name(own, self.weights) == name
        ]

    def has_value(self, name: str) -> bool:
        """Whether the step has such a plain value."""
        return name in self._objects or bool(self._ranks_of(name))

    def value_of(self, name: str) -> Any:
        """Give a plain value that was loaded: this rank's own, where it has one."""
        held = self._ranks_of(name)
        if held and self.is_resharded:
            self.others.add(name)
        elif self._rank in held:
            name = f"{name}@{self._rank}"
        if held and name not in self._objects:
            name = f"{name}@{held[0]}"
        if name not in self._objects:
            raise NotFoundError(f"the step has no value '{name}'")
        return self._decoded(name)

    def of_weight(self, name: str) -> Any:
        """The same of a weight, which one stage of a pipeline alone may have."""
        value = self.value_of(name)
        if name in self.others and len(self._held(name)) == 1:
            self.others.discard(name)
        return value

    def _decoded(self, name: str) -> Any:
        is_json, data = self._objects[name]
        return checked(name, data) if is_json else unpickled(name, data, self.trust)
