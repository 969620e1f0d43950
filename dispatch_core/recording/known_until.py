"""Restrict a log to what was known at a moment, as a copy of a growing log is.

A line later than the moment is not used, and no line behind it. Entries that were published later are not used either,
unless a line that is used names them: the clock of their producer was ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import ints, valid
from dispatch_core.arrays.line_kinds import of_kinds
from dispatch_core.recording.checkpoint import read
from dispatch_core.recording.load_order import named_extent
from dispatch_core.recording.log import DispatcherLog

_MEMBERSHIP: Final = ("consumer_added", "consumer_removed", "checkpoint")


def logs_until(logs: Sequence[DispatcherLog], until_us: int) -> list[DispatcherLog]:
    """Return the incarnations of one dispatcher as they were known at ``until_us``, microseconds since the epoch.

    Those that began later are left out. If all did, the first is left, without events.
    """
    known = [log_until(log, until_us) for log in logs]
    return [log for log in known if log.events.num_rows] or known[:1]


def log_until(log: DispatcherLog, until_us: int) -> DispatcherLog:
    """Return a log without its first line later than ``until_us`` and all behind it, and without later entries."""
    lines = lines_until(log, until_us)
    events = log.events.slice(0, lines)
    published = log.messages["publish_time_ms"]
    late = valid(published) & (ints(published) > until_us // 1000)
    if late.any():
        ledger, entry = named_extent(events)[1]
        ledgers, entries = ints(log.messages["ledger_id"]), ints(log.messages["entry_id"])
        late &= (ledgers > ledger) | ((ledgers == ledger) & (entries > entry))
    messages = log.messages.filter(pa.array(~late)) if late.any() else log.messages
    return replace(
        log, events=events, messages=messages, end_lost=log.end_lost and lines == log.events.num_rows
    )


def lines_until(log: DispatcherLog, until_us: int) -> int:
    """Return the number of lines before the first one that is later than ``until_us``."""
    later = np.flatnonzero(ints(log.events["t_us"], until_us) > until_us)
    return int(later[0]) if len(later) else log.events.num_rows


def connected_at_end(events: pa.Table) -> int:
    """Return how many consumers are connected behind the last line of a log, as far as it names them."""
    wanted = pa.array(of_kinds(events, *_MEMBERSHIP))
    lines = events.select(["kind", "consumer", "checkpoint_json"]).filter(wanted)
    connected: set[int] = set()
    for line in lines.to_pylist():
        if line["kind"] == "consumer_added":
            connected.add(line["consumer"])
        elif line["kind"] == "consumer_removed":
            connected.discard(line["consumer"])
        elif line["checkpoint_json"]:
            state = read(line["checkpoint_json"])
            if state is not None and state.consumers is not None:
                connected = {consumer.number for consumer in state.consumers}
    return len(connected)


def last_line_us(logs: Sequence[DispatcherLog]) -> int | None:
    """Return the time of the last line of some logs, microseconds since the epoch; ``None`` where no line has a time."""
    times = [int(t_us.max()) for log in logs if len(t_us := ints(log.events["t_us"].drop_null()))]
    return max(times, default=None)
