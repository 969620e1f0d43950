"""Stalls, losses and holes: a log that has each, and one that almost has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.catalogue import LIMIT_REASONS
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits.findings import KIND_OF, but_for
from dispatch_core.audit.waits.reasons import REASONS
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.replay_log import replay
from dispatch_core.times import from_micros
from tests.dispatch_core.audit.small_logs import (
    MIDNIGHT,
    T0_US,
    Event,
    ack,
    added,
    flow,
    message,
    read,
    redeliver,
    removed,
    sent,
    write,
)

SECOND = 1_000_000


def at(seconds: float, event: Event) -> Event:
    return event | {"t_us": T0_US + int(seconds * SECOND)}


def log_of(folder: Path, keys: list[str | None], events: list[Event], **fields: Any) -> DispatcherLog:
    """``keys`` of the entries 5:0, 5:1, …, all stored at midnight."""
    messages = [message(entry, key, publish_time_ms=T0_US // 1000) for entry, key in enumerate(keys)]
    lines = [{**event, "seq": seq} for seq, event in enumerate(events, 1)]
    return read(write(folder, messages, lines, **fields))


def found(log: DispatcherLog, kind: str | None = None, **options: Any) -> list[dict[str, Any]]:
    """Findings of stalls, losses and holes (of one kind) of the whole log."""
    options = {
        "closed": True,
        "limits": Limits(),
        "interval_end": from_micros(T0_US + 3600 * SECOND),
        **options,
    }
    rows = replay(log, interval_start=MIDNIGHT, **options)["anomalies"].to_pylist()
    kinds = {"stuck_key", "stuck_consumer", "stuck_subscription", "never_delivered", "ack_hole"}
    return [row for row in rows if row["kind"] in kinds and kind in (None, row["kind"])]


JOINED = [at(1, added(1)), at(1, flow(1, 100))]


def test_every_reason_has_a_kind() -> None:
    assert set(KIND_OF) == set(REASONS) - {None, *LIMIT_REASONS}
    assert set(KIND_OF.values()) == {"stuck_key", "stuck_consumer", "stuck_subscription"}


@pytest.mark.parametrize(("seconds", "findings"), [(11.5, 1), (9.5, 0)])
def test_a_consumer_without_permits_is_stuck_after_ten_seconds(
    tmp_path: Path, seconds: float, findings: int
) -> None:
    events = [
        at(1, added(1)),
        at(1, flow(1, 1)),
        at(1.1, sent(1, 0)),
        at(1.2, ack(1, 0)),
        at(1 + seconds, flow(1, 5)),
        at(1 + seconds, sent(1, 1, 2)),
        at(1.1 + seconds, ack(1, 1, 2)),
        at(2 + seconds, removed(1)),
    ]
    stalls = found(log_of(tmp_path, ["a", "b", "c"], events))
    assert [(row["kind"], row["reason"]) for row in stalls] == [("stuck_consumer", "no_permits")] * findings
    if findings:
        (row,) = stalls
        assert row["positions"] == ["5:1", "5:2"]
        assert row["consumers"] == [1]
        assert not row["uncertain"]
        assert row["seqs"][-1] <= 6
        assert row["t_us"] >= T0_US + seconds * SECOND
        assert "worker-1 had no permits" in row["explanation"]
        assert "2 messages of 2 hashes" in row["explanation"]


def drained(release: float) -> list[Event]:
    """A key moves away from a consumer that still holds an entry of it, and acknowledges that at last."""
    return [
        *JOINED,
        at(1.1, sent(1, *range(10))),
        at(2, added(2)),
        at(2, flow(2, 100)),
        at(2.1, ack(1, *range(1, 10))),
        at(3, {"kind": "flow", "consumer": 1, "permits": 1}),
        at(release, ack(1, 0)),
        at(release, sent(2, *range(10, 20))),
        at(release + 1, ack(2, *range(10, 20))),
        at(release + 2, removed(1)),
        at(release + 2, removed(2)),
    ]


def moving_key(folder: Path) -> str:
    """A key that a second consumer takes over from the first."""
    names = [f"key-{number}" for number in range(64)]
    log = log_of(
        folder,
        [*names],
        [
            at(1, added(1)),
            at(1, flow(1, 99)),
            at(1, sent(1, 0)),
            at(1, ack(1, 0)),
            at(2, added(2)),
            at(2, flow(2, 99)),
        ]
        + [at(3, sent(2, entry)) for entry in range(1, 64)],
    )
    rows = replay(log, interval_start=MIDNIGHT, interval_end=from_micros(T0_US + 60 * SECOND))["deliveries"]
    moved = [row["key"] for row in rows.to_pylist() if row["consumer"] == 2 and row["judgement"] == "exact"]
    return str(moved[0])


@pytest.mark.parametrize(("release", "findings"), [(14.0, 1), (11.0, 0)])
def test_a_draining_hash_names_its_holder_and_what_that_holds(
    tmp_path: Path, release: float, findings: int
) -> None:
    key = moving_key(tmp_path / "first")
    log = log_of(tmp_path / "second", [key] * 20, drained(release))
    stalls = found(log, "stuck_key")
    assert len(stalls) == findings
    for row in stalls:
        assert (row["reason"], row["key"], row["consumers"]) == ("draining_hash", key, [2, 1])
        assert row["positions"] == [f"5:{entry}" for entry in range(10, 20)]
        assert "worker-1 still held 5:0 of the same hash" in row["explanation"]
        assert "10 messages wait" in row["explanation"]
    blocked = replay(log, interval_start=MIDNIGHT, interval_end=from_micros(T0_US + 60 * SECOND))["blocked"]
    (row,) = [row for row in blocked.to_pylist() if row["reason"] == "draining_hash"]
    assert (row["consumer"], row["holder"], row["entries"], row["uncertain"]) == (2, 1, 10, False)
    assert row["needless_ms"] == 0
    assert row["message_ms"] == pytest.approx(10 * 1000 * (release - 1.1), rel=0.05)


def drained_for_nothing(*, last_ack: float, holder_leaves: float = 20) -> list[Event]:
    """A key waits for permits. It moves away, back and away again, and its last entry is acknowledged.

    A 4.0.0 counts the entry twice, and goes on to hold the key back (#24736), also when the holder has left.
    """
    return [
        at(1, added(1)),
        at(1, flow(1, 1)),
        at(1.1, sent(1, 0)),
        at(14, added(2)),
        at(14, flow(2, 100)),
        at(14.5, removed(2)),
        at(15, added(3)),
        at(15, flow(3, 100)),
        at(last_ack, ack(1, 0)),
        at(holder_leaves, removed(1)),
        at(20, flow(3, 1)),
        at(20.1, removed(3)),
    ]


@pytest.mark.parametrize("holder_leaves", [18, 20])
def test_a_drain_for_nothing_is_found_behind_a_longer_wait(tmp_path: Path, holder_leaves: float) -> None:
    key = moving_key(tmp_path / "first")
    events = drained_for_nothing(last_ack=17, holder_leaves=holder_leaves)
    log = log_of(tmp_path / "second", [key] * 4, events, broker_version="4.0.0")
    rows = {row["kind"]: row for row in found(log)}
    assert set(rows) == {"stuck_consumer", "stuck_key"}
    drained, waited = rows["stuck_key"], rows["stuck_consumer"]
    assert (drained["severity"], drained["reason"], drained["key"]) == ("critical", "draining_hash", key)
    assert (drained["consumers"], drained["positions"]) == ([3, 1], ["5:1", "5:2", "5:3"])
    assert "worker-1 held nothing of it any more" in drained["explanation"]
    assert "still waiting" in drained["explanation"]
    assert (waited["reason"], waited["consumers"]) == ("no_permits", [1])
    assert "still waiting" not in waited["explanation"]


@pytest.mark.parametrize(("version", "last_ack"), [("4.2.4", 17), ("4.0.0", 19.5)])
def test_a_short_drain_for_nothing_and_one_for_an_entry_are_part_of_the_wait(
    tmp_path: Path, version: str, last_ack: float
) -> None:
    key = moving_key(tmp_path / "first")
    events = drained_for_nothing(last_ack=last_ack)
    log = log_of(tmp_path / "second", [key] * 4, events, broker_version=version)
    assert "stuck_key" not in {row["kind"] for row in found(log)}


@pytest.mark.parametrize(("next_s", "reason"), [(1.11, None), (1.2, "cursor_may_have_moved")])
def test_an_entry_that_nothing_holds_and_nobody_gets_is_never_delivered(
    tmp_path: Path, next_s: float, reason: str | None
) -> None:
    events = [
        *JOINED,
        at(1.1, sent(1, 0)),
        at(next_s, sent(1, 2, 3)),
        at(2, ack(1, 0, 2, 3)),
        at(3, removed(1)),
    ]
    (row,) = found(log_of(tmp_path, ["a", "b", "c", "b"], events))
    assert (row["kind"], row["key"], row["positions"]) == ("never_delivered", "b", ["5:1"])
    assert (row["uncertain"], row["reason"]) == (reason is not None, reason)
    assert "later messages of its key were sent" in row["explanation"]
    assert "worker-1 owned its hash" in row["explanation"]


def test_a_key_that_does_not_go_on_is_stuck_as_well(tmp_path: Path) -> None:
    events = [*JOINED, at(1.1, sent(1, 0, 2, 4)), at(2, ack(1, 0, 2, 4)), at(3, removed(1))]
    rows = found(log_of(tmp_path, ["a", "b", "c", "b", "c"], events))
    assert [(row["kind"], row["reason"], row["key"]) for row in rows] == [
        ("never_delivered", None, "b"),
        ("stuck_key", "replay_order", "b"),
    ]
    assert all(row["positions"] == ["5:1", "5:3"] for row in rows)


def test_a_log_that_goes_on_has_lost_nothing_yet(tmp_path: Path) -> None:
    """An entry stored a moment before the interval's end may be on its way."""
    log = log_of(tmp_path, ["a", "b"], [*JOINED, at(1.1, sent(1, 0)), at(1.2, ack(1, 0))])
    soon, late = from_micros(T0_US + 5 * SECOND), from_micros(T0_US + 30 * SECOND)
    assert found(log, closed=False, interval_end=soon) == []
    assert [row["kind"] for row in found(log, closed=False, interval_end=late)] == ["never_delivered"]
    assert [row["kind"] for row in found(log, closed=True)] == ["never_delivered"]


def test_what_was_stored_at_the_very_end_is_uncertain(tmp_path: Path) -> None:
    messages = [
        message(0, "a", publish_time_ms=T0_US // 1000),
        message(1, "b", publish_time_ms=T0_US // 1000 + 2990),
    ]
    events = [*JOINED, at(1.1, sent(1, 0)), at(1.2, ack(1, 0)), at(3, removed(1))]
    lines = [{**event, "seq": seq} for seq, event in enumerate(events, 1)]
    (row,) = found(read(write(tmp_path, messages, lines)))
    assert (row["kind"], row["uncertain"], row["reason"]) == ("never_delivered", True, "stored_at_the_end")


def test_missing_lines_make_a_loss_uncertain(tmp_path: Path) -> None:
    events = [*JOINED, at(1.1, sent(1, 0, 2)), at(2, ack(1, 0, 2)), at(3, removed(1))]
    lines = [{**event, "seq": seq + (seq > 2)} for seq, event in enumerate(events, 1)]
    messages = [message(entry, key, publish_time_ms=T0_US // 1000) for entry, key in enumerate("abb")]
    (row,) = found(read(write(tmp_path, messages, lines)), "never_delivered")
    assert (row["uncertain"], row["reason"]) == (True, "log_gap")


def test_nobody_gets_anything_of_several_keys(tmp_path: Path) -> None:
    events = [
        *JOINED,
        at(1.1, sent(1, 0)),
        at(1.2, ack(1, 0)),
        at(20, {"kind": "flow", "consumer": 1, "permits": 1}),
        at(21, removed(1)),
    ]
    rows = found(log_of(tmp_path, ["a", "b", "c"], events), "stuck_subscription")
    assert [(row["reason"], row["consumers"], row["positions"]) for row in rows] == [
        ("no_read", [1], ["5:1", "5:2"])
    ]


def test_nobody_connected_is_the_subscriptions_trouble_only_if_it_lasts(tmp_path: Path) -> None:
    begin = [*JOINED, at(1.1, sent(1, 0)), at(1.2, ack(1, 0)), at(1.25, removed(1))]
    back = [
        at(20, added(2)),
        at(20, flow(2, 9)),
        at(20.1, sent(2, 1)),
        at(20.2, ack(2, 1)),
        at(21, removed(2)),
    ]
    (row,) = found(log_of(tmp_path / "long", ["a", "b"], begin + back))
    assert (row["kind"], row["reason"], row["positions"]) == ("stuck_subscription", "no_consumer", ["5:1"])
    sooner = [{**event, "t_us": event["t_us"] - 12 * SECOND} for event in back]
    assert found(log_of(tmp_path / "short", ["a", "b"], begin + sooner)) == []


@pytest.mark.parametrize(("filled", "kinds"), [(50, []), (70, ["ack_hole"])])
def test_a_hole_that_is_filled_late_is_found_when_it_is(
    tmp_path: Path, filled: int, kinds: list[str]
) -> None:
    events = [
        *JOINED,
        at(1.1, sent(1, 0, 1)),
        at(2, ack(1, 1)),
        at(filled, ack(1, 0)),
        at(filled + 1, removed(1)),
    ]
    rows = found(log_of(tmp_path, ["a", "b"], events))
    assert [row["kind"] for row in rows] == kinds
    for row in rows:
        assert (row["positions"], row["key"], row["consumers"]) == (["5:0"], "a", [1])
        assert "68.0 s after later entries were" in row["explanation"]


def test_what_nobody_will_acknowledge_any_more_is_a_hole_and_nothing_above_it_is_none(tmp_path: Path) -> None:
    events = [*JOINED, at(1.1, sent(1, 0, 1, 2)), at(2, ack(1, 1)), at(3, removed(1))]
    log = log_of(tmp_path, ["a", "b", "c"], events)
    (row,) = found(log)
    assert (row["kind"], row["positions"], row["key"]) == ("ack_hole", ["5:0"], "a")
    assert found(log, "ack_hole", closed=False, interval_end=from_micros(T0_US + 30 * SECOND)) == []
    late = from_micros(T0_US + 70 * SECOND)
    assert len(found(log, "ack_hole", closed=False, interval_end=late)) == 1


def test_failover_finds_what_was_left_out_and_a_hand_over_that_took_too_long(tmp_path: Path) -> None:
    events = [
        *JOINED,
        at(1.1, sent(1, 0, 2)),
        at(2, ack(1, 0, 2)),
        at(3, removed(1)),
    ]
    (row,) = found(log_of(tmp_path / "lost", ["a", "b", "c"], events, subscription_type="Failover"))
    assert (row["kind"], row["positions"], row["key"]) == ("never_delivered", ["5:1"], "b")
    handed = [
        *JOINED,
        at(1.1, sent(1, 0, 1)),
        at(2, ack(1, 0)),
        at(2.5, added(2)),
        at(2.5, flow(2, 9)),
        at(3, removed(1)),
        at(3.9, sent(2, 1)),
        at(4, ack(2, 1)),
        at(5, removed(2)),
    ]
    log = log_of(
        tmp_path / "slow",
        ["a", "b"],
        handed,
        subscription_type="Failover",
        config={"activeConsumerFailoverDelayTimeMillis": 1000},
    )
    (row,) = found(log, limits=Limits(stuck_subscription_ms=500))
    assert (row["kind"], row["reason"]) == ("stuck_subscription", "failover_delay")
    assert row["positions"] == ["5:1"]
    assert found(log) == []


@pytest.mark.parametrize(
    ("keys", "kind"), [(["k", "a", "a"], "stuck_key"), (["k", "a", "b"], "stuck_subscription")]
)
def test_failover_s_only_key_that_waits_is_the_key_s_trouble(
    tmp_path: Path, keys: list[str | None], kind: str
) -> None:
    events = [at(0, added(1)), at(0, flow(1, 100)), at(1, sent(1, 0)), at(1.1, ack(1, 0)), at(90, removed(1))]
    rows = found(log_of(tmp_path, keys, events, subscription_type="Failover"), interval_end=_behind(90))
    assert kind in {row["kind"] for row in rows}
    if kind == "stuck_key":
        assert {row["key"] for row in rows} == {"a"}


#: A name by which a second consumer does not become the active one.
STANDBY = "standby-0"


def asked_again(then: list[Event], *, by: int = 1) -> list[Event]:
    """Consumer 1 is sent two entries; ``by`` asks for them again; the last line comes half a minute later."""
    standby = [at(1, added(2, STANDBY)), at(1, flow(2, 9))] if by == 2 else []
    return [
        *JOINED,
        *standby,
        at(1.1, sent(1, 0, 1)),
        at(1.2, ack(1, 0)),
        at(2, redeliver(by)),
        *then,
        at(32, flow(1, 1)),
    ]


@pytest.mark.parametrize("kind", ["Failover", "Exclusive", "Key_Shared"])
@pytest.mark.parametrize(("key", "found_as"), [("b", "stuck_key"), (None, "stuck_consumer")])
@pytest.mark.parametrize("ended", [True, False])
def test_an_entry_that_is_asked_for_again_and_does_not_come_is_stuck(
    tmp_path: Path, kind: str, key: str | None, found_as: str, ended: bool
) -> None:
    then = [at(31, sent(1, 1)), at(31.1, ack(1, 1))] if ended else []
    log = log_of(tmp_path, ["a", key], asked_again(then), subscription_type=kind)
    (row,) = found(log, closed=False, interval_end=_behind(32))
    assert (row["kind"], row["positions"], row["key"]) == (found_as, ["5:1"], key)
    assert T0_US + 31 * SECOND <= row["t_us"] <= T0_US + 32 * SECOND
    assert "30.0 s" in row["explanation"] or "29.0 s" in row["explanation"]


@pytest.mark.parametrize("kind", ["Failover", "Exclusive"])
@pytest.mark.parametrize(
    "then",
    [
        [at(2.1, sent(1, 1))],  # it came again, and is pending since
        [at(2.1, ack(1, 1))],  # it was acknowledged meanwhile
        [at(2.01, ack(1, 1)), at(2.2, sent(1, 2))],
    ],
    ids=["sent again", "acknowledged", "goes on"],
)
def test_what_came_again_or_is_acknowledged_does_not_wait(
    tmp_path: Path, kind: str, then: list[Event]
) -> None:
    keys = ["a", "b", "c"] if then[-1].get("positions") == ["5:2"] else ["a", "b"]
    log = log_of(tmp_path, keys, asked_again(then), subscription_type=kind)
    assert found(log, closed=False, interval_end=_behind(32)) == []


def test_a_delivery_that_was_on_its_way_does_not_answer_a_redelivery_request(tmp_path: Path) -> None:
    events = asked_again([at(2.01, sent(1, 2)), at(2.02, ack(1, 2))])
    log = log_of(tmp_path, ["a", "b", "c"], events, subscription_type="Failover")
    (row,) = found(log, closed=False, interval_end=_behind(32))
    assert (row["kind"], row["key"]) == ("stuck_key", "b")


def test_only_the_active_consumer_s_redelivery_request_counts(tmp_path: Path) -> None:
    log = log_of(tmp_path, ["a", "b"], asked_again([], by=2), subscription_type="Failover")
    tables = replay(log, interval_start=MIDNIGHT, interval_end=_behind(32))
    assert tables["deliveries"]["judgement"].to_pylist() == ["exact", "exact"]  # consumer 1 is active
    assert found(log, closed=False, interval_end=_behind(32)) == []


@pytest.mark.parametrize("kind", ["Failover", "Exclusive", "Key_Shared"])
def test_what_all_consumers_left_unacknowledged_waits_for_the_next_one(tmp_path: Path, kind: str) -> None:
    events = [
        *JOINED,
        at(1.1, sent(1, 0, 1)),
        at(1.2, ack(1, 0)),
        at(2, removed(1)),
        at(2.1, added(3)),
        at(2.1, flow(3, 9)),
        at(32, flow(3, 1)),
    ]
    log = log_of(tmp_path, ["a", "b"], events, subscription_type=kind)
    (row,) = found(log, closed=False, interval_end=_behind(32))
    assert (row["kind"], row["key"], row["consumers"]) == ("stuck_key", "b", [3])


@pytest.mark.parametrize(("others", "kind"), [(False, "stuck_consumer"), (True, "stuck_key")])
def test_an_entry_without_a_key_that_came_late_is_found(tmp_path: Path, others: bool, kind: str) -> None:
    """It is its consumer's trouble if that was sent nothing else meanwhile."""
    events = [
        *JOINED,
        at(1.1, sent(1, 0)),
        at(1.2, ack(1, 0)),
        *(at(2 + 2 * n, sent(1, 2 + n)) for n in range(10) if others),
        *(at(2.1 + 2 * n, ack(1, 2 + n)) for n in range(10) if others),
        at(25, sent(1, 1)),
        at(25.1, ack(1, 1)),
        at(40, flow(1, 1)),
    ]
    events.sort(key=lambda event: event["t_us"])
    messages = [
        message(entry, "a" if entry == 0 else None, publish_time_ms=T0_US // 1000 + max(0, entry - 1) * 2000)
        for entry in range(12 if others else 2)
    ]
    lines = [{**event, "seq": seq} for seq, event in enumerate(events, 1)]
    rows = found(read(write(tmp_path, messages, lines)), closed=False, interval_end=_behind(40))
    assert [
        (row["kind"], row["positions"], row["key"]) for row in rows if row["kind"] != "never_delivered"
    ] == [(kind, ["5:1"], None)]


def test_what_waited_before_the_last_ones_left_did_not_wait_for_their_hand_over(tmp_path: Path) -> None:
    events = [
        *(at(0, event) for event in (added(1), flow(1, 100), added(2), flow(2, 100))),
        *(at(5, event) for event in (sent(1, 0), ack(1, 0))),
        at(90, removed(1)),
        at(90.001, removed(2)),
    ]
    log = log_of(tmp_path, ["k", "a", "a"], events, subscription_type="Failover")
    rows = found(log, interval_end=_behind(90.001))
    assert "failover_delay" not in {row["reason"] for row in rows if "5:1" in row["positions"]}
    lost = [row for row in rows if row["kind"] == "never_delivered"]
    assert [(row["key"], row["positions"]) for row in lost] == [("a", ["5:1", "5:2"])]
    assert sum(row["unsent"] or 0 for row in rows) == 2


def _behind(seconds: float) -> Any:
    return from_micros(T0_US + int(seconds * SECOND) + 1)


def test_a_wait_that_the_last_hand_over_cut_off_goes_on() -> None:
    """As the waits of a consumer and of the one that became active while all left."""

    def wait(
        reason: str | None, us: int, lines: tuple[int, int | None], entries: tuple[str, ...], lost: int
    ) -> SampledWait:
        return SampledWait(
            hash=None, reason=reason, shares=((reason, us),), waiting=1, holder=None, holder_positions=(),
            holder_pending=0, from_seq=lines[0], from_t_us=0, until_seq=lines[1], until_t_us=us if lines[1] else None,
            first_position=entries[0], positions=entries, keys=(("a", False),) * len(entries), entries=len(entries),
            messages=len(entries), message_us=us * len(entries), needless_us=0, attempts=0, uncertain=False,
            never_sent=lost, never_passed=lost,
        )  # fmt: skip

    long = wait(None, 90 * SECOND, (3, 8), ("5:4",), 0)
    short = wait("failover_delay", 1000, (8, None), ("5:4",), 1)
    (left,) = but_for([long, short], [])
    assert (left.reason, left.until_seq, left.never_sent, left.from_seq) == (None, None, 1, 3)
    other = wait("failover_delay", 1000, (9, None), ("5:4",), 1)
    assert but_for([long, other], []) == [long, other]
    again = wait("failover_delay", 1000, (8, None), ("5:4",), 0)
    assert but_for([long, again], []) == [long, again]
