"""Read one dispatcher's log in batches, so that the memory of a replay does not grow with the log.

A batch has up to ``BATCH_ROWS`` events and all entries up to the last one
that these events name. Events keep the order of the files, entries are merged by position (``merged_entries``); the replay
checks both orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.batches import joined, no_rows, part_of
from dispatch_core.arrays.columns import has, ints, marked
from dispatch_core.errors import SnapshotError
from dispatch_core.recording.checkpoint import first_after, leading
from dispatch_core.recording.load_order import named_extent
from dispatch_core.recording.parquet import ROW_GROUP_ROWS
from dispatch_core.recording.resumed_parts import is_deleted, resumes_at
from dispatch_core.recording.schema import EVENTS
from dispatch_core.recording.table_rows import (
    Position,
    columns_of_events,
    columns_of_messages,
    entries_of,
    kept,
    rows_of_files,
    without_headers,
)

#: A batch brings at least so many entries beyond the last one that its events name, since these entries may be waiting.
AHEAD_ROWS: Final = 4096
#: Entries before the first one that a log names come with its first batch if they are among so many ...
EARLY_ROWS: Final = 65_536
#: ... and were published at most so long before the log's first line, microseconds.
EARLY_US: Final = 600_000_000

#: Messages are stored in order of position, by clocks that differ by less, microseconds.
CLOCKS_US: Final = 1_000_000

#: Time before which all entries were stored.
EVERY_ENTRY_US: Final = 1 << 62

#: Events of one batch, unless the files give more at once. The fixed cost of a batch is then small against that of its rows,
#: and a batch never keeps two row groups in memory. Measured with fifty times the messages: with a third of a row group the
#: peak of memory grew to 1.06 times, with half of one to 1.11 times, for 6 % less time.
BATCH_ROWS: Final = -(-ROW_GROUP_ROWS // 3)

#: Lines from the first ``sent`` line on, by ``seq``, that come with one batch: they show where the subscription begins.
BEGINNING_LINES: Final = 4_096

#: Ledger of the position behind every entry, to which a cursor is moved by name.
_END: Final = (1 << 63) - 1
#: Stands for a publish time that an entry does not say.
_UNKNOWN_MS: Final = np.iinfo(np.int64).min
_MOST_OF_A_RUN: Final = BATCH_ROWS
_POSITION: Final = ("ledger_id", "entry_id")


@dataclass(frozen=True, slots=True)
class LogBatch:
    """The next events, without headers, and the next entries, at least up to the last one that the events name.

    ``nobodys``: no event names these entries; they are only counted. ``log``: the incarnation, from 0 in the order of the
    files. ``part``: the part of its log, from 0. ``cut``: the place in front of this batch, where it was asked for.
    ``stored_until_us``: entries that were stored before this time have come by then, microseconds. ``again``: entries that
    were read before the place at which the log is gone on with; they belong to this interval, and are only counted.
    """

    messages: pa.Table
    events: pa.Table
    nobodys: bool = False
    log: int = 0
    part: int = 0
    cut: Cut | None = None
    stored_until_us: int = EVERY_ENTRY_US
    again: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in a log up to which it was read, and from which ``log_batches`` can go on.

    Attributes:
        log: the incarnation of the next line.
        part: the part of its log.
        lines: lines of the incarnation before the place.
        after_gap: the line before the place is a gap line.
        after_deletion: the subscription was deleted before the place, and not made again.
        last_seq: ``seq`` of the line before the place; -1 = there is none in this incarnation.
        sent: a ``sent`` line stands before the place, in this part.
        reached: the last entry that was read; ``(-1, -1)`` = none was.
        begun: entries were read that an event names, or that follow one.
        beyond: entries that were read, and lie behind all that the lines name (``ledger_id``, ``entry_id``).
        ahead: entries that were read although they were published later, by a clock that is ahead (likewise). They come
            again with those of a later interval.
    """

    log: int
    part: int
    lines: int
    after_gap: bool
    after_deletion: bool
    last_seq: int
    sent: bool
    reached: Position
    begun: bool
    beyond: pa.Table
    ahead: pa.Table


