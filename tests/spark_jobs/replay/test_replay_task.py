"""One replay task without Spark: what it makes of lines that stand twice in its tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay import replay_log
from dispatch_core.replay.judge_without_trace import WithoutTraceJudge
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.replay.replay_task import replay_dispatchers
from spark_jobs.warehouse.contracts import conform, file_schema
from tests.dispatch_core.logs_without_trace import stripped

DAY = interval("2026-11-21")
SAMPLE = Path(__file__).parents[2] / "data" / "recordings" / "4.2.4"


@pytest.fixture(scope="module")
def log() -> DispatcherLog:
    return read_recording(find_recordings([SAMPLE / "designed-failover-modulo-p1"])[0]).logs[0]


def replayed(folder: Path, *logs: DispatcherLog) -> tuple[dict[str, list[Any]], str | None]:
    """Result tables of the dispatcher whose tables hold the rows of all ``logs``, and why it was not judged."""
    folder.mkdir()
    dispatcher: dict[str, Any] = {
        name: getattr(logs[0], name) for name in ("cluster", "topic", "subscription")
    }
    for name, table in (("consumer_events", "events"), ("messages", "messages")):
        path = folder / f"{name}.parquet"
        pq.write_table(
            pa.concat_tables(conform(getattr(log, table), file_schema(name)) for log in logs), path
        )
        dispatcher[{"consumer_events": "event_files", "messages": "message_files"}[name]] = [str(path)]
    staging = folder / "staging"
    staging.mkdir()
    staged = replay_dispatchers([dispatcher], Location.of(staging), DAY)
    tables = {row["table"]: pq.read_table(row["path"]).to_pylist() for row in staged if row["table"]}
    return tables, next(row["not_judged_reason"] for row in staged if not row["table"])


def elsewhere(table: pa.Table) -> pa.Table:
    """The same rows from another file."""
    column = table.column_names.index("source_file")
    return table.set_column(column, "source_file", pa.array(["other/trace.jsonl"] * table.num_rows))


def test_lines_that_came_twice_count_once(log: DispatcherLog, tmp_path: Path) -> None:
    again = replace(log, events=elsewhere(log.events), messages=elsewhere(log.messages))
    (tables, reason), (once, _) = (
        replayed(tmp_path / "twice", log, again, again),
        replayed(tmp_path / "once", log),
    )
    named = [row for row in tables["anomalies"] if row["kind"] == "repeated_lines"]
    tables["anomalies"] = [row for row in tables["anomalies"] if row not in named]
    once.setdefault("anomalies", [])
    assert (tables, reason) == (once, None)
    assert len(named) == 1
    assert (
        f"segment other/trace.jsonl repeats lines 2 to {log.events.num_rows + 1}" in named[0]["explanation"]
    )


def test_two_logs_of_one_dispatcher_are_not_mixed(log: DispatcherLog, tmp_path: Path) -> None:
    later = log.events.set_column(
        log.events.column_names.index("t_us"), log.events.schema.field("t_us"), pc.add(log.events["t_us"], 1)
    )
    tables, reason = replayed(tmp_path / "x", log, replace(log, events=elsewhere(later)))
    assert reason is not None
    assert "seq 1 stands twice and differs" in reason
    assert "other/trace.jsonl, line 2" in reason
    assert [state["not_judged_reason"] for state in tables.pop("dispatcher_state")] == [reason]
    assert [row["entries"] for row in tables.pop("waits")] == [0]
    assert tables == {}


def test_entries_with_another_size_are_the_same_and_those_that_differ_otherwise_are_not_mixed(
    log: DispatcherLog, tmp_path: Path
) -> None:
    def changed(name: str) -> DispatcherLog:
        values = pc.add(log.messages[name], 1).cast(log.messages.schema.field(name).type)
        other = log.messages.set_column(
            log.messages.column_names.index(name), log.messages.schema.field(name), values
        )
        return replace(log, messages=elsewhere(other))

    tables, reason = replayed(tmp_path / "size", log, changed("size_bytes"))
    assert reason is None
    named = [row["reason"] for row in tables["anomalies"] if row["kind"] == "repeated_lines"]
    assert named.count("size_differs") == 1
    _tables, reason = replayed(tmp_path / "batch", log, changed("num_messages"))
    assert reason is not None
    assert "position 107:0 stands twice and differs" in reason


def life(incarnation: int, at_us: int, entry: int) -> list[dict[str, Any]]:
    """The lines of a load of the topic in which one consumer comes, gets one entry, acknowledges it and leaves."""
    what: list[dict[str, Any]] = [
        {
            "kind": "checkpoint",
            "consumers": [],
            "mark_delete": f"5:{entry - 1}",
            "read_position": f"5:{entry}",
        },
        {"kind": "consumer_added", "name": "c1", "key_shared": {"mode": "AUTO_SPLIT"}},
        {"kind": "flow", "permits": 100, "blocked": False},
        {"kind": "sent", "positions": [f"5:{entry}"], "batch_sizes": [1]},
        {"kind": "ack", "ack_type": "Individual", "positions": [f"5:{entry}"]},
        {"kind": "consumer_removed"},
    ]
    return [
        {"incarnation": incarnation, "seq": seq, "t_us": at_us + 1000 * seq, "consumer": 1} | line
        for seq, line in enumerate(what, 1)
    ]


def headed(log: DispatcherLog) -> pa.Table:
    """The log's lines behind its header, which the tables keep as a row."""
    names = {name: getattr(log, name) for name in ("cluster", "topic", "subscription", "incarnation")}
    row = names | {"seq": 0, "t_us": 0, "kind": "header", "header_json": json.dumps(log.header)}
    return pa.concat_tables([pa.Table.from_pylist([row], schema=log.events.schema), log.events])


