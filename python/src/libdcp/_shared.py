"""Tensors of a load that share memory: averages that begin as the weights themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from ._array import Array
from ._columns import digest_at

if TYPE_CHECKING:
    from ._entries import Entries
    from ._loaded import Loaded


class Shared:
    """They are read into copies: read in place, the one that came last would be all."""

    def __init__(self, entries: Entries, dense: Callable[[Any], Any]) -> None:
        """Find them, and let the library read into memory that `dense` gives."""
        self._entries = entries
        self._together: list[list[int]] = []
        self._copies: dict[int, Any] = {}
        places, locals_of = entries.addresses, entries.locals
        n_bytes: dict[int, int] = {}  # by the box: what is cut alike has one
        end = last = -1
        for i in sorted(range(len(places)), key=places.__getitem__):
            at, box = places[i], id(entries.boxes[i])
            if at <= 0:
                continue
            if at < end:
                if not self._copies or last not in self._together[-1]:
                    self._together.append([last])
                self._together[-1].append(i)
                self._copies.update(dict.fromkeys((last, i)))
            if box not in n_bytes:
                n_bytes[box] = locals_of[i].nbytes
            end, last = max(end, at + n_bytes[box]), i
        for i in self._copies:
            self._copies[i] = dense(entries.locals[i])
            entries.addresses[i] = self._copies[i].data_ptr()

    def fill(self, of_objects: set[str], loaded: Loaded) -> None:
        """Give objects their own of what models have; of others the first one has it."""
        held = self._entries
        for together in map(sorted, self._together):
            rest = [i for i in together if held.names[i] not in of_objects]
            for i in together if rest else ():
                copy = self._copies[i]
                if i not in rest:
                    loaded.apart[held.names[i]] = getattr(copy, "array", copy)
            rest = rest or together
            for i in reversed(rest):
                held.locals[i].copy_(self._copies[i])
            for i in rest[1:]:
                if not _same_bits(held.locals[i], self._copies[i]):
                    loaded.remarks.append(
                        f"'{held.names[i]}' shares memory with '{held.names[rest[0]]}', "
                        "and is something else in the step: it has not got that"
                    )


def _same_bits(held: Any, copy: Any) -> bool:
    """Whether a tensor, or an array, has the numbers of a dense copy."""
    if isinstance(copy, Array):
        now: Any = held.dense(copied=True)
    else:
        now = held.resolve_conj().resolve_neg().cpu().contiguous()
    n_bytes = copy.nbytes
    return digest_at(now.data_ptr(), n_bytes) == digest_at(copy.data_ptr(), n_bytes)
