"""Traces of Failover and Exclusive dispatchers: paths that are rare in real ones, races, and what must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.broker import hashing
from dispatch_core.broker import single_active_rules as rules
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.trace.earlier_positions import HELD_UP_US
from dispatch_core.verify.trace.runner import Verification, verify
from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.single_active_trace import Trace, verified

ROOT = Path(__file__).resolve().parents[3]
REAL = ROOT / "tests" / "data" / "recordings" / "4.2.4" / "designed-failover-modulo-p1"


def exact(result: Verification) -> None:
    assert result.not_judged is None
    assert result.tally.findings == []
    assert result.tally.total("exact") == result.tally.total("decisions") > 0


def divergences(result: Verification) -> list[tuple[int, str]]:
    return [(f.seq, f.decision_class) for f in result.tally.findings if f.status == "divergent"]


# --- rare paths ------------------------------------------------------------------------------------------------------


def test_a_running_read_at_a_hand_over_is_dropped(tmp_path: Path) -> None:
    trace = Trace(activeConsumerFailoverDelayTimeMillis=1000)
    trace("handover_scheduled", pending_read=False)
    trace.picked(2, [2])
    trace.added(2, "b")
    trace.flow(2, 5)
    trace("rewind", read_position=0)
    trace.notified(2, 2)
    trace.reads(2, 5)
    trace("handover_scheduled", pending_read=True)
    trace("read_cancelled", cancelled=False)
    trace.picked(1, [1, 2])
    trace.added(1, "a")
    trace.flow(1, 3)
    trace("flow_applied", consumer=1)
    trace.done(2, [0, 1, 2, 3, 4])
    trace("rewind", read_position=0)
    trace.notified(1, 1, 2)
    trace.reads(1, 3)
    trace.done(1, [0, 1, 2])
    trace.round(1, [0, 1, 2], 3)
    exact(trace.verified(tmp_path))


# --- topics that are unloaded and loaded -----------------------------------------------------------------------------


def loaded_again(permits_after: int, **state: Any) -> Trace:
    """Entries 0 to 2 and 4 were acknowledged, and two of the four messages of 5; the next read has 3, 5 and 6."""
    trace = Trace()
    trace.num_messages[5] = 4
    trace("checkpoint", consumers=[], **state)
    trace.first(1, "a", at=3)
    trace.flow(1, 9)
    trace("flow_applied", consumer=1)
    trace.reads(1, 9, 3)
    trace.done(1, [3, 5, 6])
    trace("round_begin", type="Normal", consumer=1, positions=[3, 5, 6])
    trace("sent", consumer=1, positions=[3, 5, 6], batch_sizes=[1, 4, 1], permits_before=9)
    trace("send_returned", consumer=1, written=True, permits_after=permits_after)
    return trace


def test_a_trace_begins_with_the_cursor_of_its_checkpoint(tmp_path: Path) -> None:
    state = {"mark_delete": "1:2", "ack_holes": ["1:4"], "partly_acked": {"1:5": [0b1100]}}
    exact(loaded_again(9 - 6 + 2, **state).verified(tmp_path))


@pytest.mark.parametrize("left_out", ["mark_delete", "ack_holes", "partly_acked"])
def test_each_part_of_the_checkpoint_counts(tmp_path: Path, left_out: str) -> None:
    state = {"mark_delete": "1:2", "ack_holes": ["1:4"], "partly_acked": {"1:5": [0b1100]}}
    del state[left_out]
    assert divergences(loaded_again(9 - 6 + 2, **state).verified(tmp_path))


def disconnected(*, marked: bool, again: int = 1) -> Trace:
    """Two consumers are disconnected while a read for the first runs, which is cancelled ``again`` times afterwards."""
    trace = Trace()
    trace.first(1, "a")
    trace.flow(1, 5)
    trace("flow_applied", consumer=1)
    trace.reads(1, 5)
    trace.picked(1, [1, 2], changed=False)
    trace.notified(1, 2)
    trace.added(2, "b")
    if marked:
        trace("all_disconnecting")
    for consumer in (1, 2):
        trace("consumer_removing", consumer=consumer)
        trace("read_cancelled", cancelled=False)
        trace("consumer_removed", consumer=consumer)
    for _ in range(again):
        trace("read_cancelled", cancelled=False)
    trace.done(1, [0])
    trace("rewind", read_position=0)
    return trace


def test_nobody_becomes_active_while_all_are_disconnected(tmp_path: Path) -> None:
    exact(disconnected(marked=True).verified(tmp_path))


@pytest.mark.parametrize(("marked", "again"), [(False, 1), (True, 2)])
def test_without_the_mark_somebody_does(tmp_path: Path, marked: bool, again: int) -> None:
    assert divergences(disconnected(marked=marked, again=again).verified(tmp_path))


# --- redelivery requests ---------------------------------------------------------------------------------------------


def redelivered(version: str, *, waiting: bool) -> Trace:
    trace = Trace(version)
    trace.first(1, "a")
    trace.flow(1, 6)
    trace("flow_applied", consumer=1)
    trace.reads(1, 6)
    trace.done(1, [0, 1])
    trace.round(1, [0, 1], 6)
    trace.reads(1, 4, 2)
    trace("redeliver", consumer=1, positions=[1])
    trace("read_cancelled", cancelled=waiting)
    trace("rewind", read_position=0)
    trace.reads(1, 4)
    return trace


def test_a_redelivery_request_sends_everything_again(tmp_path: Path) -> None:
    trace = redelivered("4.2.4", waiting=True)
    trace.done(1, [0, 1, 2])
    trace.round(1, [0, 1, 2], 4)
    exact(trace.verified(tmp_path))


@pytest.mark.parametrize(("version", "ignored"), [("4.2.4", True), ("4.0.0", False)])
def test_a_disowned_read_is_ignored_since_4_2_4(tmp_path: Path, version: str, ignored: bool) -> None:
    trace = redelivered(version, waiting=False)
    trace.done(1, [2, 3])
    if not ignored:
        trace.round(1, [2, 3], 4)
    trace.done(1, [0, 1, 2])
    trace.round(1, [0, 1, 2], 4 if ignored else 2)
    exact(trace.verified(tmp_path))


def test_a_disowned_read_that_is_dispatched_all_the_same_diverges(tmp_path: Path) -> None:
    trace = redelivered("4.2.4", waiting=False)
    trace.done(1, [2, 3])
    trace.round(1, [2, 3], 4)
    assert divergences(trace.verified(tmp_path))[0] == (len(trace.lines) - 2, "dispatch")


def test_a_redelivery_request_of_another_consumer_is_not_heard(tmp_path: Path) -> None:
    trace = Trace()
    trace.first(1, "a")
    trace.picked(1, [1, 2], changed=False)
    trace.notified(1, 2)
    trace.added(2, "b")
    trace("redeliver", consumer=2, positions=None)
    at = trace("rewind", read_position=0)
    trace.reads_all(1)
    assert divergences(trace.verified(tmp_path)) == [(at, "dispatch")]


def test_an_exclusive_consumer_with_ranges_and_one_too_many(tmp_path: Path) -> None:
    trace = Trace(kind="Exclusive")
    trace.first(1, "a", ranges=[[0, 32767]])
    trace.added(2, "b")
    trace("subscribe_rejected", name="b", error="ConsumerBusyException")
    trace.flow(1, 10)
    trace("flow_applied", consumer=1)
    trace.reads(1, 10)
    trace.done(1, list(range(10)))
    slots = [hashing.RANGE_4X.sticky(hashing.h31(key.encode())) for key in trace.keys]
    inside = [entry for entry, slot in enumerate(slots) if slot <= 32767]
    assert 0 < len(inside) < 10
    trace.round(1, list(range(10)), 10, sent=inside)
    exact(trace.verified(tmp_path))


# --- races -----------------------------------------------------------------------------------------------------------


def racing_read(counted: int, size: int) -> tuple[Trace, int]:
    """``counted`` = 1: flow arrives before the attempt and is counted after it; 2: within it."""
    trace = Trace()
    trace.first(1, "a")
    trace.flow(1, 2)
    if counted == 1:
        at = trace.flow(1, 3, counted=False)
        trace("read_attempt", consumer=1)
    else:
        trace("read_attempt", consumer=1)
        at = trace.flow(1, 3, counted=False)
    trace("flow_counted", consumer=1, permits_after=5, blocked_after=False)
    trace("read_issued", max_entries=size, read_position=0)
    trace.done(1, [])
    trace.round(1, [], 5)
    return trace, at


@pytest.mark.parametrize(("counted", "plain", "other"), [(1, 5, 2), (2, 2, 5)])
def test_flow_that_is_counted_while_a_read_is_decided(
    tmp_path: Path, counted: int, plain: int, other: int
) -> None:
    for size, status in ((plain, None), (other, "uncertain"), (4, "divergent")):
        trace, at = racing_read(counted, size)
        findings = trace.verified(tmp_path).tally.findings
        assert [f.status for f in findings] == ([] if status is None else [status])
        assert [f.racing_seq for f in findings if f.status == "uncertain"] == ([at] if size == other else [])


def test_flow_that_was_counted_before_the_attempt_races_with_nothing(tmp_path: Path) -> None:
    trace = Trace()
    trace.first(1, "a")
    trace.flow(1, 2)
    trace.flow(1, 3)
    trace("read_attempt", consumer=1)
    at = trace("read_issued", max_entries=2, read_position=0)
    trace.done(1, [])
    assert divergences(trace.verified(tmp_path)) == [(at, "read")]


@pytest.mark.parametrize(("permits", "status"), [(9, None), (2, "uncertain"), (5, "divergent")])
def test_flow_that_is_counted_while_a_round_is_sent(tmp_path: Path, permits: int, status: str | None) -> None:
    trace = Trace()
    trace.first(1, "a")
    trace.flow(1, 2)
    trace.reads(1, 2)
    trace.done(1, [0])
    at = trace.flow(1, 7, counted=False)
    trace.round(1, [0], permits)
    trace("flow_counted", consumer=1, permits_after=9, blocked_after=False)
    findings = trace.verified(tmp_path).tally.findings
    assert [(f.status, f.racing_seq) for f in findings] == (
        [] if status is None else [(status, at if status == "uncertain" else None)]
    )


@pytest.mark.parametrize(
    ("shown", "status"), [(3, None), (4, "uncertain"), (5, "uncertain"), (6, "divergent"), (2, "divergent")]
)
def test_a_counted_flow_shows_the_permits_before_any_send_since_its_flow(
    tmp_path: Path, shown: int, status: str | None
) -> None:
    trace = Trace()
    trace.first(1, "a")
    trace.flow(1, 2)
    trace.reads(1, 2)
    trace.done(1, [0])
    trace.flow(1, 3, counted=False)
    for entry, permits in ((0, 5), (1, 4)):
        trace.round(1, [entry], permits)
        trace("send_returned", consumer=1, written=True, permits_after=permits - 1)
        if entry == 0:
            trace.reads(1, permits - 1, 1)
            trace.done(1, [1])
    at = trace("flow_counted", consumer=1, blocked_after=False)
    trace.lines[-1]["permits_after"] = shown
    findings = trace.verified(tmp_path).tally.findings
    assert [(f.status, f.seq) for f in findings] == ([] if status is None else [(status, at)])


def test_an_attempt_that_a_membership_change_overtakes_issues_nothing(tmp_path: Path) -> None:
    trace = Trace()
    trace.first(2, "b")
    trace.flow(2, 2)
    trace("flow_applied", consumer=2)
    trace("read_attempt", consumer=2)
    trace("handover_scheduled", pending_read=False)
    trace("rewind", read_position=0)
    trace.notified(1, 1, 2)
    trace("read_attempt", consumer=1)
    trace.picked(1, [1, 2])
    trace.added(1, "a")
    trace.flow(1, 1)
    trace("flow_applied", consumer=1)
    trace.reads(1, 1)
    trace.done(1, [])
    trace.round(1, [], 1)
    exact(trace.verified(tmp_path))


@pytest.mark.parametrize(("gap", "status"), [(False, "uncertain"), (True, "divergent")])
def test_a_change_while_the_delay_task_runs(tmp_path: Path, gap: bool, status: str) -> None:
    """The task has taken the active consumer when another becomes it: its notices name the old one."""
    trace = Trace(activeConsumerFailoverDelayTimeMillis=1000)
    trace("handover_scheduled", pending_read=False)
    trace.picked(2, [2])
    trace.added(2, "b")
    change = trace("handover_scheduled", pending_read=False)
    trace.picked(1, [1, 2])
    if gap:  # the change was long over when the task began
        for _ in range(10):
            trace("step", note="waits")
    trace("rewind", read_position=0)
    trace.notified(2, 1, 2)
    trace.added(1, "a")
    trace.reads_all(1)
    findings = trace.verified(tmp_path).tally.findings
    assert {f.status for f in findings} == {status}
    assert {f.racing_seq for f in findings} == {change if status == "uncertain" else None}
    assert [f.decision_class for f in findings][:1] == ["active"]


@pytest.mark.parametrize(
    ("joins", "active", "status"), [(2, 1, "uncertain"), (3, 1, "divergent"), (2, 2, "divergent")]
)
def test_the_delay_task_notifies_a_consumer_that_is_joining(
    tmp_path: Path, joins: int, active: int, status: str
) -> None:
    """A consumer is connected before its choice is logged; the task, which holds no lock, may find it then."""
    trace = Trace(activeConsumerFailoverDelayTimeMillis=1000)
    trace("handover_scheduled", pending_read=False)
    trace.picked(1, [1])
    trace.added(1, "a")
    trace("rewind", read_position=0)
    trace.notified(1, 1)
    at = trace("active_notified", consumer=2, active=active)
    trace("read_attempt", consumer=1)
    join = trace("active_picked", consumer=1, changed=False, sorted=[1, joins], partition_index=0)
    trace.notified(1, joins)
    trace.added(joins, "b")
    trace.reads_all(1)
    found = [(f.seq, f.status, f.racing_seq) for f in trace.verified(tmp_path).tally.findings]
    assert (at, status, join if status == "uncertain" else None) in found


HELD_UP = ROOT / "tests" / "data" / "races" / "4.0.0" / "soak-81266-failover-quiet"
FLOW, NOTICE = 8, 9


def test_the_delay_task_may_be_held_up_before_its_notices(tmp_path: Path) -> None:
    """In ``soak-81266-failover-quiet`` (tests/data/races) the notice comes 59 ms behind the rewind, behind a flow."""
    assert t.verified(HELD_UP).tally.total("divergent") == 0
    trace = t.raw(HELD_UP)
    for line in trace:
        if line.get("seq", 0) >= FLOW:
            line["t_us"] += HELD_UP_US
    assert {finding.seq for finding in t.divergent(HELD_UP, trace, tmp_path)} == {FLOW, NOTICE}


def test_a_notice_that_the_delay_task_never_sends_is_missing(tmp_path: Path) -> None:
    trace = t.raw(HELD_UP)
    t.line_of(trace, NOTICE)["consumer"] = 2
    assert FLOW in {finding.seq for finding in t.divergent(HELD_UP, trace, tmp_path)}


TAKEN_EARLY = ROOT / "tests" / "data" / "races" / "4.2.4" / "soak-81570-second-failover-ring-quiet"
CHANGE, REWIND, NOTIFIED = 8, 9, 12


def test_the_delay_task_may_be_held_up_before_its_rewind(tmp_path: Path) -> None:
    """It has taken consumer 1 for the active one 7 ms before its rewind, when line 8 makes another one active."""
    tally = t.verified(TAKEN_EARLY).tally
    assert [(f.status, f.seq, f.racing_seq) for f in tally.findings] == [("uncertain", NOTIFIED, CHANGE)]
    trace = t.raw(TAKEN_EARLY)
    for line in trace:
        if line.get("seq", 0) >= REWIND:
            line["t_us"] += 10_000
    assert NOTIFIED in {finding.seq for finding in t.divergent(TAKEN_EARLY, trace, tmp_path)}


REMOVED_LATE = ROOT / "tests" / "data" / "races" / "4.2.4" / "soak-82217-failover-ring-racing"
REMOVING, TOLD, REMOVED = 214, 216, 218


def test_a_removal_may_be_held_up_before_it_has_an_effect(tmp_path: Path) -> None:
    """The delay's task finds consumer 3 54 ms behind the line that begins its removal, as its end shows."""
    tally = t.verified(REMOVED_LATE).tally
    assert [(f.status, f.seq, f.racing_seq) for f in tally.findings] == [("uncertain", TOLD, REMOVING)]
    trace = t.raw(REMOVED_LATE)
    removed = t.line_of(trace, REMOVED)
    trace.remove(removed)
    at = trace.index(t.line_of(trace, REMOVING))
    trace.insert(at + 1, {**removed, "t_us": trace[at]["t_us"], "read_position": "31:27"})
    for line, following in pairwise(trace[at:]):
        following["seq"] = line["seq"] + 1
    assert TOLD + 1 in {finding.seq for finding in t.divergent(REMOVED_LATE, trace, tmp_path)}


