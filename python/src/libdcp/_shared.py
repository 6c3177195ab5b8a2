"""Tensors of a load that share memory: averages that begin as the weights themselves."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._array import Array, host_copy
from ._columns import digest_at

if TYPE_CHECKING:
    from ._entries import Entries
    from ._loaded import Loaded


class Shared:
    """They are read into copies: read in place, the one that came last would be all."""

    def __init__(
        self,
        entries: Entries,
        copies: dict[int, Any],
        dense: Callable[[Any], Any],
        of_objects: Collection[str],
        models: Sequence[Any],
    ) -> None:
        """Find them, and let the library read into memory that `dense` gives.

        copies: of entries that are read into such already; those found here are taken
        from it.
        """
        self._entries, self._of_objects = entries, of_objects
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
        # What objects have of it is given to them: each gets its own. Of models that are
        # gathered into copies, as by FSDP1, the memory is in no entry.
        self._apart = _inside(entries, copies, of_objects, models)
        for together in self._together:
            mine = {i for i in together if entries.names[i] in of_objects}
            if len(mine) < len(together):
                self._apart |= mine
        self._copies.update(dict.fromkeys(self._apart))
        for i in self._copies:
            copy = copies.pop(i, None)
            self._copies[i] = dense(entries.locals[i]) if copy is None else copy
            entries.addresses[i] = self._copies[i].data_ptr()

    def fill(self, loaded: Loaded) -> None:
        """Give objects their own of what models have, and of what differs in the step; of
        others the first one has it.
        """
        held = self._entries
        for i in self._apart:
            self._give(i, loaded)
        for together in self._together:
            rest = sorted(set(together) - self._apart)
            for i in reversed(rest):
                held.locals[i].copy_(self._copies[i])
            for i in rest[1:]:
                if _same_bits(held.locals[i], self._copies[i]):
                    continue
                if held.names[i] in self._of_objects:
                    self._give(i, loaded)
                else:
                    loaded.remarks.append(
                        f"'{held.names[i]}' shares memory with '{held.names[rest[0]]}', "
                        "and is something else in the step: it has not got that"
                    )

    def _give(self, i: int, loaded: Loaded) -> None:
        copy = self._copies[i]
        loaded.apart[self._entries.names[i]] = getattr(copy, "array", copy)


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
            found.append((*_extent_of(local), i))
    return sorted(found)


def _extent_of(local: Any) -> tuple[str, int, int]:
    last = sum((n - 1) * step for n, step in zip(local.shape, local.stride()))
    at = local.data_ptr()
    return str(local.device), at, at + (last + 1) * local.element_size()


def _inside(
    entries: Entries,
    copies: Mapping[int, Any],
    of_objects: Collection[str],
    models: Sequence[Any],
) -> set[int]:
    """Entries of objects that lie in memory of a model's weights or buffers."""
    if not of_objects:
        return set()
    spans: dict[str, list[tuple[int, int]]] = {}
    for model in models:
        for held in (*model.parameters(), *model.buffers()):
            local = getattr(held, "_local_tensor", held)
            if local.numel() and not local.is_meta:
                where, at, until = _extent_of(local)
                spans.setdefault(where, []).append((at, until))
    for found in spans.values():
        found.sort()
    inside = set()
    for i, (name, local) in enumerate(zip(entries.names, entries.locals)):
        if name not in of_objects or local is None or isinstance(local, Array):
            continue
        if entries.addresses[i] == 0:
            continue
        where, at, until = _extent_of(local)
        all_of = spans.get(where, [])
        place = bisect.bisect_left(all_of, (until, 0))
        # Weights lie beside each other: the last that begins before it ends is the one.
        if place and all_of[place - 1][1] > at:
            inside.add(i)
    return inside


def _same_bits(held: Any, copy: Any) -> bool:
    """Whether a tensor, or an array, has the numbers of a dense copy."""
    now, n_bytes = host_copy(held), copy.nbytes
    return digest_at(now.data_ptr(), n_bytes) == digest_at(copy.data_ptr(), n_bytes)
