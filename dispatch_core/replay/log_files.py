"""Replay a dispatcher's log straight from Parquet files, batch by batch: all incarnations, one after the other.

A part of a log (``recording.resumed_parts``) or a further incarnation continues with the window of the lines before it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import groupby, pairwise, takewhile
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.batches import no_rows
from dispatch_core.arrays.columns import rows_at
from dispatch_core.arrays.line_kinds import has_kind, of_kinds
from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.behaviour_in_force import BehaviourInForce
from dispatch_core.audit.deliveries.fold import EVENT_COLUMNS, MESSAGE_COLUMNS, RARE_KINDS, TRACE_COLUMNS
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.lost_lines import with_doubts
from dispatch_core.audit.permits.checkpoint_ledger import shows_permits
from dispatch_core.audit.unlogged_moves import UnloggedMoves
from dispatch_core.errors import NotStreamableError, SnapshotError
from dispatch_core.recording.checkpoint import Position, leading
from dispatch_core.recording.load_order import Load, named_extent
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import RECORDED, Overrides
from dispatch_core.recording.log_survey import Incarnation, incarnations, lines_by_incarnation, survey
from dispatch_core.recording.resumed_parts import is_deleted, needed_later, parts_of
from dispatch_core.recording.schema import DISPATCHER_KEY, MESSAGES
from dispatch_core.recording.stream import Cut, LogBatch, log_batches
from dispatch_core.recording.table_rows import INCARNATION, kept
from dispatch_core.replay.assembler import Replay
from dispatch_core.replay.divergence_anomalies import ByDeliveries, in_batches, judged_by_deliveries
from dispatch_core.replay.incarnation_ends import StoredEntries, judged_until
from dispatch_core.replay.interval_totals import IntervalTotals
from dispatch_core.replay.join_parts import joined
from dispatch_core.replay.snapshots import ReplayState, StateKeeper
from dispatch_core.times import micros
from dispatch_core.verify.inputs import LINE_COLUMNS
from dispatch_core.verify.trace.facts import FACT_COLUMNS, TraceFacts
from dispatch_core.verify.trace.lines_ahead import LOOK_AHEAD
from dispatch_core.verify.without_trace.races import RACE_US


def replay_files(
    dispatcher: Mapping[str, Any],
    *,
    interval_start: datetime,
    interval_end: datetime,
    limits: Limits = DEFAULT_LIMITS,
    overrides: Overrides = RECORDED,
    to_last_line: bool = False,
    complete: bool = False,
    open_file: Callable[[], IO[bytes]] | None = None,
    state: ReplayState | None = None,
    keeper: StateKeeper | None = None,
    keep_totals: bool = False,
) -> Iterator[dict[str, pa.Table]]:
    """Replay all incarnations of a dispatcher; yields rows of the result tables as they become known.

    Incarnations that ended before the interval have no rows.

    Args:
        dispatcher: ``cluster, topic, subscription`` and its ``event_files`` and ``message_files`` in the order of the log.
            ``ends_lost``: the incarnations (``broker, incarnation``) of which rows behind the last line could not be read.
        interval_start: a row belongs to the interval of the event that proves it.
        interval_end: lines from then on are not used; what waits is judged as of then.
        limits: how long, or how much, is too much.
        overrides: what holds in place of the log's header.
        to_last_line: the log is known up to its last line: what waits is judged as of then.
        complete: no line will ever follow.
        open_file: opens an empty file for sums that outgrow memory (``EntryWaits``).
        state: goes on from there. The files then hold the rows behind its place alone (``rows_behind``), those of the
            interval among them.
        keeper: gets the state with which a later interval can go on.
        keep_totals: balance is judged over more intervals than this one (``IntervalTotals``).

    Raises:
        SnapshotError: the replay cannot go on from ``state``; rows handed out before are void.
        NotStreamableError: a window cannot judge the log; rows handed out before are void.
    """
    files = _Files(
        {name: dispatcher[name] for name in DISPATCHER_KEY},
        dispatcher["event_files"],
        dispatcher["message_files"],
    )
    logs, rare = _logs(files, interval_end, overrides, state)
    logs = _with_lost_ends(logs, dispatcher.get("ends_lost") or ())
    asked = _Asked(interval_start, limits, logs, to_last_line=to_last_line, complete=complete)
    stored = asked.stored_entries()
    states: list[tuple[pa.Table, int]] = []
    traced = any(log.facts is not None for log in logs)
    if keeper is not None:
        keeper.traced = traced
    keeping = None if keeper is None or traced else _Keeping(keeper, logs, rare, state)
    first = 0 if state is None else state.cut.log
    by_log = groupby(_replayed(files, asked, stored, state, keeping), key=lambda step: step.number)
    for (number, of_log), log in zip(by_log, logs[first:], strict=True):
        if not asked.reaches(number):
            for _step in of_log:
                pass
            continue
        head = log.parts[0]
        assumptions, moves = (
            Assumptions.of(head, limits.assume_absent, log.in_force),
            UnloggedMoves(),
        )
        totals = IntervalTotals(head, interval_start, limits, open_file, keep_totals=keep_totals)
        finished: list[dict[str, pa.Table]] = []
        changes = np.empty(0, np.int64)
        replays: list[Replay] = []
        for part, of_part in groupby(of_log, key=lambda step: step.part):
            again = partial(_by_deliveries, files, asked, number) if log.is_trace else None
            tables = _with_totals(of_part, totals, changes, replays)
            for found in in_batches(log.parts[part], interval_start, tables, again):
                moves.note(replays[-1].moved_before_seq)
                if "anomalies" in found:
                    anomalies = moves.applied(assumptions.applied(found["anomalies"]))
                    anomalies = with_doubts(anomalies, replays[-1].first_gap)
                    found = found | {"anomalies": anomalies}  # noqa: PLW2901 - as below
                if "dispatcher_state" in found:
                    finished.append(found)
                    found = {name: found[name] for name in _OF_THE_END}  # noqa: PLW2901 - what is left of it
                yield found
            changes = np.append(changes, replays[-1].ownership_changes)
        if len(finished) != len(log.parts):
            raise NotStreamableError("a gap line and a checkpoint after it were found apart")
        whole = finished[0] if len(finished) == 1 else joined(log.parts, finished, micros(interval_start))
        states.append((whole["dispatcher_state"], number))
        never_delivered = replays[-1].never_delivered() if number == len(logs) - 1 else 0
        yield {"ownership": whole["ownership"]} | totals.finish(
            whole["ownership"], whole["blocked"], never_delivered
        )
    yield {"dispatcher_state": pa.concat_tables([stored.counted(*of_log) for of_log in states])}


#: Further columns of a log whose checkpoints show permits.
_PERMIT_COLUMNS: Final = ("batch_sizes", "blocked")
#: Columns of the events of a log with lines of a trace.
_TRACE_EVENT_COLUMNS: Final = tuple(dict.fromkeys((*EVENT_COLUMNS, *LINE_COLUMNS, *TRACE_COLUMNS)))
#: Tables that the end of a log adds rows to. Ownership and state are joined from the parts of a log.
_OF_THE_END: Final = ("divergences", "blocked", "anomalies")


@dataclass(frozen=True, slots=True)
class _Files:
    """A dispatcher (``cluster, topic, subscription``) and the files of its log, in order."""

    identity: dict[str, str]
    events: list[str]
    messages: list[str]


@dataclass(frozen=True, slots=True)
class _Log:
    """The log of one incarnation.

    ``parts``: its identity, header and rare lines, by part (``resumed_parts``). ``end``: what waits is judged as of then.
    ``lines``: their number. ``limit``: the first position that was stored after it had ended, if the next one says so.
    ``first_t_us`` and ``last_t_us``: of its first and its last line. ``facts``: of a log with lines that only a trace holds.
    ``deleted``: the subscription is deleted at its end.
    """

    parts: list[DispatcherLog]
    end: datetime
    lines: int = 0
    limit: Position | None = None
    last_t_us: int | None = None
    facts: TraceFacts | None = None
    first_t_us: int | None = None
    deleted: bool = False

    @property
    def in_force(self) -> BehaviourInForce:
        """The behaviours that its ``limit`` lines show in force."""
        return BehaviourInForce.of(part.events for part in self.parts)

    @property
    def is_trace(self) -> bool:
        """True if every decision can be compared."""
        return self.facts is not None and self.facts.reads_logged

    def as_earlier(self) -> DispatcherLog:
        """Return its identity with the time of its last line."""
        return replace(self.parts[0], events=pa.table({"t_us": pa.array([self.last_t_us], pa.int64())}))

    def ended(self) -> _Log:
        """Return it without its lines and its header, of which nothing is needed when the next one has begun."""
        return replace(self, parts=[replace(self.as_earlier(), header={})])


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of every replay. ``traces``: decisions of traces are compared, where a log has one.

    ``to_last_line`` and ``complete`` hold for the last incarnation.
    """

    interval_start: datetime
    limits: Limits
    logs: list[_Log]
    traces: bool = True
    to_last_line: bool = False
    complete: bool = False

    def stored_entries(self) -> StoredEntries:
        """Return the count of the topic's entries, before the first one."""
        return StoredEntries(micros(self.interval_start), [micros(log.end) for log in self.logs])

    def is_trace(self, number: int) -> bool:
        """Check whether the decisions of a log are compared."""
        return self.traces and self.logs[number].is_trace

    def replay_of(self, number: int, part: int, after: Replay | None, stored: StoredEntries) -> Replay:
        """Begin the replay of a part of a log, behind the one before it."""
        log = self.logs[number]
        return Replay(
            log.parts[part],
            earlier=[before.as_earlier() for before in self._of_subscription(number)] if not part else (),
            after=after,
            resumes=part > 0,
            trace=log.facts if self.is_trace(number) else None,
            removals_logged=None if log.facts is None else log.facts.removals_logged,
            limits=self.limits,
            **self._about(number, part, stored),
        )

    def go_on(self, replay: Replay, number: int, part: int, stored: StoredEntries) -> None:
        """Let the replay of a part of a log go on with more lines of it."""
        replay.go_on(self.logs[number].parts[part], **self._about(number, part, stored))

    def _about(self, number: int, part: int, stored: StoredEntries) -> dict[str, Any]:
        """Return the arguments of a replay that follow from the interval, and from all that is known of the log."""
        log = self.logs[number]
        last = number == len(self.logs) - 1
        return {
            "interval_start": self.interval_start,
            "interval_end": log.end,
            "stored": stored,
            "in_force": log.in_force,
            "closed": part < len(log.parts) - 1 or (last and self.complete),
            "to_last_line": last and self.to_last_line,
            "ended": not last,
        }

    def reaches(self, number: int) -> bool:
        """Check whether a log has rows: it has not ended before the interval."""
        return number == len(self.logs) - 1 or self.logs[number].end > self.interval_start

    def _of_subscription(self, number: int) -> list[_Log]:
        """Return the logs before one, from the one in which its subscription was made."""
        before = self.logs[:number]
        deleted = [at for at, log in enumerate(before) if log.deleted]
        return before[deleted[-1] + 1 :] if deleted else before


