"""Replay one dispatcher's log for one interval: the fold, the comparison and the audit, as result tables.

The state at the start of an interval is the fold of everything before it, so the whole log up to the interval's end is
folded and only rows of the interval are kept: a row belongs to the interval of the event that proves it. The result
depends on the log and the interval alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from dispatch_core.arrays.columns import encode, ints
from dispatch_core.arrays.line_kinds import has_kind
from dispatch_core.audit.behaviour_in_force import BehaviourInForce
from dispatch_core.audit.deliveries.earlier_loads import EarlierLoads
from dispatch_core.audit.deliveries.lost_state import loses_lines
from dispatch_core.audit.deliveries.missing_lines import LastLine
from dispatch_core.audit.key_totals import Pairs
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.lost_lines import with_doubts
from dispatch_core.audit.unlogged_moves import UnloggedMoves
from dispatch_core.audit.unsent_entries import Unfinished, unsent_of
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.resumed_parts import is_deleted, parts_of
from dispatch_core.replay.assembler import Replay
from dispatch_core.replay.continued_fold import ContinuedFold
from dispatch_core.replay.divergence_anomalies import with_divergences, with_waits
from dispatch_core.replay.incarnation_ends import StoredEntries
from dispatch_core.replay.interval_totals import with_totals
from dispatch_core.replay.join_parts import joined
from dispatch_core.times import micros
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.runner import is_trace


def replay(
    log: DispatcherLog,
    *,
    interval_start: datetime,
    interval_end: datetime,
    earlier: Sequence[DispatcherLog] = (),
    fold: ContinuedFold | None = None,
    limits: Limits = DEFAULT_LIMITS,
    closed: bool = False,
    to_last_line: bool = False,
    last: bool = True,
    without_trace: bool = False,
    reported_waits: list[SampledWait] | None = None,
    tick_us: int | None = None,
    keep_totals: bool = False,
) -> dict[str, pa.Table]:
    """Fold ``log`` up to ``interval_end``; return the tables of ``tables.REPLAY_TABLES`` for [start, end), UTC.

    Args:
        log: one incarnation of one dispatcher.
        interval_start: a row belongs to the interval of the event that proves it.
        interval_end: lines from then on are not used; what waits is judged as of then.
        earlier: the incarnations of the same dispatcher before this one, oldest first; what they sent and this one sends
            again is ``redelivered`` with cause ``topic_reload``.
        fold: the fold of ``earlier``, to go on from; it takes in this log. The result is the same. Where it cannot go on,
            it ends, and the lines of ``earlier`` are read again.
        limits: how long, or how much, is too much.
        closed: the log is all there is: what waits at its end will never be sent.
        to_last_line: the log is known up to its last line: what waits is judged as of then.
        last: no incarnation follows: entries that none of them has sent are counted (``never_delivered`` of ``waits``).
            Otherwise what waits is judged as of the last line: the broker may have been away behind it.
        without_trace: judge a trace as the log without a trace that it contains.
        reported_waits: gets every wait that is reported one by one.
        tick_us: how often to look at what waits, 0 = at every line; by default as often as the limits need it.
        keep_totals: balance is judged over more intervals than this one (``IntervalTotals``).

    A log that goes on from a checkpoint behind lost lines is judged in parts (``recording.resumed_parts``).

    Never raises for what a log may hold: a log that cannot be judged gets a ``dispatcher_state`` row that says why, and
    deliveries and anomalies all the same.
    """
    end_us = micros(interval_end)
    inside = ints(log.events["t_us"], end_us) < end_us
    # A filter copies all columns, so none is taken where no line is left out.
    events = log.events if inside.all() else log.events.filter(pa.array(inside))
    log = replace(log, events=encode(events, "kind"))
    in_force = BehaviourInForce.of([log.events])
    before = EarlierLoads.of(earlier)
    asked = _Asked(
        interval_start, interval_end, before, limits, closed, to_last_line, not last, tick_us, in_force
    )
    waits: list[SampledWait] = []
    ends: list[_End] = []
    found: dict[str, pa.Table] | None = None
    if fold is not None and (is_trace(log) or not fold.goes_on_with(log)):
        fold.end()
    elif fold is not None:
        try:
            found = _of_parts(log, replace(asked, fold=fold, last=last), waits, ends)
            if len(ends) > 1 or loses_lines(log):
                fold.end()  # the window does not hold all lines before the next load, or they are not all there
        except NotStreamableError:
            fold.end()
            waits, ends = [], []
    continued = found is not None
    if found is None:
        if is_trace(log):
            found = _part(log, asked, waits, ends, trace=not without_trace)
        else:
            found = _of_parts(log, asked, waits, ends)
    if reported_waits is not None:
        reported_waits.extend(waits)
    never_delivered = 0
    if last:
        # A replay that was fed all lines of the dispatcher has counted; others saw a part of them.
        counted = len(ends) == 1 and (continued or not before.every)
        never_delivered = ends[0].never_delivered if counted else unsent_of(log, before, ends[-1].unfinished)
    moves = UnloggedMoves()
    for end in ends:
        moves.note(end.moved_before_seq)
    return with_totals(
        log,
        found,
        interval_start,
        limits,
        never_delivered=never_delivered,
        moves=moves,
        pairs=ends[0].pairs if len(ends) == 1 else None,
        keep_totals=keep_totals,
    )


def _of_parts(
    log: DispatcherLog, asked: _Asked, waits: list[SampledWait], ends: list[_End]
) -> dict[str, pa.Table]:
    """Return the tables of a log without its trace, but for ``balance`` and ``waits``; see ``_part``."""
    parts = parts_of(log)
    of_parts = [
        _part(
            part,
            replace(
                asked,
                number=number,
                earlier=() if number else asked.earlier,
                closed=asked.closed or number < len(parts) - 1,
                last_line=line_before(parts, number),
            ),
            waits,
            ends,
        )
        for number, part in enumerate(parts)
    ]
    return of_parts[0] if len(parts) == 1 else joined(parts, of_parts, micros(asked.interval_start))


def _part(
    log: DispatcherLog,
    asked: _Asked,
    reported_waits: list[SampledWait],
    ends: list[_End],
    *,
    trace: bool = False,
) -> dict[str, pa.Table]:
    """Return the tables of a log, or of one part of it, but for ``balance`` and ``waits``.

    ``reported_waits`` gets its waits, ``ends`` what it leaves open.
    """
    waits: list[SampledWait] = []
    found, end = _in_one_batch(log, asked, waits, trace=trace)
    by_deliveries = found
    if trace and any(found["dispatcher_state"]["divergent"].to_pylist()):
        other_waits: list[SampledWait] = []
        by_deliveries, _ = _in_one_batch(log, asked, other_waits)
        found = with_waits(found, by_deliveries)
        if by_deliveries["dispatcher_state"]["not_judged_reason"].null_count:
            waits = other_waits
    reported_waits.extend(waits)
    ends.append(end)
    anomalies = with_divergences(log, asked.interval_start, found, by_deliveries)
    return found | {"anomalies": with_doubts(anomalies, end.first_gap)}


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of ``replay`` for a part of a log; ``number``: the part's, from 0."""

    interval_start: datetime
    interval_end: datetime
    earlier: Sequence[DispatcherLog]
    limits: Limits
    closed: bool
    to_last_line: bool
    ended: bool
    tick_us: int | None
    in_force: BehaviourInForce
    last_line: LastLine | None = None
    fold: ContinuedFold | None = None
    number: int = 0
    last: bool = True


