"""The permit ledger of one dispatcher: what its consumers and its total must have, compared with what a trace shows.

*Consumer.* Its permits are what its client granted less what deliveries took (``accounts``). If lines show another number
for good, that is a ``permit_leak``.

*Total.* A dispatcher of several consumers keeps a total of its own. It should be the sum of its consumers' permits, without
the flows that a consumer has counted and the dispatcher not yet. If the two part for good, that is a ``permit_drift``. When
the last consumer leaves, the broker sets the total to 0, and both are equal again.

Where lines are missing the counts begin anew, with what the next lines show.

Source: Consumer; PersistentDispatcherMultipleConsumers (internalConsumerFlow, removeConsumer, trySendMessagesToConsumers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa

from dispatch_core.audit.permits.accounts import Account, sums
from dispatch_core.audit.permits.lines import PermitLine, last_locked, read_lines
from dispatch_core.audit.permits.offsets import Offsets
from dispatch_core.audit.permits.partly_acked import PartlyAcked
from dispatch_core.recording.checkpoint import Position

#: Notes that are kept of the time between two lines that show the total.
_MOST_NOTES: Final = 64
#: How total and sum may have come to part: a delivery of a batch that is acknowledged in part, a consumer that left.
ACKED_INDEXES: Final = "acked_indexes"
CONSUMER_REMOVED: Final = "consumer_removed"


@dataclass(slots=True)
class Note:
    """An event that may have changed the total otherwise than the sum.

    Attributes:
        cause: ``ACKED_INDEXES`` or ``CONSUMER_REMOVED``.
        seqs: its lines.
        consumer: the connection.
        permits: messages of the delivery that were acknowledged already, or the permits of the consumer that left.
        on_their_way: of a consumer that left: permits that had not reached the total.
        not_counted: of these, the ones that it may not have counted itself.
        flow_seq: its last flow.
        position: the entry that is acknowledged in part.
        messages: of that delivery.
    """

    cause: str
    seqs: list[int]
    consumer: int
    permits: int
    on_their_way: int = 0
    not_counted: int = 0
    flow_seq: int = 0
    position: Position | None = None
    messages: int = 0

    @property
    def may_have_lost(self) -> tuple[int, ...]:
        """The permits that the total may have lost by it as the broker is known to do; the likeliest number first."""
        if self.cause == ACKED_INDEXES:
            return (self.permits,)
        return self.on_their_way - self.not_counted, self.on_their_way


@dataclass(frozen=True, slots=True)
class OffForGood:
    """A count that is off by a number that stays.

    ``shown``: its series; ``account``: of a consumer, ``None`` = the total. ``ended_us``: when its consumer left, of the
    total the last one of all, microseconds; ``None`` = it goes on. ``lost``: it ended because lines are missing.
    """

    shown: Offsets[Note]
    account: Account | None
    ended_us: int | None
    lost: bool = False


class _Delivery(NamedTuple):
    """A delivery whose call has not returned."""

    seq: int
    messages: int
    returned_before: int  # ``Account.returned``
    partly_acked: Position | None


class PermitLedger:
    """The ledger of one incarnation of a dispatcher. Feed it the batches of a trace in order."""

    def __init__(self, *, keeps_indexes: bool | None, single_active: bool, is_first: bool = True) -> None:
        """Begin before the first line.

        Args:
            keeps_indexes: see ``PartlyAcked``.
            single_active: the subscription is Failover or Exclusive: there is no total, and no flow is parked.
            is_first: no load of the topic came before, so that all acknowledgements are in the log.
        """
        self._single_active = single_active
        self._acked = PartlyAcked(keeps_indexes=keeps_indexes)
        if not is_first:
            self._acked.lose()
        self._accounts: dict[int, Account] = {}
        self._gone: set[int] = set()
        self._total: Offsets[Note] = Offsets()
        self._notes: deque[Note] = deque(maxlen=_MOST_NOTES)
        self._ended: list[OffForGood] = []
        self._flow_seq: dict[int, int] = {}  # last flow of each consumer
        self._sending: dict[int, _Delivery] = {}
        self._removing: dict[int, Note] = {}
        self._last_seq = -1
        self._locked_seq = 0
        self._is_complete = True  # all lines since the dispatcher was made are there

    def take(self, events: pa.Table) -> None:
        """Take the next lines."""
        if not events.num_rows:
            return
        if self._last_seq < 0 and (events["seq"][0].as_py() > 1 or events["kind"][0].as_py() == "checkpoint"):
            self._lose(0)
        lines = read_lines(
            events,
            last_seq=self._last_seq,
            locked_seq=self._locked_seq,
            whole_acks=len(self._acked) > 0,
        )
        for line in lines:
            if line.hole:
                self._lose(line.t_us)
            handler = _HANDLERS.get(line.kind)
            if handler is not None:
                handler(self, line)
        self._locked_seq = last_locked(events, self._locked_seq)
        self._last_seq = max(self._last_seq, events["seq"][-1].as_py())

    def account(self, consumer: int) -> Account | None:
        """Return the account of a connected consumer; ``None`` for others."""
        return self._accounts.get(consumer)

    def off_for_good(self) -> Iterator[OffForGood]:
        """Yield the counts that are off: those that have ended since ``forget_ended``, and those that go on."""
        yield from self._ended
        for account in self._accounts.values():
            if account.shown.excess:
                yield OffForGood(account.shown, account, None)
        if self._total.excess:
            yield OffForGood(self._total, None, None)

    def finish(self) -> None:
        """End the log: nothing waits for a later line."""

    def forget_ended(self) -> None:
        """Forget what has ended: it was reported."""
        self._ended.clear()

    # --- lines --------------------------------------------------------------------------------------------------------

    def _of(self, line: PermitLine) -> Account | None:
        """Return the account of the line's consumer; ``None`` for one that has left."""
        consumer = line.consumer
        return None if consumer is None else self._find(consumer, added=line.kind == "consumer_added")

    def _find(self, consumer: int, *, added: bool = False) -> Account | None:
        account = self._accounts.get(consumer)
        if account is None and consumer not in self._gone:
            account = self._accounts[consumer] = Account(consumer)
            if not (added or self._is_complete):
                account.lose()
        return account

    def _consumer_added(self, line: PermitLine) -> None:
        self._of(line)

    def _flow(self, line: PermitLine) -> None:
        account, (permits,) = self._of(line), line.fields
        if account is not None and permits is not None:
            account.grant(line.seq, permits)
            self._flow_seq[account.consumer] = line.seq

    def _flow_counted(self, line: PermitLine) -> None:
        account, (permits, blocked) = self._of(line), line.fields
        if account is None:
            return
        account.count(line.seq, blocked=not (self._single_active or blocked is False))
        since = self._flow_seq.get(account.consumer, line.locked_seq)
        if permits is not None:
            account.show(line.seq, line.t_us, permits, flows_since=line.seq, charges_since=since)

    def _flow_applied(self, line: PermitLine) -> None:
        account, (permits,) = self._of(line), line.fields
        if account is not None and permits is not None:
            account.apply(line.seq, permits)

    def _sent(self, line: PermitLine) -> None:
        account, (positions, sizes, permits) = self._of(line), line.fields
        if account is None:
            return
        if sizes is None or None in sizes:
            self._lose_account(account, line.t_us)
            return
        if permits is not None:
            account.show(
                line.seq, line.t_us, permits, flows_since=line.locked_seq, charges_since=line.locked_seq
            )
        acked: tuple[int, ...] = (0,)
        partly: Position | None = None
        if len(self._acked) or not self._acked.is_known:
            counts = [
                self._acked.counts(position, messages, line.t_us)
                for position, messages in zip(positions, sizes, strict=False)
            ]
            acked = _sums(counts)
            partly = next(
                (place for place, count in zip(positions, counts, strict=False) if any(count[-1:])), None
            )
        if not acked:
            self._lose_account(account, line.t_us)
            return
        messages = sum(sizes)
        self._sending[account.consumer] = _Delivery(line.seq, messages, account.returned, partly)
        account.charge(line.seq, messages, acked)

    def _send_returned(self, line: PermitLine) -> None:
        account, (permits,) = self._of(line), line.fields
        if account is None:
            return
        account.charged_by(line.seq)
        delivery = self._sending.pop(account.consumer, None)
        if permits is not None:
            since = line.locked_seq if delivery is None else delivery.seq
            account.show(line.seq, line.t_us, permits, flows_since=since, charges_since=line.seq)
        acked = 0 if delivery is None else account.returned - delivery.returned_before
        if delivery is not None and acked:
            self._notes.append(
                Note(
                    ACKED_INDEXES,
                    [delivery.seq, line.seq],
                    account.consumer,
                    acked,
                    position=delivery.partly_acked,
                    messages=delivery.messages,
                )
            )

    def _round_end(self, line: PermitLine) -> None:
        """Take the end of a round: deliveries without a line at which their call returned are charged."""
        for consumer in self._sending:
            account = self._accounts.get(consumer)
            if account is not None:
                account.charged_by(line.seq)
        self._sending.clear()

    def _read_attempt_end(self, line: PermitLine) -> None:
        total, rows = line.fields
        if rows is None or self._single_active:
            return
        left = {total or 0}  # by what the total may be larger than the sum
        for row in rows:
            account = None if row is None or len(row) != 4 or None in row else self._find(row[0])
            if account is None:
                left = set()
                continue
            permits = row[2]
            differences = account.show(
                line.seq, line.t_us, permits, flows_since=line.locked_seq, charges_since=line.locked_seq
            )
            if self._total.is_whole and not account.shown.is_whole:
                self._lose_total(line.t_us)
            if account.shown.offset is None or not differences:
                left = set()
                continue
            of_consumer = differences & account.shown.possible or differences
            part = account.applied + account.charged
            left = sums(left, [-part - difference for difference in of_consumer])
            if account.has_charges:
                left = sums(left, [-charge for charge in account.charges()])
        if total is None or not left:
            return
        differences = frozenset(left)
        fits = self._total.offset in differences
        self._total.show(line.seq, line.t_us, differences, tuple(self._notes))
        if not (fits and self._total.is_open):
            self._notes.clear()

    def _ack(self, line: PermitLine) -> None:
        positions, sets, ack_type = line.fields
        cumulative = ack_type == "Cumulative"
        if cumulative and not self._single_active:
            return  # the broker ignores it
        for at, position in enumerate(positions or ()):
            words = sets[at] if sets is not None and at < len(sets) else ()
            self._acked.acknowledge(position, words or (), line.t_us, cumulative=cumulative)

    def _cursor_op(self, line: PermitLine) -> None:
        if line.fields == ("reset",):
            self._acked.reset(line.t_us)

    def _pending_ack_refused(self, line: PermitLine) -> None:
        """Take entries that were refused at the last moment: they are charged, and no line says by how much."""
        account = self._of(line)
        if account is not None:
            self._end(account.shown, replace(account), line.t_us)
            account.shown = Offsets.again(account.shown)
            self._end(self._total, None, line.t_us)
            self._total = Offsets.again(self._total)
            self._notes.clear()

    def _consumer_removing(self, line: PermitLine) -> None:
        """Take the beginning of a removal: the total is lowered in it, and may be shown before it ends."""
        account = self._of(line)
        if account is not None and account.consumer not in self._removing:
            note = Note(
                CONSUMER_REMOVED,
                [line.seq],
                account.consumer,
                account.expected - account.not_counted + account.shown.excess,
                on_their_way=account.granted - account.applied,
                not_counted=account.not_counted,
                flow_seq=self._flow_seq.get(account.consumer, 0),
            )
            self._removing[account.consumer] = note
            self._notes.append(note)

    def _consumer_removed(self, line: PermitLine) -> None:
        self._consumer_removing(line)
        consumer = line.consumer
        account = None if consumer is None else self._accounts.pop(consumer, None)
        if account is None:
            return
        note = self._removing.pop(account.consumer)
        if line.seq not in note.seqs:
            note.seqs.append(line.seq)
        self._gone.add(account.consumer)
        self._sending.pop(account.consumer, None)
        self._flow_seq.pop(account.consumer, None)
        self._end(account.shown, account, line.t_us)
        if not self._accounts:
            self._end(self._total, None, line.t_us)
            self._total = Offsets(0 if self._is_complete else None)
            self._notes.clear()

    # --- lines that are missing ----------------------------------------------------------------------------------------

    def _lose(self, t_us: int) -> None:
        """Take note that lines are missing before now."""
        self._is_complete = False
        self._acked.lose()
        for account in self._accounts.values():
            self._lose_account(account, t_us)
        self._lose_total(t_us)
        self._sending.clear()

    def _lose_account(self, account: Account, t_us: int) -> None:
        self._end(account.shown, replace(account), t_us, lost=True)
        account.lose()
        self._lose_total(t_us)

    def _lose_total(self, t_us: int) -> None:
        self._end(self._total, None, t_us, lost=True)
        self._total = Offsets(None)
        self._notes.clear()

    def _end(self, shown: Offsets[Note], account: Account | None, t_us: int, *, lost: bool = False) -> None:
        if shown.excess:
            self._ended.append(OffForGood(shown, account, t_us, lost))


_HANDLERS: Final[dict[str, Callable[[PermitLedger, PermitLine], None]]] = {
    "ack": PermitLedger._ack,
    "consumer_added": PermitLedger._consumer_added,
    "consumer_removed": PermitLedger._consumer_removed,
    "consumer_removing": PermitLedger._consumer_removing,
    "cursor_op": PermitLedger._cursor_op,
    "flow": PermitLedger._flow,
    "flow_applied": PermitLedger._flow_applied,
    "flow_counted": PermitLedger._flow_counted,
    "pending_ack_refused": PermitLedger._pending_ack_refused,
    "read_attempt_end": PermitLedger._read_attempt_end,
    "round_end": PermitLedger._round_end,
    "send_returned": PermitLedger._send_returned,
    "sent": PermitLedger._sent,
}


def _sums(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Add one of the numbers of each element; the sum of their last ones comes last. Empty = there are too many.

    >>> _sums([(0, 2), (0,), (1, 3)])
    (1, 3, 5)
    """
    found, likeliest = {0}, 0
    for numbers in counts:
        found = sums(found, numbers)
        if not found:
            return ()
        likeliest += numbers[-1]
    return (*sorted(found - {likeliest}), likeliest)
