"""Waits of entries, and the rules that held the entries back.

A wait begins when an entry is stored, or when an earlier delivery of it was taken back, and ends when it is sent. A *hold*
(``audit.waits``) names, for the oldest waiting entry of a hash, the rules that held it back and the consumer it waited
behind. Waits that share a hold form an ``Episode``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.deliveries.findings import CAUSE_OF
from dispatch_core.audit.deliveries.operations import (
    ACK,
    ACK_CUMULATIVE,
    ADDED,
    FLOW,
    REDELIVER,
    REDELIVER_ALL,
    REMOVED,
)
from dispatch_core.audit.sentences import reasons
from dispatch_core.audit.waits.no_read import described
from dispatch_core.audit.waits.tracker import MOST_POSITIONS, SampledWait
from dispatch_core.explain.record import TAKEN_BACK, Record
from dispatch_core.explain.subject import CONSUMER, Subject

#: Shorter waits are not reported as held back: a read and a delivery take some milliseconds.
BRIEF_US: Final = 20_000
#: Waits for the same reason with a shorter break between them form one episode.
_BREAK_US: Final = 100_000
DRAINING: Final = "draining_hash"
LOOK_AHEAD: Final = "look_ahead_limit"
#: Reasons that lie with the waiting consumer itself.
ITS_OWN: Final = ("no_permits", "unacked_limit_consumer")
_RECENTLY_JOINED: Final = ("recently_joined", "last_sent_position")
#: Holds of one episode whose evidence is looked up: it may have one for each hash of a consumer.
_MOST_LOOKED_AT: Final = 50
_ENDS_HOLDING: Final = (ACK, ACK_CUMULATIVE, REDELIVER, REDELIVER_ALL, REMOVED)
#: By reason, the operations that free entries although no pending entry held them, and whose: "waiting" = only operations of
#: the waiting consumer count.
_FREED_BY: Final[dict[str, tuple[tuple[int, ...], str]]] = {
    "no_permits": ((FLOW,), "waiting"),
    "unacked_limit_consumer": (_ENDS_HOLDING, "waiting"),
    "unacked_limit_subscription": (_ENDS_HOLDING, ""),
    "no_consumer": ((ADDED,), ""),
    "uncovered_range": ((ADDED,), ""),
}


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of an entry since it was stored, or since its previous delivery ended with ``cause``.

    ``until_us``: None if it still waits at the log's end. ``delivery``: the delivery that ended the wait, -1 = none.
    ``from_op``: the operation that began it, -1 = it was stored.
    """

    ordinal: int
    from_us: int
    until_us: int | None
    delivery: int
    from_op: int
    cause: str | None

    def lasted_us(self, end_us: int) -> int:
        """The length of the wait in microseconds, if the log ends at ``end_us``."""
        return (end_us if self.until_us is None else self.until_us) - self.from_us


