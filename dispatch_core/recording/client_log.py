"""Merge the client logs of a subscription into one log of level *E*, so that the audit's rules need be written only once.

===================  =====================================================================================
line of a client     event
===================  =====================================================================================
first line           ``consumer_added``: a connection with a number of its own
``client_received``  ``sent``, once for all messages of a batch entry; again when one of them comes again
``client_acked``     ``ack``, once all messages of the entry are acknowledged; none if it has an ``error``
``client_nacked``    ``redeliver``
a lost connection    ``consumer_removed`` at ``disconnected_us``, and ``consumer_added`` with a new number
``footer``           ``consumer_removed``; so does a second header in the file, by the time of its first line
lost lines           ``gap``
===================  =====================================================================================

The lines of one session keep their order. Those of several are ordered by the clients' times, which is only as good as the
clocks: ``MergedLine`` says for each event whose clock told it, and ``audit.client_log`` judges what rests on that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa

from dispatch_core.arrays.batches import to_batch
from dispatch_core.recording.client_files import CLOSED, ClientLine, ClientSession
from dispatch_core.recording.identity import CLIENT_FORMAT
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.schema import EVENTS, FORMAT_VERSION, MESSAGES

Position = tuple[int, int]
_RECEIVED: Final = "client_received"
_ACKED: Final = "client_acked"
_NACKED: Final = "client_nacked"
_DISCONNECTED: Final = "disconnected"
#: A connection that is lost so soon behind an acknowledgement may have lost it: clients send them in groups, after 100 ms
#: by default. For so long after the loss a client may hand out what it had received before, and acknowledgements wait.
UNSETTLED_US: Final = 10_000_000
#: Behind all lines of a session that have the same time.
_BEHIND: Final = 1 << 62


class MergedLine(NamedTuple):
    """An event of the merged log: what the client's line adds to it.

    ``session``: index in ``MergedClients.sessions``; ``where``: file and line, empty for an event of no line.
    """

    session: int
    kind: str
    connection: int
    position: Position | None
    t_us: int
    cumulative: bool
    redelivery_count: int
    where: str


@dataclass(frozen=True, slots=True)
class MergedSession:
    """A session as far as it concerns one dispatcher.

    Attributes:
        host: whose clock its times are of.
        disconnects_known: see ``ClientSession``.
        last_us: time of its last line, of any topic.
        unsettled: consumer, first and last time around a lost connection: what the consumer receives then may have been
            sent before the loss, and what it acknowledges may not reach the broker.
        stepped: its clock went back.
    """

    host: str
    disconnects_known: bool | None
    last_us: int
    stepped: bool
    unsettled: tuple[tuple[str | None, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MergedClients:
    """The merged log of one dispatcher. ``lines``: by ``seq``; lost lines are not in it."""

    log: DispatcherLog
    sessions: Sequence[MergedSession] = field(repr=False)
    lines: Mapping[int, MergedLine] = field(repr=False)
    subscription_type_known: bool


class _Item(NamedTuple):
    """A line to be merged, or a lost connection. ``key_us``: the latest time of its session so far."""

    key_us: int
    session: int
    order: int
    kind: str
    consumer: str | None
    line: ClientLine | None


def merged(sessions: Sequence[ClientSession], recording: str) -> list[MergedClients]:
    """Merge sessions by dispatcher, ordered by (cluster, topic, subscription)."""
    items: dict[tuple[str, str, str], list[_Item]] = defaultdict(list)
    about: list[MergedSession] = []
    for number, session in enumerate(sessions):
        about.append(_about(session))
        for dispatcher, own in _items_of(number, session).items():
            items[dispatcher] += own
    made = []
    for dispatcher in sorted(items):
        own = sorted(items[dispatcher], key=lambda item: item[:3])
        types = [sessions[item.session].header.get("subscription_type") for item in own]
        made.append(
            _Merge(own, sessions).result(dispatcher, recording, about, next(filter(None, types), None))
        )
    return made


def known_at(clients: MergedClients, until_us: int) -> MergedClients:
    """Return what was known at a moment, beside a log that is cut there (``known_until``)."""
    sessions = [replace(session, last_us=min(session.last_us, until_us)) for session in clients.sessions]
    lines = {seq: line for seq, line in clients.lines.items() if line.t_us <= until_us}
    return replace(clients, sessions=sessions, lines=lines)


def _about(session: ClientSession) -> MergedSession:
    times = [line.t_us for line in session.lines]
    stepped = any(after < before for before, after in pairwise(times))
    return MergedSession(
        session.host, session.disconnects_known, max(times, default=0), stepped, tuple(_unsettled(session))
    )


def _unsettled(session: ClientSession) -> Iterator[tuple[str | None, int, int]]:
    """Yield the times around lost connections; those of one consumer that overlap are one."""
    known_us: dict[str | None, int] = {}
    open_until: dict[str | None, tuple[int, int]] = {}
    for line in session.lines:
        lost_us = line.disconnected_us or 0
        times = [line.t_us] if line.connected is False else []
        if lost_us > known_us.get(line.consumer, 0):
            known_us[line.consumer] = lost_us
            times.insert(0, lost_us)
        for t_us in times:
            from_us, to_us = t_us - UNSETTLED_US, t_us + UNSETTLED_US
            before = open_until.get(line.consumer)
            if before is not None and before[0] <= from_us <= before[1]:
                open_until[line.consumer] = before[0], max(before[1], to_us)
                continue
            if before is not None:
                yield line.consumer, *before
            open_until[line.consumer] = from_us, to_us
    for consumer, span in open_until.items():
        yield consumer, *span


def _items_of(number: int, session: ClientSession) -> dict[tuple[str, str, str], list[_Item]]:
    """Return the lines of a session by dispatcher, with the connections it lost and its close in each of them."""
    found: dict[tuple[str, str, str], list[_Item]] = defaultdict(list)
    lost: list[tuple[int, str | None]] = []
    first_us: dict[str | None, int] = {}
    known_us: dict[str | None, int] = {}
    closed: list[_Item] = []
    latest = 0
    for order, line in enumerate(session.lines):
        latest = max(latest, line.t_us)
        before_us = known_us.get(line.consumer, first_us.setdefault(line.consumer, line.t_us))
        if line.disconnected_us is not None and line.disconnected_us > before_us:
            lost.append((min(line.disconnected_us, latest), line.consumer))
            known_us[line.consumer] = line.disconnected_us
        item = _Item(latest, number, order, line.kind, line.consumer, line)
        if line.kind == CLOSED:
            closed.append(item)
        elif line.topic is not None and line.subscription is not None:
            found[line.cluster, line.topic, line.subscription].append(item)
    if session.replaced_us is not None:
        closed.append(_Item(max(latest, session.replaced_us), number, _BEHIND, CLOSED, None, None))
    for own in found.values():
        members = {item.consumer for item in own}
        own += [item for item in closed if item.consumer is None or item.consumer in members]
        own += [
            _Item(t_us, number, _BEHIND - 1, _DISCONNECTED, consumer, None)
            for t_us, consumer in lost
            if consumer in members
        ]
    return found


class _Merge:
    """Makes the events of one dispatcher, item by item in their order."""

    def __init__(self, items: Sequence[_Item], sessions: Sequence[ClientSession]) -> None:
        self._sessions = sessions
        self._seq = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self._lines: dict[int, MergedLine] = {}
        self._connection: dict[tuple[int, str | None], int] = {}
        self._connections = 0
        self._keys: dict[Position, ClientLine] = {}
        self._size: dict[Position, int] = {}
        #: Messages of an entry that a connection has received since it was sent the entry, by batch index.
        self._received: dict[tuple[int, Position], set[int]] = {}
        self._acked: dict[Position, set[int]] = defaultdict(set)
        for item in items:
            if item.line is not None and item.line.ledger_id is not None:
                self._note(item.line)
        for item in items:
            self._take(item)

    def result(
        self,
        dispatcher: tuple[str, str, str],
        recording: str,
        about: Sequence[MergedSession],
        subscription_type: str | None,
    ) -> MergedClients:
        """Return the merged log."""
        cluster, topic, subscription = dispatcher
        header = {"format": CLIENT_FORMAT, "format_version": ".".join(map(str, FORMAT_VERSION))}
        if subscription_type is not None:
            header["subscription_type"] = subscription_type
        count = len(self._columns["seq"])
        columns = {name: pa.array(values, EVENTS.field(name).type) for name, values in self._columns.items()}
        identity = {"cluster": cluster, "topic": topic, "subscription": subscription, "incarnation": 0}
        columns |= {
            name: pa.repeat(pa.scalar(value, EVENTS.field(name).type), count)
            for name, value in identity.items()
        }
        events = pa.Table.from_batches([to_batch(columns, count, EVENTS)], EVENTS)
        log = DispatcherLog(
            recording, cluster, topic, subscription, None, 0, header, self._messages(cluster, topic), events
        )
        return MergedClients(log, about, self._lines, subscription_type is not None)

    def _messages(self, cluster: str, topic: str) -> pa.Table:
        positions = sorted(self._size)
        lines = [self._keys.get(position) for position in positions]
        columns = {
            "cluster": [cluster] * len(positions),
            "topic": [topic] * len(positions),
            "ledger_id": [ledger for ledger, _ in positions],
            "entry_id": [entry for _, entry in positions],
            "key": [line and line.key for line in lines],
            "key_b64": [line and line.key_b64 for line in lines],
            "ordering_key_b64": [line and line.ordering_key_b64 for line in lines],
            "num_messages": [self._size[position] for position in positions],
        }
        arrays = {name: pa.array(values, MESSAGES.field(name).type) for name, values in columns.items()}
        return pa.Table.from_batches([to_batch(arrays, len(positions), MESSAGES)], MESSAGES)

    def _note(self, line: ClientLine) -> None:
        """Note key and number of messages of an entry."""
        position = _position(line)
        size = max(line.batch_size or 1, 1 + (line.batch_index or 0))
        self._size[position] = max(size, self._size.get(position, 1))
        if line.key is not None or line.ordering_key_b64 is not None:
            self._keys.setdefault(position, line)

    def _take(self, item: _Item) -> None:
        line = item.line
        if line is not None and line.lost:
            self._lose(item, line.lost)
        if item.kind == CLOSED:
            for member in [*self._connection]:
                if member[0] == item.session and item.consumer in (None, member[1]):
                    self._remove(item, member)
            return
        member = item.session, item.consumer
        if item.kind == _DISCONNECTED:
            if member in self._connection:
                self._remove(item, member)
                self._add(item, member)
            return
        assert line is not None
        if member not in self._connection:
            self._add(item, member)
        connection = self._connection[member]
        if line.ledger_id is None:
            self._event(item, "redeliver", connection)
            return
        position = _position(line)
        if item.kind == _RECEIVED:
            index = line.batch_index
            received = self._received.get((connection, position))
            if index is not None and received is not None and index not in received:
                received.add(index)
                return
            self._received[connection, position] = set() if index is None else {index}
            self._event(item, "sent", connection, [position], batch_sizes=[self._size[position]])
        elif item.kind == _NACKED:
            if line.batch_index is None:
                self._acked.pop(position, None)
            else:
                self._acked[position].discard(line.batch_index)
            self._event(item, "redeliver", connection, [position])
        elif item.kind == _ACKED and line.error is None:
            self._acknowledge(item, line, connection, position)

    def _acknowledge(self, item: _Item, line: ClientLine, connection: int, position: Position) -> None:
        if line.ack_type == "Cumulative":
            if line.batch_index is not None and line.batch_index + 1 < self._size[position]:
                position = position[0], position[1] - 1  # the entry itself stays
                if position[1] < 0:
                    return
                self._size.setdefault(position, 1)
            self._event(item, "ack", connection, [position], ack_type="Cumulative")
            return
        acked = self._acked[position]
        if line.batch_index is not None:
            acked.add(line.batch_index)
            if len(acked) < self._size[position]:
                return
        acked.clear()
        self._event(item, "ack", connection, [position], ack_type="Individual")

    def _add(self, item: _Item, member: tuple[int, str | None]) -> None:
        self._connections += 1
        self._connection[member] = self._connections
        self._event(item, "consumer_added", self._connections, name=member[1] or "")

    def _remove(self, item: _Item, member: tuple[int, str | None]) -> None:
        self._event(item, "consumer_removed", self._connection.pop(member))

    def _lose(self, item: _Item, lost: int) -> None:
        first = self._seq + 1
        self._event(item, "gap", None, gap_from_seq=first, gap_to_seq=first + lost - 1, gap_lines=lost)
        self._seq += lost - 1

    def _event(
        self,
        item: _Item,
        kind: str,
        connection: int | None,
        positions: Sequence[Position] | None = None,
        **values: Any,
    ) -> None:
        self._seq += 1
        line = item.line
        t_us = item.key_us if line is None else line.t_us
        source = self._sessions[item.session].source
        row: dict[str, Any] = {
            **values,
            "seq": self._seq,
            "t_us": t_us,
            "kind": kind,
            "consumer": connection,
            "positions": positions and [{"ledger_id": at[0], "entry_id": at[1]} for at in positions],
            "source_file": source,
            "source_line": line and line.line,
        }
        for name in _COLUMNS:
            self._columns[name].append(row.get(name))
        self._lines[self._seq] = MergedLine(
            item.session,
            kind,
            0 if connection is None else connection,
            positions[0] if positions else None,
            t_us,
            values.get("ack_type") == "Cumulative",
            0 if line is None else line.redelivery_count or 0,
            "" if line is None else f"{source}:{line.line}",
        )


_COLUMNS: Final = (
    *("seq", "t_us", "kind", "consumer", "name", "positions", "batch_sizes", "ack_type"),
    *("gap_from_seq", "gap_to_seq", "gap_lines", "source_file", "source_line"),
)


def _position(line: ClientLine) -> Position:
    assert line.ledger_id is not None
    assert line.entry_id is not None
    return line.ledger_id, line.entry_id
