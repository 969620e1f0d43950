"""Logs of level E: real traces without the lines and fields that only the broker can record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.recording.schema import KINDS

DATA = Path(__file__).resolve().parents[1] / "data"
CLASSIC = "recordings/4.2.4/designed-rolling-restart-classic-ch"
DRAIN = "recordings/4.2.4/designed-drain-one-by-one-ch"
USER_LEVEL = pa.array([kind.name for kind in KINDS.values() if kind.level == "E"])


def stripped(log: DispatcherLog) -> DispatcherLog:
    """Return the log with its lines of level E alone, numbered anew."""
    events = log.events.filter(pc.is_in(log.events["kind"], value_set=USER_LEVEL))
    trace_only = {name for kind in KINDS.values() for name in kind.trace_only}
    columns: dict[str, Any] = {name: events[name] for name in events.column_names}
    for name in trace_only:
        columns[name] = pa.array([None] * events.num_rows, events.schema.field(name).type)
    columns["seq"] = np.arange(1, events.num_rows + 1)
    return replace(log, events=pa.table(columns, schema=events.schema))


def recorded(name: str) -> DispatcherLog:
    """Read a recording of tests/data without its trace."""
    return stripped(read_recording(find_recordings([DATA / name])[0]).logs[0])


def with_line(log: DispatcherLog, row: int, **changed: Any) -> DispatcherLog:
    """Return the log with other values in one line."""
    lines = log.events.to_pylist()
    lines[row] |= changed
    return replace(log, events=pa.Table.from_pylist(lines, schema=log.events.schema))


def log_of(name: str) -> DispatcherLog:
    """Read a recording of tests/data with its trace."""
    return read_recording(find_recordings([DATA / name])[0]).logs[0]
