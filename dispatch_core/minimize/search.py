"""Search for the smallest log that still has a finding: leave out keys, connections, entries and lines while it does.

It is delta debugging: of a list of parts, all are left out at once, then halves of it, quarters and so on down to single
ones, from the end of the log to its beginning, because later lines rest on earlier ones. What cannot be left out stays.
Single parts are tried again until none can be left out any more; then the log is *minimal*: without any one of its entries
or lines it has lost the finding, or is no log that a broker can write. At last, times in which nothing happens are
shortened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import with_column
from dispatch_core.minimize.reduced_log import Ints, ReducibleLog
from dispatch_core.minimize.same_finding import Finding, Wanted
from dispatch_core.recording.log import DispatcherLog

_NONE: Final = np.empty(0, np.int64)
#: Lines about the log and its consumers that are tried with their connection, not one by one.
_OF_A_CONNECTION: Final = ("consumer_added", "consumer_removed")
#: Times without a line that are longer than the first are shortened to the second, microseconds.
_IDLE_US: Final = 50_000
_SHORT_US: Final = 10_000
_SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are left out together: of the events and of the messages, as they are numbered in the whole log."""

    lines: Ints
    entries: Ints


@dataclass(frozen=True, slots=True)
class Smallest:
    """The result of a search.

    ``line_of``: the row of each line in the whole log. ``minimal``: nothing more can be left out. ``audits``: logs that
    were tried.
    """

    log: DispatcherLog
    finding: Finding
    line_of: Ints
    minimal: bool
    audits: int