@dataclass(frozen=True, slots=True)
class _Step:
    """The tables of a batch, or of the end, of a part of a log, and its replay."""

    number: int
    part: int
    replay: Replay
    found: dict[str, pa.Table]


class _Keeping:
    """Keeps the state of a replay at the places from which it can go on (``StateKeeper``)."""

    def __init__(
        self, keeper: StateKeeper, logs: Sequence[_Log], rare: pa.Table, state: ReplayState | None
    ) -> None:
        self.cut_us = keeper.cut_us
        self._keeper, self._logs, self._rare = keeper, logs, rare
        self._loads: list[Incarnation] = [] if state is None else [*state.loads]
        begun = [
            at for at, log in enumerate(logs) if log.first_t_us is not None and log.first_t_us < keeper.cut_us
        ]
        self._last_begun = max(begun, default=0)

    def take(self, number: int, events: pa.Table) -> None:
        """Take the next lines of an incarnation."""
        if not events.num_rows:
            return
        head = self._logs[number].parts[0]
        known = self._loads[number] if number < len(self._loads) else None
        self._loads[number:] = [Incarnation.of(head.broker, head.incarnation, events, known)]

    def wants(self, cut: Cut) -> bool:
        """Check whether the state in front of a batch is kept.

        Not of a part that goes on behind lost lines: the results of the parts before it would be missing. The incarnations
        begin with a place, too; it is kept for the last one, which may be too young for another.
        """
        return not cut.part and (cut.last_seq >= 0 or cut.log == self._last_begun)

    def keep(self, cut: Cut, replay: Replay, extents: Sequence[_Extent]) -> None:
        """Keep the state in front of a batch."""
        head = self._logs[cut.log].parts[0]
        of_head = [
            pc.equal(pc.fill_null(self._rare[name], missing), pa.scalar(value))
            for name, value, missing in (
                ("broker", head.broker or "", ""),
                ("incarnation", head.incarnation, 0),
            )
        ]
        before = pc.or_(
            pc.less_equal(self._rare["seq"], cut.last_seq), pc.equal(self._rare["kind"], "header")
        )
        # As one chunk: each of many small ones is saved as an object of its own.
        rare = needed_later(self._rare.filter(pc.and_(pc.and_(*of_head), before))).combine_chunks()
        earlier = [log.ended() for log in self._logs[: cut.log]]
        state = ReplayState(cut, replay, earlier, self._loads[: cut.log + 1], [*extents[: cut.log + 1]], rare)
        with replay.owned.since(self.cut_us):
            self._keeper.keep(state)