# --- what must be found ----------------------------------------------------------------------------------------------


def plain_trace() -> Trace:
    trace = Trace()
    trace.first(1, "a")
    trace.flow(1, 4)
    trace("flow_applied", consumer=1)
    trace.reads(1, 4)
    trace.done(1, [0, 1, 2])
    trace.round(1, [0, 1, 2], 4)
    trace.reads(1, 1, 3)
    trace.done(1, [])
    trace.round(1, [], 1)
    trace.reads(1, 1, 3)
    trace("consumer_removing", consumer=1)
    trace("read_cancelled", cancelled=True)
    trace("consumer_removed", consumer=1)
    return trace


def test_a_plain_trace_is_exact(tmp_path: Path) -> None:
    exact(plain_trace().verified(tmp_path))


def edit(kind: str, nth: int = 0, **fields: Any) -> Callable[[Trace], int]:
    def change(trace: Trace) -> int:
        line = [line for line in trace.lines if line["kind"] == kind][nth]
        line.update(fields)
        return int(line["seq"])

    return change


@pytest.mark.parametrize(
    ("change", "decision_class"),
    [
        (edit("sent", positions=["1:0", "1:2", "1:1"]), "dispatch"),
        (edit("sent", permits_before=5), "permits"),
        (edit("round_begin", positions=["1:0", "1:1", "1:3"]), "dispatch"),
        (edit("read_issued", max_entries=3), "read"),
        (edit("read_done", positions=["1:0", "1:2"]), "dispatch"),
        (edit("read_done", consumer=2), "dispatch"),
        (edit("active_picked", changed=False), "active"),
        (edit("active_picked", sorted=[2]), "active"),
        (edit("active_notified", active=2), "active"),
        (edit("handover_scheduled", pending_read=True), "active"),
        (edit("rewind", read_position="1:2"), "read"),
        (edit("rewind", read_position="1:99"), "position"),  # never stored
    ],
)
def test_a_changed_line_is_found(tmp_path: Path, change: Callable[[Trace], int], decision_class: str) -> None:
    trace = plain_trace()
    at = change(trace)
    assert divergences(trace.verified(tmp_path))[0] == (at, decision_class)


