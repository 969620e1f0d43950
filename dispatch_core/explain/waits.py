"""Waits of entries, and the rules that held the entries back.

A wait begins when an entry is stored, or when an earlier delivery of it was taken back, and ends when it is sent. A *hold*
(``audit.waits``) names, for the oldest waiting entry of a hash, the rules that held it back and the consumer it waited
behind. It is cut where its reason changes. What the waits of several entries have in common forms an ``Episode``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.catalogue import NO_READ
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
from dispatch_core.audit.waits.findings import is_phantom
from dispatch_core.audit.waits.no_read import described
from dispatch_core.audit.waits.parts import Part
from dispatch_core.audit.waits.tracker import MOST_POSITIONS, SampledWait
from dispatch_core.explain.record import TAKEN_BACK, Record
from dispatch_core.explain.subject import CONSUMER, Subject

#: Shorter waits are not reported as held back: a read and a delivery take some milliseconds.
BRIEF_US: Final = 20_000
#: Waits for the same reason with a shorter break between them form one episode.
_BREAK_US: Final = 100_000
_ANY_HASH: Final = -1
DRAINING: Final = "draining_hash"
LOOK_AHEAD: Final = "look_ahead_limit"
#: Reasons that lie with the waiting consumer itself.
ITS_OWN: Final = ("no_permits", "unacked_limit_consumer")
_RECENTLY_JOINED: Final = ("recently_joined", "last_sent_position")
#: Parts of holds of one episode whose evidence is looked up: it may have one for each hash of a consumer.
_MOST_LOOKED_AT: Final = 50
_ENDS_HOLDING: Final = (ACK, ACK_CUMULATIVE, REDELIVER, REDELIVER_ALL, REMOVED)
#: By reason, the operations that free entries although no pending entry held them, and whose: "waiting" = only operations of
#: the waiting consumer count.
_FREED_BY: Final[dict[str, tuple[tuple[int, ...], str]]] = {
    "no_permits": ((FLOW,), "waiting"),
    "unacked_limit_consumer": (_ENDS_HOLDING, "waiting"),
    "unacked_limit_subscription": (_ENDS_HOLDING, ""),
    "no_consumer": ((ADDED,), ""),
    **dict.fromkeys(_RECENTLY_JOINED, ((ACK, ACK_CUMULATIVE), "")),
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
    """Parts of waits that had one reason and one waiting consumer, without a long break between them.

    Attributes:
        reason: the rule; ``None`` = none that the log shows.
        waiting: the consumer that should get the entries.
        holder: the one that held them up when it began, as the audit names it.
        held_by: its pending entries then, all or the first of ``held_by_count``.
        ordinals: the waiting entries of the subject.
        from_us, until_us: the time from the first part to the last; ``None`` = to the end of the log.
        longest_us: the longest time for which one of the entries was held back meanwhile.
        whole_us: the whole wait of that entry, of which this is a part.
        shares: microseconds of that wait by reason, longest first; ``None`` = no rule.
        uncertain: the log cannot tell the reason.
        holds: the audit's waits behind it, the longest first.
        hashes: the number of hashes of the entries.
        freed_op: the operation that ended it; -1 = not known.
        phantom_since_us: time since which the hash drained although none of its entries was pending; ``None`` = it did not.
        others: at the look-ahead limit, the other waiting entries as (reason, consumer, count), most first.
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
    whole_us: int
    shares: tuple[tuple[str | None, int], ...]
    uncertain: bool
    holds: tuple[SampledWait, ...]
    hashes: int
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


@dataclass(frozen=True, slots=True)
class Unheld:
    """The wait of which the longest time is left that no rule explains: ``us`` microseconds of it."""

    wait: Wait
    us: int


