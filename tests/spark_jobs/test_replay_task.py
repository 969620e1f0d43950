"""One replay task without Spark: what it makes of lines that stand twice in its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from spark_jobs.contracts import conform, file_schema
from spark_jobs.intervals import interval
from spark_jobs.replay_task import replay_dispatchers

DAY = interval("2026-11-21")
SAMPLE = Path(__file__).parents[1] / "data" / "recordings" / "4.2.4"


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
            pa.concat_tables(conform(getattr(one, table), file_schema(name)) for one in logs), path
        )
        dispatcher[{"consumer_events": "event_files", "messages": "message_files"}[name]] = [str(path)]
    staging = folder / "staging"
    staging.mkdir()
    staged = replay_dispatchers([dispatcher], staging, DAY)
    tables = {row["table"]: pq.read_table(row["path"]).to_pylist() for row in staged if row["table"]}
    return tables, next(row["not_judged_reason"] for row in staged if not row["table"])


def elsewhere(table: pa.Table) -> pa.Table:
    """The same rows from another file."""
    column = table.column_names.index("source_file")
    return table.set_column(column, "source_file", pa.array(["other/trace.jsonl"] * table.num_rows))


def test_lines_that_came_twice_count_once(log: DispatcherLog, tmp_path: Path) -> None:
    again = replace(log, events=elsewhere(log.events), messages=elsewhere(log.messages))
    assert replayed(tmp_path / "twice", log, again, again) == replayed(tmp_path / "once", log)


def test_two_logs_of_one_dispatcher_are_not_mixed(log: DispatcherLog, tmp_path: Path) -> None:
    later = log.events.set_column(
        log.events.column_names.index("t_us"), log.events.schema.field("t_us"), pc.add(log.events["t_us"], 1)
    )
    tables, reason = replayed(tmp_path / "x", log, replace(log, events=elsewhere(later)))
    assert reason is not None
    assert "seq 1 stands twice and differs" in reason
    assert "other/trace.jsonl, line 2" in reason
    assert [state["not_judged_reason"] for state in tables.pop("dispatcher_state")] == [reason]
    assert tables == {}


def test_two_entries_at_one_position_are_not_mixed(log: DispatcherLog, tmp_path: Path) -> None:
    column = log.messages.column_names.index("size_bytes")
    other = log.messages.set_column(column, "size_bytes", pc.add(log.messages["size_bytes"], 1)).cast(
        log.messages.schema
    )
    _tables, reason = replayed(tmp_path / "x", log, replace(log, messages=elsewhere(other)))
    assert reason is not None
    assert "position 107:0 stands twice and differs" in reason