class Search:
    """The search in one log. ``say``: is called with the number of lines and entries that are left."""

    def __init__(
        self,
        log: DispatcherLog,
        wanted: Wanted,
        *,
        budget_s: float,
        say: Callable[[int, int], None] = lambda lines, entries: None,
    ) -> None:
        self._wanted = wanted
        self._finding = wanted.finding
        self._deadline = time.monotonic() + budget_s
        self._say = say
        self._audits = 0
        self._take(log, np.arange(log.events.num_rows), np.arange(log.messages.num_rows))

    def run(self) -> Smallest:
        """Leave out what can be left out, as long as the budget lasts."""
        self._end_early()
        for parts in (self._keys, self._stretches, self._connections):
            self._leave_out(parts())
        shorter = True
        while shorter and not self._late():
            before = len(self._line_of) + len(self._entry_of)
            for parts in (self._connections, self._entries, self._lines):
                self._leave_out(parts())
            shorter = len(self._line_of) + len(self._entry_of) < before
        minimal = not self._late()
        self._shorten_idle_times()
        return Smallest(self._base.log, self._finding, self._line_of, minimal, self._audits)

    def _take(self, log: DispatcherLog, line_of: Ints, entry_of: Ints) -> None:
        self._base = ReducibleLog(log)
        self._line_of = line_of
        self._entry_of = entry_of

    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _end_early(self) -> None:
        """Leave out what happened after the finding; a wait may have to last longer than to its own line."""
        times = self._base.log.events["t_us"].fill_null(0).to_numpy()
        published = self._base.log.messages["publish_time_ms"].fill_null(0).to_numpy() * 1000
        end_us = self._finding.t_us or int(times.max(initial=0))
        while end_us < times.max(initial=0) and not self._late():
            later = [Part(self._line_of[times > end_us], self._entry_of[published > end_us])]
            if self._without(later):
                return
            end_us += max(_SECOND_US, int(times.max(initial=0) - end_us) // 2)

    # --- parts ---------------------------------------------------------------------------------------------------

    def _keys(self) -> list[Part]:
        """Return the entries of each key but that of the finding."""
        messages = self._base.log.messages
        names = messages["key"].fill_null("").to_pylist()
        hashes = messages["key_h31"].fill_null(-1).to_pylist()
        own = {*self._finding.positions}
        positions = zip(messages["ledger_id"].to_pylist(), messages["entry_id"].to_pylist(), strict=True)
        of_key: dict[tuple[str, int], list[int]] = {}
        needed = set()
        for row, (key, position) in enumerate(zip(zip(names, hashes, strict=True), positions, strict=True)):
            of_key.setdefault(key, []).append(row)
            if f"{position[0]}:{position[1]}" in own:
                needed.add(key)
        return [Part(_NONE, self._entry_of[rows]) for key, rows in of_key.items() if key not in needed]

    def _connections(self) -> list[Part]:
        """Return the lines of each connection, with the entries that went to it alone."""
        events = self._base.log.events
        consumer = events["consumer"].fill_null(-1).to_numpy()
        sent = np.flatnonzero(np.asarray(pc.equal(events["kind"], "sent")))
        named = self._base.named
        of_sent = np.isin(named.line, sent) & (named.entry >= 0)
        entry, receiver = named.entry[of_sent], consumer[named.line[of_sent]]
        least = np.full(self._base.entries, np.iinfo(np.int64).max)
        most = np.full(self._base.entries, -1)
        np.minimum.at(least, entry, receiver)
        np.maximum.at(most, entry, receiver)
        alone = least == most
        return [
            Part(self._line_of[consumer == number], self._entry_of[alone & (most == number)])
            for number in np.unique(consumer[consumer >= 0]).tolist()
        ]

    def _stretches(self) -> list[Part]:
        """Return long runs of lines."""
        return [Part(run, _NONE) for run in np.array_split(self._line_of, 16) if len(run)]

    def _entries(self) -> list[Part]:
        return [Part(_NONE, row) for row in self._entry_of.reshape(-1, 1)]

    def _lines(self) -> list[Part]:
        """Return each line by itself, but for those that only their connection can be left out with."""
        kinds = self._base.log.events["kind"].to_pylist()
        return [
            Part(self._line_of[row : row + 1], _NONE)
            for row, kind in enumerate(kinds)
            if kind not in _OF_A_CONNECTION
        ]

    # --- attempts ------------------------------------------------------------------------------------------------

    def _leave_out(self, parts: list[Part]) -> None:
        """Leave out as many of ``parts`` as can be left out, the last ones first."""
        length = len(parts)
        while length:
            end = len(parts)
            while end > 0 and not self._late():
                start = max(0, end - length)
                if self._without(parts[start:end]):
                    del parts[start:end]
                end = start
            length = 0 if self._late() else length // 2

    def _without(self, parts: Sequence[Part]) -> bool:
        lines = ~np.isin(self._line_of, np.concatenate([part.lines for part in parts]))
        entries = ~np.isin(self._entry_of, np.concatenate([part.entries for part in parts]))
        if (lines.all() and entries.all()) or not self._base.keeps_first_deliveries(lines, entries):
            return False
        log, rows = self._base.keep(lines, entries)
        return self._try(log, self._line_of[rows], self._entry_of[entries])

    def _try(self, log: DispatcherLog, line_of: Ints, entry_of: Ints) -> bool:
        if not log.events.num_rows:
            return False
        self._audits += 1
        found = self._wanted.found_in(log, line_of)
        if found is None:
            return False
        self._finding = found
        self._take(log, line_of, entry_of)
        self._say(log.events.num_rows, log.messages.num_rows)
        return True

    # --- times ---------------------------------------------------------------------------------------------------

    def _shorten_idle_times(self) -> None:
        """Shorten the times in which nothing happens: all at once, or else one by one."""
        idle = self._idle_times()
        if not idle or self._shortened(idle):
            return
        for at_us in reversed(idle):
            if self._late():
                return
            self._shortened([at_us])

    def _idle_times(self) -> list[int]:
        """Return the moments behind which nothing happens for long."""
        moments = self._moments()
        return moments[:-1][np.diff(moments) > _IDLE_US].tolist()

    def _moments(self) -> Ints:
        log = self._base.log
        published = log.messages["publish_time_ms"].drop_null().to_numpy() * 1000
        return np.unique(np.concatenate([log.events["t_us"].drop_null().to_numpy(), published]))

    def _shortened(self, idle: Sequence[int]) -> bool:
        moments = self._moments()
        gaps = np.diff(moments)
        shorter = np.isin(moments[:-1], idle)
        moved = moments - np.concatenate([[0], np.cumsum(np.where(shorter, gaps - _SHORT_US, 0))])
        log = self._base.log
        events, messages = log.events, log.messages
        t_us = _moved(events["t_us"], moments, moved, 1)
        events = with_column(events, "t_us", t_us)
        for name in ("publish_time_ms", "deliver_at_ms"):
            messages = with_column(messages, name, _moved(messages[name], moments, moved, 1000))
        return self._try(replace(log, events=events, messages=messages), self._line_of, self._entry_of)


def _moved(column: pa.ChunkedArray, moments: Ints, moved: Ints, unit_us: int) -> pa.Array:
    """Return times after ``moments`` have become ``moved``; what lies between two keeps its distance to the first."""
    valid = np.asarray(pc.is_valid(column), bool)
    times = column.fill_null(0).to_numpy() * unit_us
    before = np.clip(np.searchsorted(moments, times, side="right") - 1, 0, len(moments) - 1)
    new = (times - moments[before] + moved[before]) // unit_us
    return pa.array(new, column.type, mask=~valid)