@dataclass(frozen=True, slots=True)
class Episode:
    """Entries that waited for one reason from ``from_us`` to ``until_us`` (None: to the log's end) without a long break.

    ``ordinals``: the waiting entries of the subject. ``longest_us``: the longest wait of one of them. ``holds``: the holds
    that cover the waits, the longest first. ``shares``: microseconds by reason, longest first. ``freed_op``: the operation
    that freed the entries, -1 = not known. ``phantom_since_us``: time since which the hash drained although none of its
    entries was pending; None = it did not. ``others``: at the look-ahead limit, the other waiting entries as (reason,
    consumer, count), most first.
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
    holds: tuple[SampledWait, ...]
    shares: tuple[tuple[str | None, int], ...]
    freed_op: int
    phantom_since_us: int | None
    others: tuple[tuple[str, int | None, int], ...] = ()


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
    first_ever, acked = int(d[:, at.ENTRY].min()), _acked(record)
    for ordinal in subject.ordinals.tolist():
        last = last_of.get(ordinal, -1)
        if last >= 0 and d[last, at.END] not in TAKEN_BACK:
            continue
        if last < 0 and (ordinal < first_ever or ordinal in acked or not history.stored[ordinal]):
            continue  # stored before the subscription began, or acknowledged in an earlier incarnation
        began = _began(record, ordinal, last, begin_us)
        if began is not None:
            waits.append(Wait(ordinal, began[0], None, -1, began[1], began[2]))
    return waits


def ahead_of(record: Record, wait: Wait) -> int:
    """The number of earlier entries of the topic that had still to be sent when a wait began."""
    d = record.deliveries
    ordinals, first = np.unique(d[:, at.ENTRY], return_index=True)
    times = record.history.op_t_us[d[first, at.OPERATION]]
    return int(np.count_nonzero((ordinals < wait.ordinal) & (times > wait.from_us)))


def _began(record: Record, ordinal: int, before: int, begin_us: int) -> tuple[int, int, str | None] | None:
    """The beginning of a wait (time, operation, cause) after the delivery ``before``; None = that delivery never ended."""
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


def _acked(record: Record) -> set[int]:
    """Entries that some acknowledgement names."""
    operations = record.operations
    of_acks = np.isin(operations.code, (ACK, ACK_CUMULATIVE))
    return set(operations.ordinals[np.repeat(of_acks, np.diff(operations.start))].tolist())


def episodes_of(
    record: Record, subject: Subject, waits: list[Wait], holds: Sequence[SampledWait]
) -> list[Episode]:
    """Find the rules that held the subject's entries back, in order of time; waits up to ``BRIEF_US`` are left out."""
    _, end_us = record.span_us
    by_hash: dict[int | None, list[SampledWait]] = {}
    numbers = {record.number_of(place) for place in subject.places}
    for hold in holds:
        if hold.first_position is None or (hold.reason is None and hold.until_t_us is not None):
            continue  # sums of many entries, and entries that only had earlier ones before them
        if _lasted_us(hold, end_us) > BRIEF_US:
            by_hash.setdefault(hold.hash, []).append(hold)
    if None in by_hash:  # only Key_Shared has hashes; elsewhere a hold concerns everything
        by_hash = {-1: [hold for found in by_hash.values() for hold in found]}
    near = {sticky: _Near(found, end_us) for sticky, found in by_hash.items()}
    parts: list[_Part] = []
    explained: set[int] = set()
    for wait in waits:
        sticky = int(record.history.entry_hash[wait.ordinal])
        if wait.lasted_us(end_us) > BRIEF_US and sticky in near:
            best = near[sticky].best(wait, end_us)
            if best is not None:
                parts.append(_Part(best, wait.ordinal, wait.from_us, wait.until_us, wait.delivery))
                explained.add(id(best))
    if subject.kind == CONSUMER:
        # entries that waited for this consumer and were never sent have no delivery: only the holds name them
        rest = [hold for found in by_hash.values() for hold in found if id(hold) not in explained]
        parts += [_Part(h, -1, h.from_t_us, h.until_t_us, -1) for h in rest if h.waiting in numbers]
        # a wait for this consumer begins when the consumer joined, even if the entry had waited for another one before
        parts = [_since_it_joined(record, part) if part.hold.waiting in numbers else part for part in parts]
    parts.sort(key=lambda part: (part.from_us, part.ordinal))
    episodes = [_episode(record, run, end_us) for run in _runs(parts)]
    return [
        _with_others(episode, holds, end_us) if episode.reason == LOOK_AHEAD else episode
        for episode in episodes
    ]


class _Near:
    """Holds of one hash, searched for the one that overlaps a wait most."""

    def __init__(self, holds: list[SampledWait], end_us: int) -> None:
        self._holds = holds
        self._from = np.array([hold.from_t_us for hold in holds], np.int64)
        self._until = np.array([end_us if h.until_t_us is None else h.until_t_us for h in holds], np.int64)

    def best(self, wait: Wait, end_us: int) -> SampledWait | None:
        """The hold that overlaps ``wait`` most; None if that is ``BRIEF_US`` or less."""
        until_us = end_us if wait.until_us is None else wait.until_us
        common = np.minimum(self._until, until_us) - np.maximum(self._from, wait.from_us)
        at_ = int(np.argmax(common))
        return self._holds[at_] if common[at_] > BRIEF_US else None


@dataclass(frozen=True, slots=True)
class _Part:
    """One wait under one hold; ``ordinal`` and ``delivery`` -1 = of no entry of the subject."""

    hold: SampledWait
    ordinal: int
    from_us: int
    until_us: int | None
    delivery: int


@dataclass(frozen=True, slots=True)
class KeptWaiting:
    """Entries of the consumer ``waiting`` that waited for another one by the rule ``reason``, ``longest_us`` at most."""

    reason: str
    waiting: int | None
    entries: int
    hashes: int
    longest_us: int


