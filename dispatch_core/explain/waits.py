"""What waited, from when to when, and which rule held it: the waits of entries, and the holds that cover them.

A wait begins when an entry is stored, or when an earlier delivery of it was taken back, and ends when it is sent. A *hold*
(``audit.holds``) says of the oldest waiting entry of a hash which rules held it and who kept it; the waits that share a
hold are told together, as an ``Episode``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dispatch_core.audit import layout as at
from dispatch_core.audit.findings import CAUSE_OF
from dispatch_core.audit.holds import MOST_POSITIONS, Hold
from dispatch_core.audit.operations import (
    ACK,
    ACK_CUMULATIVE,
    ADDED,
    FLOW,
    REDELIVER,
    REDELIVER_ALL,
    REMOVED,
)
from dispatch_core.explain.record import TAKEN_BACK, Record
from dispatch_core.explain.subject import CONSUMER, Subject

#: What waited no longer than this was on its way rather than held back: reading and sending take some milliseconds.
BRIEF_US: Final = 20_000
#: Waits for one reason with a shorter break than this are told as one.
_BREAK_US: Final = 100_000
_ENDS_HOLDING: Final = (ACK, ACK_CUMULATIVE, REDELIVER, REDELIVER_ALL, REMOVED)
#: What lets go of work that waits for this reason, and whose it is: the holder's, the waiting consumer's, anybody's.
_FREED_BY: Final[dict[str, tuple[tuple[int, ...], str]]] = {
    "draining_hash": (_ENDS_HOLDING, "holder"),
    "recently_joined": (_ENDS_HOLDING, "holder"),
    "last_sent_position": (_ENDS_HOLDING, "holder"),
    "no_permits": ((FLOW,), "waiting"),
    "unacked_limit_consumer": (_ENDS_HOLDING, "waiting"),
    "unacked_limit_subscription": (_ENDS_HOLDING, "anybody"),
    "no_consumer": ((ADDED,), "anybody"),
    "uncovered_range": ((ADDED,), "anybody"),
}


@dataclass(frozen=True, slots=True)
class Wait:
    """An entry waited: since it was stored, or since its delivery before ended as ``cause`` says. ``until_us`` None: still.

    ``delivery`` that ended it, -1 = none; ``from_op``: the operation that began it, -1 = it was stored.
    """

    ordinal: int
    from_us: int
    until_us: int | None
    delivery: int
    from_op: int
    cause: str | None

    def lasted_us(self, end_us: int) -> int:
        """How long, if the log ends at ``end_us``."""
        return (end_us if self.until_us is None else self.until_us) - self.from_us


@dataclass(frozen=True, slots=True)
class Episode:
    """Work waited for one reason from ``from_us`` to ``until_us`` (None: to the log's end), without much of a break.

    ``ordinals``: those of the subject that waited so. ``longest_us``: of one of them. ``holds``: what says so, the one
    that explains most first. ``freed_op``: the operation that let them go, -1 = not known.
    """

    reason: str | None
    waiting: int | None
    holder: int | None
    held_by: tuple[str, ...]
    held_by_count: int
    ordinals: tuple[int, ...]
    from_us: int
    until_us: int | None
    longest_us: int
    uncertain: bool
    holds: tuple[Hold, ...]
    freed_op: int


def waits_of(record: Record, subject: Subject) -> list[Wait]:
    """The waits of the subject's entries; of a consumer's, those that ended at it."""
    d, history = record.deliveries, record.history
    begin_us, _ = record.span_us
    own = np.flatnonzero(np.isin(d[:, at.ENTRY], subject.ordinals))
    waits: list[Wait] = []
    last_of: dict[int, int] = {}
    for delivery in own.tolist():
        ordinal, op, before = (int(d[delivery, c]) for c in (at.ENTRY, at.OPERATION, at.BEFORE_OF_ENTRY))
        last_of[ordinal] = delivery
        if op < record.first_op or (
            subject.kind == CONSUMER and d[delivery, at.CONSUMER] not in subject.places
        ):
            continue
        began = _began(record, ordinal, before, begin_us)
        if began is not None:
            from_us, from_op, cause = began
            until = record.t_us(op)
            waits.append(Wait(ordinal, min(from_us, until), until, delivery, from_op, cause))
    if subject.kind == CONSUMER or not len(d):
        return waits
    first_ever = int(d[:, at.ENTRY].min())
    for ordinal in subject.ordinals.tolist():
        last = last_of.get(ordinal, -1)
        if last >= 0 and d[last, at.END] not in TAKEN_BACK:
            continue
        if last < 0 and (ordinal < first_ever or _acked(record, ordinal) or not history.stored[ordinal]):
            continue  # before the subscription, or settled by an earlier incarnation
        began = _began(record, ordinal, last, begin_us)
        if began is not None:
            waits.append(Wait(ordinal, began[0], None, -1, began[1], began[2]))
    return waits


def ahead_of(record: Record, wait: Wait) -> int:
    """How many earlier entries of the topic had still to be sent when a wait began."""
    d = record.deliveries
    ordinals, first = np.unique(d[:, at.ENTRY], return_index=True)
    times = record.history.op_t_us[d[first, at.OPERATION]]
    return int(np.count_nonzero((ordinals < wait.ordinal) & (times > wait.from_us)))


def _began(record: Record, ordinal: int, before: int, begin_us: int) -> tuple[int, int, str | None] | None:
    """When a wait began (time, operation, cause), ``before`` being the delivery before; None = that one never ended."""
    if before < 0:
        stored = record.stored_us(ordinal)
        return (begin_us if stored is None else max(stored, begin_us)), -1, None
    end, op = (int(record.deliveries[before, c]) for c in (at.END, at.END_OPERATION))
    if end not in TAKEN_BACK:
        return None
    return (
        (max(record.t_us(op), begin_us), op, CAUSE_OF[end])
        if end != at.RELOADED
        else (begin_us, op, CAUSE_OF[end])
    )


def _acked(record: Record, ordinal: int) -> bool:
    starts = record.operations.start
    owner = np.searchsorted(starts, np.flatnonzero(record.operations.ordinals == ordinal), side="right") - 1
    return bool(np.isin(record.operations.code[owner], (ACK, ACK_CUMULATIVE)).any())


def episodes_of(record: Record, subject: Subject, waits: list[Wait], holds: Iterable[Hold]) -> list[Episode]:
    """What held the subject's entries back, in order of time; what was on its way only is left out."""
    _, end_us = record.span_us
    by_hash: dict[int | None, list[Hold]] = {}
    numbers = {record.number_of(place) for place in subject.places}
    for hold in holds:
        if hold.reason is None and hold.until_t_us is not None:
            continue  # it was its turn, and others were before it
        if _lasted_us(hold, end_us) > BRIEF_US and (subject.kind != CONSUMER or hold.waiting in numbers):
            by_hash.setdefault(hold.hash, []).append(hold)
    parts: list[_Part] = []
    explained: set[int] = set()
    for wait in waits:
        if wait.lasted_us(end_us) <= BRIEF_US:
            continue
        sticky = int(record.history.entry_hash[wait.ordinal])
        near = by_hash.get(sticky, ()) if sticky >= 0 else [h for found in by_hash.values() for h in found]
        best = max(near, key=lambda hold: _common_us(hold, wait, end_us), default=None)
        if best is not None and _common_us(best, wait, end_us) > BRIEF_US:
            parts.append(_Part(best, wait.ordinal, wait.from_us, wait.until_us, wait.delivery))
            explained.add(id(best))
    if subject.kind == CONSUMER:
        # what it was to get and never got is nobody's delivery: the holds alone know of it
        rest = [hold for found in by_hash.values() for hold in found if id(hold) not in explained]
        parts += [_Part(hold, -1, hold.from_t_us, hold.until_t_us, -1) for hold in rest]
    parts.sort(key=lambda part: (part.from_us, part.ordinal))
    return [_episode(record, run, end_us) for run in _runs(parts)]


@dataclass(frozen=True, slots=True)
class _Part:
    """One wait under one hold; ``ordinal`` and ``delivery`` -1 = of no entry of the subject."""

    hold: Hold
    ordinal: int
    from_us: int
    until_us: int | None
    delivery: int


def _runs(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Parts for one reason and one waiting consumer that follow each other without much of a break, together."""
    open_runs: dict[tuple[str | None, int | None], list[_Part]] = {}
    ends: dict[tuple[str | None, int | None], float] = {}
    done: list[list[_Part]] = []
    for part in parts:
        kind = (part.hold.reason, part.hold.waiting)
        if kind in open_runs and part.from_us > ends[kind] + _BREAK_US:
            done.append(open_runs.pop(kind))
        until = float("inf") if part.until_us is None else part.until_us
        ends[kind] = max(until, ends[kind]) if kind in open_runs else until
        open_runs.setdefault(kind, []).append(part)
    yield from sorted([*done, *open_runs.values()], key=lambda run: run[0].from_us)


def _episode(record: Record, run: list[_Part], end_us: int) -> Episode:
    holds = sorted({id(part.hold): part.hold for part in run}.values(), key=lambda h: -_lasted_us(h, end_us))
    lead = next((hold for hold in holds if hold.holder_positions), holds[0])
    until = [part.until_us for part in run]
    until_us = None if None in until else max(t for t in until if t is not None)
    last = max(run, key=lambda part: float("inf") if part.until_us is None else part.until_us)
    held_by = list(
        dict.fromkeys(p for hold in holds if hold.holder == lead.holder for p in hold.holder_positions)
    )
    ordinals = tuple(sorted({part.ordinal for part in run if part.ordinal >= 0}))
    episode = Episode(
        lead.reason,
        lead.waiting,
        lead.holder,
        tuple(sorted(held_by[:MOST_POSITIONS], key=_place)),
        max(len(held_by), lead.holder_pending),
        ordinals,
        run[0].from_us,
        until_us,
        max((end_us if part.until_us is None else part.until_us) - part.from_us for part in run),
        any(hold.uncertain for hold in holds),
        tuple(holds),
        -1,
    )
    return replace(episode, freed_op=_freed(record, episode, last.delivery))


def _freed(record: Record, episode: Episode, delivery: int) -> int:
    """The last operation before the sending that can have let the work go."""
    if episode.reason not in _FREED_BY or delivery < 0:
        return -1
    codes, whose = _FREED_BY[episode.reason]
    history, sent = record.history, int(record.deliveries[delivery, at.OPERATION])
    near = np.arange(record.first_op, sent)
    near = near[np.isin(history.op_code[near], codes) & (history.op_t_us[near] >= episode.from_us)]
    number = {"holder": episode.holder, "waiting": episode.waiting}.get(whose)
    if number is not None:
        near = near[history.op_consumer[near] == record.place_of(number)]
    elif whose != "anybody":
        return -1
    if whose == "holder" and episode.held_by:
        near = (
            near[[_concerns(record, int(op), episode.held_by) for op in near.tolist()]] if len(near) else near
        )
    return int(near[-1]) if len(near) else -1


def _concerns(record: Record, op: int, positions: tuple[str, ...]) -> bool:
    """Whether an operation is about all that its connection holds, or names one of ``positions``."""
    if record.history.op_code[op] in (REMOVED, REDELIVER_ALL, ACK_CUMULATIVE):
        return True
    start, stop = record.operations.start[op : op + 2].tolist()
    return any(record.position(o) in positions for o in record.operations.ordinals[start:stop].tolist())


def _lasted_us(hold: Hold, end_us: int) -> int:
    return (end_us if hold.until_t_us is None else hold.until_t_us) - hold.from_t_us


def _common_us(hold: Hold, wait: Wait, end_us: int) -> int:
    """How long both were."""
    ends = [end_us if t is None else t for t in (hold.until_t_us, wait.until_us)]
    return min(ends) - max(hold.from_t_us, wait.from_us)


def _place(position: str) -> tuple[int, ...]:
    return tuple(int(part) for part in position.split(":"))
