"""Permits that checkpoints in the middle of a log without a trace give, against its flows and deliveries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.permits.checkpoint_ledger import CheckpointLedger, shows_permits
from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    Event,
    ack,
    added,
    message,
    numbered,
    read,
    removed,
    sent,
    write,
)

MESSAGES = [message(entry, f"key-{entry % 7}") for entry in range(60)]


def flow(consumer: int, permits: int, *, blocked: bool | None = False) -> Event:
    line = {"kind": "flow", "consumer": consumer, "permits": permits}
    return line if blocked is None else line | {"blocked": blocked}


def shown(**permits: int) -> Event:
    """A checkpoint; ``c1=5``: consumer 1 has five permits."""
    consumers = [{"consumer": int(name[1:]), "permits": count} for name, count in permits.items()]
    return {"kind": "checkpoint", "consumers": consumers}


def seconds(*events: Event | None) -> list[Event]:
    """Events two seconds apart; ``None`` takes the time of one."""
    return [
        {"t_us": T0_US + at * 2_000_000} | event
        for at, event in enumerate(events, start=1)
        if event is not None
    ]


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    def run(*events: Event, **options: Any) -> list[tuple[int, int, list[int]]]:
        log = read(write(tmp_path / "a" / "b", MESSAGES, numbered(seconds(*events))))
        assert shows_permits(log.events)
        made = CheckpointLedger(**{"has_parking": True, "keeps_indexes": False} | options)
        made.take(log.events)
        made.finish()
        return [
            (count.account.consumer, count.shown.excess, [step.seq for step in count.shown.steps])
            for count in made.off_for_good()
            if count.account is not None
        ]

    return run


JOIN = (added(1), flow(1, 20), sent(1, 0, 1, 2))  # 17 permits are left


def test_permits_as_the_ledger_has_them_are_no_finding(ledger: Any) -> None:
    assert ledger(*JOIN, shown(c1=17), sent(1, 3), shown(c1=16), flow(1, 4), shown(c1=20)) == []


@pytest.mark.parametrize("by", [-1, 1])
def test_permits_that_two_checkpoints_show_off_are_found_at_the_first(ledger: Any, by: int) -> None:
    right = (*JOIN, shown(c1=17), sent(1, 3))
    assert ledger(*right, shown(c1=16 + by), sent(1, 4), shown(c1=15 + by)) == [(1, by, [6])]
    assert ledger(*right, shown(c1=16 + by), sent(1, 4), shown(c1=15)) == []
    assert ledger(*right, shown(c1=16 + by)) == []


def test_what_is_under_way_at_a_checkpoint_may_count_or_not(ledger: Any) -> None:
    near = {"t_us": T0_US + 8_000_000 - 300_000}
    late = {"t_us": T0_US + 8_000_000 + 300_000}
    for lines in (
        [*JOIN, sent(1, 3) | near, shown(c1=17) | {"t_us": T0_US + 8_000_000}],
        [*JOIN, shown(c1=16) | {"t_us": T0_US + 8_000_000}, sent(1, 3) | late],
        [*JOIN, shown(c1=22) | {"t_us": T0_US + 8_000_000}, flow(1, 5) | late],
    ):
        assert ledger(*lines, shown(c1=17), shown(c1=17)) in ([], [(1, 1, [6])], [(1, -5, [6])])
        assert ledger(*lines) == []


def test_permits_that_may_be_parked_are_not_missing(ledger: Any) -> None:
    parked = (*JOIN, flow(1, 5, blocked=None), shown(c1=17), shown(c1=17))
    assert ledger(*parked) == []
    assert ledger(*parked, has_parking=False) == [(1, -5, [5])]
    assert ledger(*JOIN, flow(1, 5), shown(c1=17), shown(c1=17)) == [(1, -5, [5])]


def test_messages_of_a_batch_may_have_been_acknowledged_before(ledger: Any) -> None:
    batch = sent(1, 3) | {"batch_sizes": [5]}
    again = (*JOIN, batch, shown(c1=15), shown(c1=15))
    assert ledger(*again, keeps_indexes=None) == []
    assert ledger(*again) == [(1, 3, [5])]


def test_a_consumer_that_joined_before_the_log_is_taken_as_it_is_shown(ledger: Any) -> None:
    begun = (shown(c1=9), flow(1, 1), shown(c1=10), sent(1, 0), shown(c1=9))
    assert ledger(*begun) == []


def test_behind_lost_lines_nothing_is_known(ledger: Any) -> None:
    lines = [*JOIN, {"kind": "gap", "gap_from_seq": 4, "from": 4, "to": 9, "seq": 4}, sent(1, 3)]
    assert ledger(*lines, shown(c1=3) | {"seq": 11}, shown(c1=3) | {"seq": 12}) == []


def test_a_log_whose_checkpoints_show_a_leak_has_the_finding(tmp_path: Path) -> None:
    lost = [shown(c1=15), sent(1, 4), ack(1, 0, 1, 2, 3, 4), shown(c1=14), removed(1)]
    lines = numbered(seconds(*JOIN, shown(c1=17), sent(1, 3), *lost))
    log = read(write(tmp_path / "a" / "b", MESSAGES, lines, subscription_type="Failover"))
    found = [row for row in audit_whole(log).anomalies.to_pylist() if row["kind"].startswith("permit")]
    (finding,) = found
    assert (finding["kind"], finding["consumers"], finding["seqs"]) == ("permit_leak", [1], [6, 9])
    assert not finding["uncertain"]
    assert finding["explanation"].startswith(
        "worker-1 had 1 permit too few for good, from seq 6 at 00:00:12.000 on (at seq 4 it was right): its client granted "
        "20 and was sent 5 messages, so it should have 15, and the broker counts 1 less"
    )