def _event_columns(logs: Sequence[_Log], *, traced: bool) -> tuple[str, ...]:
    """Return the columns of the events that the replay of these logs reads."""
    if traced:
        return _TRACE_EVENT_COLUMNS
    if any(shows_permits(part.events) for log in logs for part in log.parts):
        return (*EVENT_COLUMNS, *_PERMIT_COLUMNS)
    return EVENT_COLUMNS


def _replayed(
    files: _Files,
    asked: _Asked,
    stored: StoredEntries,
    state: ReplayState | None = None,
    keeping: _Keeping | None = None,
) -> Iterator[_Step]:
    """Replay all incarnations, one after the other; ``state``: from there on."""
    logs = asked.logs
    with_facts = any(log.facts is not None for log in logs)
    batches = log_batches(
        files.events,
        files.messages,
        files.identity,
        event_columns=_event_columns(logs, traced=with_facts),
        message_columns=MESSAGE_COLUMNS,
        logs=[(log.lines, log.limit) for log in logs[:-1]],
        begin=None if state is None else state.cut,
        cut_us=None if keeping is None else keeping.cut_us,
    )
    if with_facts:
        batches = (replace(batch, events=_until(batch.events, logs[batch.log].end)) for batch in batches)
    following = _with_following(batches, lambda number: LOOK_AHEAD if asked.is_trace(number) else 0)
    replay: Replay | None = None
    extents = [_Extent() for _ in logs]
    several_brokers = len({log.parts[0].broker for log in logs}) > 1
    within: tuple[int, int] | None = None
    if state is not None:
        replay, extents[: len(state.extents)] = state.replay, state.extents
        within = None if state.cut.last_seq < 0 else (state.cut.log, state.cut.part)
    by_part = groupby(following, key=lambda pair: (pair[0].log, pair[0].part))
    for (number, part), of_part in _from_place(by_part, within):
        if part >= len(logs[number].parts):
            raise NotStreamableError(f"a checkpoint follows a gap line where none was found: part {part}")
        if (number, part) == within and replay is not None:
            asked.go_on(replay, number, part, stored)
        else:
            after, replay = replay, None
        for batch, ahead in of_part:
            if batch.again is not None:
                stored.add(batch.again)
            if keeping is not None:
                known = after if replay is None else replay
                if batch.cut is not None and known is not None and keeping.wants(batch.cut):
                    keeping.keep(batch.cut, known, extents)
                keeping.take(number, batch.events)
            if replay is None:
                replay = asked.replay_of(number, part, after, stored)
            if several_brokers or keeping is not None:
                extents[number].add(batch.events)
            if batch.nobodys:
                replay.pass_over(batch.messages)
            else:
                found = replay.feed(batch.messages, batch.events, ahead, batch.stored_until_us)
                yield _Step(number, part, replay, found)
        if several_brokers and number:
            earlier, later = (extents[at].load(logs[at].parts[0].broker) for at in (number - 1, number))
            if earlier.followed(later):
                raise NotStreamableError(
                    f"by its positions, load {number + 1} of the topic came before the one in front of it"
                )
        assert replay is not None
        yield _Step(number, part, replay, replay.finish())


