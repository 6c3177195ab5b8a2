"""What ranks hold whole, and must have alike: digests of it, and what differs in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ._array import host_copy
from ._columns import digest_at
from ._entries import NOT_DENSE, Entries

MANY = 1024  # tensors of a kind, of which not each save compares all
SMALL_BYTES = 1 << 12


class Replicas:
    """Of the tensors of one rank: digests by name.

    `must` be alike, or the step would be a mixture; of those that `should`, those of one
    rank are what is saved.
    """

    def __init__(self) -> None:
        """Know of none."""
        self.must: dict[str, bytes] = {}
        self.should: dict[str, bytes] = {}

    def mark(self, held: Entries, is_first: bool, of_objects: Collection[str]) -> None:
        """Look at all of them the first time, since that reads them, and in each save at
        small ones of no model that are no moments: counters are alike before the first
        step. Stages of a pipeline may use a name for different weights.
        """
        few = [i for i, role in enumerate(held.roles) if role == "other"]
        few = few if len(few) <= MANY else []
        kept = [i for i, role in enumerate(held.roles) if role == "optim"]
        if len(kept) > MANY:  # those of devices are copied, each by itself
            kept = [i for i in kept if held.addresses[i] != NOT_DENSE]
        for i in range(len(held)) if is_first else few + kept:
            name, box, at = held.names[i], held.boxes[i], held.addresses[i]
            if box.size != box.shape or at == 0:
                continue
            n_bytes = held.locals[i].nbytes
            if not is_first and n_bytes > SMALL_BYTES:
                continue
            marks = self.should if name in of_objects else self.must
            if name in marks or (name in held.own and marks is self.must):
                continue
            copy = host_copy(held.locals[i]) if at == NOT_DENSE else None
            marks[name] = digest_at(copy.data_ptr() if copy is not None else at, n_bytes)


def differing(marks: Sequence[Mapping[str, bytes]]) -> list[str]:
    """Names of which ranks that have them have different digests."""
    names = sorted({name for theirs in marks for name in theirs})
    return [n for n in names if len({m[n] for m in marks if n in m}) > 1]
