"""Operations on the cursor, policies and marks of a trace: replayed, compared, and not judged where a clock decides."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.broker import cursor_moves
from dispatch_core.broker.cursor import acknowledge, moved_by_read
from dispatch_core.broker.pending_acks import hold
from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.replay_set import add_to_replay, clear_replay, remove_up_to
from dispatch_core.broker.state import (
    LEAKED_LOW,
    MARK_DELETE,
    N_REPLAY,
    NONE_LEAKED,
    READ_POSITION,
    example_state,
)
from dispatch_core.verify.trace.late_entries import STORED_WITHIN_US, LateEntries
from dispatch_core.verify.trace.limits_in_force import DeliverTimes, Limit, LimitsInForce, of_mark
from dispatch_core.verify.trace.runner import Verification
from tests.dispatch_core.verify import tampering as t

DATA = Path(__file__).resolve().parents[2] / "data" / "operations"
SKIP = DATA / "4.0.0" / "ops-0000-skip-ch"
EXPIRE = DATA / "4.2.4" / "ops-0003-expire-to-ch"
CLEAR = DATA / "4.2.4" / "ops-0019-clear-failover"
RESET = DATA / "4.2.4" / "ops-0022-reset-back-failover"
UNACKED = DATA / "4.2.4" / "legal-3002-unacked-policy-ch"
DELETED = DATA / "4.0.0" / "legal-3013-unsubscribed-failover"
MADE_AGAIN = DATA / "4.0.0" / "legal-3018-unsubscribed-classic-ch"
RATE = DATA / "4.2.4" / "legal-2011-rate-failover"
ALL = (SKIP, EXPIRE, CLEAR, RESET)

Line = dict[str, Any]
Change = Callable[[list[Line]], None]


def tampered(folder: Path, change: Change, where: Path) -> Verification:
    """Verify a copy of a recording whose trace was changed."""
    trace = t.raw(folder)
    change(trace)
    return t.verified(t.copy_with(folder, trace, where))


def operations(trace: list[Line], op: str) -> list[Line]:
    """Return the lines of an operation after the first consumer joined."""
    first = t.places(trace, "consumer_added")[0]
    return [line for line in trace[first:] if line.get("kind") == "cursor_op" and line["op"] == op]


def moved(position: str, by: int) -> str:
    """Return the position so many entries on."""
    ledger, entry = position.split(":")
    return f"{ledger}:{int(entry) + by}"


@pytest.mark.parametrize("folder", ALL, ids=lambda folder: folder.name)
def test_recordings_with_operations_follow_the_rules(folder: Path) -> None:
    result = t.verified(folder)
    assert result.tally.first_divergence is None
    assert result.tally.total("divergent") == 0
    assert result.tally.not_judged == {}
    formula = t.published_formula(t.raw(folder))
    assert {
        name: counts["decisions"] for name, counts in result.tally.counts.items() if counts["decisions"]
    } == {name: count for name, count in formula.items() if count}


# --- a changed line shows --------------------------------------------------------------------------------------------


def _target(op: str, by: int, *, after: str | None = None) -> Change:
    def change(trace: list[Line]) -> None:
        lines = operations(trace, op)
        if after is not None:
            asked = operations(trace, after)[0]["seq"]
            lines = [line for line in lines if line["seq"] > asked]
        lines[0]["target"] = moved(lines[0]["target"], by)

    return change


def _entries(trace: list[Line]) -> None:
    operations(trace, "skip")[0]["entries"] += 2


def _dropped(op: str) -> Change:
    def change(trace: list[Line]) -> None:
        trace.remove(operations(trace, op)[0])

    return change


def _state(field: str, value: str) -> Change:
    def change(trace: list[Line]) -> None:
        trace[t.places(trace, "cursor_state")[0]][field] = value

    return change


CHANGES: list[tuple[str, Path, Change]] = [
    ("a skip of more entries", SKIP, _entries),
    ("a skip that goes too far", SKIP, _target("mark_delete", 3, after="skip")),
    ("a skip without its move", SKIP, _dropped("mark_delete")),
    ("an expiry that goes less far", EXPIRE, _target("mark_delete", -20)),
    ("an expiry that goes farther", EXPIRE, _target("mark_delete", 9)),
    ("an expiry that is not logged", EXPIRE, _dropped("mark_delete")),
    ("a cleared backlog that leaves entries", CLEAR, _target("mark_delete", -5, after="clear_backlog")),
    ("a clear without its move", CLEAR, lambda trace: trace.remove(operations(trace, "mark_delete")[3])),
    ("a reset to another position", RESET, _target("reset", 3)),
    ("a reset that is not logged", RESET, _dropped("reset")),
    ("another mark-delete when all is quiet", EXPIRE, _state("mark_delete", "7:100")),
    (
        "other acknowledged entries when all is quiet",
        EXPIRE,
        _state("individually_deleted", "[(7:124..7:125]]"),
    ),
]


@pytest.mark.parametrize(
    ("folder", "change"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES]
)
def test_a_changed_operation_diverges(folder: Path, change: Change, tmp_path: Path) -> None:
    assert tampered(folder, change, tmp_path).tally.total("divergent") > 0


def test_a_release_that_is_missing_after_a_trim_diverges(tmp_path: Path) -> None:
    def change(trace: list[Line]) -> None:
        moved_at = trace.index(operations(trace, "mark_delete")[0])
        trace.remove(next(line for line in trace[moved_at:] if line["kind"] == "draining_release"))

    assert tampered(EXPIRE, change, tmp_path).tally.counts["draining"]["divergent"] > 0


# --- what was stored then --------------------------------------------------------------------------------------------


def test_an_entry_published_right_before_makes_the_end_uncertain(tmp_path: Path) -> None:
    """The log does not say whether it was stored when the backlog was cleared: both targets may be right."""
    trace = t.raw(CLEAR)
    clear = operations(trace, "clear_backlog")[0]
    move = next(line for line in operations(trace, "mark_delete") if line["seq"] > clear["seq"])
    copy = t.copy_with(CLEAR, trace, tmp_path)
    rows = []
    with gzip.open(CLEAR / "messages.jsonl.gz", "rt", encoding="utf-8") as lines:
        for text in lines:
            row = json.loads(text)
            if row.get("position") == moved(move["target"], 1):
                row["publish_time_ms"] = clear["t_us"] // 1000 - 1
            rows.append(row)
    with gzip.open(copy / "messages.jsonl.gz", "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    result = t.verified(copy)
    assert result.tally.total("divergent") == 0
    assert [finding.racing_seq for finding in t.decided(result)] == [clear["seq"]]


def test_entries_are_stored_after_their_publish_time_and_in_order() -> None:
    log = t.find_recordings([str(CLEAR)])
    (source,) = log
    (first,) = t.read_recording(source).logs
    late = LateEntries(first.messages)
    times = [value * 1000 for value in first.messages["publish_time_ms"].to_pylist()]
    assert late.stored_by(times[-1] + STORED_WITHIN_US + 1000, 0) == (len(times), len(times))
    assert late.stored_by(times[0] - 1, 0) == (0, 0)
    assert late.stored_by(times[0] - 1, 5) == (5, 5)  # what was read was stored


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", range(-1, 8))
def test_a_move_forward_keeps_the_invariants_of_the_cursor(target: int) -> None:
    """All up to mark-delete is deleted, the entry behind it is not, and mark-delete never goes back."""
    st = example_state(entries=8)
    moved_by_read(st, 5)
    for entry in (0, 3, 4):
        acknowledge(st, entry)
    for entry in (1, 2, 5):
        hold(st, 0, entry, 0)
    pending = cursor_moves.move_forward(st, target)
    mark_delete = int(st.s[MARK_DELETE])
    assert mark_delete >= max(target, 0)
    assert st.deleted[: mark_delete + 1].all()
    assert mark_delete == 7 or not st.deleted[mark_delete + 1]
    assert int(st.s[READ_POSITION]) == max(6, mark_delete + 1)
    assert pending == [entry for entry in (1, 2, 5) if entry <= target]
    assert all(st.holder[entry] == 0 for entry in (1, 2, 5))


@pytest.mark.parametrize("entry", range(9))
def test_a_reset_leaves_nothing_acknowledged_behind_it(entry: int) -> None:
    st = example_state(entries=8)
    moved_by_read(st, 5)
    for acked in (0, 1, 4, 6):
        acknowledge(st, acked)
    cursor_moves.reset(st, entry)
    assert (int(st.s[MARK_DELETE]), int(st.s[READ_POSITION])) == (entry - 1, entry)
    assert st.deleted.tolist() == [1] * entry + [0] * (8 - entry)


def test_a_skip_passes_as_many_unacknowledged_entries_as_it_was_asked_for() -> None:
    st = example_state(entries=12)
    for acked in (0, 3, 4, 7):
        acknowledge(st, acked)
    for entries in range(1, 9):
        target = cursor_moves.target_of_skip(st, entries, stored=12)
        assert int((st.deleted[1 : target + 1] == 0).sum()) == entries
    assert cursor_moves.target_of_skip(st, 9, stored=12) == 11


def test_hashes_of_trimmed_positions_stay_counted_until_the_set_is_empty() -> None:
    st = example_state(entries=6, hashes=6)
    for entry in (1, 3, 5):
        add_to_replay(st, entry, entry)
    remove_up_to(st, 3, 0)
    assert (int(st.s[N_REPLAY]), st.replay_count.tolist(), int(st.s[LEAKED_LOW])) == (
        1,
        [0, 1, 0, 1, 0, 1],
        1,
    )
    clear_replay(st)
    assert (st.replay_count.tolist(), int(st.s[LEAKED_LOW])) == ([0] * 6, NONE_LEAKED)
    assert (st.replay_hash == -1).all()


@pytest.mark.parametrize(
    ("entry", "ledger_start", "kept"),
    [
        (3, 2, [0, 0, 0, 0, 0, 1]),  # position 1 lies in an earlier ledger
        (1, 1, [0, 0, 0, 1, 0, 1]),  # all of the ledger up to entry 1
        (3, 0, [0, 1, 0, 1, 0, 1]),
    ],
)
def test_hashes_go_with_an_earlier_ledger_or_a_whole_beginning(
    entry: int, ledger_start: int, kept: list[int]
) -> None:
    st = example_state(entries=6, hashes=6)
    for position in (1, 3, 5):
        add_to_replay(st, position, position)
    remove_up_to(st, entry, ledger_start)
    assert st.replay_count.tolist() == kept


def test_only_some_releases_trim_after_a_move() -> None:
    releases = ("3.0.17", "4.0.0", "4.0.10", "4.0.11", "4.1.3", "4.2.1", "4.2.2")
    trims = [release for release in releases if cursor_moves.trims_after_a_move(resolve(release))]
    assert trims == ["4.0.11", "4.2.2"]
    classic = resolve("4.2.4", {"subscriptionKeySharedUseClassicPersistentImplementation": True})
    assert not cursor_moves.trims_after_a_move(classic)


# --- limits and marks ------------------------------------------------------------------------------------------------


def test_marks_stand_for_limits_and_other_words_do_not() -> None:
    assert of_mark("limit dispatch_rate 15 messages a second set") == Limit("dispatch_rate", True, 15)
    assert of_mark("limit unacked_namespace removed") == Limit("unacked_namespace", False)
    assert of_mark("compaction") == Limit("compacted_read", True)
    assert [of_mark(note) for note in ("skip", "drain", "refused: ConflictException", "limit")] == [None] * 4


def test_a_limit_of_the_topic_counts_before_one_of_the_namespace() -> None:
    limits = LimitsInForce()
    limits.take(Limit("unacked_namespace", True, 8))
    limits.take(Limit("unacked_topic", True, 3))
    assert limits.unacked() == 3
    limits.take(Limit("unacked_topic", False))
    assert limits.unacked() == 8
    limits.take(Limit("unacked_namespace", False))
    assert limits.unacked() is None


def _mark(note: str) -> Change:
    def change(trace: list[Line]) -> None:
        at = t.places(trace, "consumer_added")[0]
        trace.insert(at, {**trace[at], "kind": "step", "note": note})
        for seq, line in enumerate(trace[1:], 1):
            line["seq"] = seq

    return change


def _read(trace: list[Line], number: int = 0) -> Line:
    """Return a read that returned fewer entries than it might have, counted from 0."""
    reads = t.places(trace, "read_issued")
    found = []
    for at, following in pairwise(reads):
        done = [
            line for line in trace[at:following] if line["kind"] == "read_done" and line["type"] == "Normal"
        ]
        if done and len(done[0]["positions"]) < trace[at]["max_entries"]:
            found.append(trace[at])
    return found[number]


@pytest.mark.parametrize("folder", [SKIP, CLEAR], ids=lambda folder: folder.name)
def test_under_a_dispatch_rate_smaller_reads_are_not_judged_and_larger_ones_diverge(
    folder: Path, tmp_path: Path
) -> None:
    def by(difference: int) -> Change:
        def change(trace: list[Line]) -> None:
            _mark("limit dispatch_rate 15 messages a second set")(trace)
            _read(trace)["max_entries"] += difference

        return change

    less = tampered(folder, by(-1), tmp_path)
    assert less.tally.total("divergent") == 0
    assert [sum(counts.values()) for counts in less.tally.not_judged.values()] == [1]
    assert "decisions_not_judged" in less.as_json()
    assert tampered(folder, by(1), tmp_path).tally.counts["read"]["divergent"] == 1


def test_a_policy_reaches_the_dispatcher_after_the_mark_of_its_end() -> None:
    """The first read behind ``limit dispatch_rate removed`` is still limited; one of 30 entries shows the end."""
    result = t.verified(RATE)
    assert result.tally.total("divergent") == 0
    (left,) = result.tally.not_judged.values()
    assert left == {"read": 4}


@pytest.mark.parametrize(("rate", "status"), [(15, "divergent"), (100_000, "not judged")])
def test_a_read_of_more_than_a_rate_that_has_ended_shows_that_it_is_gone(
    rate: int, status: str, tmp_path: Path
) -> None:
    """Behind such a read a smaller one diverges again."""

    def change(trace: list[Line]) -> None:
        _mark(f"limit dispatch_rate {rate} messages a second set")(trace)
        _mark("limit dispatch_rate removed")(trace)
        _read(trace, -1)["max_entries"] -= 1

    result = tampered(CLEAR, change, tmp_path)
    left = sum(sum(counts.values()) for counts in result.tally.not_judged.values())
    assert (result.tally.counts["read"]["divergent"], left) == ((1, 0) if status == "divergent" else (0, 1))


@pytest.mark.parametrize(("after_us", "diverges"), [(1_900_000, False), (2_100_000, True)])
def test_a_rate_may_hold_before_the_line_that_a_recorder_writes_of_it(
    after_us: int, diverges: bool, tmp_path: Path
) -> None:
    def change(trace: list[Line]) -> None:
        read = _read(trace)
        read["max_entries"] -= 1
        t_us = read["t_us"] + after_us
        at = next((at for at, line in enumerate(trace[1:], 1) if line["t_us"] > t_us), len(trace))
        limit = {"kind": "limit", "what": "dispatch_rate", "value": 15, "active": True}
        trace.insert(at, {"seq": 0, "t_us": t_us, **limit})
        for seq, line in enumerate(trace[1:], 1):
            line["seq"] = seq

    result = tampered(CLEAR, change, tmp_path)
    assert (result.tally.total("divergent") == 1) == diverges
    assert bool(result.tally.not_judged) != diverges


def test_without_a_rate_a_smaller_read_diverges(tmp_path: Path) -> None:
    def less(trace: list[Line]) -> None:
        _read(trace)["max_entries"] -= 1

    assert tampered(SKIP, less, tmp_path).tally.counts["read"]["divergent"] == 1


def test_nothing_is_judged_behind_a_compacted_read(tmp_path: Path) -> None:
    result = tampered(CLEAR, _mark("compaction"), tmp_path)
    counts = {name: found["decisions"] for name, found in result.tally.counts.items() if found["decisions"]}
    (left,) = result.tally.not_judged.values()
    assert result.tally.total("divergent") == 0
    joins = {name: counts[name] for name in ("active", "position")}  # consumers join in front of the mark
    assert {name: counts[name] for name in left} == left | joins


def test_what_follows_an_early_read_of_a_delayed_entry_is_not_judged(tmp_path: Path) -> None:
    copy = t.copy_with(EXPIRE, t.raw(EXPIRE), tmp_path)
    rows = []
    with gzip.open(EXPIRE / "messages.jsonl.gz", "rt", encoding="utf-8") as lines:
        for text in lines:
            row = json.loads(text)
            if row.get("position") == "7:60":
                row["deliver_at_ms"] = row["publish_time_ms"] + 3_600_000
            rows.append(row)
    with gzip.open(copy / "messages.jsonl.gz", "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    result = t.verified(copy)
    assert result.tally.total("divergent") == 0
    assert result.tally.total("exact") > 0
    (left,) = result.tally.not_judged.values()
    assert sum(left.values()) + result.tally.total("exact") + result.tally.total(
        "uncertain"
    ) == result.tally.total("decisions")


def test_deliver_times_follow_the_window_of_entries() -> None:
    (source,) = t.find_recordings([str(CLEAR)])
    (log,) = t.read_recording(source).logs
    times = DeliverTimes(log.messages)
    assert not times.any_later(range(10), 0)
    times.drop(log.messages.num_rows)
    assert not times.any_later([], 0)


def test_batches_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatch_core.verify.trace.facts import TraceFacts
    from dispatch_core.verify.trace.verification import TraceVerification

    for folder in ALL:
        whole = t.verified(folder)
        verified = TraceVerification(whole.log, TraceFacts().with_lines(whole.log.events))
        verified.extend(whole.log.messages)
        for start in range(0, whole.log.events.num_rows, 97):
            verified.feed(whole.log.events.slice(start, 97), whole.log.events.slice(start + 97))
        assert asdict(verified.finish()) == asdict(whole.tally)


# --- policies and deletions of real runs -----------------------------------------------------------------------------


def _moved(note: str, kind: str, number: int) -> Change:
    """Move the mark with a note before the last line but ``number`` of a kind in front of it."""

    def change(trace: list[Line]) -> None:
        at = next(at for at in t.places(trace, "step") if trace[at]["note"] == note)
        mark = trace.pop(at)
        before = [place for place in t.places(trace, kind) if place < at][-1 - number]
        trace.insert(before, mark)
        for seq, line in enumerate(trace[1:], 1):
            line["seq"] = seq

    return change


def test_acks_in_front_of_a_mark_are_tested_against_the_limit_before(tmp_path: Path) -> None:
    """The last ack in front of ``limit unacked_namespace removed`` leaves its consumer blocked, under the limit of 8."""
    assert t.verified(UNACKED).tally.total("divergent") == 0
    earlier = _moved("limit unacked_namespace removed", "ack", 0)
    assert tampered(UNACKED, earlier, tmp_path).tally.total("divergent") > 0


def test_the_dispatcher_of_a_deleted_subscription_may_still_rewind() -> None:
    """The failover delay ends behind the mark "subscription deleted"; no consumer is connected any more."""
    result = t.verified(DELETED)
    assert result.tally.total("divergent") == result.tally.total("uncertain") == 0


def test_a_subscription_made_again_begins_at_the_end(tmp_path: Path) -> None:
    """Without the mark of its deletion the rewind of its first consumer diverges."""

    def change(trace: list[Line]) -> None:
        trace[:] = [line for line in trace if line.get("note") != "subscription deleted"]
        for seq, line in enumerate(trace[1:], 1):
            line["seq"] = seq

    assert t.verified(MADE_AGAIN).tally.total("divergent") == 0
    assert tampered(MADE_AGAIN, change, tmp_path).tally.total("divergent") > 0
