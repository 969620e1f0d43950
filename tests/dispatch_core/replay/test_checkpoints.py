"""The rules over a log that begins with a checkpoint: nothing certain that the whole log refutes; batches change nothing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.recording import rewrite, stream, table_rows
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.replay.statistics import stats_at
from dispatch_core.tables import REPLAY_TABLES
from dispatch_core.times import from_micros
from dispatch_core.what_if.compare import rows_of
from dispatch_core.what_if.recorded import load_of
from dispatch_core.what_if.rules import RECORDED
from tests.dispatch_core.audit.test_checkpoint_state import cut
from tests.dispatch_core.logs_without_trace import DATA, recorded
from tests.dispatch_core.replay.test_log_files import LOGS, gathered, written

Tables = dict[str, pa.Table]
SHARES = (0.3, 0.7)


def spanned(log: DispatcherLog) -> dict[str, Any]:
    """An interval that holds all of a log."""
    day = from_micros(log.events["t_us"][0].as_py()).replace(hour=0, minute=0, second=0, microsecond=0)
    return {"interval_start": day, "interval_end": day + timedelta(days=2)}


def certain(tables: Tables) -> Counter[Any]:
    """Findings that are no matter of degree."""
    return Counter(
        (row["kind"], row["key"], row["positions"][0] if row["positions"] else "", row["seqs"][-1])
        for row in tables["anomalies"].to_pylist()
        if not row["uncertain"]
    )


def judgements(log: DispatcherLog, tables: Tables, since: int) -> Counter[str]:
    rows = tables["deliveries"].to_pylist()
    return Counter(row["judgement"] for row in rows if row["seq"] > since)


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("share", SHARES)
def test_nothing_is_certain_that_the_whole_log_refutes(name: str, share: float) -> None:
    log = recorded(name)
    part = cut(log, int(share * log.events.num_rows))
    since = part.events["seq"][0].as_py()
    whole, found = replay(log, **spanned(log)), replay(part, **spanned(log))
    assert not certain(found) - certain(whole)
    state = found["dispatcher_state"].to_pylist()[0]
    assert (state["divergent"], state["not_judged_reason"]) == (0, None)
    assert state["mark_delete"] == whole["dispatcher_state"]["mark_delete"][0].as_py()
    # nobody is a stranger: what the rules decide in the whole log they decide in the part
    assert judgements(log, found, since)["not_judged"] == judgements(log, whole, since)["not_judged"]
    sent = [(row["seq"], row["consumer"], row["consumer_name"]) for row in found["deliveries"].to_pylist()]
    same = [(row["seq"], row["consumer"], row["consumer_name"]) for row in whole["deliveries"].to_pylist()]
    assert sent == [row for row in same if row[0] > since]


def test_what_differs_from_the_rules_is_uncertain_where_a_checkpoint_says_too_little() -> None:
    log = recorded("recordings/4.2.4/designed-failover-modulo-p1")
    part = cut(log, int(0.7 * log.events.num_rows))
    line = part.events.slice(0, 1).to_pylist()[0]
    said = json.loads(line["checkpoint_json"])
    # without their priorities another one of the consumers is active
    said["consumers"] = [consumer["consumer"] for consumer in said["consumers"]]
    first = pa.Table.from_pylist([line | {"checkpoint_json": json.dumps(said)}], schema=part.events.schema)
    found = replay(replace(part, events=pa.concat_tables([first, part.events.slice(1)])), **spanned(log))
    assert set(found["deliveries"]["judgement"].to_pylist()) == {"uncertain"}
    assert {kind for kind, *_ in certain(found)} == {"redelivered"}


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("share", SHARES)
def test_batches_give_what_the_whole_part_gives(
    name: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = recorded(name)
    part = cut(log, int(share * log.events.num_rows))
    monkeypatch.setattr(stream, "BATCH_ROWS", 40)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", 40)
    in_batches = gathered(replay_files(written(part, tmp_path, row_group_rows=40), **spanned(log)))
    whole = replay(part, **spanned(log))
    for table in REPLAY_TABLES:
        assert in_batches[table] == whole[table].to_pylist(), table


def with_ranges(part: DispatcherLog, whole: Tables) -> DispatcherLog:
    """The part with the ranges of each consumer in its checkpoint, as ``topics stats`` would have shown them there."""
    line = part.events.slice(0, 1).to_pylist()[0]
    owned: dict[int, list[list[int]]] = {}
    for row in whole["ownership"].to_pylist():
        if row["from_seq"] <= line["seq"] and (row["until_seq"] is None or row["until_seq"] > line["seq"]):
            owned.setdefault(row["consumer"], []).append([row["range_start"], row["range_end"]])
    said = json.loads(line["checkpoint_json"])
    said["consumers"] = [
        (consumer if isinstance(consumer, dict) else {"consumer": consumer}) | {"hash_ranges": owned[number]}
        for consumer in said["consumers"]
        if (number := consumer["consumer"] if isinstance(consumer, dict) else consumer) in owned
    ]
    first = pa.Table.from_pylist([line | {"checkpoint_json": json.dumps(said)}], schema=part.events.schema)
    return replace(part, events=pa.concat_tables([first, part.events.slice(1)]))


def test_split_ranges_go_on_from_those_of_the_checkpoint() -> None:
    """The connected consumers do not show which of them split a range: some that did so have left."""
    log = recorded("verify/4.2.4/random-0000-range-quiet")
    whole = replay(log, **spanned(log))
    without = 0
    for share in (0.3, 0.7):
        part = cut(log, int(share * log.events.num_rows))
        since = part.events["seq"][0].as_py()
        expected = judgements(log, whole, since)
        assert judgements(log, replay(with_ranges(part, whole), **spanned(log)), since) == expected
        without += judgements(log, replay(part, **spanned(log)), since)["uncertain"] - expected["uncertain"]
    assert without > 150


def test_hashes_of_pending_entries_drain_and_what_the_checkpoint_leaves_open_is_not_shown() -> None:
    (source,) = find_recordings([DATA / "recordings/4.2.4/designed-drain-one-by-one-ch"])
    (trace,) = read_recording(source).logs
    events, source_seq = rewrite.without_trace(trace.events)
    at = int(np.searchsorted(source_seq, 200))
    part = cut(replace(trace, events=events), at)
    expected = stats_at(trace, int(source_seq[at]) - 1)  # what the last line asked for has been done
    draining = [
        [(row["hash"], row["unackMsgs"]) for row in consumer["drainingHashes"]]
        for consumer in expected["consumers"]
    ]
    assert any(draining)
    line = part.events.slice(0, 1).to_pylist()[0]
    for counted in (True, False):
        said = json.loads(line["checkpoint_json"])
        for consumer, shown in zip(said["consumers"], expected["consumers"], strict=True):
            if counted:
                consumer |= {"permits": shown["availablePermits"], "unacked": shown["unackedMessages"]}
        first = pa.Table.from_pylist(
            [line | {"checkpoint_json": json.dumps(said)}], schema=part.events.schema
        )
        found = replay(replace(part, events=first), **spanned(part))
        state = json.loads(found["dispatcher_state"]["state_json"][0].as_py())
        names = ["availablePermits", "unackedMessages", "drainingHashesCount"]
        for consumer, shown, its in zip(state["consumers"], expected["consumers"], draining, strict=True):
            assert "drainingHashesClearedTotal" not in consumer
            if counted:
                assert [consumer[name] for name in names] == [shown[name] for name in names]
                assert [(row["hash"], row["unackMsgs"]) for row in consumer["drainingHashes"]] == its
            else:
                assert set(consumer).isdisjoint([*names, "drainingHashes"])
        assert ("unackedMessages" in state) == counted


def test_other_rules_are_tried_on_a_dispatcher_at_work_as_after_a_restart() -> None:
    """Entries that the checkpoint shows as acknowledged are not sent; its consumers connect at its time, with permits."""
    log = recorded("recordings/4.2.4/designed-rolling-restart-ch")
    part = cut(log, int(0.5 * log.events.num_rows))
    load, whole = load_of(part), load_of(log)
    assert load.begins_at_work
    assert not whole.begins_at_work
    state = CheckpointState.of(part.events)
    assert state is not None
    connected = [consumer.number for consumer in state.checkpoint.consumers or ()]
    assert connected
    assert [join.number for join in load.joins][: len(connected)] == connected
    assert load.flows[0][: len(connected)].tolist() == [state.t_us] * len(connected)
    assert (load.flows[2][: len(connected)] > 0).all()
    pending = {position for positions in state.checkpoint.pending.values() for position in positions}
    left = set(zip(*(load.messages[name].to_pylist() for name in ("ledger_id", "entry_id")), strict=True))
    assert pending <= left
    assert not any(state.acknowledged(position) for position in left)
    (row,) = rows_of(part, [RECORDED], seeds=[0])
    assert row.problem is None
    assert row.recorded is not None
    assert row.recorded.never_sent == 0
    assert row.same_first_consumer == 1.0
    assert row.not_measured is not None
    assert any("as after a restart of the broker" in text for text in row.assumptions)
    new = with_fault(log, 1, [])  # a dispatcher that has just been made: nothing came before
    assert len(load_of(new).joins) == len(whole.joins)


def with_fault(log: DispatcherLog, seq: int, consumers: list[int]) -> DispatcherLog:
    """``log`` behind a checkpoint of ``consumers`` at ``seq``; its last entry goes to another consumer than it went to."""
    rows = log.events.to_pylist()
    last = max(at for at, row in enumerate(rows) if row["kind"] == "sent")
    others = {row["consumer"] for row in rows if row["kind"] == "consumer_added"}
    others -= {row["consumer"] for row in rows[:last] if row["kind"] == "consumer_removed"}
    rows[last]["consumer"] = min(others - {rows[last]["consumer"]})
    header = [row for row in rows if row["kind"] == "header"]
    lines = [row | {"seq": row["seq"] + seq} for row in rows if row["kind"] != "header"]
    said = {"consumers": consumers, "mark_delete": "0:-1", "read_position": "0:0"}
    first = dict.fromkeys(log.events.schema.names) | {
        name: lines[0][name] for name in ("cluster", "topic", "subscription", "incarnation", "t_us")
    }
    first |= {"seq": seq, "kind": "checkpoint", "checkpoint_json": json.dumps({"kind": "checkpoint", **said})}
    return replace(log, events=pa.Table.from_pylist([*header, first, *lines], schema=log.events.schema))


@pytest.mark.parametrize(
    ("seq", "consumers", "judgement"), [(1, [], "divergent"), (7, [], "uncertain"), (1, [99], "uncertain")]
)
def test_a_dispatcher_that_has_just_been_made_is_judged_as_from_the_beginning_of_a_log(
    seq: int, consumers: list[int], judgement: str
) -> None:
    log = with_fault(recorded("recordings/4.2.4/designed-rolling-restart-ch"), seq, consumers)
    found = replay(log, **spanned(log))
    judged = found["deliveries"]["judgement"].to_pylist()
    assert judged[-1] == judgement
    if judgement == "divergent":
        rest = replace(log, events=log.events.filter(pc.not_equal(log.events["kind"], "checkpoint")))
        assert judged == replay(rest, **spanned(rest))["deliveries"]["judgement"].to_pylist()


def with_gap(log: DispatcherLog, first: int, second: int) -> DispatcherLog:
    """The log without its rows [first, second); in their place a gap line, then the checkpoint of the state there."""
    rest = cut(log, second)
    row = dict.fromkeys(log.events.schema.names)
    after = rest.events.slice(0, 1).to_pylist()[0]
    row |= {
        name: after[name] for name in ("cluster", "topic", "subscription", "broker", "incarnation", "t_us")
    }
    numbers = log.events["seq"].slice(first, second - first).to_pylist()
    row |= {"kind": "gap", "seq": numbers[0], "gap_from_seq": numbers[0], "gap_to_seq": numbers[-2]}
    row |= {"gap_lines": len(numbers) - 1}
    gap = pa.Table.from_pylist([row], schema=log.events.schema)
    return replace(log, events=pa.concat_tables([log.events.slice(0, first), gap, rest.events]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(("first", "second"), [(0.0, 0.3), (0.2, 0.3), (0.4, 0.7)])
def test_behind_lost_lines_a_log_goes_on_from_the_checkpoint(name: str, first: float, second: float) -> None:
    log = recorded(name)
    count = log.events.num_rows
    lost = with_gap(log, int(first * count), int(second * count))
    whole, found = replay(log, **spanned(log)), replay(lost, **spanned(log))
    seqs = lost.events["seq"].to_pylist()
    assert {kind for kind, *_ in certain(found) - certain(whole)} == {"log_gap"}
    assert [row["reason"] for row in found["anomalies"].to_pylist() if row["kind"] == "log_gap"] == [
        "gap_line"
    ]
    columns = ["seq", "consumer", "ledger_id", "entry_id"]
    kept = [tuple(row.values()) for row in whole["deliveries"].select(columns).to_pylist()]
    sent = [tuple(row.values()) for row in found["deliveries"].select(columns).to_pylist()]
    assert sent == [row for row in kept if row[0] in seqs and row[0] != seqs[int(first * count) + 1]]
    (state,) = found["dispatcher_state"].to_pylist()
    assert (state["entries_sent"], state["divergent"], state["not_judged_reason"]) == (len(sent), 0, None)
    # behind the gap as much is judged as in the log that begins there
    part = replay(cut(log, int(second * count)), **spanned(log))
    assert judgements(lost, found, seqs[int(first * count) + 1]) == judgements(log, part, 0)
    spans = found["ownership"].to_pylist()
    assert all(row["until_seq"] is not None for row in spans if row["from_seq"] < seqs[int(first * count)])


def test_what_is_split_behind_lost_lines_is_certain_where_the_checkpoint_shows_who_holds_it() -> None:
    log = recorded("recordings/4.2.4/designed-rolling-restart-classic-ch")
    whole = replay(log, **spanned(log))["anomalies"].to_pylist()
    times = dict(zip(log.events["seq"].to_pylist(), log.events["t_us"].to_pylist(), strict=True))
    splits = [row["seqs"] for row in whole if row["kind"] == "split_key"]
    sent, proof = next(seqs for seqs in splits if times[seqs[-1]] - times[seqs[0]] > 100_000)
    found = replay(with_gap(log, sent - 20, sent), **spanned(log))["anomalies"].to_pylist()
    there = [row for row in found if row["kind"] == "split_key" and row["seqs"][-1] == proof]
    # seq counts from 1: the checkpoint stands in the place of the line that sent it
    assert (sent, False) in [(row["seqs"][0], row["uncertain"]) for row in there]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [20, 1000])
@pytest.mark.parametrize("name", LOGS)
def test_a_log_with_lost_lines_comes_in_batches(
    name: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = recorded(name)
    count = log.events.num_rows
    lost = with_gap(log, count // 3, count // 2)
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    found = gathered(replay_files(written(lost, tmp_path, row_group_rows=max(rows, 40)), **spanned(log)))
    whole = replay(lost, **spanned(log))
    for table in REPLAY_TABLES:
        assert found[table] == whole[table].to_pylist(), table
