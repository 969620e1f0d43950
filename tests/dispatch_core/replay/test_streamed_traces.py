"""A dispatcher trace batch by batch out of Parquet files, or as one batch: the same tables, row for row.

``make conformance-all`` takes every recording with every size of batches.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dispatch_core.errors import NotStreamableError
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import with_overrides
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay import log_files
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from dispatch_core.times import from_micros
from dispatch_core.verify.trace import lines_ahead, verification
from dispatch_core.verify.trace.verification import TraceVerification
from tests.dispatch_core.logs_without_trace import stripped
from tests.dispatch_core.replay.test_log_files import (
    DAY,
    NEXT,
    folder,
    gathered,
    rows_of_two_loads,
    second_incarnation,
    written,
)
from tests.sample import some

DATA = Path(__file__).resolve().parents[2] / "data"
SAMPLES = sorted(str(path.parent.relative_to(DATA)) for path in DATA.glob("*/*/*/trace.jsonl*"))
#: Their cursor is reset to an entry that does not matter any more.
RESET_FAR = ("races/4.0.0/soak-81593-exclusive-racing",)
#: Delayed messages end the comparison of its decisions, before any entry is settled.
ENDS_EARLY = "stalls/4.0.0/soak-82225-ch-racing"
#: Batches of so many lines; with fewer than there are lines ahead, a batch needs several of the next ones.
SIZES = [50, 1000]
#: Lines that are looked ahead: more than any critical section of the samples has.
HORIZON = 150


def traced(name: str) -> DispatcherLog:
    """The log of a recording, with its trace."""
    (source,) = find_recordings([str(DATA / name)])
    (log,) = read_recording(source).logs
    return log


def compare(
    log: DispatcherLog, folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int, horizon: int = HORIZON
) -> None:
    """Replay a log streamed in batches of so many rows, and as a whole, for the day and for its second half."""
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    monkeypatch.setattr(lines_ahead, "HORIZON", horizon)
    for module in (lines_ahead, verification, log_files):
        monkeypatch.setattr(module, "LOOK_AHEAD", 2 * horizon)
    dispatcher = written(log, folder, row_group_rows=max(rows, 20))
    times_us = log.events["t_us"].to_pylist()
    first, end = from_micros(times_us[0]), from_micros(times_us[-1]) + timedelta(days=1)
    for start in (first, from_micros(times_us[len(times_us) // 2])):
        in_batches = gathered(replay_files(dispatcher, interval_start=start, interval_end=end))
        whole = replay(log, interval_start=start, interval_end=end)
        for table in REPLAY_TABLES:
            assert in_batches[table] == whole[table].to_pylist(), table


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "rows"), some(itertools.product(SAMPLES, SIZES), 9))
def test_batches_give_what_the_whole_trace_gives(
    name: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(traced(name), tmp_path, monkeypatch, rows)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    [
        "recordings/4.2.4/designed-failover-modulo-p1",
        "verify/4.0.0-preview.1/designed-negative-acks-range",
        "verify/4.0.0/designed-slow-owner-newcomer-classic-ch",
        "verify/4.2.4/designed-slow-owner-newcomer-ch",
    ],
)
def test_a_batch_may_be_a_single_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = traced(name)
    beginning = replace(log, events=log.events.slice(0, 130))  # each batch takes its time
    compare(beginning, tmp_path, monkeypatch, 1)


def test_a_reset_whose_consumer_joins_in_a_later_batch_is_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(traced("races/4.2.4/soak-13046-classic-shared-quiet"), tmp_path, monkeypatch, 30)


@pytest.mark.parametrize("rows", SIZES)
def test_a_trace_that_differs_from_its_rules_is_judged_by_its_deliveries_too(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = {"subscriptionKeySharedUseConsistentHashing": False}
    log = with_overrides(traced("recordings/4.2.4/designed-drain-one-by-one-ch"), None, ranges)
    assert replay(log, interval_start=DAY, interval_end=NEXT)["dispatcher_state"]["divergent"][0].as_py() > 3
    compare(log, tmp_path, monkeypatch, rows)


def test_entries_skipped_before_the_comparison_ends_are_found_in_a_later_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where the comparison ends, the audit itself looks for what was skipped."""
    monkeypatch.setattr(stream, "BEGINNING_LINES", 1)  # else this log is one batch
    log = traced(ENDS_EARLY)
    start = from_micros(log.events["t_us"][0].as_py())
    found = replay(log, interval_start=start, interval_end=start + timedelta(days=1))["anomalies"]
    assert "never_delivered" in found["kind"].to_pylist()
    compare(log, tmp_path, monkeypatch, 30)