@pytest.mark.parametrize(
    ("kind", "shows_at"),
    [
        ("rewind", "active_notified"),
        ("active_notified", "active_picked"),
        ("active_picked", "consumer_added"),
        ("handover_scheduled", "rewind"),
        ("read_done", "round_begin"),
        ("sent", "read_attempt"),
    ],
)
def test_a_dropped_line_is_found_at_the_first_line_that_shows_it(
    tmp_path: Path, kind: str, shows_at: str
) -> None:
    trace = plain_trace()
    if kind == "active_notified":  # a trace without any has none to miss
        trace.picked(2, [2])
        trace.notified(2, 2)
    index = next(i for i, line in enumerate(trace.lines) if line["kind"] == kind)
    del trace.lines[index]
    shown = next((line for line in trace.lines[index:] if line["kind"] == shows_at), None)
    first = divergences(trace.verified(tmp_path))[0]
    assert first[0] == (trace.lines[-1]["seq"] if shown is None else shown["seq"])


def test_a_read_that_was_due_and_is_missing_is_found(tmp_path: Path) -> None:
    trace = Trace()
    trace.first(1, "a")
    trace.flow(1, 4)
    trace("flow_applied", consumer=1)
    trace("read_attempt", consumer=1)
    trace.flow(1, 4)
    at = trace("flow_applied", consumer=1)
    trace.reads(1, 8)
    trace.done(1, [])
    assert divergences(trace.verified(tmp_path))[0] == (at, "read")


