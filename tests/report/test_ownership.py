"""Shares of the hash space, blocked hashes and activity against plain counting."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.report.active import activity
from dispatch_core.report.blocked_hashes import MAX_MARKED, MAX_TIMES, blocked_hashes
from dispatch_core.report.hash_shares import MAX_OWNERS, hash_shares
from dispatch_core.report.pictures import pictures
from dispatch_core.report.ring import Change, owned_ranges, ring_of
from tests.report.tables import START_US, report, state, table

SPAN = START_US, START_US + 60_000_000
SECOND = 1_000_000


def ownership(*rows: tuple[str, int, int | None, int, int]) -> pa.Table:
    """Rows ``owner, from second, until second, first hash, last hash``."""
    return table(
        "ownership",
        *(
            {
                "consumer_name": name,
                "from_t_us": START_US + since * SECOND,
                "until_t_us": None if until is None else START_US + until * SECOND,
                "range_start": low,
                "range_end": high,
            }
            for name, since, until, low, high in rows
        ),
    )


@given(st.lists(st.lists(st.integers(0, 3), min_size=8, max_size=8), min_size=1, max_size=6))
def test_shares_and_moves_are_those_of_single_hashes(epochs: list[list[int]]) -> None:
    """Eight parts of ten hashes change owners every second; a row goes on while its owner stays."""
    rows = []
    for part in range(8):
        since = 0
        for epoch in range(1, len(epochs) + 1):
            if epoch == len(epochs) or epochs[epoch][part] != epochs[since][part]:
                rows.append((f"w{epochs[since][part]}", since, epoch, 10 * part, 10 * part + 9))
                since = epoch
    found = hash_shares(*owned_ranges(ownership(*rows), SPAN))
    for second, owners in enumerate(epochs):
        at = int(np.searchsorted(found.t_us, START_US + second * SECOND, "right")) - 1
        for number, name in enumerate(found.owners):
            assert found.share[number, at] == pytest.approx(owners.count(int(name[1:])) / 8)
    moves = {(move.t_us - START_US) // SECOND: move for move in found.moves}
    assert found.total_moves == len(moves)
    for second in range(1, len(epochs)):
        parts = [pair for pair in zip(epochs[second - 1], epochs[second], strict=True) if pair[0] != pair[1]]
        assert (second in moves) == bool(parts)
        if parts:
            assert moves[second].share == pytest.approx(len(parts) / 8)
            before, after, share = moves[second].pairs[0]
            most = max(map(parts.count, parts))
            assert share == pytest.approx(most / 8)
            assert parts.count((int(before[1:]), int(after[1:]))) == most


def test_owners_with_small_shares_are_one() -> None:
    rows = [(f"w{at:02}", 0, None, 100 * at, 100 * at + 99 - at) for at in range(MAX_OWNERS + 5)]
    found = hash_shares(*owned_ranges(ownership(*rows), SPAN))
    assert len(found.owners) == MAX_OWNERS
    assert found.owners[0] == "w00"
    assert found.owners[-1] == "6 others"
    owned = sum(100 - at for at in range(MAX_OWNERS + 5))
    assert found.share[:, 0].sum() == pytest.approx(owned / (100 * (MAX_OWNERS + 4) + 76))


def blocked(*rows: dict[str, Any]) -> pa.Table:
    return table("blocked", *({"reason": "draining_hash", "consumer": 1, "holder": 2} | row for row in rows))


HOLDS = st.tuples(
    st.integers(0, 50), st.integers(1, 30), st.sampled_from(["draining_hash", "recently_joined"])
)


@given(st.lists(HOLDS, max_size=20))
def test_blocked_hashes_are_counted_at_every_time(holds: list[tuple[int, int, str]]) -> None:
    rows = [
        {
            "hash": at,
            "reason": reason,
            "from_t_us": START_US + since * SECOND,
            "until_t_us": START_US + (since + length) * SECOND,
        }
        for at, (since, length, reason) in enumerate(holds)
    ]
    found = blocked_hashes(blocked(*rows), SPAN)
    assert found.total == len(holds)
    for second in range(60):
        at = int(np.searchsorted(found.t_us, START_US + second * SECOND, "right")) - 1
        for number, reason in enumerate(found.reasons):
            expected = sum(why == reason and since <= second < since + length for since, length, why in holds)
            assert (found.counts[number, at] if at >= 0 else 0) == expected


def test_holds_of_whole_consumers_are_not_of_hashes_and_many_are_bounded() -> None:
    us = {"from_t_us": START_US, "until_t_us": None}
    found = blocked_hashes(
        blocked(us | {"hash": 1, "reason": "no_permits"}, us | {"hash": None}, us | {"hash": 3}), SPAN
    )
    assert [(hold.hash, hold.until_us, hold.waiting, hold.holder) for hold in found.holds] == [
        (3, SPAN[1], "consumer 1", "consumer 2")
    ]
    many = blocked_hashes(
        blocked(
            *(
                {
                    "hash": at,
                    "from_t_us": START_US + at,
                    "until_t_us": START_US + 50_000 + at,
                    "message_ms": at,
                }
                for at in range(2_000)
            )
        ),
        SPAN,
    )
    assert (many.total, len(many.holds), many.t_us.size) == (2_000, MAX_MARKED, MAX_TIMES)
    assert min(hold.hash for hold in many.holds) == 500, "those with the most message-seconds are marked"
    assert many.counts.max() == 2_000


def test_who_was_active_and_who_only_connected() -> None:
    rows = ownership(("a", 0, 10, 0, 65_535), ("b", 12, 20, 0, 65_535), ("a", 20, 50, 0, 65_535))
    changes = [
        Change(START_US, True, "a", 1),
        Change(START_US + 5 * SECOND, True, "b", 2),
        Change(START_US + 6 * SECOND, True, "b", 3),
        Change(START_US + 20 * SECOND, False, "b", 4),
        Change(START_US + 30 * SECOND, False, "b", 5),
        Change(START_US + 40 * SECOND, True, "c", 6),
        # The topic is loaded anew: nobody left, and nobody is connected any more.
        Change(START_US + 55 * SECOND, True, "a", 1, incarnation=1),
    ]
    ring = ring_of(*owned_ranges(rows, SPAN), changes, SPAN)
    found = activity(ring, changes, SPAN)
    assert found.consumers == ("a", "b", "c")
    assert found.active_us == (40 * SECOND, 8 * SECOND, 0)
    assert (found.changes, found.nobody_us, found.left_out) == (2, 2 * SECOND, 0)
    seconds = [
        (name, (since - START_US) // SECOND, (until - START_US) // SECOND)
        for name, since, until in found.connected
    ]
    assert seconds == [("a", 0, 55), ("b", 5, 30), ("c", 40, 55), ("a", 55, 60)]


def names_of(data: Any) -> list[str]:
    return [picture.name for picture in pictures(data)]


def test_the_picture_of_ownership_fits_the_subscription() -> None:
    few = ownership(("a", 0, 10, 0, 30_000), ("b", 0, 10, 30_001, 65_535))
    assert names_of(report({"ownership": few}))[0] == "ring"
    many = ownership(*((f"w{at % 2}", 0, 10, 100 * at, 100 * at + 99) for at in range(40)))
    assert names_of(report({"ownership": many}))[:2] == ["shares", "ring"]
    shown = pictures(report({"ownership": few, "dispatcher_state": state(subscription_type="Failover")}))
    assert [picture.name for picture in shown] == ["active", "flow", "blocked", "balance"]
    assert "a was active longest: 10.0 s" in shown[0].caption.replace("10 s", "10.0 s")
    shared = pictures(report({"dispatcher_state": state(subscription_type="Shared")}))[0]
    assert (shared.figure, "own no hashes" in shared.caption) == (None, True)


def test_ranges_for_the_page_s_script_are_those_of_the_table() -> None:
    many = ownership(*((f"w{at % 2}", at % 3, 10 + at, 100 * at, 100 * at + 99) for at in range(40)))
    drawn = pictures(report({"ownership": many}))[1].ranges
    assert drawn is not None
    ranges = json.loads(drawn)
    found = {
        (ranges["labels"][owner], ranges["times"][since], ranges["times"][until], low, high)
        for owner, since, until, low, high in zip(
            *(ranges[column] for column in ("owner", "from", "until", "low", "high")), strict=True
        )
    }
    assert found == {
        (f"w{at % 2}", START_US / 1000 + at % 3 * 1000, START_US / 1000 + (10 + at) * 1000, 100 * at, 100 * at + 100)
        for at in range(40)
    }  # fmt: skip