def log_batches(
    event_files: Sequence[str],
    message_files: Sequence[str],
    dispatcher: Mapping[str, str],
    *,
    event_columns: Sequence[str],
    message_columns: Sequence[str],
    logs: Sequence[tuple[int, Position | None]] = (),
    begin: Cut | None = None,
    cut_us: int | None = None,
) -> Iterator[LogBatch]:
    """Read the log of ``dispatcher`` (cluster, topic, subscription) in the order of the files, then the unnamed entries.

    No batch has lines of two incarnations, or of two parts of a log that goes on from a checkpoint behind lost lines.
    Entries long before the first one that the first batch of events names come as ``nobodys`` too: the subscription may
    have begun long after its topic. Raises ``OSError`` and pyarrow's errors for files that cannot be read.

    Args:
        event_files: hold its lines.
        message_files: hold the entries of its topic.
        dispatcher: ``cluster``, ``topic`` and ``subscription``.
        event_columns: columns of the lines that are read.
        message_columns: columns of the entries that are read.
        logs: of each incarnation but the last the number of its lines, and the first position that was stored after it had
            ended, if that is known: from there on entries come with later lines, unless its own lines name them.
        begin: the files hold the log from this place on, and all entries behind ``begin.reached``. Entries up to it that
            they hold too are left out, if every interval has them because they have no publish time; others are a
            ``SnapshotError``: their clock is far behind, and they were not read before.
        cut_us: batches do not reach over this time, as far as the log can be cut there, and entries that were stored later
            come behind it, unless lines before it name them. The batch behind it has the place in ``cut``. The first batch
            of each incarnation but the first has it, too.
    """
    topic = {name: dispatcher[name] for name in ("cluster", "topic")}
    of_events, of_messages = (
        columns_of_events(tuple(event_columns)),
        columns_of_messages(tuple(message_columns)),
    )
    none = no_rows(of_events.schema)
    messages = _Messages(entries_of(message_files, of_messages, topic), of_messages.schema, begin, cut_us)
    # A place within a part of a log: the part has begun, and its first lines were read.
    begun = begin is not None and begin.last_seq >= 0
    place = (0, 0) if begin is None else (begin.log, begin.part)
    limit: Position | None = logs[place[0]][1] if begun and place[0] < len(logs) else None
    lines = _whole_runs(
        _together(map(without_headers, rows_of_files(event_files, of_events, dispatcher)), none)
    )
    parts = _with_beginnings(_by_part(lines, [count for count, _ in logs], begin), begin)
    lines_before = _LinesBefore(begin)
    cut: Cut | None = None
    for events, log, part, is_cut in _cut_at(parts, begin, cut_us):
        if not events.num_rows:
            cut = lines_before.cut(messages)
            break
        lines_before.go_to(log, part)
        has_cut = is_cut or log != place[0]
        if not begun or (log, part) != place:
            if begun:
                yield LogBatch(messages.next(limit), none, log=place[0], part=place[1])
            limit = logs[log][1] if log < len(logs) else None
            lowest, highest = _with_checkpoint(events)
        else:
            lowest, highest = named_extent(events)
        highest = max(highest, moved_to(events))
        if limit is not None and highest >= limit:
            limit = None
        begun, place = True, (log, part)
        for table in messages.before(lowest, events["t_us"][0].as_py() or 0):
            yield LogBatch(table, none, nobodys=True, log=log, part=part)
        cut = lines_before.cut(messages) if has_cut else None
        if is_cut:
            messages.go_over_cut()
        messages.needed_by(events)
        lines_before.take(events)
        entries = messages.up_to(highest, limit)
        until_us = messages.stored_until_us()
        again = messages.read_again()
        yield LogBatch(entries, events, log=log, part=part, cut=cut, stored_until_us=until_us, again=again)
    else:
        cut = None
    messages.go_over_cut()
    following = messages.next(None)
    if following.num_rows or not begun or cut is not None:
        yield LogBatch(following, none, log=place[0], part=place[1], cut=cut, again=messages.read_again())
    for table in messages.rest():
        again = messages.read_again()
        yield LogBatch(table, none, nobodys=True, log=place[0], part=place[1], again=again)
    again = messages.read_again()
    if again is not None:
        yield LogBatch(again.slice(0, 0), none, nobodys=True, log=place[0], part=place[1], again=again)


