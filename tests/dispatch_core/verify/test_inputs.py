"""Ordinals of positions that lines of a trace show."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dispatch_core.verify.inputs import Entries

STORED = [(5, 0), (5, 1), (5, 3), (7, 0), (7, 1)]


@pytest.fixture
def entries() -> Entries:
    ledgers, ids = zip(*STORED, strict=True)
    return Entries(pa.table({"ledger_id": ledgers, "entry_id": ids}))


@pytest.mark.parametrize(
    ("position", "ordinal"),
    [
        ((5, -1), -1),
        ((5, 1), 1),
        ((5, 2), 1),  # an entry that the log does not have
        ((7, -1), 2),
        ((7, 1), 4),
        ((6, 4), 2),  # nothing is known of this ledger
        ((4, 9), -1),  # nor of what is in front of the log
    ],
)
def test_a_position_stands_for_the_entries_in_front_of_it(
    entries: Entries, position: tuple[int, int], ordinal: int
) -> None:
    assert entries.last_up_to(*position) == ordinal


@pytest.mark.parametrize("position", [(5, 4), (5, 99), (7, 2), (8, 0)])
def test_a_position_that_was_never_stored_is_that_of_no_entry(
    entries: Entries, position: tuple[int, int]
) -> None:
    assert entries.last_up_to(*position) == len(STORED)


def test_what_stands_in_front_of_dropped_entries_is_that_of_no_entry(entries: Entries) -> None:
    entries.drop(2)
    assert [entries.last_up_to(*position) for position in ((5, 0), (5, 1), (5, 3), (5, 4))] == [-2, -1, 0, 3]