_Batches = Iterator[tuple[LogBatch, pa.Table | None]]


def _from_place(
    by_part: Iterator[tuple[tuple[int, int], _Batches]], within: tuple[int, int] | None
) -> Iterator[tuple[tuple[int, int], _Batches]]:
    """Yield the parts of a log with their batches, first of all the part ``within`` which it goes on, if it has none."""
    for number, (place, batches) in enumerate(by_part):
        if not number and within is not None and place != within:
            yield within, iter(())
        yield place, batches


class _Extent:
    """The lowest and the highest position that the lines of a log name."""

    def __init__(self) -> None:
        self._lowest: Position = (-1, -1)
        self._highest: Position = (-1, -1)

    def add(self, events: pa.Table) -> None:
        """Add the positions of the next lines."""
        lowest, highest = named_extent(events)
        self._highest = max(self._highest, highest)
        if lowest >= (0, 0):
            self._lowest = lowest if self._lowest < (0, 0) else min(self._lowest, lowest)

    def load(self, broker: str | None) -> Load:
        """Return the load that the log is of, by the lines so far."""
        return Load(broker, self._lowest, self._highest)


def _with_totals(
    steps: Iterable[_Step],
    totals: IntervalTotals,
    changes_before: npt.NDArray[np.int64],
    replays: list[Replay],
) -> Iterator[dict[str, pa.Table]]:
    """Yield the tables of each step, their deliveries added to the totals; the replay becomes the last of ``replays``."""
    for step in steps:
        if not replays or replays[-1] is not step.replay:
            replays.append(step.replay)
        if "deliveries" in step.found:
            changes = np.append(changes_before, step.replay.ownership_changes)
            totals.add(step.found["deliveries"], changes, step.replay.pairs)
        yield step.found