class _LinesBefore:
    """The lines of the present incarnation that were read, as a ``Cut`` tells of them."""

    def __init__(self, begin: Cut | None) -> None:
        self._place = (0, 0) if begin is None else (begin.log, begin.part)
        self._lines = 0 if begin is None else begin.lines
        self._after_gap = begin is not None and begin.after_gap
        self._after_deletion = begin is not None and begin.after_deletion
        self._last_seq = -1 if begin is None else begin.last_seq
        self._sent = begin is not None and begin.sent

    def go_to(self, log: int, part: int) -> None:
        """Go to the incarnation and the part of the next line."""
        if log != self._place[0]:
            self._lines, self._after_gap, self._after_deletion, self._last_seq = 0, False, False, -1
        if (log, part) != self._place:
            self._sent = False
        self._place = log, part

    def take(self, events: pa.Table) -> None:
        """Take the next lines."""
        self._lines += events.num_rows
        self._after_gap = events["kind"][-1].as_py() == "gap"
        self._after_deletion = is_deleted(events, before=self._after_deletion)
        self._last_seq = events["seq"][-1].as_py()
        self._sent = self._sent or bool(marked(events["kind"], "sent").any())

    def cut(self, messages: _Messages) -> Cut:
        """Return the place in front of the next line."""
        return Cut(
            *self._place,
            self._lines,
            self._after_gap,
            self._after_deletion,
            self._last_seq,
            self._sent,
            messages.reached,
            messages.begun,
            messages.beyond,
            messages.ahead,
        )


def _cut_at(
    parts: Iterable[tuple[pa.Table, int, int]], begin: Cut | None, cut_us: int | None
) -> Iterator[tuple[pa.Table, int, int, bool]]:
    """Cut events at a time; the first ones behind it are marked.

    ``sent`` lines that may be of one round stay together, and so do the lines that show where a subscription begins
    (``BEGINNING_LINES``). The cut comes where the log can be cut for the first time from ``cut_us`` on. Where all lines come
    before, it is behind the last one: a table without rows follows.
    """
    place = None if begin is None else (begin.log, begin.part)
    # By ``seq``; None = nothing was sent.
    free_from: int | None = -1 if begin is not None and begin.sent else None
    last: tuple[int, bool] = (-1, False)  # ``seq`` of the line before, and whether it is a ``sent`` line
    latest_us, is_due = 0, False
    for events, *of_events in parts:
        log, part = of_events
        if (log, part) != place:
            place, free_from, last = (log, part), None, (-1, False)
        if cut_us is None:
            yield events, log, part, False
            continue
        sent = marked(events["kind"], "sent")
        seq = events["seq"].to_numpy()
        if free_from is None and sent.any():
            free_from = int(seq[int(np.argmax(sent))]) + BEGINNING_LINES
            first_sent = int(np.argmax(sent))
        else:
            first_sent = 0 if free_from is not None else events.num_rows
        times_us = ints(events["t_us"])
        reached = np.maximum(np.maximum.accumulate(times_us), latest_us) >= cut_us
        latest_us = max(latest_us, int(times_us.max()))
        seq_before = np.append(last[0], seq[:-1])
        free = (np.arange(events.num_rows) <= first_sent) | (seq_before >= (free_from or 0))
        free &= ~(sent & np.append(last[1], sent[:-1])) & (reached | is_due)
        last = int(seq[-1]), bool(sent[-1])
        if not free.any():
            is_due = is_due or bool(reached.any())
            yield events, log, part, False
            continue
        at = int(np.argmax(free))
        if at:
            yield events.slice(0, at), log, part, False
        yield events.slice(at), log, part, True
        cut_us = None
    if (
        cut_us is not None
        and place is not None
        and not is_due
        and (free_from is None or last[0] >= free_from)
    ):
        yield no_rows(EVENTS), *place, True


def _by_part(
    tables: Iterable[pa.Table], lines: Sequence[int], begin: Cut | None = None
) -> Iterator[tuple[pa.Table, int, int]]:
    """Cut events by incarnation (the first ones have so many ``lines``), and by part (``resumed_parts``).

    ``begin``: the place of the first one.
    """
    log = part = taken = 0
    after_gap = after_deletion = False
    if begin is not None:
        log, part, taken = begin.log, begin.part, begin.lines
        after_gap, after_deletion = begin.after_gap, begin.after_deletion
        if log < len(lines) and taken == lines[log] and taken:
            log, part, taken, after_gap, after_deletion = log + 1, 0, 0, False, False
    for table in tables:
        while table.num_rows:
            left = lines[log] - taken if log < len(lines) else table.num_rows
            of_log = part_of(table, 0, left)
            table = table.slice(of_log.num_rows)  # noqa: PLW2901 - what is left of it
            resumes = resumes_at(of_log, after_gap=after_gap, after_deletion=after_deletion)
            after_deletion = is_deleted(of_log, before=after_deletion)
            for start, end in pairwise([0, *resumes, of_log.num_rows]):
                if end == start:
                    continue
                part += start in resumes
                yield part_of(of_log, start, end), log, part
            taken += of_log.num_rows
            after_gap = of_log["kind"][-1].as_py() == "gap"
            if log < len(lines) and taken == lines[log]:
                log, part, taken, after_gap, after_deletion = log + 1, 0, 0, False, False


