"""Explanations contain every delivery once, its end, the owners of the hash and the reasons of waits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch_core.explain.explanation import explanation_of
from dispatch_core.explain.record import Record
from dispatch_core.explain.subject import NothingMatchedError, subject_of
from dispatch_core.explain.tell import headline, tell
from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    ack,
    added,
    message,
    read,
    redeliver,
    removed,
    sent,
    write,
)
from tests.dispatch_core.audit.small_logs import numbered as numbered_lines
from tests.dispatch_core.audit.test_second_opinion import EVENTS, TYPES, from_lines
from tests.dispatch_core.explain.explanations import (
    ALL,
    CLASSIC,
    DRAIN,
    FAILOVER,
    NEGATIVE,
    SAMPLES,
    explained,
    flow,
    known,
    of,
    small,
    stored,
    texts,
    whats,
)

#: The samples with their traces, and the most eventful one without it.
BOTH = [*((name, "T") for name in ALL), (CLASSIC, "E"), (FAILOVER, "E")]


def test_an_entry_is_stored_sent_asked_for_again_lost_and_acknowledged(tmp_path: Path) -> None:
    events = [
        *(added(1, "a"), flow(1), sent(1, 0, 1), redeliver(1, 0), sent(1, 0), added(2, "b"), flow(2)),
        *(removed(1), sent(2, 0, 1), ack(2, 0), ack(2, 1)),
    ]
    explanation = small(tmp_path, events, stored("k", "k"), {"position": "5:0"})
    asked = ["sent", "asked_again", "redelivered", "left", "redelivered", "acked"]
    assert [what for what in whats(explanation) if what in asked] == asked
    causes = [moment.reason for moment in explanation.moments if moment.what == "redelivered"]
    assert causes == ["nack", "disconnect"]
    assert [wait.cause for wait in explanation.waits] == [None, "nack", "disconnect"]
    assert texts(explanation, "left") == ["a leaves and still held 5:0"]


def test_acks_of_parts_of_a_batch_count_when_the_last_has_come(tmp_path: Path) -> None:
    events = [added(1, "a"), flow(1), sent(1, 0), ack(1, 0, sets=[[1]]), ack(1, 0, sets=[[2]])]
    explanation = small(tmp_path, events, [message(0, "k", num_messages=2)], {"key": "k"})
    assert [moment.seq for moment in explanation.moments if moment.what == "acked"] == [5]
    assert "stored 5:0 (2 messages)" in texts(explanation, "stored")


def test_a_cumulative_ack_of_failover_takes_what_lies_before(tmp_path: Path) -> None:
    events = [added(1, "a"), flow(1), sent(1, 0, 1, 2), ack(1, 2, cumulative=True)]
    explanation = small(tmp_path, events, stored("k", "k", "x"), {"key": "k"}, subscription_type="Failover")
    assert texts(explanation, "acked") == ["a acknowledges 5:0 and 5:1"]


def test_an_entry_that_no_message_log_holds_is_explained_too(tmp_path: Path) -> None:
    events = [added(1, "a"), flow(1), sent(1, 7), ack(1, 7)]
    explanation = small(tmp_path, events, stored("k"), {"position": "5:7"})
    assert whats(explanation)[:1] == ["joined"]
    assert {"sent", "acked", "anomaly"} <= set(whats(explanation))
    assert "not in the message log" in explanation.subject.title


@pytest.mark.parametrize(
    "header", [{"subscription_type": "Shared"}, {"broker_version": None}, {"broker_version": "2.3.0"}]
)
def test_a_log_whose_rules_are_unknown_tells_what_was_sent(tmp_path: Path, header: dict[str, Any]) -> None:
    events = [added(1, "a"), flow(1), sent(1, 0), removed(1)]
    explanation = small(tmp_path, events, stored("k"), {"key": "k"}, **header)
    assert {"stored", "sent", "joined", "left"} <= set(whats(explanation))
    assert explanation.owners == []


def test_a_second_load_of_the_topic_knows_what_the_first_one_sent(tmp_path: Path) -> None:
    messages = stored("k", "k")
    first = read(write(tmp_path / "1", messages, numbered_lines([added(1, "a"), sent(1, 0)])))
    later = [
        event | {"t_us": event["t_us"] + 60_000_000}
        for event in numbered_lines([added(1, "b"), sent(1, 0, 1)])
    ]
    second = read(write(tmp_path / "2", messages, later, incarnation=2))
    record, audit = of(second, [first])
    explanation = explanation_of(record, subject_of(record, key="k"), audit)
    again = [moment for moment in explanation.moments if moment.what == "redelivered"]
    assert [(moment.positions, moment.reason) for moment in again] == [(("5:0",), "topic_reload")]
    assert [moment.seq for moment in explanation.moments if moment.what == "sent"] == [2]
    assert {moment.text for moment in explanation.moments if moment.what == "joined"} <= {"b joins"}


# --- against the audit -------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "level"), BOTH)
def test_the_explanations_of_all_keys_hold_every_delivery_once(name: str, level: str) -> None:
    record, audit = known(name, level=level)
    delivered: Counter[tuple[int, str]] = Counter()
    for key in record.history.keys.texts.to_pylist():
        explanation = explanation_of(record, subject_of(record, key=key), audit)
        for moment in explanation.moments:
            if moment.what in ("sent", "redelivered"):
                delivered.update((moment.seq, position) for position in moment.positions)
    deliveries = audit.deliveries.to_pylist()
    keyed = [row for row in deliveries if row["key"] is not None]
    assert len(keyed) > 50
    assert delivered == Counter((row["seq"], f"{row['ledger_id']}:{row['entry_id']}") for row in keyed)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ALL)
def test_the_explanations_of_all_consumers_hold_every_delivery_once(name: str) -> None:
    record, audit = known(name)
    delivered: Counter[tuple[int, str]] = Counter()
    for consumer in {connection.name for connection in record.history.consumers}:
        explanation = explanation_of(record, subject_of(record, consumer=consumer or ""), audit)
        for moment in explanation.moments:
            if moment.what in ("sent", "redelivered"):
                delivered.update((moment.seq, position) for position in moment.positions)
    assert sum(delivered.values()) == audit.deliveries.num_rows
    assert set(delivered.values()) == {1}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "level"), BOTH)
def test_every_finding_of_the_samples_can_be_explained(name: str, level: str) -> None:
    """Explain a finding by its key, entries and consumers: the story covers it and gives the reason in its first lines."""
    record, audit = known(name, level=level)
    rows = audit.anomalies.to_pylist()
    asked: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["key"] is not None:
            asked.setdefault(("key", f"base64:{row['key']}" if row["key_b64"] else row["key"]), []).append(
                row["kind"]
            )
        if (
            row["key"] is None or row["severity"] != "info"
        ):  # hundreds of findings are allowed ones: their keys are enough
            for position in row["positions"][:2]:
                asked.setdefault(("position", position), []).append(row["kind"])
        for consumer in row["consumers"]:
            asked.setdefault(("consumer", str(consumer)), []).append(row["kind"])
    assert bool(asked) == bool(rows)
    for (what, text), kinds in asked.items():
        explanation = explanation_of(record, subject_of(record, **{what: text}), audit)
        assert set(kinds) <= {row["kind"] for row in explanation.anomalies}, (what, text)
        lines = tell(explanation)
        assert len(lines) > 5
        assert all(line.isprintable() for line in lines)
        counted = "\n".join(headline(explanation))
        for kind in set(kinds):
            assert kind in counted, (what, text, kind)


# --- why ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["T", "E"])
def test_a_draining_hash_names_its_holder_and_the_pending_ids(level: str) -> None:
    explanation = explained(DRAIN, level=level, key="key-7")
    (episode,) = explanation.episodes
    assert episode.reason == "draining_hash"
    assert explanation.record.who(episode.waiting) == "c2"
    assert explanation.record.who(episode.holder) == "c1"
    assert episode.held_by == ("3:7", "3:17", "3:27", "3:37")
    assert explanation.record.positions(episode.ordinals) == ("3:47", "3:57", "3:67", "3:77")
    assert 2_600_000 < episode.longest_us < 2_800_000
    assert episode.phantom_since_us is None
    (freed,) = texts(explanation, "freed")
    assert freed == "c1 acknowledges 3:37: that lets them go"


def test_the_last_of_many_acks_ends_the_wait_of_a_consumer_that_joined_recently() -> None:
    """w8 joins while 3:171 is the last entry that was read; 17 acks by three consumers follow, until all is acknowledged."""
    record, audit = of(read(SAMPLES.parents[1] / "stalls" / "4.2.4" / "stall-classic"))
    explanation = explanation_of(record, subject_of(record, key="key-8"), audit)
    (freed,) = [moment for moment in explanation.moments if moment.seq == 409]
    assert freed.text == "w8 acknowledges 3:169 to 3:171: that lets them go"


@pytest.mark.parametrize(("name", "level"), BOTH)
def test_the_parts_of_a_wait_follow_one_another_and_give_its_shares(name: str, level: str) -> None:
    _, audit = known(name, level=level)
    listed = [wait for wait in audit.sampled_waits if wait.first_position and wait.until_t_us is not None]
    assert len(listed) > 5 or name == NEGATIVE
    for wait in listed:
        edges = [part.from_t_us for part in wait.parts]
        assert edges[0] == wait.from_t_us
        assert [part.until_t_us for part in wait.parts] == [*edges[1:], wait.until_t_us]
        by_reason: Counter[str | None] = Counter()
        for part in wait.parts:
            assert part.until_t_us is not None
            by_reason[part.reason] += part.until_t_us - part.from_t_us
        assert +by_reason == Counter(dict(wait.shares))


def test_a_wait_is_cut_where_its_reason_changes() -> None:
    """17:137 waits 306 ms because its hash drains, then 301 ms because its consumer has no permits."""
    explanation = explained("designed-rolling-restart-ch", position="17:137")
    first, second = explanation.episodes
    assert [(episode.reason, episode.held_by[:1]) for episode in (first, second)] == [
        ("draining_hash", ("17:42",)),
        ("no_permits", ("17:32",)),
    ]
    assert first.until_us == second.from_us
    assert first.whole_us == second.whole_us == first.longest_us + second.longest_us
    record = explanation.record
    assert [record.who(episode.holder) for episode in (first, second)] == [
        "w2 (connection 3)",
        "w0 (connection 4)",
    ]
    said = headline(explanation)
    assert said[0].startswith(
        "It waited 306 ms, from 08:24:16.617 until 08:24:16.923: w2 (connection 3) still held 17:42"
    )
    assert "That was a part of 607 ms; of the rest, no_permits held it for 301 ms" in said[0]
    assert texts(explanation, "freed") == [
        "w2 (connection 3) acknowledges 17:42: draining_hash no longer holds it",
        "w0 (connection 4) asks for 20 more: that lets it go",
    ]


def test_the_first_sentence_is_about_the_largest_part_also_if_no_rule_explains_it(tmp_path: Path) -> None:
    """5:1 waits 7 s, of which its consumer has no permits for it for 1 s."""
    events = [added(1, "a"), flow(1, 1), sent(1, 0), flow(1, 5), sent(1, 1) | {"t_us": T0_US + 8_000_000}]
    said = headline(small(tmp_path, events, stored("k", "k"), {"position": "5:1"}))
    assert said[0].startswith(
        "The longest wait for a delivery was 7.00 s: for 6.00 s of it no rule held it back"
    )
    assert said[1].startswith("It waited 1.00 s, from 00:00:03.000 until 00:00:04.000: a had no permits left")
    assert "That was a part of 7.00 s; of the rest, no rule held it for 6.00 s" in said[1]


@pytest.mark.parametrize("name", ALL)
def test_audit_and_explanation_name_the_same_holder(name: str) -> None:
    _, audit = known(name)
    checked = 0
    for wait in audit.sampled_waits:
        if wait.first_position is None or wait.reason in (None, "no_read") or wait.holder is None:
            continue
        parts = [part for part in wait.parts if part.reason == wait.reason]
        assert wait.holder in {part.holder for part in parts}
        checked += 1
    assert checked > 0 or name in (NEGATIVE, FAILOVER)


@pytest.mark.parametrize("level", ["T", "E"])
def test_the_owner_of_a_hash_names_who_moved_it_and_what_was_pending(level: str) -> None:
    explanation = explained(DRAIN, level=level, key="key-7")
    assert [explanation.record.who(owner.consumer) for owner in explanation.owners] == ["c1", "c2"]
    assert [(owner.moved_by, owner.moved_how) for owner in explanation.owners] == [
        (1, "joined"),
        (2, "joined"),
    ]
    moves = [moment for moment in explanation.moments if moment.what == "owns"]
    assert moves[1].positions == ("3:7", "3:17", "3:27", "3:37")
    assert moves[1].holder == 1


@pytest.mark.parametrize("level", ["T", "E"])
def test_an_order_violation_names_the_move_that_made_it_possible(level: str) -> None:
    said = "\n".join(headline(explained(CLASSIC, level=level, key="key-32")))
    assert "went backwards at w2 (connection 6): it got 21:123" in said
    assert "It came about at 08:24:22.731" in said
    assert "w2 (connection 6) joins and owns the hash, which was w1 (connection 5)'s" in said
    assert "still holds 21:55" in said
    assert "read-position rule" in said


@pytest.mark.parametrize("level", ["T", "E"])
def test_failover_names_the_active_consumers(level: str) -> None:
    explanation = explained(FAILOVER, level=level, position="107:0")
    assert [explanation.record.who(owner.consumer) for owner in explanation.owners] == [
        "c3",
        "c2",
        "c3",
        "c0",
    ]
    assert [explanation.record.who(owner.moved_by) for owner in explanation.owners][:3] == ["c3", "c2", "c2"]
    assert "rewound to the mark-delete position" in "\n".join(texts(explanation, "redelivered"))
    assert "double_outstanding" in "\n".join(headline(explanation))


def test_a_request_for_redelivery_is_no_fault() -> None:
    explanation = explained(NEGATIVE, key="key-2")
    assert explanation.found == 0
    assert "Allowed, and counted: 2 overtaken_redelivery, 4 redelivered." in headline(explanation)
    assert "c1 asks for 11:2 and 11:23 again" in texts(explanation, "asked_again")


def test_only_a_trace_tells_of_reads() -> None:
    assert "read" in whats(explained(DRAIN, key="key-7"))
    assert "read" not in whats(explained(DRAIN, level="E", key="key-7"))


def test_moments_stand_in_the_order_of_the_log() -> None:
    for name in ALL:
        explanation = explained(name, consumer=known(name)[0].history.consumers[0].name or "")
        assert [m.order for m in explanation.moments] == sorted(m.order for m in explanation.moments)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, min_size=4, max_size=25), TYPES)
def test_anything_in_a_log_can_be_explained(events: list[dict[str, Any]], subscription_type: str) -> None:
    log = from_lines(numbered_lines([added(1), added(2), *events]), subscription_type)
    record, audit = Record.of(log), audit_whole(log)
    for whom in ({"key": "k0"}, {"position": "5:5"}, {"consumer": "worker-1"}):
        try:
            explanation = explanation_of(record, subject_of(record, **whom), audit)
        except NothingMatchedError:
            continue
        delivered = [p for m in explanation.moments if m.what in ("sent", "redelivered") for p in m.positions]
        own = {record.position(o) for o in explanation.subject.ordinals.tolist()}
        rows = audit.deliveries.to_pylist()
        expected = [f"{row['ledger_id']}:{row['entry_id']}" for row in rows]
        if whom.keys() == {"consumer"}:
            expected = [p for p, row in zip(expected, rows, strict=True) if row["consumer"] == 1]
        assert Counter(delivered) == Counter(p for p in expected if p in own)
        assert all(line.isprintable() for line in tell(explanation, record.span_us[0]))
