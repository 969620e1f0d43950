"""Begin of a subscription: the very first entry can be left out too, but the topic's past cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

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

SECOND_MS = 1000
#: The first line of these logs stands a second after midnight.
JOINED_MS = T0_US // 1000 + SECOND_MS


def log(first_sent: int, count: int) -> list[Event]:
    rest = range(first_sent, count)
    return numbered(
        [
            added(1),
            {"kind": "flow", "consumer": 1, "permits": 100},
            sent(1, *rest),
            ack(1, *rest),
            removed(1),
        ]
    )


def never_delivered(
    folder: Path, stored_ms: list[int], events: list[Event], *, doubt: str | None = None, **header: str
) -> list[str]:
    """Positions of the findings; ``doubt``: the reason for which all of them are uncertain."""
    stored = [message(entry, "k", publish_time_ms=time_ms) for entry, time_ms in enumerate(stored_ms)]
    audit = audit_whole(
        read(write(folder / "a" / "b", stored, events, format="pulsar-consumer-events", **header))
    )
    rows = [row for row in audit.anomalies.to_pylist() if row["kind"] == "never_delivered"]
    assert {row["reason"] for row in rows} <= {doubt}
    assert all(row["uncertain"] == (doubt is not None) for row in rows)
    return [position for row in rows for position in row["positions"]]


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover"])
def test_the_first_entries_that_were_stored_after_somebody_had_joined_can_be_left_out(
    tmp_path: Path, kind: str
) -> None:
    times = [JOINED_MS + 200 + at for at in range(4)]
    assert never_delivered(tmp_path, times, log(2, 4), subscription_type=kind) == ["5:0", "5:1"]


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover"])
@pytest.mark.parametrize("after_ms", [-60 * SECOND_MS, -2, 40])
def test_what_is_older_than_the_subscription_is_nobody_s_business(
    tmp_path: Path, kind: str, after_ms: int
) -> None:
    # Clocks may differ a little, so that what was stored just before the join may look later. The last entry is sent 5 ms
    # after its publish time, so they do not differ much.
    times = [JOINED_MS - 90 * SECOND_MS, JOINED_MS + after_ms, JOINED_MS + after_ms + 1, JOINED_MS + 1995]
    assert never_delivered(tmp_path, times, log(2, 4), subscription_type=kind) == []


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover"])
def test_what_a_clock_behind_puts_before_the_join_may_have_been_left_out(tmp_path: Path, kind: str) -> None:
    # All is sent 2 s after its publish time: the producer's clock may be 2 s behind.
    times = [JOINED_MS - 90 * SECOND_MS, JOINED_MS - 100, JOINED_MS + 10, JOINED_MS + 11]
    found = never_delivered(tmp_path, times, log(2, 4), doubt="clocks_differ", subscription_type=kind)
    assert found == ["5:1"]


def test_the_cursor_of_a_new_dispatcher_says_what_is_older(tmp_path: Path) -> None:
    checkpoint = {"kind": "checkpoint", "consumers": [], "mark_delete": "5:0", "ack_holes": []}
    unnumbered = [
        {name: value for name, value in line.items() if name not in ("seq", "t_us")} for line in log(2, 4)
    ]
    lines = numbered([checkpoint | {"read_position": "5:1"}, *unnumbered])
    # Whatever the clocks say: 5:0 is the topic's past, 5:1 was left out.
    for times in (
        [JOINED_MS + at for at in range(4)],
        [JOINED_MS - 3600 * SECOND_MS + at for at in range(4)],
    ):
        assert never_delivered(tmp_path / str(times[0]), times, lines) == ["5:1"]


def test_where_the_topic_has_no_past_the_first_entry_is_the_subscription_s(tmp_path: Path) -> None:
    times = [JOINED_MS, JOINED_MS + 1, JOINED_MS + 2]
    assert never_delivered(tmp_path, times, log(1, 3)) == ["5:0"]


def test_a_producer_whose_clock_is_ahead_proves_no_loss_and_hides_none(tmp_path: Path) -> None:
    hour_ms = 3600 * SECOND_MS
    times = [JOINED_MS - 500 + hour_ms + at for at in range(4)]
    assert never_delivered(tmp_path, times, log(2, 4), doubt="clocks_differ") == ["5:0", "5:1"]


def test_what_was_acknowledged_without_having_been_sent_was_left_out(tmp_path: Path) -> None:
    times = [JOINED_MS + 200 + at for at in range(4)]
    lines = numbered(
        [
            added(1),
            {"kind": "flow", "consumer": 1, "permits": 100},
            sent(1, 0, 1, 3),
            ack(1, 0, 1, 2, 3),
            removed(1),
        ]
    )
    assert never_delivered(tmp_path, times, lines) == ["5:2"]
    old = [JOINED_MS - 300, JOINED_MS - 200, JOINED_MS - 100, JOINED_MS + 200]
    assert never_delivered(tmp_path / "old", old, lines) == []


def test_a_clock_that_goes_back_makes_no_hole_older(tmp_path: Path) -> None:
    times = [JOINED_MS + 200 + at for at in range(4)]
    lines = log(0, 4)
    lines[3] = ack(1, 3) | {"seq": 4, "t_us": lines[3]["t_us"]}
    back_us = T0_US - 300_000_000
    lines[4:] = [ack(1, 0, 1, 2) | {"seq": 5, "t_us": back_us}, removed(1) | {"seq": 6, "t_us": back_us}]
    stored = [message(entry, "k", publish_time_ms=time_ms) for entry, time_ms in enumerate(times)]
    audit = audit_whole(read(write(tmp_path / "a" / "b", stored, lines, format="pulsar-consumer-events")))
    kinds = audit.anomalies["kind"].to_pylist()
    assert "clock_step" in kinds
    assert "ack_hole" not in kinds
