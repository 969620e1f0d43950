"""The permit ledger on logs of a few lines: what it counts, what it takes for off, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.permits.ledger import ACKED_INDEXES, CONSUMER_REMOVED, OffForGood, PermitLedger
from tests.dispatch_core.audit.small_logs import Event, ack, added, message, numbered, read, removed, write

KEYS = [message(entry, "order-17", num_messages=4) for entry in range(9)]


def flow(consumer: int, permits: int, after: int | None, *, blocked: bool = False) -> list[Event]:
    """A flow, with the line at which it is counted unless ``after`` is ``None``."""
    lines = [{"kind": "flow", "consumer": consumer, "permits": permits, "blocked": blocked}]
    counted = {
        "kind": "flow_counted", "consumer": consumer, "permits_after": after, "blocked_after": blocked,
    }  # fmt: skip
    return lines if after is None else [*lines, counted]


def applied(consumer: int, permits: int) -> Event:
    return {"kind": "flow_applied", "consumer": consumer, "permits": permits}


def send(
    consumer: int, entry: int, before: int, after: int, messages: int = 4, *, written: bool = False
) -> list[Event]:
    return [
        {
            "kind": "sent",
            "consumer": consumer,
            "positions": [f"5:{entry}"],
            "batch_sizes": [messages],
            "permits_before": before,
        },
        {"kind": "send_returned", "consumer": consumer, "written": written, "permits_after": after},
        {"kind": "round_end", "retry": False, "in_replay": 0, "look_ahead": False, "has_more": True},
    ]


def attempt(total: int, *permits: tuple[int, int]) -> list[Event]:
    rows = [[consumer, max(count, 0), count, 0] for consumer, count in permits]
    end = {"kind": "read_attempt_end", "total_permits": total, "usable": rows}
    return [{"kind": "read_attempt"}, end | {"pending_read": False, "pending_replay": False}]


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    def run(*events: Event | list[Event], single_active: bool = False, numbers: bool = True) -> PermitLedger:
        lines = [line for event in events for line in (event if isinstance(event, list) else [event])]
        folder = write(tmp_path / "a" / "b", KEYS, numbered(lines) if numbers else lines)
        made = PermitLedger(keeps_indexes=True, single_active=single_active)
        made.take(read(folder).events)
        return made

    return run


def off(made: PermitLedger) -> list[tuple[int | None, int, list[int]]]:
    """Consumer (``None`` = the total), number of permits and lines of each count that is off."""
    return [
        (
            None if count.account is None else count.account.consumer,
            count.shown.excess,
            [step.seq for step in count.shown.steps],
        )
        for count in made.off_for_good()
    ]


JOIN = [added(1), *flow(1, 10, 10), applied(1, 10)]  # lines 1 to 4


def test_an_account_has_what_was_granted_used_and_returned(ledger: Any) -> None:
    partly = ack(1, 0, sets=[[0b1000]])
    made = ledger(JOIN, send(1, 0, 10, 6), partly, send(1, 0, 6, 5), flow(1, 8, 13), applied(1, 8))
    account = made.account(1)
    assert (account.granted, account.messages, account.returned, account.used) == (18, 8, 3, 5)
    assert (account.first_grant, account.applied, account.expected) == (10, 18, 13)
    assert account.client_expects == account.expected - account.returned
    assert off(made) == []


@pytest.mark.parametrize("by", [-1, 1])
def test_permits_that_stay_off_are_found_at_their_first_line(ledger: Any, by: int) -> None:
    made = ledger(JOIN, send(1, 0, 10, 6), send(1, 1, 6 + by, 2 + by), attempt(2, (1, 2 + by)))
    assert off(made) == [(1, by, [8])]


def test_a_value_that_is_off_in_one_line_alone_is_no_finding(ledger: Any) -> None:
    assert off(ledger(JOIN, send(1, 0, 10, 5), send(1, 1, 6, 2))) == []
    assert off(ledger(JOIN, send(1, 0, 10, 6), send(1, 1, 6, 1))) == []


def test_permits_that_come_back_were_not_off_for_good(ledger: Any) -> None:
    lost = [*send(1, 0, 10, 5), *send(1, 1, 5, 1)]
    assert off(ledger(JOIN, lost)) == [(1, -1, [6])]
    assert off(ledger(JOIN, lost, send(1, 2, 2, -2), send(1, 3, -2, -6))) == []


def test_a_flow_between_its_two_lines_may_count_or_not(ledger: Any) -> None:
    arrived = flow(1, 5, None)
    counted = {"kind": "flow_counted", "consumer": 1, "permits_after": 7, "blocked_after": False}
    assert off(ledger(JOIN, arrived, send(1, 0, 10, 6), send(1, 1, 6, 2), [counted])) == []
    assert off(ledger(JOIN, arrived, send(1, 0, 15, 11), send(1, 1, 11, 7), [counted])) == []
    assert off(ledger(JOIN, flow(1, 5, 15), send(1, 0, 14, 10), send(1, 1, 10, 6))) == [(1, -1, [7])]


def test_parked_permits_count_when_a_later_flow_is_not_parked(ledger: Any) -> None:
    parked = flow(1, 5, 6, blocked=True)
    unparked = [*flow(1, 1, 8), *send(1, 2, 8, 4), *send(1, 3, 4, 0)]
    assert off(ledger(JOIN, send(1, 0, 10, 6), parked, send(1, 1, 6, 2), unparked)) == []
    lost = [*flow(1, 1, 3), *send(1, 2, 3, -1), *send(1, 3, -1, -5)]
    made = ledger(JOIN, send(1, 0, 10, 6), parked, send(1, 1, 6, 2), lost)
    assert [found[:2] for found in off(made)] == [(1, -5)]


def test_permits_of_a_consumer_that_has_left_are_reported_until_they_are_forgotten(ledger: Any) -> None:
    made = ledger(JOIN, send(1, 0, 10, 5), send(1, 1, 5, 1), removed(1), added(2), flow(2, 4, 4))
    assert off(made) == [(1, -1, [6])]
    assert [count.ended_us is None for count in made.off_for_good()] == [False]
    made.forget_ended()
    assert off(made) == []


def test_an_entry_that_is_acknowledged_in_part_costs_what_is_left(ledger: Any) -> None:
    partly = ack(1, 0, sets=[[0b1100]])
    again = [*send(1, 0, 6, 4), *send(1, 0, 4, 2)]
    assert off(ledger(JOIN, send(1, 0, 10, 6), partly, again)) == []
    whole = [partly, ack(1, 0)]
    assert off(ledger(JOIN, send(1, 0, 10, 6), whole, send(1, 0, 6, 2), send(1, 1, 2, -2))) == []


def totals(written: bool) -> list[Event]:
    """A batch of four, two of them acknowledged, is sent again; then the total is shown twice."""
    fallen = 2 if written else 4
    return [
        *JOIN, *send(1, 0, 10, 6), *attempt(6, (1, 6)), ack(1, 0, sets=[[0b1100]]),
        *send(1, 0, 6, 4, written=written), *attempt(fallen, (1, 4)), *attempt(fallen, (1, 4)),
    ]  # fmt: skip


def test_a_total_that_falls_by_acknowledged_messages_drifts(ledger: Any) -> None:
    assert off(ledger(totals(written=False))) == []
    made = ledger(totals(written=True))
    assert off(made) == [(None, -2, [15])]
    (drift,) = made.off_for_good()
    (note,) = drift.shown.steps[0].notes
    assert (note.cause, note.seqs, note.consumer, note.permits) == (ACKED_INDEXES, [11, 12], 1, 2)
    assert (note.position, note.messages) == ((5, 0), 4)


def two() -> list[Event]:
    """Two consumers with ten permits each."""
    return [*JOIN, added(2), *flow(2, 10, 10), applied(2, 10), *attempt(20, (1, 10), (2, 10))]


def test_a_flow_that_is_dropped_with_its_consumer_makes_the_total_drift(ledger: Any) -> None:
    """The consumer has counted 5 permits that have not reached the total; its removal takes all 15 from it (#26416)."""
    left = [*flow(2, 5, 15), removed(2), applied(2, 5), *attempt(5, (1, 10)), *attempt(5, (1, 10))]
    made = ledger(two(), left)
    assert off(made) == [(None, -5, [16])]
    (drift,) = made.off_for_good()
    (note,) = drift.shown.steps[0].notes
    assert (note.cause, note.seqs, note.consumer) == (CONSUMER_REMOVED, [13], 2)
    assert (note.permits, note.on_their_way) == (15, 5)
    fixed = [*flow(2, 5, 15), removed(2), applied(2, 5), *attempt(10, (1, 10)), *attempt(10, (1, 10))]
    assert off(ledger(two(), fixed)) == []


def test_the_total_is_right_again_when_the_last_consumer_has_left(ledger: Any) -> None:
    lost = [removed(2), *attempt(5, (1, 10)), *attempt(5, (1, 10))]
    again = [removed(1), added(3), *flow(3, 7, 7), applied(3, 7), *attempt(7, (3, 7)), *attempt(7, (3, 7))]
    made = ledger(two(), lost, again)
    assert off(made) == [(None, -5, [13])]
    assert [count.ended_us is None for count in made.off_for_good()] == [False]


def test_a_flow_on_its_way_to_the_total_is_no_drift(ledger: Any) -> None:
    waits = [*flow(2, 5, 15), *attempt(20, (1, 10), (2, 15)), *attempt(20, (1, 10), (2, 15))]
    assert off(ledger(two(), waits, applied(2, 5), attempt(25, (1, 10), (2, 15)))) == []


def test_a_total_of_a_few_too_many_is_found(ledger: Any) -> None:
    more = [*attempt(21, (1, 10), (2, 10)), *attempt(21, (1, 10), (2, 10))]
    assert off(ledger(two(), more)) == [(None, 1, [12])]


def test_behind_lost_lines_counts_begin_anew(ledger: Any) -> None:
    lines = numbered([*JOIN, *send(1, 0, 10, 6), *send(1, 1, 4, 0), *send(1, 2, 0, -4), *send(1, 3, -4, -8)])
    assert off(ledger(lines)) == [(1, -2, [8])]
    for line in lines[7:]:
        line["seq"] += 3
    assert off(ledger(lines, numbers=False)) == []
    for line in lines[13:]:
        for name in ("permits_before", "permits_after"):
            if name in line:
                line[name] -= 1
    made = ledger(lines, numbers=False)
    assert off(made) == [(1, -1, [17])]
    assert [count.shown.is_whole for count in made.off_for_good()] == [False]


def test_entries_refused_at_the_last_moment_are_charged_and_make_no_finding(ledger: Any) -> None:
    refused = {"kind": "pending_ack_refused", "consumer": 1, "positions": ["5:1"]}
    begun = [*JOIN, *send(1, 0, 10, 6), refused, *send(1, 2, 6, -2)]
    assert off(ledger(begun, send(1, 3, -2, -6))) == []
    made = ledger(begun, send(1, 3, -2, -6), send(1, 4, -7, -11))
    assert off(made) == [(1, -1, [15])]
    assert [count.shown.is_whole for count in made.off_for_good()] == [True]


def test_failover_has_no_total_and_parks_nothing(ledger: Any) -> None:
    reached = {"kind": "flow_applied", "consumer": 1}
    joined = [added(1), *flow(1, 10, 10, blocked=True), reached]
    assert off(ledger(joined, send(1, 0, 10, 6), send(1, 1, 6, 2), single_active=True)) == []
    made = ledger(joined, send(1, 0, 9, 5), send(1, 1, 5, 1), single_active=True)
    assert off(made) == [(1, -1, [5])]


def test_batches_of_lines_give_the_same_as_all_at_once(tmp_path: Path) -> None:
    lines = numbered([*totals(written=True), *two()[5:]])
    events = read(write(tmp_path / "a" / "b", KEYS, lines)).events
    whole = PermitLedger(keeps_indexes=True, single_active=False)
    whole.take(events)
    for size in (1, 2, 5):
        parts = PermitLedger(keeps_indexes=True, single_active=False)
        for first in range(0, events.num_rows, size):
            parts.take(events.slice(first, size))
        assert _told(parts) == _told(whole) != []


def _told(made: PermitLedger) -> list[OffForGood]:
    return list(made.off_for_good())
