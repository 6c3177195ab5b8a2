"""What is told of the tensors of a state: boxes once, names one behind the other."""

from __future__ import annotations

import pytest

import libdcp
from libdcp._columns import Columns, columns_of
from libdcp._entries import Box, Entries

WHOLE = (4, 6)


def entries_of(*rows: tuple[str, str, Box], param: str = "") -> Entries:
    """Tensors with these names, roles and boxes."""
    made = Entries()
    for name, role, box in rows:
        made.add(name, param or name, role, box, None)
    return made


def part(offset: tuple[int, ...], size: tuple[int, ...], dtype: str = "float32") -> Box:
    """A box of a tensor of 4 x 6."""
    return Box.of(dtype, WHOLE, offset, size)


def test_boxes_are_told_once():
    """Each tensor has the number of its box."""
    upper, lower = part((0, 0), (2, 6)), part((2, 0), (2, 6))
    told = Columns(
        entries_of(("a", "model", upper), ("b", "optim", lower), ("ü", "model", upper))
    )
    assert told.names == "a\0b\0ü\0".encode()
    assert told.names is told.params
    assert list(told.numbers) == [0, 1, 0]
    assert list(told.offsets) == [0, 0, 2, 0]
    assert list(told.sizes) == [2, 6, 2, 6]
    assert list(told.shapes) == [4, 6, 4, 6]
    assert told.roles[0] == told.roles[2] != told.roles[1]


def test_nothing_is_told():
    """A rank may have no tensors."""
    told = Columns(Entries())
    assert (told.n, told.names, told.roles, list(told.numbers)) == (0, b"", b"", [])


def test_equal_boxes_that_are_two():
    """Boxes are known by identity; two that are equal are told twice, and agree."""
    one = Box("float32", WHOLE, (0, 0), WHOLE)
    other = Box("float32", WHOLE, (0, 0), WHOLE)
    twice = Columns(entries_of(("a", "model", one), ("b", "model", other)))
    once = Columns(entries_of(("a", "model", one), ("b", "model", one)))
    assert list(twice.numbers) == [0, 1]
    assert twice.digest == once.digest


def test_ranks_agree_that_hold_other_boxes():
    """Cut in rows, in columns, or empty on both: only the tensors themselves count."""
    rows = (("a", "model", part((0, 0), (2, 6))), ("b", "model", part((0, 0), (4, 3))))
    nothing = Box.none("float32", WHOLE)
    empty = (("a", "model", nothing), ("b", "model", nothing))
    assert Columns(entries_of(*rows)).digest == Columns(entries_of(*empty)).digest


@pytest.mark.parametrize(
    "other",
    [
        ("b", "model", part((0, 0), WHOLE)),
        ("a", "optim", part((0, 0), WHOLE)),
        ("a", "model", part((0, 0), WHOLE, "bfloat16")),
        ("a", "model", Box.whole("float32", (6, 4))),
        ("a", "model", Box.whole("float32", (24,))),
    ],
)
def test_ranks_differ(other: tuple[str, str, Box]):
    """A name, a role, a dtype or a shape is another."""
    same = ("a", "model", part((0, 0), WHOLE))
    last = ("z", "model", part((0, 0), WHOLE))
    assert (
        Columns(entries_of(same, last)).digest != Columns(entries_of(other, last)).digest
    )


def test_ranks_differ_in_weights_and_what_goes_instead():
    """The weight that a moment belongs to counts, and what a step may have instead."""
    row = ("a", "exp_avg", part((0, 0), WHOLE))
    plain, other = entries_of(row), entries_of(row, param="b")
    tied = entries_of(row)
    tied.instead["a"] = ("b",)
    digests = {Columns(each).digest for each in (plain, other, tied)}
    assert len(digests) == 3


def test_known_for_the_next():
    """The same state is not looked through again; any change is seen."""
    row = ("a", "model", part((0, 0), WHOLE))
    known = columns_of(entries_of(row))
    assert columns_of(entries_of(row)) is known
    for other in (
        entries_of(("b", *row[1:])),
        entries_of(("a", "optim", row[2])),
        entries_of(("a", "model", part((0, 0), (2, 6)))),
        entries_of(row, param="b"),
        entries_of(row, row),
    ):
        columns_of(entries_of(row))
        assert columns_of(other) is not known
        assert columns_of(other).tell_of(other)


@pytest.mark.parametrize("name", ["a\0b", "\0", "half \ud800"])
def test_names_that_are_none(name: str):
    """A NUL would make two names of one."""
    box = part((0, 0), WHOLE)
    with pytest.raises(libdcp.UsageError, match="is no name"):
        Columns(entries_of(("a", "model", box), (name, "model", box)))
    assert Columns(entries_of(("what?", "model", box))).names == b"what?\0"
