"""Read one subscription from the output of ``pulsar-admin topics stats`` and ``topics stats-internal``.

A document is recognised by its contents. Names and formats are the broker's. Differences between 3.0 and 4.2:

=================  ===================================  ====================================
                   3.x, and the classic dispatcher      4.x
=================  ===================================  ====================================
hash ranges        ``keyHashRanges``: ``"[0, 99]"``     ``keyHashRangeArrays``: ``[0, 99]``
recently joined    ``consumersAfterMarkDeletePosition``  empty
draining hashes    nothing                              ``drainingHashes`` of each consumer
=================  ===================================  ====================================

Sources: TopicStatsImpl, SubscriptionStatsImpl, ConsumerStatsImpl, ManagedLedgerInternalStats, ManagedCursorImpl
(``getIndividuallyDeletedMessages``), Codec (names of cursors are URL-encoded).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote_plus

from dispatch_core.errors import DispatchAuditError
from dispatch_core.times import micros

Position = tuple[int, int]
#: Acknowledged positions: later than the first, not later than the second.
Acked = tuple[Position, Position]

STATS: Final = "topics stats"
INTERNAL: Final = "topics stats-internal"
#: Statistics of all partitions: of either kind, one document under the name of each partition.
PARTITIONED: Final = "topics partitioned-stats"

_INT32: Final = 1 << 31
_MOST: Final = (1 << 63) - 1
_POSITION: Final = re.compile(r"(-?\d{1,19}):(-?\d{1,19})")
#: One range of a cursor's acknowledged entries; Guava wrote the two dots as one character until its release 19.
_ACKED: Final = re.compile(r"\((-?\d{1,19}:-?\d{1,19})(?:\.\.|\u2025)(-?\d{1,19}:-?\d{1,19})\]")
_RANGE_TEXT: Final = re.compile(r"\[(\d{1,10}), ?(\d{1,10})\]")
_KINDS: Final = {
    int: "an integer",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


class TopicStatsError(DispatchAuditError):
    """A document that is neither of the two, or has a wrong or missing field. Nothing was written."""


class FieldError(TopicStatsError):
    """A wrong or missing field. ``fault``: file, path of the field and what is wrong, for readers that go on without it."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"{fault}; nothing was taken from this file, take the stats again")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A connected consumer. ``None`` = not in the document.

    ``permits``, ``unacked``: messages. ``ranges``: hashes, both ends inclusive. ``draining``: number of entries by hash that
    drains for it. ``last_us``: the latest time at which it was sent an entry, acknowledged or granted permits.
    """

    name: str
    address: str | None = None
    connected_us: int | None = None
    permits: int | None = None
    unacked: int | None = None
    ranges: tuple[tuple[int, int], ...] | None = None
    draining: Mapping[int, int] = field(default_factory=dict)
    last_us: int = 0

    def owns(self, sticky_hash: int) -> bool:
        """True if a hash lies in the consumer's ranges."""
        return any(start <= sticky_hash <= end for start, end in self.ranges or ())


@dataclass(frozen=True, slots=True)
class Cursor:
    """The subscription's acknowledged entries, and the positions up to which the topic was stored and read.

    ``waits``: all stored entries were read, and the dispatcher's read waits for more.
    """

    mark_delete: Position
    acked: tuple[Acked, ...]
    read_position: Position
    last_confirmed: Position
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One subscription. ``consumers`` in the order in which they connected; ``cursor`` only with both documents.

    ``has_recently_joined``: read-position rules held a consumer back (``consumersAfterMarkDeletePosition``).
    """

    subscription: str
    subscription_type: str | None
    consumers: tuple[ConsumerStats, ...]
    mode: str | None = None
    allow_out_of_order: bool | None = None
    active: str | None = None
    has_recently_joined: bool = False
    cursor: Cursor | None = None

    @property
    def last_us(self) -> int:
        """The latest time in the document: it was made then or later."""
        return max((consumer.last_us for consumer in self.consumers), default=0)


@dataclass(frozen=True, slots=True)
class Document:
    """A document. ``name``: that of its file; ``kind``: ``STATS`` or ``INTERNAL``."""

    name: str
    kind: str
    fields: dict[str, Any]

    @classmethod
    def of(cls, name: str, data: bytes) -> Document:
        """Recognise a document. Raises ``TopicStatsError`` for any other, with what it seems to be."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TopicStatsError(f"{name}: not valid JSON: {error}; {_ADVICE}") from None
        if not isinstance(found, dict):
            raise TopicStatsError(f"{name}: a JSON {type(found).__name__}, not an object; {_ADVICE}")
        kind = kind_of(found)
        if kind == PARTITIONED:
            what = "the stats of a partitioned topic, whose partitions are dispatched one by one"
            raise TopicStatsError(f"{name}: {what}; give those of one partition (…-partition-0)")
        if kind is not None:
            return cls(name, kind, found)
        raise TopicStatsError(
            f"{name}: neither has it `subscriptions` as `{STATS}` prints them, nor `cursors` and `lastConfirmedEntry` as "
            f"`{INTERNAL}` does; {_ADVICE}"
        )

    @property
    def subscriptions(self) -> list[str]:
        """The subscriptions in the document."""
        if self.kind == STATS:
            return list(self.fields["subscriptions"])
        return [unquote_plus(name) for name in self.fields["cursors"]]


