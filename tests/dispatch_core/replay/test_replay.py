"""Replay of one dispatcher for one interval: the result tables and which interval a row belongs to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import with_overrides
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.assembler import Replay
from dispatch_core.replay.divergence_anomalies import in_batches
from dispatch_core.replay.replay_log import replay
from dispatch_core.replay.statistics import stats_at
from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.tables import REPLAY_TABLES
from tests.dispatch_core.logs_without_trace import stripped

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
DAY = datetime(2026, 11, 21, tzinfo=UTC)
NEXT = DAY + timedelta(days=1)


def log_of(name: str) -> DispatcherLog:
    (source,) = find_recordings([str(SAMPLE / name)])
    return read_recording(source).logs[0]


@pytest.fixture(scope="module")
def rolling() -> DispatcherLog:
    return log_of("designed-rolling-restart-ch")


@pytest.fixture(scope="module")
def whole_day(rolling: DispatcherLog) -> dict[str, pa.Table]:
    return replay(rolling, interval_start=DAY, interval_end=NEXT)


def test_tables_have_their_schemas_and_their_interval(whole_day: dict[str, pa.Table]) -> None:
    assert set(whole_day) == set(REPLAY_TABLES)
    for name, table in whole_day.items():
        assert table.schema.names == REPLAY_TABLES[name].names
        assert set(table["interval_start"].to_pylist()) <= {DAY}
    state = whole_day["dispatcher_state"].to_pylist()[0]
    assert (state["decisions"], state["exact"], state["divergent"]) == (8368, 8368, 0)
    assert state["entries_sent"] == whole_day["deliveries"].num_rows == 1241
    assert set(whole_day["deliveries"]["judgement"].to_pylist()) == {"exact"}


def test_ownership_covers_the_ring_at_every_moment(whole_day: dict[str, pa.Table]) -> None:
    rows = whole_day["ownership"].to_pylist()
    moments = sorted(
        {row["from_seq"] for row in rows} | {row["until_seq"] for row in rows if row["until_seq"]}
    )
    assert len(moments) > 5
    for moment in moments:
        owned = [
            row["range_end"] - row["range_start"] + 1
            for row in rows
            if row["from_seq"] <= moment and (row["until_seq"] is None or moment < row["until_seq"])
        ]
        assert sum(owned) in (0, 65535)


@pytest.mark.parametrize("name", ["designed-rolling-restart-classic-ch", "designed-rolling-restart-ch"])
def test_ownership_without_a_replay_follows_joins_and_leaves(name: str) -> None:
    """From the user-level log alone: the same owners as the trace gives, and the whole ring of the selector."""
    log = log_of(name)
    kept = log.events.filter(
        pc.is_in(log.events["kind"], pa.array(["consumer_added", "consumer_removed", "sent"]))
    )
    alone = replay(replace(log, events=kept), interval_start=DAY, interval_end=NEXT)
    rows = alone["ownership"].to_pylist()
    first = min(row["from_seq"] for row in rows)
    whole = 2147483646 if "classic" in name else 65535
    assert [row["range_end"] - row["range_start"] + 1 for row in rows if row["from_seq"] == first] == [whole]
    if "classic" not in name:
        traced = replay(log, interval_start=DAY, interval_end=NEXT)["ownership"].to_pylist()
        spans = [[(r["consumer"], r["range_start"], r["range_end"]) for r in part] for part in (rows, traced)]
        assert spans[0] == spans[1]


def test_blocked_hashes_name_their_holder_and_end(
    rolling: DispatcherLog, whole_day: dict[str, pa.Table]
) -> None:
    rows = whole_day["blocked"].to_pylist()
    recorded = rolling.events["kind"].to_pylist().count("draining_blocked")
    assert sum(row["blocked_attempts"] for row in rows) == recorded > 0
    draining = [row for row in rows if row["reason"] == "draining_hash"]
    assert len(draining) > 10
    for row in draining:
        assert row["holder_name"]
        assert row["consumer_name"]
        assert row["consumer"] != row["holder"]
        assert row["entries"] >= 1
        assert row["until_seq"] is None or row["until_seq"] > row["from_seq"]


def test_two_intervals_together_are_the_whole(rolling: DispatcherLog, whole_day: dict[str, pa.Table]) -> None:
    """The state at the cut is the fold of what was before: nothing is lost, doubled or judged otherwise."""
    times = rolling.events["t_us"].to_pylist()
    cut = datetime.fromtimestamp(times[len(times) // 2] / 1e6, UTC)
    parts = [
        replay(rolling, interval_start=DAY, interval_end=cut),
        replay(rolling, interval_start=cut, interval_end=NEXT),
    ]
    for name in ("deliveries", "divergences", "anomalies"):
        joined = pa.concat_tables([part[name].drop_columns(["interval_start"]) for part in parts])
        assert joined.equals(whole_day[name].drop_columns(["interval_start"])), name
    counts = [part["dispatcher_state"].to_pylist()[0] for part in parts]
    whole = whole_day["dispatcher_state"].to_pylist()[0]
    for name in ("events", "entries_sent", "rounds", "decisions", "exact"):
        assert sum(count[name] for count in counts) == whole[name], name
    assert counts[1]["state_json"] == whole["state_json"]


def test_a_rule_that_is_not_replayed_still_gives_deliveries_and_findings() -> None:
    """With precise flow control a read's size depends on a consumer that the broker picks at random."""
    log = with_overrides(
        log_of("designed-rolling-restart-classic-ch"), settings={"preciseDispatcherFlowControl": True}
    )
    result = replay(log, interval_start=DAY, interval_end=NEXT)
    state = result["dispatcher_state"].to_pylist()[0]
    assert "preciseDispatcherFlowControl" in state["not_judged_reason"]
    assert (state["decisions"], state["state_json"]) == (0, None)
    assert set(result["deliveries"]["judgement"].to_pylist()) == {"not_judged"}
    kinds = result["anomalies"]["kind"].to_pylist()
    assert (kinds.count("out_of_order"), kinds.count("split_key")) == (23, 40)


