"""Entries that were never sent against plain sets of positions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.arrays.columns import Ints
from dispatch_core.audit.unsent_entries import Unfinished, UnsentEntries
from dispatch_core.recording.checkpoint import Checkpoint

Position = tuple[int, int]

#: Entries behind the last line that were published later are not counted.
UNTIL_US = 122
_POSITIONS = st.lists(st.tuples(st.integers(1, 3), st.integers(-1, 6)), max_size=15)


def columns(positions: list[Position]) -> tuple[Ints, Ints]:
    return np.array([p[0] for p in positions], np.int64), np.array([p[1] for p in positions], np.int64)


def published(positions: list[Position]) -> tuple[Ints, Ints, Ints]:
    """Entry e of ledger l is published at 10 l + e."""
    return *columns(positions), np.array([10 * ledger + entry for ledger, entry in positions], np.int64)


@settings(max_examples=200, deadline=None)
@given(
    _POSITIONS, _POSITIONS, st.integers(0, 15), st.none() | st.tuples(st.integers(0, 3), st.integers(-1, 6))
)
def test_entries_are_counted_from_the_first_that_was_sent(
    stored: list[Position], sent: list[Position], cut: int, begin: Position | None
) -> None:
    unsent = UnsentEntries()
    unsent.stored(*published(stored))
    unsent.sent(*columns(sent[:cut]))
    unsent.sent(*columns(sent[cut:]))
    first = begin or min(sent, default=None)
    expected = {p for p in stored if first is not None and p >= first} - set(sent)
    assert unsent.count(begin) == len(expected)


@given(_POSITIONS, _POSITIONS)
def test_entries_come_batch_by_batch(stored: list[Position], behind: list[Position]) -> None:
    """Each batch is sent but for its last entry; what comes behind the last line is only counted."""
    unsent = UnsentEntries()
    left: set[Position] = set()
    ordered = sorted(set(stored))
    for start in range(0, len(ordered), 4):
        batch = ordered[start : start + 4]
        unsent.stored(*published(batch))
        unsent.sent(*columns(batch[:-1]))
        left.add(batch[-1])
    later = [(ledger + 10, entry) for ledger, entry in behind]
    unsent.stored_behind(*published(later), until_us=UNTIL_US)
    first = ordered[0] if len(ordered) > 1 else None
    expected = {p for p in (*left, *later) if first is not None and p >= first}
    early = {p for p in expected if p in left or 10 * p[0] + p[1] <= UNTIL_US}
    assert unsent.count() == len(early)
    assert unsent.count(unfinished=Unfinished(backlog=True)) == len(early & left)


@given(_POSITIONS, _POSITIONS, st.integers(0, 40), st.integers(0, 5))
def test_what_is_not_finished_is_not_counted(
    stored: list[Position], sent: list[Position], since_us: int, waiting: int
) -> None:
    unsent = UnsentEntries()
    unsent.stored(*published(stored))
    unsent.sent(*columns(sent))
    first = min(sent, default=None)
    left = {p for p in stored if first is not None and p >= first} - set(sent)
    early = sum(10 * ledger + entry <= since_us for ledger, entry in left)
    assert unsent.count(unfinished=Unfinished(since_us, waiting)) == max(0, early - waiting)


def test_what_the_first_checkpoint_names_was_sent_before() -> None:
    entries = np.arange(10)
    unsent = UnsentEntries()
    unsent.begin(
        Checkpoint(
            mark_delete=(5, 3),
            not_yet_acked=((5, 2),),
            ack_holes=((5, 5),),
            pending={1: ((5, 6), (5, 2)), 2: ((5, 40),)},
        )
    )
    unsent.stored(np.full(10, 5), entries, entries)
    unsent.sent(np.array([5, 5]), np.array([0, 9]))
    assert unsent.count() == 3  # 5:4, 5:7 and 5:8