def episodes_of(
    record: Record, subject: Subject, waits: list[Wait], holds: Sequence[SampledWait]
) -> tuple[list[Episode], Unheld | None]:
    """Find the rules that held the subject's entries back, in order of time; parts up to ``BRIEF_US`` are left out.

    A wait is cut where its reason changes, so an entry may be in several episodes. Also returns the wait that they explain
    least; ``None`` = there are no waits.
    """
    _, end_us = record.span_us
    numbers = {record.number_of(place) for place in subject.places}
    by_hash: dict[int | None, list[_HoldPart]] = {}
    for hold in holds:
        # Without a position it is the sum of many waits.
        if hold.first_position is not None and hold_lasted_us(hold, end_us) > BRIEF_US:
            by_hash.setdefault(hold.hash, []).extend(_parts_of(hold))
    if None in by_hash:  # only Key_Shared has hashes; elsewhere a hold concerns everything
        by_hash = {_ANY_HASH: [hold_part for found in by_hash.values() for hold_part in found]}
    near = {sticky: _Near(found, end_us) for sticky, found in by_hash.items()}
    pieces: list[_Piece] = []
    explained: set[int] = set()
    unheld: Unheld | None = None
    for wait in waits:
        left_us = wait.lasted_us(end_us)
        sticky = _ANY_HASH if _ANY_HASH in near else int(record.history.entry_hash[wait.ordinal])
        if wait.lasted_us(end_us) > BRIEF_US and sticky in near:
            cut = near[sticky].pieces(wait, end_us)
            long = [piece for piece in cut if piece.lasted_us(end_us) > BRIEF_US and piece.hold_part.is_told]
            long = _without_gaps(long, wait, end_us)
            shares = _shares(long, wait, end_us)
            pieces += [replace(piece, shares=shares) for piece in long]
            left_us = dict(shares).get(None, 0)
            explained.update(id(piece.hold_part) for piece in cut)
        if unheld is None or left_us > unheld.us:
            unheld = Unheld(wait, left_us)
    if subject.kind == CONSUMER:
        # entries that waited for this consumer and were never sent have no delivery: only the holds name them
        rest = [
            hold_part
            for found in by_hash.values()
            for hold_part in found
            if hold_part.is_told and id(hold_part) not in explained
        ]
        pieces += [
            _Piece(hold_part, -1, hold_part.from_us, hold_part.until_us, -1)
            for hold_part in rest
            if hold_part.waiting in numbers
        ]
        # a wait for this consumer begins when the consumer joined, even if the entry had waited for another one before
        pieces = [
            _since_it_joined(record, piece) if piece.hold_part.waiting in numbers else piece
            for piece in pieces
        ]
        pieces = [piece for piece in pieces if piece.lasted_us(end_us) > BRIEF_US]
    pieces.sort(key=lambda piece: (piece.from_us, piece.ordinal))
    episodes = [_episode(record, run, end_us) for run in _runs(pieces)]
    with_others = [
        _with_others(episode, holds, end_us) if episode.reason == LOOK_AHEAD else episode
        for episode in episodes
    ]
    return with_others, unheld


@dataclass(frozen=True, slots=True)
class _HoldPart:
    """A part of a hold: in this time one rule held the oldest waiting entry of a hash."""

    hold: SampledWait
    part: Part
    from_us: int
    until_us: int | None

    @property
    def reason(self) -> str | None:
        return self.part.reason

    @property
    def waiting(self) -> int | None:
        return self.part.waiting

    def ends_us(self, end_us: int) -> int:
        """Return its end, if the log ends at ``end_us``."""
        return end_us if self.until_us is None else self.until_us

    def lasted_us(self, end_us: int) -> int:
        """Return its length in microseconds, if the log ends at ``end_us``."""
        return self.ends_us(end_us) - self.from_us

    @property
    def is_told(self) -> bool:
        """False where no rule held an entry that was sent in the end: earlier ones had to be sent first."""
        return self.reason is not None or self.until_us is None


def _parts_of(hold: SampledWait) -> list[_HoldPart]:
    """Return the parts of a hold in order of time.

    A stall (``no_read``) is one part. A reason that the audit has taken out of the shares does not count, nor does what lies
    outside the hold.
    """
    from_us, until_us = hold.from_t_us, hold.until_t_us
    parts = hold.parts
    if hold.reason == NO_READ or not parts:
        if hold.reason == NO_READ and until_us is not None:
            until_us = min(until_us, from_us + hold.waited_us)
        whole = Part(
            hold.reason,
            hold.waiting,
            hold.holder,
            hold.holder_positions,
            hold.holder_pending,
            from_us,
            until_us,
        )
        return [_HoldPart(hold, whole, from_us, until_us)]
    reasons_left = dict(hold.shares)
    cut = []
    for part in parts:
        ends = [us for us in (part.until_t_us, until_us) if us is not None]
        until, begin = min(ends, default=None), max(part.from_t_us, from_us)
        named = part if part.reason in reasons_left else replace(part, reason=None)
        if until is None or until > begin:
            cut.append(_HoldPart(hold, named, begin, until))
    return cut


