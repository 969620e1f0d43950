"""A dispatcher trace batch by batch out of Parquet files, or as one batch: the same tables, row for row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_core.recording import stream
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import with_overrides
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay import log_files
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from dispatch_core.times import from_micros
from dispatch_core.verify.trace import lines_ahead, verification
from tests.dispatch_core.replay.test_log_files import DAY, NEXT, gathered, written

DATA = Path(__file__).resolve().parents[2] / "data"
SAMPLES = sorted(str(path.parent.relative_to(DATA)) for path in DATA.glob("*/*/*/trace.jsonl*"))
#: Batches of so many lines; with fewer than there are lines ahead, a batch needs several of the next ones.
SIZES = [50, 1000]
#: Lines that are looked ahead: more than any critical section of the samples has.
HORIZON = 150


def traced(name: str) -> DispatcherLog:
    """The log of a recording, with its trace."""
    (source,) = find_recordings([str(DATA / name)])
    (log,) = read_recording(source).logs
    return log


def compare(log: DispatcherLog, folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Replay a log streamed in batches of so many rows, and as a whole, for the day and for its second half."""
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(stream, "_SLICE_ROWS", rows)
    monkeypatch.setattr(lines_ahead, "HORIZON", HORIZON)
    for module in (lines_ahead, verification, log_files):
        monkeypatch.setattr(module, "LOOK_AHEAD", 2 * HORIZON)
    dispatcher = written(log, folder, row_group_rows=max(rows, 20))
    middle = from_micros(log.events["t_us"][log.events.num_rows // 2].as_py())
    for start in (DAY, middle):
        in_batches = gathered(replay_files(dispatcher, interval_start=start, interval_end=NEXT))
        whole = replay(log, interval_start=start, interval_end=NEXT)
        for table in REPLAY_TABLES:
            assert in_batches[table] == whole[table].to_pylist(), table


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("rows", SIZES)
def test_batches_give_what_the_whole_trace_gives(
    name: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare(traced(name), tmp_path, monkeypatch, rows)


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


@pytest.mark.parametrize("rows", SIZES)
def test_a_trace_that_differs_from_its_rules_is_judged_by_its_deliveries_too(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = {"subscriptionKeySharedUseConsistentHashing": False}
    log = with_overrides(traced("recordings/4.2.4/designed-drain-one-by-one-ch"), None, ranges)
    assert replay(log, interval_start=DAY, interval_end=NEXT)["dispatcher_state"]["divergent"][0].as_py() > 3
    compare(log, tmp_path, monkeypatch, rows)