def _with_following(
    batches: Iterator[LogBatch], rows_of: Callable[[int], int]
) -> Iterator[tuple[LogBatch, pa.Table | None]]:
    """Yield each batch with the events of the next ones of the same part, until there are enough.

    Where rows are asked for, the entries that those events name come with the batch, too.

    Args:
        batches: of a log.
        rows_of: number of rows that a batch of an incarnation needs; 0 = those that may race with its last line, of
            ``LOOK_AHEAD`` at most.
    """
    waiting: deque[LogBatch] = deque()

    def same_part() -> list[LogBatch]:
        first = waiting[0]
        return [batch for batch in waiting if (batch.log, batch.part) == (first.log, first.part)][1:]

    def enough() -> bool:
        following = same_part()
        if waiting[0].nobodys or not waiting[0].events.num_rows:
            return True
        if 1 + len(following) < len(waiting):
            return True  # the next part has begun
        if not following or not following[-1].events.num_rows:
            return bool(following)  # behind a batch without events the part has no more of them
        rows, needed = sum(batch.events.num_rows for batch in following), rows_of(waiting[0].log)
        if needed or rows >= LOOK_AHEAD:
            return rows >= needed
        until_us = (waiting[0].events["t_us"][-1].as_py() or 0) + RACE_US
        return any((batch.events["t_us"][-1].as_py() or 0) > until_us for batch in following)

    ended = False
    while True:
        while not ended and (not waiting or not enough()):
            batch = next(batches, None)
            ended = batch is None
            if batch is None:
                continue
            if batch.nobodys and waiting and (batch.log, batch.part) == (waiting[0].log, waiting[0].part):
                yield batch, None  # at once: the entries behind it may come with an earlier batch
            else:
                waiting.append(batch)
        if not waiting:
            return
        following = same_part()
        if rows_of(waiting[0].log):
            messages = [batch.messages for batch in (waiting[0], *following)]
            for at, batch in enumerate(following, 1):
                waiting[at] = replace(batch, messages=batch.messages.slice(0, 0))
            waiting[0] = replace(waiting[0], messages=_joined_rows(messages))
        events = [batch.events for batch in following]
        yield waiting.popleft(), _joined_rows(events) if events else None


def _joined_rows(tables: list[pa.Table]) -> pa.Table:
    """Join tables of which those without rows may have other types of text."""
    return pa.concat_tables([table for table in tables if table.num_rows] or tables[:1])