class _Near:
    """The parts of the holds of one hash, searched for those that overlap a wait."""

    def __init__(self, hold_parts: list[_HoldPart], end_us: int) -> None:
        self._parts = sorted(hold_parts, key=lambda part: part.from_us)
        self._from = np.array([part.from_us for part in self._parts], np.int64)
        self._until = np.array([part.ends_us(end_us) for part in self._parts], np.int64)

    def pieces(self, wait: Wait, end_us: int) -> list[_Piece]:
        """Cut a wait: one piece for each part that overlaps it, in order of time, none of which overlap.

        A stall lies within the time of other parts, and takes precedence; of others that overlap the earlier one does.
        """
        until_us = end_us if wait.until_us is None else wait.until_us
        near = [
            self._parts[at_]
            for at_ in np.flatnonzero((self._until > wait.from_us) & (self._from < until_us)).tolist()
        ]
        stalls = _one_by_one([part for part in near if part.reason == NO_READ], wait, until_us, end_us)
        others = _one_by_one([part for part in near if part.reason != NO_READ], wait, until_us, end_us)
        for stall in stalls:
            others = [rest for piece in others for rest in _outside(piece, stall, end_us)]
        return sorted([*stalls, *others], key=lambda piece: piece.from_us)


def _one_by_one(parts: list[_HoldPart], wait: Wait, until_us: int, end_us: int) -> list[_Piece]:
    """Return the pieces of a wait under parts that are in order of their beginning, each from the end of those before on."""
    pieces: list[_Piece] = []
    taken_us = wait.from_us
    for part in parts:
        begin, end = max(part.from_us, taken_us), min(part.ends_us(end_us), until_us)
        if end > begin:
            goes_on = part.until_us is None and wait.until_us is None
            pieces.append(_Piece(part, wait.ordinal, begin, None if goes_on else end, wait.delivery))
            taken_us = end
    return pieces


