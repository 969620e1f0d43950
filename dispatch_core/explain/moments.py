"""Moments of a subject: each event that the log records about it, as a sentence with the line that proves it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.deliveries.findings import CAUSE_OF
from dispatch_core.audit.deliveries.operations import ACK, ACK_CUMULATIVE, ADDED, FLOW, REMOVED
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, plural, positions_listed
from dispatch_core.audit.sentences.names import shown
from dispatch_core.explain.log_lines import SeqAt, touching
from dispatch_core.explain.owners import JOINED, Owner, Share, moved_by
from dispatch_core.explain.record import Record
from dispatch_core.explain.subject import CONSUMER, Subject
from dispatch_core.explain.waits import BRIEF_US, Episode, Wait, why

STORED, JOINS, LEAVES, OWNS, LOST = "stored", "joined", "left", "owns", "lost"
READ, HELD, FREED, SENT, ACKED = "read", "held", "freed", "sent", "acked"
ASKED_AGAIN, REDELIVERED, GRANTED, REFUSED = "asked_again", "redelivered", "granted", "refused"
ANOMALY, DIVERGENCE = "anomaly", "divergence"
CHECKPOINT = "checkpoint"

#: Order of moments that share a line: causes before effects.
_RANK: Final = {
    name: rank
    for rank, name in enumerate(
        (
            *(
                CHECKPOINT,
                STORED,
                REFUSED,
                JOINS,
                LEAVES,
                LOST,
                OWNS,
                GRANTED,
                READ,
                HELD,
                ACKED,
                ASKED_AGAIN,
                FREED,
                SENT,
            ),
            *(REDELIVERED, ANOMALY, DIVERGENCE),
        )
    )
}
_SAID_AGAIN: Final = {
    "disconnect": "after {who} had left with it",
    "all_left": "after {who} had left with it as the last consumer",
    "nack": "because {who} had requested its redelivery",
    "rewind": "after the cursor was rewound to the mark-delete position",
    "topic_reload": "after the topic was loaded anew",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """One event. ``seq``: its line, or the line before it if it has none (``has_line`` is false).

    ``for_us``: microseconds that a delivered entry had waited, or that entries were held back. ``held_by``: the pending
    positions that held them back.
    """

    seq: int
    t_us: int
    what: str
    text: str
    consumer: int | None = None
    positions: tuple[str, ...] = ()
    hash: int | None = None
    reason: str | None = None
    holder: int | None = None
    held_by: tuple[str, ...] = ()
    for_us: int | None = None
    has_line: bool = True
    kind: str | None = None  # of a finding
    severity: str | None = None  # of a finding
    amount: int = 0  # permits of a grant
    by: int | None = None  # consumer whose join or leave (``reason``) moved the ownership

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sort key: by line; a moment without a line comes after the line before it."""
        return self.seq, self.has_line is False, _RANK[self.what], self.t_us