def test_the_state_keeps_the_statistics_at_its_end(rolling: DispatcherLog) -> None:
    """As `topics stats` shows them; hash ranges are a table of their own."""
    times = rolling.events["t_us"].to_pylist()
    cut = datetime.fromtimestamp(times[len(times) // 2] / 1e6, UTC)
    state = replay(rolling, interval_start=DAY, interval_end=cut)["dispatcher_state"].to_pylist()[0]
    expected = stats_at(rolling, state["last_seq"])
    assert len(expected["consumers"]) == 2
    for consumer in expected["consumers"]:
        del consumer["keyHashRangeArrays"]
    assert json.loads(state["state_json"]) == expected


def test_a_tampered_delivery_is_a_divergence_with_both_answers(rolling: DispatcherLog) -> None:
    events = rolling.events.to_pylist()
    sent = next(row for row in events if row["kind"] == "sent" and row["seq"] > 100)
    sent["consumer"] = sent["consumer"] % 3 + 1
    tampered = replace(rolling, events=pa.Table.from_pylist(events, schema=rolling.events.schema))
    result = replay(tampered, interval_start=DAY, interval_end=NEXT)
    first = result["divergences"].to_pylist()[0]
    assert (first["seq"], first["decision_class"], first["status"]) == (sent["seq"], "dispatch", "divergent")
    found = [row for row in result["anomalies"].to_pylist() if row["kind"] == "divergence"]
    position = "{ledger_id}:{entry_id}".format_map(sent["positions"][0])
    assert position in [shown for row in found for shown in row["positions"]]
    judged = result["deliveries"].filter(pc.equal(result["deliveries"]["seq"], sent["seq"]))
    assert set(judged["judgement"].to_pylist()) == {"divergent"}


def test_divergences_of_a_trace_are_told_as_the_whole_audit_tells_them(rolling: DispatcherLog) -> None:
    """One finding per sending that differs, not one per decision; and nothing of another interval."""
    other_ring = {"subscriptionKeySharedConsistentHashingReplicaPoints": 50}
    log = with_overrides(log_of("designed-drain-one-by-one-ch"), None, other_ring)
    result = replay(log, interval_start=DAY, interval_end=NEXT, closed=True)

    def divergences(anomalies: pa.Table) -> list[dict[str, object]]:
        rows = anomalies.drop_columns("interval_start").to_pylist()
        return [row for row in rows if row["kind"] == "divergence"]

    assert divergences(result["anomalies"]) == divergences(audit_whole(log).anomalies)
    differing = pc.sum(pc.equal(result["divergences"]["status"], "divergent")).as_py()
    assert 1 < len(divergences(result["anomalies"])) < differing
    later = replay(log, interval_start=NEXT, interval_end=NEXT + timedelta(days=1))
    assert divergences(later["anomalies"]) == []


def test_divergences_are_reported_alike_when_a_log_comes_in_batches() -> None:
    other_ring = {"subscriptionKeySharedConsistentHashingReplicaPoints": 50}
    log = with_overrides(stripped(log_of("designed-drain-one-by-one-ch")), None, other_ring)
    whole = replay(log, interval_start=DAY, interval_end=NEXT)
    head = replace(log, messages=log.messages.slice(0, 0))
    again = Replay(head, interval_start=DAY, interval_end=NEXT)
    cut = log.events.num_rows // 2

    def batches() -> Iterator[dict[str, pa.Table]]:
        yield again.feed(log.messages, log.events.slice(0, cut), log.events.slice(cut))
        yield again.feed(log.messages.slice(0, 0), log.events.slice(cut))
        yield again.finish()

    found = pa.concat_tables([batch["anomalies"] for batch in in_batches(head, DAY, batches())])
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, whole["anomalies"].to_pylist()))
    assert "divergence" in found["kind"].to_pylist()


def test_a_user_level_log_has_its_sendings_put_to_the_rules(rolling: DispatcherLog) -> None:
    kinds = ["consumer_added", "consumer_removed", "flow", "sent", "ack", "redeliver"]
    kept = rolling.events.filter(pc.is_in(rolling.events["kind"], pa.array(kinds)))
    renumbered = kept.set_column(
        kept.schema.get_field_index("seq"),
        kept.schema.field("seq"),
        pa.array(range(1, kept.num_rows + 1), pa.int64()),
    )
    result = replay(replace(rolling, events=renumbered), interval_start=DAY, interval_end=NEXT)
    state = result["dispatcher_state"].to_pylist()[0]
    assert state["not_judged_reason"] is None
    assert (state["rounds"], state["decisions"], state["exact"]) == (0, 1241, 1241)
    assert result["deliveries"].num_rows == 1241
    assert set(result["anomalies"]["kind"].to_pylist()) == {"redelivered"}


def test_what_an_earlier_incarnation_sent_is_a_topic_reload(rolling: DispatcherLog) -> None:
    again = replace(rolling, incarnation=1)
    result = replay(again, interval_start=DAY, interval_end=NEXT, earlier=[rolling])
    assert "topic_reload" in result["anomalies"]["cause"].to_pylist()