@pytest.fixture
def entries_in_memory(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Drop entries as early as can be; the list gets for each batch the number dropped, and of those in memory."""
    monkeypatch.setattr(verification, "KEEP_BEHIND", 20)
    monkeypatch.setattr(verification, "TRIM_ABOVE", 0)
    monkeypatch.setattr(stream, "BEGINNING_LINES", 1)  # else these logs are one batch
    seen: list[tuple[int, int]] = []
    extend = TraceVerification.extend

    def noted(self: TraceVerification, messages: pa.Table) -> int:
        dropped = extend(self, messages)
        seen.append((dropped, len(self.entries)))
        return dropped

    monkeypatch.setattr(TraceVerification, "extend", noted)
    return seen


#: Entries are dropped between a decision and the finding about it, which names an ack.
NAMES_ACKS = ("races/4.0.0/soak-80453-ch-racing", "races/4.2.4/soak-80210-classic-range-quiet")
#: A line shows later that an entry which a move passed had been acknowledged.
PASSED_ACKED = "races/4.2.4/soak-82453-failover-racing"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", sorted({*some(SAMPLES, 7), *NAMES_ACKS, PASSED_ACKED}))
def test_entries_that_matter_no_more_are_dropped_and_change_nothing(
    name: str, entries_in_memory: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinal that is not lowered with the others names another entry, and the tables differ.

    A log whose cursor is reset to an entry that was dropped is replayed as a whole.
    """
    log = traced(name)
    if name in RESET_FAR:
        with pytest.raises(NotStreamableError, match="lies before the window that is kept"):
            compare(log, tmp_path, monkeypatch, 30)
        return
    compare(log, tmp_path, monkeypatch, 30)
    dropped = [count for count, _ in entries_in_memory if count]
    # Of the races only the beginning is recorded, in which nothing is settled.
    assert dropped or log.messages.num_rows < 200 or name.startswith("races/") or name == ENDS_EARLY


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("designed-failover-modulo-p1", 5),
        pytest.param("designed-rolling-restart-classic-ch", 600, marks=pytest.mark.slow),
    ],
)
def test_entries_leave_memory_while_the_log_goes_on(
    name: str,
    least: int,
    entries_in_memory: list[tuple[int, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "KEEP_BEHIND", 5)
    log = traced(f"recordings/4.2.4/{name}")
    compare(log, tmp_path, monkeypatch, 10, horizon=20)
    streamed = entries_in_memory[: len(entries_in_memory) // 2]
    assert sum(dropped for dropped, _ in streamed) > least
    assert min(count for _, count in streamed[-3:]) < log.messages.num_rows - least


def in_two_files(logs: list[DispatcherLog], parent: Path) -> dict[str, Any]:
    files = [written(log, folder(parent, number), row_group_rows=100) for number, log in enumerate(logs)]
    return files[1] | {"event_files": [file["event_files"][0] for file in files]}


def test_an_incarnation_without_a_trace_may_follow_a_trace(tmp_path: Path) -> None:
    first = traced("recordings/4.2.4/designed-negative-acks-ch")
    second = second_incarnation(stripped(first))
    logs = [replace(first, messages=second.messages), second]
    dispatcher = in_two_files(logs, tmp_path)
    found = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    expected = rows_of_two_loads(logs)
    for table in REPLAY_TABLES:
        assert found[table] == expected[table], table


def test_a_trace_that_is_not_the_first_incarnation_is_left_to_a_replay_as_a_whole(tmp_path: Path) -> None:
    first = traced("recordings/4.2.4/designed-negative-acks-ch")
    second = second_incarnation(first)
    dispatcher = in_two_files([stripped(first), second], tmp_path)
    with pytest.raises(NotStreamableError, match="incarnation 1 is a trace, and not the first one"):
        gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