_ADVICE: Final = (
    f"give the output of `pulsar-admin {STATS} TOPIC` and of `pulsar-admin {INTERNAL} TOPIC`, each unchanged, "
    "in a file of its own"
)


def kind_of(fields: Mapping[str, Any]) -> str | None:
    """Return ``STATS``, ``INTERNAL`` or ``PARTITIONED`` for the object of a document; ``None`` = it is none of them.

    >>> kind_of({"cursors": {}, "lastConfirmedEntry": "3:4"}), kind_of({"subscriptions": {}}), kind_of({"a": 1})
    ('topics stats-internal', 'topics stats', None)
    """
    if isinstance(fields.get("cursors"), dict) and "lastConfirmedEntry" in fields:
        return INTERNAL
    if isinstance(fields.get("partitions"), dict):
        return PARTITIONED
    return STATS if isinstance(fields.get("subscriptions"), dict) else None


def snapshot_of(documents: list[Document], subscription: str) -> Snapshot:
    """Read a subscription's snapshot from one or two documents. Raises ``TopicStatsError`` with file and field."""
    by_kind: dict[str, Document] = {}
    for document in documents:
        if document.kind in by_kind:
            raise TopicStatsError(
                f"{by_kind[document.kind].name} and {document.name} are both of `{document.kind}`; {_ADVICE}"
            )
        by_kind[document.kind] = document
    if STATS not in by_kind:
        raise TopicStatsError(
            f"{documents[0].name} is of `{INTERNAL}`, which does not name the connected consumers; add the output of "
            f"`pulsar-admin {STATS} TOPIC`"
        )
    stats = by_kind[STATS]
    if subscription not in stats.fields["subscriptions"]:
        near = ", ".join(stats.subscriptions[:5]) or "none"
        raise TopicStatsError(f"{stats.name}: it has no subscription {subscription}; those it has: {near}")
    found = Fields(stats.name, f"subscriptions.{subscription}", stats.fields["subscriptions"][subscription])
    consumers = [_consumer(fields) for fields in found.objects("consumers")]
    consumers.sort(key=lambda consumer: consumer.connected_us or 0)
    kind = found.of("type", str)
    return Snapshot(
        subscription,
        None if kind == "None" else kind,
        tuple(consumers),
        mode=found.of("keySharedMode", str),
        allow_out_of_order=found.of("allowOutOfOrderDelivery", bool),
        active=found.of("activeConsumerName", str),
        has_recently_joined=bool(found.of("consumersAfterMarkDeletePosition", dict)),
        cursor=_cursor(by_kind[INTERNAL], subscription) if INTERNAL in by_kind else None,
    )


