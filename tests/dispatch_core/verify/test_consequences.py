"""Deliveries that differ only as a consequence of another finding are not reported again."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch_core.verify.consequences import (
    GOES_BACK,
    RECENTLY_JOINED,
    SKIPS,
    Consequences,
    holders_of_holes,
    unfinished,
)


def finding(
    kind: str, positions: list[str], seqs: list[int], consumers: tuple[int, ...] = ()
) -> dict[str, Any]:
    return {"kind": kind, "positions": positions, "seqs": seqs, "consumers": list(consumers), "cause": None}


@pytest.mark.parametrize(
    ("entry", "seq", "explained"),
    [(8, 20, True), (8, 4, False), (8, 31, False), (7, 20, False), (6, 20, False)],
)
def test_an_entry_that_is_never_acknowledged_holds_recently_joined_consumers_back(
    entry: int, seq: int, explained: bool
) -> None:
    consequences = Consequences([finding("ack_hole", ["5:7"], [5, 30])])
    assert consequences.explain((5, entry), seq, RECENTLY_JOINED) is explained
    assert not consequences.explain((5, entry), seq, "the key's hash belongs to another consumer")


@pytest.mark.parametrize("kind", ["out_of_order", "split_key", "double_outstanding", "duplicate_after_ack"])
def test_recently_joined_consumers_wait_for_entries_sent_out_of_turn_from_then_on(kind: str) -> None:
    wrong = finding(kind, ["5:3", "5:9"], [5, 8])
    consequences = Consequences([wrong])
    assert not consequences.explain((5, 4), 4, RECENTLY_JOINED)
    assert consequences.explain((5, 4), 9, RECENTLY_JOINED)
    # what may have been read by then reaches from the first of the entries on, and not back
    assert not consequences.explain((5, 3), 9, RECENTLY_JOINED)
    assert not consequences.explain((5, 2), 9, RECENTLY_JOINED)


def test_deliveries_that_the_rule_allows_have_no_consequences() -> None:
    allowed = [
        finding(kind, ["5:3"], [5, 8]) | {"cause": "recently_joined"}
        for kind in ("out_of_order", "split_key")
    ]
    assert not Consequences(allowed).explain((5, 4), 9, RECENTLY_JOINED)
    assert Consequences([*allowed, finding("split_key", ["5:3"], [5, 8])]).explain((5, 4), 9, RECENTLY_JOINED)


def test_a_clock_that_went_back_is_no_fault_of_dispatch_that_others_follow_from() -> None:
    assert not Consequences([finding("clock_step", [], [5, 6])]).explain((5, 3), 9, RECENTLY_JOINED)


def test_what_was_left_out_is_gone_over_by_whatever_comes_later() -> None:
    consequences = Consequences([finding("never_delivered", ["5:7"], [1, 30])])
    assert consequences.explain((5, 8), 9, SKIPS)
    assert not consequences.explain((5, 6), 9, SKIPS)
    assert not Consequences([finding("log_gap", [], [3])]).explain((5, 8), 9, SKIPS)


def test_a_decision_about_an_entry_that_a_finding_says_was_left_out_is_the_same_fault() -> None:
    found = [finding("never_delivered", ["5:7", "5:9"], [1, 30]), finding("split_key", ["5:3"], [4])]
    assert unfinished(found, ["5:9", "5:11"])
    assert not unfinished(found, ["5:3"])
    assert holders_of_holes([*found, finding("ack_hole", ["5:2"], [6, 30], (2,))]) == {2: 6}


def test_one_entry_out_of_turn_makes_one_consumer_s_cursor_go_on_and_back_once() -> None:
    swapped = finding("out_of_order", ["5:3", "5:9"], [4, 8])
    consequences = Consequences([swapped])
    assert consequences.explain((5, 4), 5, GOES_BACK)
    assert not consequences.explain((5, 10), 5, GOES_BACK)
    assert consequences.explain((5, 4), 5, SKIPS)
    assert not consequences.explain((5, 2), 5, SKIPS)
    handed_over = Consequences([swapped | {"cause": "rewind"}])
    assert not handed_over.explain((5, 4), 5, GOES_BACK)
    assert Consequences([], [((5, 3), 4)]).explain((5, 4), 5, SKIPS)