def _by_deliveries(files: _Files, asked: _Asked, number: int, positions: Set[str]) -> ByDeliveries:
    """Replay an incarnation, and those before it, without their traces."""
    without = replace(asked, traces=False)
    steps = takewhile(lambda step: step.number <= number, _replayed(files, without, without.stored_entries()))
    return judged_by_deliveries((step.found for step in steps if step.number == number), positions)


def _logs(
    files: _Files, interval_end: datetime, overrides: Overrides, state: ReplayState | None = None
) -> tuple[list[_Log], pa.Table]:
    """Find the incarnations of a dispatcher and the parts of their logs, with the rare lines of each.

    ``state``: the files hold what lies behind its place. Returns the rare lines and the headers of all, too, but for those
    of the incarnations before that place.
    """
    identity, event_files = files.identity, files.events
    found = survey(event_files, identity, (*RARE_KINDS, "gap"))
    if state is not None:
        if found.traced:
            raise SnapshotError("the log is a dispatcher trace now")
        rare = pa.concat_tables([state.rare, found.rare])
        return _further_logs(files, interval_end, overrides, state, rare), rare
    if len(found.incarnations) < 2:
        broker, number = found.incarnations[0] if found.incarnations else (None, 0)
        log = _Log(_parts(identity, broker, number or 0, found.rare, overrides), interval_end)
        return (_with_facts(files, [log]) if found.traced else [log]), found.rare
    known = incarnations(event_files, identity)
    if len(known) < len({(broker, number or 0) for broker, number in found.incarnations}):
        raise NotStreamableError("of an incarnation nothing but its header is known")
    for earlier, later in pairwise(known):
        overlap = (later.first_t_us or 0) <= (earlier.last_t_us or -1)
        if overlap and earlier.broker != later.broker:
            raise NotStreamableError("by their clocks, two brokers served the topic at once")
    logs = _logs_of(known, found.rare, identity, interval_end, overrides)
    return (_with_facts(files, logs) if found.traced else logs), found.rare


def _logs_of(
    known: Sequence[Incarnation],
    rare: pa.Table,
    identity: Mapping[str, str],
    interval_end: datetime,
    overrides: Overrides,
) -> list[_Log]:
    """Return the logs of incarnations, in the order in which they began."""
    of_row = _incarnations_of(rare)
    logs: list[_Log] = []
    for at, incarnation in enumerate(known):
        of_this = [key == (incarnation.broker, incarnation.number) for key in of_row]
        rare_lines = rare.filter(pa.array(of_this, pa.bool_()))
        later_begins_us = [later.first_t_us for later in known[at + 1 :] if later.first_t_us is not None]
        parts = _parts(identity, incarnation.broker, incarnation.number, rare_lines, overrides)
        log = _Log(
            parts,
            judged_until(incarnation.last_t_us, later_begins_us, interval_end),
            incarnation.lines,
            last_t_us=incarnation.last_t_us,
            first_t_us=incarnation.first_t_us,
            deleted=is_deleted(parts[-1].events),
        )
        if logs:
            logs[-1] = replace(logs[-1], limit=_first_unread(log.parts[0].events, incarnation.first_seq))
        logs.append(log)
    return logs


def _further_logs(
    files: _Files, interval_end: datetime, overrides: Overrides, state: ReplayState, rare: pa.Table
) -> list[_Log]:
    """Find the incarnations of a dispatcher: those before the place of ``state``, that one, and the later ones."""
    new = incarnations(files.events, files.identity)
    before, known = state.loads[: state.cut.log], state.loads[state.cut.log :]
    if known and new and (new[0].broker, new[0].number) == (known[0].broker, known[0].number):
        if new[0].first_seq <= state.cut.last_seq:
            raise SnapshotError(
                f"the line at seq {new[0].first_seq} lies before the place that the log was read to"
            )
        known = [known[0].joined(new.pop(0))]
    known += new
    keys = [(load.broker, load.number) for load in (*before, *known)]
    if len(set(keys)) < len(keys):
        raise SnapshotError(
            "lines of an earlier load of the topic lie behind the place that the log was read to"
        )
    if not known:
        raise SnapshotError(
            "the log has no line behind the place that it was read to, which is that of a new load"
        )
    starts = [load.first_t_us for load in (*before[-1:], *known) if load.first_t_us is not None]
    if starts != sorted(starts):
        raise SnapshotError("the loads of the topic do not stand in the order in which they began")
    if len(set(_incarnations_of(rare)) - set(keys)):
        raise SnapshotError("of a load of the topic nothing but its header is known")
    for earlier, later in pairwise((*before[-1:], *known)):
        if (later.first_t_us or 0) <= (earlier.last_t_us or -1) and earlier.broker != later.broker:
            raise SnapshotError("by their clocks, two brokers served the topic at once")
    return [*state.earlier, *_logs_of(known, rare, files.identity, interval_end, overrides)]