def kept_by(record: Record, subject: Subject, holds: Sequence[SampledWait]) -> list[KeptWaiting]:
    """Work of others that the consumer held back, the longest first."""
    numbers = {record.number_of(place) for place in subject.places}
    _, end_us = record.span_us
    groups: dict[tuple[str, int | None], list[SampledWait]] = {}
    for hold in holds:
        of_others = hold.holder in numbers and hold.waiting not in numbers
        if of_others and hold.reason is not None and _lasted_us(hold, end_us) > BRIEF_US:
            groups.setdefault((hold.reason, hold.waiting), []).append(hold)
    kept = [
        KeptWaiting(
            reason,
            waiting,
            sum(hold.entries for hold in group),
            len({hold.hash for hold in group}),
            max(_lasted_us(hold, end_us) for hold in group),
        )
        for (reason, waiting), group in groups.items()
    ]
    return sorted(kept, key=lambda work: (-work.longest_us, work.reason, work.waiting or 0))


def _since_it_joined(record: Record, part: _Part) -> _Part:
    """The part of a wait after the waiting consumer had joined."""
    joined = (record.history.op_code == ADDED) & (
        record.history.op_consumer == record.place_of(part.hold.waiting)
    )
    if not joined.any():
        return part
    since = record.t_us(int(np.flatnonzero(joined)[-1]))
    return replace(
        part, from_us=max(part.from_us, since if part.until_us is None else min(since, part.until_us))
    )