def _together(tables: Iterable[pa.Table], none: pa.Table) -> Iterator[pa.Table]:
    """The same rows, up to ``BATCH_ROWS`` at a time."""
    waiting = [none]
    for table in tables:
        if len(waiting) > 1 and sum(batch.num_rows for batch in waiting) + table.num_rows > BATCH_ROWS:
            yield joined(waiting[1:])
            waiting = [none]
        waiting.append(table)
    if len(waiting) > 1:
        yield joined(waiting[1:])


def _with_beginnings(
    parts: Iterable[tuple[pa.Table, int, int]], begin: Cut | None = None
) -> Iterator[tuple[pa.Table, int, int]]:
    """The same rows, the first ``sent`` line of each part in one table with ``BEGINNING_LINES`` behind it.

    ``begin``: the place of the first row; of a part that was sent something before it nothing is collected.
    """
    waiting: list[pa.Table] = []
    place, until_seq, begun = (0, 0), None, False
    if begin is not None:
        place, begun = (begin.log, begin.part), begin.sent
    for events, *of_events in parts:
        if tuple(of_events) != place:
            if waiting:
                yield joined(waiting), *place
            waiting, place, until_seq, begun = [], (of_events[0], of_events[1]), None, False
        if not begun and until_seq is None:
            sent = marked(events["kind"], "sent")
            until_seq = events["seq"][int(np.argmax(sent))].as_py() + BEGINNING_LINES if sent.any() else None
        if until_seq is None or begun:
            yield events, *place
            continue
        waiting.append(events)
        if events["seq"][-1].as_py() >= until_seq:
            yield joined(waiting), *place
            waiting, begun = [], True
    if waiting:
        yield joined(waiting), *place