def _incarnations_of(rare: pa.Table) -> list[tuple[str | None, int]]:
    """Return the incarnation of each line."""
    columns = (rare[name].to_pylist() for name in INCARNATION)
    return [(broker, number or 0) for broker, number in zip(*columns, strict=True)]


def _with_facts(files: _Files, logs: Sequence[_Log]) -> list[_Log]:
    """Find the facts of each incarnation of a log with lines of a trace; lines from the end of the interval on are cut."""
    of_log = {(log.parts[0].broker, log.parts[0].incarnation): number for number, log in enumerate(logs)}
    facts = [TraceFacts() for _ in logs]
    for key, lines in lines_by_incarnation(files.events, files.identity, (*FACT_COLUMNS, "t_us")):
        number = of_log[key]
        facts[number] = facts[number].with_lines(_until(lines, logs[number].end))
    found: list[_Log] = []
    for log, known in zip(logs, facts, strict=True):
        if known.reads_logged and len(log.parts) > 1:
            raise NotStreamableError("a trace goes on from a checkpoint, or its subscription is made again")
        if known.reads_logged and found:
            # Its comparison begins with all entries of the topic; the window holds those that matter to the audit.
            raise NotStreamableError(
                f"incarnation {log.parts[0].incarnation} is a trace, and not the first one"
            )
        parts = [replace(part, events=_until(part.events, log.end)) for part in log.parts]
        found.append(replace(log, parts=parts, facts=known))
    return found


def _until(events: pa.Table, end: datetime) -> pa.Table:
    """Return the lines before a time."""
    before = pc.fill_null(pc.less(events["t_us"], micros(end)), False)
    return events if pc.all(before).as_py() else events.filter(before)


def _parts(
    identity: Mapping[str, str], broker: str | None, number: int, rare: pa.Table, overrides: Overrides
) -> list[DispatcherLog]:
    """Return the parts of one incarnation's log, with their rare lines alone."""
    is_header = of_kinds(rare, "header")
    headers = rows_at(rare.select(["header_json"]), np.flatnonzero(is_header))
    texts = [text for text in headers["header_json"].to_pylist() if text]
    whole = DispatcherLog(
        recording="",
        cluster=identity["cluster"],
        topic=identity["topic"],
        subscription=identity["subscription"],
        broker=broker,
        incarnation=number,
        header=json.loads(texts[-1]) if texts else {},  # every interval's files bring one; the latest stands
        messages=no_rows(MESSAGES),
        events=kept(rare, ~is_header),
    )
    parts = parts_of(overrides.of(whole))
    if not has_kind(rare, "gap"):
        return parts
    return [replace(part, events=kept(part.events, ~of_kinds(part.events, "gap"))) for part in parts]


def _with_lost_ends(logs: list[_Log], lost: Iterable[Mapping[str, Any]]) -> list[_Log]:
    """Return logs, of which those of the incarnations ``lost`` have lost their ends."""
    ends = {tuple(load[name] for name in INCARNATION) for load in lost}
    if not ends:
        return logs
    marked_logs = []
    for log in logs:
        *before, part = log.parts
        if (part.broker, part.incarnation) in ends:
            log = replace(log, parts=[*before, replace(part, end_lost=True)])  # noqa: PLW2901 - the same log
        marked_logs.append(log)
    return marked_logs


def _first_unread(rare: pa.Table, first_seq: int) -> Position | None:
    """Return the read position of the checkpoint that a log begins with, if it begins with one."""
    if not rare.num_rows or rare["seq"][0].as_py() != first_seq:
        return None
    first = leading(rare)
    return None if first is None else first.read_position