@pytest.mark.parametrize("published_after_s", [60, 30], ids=["after the reload", "while the broker was away"])
def test_what_comes_after_a_reload_does_not_wait_for_the_load_before(
    tmp_path: Path, published_after_s: int
) -> None:
    begin_us = DAY.start_us + 3_600_000_000
    loads = [life(1, begin_us, 0), life(2, begin_us + 60_000_000, 1)]
    header = {
        "format": "pulsar-consumer-events", "format_version": "1.0", "broker_version": "4.2.4",
        "topic": "persistent://public/default/t", "subscription": "audit", "subscription_type": "Key_Shared",
    }  # fmt: skip
    stored = [
        {"topic": header["topic"], "position": f"5:{entry}", "key": "k", "producer": "p", "sequence_id": entry,
         "publish_time_ms": begin_us // 1000 + 1000 * published_after_s * entry, "num_messages": 1, "size_bytes": 1}
        for entry in (0, 1)
    ]  # fmt: skip
    source = tmp_path / "source"
    source.mkdir()
    lines = [header | {"incarnation": 1}, *loads[0], header | {"incarnation": 2}, *loads[1]]
    for name, rows in (("events", lines), ("messages", stored)):
        (source / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    logs = read_recording(find_recordings([source])[0]).logs
    assert [log.incarnation for log in logs] == [1, 2]
    whole = replace(logs[0], events=pa.concat_tables(headed(log) for log in logs))
    tables, reason = replayed(tmp_path / "x", whole)
    assert reason is None
    assert [row["explanation"] for row in tables.get("anomalies", [])] == []
    assert [row["entry_id"] for row in tables["deliveries"]] == [0, 1]


def outcomes(folder: Path, log: DispatcherLog) -> list[dict[str, Any]]:
    """The task's rows about the dispatcher, without those about files."""
    folder.mkdir()
    dispatcher: dict[str, Any] = {name: getattr(log, name) for name in ("cluster", "topic", "subscription")}
    for name, table in (("consumer_events", "events"), ("messages", "messages")):
        path = folder / f"{name}.parquet"
        pq.write_table(conform(getattr(log, table), file_schema(name)), path)
        dispatcher[{"consumer_events": "event_files", "messages": "message_files"}[name]] = [str(path)]
    staging = folder / "staging"
    staging.mkdir()
    return [row for row in replay_dispatchers([dispatcher], Location.of(staging), DAY) if not row["table"]]


def test_a_log_that_is_replayed_as_a_whole_says_why(log: DispatcherLog, tmp_path: Path) -> None:
    lines = log.events.to_pylist()
    backwards = replace(
        log, events=pa.Table.from_pylist([*lines[:50], lines[40], *lines[50:]], log.events.schema)
    )
    (whole,) = outcomes(tmp_path / "whole", backwards)
    assert whole["not_judged_reason"] is None
    assert "lines are not in order" in whole["whole_log_reason"]
    for name, batchwise in (("trace", log), ("without", stripped(log))):
        (outcome,) = outcomes(tmp_path / name, batchwise)
        assert (outcome["not_judged_reason"], outcome["whole_log_reason"]) == (None, None)


def test_a_replay_that_fails_is_reported_and_not_tried_in_another_way(
    log: DispatcherLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such rule")

    monkeypatch.setattr(WithoutTraceJudge, "take", fails)
    monkeypatch.setattr(replay_log, "replay", lambda *_, **__: pytest.fail("the whole log was replayed"))
    (outcome,) = outcomes(tmp_path / "x", stripped(log))
    assert "RuntimeError: no such rule" in outcome["not_judged_reason"]
    assert outcome["whole_log_reason"] is None
    state = pq.read_table(
        next((tmp_path / "x" / "staging" / "dispatcher_state").rglob("*.parquet"))
    ).to_pylist()
    assert [row["not_judged_reason"] for row in state] == [outcome["not_judged_reason"]]