class Fields:
    """An object of a document, and its path in it. Methods raise ``FieldError`` for a value of a wrong kind."""

    def __init__(self, file: str, where: str, value: Any) -> None:
        self._file, self._where = file, where
        if not isinstance(value, dict):
            raise self.error(None, f"expected an object, found {_short(value)}")
        self._value = value

    def error(self, name: str | None, reason: str) -> FieldError:
        """Return the error about a field, or about the object itself."""
        where = self._where if name is None else f"{self._where}.{name}" if self._where else name
        return FieldError(f"{self._file}: {where}: {reason}")

    def __contains__(self, name: str) -> bool:
        return name in self._value

    def of(self, name: str, kind: type) -> Any:
        """The value of a field, ``None`` if it is absent or null."""
        value = self._value.get(name)
        if value is not None and (type(value) is not kind):
            raise self.error(name, f"expected {_KINDS[kind]}, found {_short(value)}")
        return value

    def time_us(self, name: str) -> int | None:
        """The value of a field that is a time as text, microseconds since the epoch; UTC if it names no zone."""
        text = self.of(name, str)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise self.error(name, f"expected a time, found {_short(text)}") from None
        return micros(found if found.tzinfo is not None else found.replace(tzinfo=UTC))

    def number(self, name: str, least: int = 0, most: int = _MOST) -> int | None:
        """The value of a field that is a whole number from ``least`` to ``most``."""
        value: int | None = self.of(name, int)
        if value is not None and not least <= value <= most:
            raise self.error(name, f"{value} is out of range")
        return value

    def objects(self, name: str) -> list[Fields]:
        """The objects of a list; empty if it is absent."""
        listed = self.of(name, list) or []
        where = f"{self._where}.{name}" if self._where else name
        return [Fields(self._file, f"{where}[{at}]", value) for at, value in enumerate(listed)]

    def position(self, name: str) -> Position:
        """The value of a field that is a position ``ledger:entry``; it must be there."""
        text = self.of(name, str)
        if text is None:
            raise self.error(name, "missing")
        found = _POSITION.fullmatch(text)
        if found is None:
            raise self.error(name, f"expected a position ledger:entry, found {_short(text)}")
        return self._checked(name, found[1], found[2])

    def acked(self, name: str) -> tuple[Acked, ...]:
        """The value of a field that holds ranges of acknowledged positions."""
        text: str = self.of(name, str) or "[]"
        inner = text.strip()
        if not (
            inner.startswith("[") and inner.endswith("]") and not _ACKED.sub("", inner[1:-1]).strip(" ,")
        ):
            raise self.error(name, f"expected ranges of positions such as [(3:4..3:5]], found {_short(text)}")
        return tuple(
            (self._position(name, lower), self._position(name, upper))
            for lower, upper in _ACKED.findall(inner)
        )

    def ranges(self) -> tuple[tuple[int, int], ...] | None:
        """``keyHashRangeArrays``, else ``keyHashRanges``."""
        arrays, texts = self.of("keyHashRangeArrays", list), self.of("keyHashRanges", list)
        name = "keyHashRanges" if arrays is None else "keyHashRangeArrays"
        if arrays is None and texts is None:
            return None
        pairs = []
        for value in texts if arrays is None else arrays:
            pair = value
            if isinstance(value, str) and (found := _RANGE_TEXT.fullmatch(value)):
                pair = [int(found[1]), int(found[2])]
            right = isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair)
            if not (right and 0 <= pair[0] <= pair[1] < _INT32):
                raise self.error(name, f"expected ranges of hashes [start, end], found {_short(value)}")
            pairs.append((pair[0], pair[1]))
        return tuple(pairs)

    def _position(self, name: str, text: str) -> Position:
        ledger, _, entry = text.partition(":")
        return self._checked(name, ledger, entry)

    def _checked(self, name: str, ledger: str, entry: str) -> Position:
        found = int(ledger), int(entry)
        if not all(-1 <= part <= _MOST for part in found):
            raise self.error(name, f"position {ledger}:{entry} is out of range")
        return found


def _consumer(fields: Fields) -> ConsumerStats:
    draining: dict[int, int] = {}
    for listed in fields.objects("drainingHashes"):
        sticky, left = listed.number("hash", 0, _INT32 - 1), listed.number("unackMsgs")
        if sticky is not None and left:
            draining[sticky] = left
    times = [
        fields.number(name) or 0
        for name in ("lastConsumedTimestamp", "lastAckedTimestamp", "lastConsumedFlowTimestamp")
    ]
    return ConsumerStats(
        name=fields.of("consumerName", str) or "",
        address=fields.of("address", str),
        connected_us=fields.time_us("connectedSince"),
        permits=fields.number("availablePermits", -_INT32, _INT32 - 1),
        unacked=fields.number("unackedMessages", -_INT32, _INT32 - 1),
        ranges=fields.ranges(),
        draining=draining,
        last_us=max(times) * 1000,
    )


def _cursor(document: Document, subscription: str) -> Cursor:
    names = [name for name in document.fields["cursors"] if subscription in (name, unquote_plus(name))]
    if not names:
        near = ", ".join(document.subscriptions[:5]) or "none"
        raise TopicStatsError(
            f"{document.name}: it has no cursor of the subscription {subscription}; those it has: {near}. "
            "Are both documents of one topic?"
        )
    fields = Fields(document.name, f"cursors.{names[0]}", document.fields["cursors"][names[0]])
    return Cursor(
        fields.position("markDeletePosition"),
        fields.acked("individuallyDeletedMessages"),
        fields.position("readPosition"),
        Fields(document.name, "", document.fields).position("lastConfirmedEntry"),
        waits=all(fields.of(name, bool) for name in ("waitingReadOp", "subscriptionHavePendingRead")),
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