def line_before(parts: Sequence[DispatcherLog], number: int) -> LastLine | None:
    """Return the line before a part that begins with a subscription which is made again; ``None`` for other parts."""
    if not number or not is_deleted(parts[number - 1].events):
        return None
    return LastLine.of(parts[number - 1].events)


@dataclass(frozen=True, slots=True)
class _End:
    """Results of a replay beside its tables; each is the attribute or method of ``Replay`` of that name."""

    unfinished: Unfinished
    never_delivered: int
    moved_before_seq: int | None
    first_gap: int | None
    pairs: Pairs | None


def _in_one_batch(
    log: DispatcherLog, asked: _Asked, reported_waits: list[SampledWait], *, trace: bool = False
) -> tuple[dict[str, pa.Table], _End]:
    """Return the tables of a log, but for its divergences as findings, and what it leaves open.

    ``trace``: compare every decision.
    """
    if asked.fold is not None:
        return _behind(asked.fold, log, asked, reported_waits)
    replay = _replay_of(log, asked, trace=trace)
    return _of_one_batch(replay, log.messages, log.events, reported_waits)


def _behind(
    fold: ContinuedFold, log: DispatcherLog, asked: _Asked, reported_waits: list[SampledWait]
) -> tuple[dict[str, pa.Table], _End]:
    """The same as ``_in_one_batch``, from the fold of the lines before.

    Raises ``NotStreamableError`` where a window cannot judge the log.
    """
    entries = fold.entries(log, last=asked.last) if not asked.number else log.messages.slice(0, 0)
    replay = fold.replay = _replay_of(log, asked, after=fold.replay)
    found, end = _of_one_batch(replay, entries, log.events, reported_waits)
    stored = StoredEntries(micros(asked.interval_start), [micros(asked.interval_end)])
    stored.add(log.messages)
    return found | {"dispatcher_state": stored.counted(found["dispatcher_state"], 0)}, end


def _replay_of(
    log: DispatcherLog, asked: _Asked, *, trace: bool = False, after: Replay | None = None
) -> Replay:
    continued = asked.fold is not None
    return Replay(
        replace(log, messages=log.messages.slice(0, 0)),
        interval_start=asked.interval_start,
        interval_end=asked.interval_end,
        earlier=asked.earlier,
        after=after,
        resumes=continued and asked.number > 0,
        whole=not continued,
        trace=TraceFacts().with_lines(log.events) if trace else None,
        removals_logged=_shows_removals(log.events) if continued else None,
        limits=asked.limits,
        closed=asked.closed,
        to_last_line=asked.to_last_line,
        ended=asked.ended,
        tick_us=asked.tick_us,
        in_force=asked.in_force,
        last_line=asked.last_line,
    )


def _shows_removals(events: pa.Table) -> bool:
    """Check whether a log shows removals of pending acks."""
    return has_kind(events, "pending_ack_removed")


def _of_one_batch(
    replay: Replay, messages: pa.Table, events: pa.Table, reported_waits: list[SampledWait]
) -> tuple[dict[str, pa.Table], _End]:
    batch = replay.feed(messages, events)
    rest = replay.finish(reported_waits)
    both = ("anomalies", "divergences")
    found = batch | rest | {name: pa.concat_tables([batch[name], rest[name]]) for name in both}
    return found, _End(
        replay.unfinished,
        replay.never_delivered(),
        replay.moved_before_seq,
        replay.first_gap,
        replay.pairs,
    )