def _outside(piece: _Piece, stall: _Piece, end_us: int) -> Iterator[_Piece]:
    """Yield what is left of a piece before and behind a stall."""
    ends_us = piece.from_us + piece.lasted_us(end_us)
    begins_again_us = stall.from_us + stall.lasted_us(end_us)
    if ends_us <= stall.from_us or begins_again_us <= piece.from_us:
        yield piece
        return
    if piece.from_us < stall.from_us:
        yield replace(piece, until_us=stall.from_us)
    if begins_again_us < ends_us:
        yield replace(piece, from_us=begins_again_us)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of one wait in which one rule held it; ``ordinal`` and ``delivery`` -1 = of no entry of the subject.

    ``shares``: microseconds of the whole wait by reason; ``None`` = no rule.
    """

    hold_part: _HoldPart
    ordinal: int
    from_us: int
    until_us: int | None
    delivery: int
    shares: tuple[tuple[str | None, int], ...] = ()

    def lasted_us(self, end_us: int) -> int:
        """The length in microseconds, if the log ends at ``end_us``."""
        return (end_us if self.until_us is None else self.until_us) - self.from_us


def _without_gaps(pieces: list[_Piece], wait: Wait, end_us: int) -> list[_Piece]:
    """Lengthen the pieces of a wait over what lies between them, if that is no longer than ``BRIEF_US``."""
    filled: list[_Piece] = []
    behind_us = wait.from_us
    for piece in pieces:
        if piece.from_us - behind_us <= BRIEF_US:
            piece = replace(piece, from_us=behind_us)  # noqa: PLW2901
        filled.append(piece)
        behind_us = piece.from_us + piece.lasted_us(end_us)
    if filled and wait.until_us is not None and wait.until_us - behind_us <= BRIEF_US:
        filled[-1] = replace(filled[-1], until_us=wait.until_us)
    return filled


def _shares(pieces: list[_Piece], wait: Wait, end_us: int) -> tuple[tuple[str | None, int], ...]:
    """Return the time of a wait by reason, longest first; what no piece covers has none."""
    lasted: Counter[str | None] = Counter()
    for piece in pieces:
        lasted[piece.hold_part.reason] += piece.lasted_us(end_us)
    lasted[None] += wait.lasted_us(end_us) - lasted.total()
    return tuple(
        sorted(((r, us) for r, us in lasted.items() if us), key=lambda share: (-share[1], share[0] or ""))
    )


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
    groups: dict[tuple[str, int | None], list[_HoldPart]] = {}
    for hold_part in (hold_part for hold in holds for hold_part in _parts_of(hold)):
        of_others = hold_part.part.holder in numbers and hold_part.waiting not in numbers
        if of_others and hold_part.reason is not None and hold_part.lasted_us(end_us) > BRIEF_US:
            groups.setdefault((hold_part.reason, hold_part.waiting), []).append(hold_part)
    kept = [
        KeptWaiting(
            reason,
            waiting,
            sum(
                hold.entries for hold in {id(hold_part.hold): hold_part.hold for hold_part in group}.values()
            ),
            len({hold_part.hold.hash for hold_part in group}),
            max(hold_part.lasted_us(end_us) for hold_part in group),
        )
        for (reason, waiting), group in groups.items()
    ]
    return sorted(kept, key=lambda work: (-work.longest_us, work.reason, work.waiting or 0))


def _since_it_joined(record: Record, piece: _Piece) -> _Piece:
    """Return the part of a piece after the waiting consumer had joined."""
    joined = (record.history.op_code == ADDED) & (
        record.history.op_consumer == record.place_of(piece.hold_part.waiting)
    )
    if not joined.any():
        return piece
    since = record.t_us(int(np.flatnonzero(joined)[-1]))
    return replace(
        piece, from_us=max(piece.from_us, since if piece.until_us is None else min(since, piece.until_us))
    )


def _runs(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Group the pieces with the same reason and waiting consumer whose breaks are no longer than ``_BREAK_US``."""
    open_runs: dict[tuple[str | None, int | None], list[_Piece]] = {}
    ends: dict[tuple[str | None, int | None], float] = {}
    done: list[list[_Piece]] = []
    for piece in pieces:
        kind = (piece.hold_part.reason, piece.hold_part.waiting)
        if kind in open_runs and piece.from_us > ends[kind] + _BREAK_US:
            done.append(open_runs.pop(kind))
        until = float("inf") if piece.until_us is None else piece.until_us
        ends[kind] = max(until, ends[kind]) if kind in open_runs else until
        open_runs.setdefault(kind, []).append(piece)
    yield from sorted([*done, *open_runs.values()], key=lambda run: run[0].from_us)


def _episode(record: Record, run: list[_Piece], end_us: int) -> Episode:
    """Make an episode of one run of pieces. Its holder is that of the piece that began first."""
    lasted: Counter[int] = Counter()
    for piece in run:
        lasted[piece.ordinal] += piece.lasted_us(end_us)
    longest = max(run, key=lambda piece: (lasted[piece.ordinal], -piece.from_us))
    hold_parts = list({id(piece.hold_part): piece.hold_part for piece in run}.values())
    holds = sorted(
        {id(h.hold): h.hold for h in hold_parts}.values(), key=lambda hold: -hold_lasted_us(hold, end_us)
    )
    first = hold_parts[0].part
    until = [piece.until_us for piece in run]
    until_us = None if None in until else max(us for us in until if us is not None)
    last = max(run, key=lambda piece: float("inf") if piece.until_us is None else piece.until_us)
    positions, count = _behind(hold_parts[:_MOST_LOOKED_AT])
    longest_us = lasted[longest.ordinal] if longest.ordinal >= 0 else longest.lasted_us(end_us)
    episode = Episode(
        first.reason,
        first.waiting,
        first.holder,
        positions[:MOST_POSITIONS],
        count,
        tuple(sorted({piece.ordinal for piece in run if piece.ordinal >= 0})),
        run[0].from_us,
        until_us,
        longest_us,
        max(longest_us, sum(us for _, us in longest.shares)),
        longest.shares,
        any(hold.uncertain for hold in holds),
        tuple(holds),
        len({hold.hash for hold in holds}),
        -1,
        _phantom_since(record, hold_parts[0], end_us if until_us is None else until_us),
    )
    return replace(episode, freed_op=_freed(record, episode, hold_parts, last))