class Moments:
    """The moments of a subject, not yet in order."""

    def __init__(
        self, record: Record, subject: Subject, owners: list[Owner], shares: list[Share], waits: list[Wait]
    ) -> None:
        self._record = record
        self._subject = subject
        self._owners = owners
        self._shares = shares
        self._waits = {wait.delivery: wait for wait in waits if wait.delivery >= 0}
        self._seq_at = SeqAt(record.log)
        d = record.deliveries
        own = np.isin(d[:, at.ENTRY], subject.ordinals)
        if subject.kind == CONSUMER:
            own &= np.isin(d[:, at.CONSUMER], subject.places)
        self._own = np.flatnonzero(own)
        self._here = self._own[d[self._own, at.OPERATION] >= record.first_op]

    def moments(self) -> Iterator[Moment]:
        """All moments except those of ``held_back`` and ``found``."""
        if self._subject.kind != CONSUMER:
            yield from self._stored()
            yield from self._read()
        yield from self._sent()
        yield from self._ended()
        yield from self._members()
        yield from self._owned()
        if self._subject.kind == CONSUMER:
            yield from self._granted()
            yield from self._refused()

    def held_back(self, episodes: list[Episode]) -> Iterator[Moment]:
        """The moments at which entries were held back and freed."""
        record = self._record
        for episode in episodes:
            positions = record.positions(episode.ordinals)
            count = len(positions)
            if not positions:
                holds = episode.holds
                positions = tuple(dict.fromkeys(p for hold in holds for p in hold.positions))
                count = sum(hold.entries for hold in holds)
            still = ", to the end of the log" if episode.until_us is None else ""
            uncertain = " (uncertain: the log alone cannot tell)" if episode.uncertain else ""
            waited = plural(count, "waits", "wait")
            what = f"{positions_listed(positions, count)} {waited} {duration(episode.longest_us)}{still}"
            text = f"{what}: {why(record, episode)}{uncertain}"
            yield Moment(
                self._seq_at(episode.from_us),
                episode.from_us,
                HELD,
                text,
                consumer=episode.waiting,
                positions=positions,
                hash=self._subject.hash,
                reason=episode.reason,
                holder=episode.holder,
                held_by=episode.held_by,
                for_us=episode.longest_us,
                has_line=False,
            )
            if episode.freed_op >= 0:
                yield self._freed(episode, held_on=any(_follows(other, episode) for other in episodes))

    def _freed(self, episode: Episode, *, held_on: bool) -> Moment:
        record, op = self._record, episode.freed_op
        place = int(record.history.op_consumer[op])
        who = "the broker" if place < 0 else record.names[place]
        start, stop = record.operations.start[op : op + 2].tolist()
        named = record.positions(record.operations.ordinals[start:stop].tolist())
        code = int(record.history.op_code[op])
        did = {ADDED: "joins", REMOVED: "leaves", FLOW: f"asks for {int(record.operations.value[op])} more"}
        text = did.get(code)
        if text is None:
            text = (
                f"acknowledges {positions_listed(named)}"
                if code in (ACK, ACK_CUMULATIVE)
                else f"gives {positions_listed(named)} back"
            )
        them = "it" if len(episode.ordinals) == 1 else "them"
        outcome = f"{episode.reason} no longer holds {them}" if held_on else f"that lets {them} go"
        return Moment(
            record.seq(op),
            record.t_us(op),
            FREED,
            f"{who} {text}: {outcome}",
            consumer=record.number_of(place),
            positions=record.positions(episode.ordinals),
            hash=self._subject.hash,
            reason=episode.reason,
        )

    def found(self, anomalies: list[dict[str, Any]]) -> Iterator[Moment]:
        """Findings, at the line that proves them."""
        for row in anomalies:
            seq = row["seqs"][-1] if row["seqs"] else 0
            t_us = row["t_us"] if row["t_us"] is not None else self._record.span_us[0]
            yield Moment(
                seq,
                t_us,
                DIVERGENCE if row["kind"] == "divergence" else ANOMALY,
                f"{row['kind']}: {row['explanation']}" + (" (uncertain)" if row["uncertain"] else ""),
                positions=tuple(row["positions"]),
                hash=row["hash"],
                reason=row["reason"] or row["cause"],
                kind=row["kind"],
                severity=row["severity"],
            )

    # entries -----------------------------------------------------------------------------------------------------

    def _stored(self) -> Iterator[Moment]:
        record, sent = self._record, {}
        for delivery in self._own[::-1].tolist():
            sent[int(record.deliveries[delivery, at.ENTRY])] = int(record.deliveries[delivery, at.OPERATION])
        for ordinal in self._subject.ordinals.tolist():
            stored = record.stored_us(ordinal)
            if stored is None:
                continue
            seq = self._seq_at(stored)
            op = sent.get(ordinal, -1)
            if op >= record.first_op:
                seq = min(seq, record.seq(op) - 1)  # a producer's clock may run ahead of the broker's
            size = int(record.history.num_messages[ordinal])
            batch = f" ({size} messages)" if size != 1 else ""
            position = record.position(ordinal)
            yield Moment(
                seq,
                stored,
                STORED,
                f"stored {position}{batch}",
                positions=(position,),
                hash=self._subject.hash,
                has_line=False,
            )

    def _read(self) -> Iterator[Moment]:
        history, own = self._record.history, self._subject.ordinals
        for line in touching(self._record.log, ("read_done",), history.ledger[own], history.entry[own], own):
            positions = self._record.positions(line.rows)
            yield Moment(
                line.seq,
                line.t_us,
                READ,
                f"read {positions_listed(positions)}",
                positions=positions,
                hash=self._subject.hash,
            )

    def _sent(self) -> Iterator[Moment]:
        record, d = self._record, self._record.deliveries
        by_line: dict[tuple[int, str | None], list[int]] = defaultdict(list)
        for delivery in self._here.tolist():
            again = int(d[delivery, at.BEFORE_OF_ENTRY]) >= 0
            cause = (CAUSE_OF.get(int(record.ended_before[delivery])) or "") if again else None
            by_line[int(d[delivery, at.OPERATION]), cause].append(delivery)
        for (op, cause), found in by_line.items():
            place = int(d[found[0], at.CONSUMER])
            positions = record.positions(d[found, at.ENTRY].tolist())
            waited = [self._waits[delivery].lasted_us(0) for delivery in found if delivery in self._waits]
            longest = max(waited, default=None)
            late = f" (waited {duration(longest)})" if longest is not None and longest > BRIEF_US else ""
            if cause is None:
                what, text = (
                    SENT,
                    f"sent to {record.names[place]}: {self._entries_listed(positions, d[found, at.ENTRY])}{late}",
                )
            else:
                before = int(d[int(d[found[0], at.BEFORE_OF_ENTRY]), at.CONSUMER])
                said = _SAID_AGAIN.get(cause, "though nothing in the log explains why")
                said = said.format(who=record.names[before]).replace(
                    " it", " them" if len(found) > 1 else " it"
                )
                what, text = (
                    REDELIVERED,
                    f"sent again, to {record.names[place]}: {positions_listed(positions)}, {said}{late}",
                )
            moment = self._of_line(op, what, text, place, positions)
            yield replace(moment, reason=cause or None, for_us=longest)

    def _entries_listed(self, positions: tuple[str, ...], ordinals: np.ndarray[Any, Any]) -> str:
        if self._subject.kind != CONSUMER or len(positions) < 4:
            return positions_listed(positions)
        keys = np.unique(self._record.history.entry_key[ordinals])
        return f"{len(positions)} entries of {len(keys)} keys, {positions[0]} to {positions[-1]}"

    def _ended(self) -> Iterator[Moment]:
        """Acknowledgements and redelivery requests, one moment per line."""
        record, d = self._record, self._record.deliveries
        by_line: dict[tuple[int, int], list[int]] = defaultdict(list)
        for delivery in self._own.tolist():
            end, op = int(d[delivery, at.END]), int(d[delivery, at.END_OPERATION])
            if end in (at.ACKED, at.NACKED, at.NACKED_ALL) and op >= record.first_op:
                by_line[op, end].append(delivery)
        for (op, end), found in by_line.items():
            place = int(record.history.op_consumer[op])
            who = "" if place < 0 else record.names[place]
            positions = record.positions(np.unique(d[found, at.ENTRY]).tolist())
            if end == at.ACKED:
                what, text = ACKED, f"{who} acknowledges {positions_listed(positions)}"
            else:
                everything = " (all that it holds)" if end == at.NACKED_ALL else ""
                what, text = ASKED_AGAIN, f"{who} asks for {positions_listed(positions)} again{everything}"
            yield self._of_line(op, what, text, place, positions)

    def _of_line(self, op: int, what: str, text: str, place: int, positions: tuple[str, ...]) -> Moment:
        """The moment of a line of the log about entries and the consumer in ``place``."""
        record = self._record
        return Moment(
            record.seq(op),
            record.t_us(op),
            what,
            text,
            consumer=record.number_of(place),
            positions=positions,
            hash=self._subject.hash,
        )

    # consumers and ownership -------------------------------------------------------------------------------------

    def _concerned(self) -> set[int]:
        """Places of connections that ever owned the hash or received an entry of the subject."""
        if self._subject.places:
            return set(self._subject.places)
        owners = {self._record.place_of(owner.consumer) for owner in self._owners}
        return owners | set(self._record.deliveries[self._own, at.CONSUMER].tolist())

    def _members(self) -> Iterator[Moment]:
        record, d = self._record, self._record.deliveries
        concerned = self._concerned()
        codes = record.history.op_code
        for op in (np.flatnonzero((codes == ADDED) | (codes == REMOVED))).tolist():
            place = int(record.history.op_consumer[op])
            if op < record.first_op or place not in concerned:
                continue
            ended = self._own[(d[self._own, at.END_OPERATION] == op)]
            lost = record.positions(sorted(d[ended, at.ENTRY].tolist()))
            joins = codes[op] == ADDED
            text = f"{record.names[place]} {'joins' if joins else 'leaves'}"
            if lost:
                text += f" and still held {self._entries_listed(lost, d[ended, at.ENTRY])}"
            yield Moment(
                record.seq(op),
                record.t_us(op),
                JOINS if joins else LEAVES,
                text,
                consumer=record.number_of(place),
                positions=lost,
            )

    def _owned(self) -> Iterator[Moment]:
        last: Owner | None = None
        for owner in self._owners:
            if last is not None and last.until_seq is not None and last.until_seq < owner.from_seq:
                yield self._lost(last)
                last = None
            yield self._owns(owner, last)
            last = owner
        if last is not None and last.until_seq is not None:
            yield self._lost(last)
        for share in self._shares:
            yield self._share(share)

    def _owns(self, owner: Owner, before: Owner | None) -> Moment:
        record = self._record
        who, by = record.who(owner.consumer), record.who(owner.moved_by)
        active = record.history.single_active
        still_pending: tuple[str, ...] = ()
        if before is not None:
            places = self._subject.mates
            found = record.held_at(record.op_at(owner.from_seq), places, record.place_of(before.consumer))
            still_pending = record.positions(sorted(record.deliveries[found, at.ENTRY].tolist()))
        old = "" if before is None else record.who(before.consumer)
        if owner.moved_how == JOINED and owner.moved_by == owner.consumer:
            start = f"{who} joins and "
        elif owner.moved_by is not None:
            start = f"{by} {'joins' if owner.moved_how == JOINED else 'leaves'}: {who} "
        else:
            start = f"{who} "
        text = start + ("becomes the active consumer" if active else "owns the hash")
        if before is not None:
            text += f", after {old}" if active else f", which was {old}'s"
            text += (
                f"; {old} still holds {positions_listed(still_pending)}"
                if still_pending
                else f"; {old} holds nothing of it"
            )
        return Moment(
            owner.from_seq,
            owner.from_t_us,
            OWNS,
            text,
            owner.consumer,
            still_pending,
            self._subject.hash,
            owner.moved_how,
            None if before is None else before.consumer,
            by=owner.moved_by,
        )

    def _lost(self, owner: Owner) -> Moment:
        seq = owner.until_seq or 0
        by, how = moved_by(self._record, seq)
        active = self._record.history.single_active
        what = "nobody is active any more" if active else "nobody owns the hash any more"
        who = self._record.who(by)
        return Moment(
            seq,
            owner.until_t_us or 0,
            LOST,
            what if by is None else f"{who} {'joins' if how == JOINED else 'leaves'}: {what}",
            owner.consumer,
            hash=self._subject.hash,
            reason=how,
            by=by,
        )

    def _share(self, share: Share) -> Moment:
        record = self._record
        who, own = record.who(share.consumer), share.moved_by == share.consumer
        if record.history.single_active:
            text = "becomes the active consumer" if share.part else "is active no more"
        else:
            text = f"owns {100 * share.part:.1f} % of the hash space"
        if own:
            text = f"{who} joins and {text}" if share.moved_how == JOINED else f"{who} leaves"
        elif share.moved_by is not None:
            how = "joins" if share.moved_how == JOINED else "leaves"
            text = f"{record.who(share.moved_by)} {how}: {who} {text}"
        else:
            text = f"{who} {text}"
        return Moment(
            share.seq,
            share.t_us,
            OWNS if share.part else LOST,
            text,
            share.consumer,
            reason=share.moved_how,
            by=share.moved_by,
        )

    def _granted(self) -> Iterator[Moment]:
        record = self._record
        of_these = np.isin(record.history.op_consumer, self._subject.places) & (
            record.history.op_code == FLOW
        )
        for op in np.flatnonzero(of_these).tolist():
            if op < record.first_op:
                continue
            place, permits = int(record.history.op_consumer[op]), int(record.operations.value[op])
            yield Moment(
                record.seq(op),
                record.t_us(op),
                GRANTED,
                f"{record.names[place]} asks for {counted(permits, 'message', 'messages')}",
                consumer=record.number_of(place),
                amount=permits,
            )

    def _refused(self) -> Iterator[Moment]:
        events = self._record.log.events
        names = {self._record.history.consumers[place].name for place in self._subject.places}
        wanted = pc.and_(
            pc.equal(events["kind"], "subscribe_rejected"),
            pc.is_in(events["name"], value_set=pa.array(sorted(n for n in names if n), pa.string())),
        )
        for row in events.filter(wanted).select(["seq", "t_us", "name", "error"]).to_pylist():
            why_not = f": {shown(row['error'])}" if row["error"] else ""
            yield Moment(row["seq"], row["t_us"] or 0, REFUSED, f"{shown(row['name'])} is refused{why_not}")


def _follows(other: Episode, episode: Episode) -> bool:
    """Check that another rule held an entry of ``episode`` from its end on."""
    if episode.until_us is None or set(other.ordinals).isdisjoint(episode.ordinals):
        return False
    return abs(other.from_us - episode.until_us) <= BRIEF_US