def _runs(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Group the parts with the same reason and waiting consumer whose breaks are no longer than ``_BREAK_US``."""
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
    """Make an episode of one run of parts; pending entries are those of the audit's scan when the wait began."""
    holds = sorted({id(part.hold): part.hold for part in run}.values(), key=lambda h: -_lasted_us(h, end_us))
    lead = holds[0]
    until = [part.until_us for part in run]
    until_us = None if None in until else max(t for t in until if t is not None)
    last = max(run, key=lambda part: float("inf") if part.until_us is None else part.until_us)
    pending = _pinning(
        record, holds[:_MOST_LOOKED_AT], run[0].from_us, end_us if until_us is None else until_us
    )
    d = record.deliveries
    oldest = pending[np.argmin(d[pending, at.ENTRY])] if len(pending) else -1
    holder = lead.holder if oldest < 0 else record.number_of(int(d[oldest, at.CONSUMER]))
    entries = np.unique(d[pending, at.ENTRY])
    episode = Episode(
        lead.reason,
        lead.waiting,
        holder,
        record.positions(entries[:MOST_POSITIONS].tolist()),
        len(entries),
        tuple(sorted({part.ordinal for part in run if part.ordinal >= 0})),
        run[0].from_us,
        until_us,
        max((end_us if part.until_us is None else part.until_us) - part.from_us for part in run),
        any(hold.uncertain for hold in holds),
        tuple(holds),
        _shares(holds),
        -1,
        _phantom_since(record, lead, end_us if until_us is None else until_us),
    )
    return replace(episode, freed_op=_freed(record, episode, pending, last.delivery))


def _pinning(record: Record, holds: list[SampledWait], from_us: int, until_us: int) -> npt.NDArray[np.int32]:
    """Deliveries that were pending and for that reason held back the entries of these holds."""
    reason, history = holds[0].reason, record.history
    begin, waiting = record.op_behind(from_us), record.place_of(holds[0].waiting)
    everything = np.arange(len(history), dtype=np.int64)
    joins = np.flatnonzero((history.op_code == ADDED) & (history.op_consumer == waiting))
    joined = int(joins[-1]) + 1 if len(joins) else begin
    if reason == DRAINING:
        # while the entry waited, the hash may have moved, and the entries it drains for may have been sent
        for op in (begin, joined, record.op_behind(holds[0].from_t_us)):
            found = [
                record.held_at(op, everything[history.entry_hash == hold.hash], record.place_of(hold.holder))
                for hold in holds
                if hold.hash is not None
            ]
            pending = np.unique(np.concatenate(found)) if found else np.empty(0, np.int32)
            if len(pending):
                return pending
    elif reason in _RECENTLY_JOINED:
        before = record.held_at(joined - 1, everything)
        handed_out = np.unique(record.deliveries[before, at.ENTRY]).astype(np.int64)
        return record.held_at(max(joined, begin), handed_out)
    elif reason in ITS_OWN:
        middle = record.op_behind((from_us + until_us) // 2)
        return record.held_at(middle, everything, waiting)
    return np.empty(0, np.int32)


def _phantom_since(record: Record, hold: SampledWait, until_us: int) -> int | None:
    """The time since which a hash drained although its consumer had no entry of it pending; None = it did not."""
    if hold.reason != DRAINING or not hold.needless_us or hold.hash is None:
        return None
    d = record.deliveries
    own = d[
        (d[:, at.CONSUMER] == record.place_of(hold.holder))
        & (d[:, at.OPERATION] < record.op_behind(until_us))
    ]
    own = own[record.history.entry_hash[own[:, at.ENTRY]] == hold.hash]
    if not len(own):
        return hold.from_t_us
    if (own[:, at.END] == at.OPEN).any():
        return None
    since = int(record.history.op_t_us[own[:, at.END_OPERATION]].max())
    return since if until_us - since > _BREAK_US else None


def _freed(record: Record, episode: Episode, pending: npt.NDArray[np.int32], delivery: int) -> int:
    """The last operation before the delivery that can have freed the entries; -1 = none."""
    if episode.reason is None or delivery < 0:
        return -1
    d, history = record.deliveries, record.history
    sent = int(d[delivery, at.OPERATION])
    if len(pending) and episode.reason not in ITS_OWN:
        if episode.reason == DRAINING:
            ended = d[pending, at.END_OPERATION]
        else:  # all of these entries had to be acknowledged, by any consumer
            ended = d[
                np.isin(d[:, at.ENTRY], d[pending, at.ENTRY]) & (d[:, at.END] == at.ACKED), at.END_OPERATION
            ]
        ended = ended[(ended >= 0) & (ended < sent)]
        return int(ended.max()) if len(ended) else -1
    codes, whose = _FREED_BY.get(episode.reason, ((), ""))
    near = np.arange(record.first_op, sent)
    near = near[np.isin(history.op_code[near], codes) & (history.op_t_us[near] >= episode.from_us)]
    if whose:
        near = near[history.op_consumer[near] == record.place_of(episode.waiting)]
    return int(near[-1]) if len(near) else -1


def _shares(holds: list[SampledWait]) -> tuple[tuple[str | None, int], ...]:
    lasted: Counter[str | None] = Counter()
    for hold in holds:
        lasted.update(dict(hold.shares))
    return tuple(sorted(lasted.items(), key=lambda share: (-share[1], share[0] or "")))


def _with_others(episode: Episode, holds: Sequence[SampledWait], end_us: int) -> Episode:
    """Add the entries that filled the look-ahead limit meanwhile, by reason and waiting consumer."""
    last = end_us if episode.until_us is None else episode.until_us
    counts: Counter[tuple[str, int | None]] = Counter()
    for hold in holds:
        until = end_us if hold.until_t_us is None else hold.until_t_us
        if hold.reason not in (None, LOOK_AHEAD) and hold.from_t_us < last and until > episode.from_us:
            counts[hold.reason, hold.waiting] += hold.entries
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0][0], item[0][1] or 0))
    return replace(episode, others=tuple((reason, waiting, count) for (reason, waiting), count in most[:2]))


def _lasted_us(hold: SampledWait, end_us: int) -> int:
    return (end_us if hold.until_t_us is None else hold.until_t_us) - hold.from_t_us


def why(record: Record, episode: Episode) -> str:
    """Name the reason of ``episode`` as the second half of a sentence; the first half names the waiting entries."""
    since_us, stall = episode.phantom_since_us, episode.holds[0].no_read
    return reasons.why(
        reasons.Cause(
            episode.reason,
            waiting=None if episode.waiting is None else record.who(episode.waiting),
            holder=None if episode.holder is None else record.who(episode.holder),
            positions=episode.held_by,
            count=episode.holds[0].holder_pending if episode.reason == LOOK_AHEAD else episode.held_by_count,
            hashes=len({hold.hash for hold in episode.holds}),
            phantom=since_us is not None,
            phantom_since_us=since_us if episode.held_by_count else None,
            others=[
                (reason, None if waiting is None else record.who(waiting))
                for reason, waiting, _ in episode.others
            ],
            settings={} if record.profile is None else record.profile.settings,
            reads=None if stall is None else described(stall.reads),
        )
    )