def _whole_runs(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows; ``sent`` lines that a table ends with come with the next one, for they may be of one round.

    A run of ``_MOST_OF_A_RUN`` lines is cut: no round is that long.
    """
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        sent = marked(table["kind"], "sent")
        whole = table.num_rows - (table.num_rows if sent.all() else int(np.argmin(sent[::-1])))
        if whole or rows + table.num_rows >= _MOST_OF_A_RUN:
            cut = whole or table.num_rows
            yield joined([*waiting, part_of(table, 0, cut)])
            waiting, rows, table = [], 0, table.slice(cut)  # noqa: PLW2901 - what is left of it
        if table.num_rows:
            waiting.append(table)
            rows += table.num_rows
    if waiting:
        yield joined(waiting)


class _Messages:
    """The entries of a topic, read only as far as they are needed."""

    def __init__(
        self,
        tables: Iterator[pa.Table],
        schema: pa.Schema,
        begin: Cut | None = None,
        cut_us: int | None = None,
    ) -> None:
        self._tables = tables
        self._schema = schema
        self._begun = begin is not None and begin.begun
        # The last entry returned.
        self._reached: Position = (-1, -1) if begin is None else begin.reached
        self._set_aside: pa.Table | None = None  # read, but not to be returned yet
        self._wanted: Position = (-1, -1)  # the highest position that was asked for
        self._read_before = self._reached
        # Returned, and maybe beyond the last requested position.
        self._beyond: list[pa.Table] = [] if begin is None else [begin.beyond]
        #: Entries that were stored from this time on come behind the cut, milliseconds; None = behind it.
        self._cut_ms = None if cut_us is None else -(-(cut_us + CLOCKS_US) // 1000)
        #: Entries published from then on are remembered: they may come again with a later interval.
        self._ahead_ms = None if cut_us is None else cut_us // 1000
        self._ahead: list[pa.Table] = []  # those of before come again now, if at all
        self._known: frozenset[Position] = frozenset(
            () if begin is None else zip(*(begin.ahead[name].to_pylist() for name in _POSITION), strict=True)
        )
        self._again: list[pa.Table] = []

    @property
    def reached(self) -> Position:
        """The last entry that was returned."""
        return self._reached

    @property
    def begun(self) -> bool:
        """See ``Cut``."""
        return self._begun

    @property
    def beyond(self) -> pa.Table:
        """See ``Cut``."""
        return pa.concat_tables(self._beyond) if self._beyond else _named(no_rows(self._schema))

    def needed_by(self, events: pa.Table) -> None:
        """Before the cut, return the entries that were stored by the time of these lines, too: they may wait then."""
        latest_us = None if self._cut_ms is None else pc.max(events["t_us"]).as_py()
        if self._cut_ms is not None and latest_us is not None:
            self._cut_ms = max(self._cut_ms, (latest_us + CLOCKS_US) // 1000 + 1)

    @property
    def ahead(self) -> pa.Table:
        """See ``Cut``."""
        return pa.concat_tables([_named(no_rows(self._schema)), *self._ahead])

    def read_again(self) -> pa.Table | None:
        """The entries that came since the last call, and that were read before the place at which this begins."""
        again, self._again = self._again, []
        return pa.concat_tables(again) if again else None

    def stored_until_us(self) -> int:
        """Time at which the next entry was stored, by its publish time, microseconds; ``EVERY_ENTRY_US`` = there is none."""
        if self._set_aside is None:
            self._set_aside = self._next()
        if self._set_aside is None:
            return EVERY_ENTRY_US
        published_ms = self._set_aside["publish_time_ms"][0].as_py()
        return 0 if published_ms is None else 1000 * int(published_ms)

    def go_over_cut(self) -> None:
        """Return all entries from now on, whenever they were stored."""
        self._cut_ms = None

    def before(self, position: Position, first_t_us: int) -> Iterator[pa.Table]:
        """The entries before ``position``, if no later entry was returned yet, but for the last that may matter.

        These are of the last ``EARLY_ROWS`` and were published at most ``EARLY_US`` before ``first_t_us``, the time of the
        log's first line: the subscription may have lost them before it was sent anything.
        """
        waiting: deque[pa.Table] = deque()
        self._wanted = max(self._wanted, position)
        while not self._begun and self._reached < position:
            reached = self._reached
            table = self._take()
            if table is None:
                break
            behind = from_position(table, position)
            if behind.any():
                self._begun, self._reached = True, reached
                self._put_aside(kept(table, behind))
                table = kept(table, ~behind)
            waiting.append(table)
            while sum(part.num_rows for part in waiting) - waiting[0].num_rows >= EARLY_ROWS:
                yield waiting.popleft()
        if not waiting:
            return
        if self._set_aside is not None:
            self._reached = _before(self._set_aside)
        tail = joined(waiting)
        early = _published_from(tail.slice(max(tail.num_rows - EARLY_ROWS, 0)), first_t_us - EARLY_US)
        if tail.num_rows > early:
            yield tail.slice(0, tail.num_rows - early)
        if early:
            tail = tail.slice(tail.num_rows - early)
            self._begun = True
            self._reached = _before(tail)
            self._put_aside(tail)

    def up_to(self, position: Position, limit: Position | None) -> pa.Table:
        """The next entries before ``limit``, up to ``position`` and ``AHEAD_ROWS`` beyond, and as far as a batch goes."""
        taken: list[pa.Table] = []
        self._wanted = max(self._wanted, position)
        while self._reached < position:
            table = self._take(limit)
            if table is None:
                break
            self._begun = True
            taken.append(table)
        beyond = (_positions(batch, position) for batch in (*self._beyond, *map(_named, taken)))
        self._beyond = [
            batch for batch in beyond if batch.num_rows
        ]  # else every batch would go through all earlier ones
        if self._begun:
            taken += self._read_ahead(limit)
        return joined(taken) if taken else no_rows(self._schema)

    def next(self, limit: Position | None) -> pa.Table:
        """The next entries before ``limit``, a batch at least, and as far as ``AHEAD_ROWS`` beyond what lines named.

        However the files divide the entries: what waits is looked at as far as that.
        """
        taken = self._read_ahead(limit, batches=1)
        return joined(taken) if taken else no_rows(self._schema)

    def _read_ahead(self, limit: Position | None, *, batches: int = 0) -> list[pa.Table]:
        """Read ``batches`` at least, and on until ``AHEAD_ROWS`` entries lie beyond what lines named."""
        taken: list[pa.Table] = []
        while len(taken) < batches or sum(batch.num_rows for batch in self._beyond) < AHEAD_ROWS:
            table = self._take(limit)
            if table is None:
                break
            taken.append(table)
            self._beyond.append(_named(table))
        return taken

    def rest(self) -> Iterator[pa.Table]:
        """All that are left."""
        while (table := self._take()) is not None:
            yield table

    def _take(self, limit: Position | None = None) -> pa.Table | None:
        table = self._next() if self._set_aside is None else self._set_aside
        self._set_aside = None
        if table is not None:
            table = self._held_back(table)
        if table is not None and limit is not None:
            beyond = from_position(table, limit)
            if beyond.any():
                self._put_aside(kept(table, beyond))
                table = kept(table, ~beyond)
                if not table.num_rows:
                    return None
        if table is not None:
            self._reached = (table["ledger_id"][-1].as_py(), table["entry_id"][-1].as_py())
            if self._ahead_ms is not None and self._cut_ms is not None:
                later = ints(table["publish_time_ms"], _UNKNOWN_MS) >= self._ahead_ms
                if later.any():
                    self._ahead.append(kept(_named(table), later))
        return table

    def _next(self) -> pa.Table | None:
        """The next entries of the files, without those that were read before the place at which this begins."""
        while (table := next(self._tables, None)) is not None:
            if self._read_before < (0, 0):
                return table
            new = from_position(table, (self._read_before[0], self._read_before[1] + 1))
            again = kept(table, ~new)
            again = again.filter(again["publish_time_ms"].is_valid())
            for place in zip(*(again[name].to_pylist() for name in _POSITION), strict=True):
                if place not in self._known:
                    raise SnapshotError(
                        f"entry {place[0]}:{place[1]} lies before the place that the log was read to"
                    )
            if again.num_rows:
                self._again.append(again)
            if new.any():
                return kept(table, new)
        return None

    def _held_back(self, table: pa.Table) -> pa.Table | None:
        """Set aside what comes behind the cut: entries that no line named, from the first one on that was stored later."""
        if self._cut_ms is None:
            return table
        later = ints(table["publish_time_ms"], _UNKNOWN_MS) >= self._cut_ms
        if later.any():
            later &= from_position(table, (self._wanted[0], self._wanted[1] + 1))
        if not later.any():
            return table
        at = int(np.argmax(later))
        self._put_aside(table.slice(at))
        return table.slice(0, at) if at else None

    def _put_aside(self, table: pa.Table) -> None:
        """Let entries come next, in front of those that were set aside before."""
        aside = [] if self._set_aside is None else [self._set_aside]
        self._set_aside = pa.concat_tables([table, *aside])


def _published_from(table: pa.Table, t_us: int) -> int:
    """The number of rows from the first one on that was published at ``t_us`` or later."""
    published = ints(table["publish_time_ms"], _UNKNOWN_MS) >= max(-(-t_us // 1000), _UNKNOWN_MS + 1)
    return len(published) - int(np.argmax(published)) if published.any() else 0


def _before(table: pa.Table) -> Position:
    """The position in front of the first row."""
    return table["ledger_id"][0].as_py(), table["entry_id"][0].as_py() - 1


def _named(table: pa.Table) -> pa.Table:
    """The positions alone."""
    return table.select(["ledger_id", "entry_id"])


def _positions(table: pa.Table, after: Position) -> pa.Table:
    """Those after a position."""
    return kept(table, from_position(table, (after[0], after[1] + 1)))


def moved_to(events: pa.Table) -> Position:
    """The highest position that a move of the cursor names; a move to the end of the topic names none."""
    if not has(events, "moved_to") or events["moved_to"].null_count == events.num_rows:
        return -1, -1
    moved = events["moved_to"].drop_null()
    places = [(to["ledger_id"], to["entry_id"]) for to in moved.to_pylist()]
    return max((place for place in places if place[0] < _END), default=(-1, -1))


def _with_checkpoint(events: pa.Table) -> tuple[Position, Position]:
    """The same for the first events of a log. With a checkpoint, the entries after its mark-delete count as named too."""
    extent = named_extent(events)
    first = leading(events)
    if first is None:
        return extent
    named = [at for at in (*extent, *first.named) if at >= (0, 0)]
    if first.mark_delete is not None:
        named.append(first_after(first.mark_delete))
    return (min(named), max(named)) if named else extent


def from_position(table: pa.Table, position: Position) -> npt.NDArray[np.bool_]:
    """Mark the entries from a position on."""
    ledgers, entries = table["ledger_id"].to_numpy(), table["entry_id"].to_numpy()
    behind: npt.NDArray[np.bool_] = (ledgers > position[0]) | (
        (ledgers == position[0]) & (entries >= position[1])
    )
    return behind
