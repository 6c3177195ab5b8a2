"""Tensors of a load that share memory: averages that begin as the weights themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._array import Array, host_copy
from ._columns import digest_at

if TYPE_CHECKING:
    from ._entries import Entries
    from ._loaded import Loaded


class Shared:
    """They are read into copies: read in place, the one that came last would be all."""

    def __init__(
        self, entries: Entries, copies: dict[int, Any], dense: Callable[[Any], Any]
    ) -> None:
        """Find them, and let the library read into memory that `dense` gives.

        copies: of entries that are read into such already; those found here are taken
        from it.
        """
        self._entries = entries
        self._together: list[list[int]] = []
        self._copies: dict[int, Any] = {}
        spans = _spans_of(entries, copies) if copies else _dense_spans(entries)
        place: Any = None
        end = last = -1
        for where, at, until, i in spans:
            if where != place:
                place, end = where, -1
            if at < end:
                if not self._copies or last not in self._together[-1]:
                    self._together.append([last])
                self._together[-1].append(i)
                self._copies.update(dict.fromkeys((last, i)))
            end, last = max(end, until), i
        for i in self._copies:
            copy = copies.pop(i, None)
            self._copies[i] = dense(entries.locals[i]) if copy is None else copy
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


def _dense_spans(entries: Entries) -> Iterator[tuple[Any, int, int, int]]:
    """Where each lies, in order, when all are dense memory of the host."""
    places, n_bytes = entries.addresses, dict[int, int]()
    for i in sorted(range(len(places)), key=places.__getitem__):
        at, box = places[i], id(entries.boxes[i])  # what is cut alike has one box
        if at <= 0:
            continue
        if box not in n_bytes:
            n_bytes[box] = entries.locals[i].nbytes
        yield None, at, at + n_bytes[box], i


def _spans_of(
    entries: Entries, copies: Mapping[int, Any]
) -> list[tuple[str, int, int, int]]:
    """The same, where some are no dense memory of the host: from the first element to the
    last, on the device.
    """
    found = []
    for i, local in enumerate(entries.locals):
        if local is None or entries.addresses[i] == 0:
            continue
        if i not in copies:
            at = entries.addresses[i]
            found.append(("cpu", at, at + local.nbytes, i))
        elif isinstance(local, Array):
            low, high = local.extent()
            found.append(("cpu", low, high, i))
        else:
            steps = zip(local.shape, local.stride())
            last = sum((n - 1) * step for n, step in steps)
            at = local.data_ptr()
            until = at + (last + 1) * local.element_size()
            found.append((str(local.device), at, until, i))
    return sorted(found)


def _same_bits(held: Any, copy: Any) -> bool:
    """Whether a tensor, or an array, has the numbers of a dense copy."""
    now, n_bytes = host_copy(held), copy.nbytes
    return digest_at(now.data_ptr(), n_bytes) == digest_at(copy.data_ptr(), n_bytes)