def test_the_real_trace_is_exact() -> None:
    exact(verified(REAL))


def test_a_log_cut_anywhere_has_nothing_divergent() -> None:
    (source,) = find_recordings([str(REAL)])
    (log,) = read_recording(source).logs
    for lines in range(20, log.events.num_rows, 3):
        result = verify(replace(log, events=log.events.slice(0, lines)))
        assert divergences(result) == [], lines


def running_read_at_a_hand_over() -> Trace:
    trace = Trace()
    trace.first(2, "b")
    trace.flow(2, 5)
    trace.reads(2, 5)
    trace("handover_scheduled", pending_read=True)
    trace("read_cancelled", cancelled=False)
    trace.picked(1, [1, 2])
    trace.added(1, "a")
    trace.done(2, [0, 1])
    trace("rewind", read_position=0)
    trace.notified(1, 1, 2)
    trace("read_attempt", consumer=1)
    return trace


def disowned_read() -> Trace:
    trace = redelivered("4.2.4", waiting=False)
    trace.done(1, [2, 3])
    trace.done(1, [0, 1, 2])
    trace.round(1, [0, 1, 2], 4)
    return trace


def flow_in_the_delay() -> Trace:
    trace = Trace(activeConsumerFailoverDelayTimeMillis=1000)
    trace("handover_scheduled", pending_read=False)
    trace.picked(1, [1])
    trace.added(1, "a")
    trace.flow(1, 5)
    trace("flow_applied", consumer=1)
    trace.flow(1, 5)
    trace("flow_applied", consumer=1)
    trace("rewind", read_position=0)
    trace.notified(1, 1)
    trace.reads(1, 10)
    trace.done(1, [0])
    trace.round(1, [0], 10)
    return trace


