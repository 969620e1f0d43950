"""Entries of producers whose clocks differ: a log cut into intervals by publish time gives what the whole log gives."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dispatch_core.errors import NotStreamableError
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.schema import EVENTS
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from dispatch_core.times import from_micros
from tests.dispatch_core.logs_without_trace import recorded
from tests.dispatch_core.replay.test_log_files import gathered

NEXT = datetime(2026, 11, 25, tzinfo=UTC)
LOG = "recordings/4.2.4/designed-rolling-restart-ch"
SKEWS_MS = (3, -3, 250, 10_000, -10_000)


def skewed(log: DispatcherLog, by_ms: int) -> DispatcherLog:
    """Return a log in which the clock of the producer of every second entry goes ahead."""
    ahead_ms = np.where(np.arange(log.messages.num_rows) % 2, by_ms, 0)
    published = pc.add(log.messages["publish_time_ms"], pa.array(ahead_ms))
    producers = pa.array(["on time" if not ahead else "ahead" for ahead in ahead_ms])
    names = log.messages.column_names
    messages = log.messages.set_column(names.index("publish_time_ms"), "publish_time_ms", published)
    return replace(log, messages=messages.set_column(names.index("producer"), "producer", producers))


def in_intervals(log: DispatcherLog, folder: Path, *boundaries_us: int, rows: int = 40) -> dict[str, Any]:
    """Write the files of intervals that end at the boundaries, and of one more."""
    identity = {name: getattr(log, name) for name in ("cluster", "topic", "subscription", "incarnation")}
    header = pa.Table.from_pylist(
        [
            identity
            | {"broker": log.broker, "kind": "header", "seq": 0, "header_json": json.dumps(log.header)}
        ],
        schema=EVENTS,
    )
    found: dict[str, list[str]] = {"events": [], "messages": []}
    edges = [-(1 << 62), *boundaries_us, 1 << 62]
    for number, (start, end) in enumerate(pairwise(edges)):
        published_us = pc.multiply(log.messages["publish_time_ms"], 1000)
        for name, table, times in (
            ("events", log.events, log.events["t_us"]),
            ("messages", log.messages, published_us),
        ):
            inside = pc.fill_null(pc.and_(pc.greater_equal(times, start), pc.less(times, end)), True)
            part = table.filter(inside)
            if name == "events":
                part = pa.concat_tables([header, part])
            if part.num_rows:
                path = folder / f"{name}-{number}.parquet"
                pq.write_table(part, path, row_group_size=rows)
                found[name].append(str(path))
    dispatcher: dict[str, Any] = {name: getattr(log, name) for name in ("cluster", "topic", "subscription")}
    return dispatcher | {"event_files": found["events"], "message_files": found["messages"]}


def middle_us(log: DispatcherLog) -> int:
    """Return the publish time of the entry in the middle: a boundary between two intervals."""
    times_ms = np.sort(log.messages["publish_time_ms"].to_numpy())
    return 1000 * int(times_ms[len(times_ms) // 2])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [7, 400])
@pytest.mark.parametrize("skew_ms", SKEWS_MS)
def test_a_boundary_among_entries_of_two_clocks_gives_what_the_whole_log_gives(
    skew_ms: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    log = recorded(LOG)
    boundary_us = middle_us(log) + 1000 * min(max(skew_ms, 0), 250)
    log = skewed(log, skew_ms)
    files = in_intervals(log, tmp_path, boundary_us)
    positions = [pq.read_table(path)["entry_id"].to_pylist() for path in files["message_files"]]
    assert max(positions[0]) > min(positions[1])
    span = {"interval_start": from_micros(boundary_us), "interval_end": NEXT}
    streamed = gathered(replay_files(files, **span))
    whole = replay(log, **span)
    assert len(streamed["deliveries"]) > 50
    for table in REPLAY_TABLES:
        assert streamed[table] == whole[table].to_pylist(), table


@pytest.mark.parametrize("rows", [7, 400])
@pytest.mark.parametrize("skew_ms", [250, 10_000])
def test_the_interval_before_the_boundary_needs_what_its_lines_name_and_no_more(
    skew_ms: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that it names and a producer's clock puts behind the boundary come in a file of their own, the last one."""
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    log = recorded(LOG)
    boundary_us = middle_us(log) + 1000 * min(skew_ms, 250)
    log = skewed(log, skew_ms)
    files = in_intervals(log, tmp_path, boundary_us)
    named = log.events.filter(pc.less(log.events["t_us"], boundary_us))
    highest = max((at["ledger_id"], at["entry_id"]) for at in pc.list_flatten(named["positions"]).to_pylist())
    later = pq.read_table(files["message_files"][1])
    places = zip(later["ledger_id"].to_pylist(), later["entry_id"].to_pylist(), strict=True)
    ahead = later.filter(pa.array([place <= highest for place in places]))
    assert 0 < ahead.num_rows < later.num_rows
    pq.write_table(ahead, files["message_files"][1], row_group_size=40)
    span = {"interval_start": from_micros(0), "interval_end": from_micros(boundary_us)}
    streamed = gathered(
        replay_files(files | {"event_files": files["event_files"][:1]}, **span, to_last_line=True)
    )
    whole = replay(log, **span, to_last_line=True)
    assert len(streamed["deliveries"]) > 50
    for table in REPLAY_TABLES:
        assert streamed[table] == whole[table].to_pylist(), table
    with pytest.raises(NotStreamableError, match="is not in the message log"):
        gathered(replay_files(files | {"message_files": files["message_files"][:1]}, **span))


def test_entries_without_a_publish_time_come_once_though_every_interval_has_them(tmp_path: Path) -> None:
    log = recorded(LOG)
    boundary_us = middle_us(log)
    times = [
        None if row % 3 == 0 else time_ms
        for row, time_ms in enumerate(log.messages["publish_time_ms"].to_pylist())
    ]
    column = log.messages.column_names.index("publish_time_ms")
    log = replace(
        log, messages=log.messages.set_column(column, "publish_time_ms", pa.array(times, pa.int64()))
    )
    files = in_intervals(log, tmp_path, boundary_us - 2_000_000, boundary_us)
    assert sum(pq.read_metadata(path).num_rows for path in files["message_files"]) > log.messages.num_rows
    span = {"interval_start": from_micros(boundary_us), "interval_end": NEXT}
    streamed = gathered(replay_files(files, **span))
    whole = replay(log, **span)
    for table in REPLAY_TABLES:
        assert streamed[table] == whole[table].to_pylist(), table


def test_two_lines_about_one_entry_that_differ_are_left_to_the_whole_log(tmp_path: Path) -> None:
    log = recorded(LOG)
    boundary_us = middle_us(log)
    files = in_intervals(log, tmp_path, boundary_us)
    first, second = (pq.read_table(path) for path in files["message_files"])
    repeated = first.slice(first.num_rows - 1)
    other = repeated.set_column(repeated.column_names.index("size_bytes"), "size_bytes", pa.array([1]))
    pq.write_table(pa.concat_tables([other.cast(second.schema), second]), files["message_files"][1])
    with pytest.raises(NotStreamableError, match="holds a position twice"):
        gathered(replay_files(files, interval_start=from_micros(boundary_us), interval_end=NEXT))
