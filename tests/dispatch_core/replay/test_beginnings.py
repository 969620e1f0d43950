"""A log that begins with a made checkpoint is judged like the whole one: no finding is certain that was not."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dispatch_core.errors import NotStreamableError
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.checkpoint import fault_in
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.rows_behind import rows_behind
from dispatch_core.recording.schema import EVENTS
from dispatch_core.replay.beginnings import Beginning, beginning_of
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.snapshots import ReplayState, StateKeeper, decoded
from dispatch_core.times import from_micros
from tests.dispatch_core.audit.small_logs import ack, added, flow, message, read, removed, sent
from tests.dispatch_core.audit.test_found_everywhere import CURSOR_MOVED, RECORDS, T0_US, numbered, write
from tests.dispatch_core.logs_without_trace import recorded
from tests.dispatch_core.replay.interval_cuts import HOUR_US, interval_files, random_cuts, span_us, written
from tests.dispatch_core.replay.test_log_files import gathered
from tests.dispatch_core.replay.test_snapshots import RECORDINGS

BEFORE_END_US = 100_000
_IDENTITY = ("cluster", "topic", "subscription")


@dataclass(frozen=True, slots=True)
class Compared:
    """Tables of the interval behind a cut: of the whole log, and of one that begins with a checkpoint."""

    whole: dict[str, Any]
    short: dict[str, Any]
    beginning: Beginning

    def findings(self, name: str, *, uncertain: bool) -> Counter[tuple[Any, ...]]:
        """The findings of a table of anomalies, by kind, key and time."""
        rows = (self.whole if name == "whole" else self.short)["anomalies"]
        return Counter(
            (row["kind"], row["key"], row["t_us"]) for row in rows if row["uncertain"] == uncertain
        )

    def wrong(self) -> Counter[tuple[Any, ...]]:
        """Findings that are certain only in the short log."""
        return self.findings("short", uncertain=False) - self.findings("whole", uncertain=False)


def compared(logs: Sequence[DispatcherLog], cut_us: int, folder: Path) -> Compared | None:
    """Cut a log, and let what is behind the saved state begin with a checkpoint; ``None`` where there is no such state."""
    identity = {name: getattr(logs[0], name) for name in _IDENTITY}
    before, behind = interval_files(logs, folder, [cut_us])
    first_us, last_us = span_us(logs)
    start, cut, end = (from_micros(at) for at in (first_us - HOUR_US, cut_us, last_us + HOUR_US))
    keeper = StateKeeper(cut_us - BEFORE_END_US)
    old = identity | {"event_files": before.events, "message_files": before.messages}
    every = identity | {
        "event_files": before.events + behind.events,
        "message_files": before.messages + behind.messages,
    }
    try:
        gathered(replay_files(old, interval_start=start, interval_end=cut, keeper=keeper))
        whole = gathered(replay_files(every, interval_start=cut, interval_end=end, to_last_line=True))
    except NotStreamableError:
        return None
    if keeper.kept is None:
        return None
    state = decoded(keeper.kept.data)
    beginning = beginning_of(state)
    lines, entries = _behind(old, state, beginning, cut_us)
    first = [_header(before.events, state), beginning.lines, table_rows.in_columns(lines, EVENTS)]
    short = identity | {
        "event_files": written(pa.concat_tables(first), folder / "short-events") + behind.events,
        "message_files": written(entries, folder / "short-messages") + behind.messages,
    }
    tables = gathered(replay_files(short, interval_start=cut, interval_end=end, to_last_line=True))
    return Compared(whole, tables, beginning)


def _behind(
    dispatcher: dict[str, Any], state: ReplayState, beginning: Beginning, cut_us: int
) -> tuple[pa.Table, pa.Table]:
    ledger, entry = beginning.needed_from or (-1, 0)
    cut = replace(state.cut, reached=(ledger, entry - 1))
    loads = [(load.broker, load.number) for load in state.loads]
    files = dispatcher["event_files"], dispatcher["message_files"]
    identity = {name: dispatcher[name] for name in _IDENTITY}
    return rows_behind(*files, identity, cut, loads, cut_us)


def _header(files: Sequence[str], state: ReplayState) -> pa.Table:
    rows = pa.concat_tables([pq.read_table(path) for path in files])
    headers = rows.filter(pc.equal(rows["kind"], "header")).to_pylist()
    old = {(load.broker, load.number) for load in state.loads[: state.cut.log]}
    kept = [row for row in headers if (row["broker"], row["incarnation"] or 0) not in old]
    return pa.Table.from_pylist(kept, schema=EVENTS)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BEGINNING_LINES", 50)
    monkeypatch.setattr(stream, "BATCH_ROWS", 100)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", 100)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_has_no_other_certain_finding(name: str, tmp_path: Path) -> None:
    logs = [recorded(name)]
    compared_cuts = 0
    for number, cut_us in enumerate(random_cuts(logs, 4, random.Random(name))):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = compared(logs, cut_us, folder)
        if found is None:
            continue
        compared_cuts += 1
        assert not found.wrong()
        rows = found.beginning.lines.to_pylist()
        assert all(fault_in(row["checkpoint_json"]) is None for row in rows if row["kind"] == "checkpoint")
        assert len(found.short["deliveries"]) == len(found.whole["deliveries"])
    assert compared_cuts


ENTRIES = 300
#: The cut lies between the two halves.
HALF = ENTRIES // 2


def halves(
    folder: Path, later: Sequence[tuple[int, dict[str, Any]]], *, records: Sequence[str] = RECORDS
) -> DispatcherLog:
    """Two consumers and ten keys, an entry every 10 ms; the second consumer has left before the cut.

    Entry 10 is pending at the cut, with entry 12 acknowledged behind it. ``later``: lines behind the cut, with their times
    in milliseconds.
    """
    lines = [(0, added(1)), (0, added(2)), (0, flow(1, 1000)), (1, flow(2, 7)), (2, removed(2))]
    for entry in range(HALF):
        lines.append((10 * entry + 10, sent(1, entry)))
        if entry not in (10, HALF - 1):
            lines.append((10 * entry + 12, ack(1, entry)))
    lines += later
    stored = [
        message(entry, f"k{entry % 10}", publish_time_ms=T0_US // 1000 + 10 * entry)
        for entry in range(ENTRIES)
    ]
    write(folder, "messages", stored)
    write(folder, "events", numbered(lines), subscription_type="Key_Shared", records=records)
    return read(folder)


#: Behind all lines of the first half, and behind the time that is left to the next interval.
CUT_MS = 10 * HALF + 1000


def cut_in_halves(folder: Path, later: Sequence[tuple[int, dict[str, Any]]], **options: Any) -> Compared:
    log = halves(folder / "log", later, **options)
    found = compared([log], T0_US + 1000 * CUT_MS, folder)
    assert found is not None
    return found


def test_the_checkpoint_says_what_the_lines_before_said(tmp_path: Path) -> None:
    found = cut_in_halves(tmp_path, [(CUT_MS + 10, ack(1, 10)), (CUT_MS + 20, sent(1, HALF))])
    (row,) = found.beginning.lines.to_pylist()
    said = json.loads(row["checkpoint_json"])
    assert [consumer["consumer"] for consumer in said["consumers"]] == [1]
    assert said["mark_delete"] == "5:9"
    assert said["ack_holes"] == [f"5:{entry}" for entry in range(11, HALF - 1)]
    assert said["pending_acks"] == {"1": ["5:10", f"5:{HALF - 1}"]}
    assert said["read_position"] == f"5:{HALF}"
    assert said["consumers"][0]["permits"] == 1000 - HALF
    assert said["inferred"] is True
    assert row["seq"] == 5 + 2 * HALF - 2


@pytest.mark.parametrize(
    ("later", "kind"),
    [
        ([(CUT_MS + 50, sent(1, 20))], "duplicate_after_ack"),
        ([(CUT_MS + 50, added(3)), (CUT_MS + 60, flow(3)), (CUT_MS + 90, sent(3, 10))], "double_outstanding"),
        ([(CUT_MS + 50, sent(1, HALF + 10)), (CUT_MS + 60, sent(1, HALF))], "out_of_order"),
    ],
)
def test_faults_behind_it_are_found_and_certain(
    later: list[tuple[int, dict[str, Any]]], kind: str, tmp_path: Path
) -> None:
    found = cut_in_halves(tmp_path, later)
    for name in ("whole", "short"):
        assert kind in {of for of, _key, _at in found.findings(name, uncertain=False)}, name


def test_what_an_unlogged_move_may_explain_is_uncertain(tmp_path: Path) -> None:
    without = [name for name in RECORDS if name != CURSOR_MOVED]
    found = cut_in_halves(tmp_path, [(CUT_MS + 50, sent(1, 20))], records=without)
    assert "duplicate_after_ack" in {of for of, _key, _at in found.findings("short", uncertain=True)}