def _behind(hold_parts: list[_HoldPart]) -> tuple[tuple[str, ...], int]:
    """Return the pending entries that held some parts up when they began, the first ones, and their number.

    Hashes drain each for entries of its own; for another reason the same entries hold all of them up.
    """
    by_hash: dict[int | None, Part] = {}
    for each in hold_parts:
        by_hash.setdefault(each.hold.hash if each.reason == DRAINING else None, each.part)
    positions = {position for part in by_hash.values() for position in part.holder_positions}
    return tuple(sorted(positions, key=_place)), sum(part.holder_pending for part in by_hash.values())


def _place(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split(":")))


def _pinning(record: Record, hold_parts: list[_HoldPart]) -> npt.NDArray[np.int32]:
    """Return the deliveries for which the hashes of these parts drained when the parts began."""
    history = record.history
    everything = np.arange(len(history), dtype=np.int64)
    found = [
        record.held_at(
            record.op_behind(each.from_us),
            everything[history.entry_hash == each.hold.hash],
            record.place_of(each.part.holder),
        )
        for each in hold_parts
        if each.reason == DRAINING and each.hold.hash is not None
    ]
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.int32)


def _phantom_since(record: Record, hold_part: _HoldPart, until_us: int) -> int | None:
    """The time since which a hash drained although its consumer had no entry of it pending; None = it did not."""
    hold = hold_part.hold
    if hold_part.reason != DRAINING or not hold.needless_us or hold.hash is None:
        return None
    d = record.deliveries
    own = d[
        (d[:, at.CONSUMER] == record.place_of(hold_part.part.holder))
        & (d[:, at.OPERATION] < record.op_behind(until_us))
    ]
    own = own[record.history.entry_hash[own[:, at.ENTRY]] == hold.hash]
    if not len(own):
        return hold_part.from_us
    if (own[:, at.END] == at.OPEN).any():
        return None
    since = int(record.history.op_t_us[own[:, at.END_OPERATION]].max())
    return since if until_us - since > _BREAK_US else None


def _freed(record: Record, episode: Episode, hold_parts: list[_HoldPart], last: _Piece) -> int:
    """Return the last operation that can have ended the episode; -1 = none.

    It lies before the delivery of the entries. What ends a wait for a consumer that joined recently is the last of many
    acknowledgements, which is where the rule no longer held.
    """
    if episode.reason is None or last.delivery < 0 or episode.until_us is None:
        return -1
    d, history = record.deliveries, record.history
    sent = min(int(d[last.delivery, at.OPERATION]), record.op_behind(episode.until_us))
    since_us = episode.from_us
    if episode.reason in _RECENTLY_JOINED:
        ends_us = max([part.until_us for part in hold_parts if part.until_us is not None], default=since_us)
        sent, since_us = min(sent, record.op_behind(ends_us)), max(since_us, ends_us - BRIEF_US)
    pending = _pinning(record, hold_parts[:_MOST_LOOKED_AT])
    if len(pending):
        ended = d[pending, at.END_OPERATION]
        ended = ended[(ended >= 0) & (ended < sent)]
        return int(ended.max()) if len(ended) else -1
    codes, whose = _FREED_BY.get(episode.reason, ((), ""))
    near = np.arange(record.first_op, sent)
    near = near[np.isin(history.op_code[near], codes) & (history.op_t_us[near] >= since_us)]
    if whose:
        near = near[history.op_consumer[near] == record.place_of(episode.waiting)]
    return int(near[-1]) if len(near) else -1


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


def hold_lasted_us(hold: SampledWait, end_us: int) -> int:
    """Return the length of a hold in microseconds, if the log ends at ``end_us``."""
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
            count=episode.held_by_count,
            hashes=episode.hashes,
            phantom=since_us is not None or (episode.reason != DRAINING and is_phantom(episode.holds[0])),
            phantom_since_us=since_us if episode.held_by_count else None,
            others=[
                (reason, None if waiting is None else record.who(waiting))
                for reason, waiting, _ in episode.others
            ],
            settings={} if record.profile is None else record.profile.settings,
            reads=None if stall is None else described(stall.reads),
        )
    )
