"""Read what the statistics of a moment say about each subscription.

A field that is absent is unknown (``None``), and one of a wrong kind is unknown and a problem; the rest is read. Which
fields there are depends on the release:

=============================================  ===============================================
field                                          releases
=============================================  ===============================================
``msgInReplay``                                3.0.7+, 3.2.5+, 3.3.2+, 4.x (#23224)
``drainingHashesCount``, ``drainingHashes``    4.x (#23429)
``lastSentPosition``                           4.0.0-preview.1 only (#21953)
``dispatchThrottled…``                         not in 4.0.0, but in 4.2
``subscriptionHavePendingRead``                2.8+ (#9788), in stats-internal
=============================================  ===============================================

Sources: SubscriptionStatsImpl, ConsumerStatsImpl, ManagedLedgerInternalStats, PersistentSubscription.getStatsAsync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus

from dispatch_core.diagnose.documents import Moment, Statistics
from dispatch_core.importers.topic_stats.documents import FieldError, Fields, Position

T = TypeVar("T")

_INT32: Final = 1 << 31
_THROTTLED: Final = tuple(
    f"dispatchThrottled{what}EventsBy{whose}Limit"
    for what in ("Msg", "Bytes")
    for whose in ("Subscription", "Topic", "Broker")
)
#: Fields without which a subscription's answer is poorer: they are named if they are absent.
_EXPECTED: Final = ("msgBacklog", "unackedMessages", "consumers")
_EXPECTED_OF_CONSUMERS: Final = ("availablePermits", "unackedMessages")


@dataclass(frozen=True, slots=True)
class Draining:
    """A hash that drains for a consumer: ``unacked`` entries hold it, and it was refused ``attempts`` times."""

    hash: int
    unacked: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Consumer:
    """A connected consumer. ``None`` = not in the document; times are microseconds since the epoch, 0 = never.

    Attributes:
        ranges: its hashes, both ends inclusive.
        draining: hashes that drain for it.
        sent: number of messages that it was sent.
        joined_at: ``readPositionWhenJoining``.
        has_text_ranges: its hashes are in ``keyHashRanges``, not in ``keyHashRangeArrays``.
    """

    name: str
    address: str | None = None
    permits: int | None = None
    unacked: int | None = None
    blocked: bool | None = None
    ranges: tuple[tuple[int, int], ...] | None = None
    draining: tuple[Draining, ...] = ()
    connected_us: int = 0
    sent_us: int = 0
    acked_us: int = 0
    flow_us: int = 0
    sent: int | None = None
    rate_out: float = 0.0
    joined_at: str | None = None
    has_text_ranges: bool = False

    @property
    def may_get(self) -> bool:
        """True if neither permits nor the limit of unacknowledged messages keep it from getting messages."""
        return not self.blocked and (self.permits or 0) > 0

    @property
    def moved_us(self) -> int:
        """The latest time at which its permits or its unacknowledged messages changed, as far as the document says."""
        return max(self.sent_us, self.acked_us, self.flow_us, self.connected_us)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A subscription's cursor, of ``stats-internal``.

    Attributes:
        unread: number of stored entries from the read position on.
        waits: the cursor has a read that waits for the next entry.
        reads: number of reads of stored entries under way.
        pending_read, pending_replay: the dispatcher waits for a normal read, or for a replay read.
        holes: number of ranges of acknowledged entries above the mark-delete position.
    """

    mark_delete: Position | None = None
    read_position: Position | None = None
    last_confirmed: Position | None = None
    unread: int | None = None
    waits: bool | None = None
    reads: int | None = None
    pending_read: bool | None = None
    pending_replay: bool | None = None
    holes: int | None = None
    consumed: int | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription at a moment. ``None`` = not in the documents.

    Attributes:
        kind: ``Shared``, ``Key_Shared``, ``Failover``, ``Exclusive``; ``None`` = no consumer has connected since the load.
        backlog: entries that are not acknowledged.
        in_replay: positions in the replay set.
        recently_joined: position by name of each consumer that the read-position rule holds back.
        throttled: number of times that a dispatch rate put off a read.
        complete: the list of consumers did not break off.
    """

    topic: str | None
    name: str
    kind: str | None = None
    consumers: tuple[Consumer, ...] = ()
    lists_consumers: bool = True
    complete: bool = True
    backlog: int | None = None
    unacked: int | None = None
    blocked: bool = False
    delayed: int = 0
    in_replay: int | None = None
    mode: str | None = None
    allow_out_of_order: bool = False
    recently_joined: tuple[tuple[str, str], ...] = ()
    has_draining_fields: bool = False
    has_last_sent: bool = False
    active: str | None = None
    throttled: int | None = None
    filtered: int = 0
    open_transactions: int = 0
    sent: int | None = None
    rate_out: float = 0.0
    consumed_us: int = 0
    flow_us: int = 0
    cursor: Cursor | None = None
    taken_us: int | None = None
    is_utc: bool = False
    not_before_us: int = 0
    polled: bool = False
    files: tuple[str, ...] = ()

    @property
    def is_single_active(self) -> bool:
        """True for Failover and Exclusive."""
        return self.kind in ("Failover", "Exclusive")

    @property
    def by_read_position(self) -> bool | None:
        """True if the dispatcher keeps the order of keys by read position (3.x, classic); ``None`` = not known."""
        if not self.has_draining_fields:
            return not self.has_last_sent
        if self.kind != "Key_Shared" or not self.consumers:
            return None
        return any(consumer.joined_at is not None or consumer.has_text_ranges for consumer in self.consumers)

    @property
    def pending(self) -> int:
        """Messages that were sent and not acknowledged, of Shared and Key_Shared; 0 elsewhere, where nobody counts them."""
        return max(self.unacked or 0, 0)

    @property
    def moved_us(self) -> int:
        """The latest time at which a consumer was sent, acknowledged or granted something."""
        return max((consumer.moved_us for consumer in self.consumers), default=self.consumed_us)

    @property
    def unread(self) -> int | None:
        """Entries that the cursor has not read; ``None`` = not known."""
        return None if self.cursor is None else self.cursor.unread

    @property
    def waiting(self) -> int | None:
        """Entries that wait to be sent, at least, delayed ones included; ``None`` = not known.

        With both documents these are the unread ones, the replay set and the delayed ones. With ``stats`` alone the
        backlog without what is unacknowledged: as messages are counted there, batches make it fewer.
        """
        if self.unread is not None and (self.in_replay is not None or self.is_single_active):
            return self.unread + (self.in_replay or 0) + self.delayed
        if self.is_single_active or self.backlog is None:
            return self.unread
        return max(self.backlog - self.pending, self.unread or 0, self.in_replay or 0, self.delayed)


def subscriptions_of(moment: Moment, problems: list[str]) -> list[Subscription]:
    """Read all subscriptions of a moment; what cannot be read is added to ``problems``, one line each."""
    reader = _Reader(problems)
    cursors = reader.cursors(moment.internal) if moment.internal is not None else {}
    found = []
    if moment.stats is None:
        for name, cursor in cursors.items():
            found.append(
                _of_moment(moment, Subscription(moment.topic, name, lists_consumers=False, cursor=cursor))
            )
        return found
    for name, value in moment.stats.fields["subscriptions"].items():
        fields = reader.object(moment.stats, f"subscriptions.{name}", value)
        if fields is None:
            continue
        last = name == list(moment.stats.fields["subscriptions"])[-1]
        subscription = reader.subscription(moment, name, fields, cursors.get(name), breaks=last)
        found.append(_of_moment(moment, subscription))
        if cursors and name not in cursors:
            assert moment.internal is not None
            problems.append(
                f"{moment.internal.name}: no cursor of the subscription {name}; it is answered from the other document alone"
            )
    return found


def _of_moment(moment: Moment, subscription: Subscription) -> Subscription:
    documents = [document for document in (moment.stats, moment.internal) if document is not None]
    return replace(
        subscription,
        taken_us=moment.taken_us,
        is_utc=moment.is_utc and moment.taken_us is not None,
        not_before_us=moment.not_before_us,
        polled=all(document.polled for document in documents),
        files=tuple(document.name for document in documents),
    )


@dataclass(slots=True)
class _Reader:
    """Reads fields and collects what is wrong with them."""

    problems: list[str]
    _absent: dict[str, int] = field(default_factory=dict)

    def of(self, read: Callable[[], T], default: T) -> T:
        """The value of a field; the default if it is absent or of a wrong kind, which is a problem."""
        try:
            value = read()
        except FieldError as error:
            self.problems.append(f"{error.fault}; it is answered without this field")
            return default
        return default if value is None else value

    def object(self, document: Statistics, where: str, value: Any) -> Fields | None:
        try:
            return Fields(document.name, where, value)
        except FieldError as error:
            self.problems.append(f"{error.fault}; it is left out")
            return None

    def _number(self, fields: Fields, name: str) -> int | None:
        return self.of(lambda: fields.number(name, -_INT32, 1 << 62), None)

    def _rate(self, fields: Fields, name: str) -> float:
        try:
            return float(fields.of(name, float) or 0.0)
        except FieldError:
            return float(self._number(fields, name) or 0)

    def _flag(self, fields: Fields, name: str) -> bool | None:
        return self.of(lambda: fields.of(name, bool), None)

    def _text(self, fields: Fields, name: str) -> str | None:
        return self.of(lambda: fields.of(name, str), None)

    def _ms(self, fields: Fields, name: str) -> int:
        return (self._number(fields, name) or 0) * 1000

    def _expect(self, fields: Fields, names: Sequence[str]) -> None:
        absent = [name for name in names if name not in fields]
        if absent:
            where = fields.error(None, "").fault.rstrip(": ")
            self.problems.append(f"{where}: {', '.join(absent)} missing; what depends on it is not answered")

    def subscription(
        self, moment: Moment, name: str, fields: Fields, cursor: Cursor | None, *, breaks: bool
    ) -> Subscription:
        stats = moment.stats
        assert stats is not None
        self._expect(fields, _EXPECTED)
        if "type" not in fields and self.of(lambda: fields.of("consumers", list), None):
            self._expect(fields, ("type",))  # without a consumer there is none
        kind = self._text(fields, "type")
        nobody: list[Fields] = []
        consumers = self.of(lambda: fields.objects("consumers"), nobody)
        # A consumer without the fields that every release has is no reason to leave the others out.
        read = tuple(self._consumer(consumer) for consumer in consumers)
        none_held: dict[str, Any] = {}
        recent = self.of(lambda: fields.of("consumersAfterMarkDeletePosition", dict), none_held)
        throttled = [self._number(fields, name_) for name_ in _THROTTLED if name_ in fields]
        top = Fields(stats.name, "", dict(stats.fields))
        return Subscription(
            moment.topic,
            name,
            None if kind in (None, "None") else kind,
            read,
            lists_consumers="consumers" in fields,
            complete=not (stats.broken_off and breaks),
            backlog=self._number(fields, "msgBacklog"),
            unacked=self._number(fields, "unackedMessages"),
            blocked=bool(self._flag(fields, "blockedSubscriptionOnUnackedMsgs")),
            delayed=max(self._number(fields, "msgDelayed") or 0, 0),
            in_replay=self._number(fields, "msgInReplay"),
            mode=self._text(fields, "keySharedMode"),
            allow_out_of_order=bool(self._flag(fields, "allowOutOfOrderDelivery")),
            recently_joined=tuple((str(who), str(position)) for who, position in recent.items()),
            has_draining_fields="drainingHashesCount" in fields,
            has_last_sent="lastSentPosition" in fields,
            active=self._text(fields, "activeConsumerName"),
            throttled=sum(count or 0 for count in throttled) if throttled else None,
            filtered=self._number(fields, "filterRescheduledMsgCount") or 0,
            open_transactions=self._number(top, "ongoingTxnCount") or 0,
            sent=self._number(fields, "msgOutCounter"),
            rate_out=self._rate(fields, "msgRateOut"),
            consumed_us=self._ms(fields, "lastConsumedTimestamp"),
            flow_us=self._ms(fields, "lastConsumedFlowTimestamp"),
            cursor=cursor,
        )

    def _consumer(self, fields: Fields) -> Consumer:
        self._expect(fields, _EXPECTED_OF_CONSUMERS)
        none_drains: list[Fields] = []
        draining = [
            Draining(
                self._number(hash_, "hash") or 0,
                self._number(hash_, "unackMsgs") or 0,
                self._number(hash_, "blockedAttempts") or 0,
            )
            for hash_ in self.of(lambda: fields.objects("drainingHashes"), none_drains)
        ]
        return Consumer(
            name=self._text(fields, "consumerName") or "",
            address=self._text(fields, "address"),
            permits=self._number(fields, "availablePermits"),
            unacked=self._number(fields, "unackedMessages"),
            blocked=self._flag(fields, "blockedConsumerOnUnackedMsgs"),
            ranges=self.of(fields.ranges, None),
            draining=tuple(draining),
            connected_us=self.of(lambda: fields.time_us("connectedSince"), None) or 0,
            sent_us=self._ms(fields, "lastConsumedTimestamp"),
            acked_us=self._ms(fields, "lastAckedTimestamp"),
            flow_us=self._ms(fields, "lastConsumedFlowTimestamp"),
            sent=self._number(fields, "msgOutCounter"),
            rate_out=self._rate(fields, "msgRateOut"),
            joined_at=self._text(fields, "readPositionWhenJoining"),
            has_text_ranges=bool(self.of(lambda: fields.of("keyHashRanges", list), None)),
        )

    def cursors(self, document: Statistics) -> dict[str, Cursor]:
        top = Fields(document.name, "", dict(document.fields))
        last = self.of(lambda: top.position("lastConfirmedEntry"), None)
        ledgers = self._ledgers(top)
        found: dict[str, Cursor] = {}
        for name, value in document.fields["cursors"].items():
            fields = self.object(document, f"cursors.{name}", value)
            if fields is not None:
                found[unquote_plus(name)] = self._cursor(fields, last, ledgers)
        return found

    def _ledgers(self, top: Fields) -> dict[int, int]:
        """Number of entries of each ledger; the current one is listed with 0 until it is closed."""
        no_ledgers: list[Fields] = []
        listed = self.of(lambda: top.objects("ledgers"), no_ledgers)
        entries = {
            self._number(ledger, "ledgerId") or 0: self._number(ledger, "entries") or 0 for ledger in listed
        }
        if entries:
            current = list(entries)[-1]
            entries[current] = max(entries[current], self._number(top, "currentLedgerEntries") or 0)
        return entries

    def _cursor(self, fields: Fields, last: Position | None, ledgers: dict[int, int]) -> Cursor:
        read = self.of(lambda: fields.position("readPosition"), None)
        return Cursor(
            mark_delete=self.of(lambda: fields.position("markDeletePosition"), None),
            read_position=read,
            last_confirmed=last,
            unread=_entries_from(read, last, ledgers),
            waits=self._flag(fields, "waitingReadOp"),
            reads=self._number(fields, "pendingReadOps"),
            pending_read=self._flag(fields, "subscriptionHavePendingRead"),
            pending_replay=self._flag(fields, "subscriptionHavePendingReplayRead"),
            holes=self._number(fields, "totalNonContiguousDeletedMessagesRange"),
            consumed=self._number(fields, "messagesConsumedCounter"),
        )


def _entries_from(first: Position | None, last: Position | None, ledgers: dict[int, int]) -> int | None:
    """Number of entries from a position to the last one, at least; ``None`` = not known.

    >>> _entries_from((3, 8), (5, 1), {3: 10, 4: 7, 5: 2}), _entries_from((5, 2), (5, 1), {5: 2})
    (11, 0)
    """
    if first is None or last is None:
        return None
    if first > last:
        return 0
    if first[0] == last[0]:
        return last[1] - max(first[1], 0) + 1
    between = sum(entries for ledger, entries in ledgers.items() if first[0] < ledger < last[0])
    return max(ledgers.get(first[0], 0) - max(first[1], 0), 0) + between + last[1] + 1
