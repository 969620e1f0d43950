"""Cut a log into intervals, and replay each from the snapshot of the one before and from the beginning."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dispatch_core.errors import NotStreamableError, SnapshotError
from dispatch_core.recording import kept_rows
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.rows_behind import rows_behind
from dispatch_core.recording.schema import EVENTS
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.snapshots import KeptState, StateKeeper, decoded
from dispatch_core.tables import REPLAY_TABLES
from dispatch_core.times import from_micros
from tests.dispatch_core.replay.test_log_files import gathered

HOUR_US = 3_600_000_000
_IDENTITY = ("cluster", "topic", "subscription")


@dataclass(frozen=True, slots=True)
class Files:
    """Files of an interval, or of the rows behind a snapshot."""

    events: list[str]
    messages: list[str]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The rows of an interval's tables, the state that was kept, and whether the snapshot could not be used."""

    from_snapshot: dict[str, Any]
    from_beginning: dict[str, Any]
    kept: KeptState | None
    refused: bool

    def differing(self) -> list[str]:
        """The tables that differ, each with the first row that does."""
        found = []
        for name in REPLAY_TABLES:
            ours, theirs = self.from_snapshot[name], self.from_beginning[name]
            if ours != theirs:
                pairs = (pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1])
                row, other = next(pairs, ({}, {}))
                columns = {
                    column: (row[column], other.get(column))
                    for column in row
                    if row[column] != other.get(column)
                }
                found.append(f"{name}: {len(ours)} rows and {len(theirs)}: {columns}")
        return found


def span_us(logs: Sequence[DispatcherLog]) -> tuple[int, int]:
    """Times of the first and the last line, microseconds."""
    times = np.concatenate([log.events["t_us"].drop_null().to_numpy() for log in logs])
    return int(times.min()), int(times.max())


def random_cuts(logs: Sequence[DispatcherLog], count: int, chosen: random.Random) -> list[int]:
    """Random times between the lines, in whole milliseconds, as publish times are."""
    first_us, last_us = span_us(logs)
    return sorted({chosen.randrange(first_us, last_us + 2) // 1000 * 1000 for _ in range(count)})


def interval_files(logs: Sequence[DispatcherLog], folder: Path, cuts_us: Sequence[int]) -> list[Files]:
    """Write the rows of each interval as the tables' files hold them."""
    edges = [-(1 << 62), *cuts_us, 1 << 62]
    return [_interval(logs, folder, *edge) for edge in pairwise(edges)]


def _interval(logs: Sequence[DispatcherLog], folder: Path, from_us: int, until_us: int) -> Files:
    events = []
    for log in logs:
        times = pc.fill_null(log.events["t_us"], 0).to_numpy()
        lines = log.events.filter(pa.array((times >= from_us) & (times < until_us)))
        if lines.num_rows:
            identity = {name: getattr(log, name) for name in (*_IDENTITY, "incarnation", "broker")}
            header = {"kind": "header", "seq": 0, "header_json": json.dumps(log.header)}
            events += [pa.Table.from_pylist([identity | header], schema=EVENTS), lines]
    messages = logs[0].messages
    times = pc.fill_null(messages["publish_time_ms"], 0).to_numpy() * 1000
    unknown = np.asarray(messages["publish_time_ms"].is_null())
    messages = messages.filter(pa.array(unknown | ((times >= from_us) & (times < until_us))))
    name = f"{from_us}-{until_us}"
    return Files(
        written(pa.concat_tables(events) if events else EVENTS.empty_table(), folder / f"events {name}"),
        written(messages, folder / f"messages {name}"),
    )


def written(rows: pa.Table, path: Path) -> list[str]:
    """Write rows as a file of a table; none for no rows."""
    if not rows.num_rows:
        return []
    pq.write_table(rows, path, row_group_size=1000)
    return [str(path)]


def _kept(rows: pa.Table, path: Path) -> list[str]:
    if not rows.num_rows:
        return []
    path.write_bytes(kept_rows.as_bytes(rows))
    return [str(path)]


def replays(
    logs: Sequence[DispatcherLog],
    cuts_us: Sequence[int],
    folder: Path,
    *,
    before_end_us: int,
    to_last_line: bool = False,
) -> Iterator[Replayed]:
    """Replay each interval from the snapshot and from the beginning.

    Ends where the log cannot be replayed batch by batch, and where it is a trace.
    """
    files = interval_files(logs, folder, cuts_us)
    identity = {name: getattr(logs[0], name) for name in _IDENTITY}
    first_us, last_us = span_us(logs)
    edges = [from_micros(at) for at in (first_us - HOUR_US, *cuts_us, last_us + HOUR_US)]
    behind, kept = Files([], []), None
    for number, own in enumerate(files):
        options: dict[str, Any] = {"interval_start": edges[number], "interval_end": edges[number + 1]}
        options["to_last_line"] = to_last_line and number == len(cuts_us)
        whole = identity | {
            "event_files": [path for part in files[: number + 1] for path in part.events],
            "message_files": [path for part in files[: number + 1] for path in part.messages],
        }
        try:
            from_beginning = gathered(replay_files(whole, **options))
        except NotStreamableError:
            return
        log = identity | {
            "event_files": behind.events + own.events,
            "message_files": behind.messages + own.messages,
        }
        keeper = StateKeeper((cuts_us[number] if number < len(cuts_us) else last_us) - before_end_us)
        end_us = cuts_us[number] if number < len(cuts_us) else last_us + HOUR_US
        state, refused = (None if kept is None else decoded(kept.data)), False
        try:
            from_snapshot = gathered(replay_files(log, **options, state=state, keeper=keeper))
        except (SnapshotError, NotStreamableError):
            assert state is not None
            log, kept, refused = whole, None, True
            from_snapshot = gathered(replay_files(log, **options, keeper=keeper))
        if keeper.traced:
            return
        kept = keeper.kept or kept
        yield Replayed(from_snapshot, from_beginning, kept, refused)
        cut, loads = (None, []) if kept is None else (kept.cut, kept.loads)
        lines, entries = rows_behind(log["event_files"], log["message_files"], identity, cut, loads, end_us)
        behind = Files(
            _kept(lines, folder / f"lines behind {number}{kept_rows.SUFFIX}"),
            _kept(entries, folder / f"entries behind {number}{kept_rows.SUFFIX}"),
        )