@pytest.mark.parametrize("kind", ["rewind", "active_notified"])
def test_a_line_of_the_delay_task_that_is_missing_is_found(tmp_path: Path, kind: str) -> None:
    trace = flow_in_the_delay()
    for _ in range(10):  # a change while the task may still tell would explain it
        trace("step", note="waits")
    trace.picked(1, [1, 2], changed=False)
    trace.notified(1, 2)
    trace.added(2, "b")
    trace.lines.remove(next(line for line in trace.lines if line["kind"] == kind))
    assert {decision_class for _, decision_class in divergences(trace.verified(tmp_path))} >= {"active"}


def test_a_cancel_that_is_missing_is_found(tmp_path: Path) -> None:
    trace = plain_trace()
    trace.lines.remove(next(line for line in trace.lines if line["kind"] == "read_cancelled"))
    at = next(line["seq"] for line in trace.lines if line["kind"] == "consumer_removed")
    assert divergences(trace.verified(tmp_path)) == [(at, "active")]


@pytest.mark.parametrize(
    ("name", "wrong", "trace"),
    [
        ("delay_holds_flow", lambda: False, flow_in_the_delay),
        ("is_read_for_another", lambda reader, active: False, running_read_at_a_hand_over),
        ("disowned", lambda epoch, newest, epochs: False, disowned_read),
    ],
)
def test_a_wrong_rule_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: object, trace: Callable[[], Trace]
) -> None:
    exact(trace().verified(tmp_path))
    monkeypatch.setattr(rules, name, wrong)
    assert divergences(trace().verified(tmp_path))
