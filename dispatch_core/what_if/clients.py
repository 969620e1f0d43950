"""The clients of a log as a simulation needs them: their connections, and their acts on each delivered entry.

A client does with an entry what the log shows, at the recorded time: it acknowledges it, in whole or in part, or requests
redelivery. It acknowledges as much as it did: at the time of an ack of an entry that it was not sent it takes another
(``simulation.answers.turn``). Where the log shows it idle, it does with an entry of another client what it did with the
entry that it was sent nearest to that time (``Deliveries``, found by simulating the recorded rules first). Permits arrive at
the recorded times, but not before the client has received the messages that they follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.errors import DispatchAuditError
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.dispatcher_run import Acts, Connecting, Delays, Pace
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.tables import Client
from dispatch_core.simulation.world import (
    BORROWED,
    COVERED,
    KEEPS,
    NEVER,
    PART,
    REFUSES,
    REQUEST,
    UP_TO,
    WHOLE,
)
from dispatch_core.what_if.connections import Join
from dispatch_core.what_if.recorded import Acks, RecordedLoad, Request

Ints = npt.NDArray[np.int64]

#: Entries that are passed to a dispatcher at once.
ENTRIES_AT_ONCE: Final = 1 << 18
_NO_ENTRY: Final = -1
#: Entries sent to a connection within this time came together.
TOGETHER_US: Final = 20_000


@dataclass(frozen=True, slots=True)
class StartUp:
    """A broker that has just started: everything takes ``factor`` times as long, a power of two.

    The factor halves every ``half_us`` microseconds until it is 1.
    """

    factor: int
    half_us: int


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Deliveries under the recorded rules, by time: columns of equal length.

    ``delays``, ``stored_us``, ``paces``: those of the simulated broker, see ``run.deliveries_of``. ``start_up``: the slow
    start with which ``paces`` begin, if any.
    """

    at_us: Ints
    consumer: Ints
    entry: Ints
    delays: Delays
    stored_us: Ints
    paces: tuple[Pace, ...] = ()
    start_up: StartUp | None = None

    def to(self, consumers: Sequence[int]) -> Deliveries:
        """Those to some connections."""
        known = np.isin(self.consumer, consumers)
        if known.all():
            return self
        columns = {name: getattr(self, name)[known] for name in ("at_us", "consumer", "entry")}
        return replace(self, **columns)


class RecordedClients:
    """The recorded clients, see ``simulation.dispatcher_run.Clients``."""

    def __init__(
        self,
        load: RecordedLoad,
        deliveries: Deliveries | None = None,
        connections: RecordedLoad | None = None,
    ) -> None:
        """``connections``: the load with other connections, permits and requests; the answers stay those of ``load``."""
        connections = connections or load
        self.latency_us = np.ones(1, np.int64)
        self.refuses = np.zeros(1, np.uint8)
        self.rejected: list[str] = []  # names of clients that the broker refused
        self._joins = {join.number: join for join in connections.joins}
        joins = {join.number: join for join in (*load.joins, *connections.joins)}
        self._who = clients_of(load, connections.joins)
        names = max(self._who.values()) + 1
        # what the answers of a connection are like: those of its own deliveries, or of all connections of its name
        self._like = {number: names + at for at, number in enumerate(joins)}
        self._like |= {join.number: self._like[join.like] for join in load.joins if join.like in self._like}
        self._until = {number: at_us for at_us, number in load.leaves}
        self._connected_until = {number: at_us for at_us, number in connections.leaves}
        self._connected = {
            join.number: (join.at_us, self._until.get(join.number, NEVER)) for join in load.joins
        }
        self._flows = _rows_by_consumer(connections.flows[1], connections.flows[0])
        self._requests: dict[int, list[tuple[int, int]]] = {}
        self._turns: dict[int, tuple[int, int]] = {}
        self._ahead = taken_ahead(load)
        self._foreseen = {} if deliveries is None else _messages_sent(load, deliveries)
        self.acts = self._acts(load, connections, names, deliveries)

    def connecting(self, change: Change, now_us: int) -> Connecting:
        """See ``Clients``."""
        join: Join = self._joins[change.number]
        rows, _ = self._flows
        first, end = rows.get(join.number, (0, 0))
        queue = int(self.acts.flow_permits[first]) if end > first else 0
        return Connecting(
            Client(join.name, join.consumer_id, join.ranges, join.priority_level, join.address),
            queue,
            who=self._who[join.number],
            like=self._like[join.number] if self._answers_itself(join.number) else self._who[join.number],
            until_us=self._connected_until.get(join.number, NEVER),
            flows=(first, end),
            turns=self._turns.get(join.number, (0, 0)),
            ahead=self._ahead.get(join.number, 0),
            foreseen=self._foreseen.get(join.number, 0) if self._foreseen else NEVER,
            requests=self._requests.get(join.number, ()),
        )

    def _answers_itself(self, number: int) -> bool:
        """True if the log shows how this connection answered some entry."""
        at = self._like[number]
        return int(self.acts.like_start[at]) < int(self.acts.like_start[at + 1])

    def left(self, change: Change) -> None:
        """See ``Clients``."""

    def refused(self, change: Change, error: DispatchAuditError) -> None:
        """Note a client that the simulated rules refuse, although the recorded broker accepted it."""
        self.rejected.append(self._joins[change.number].name)

    # --- the arrays ------------------------------------------------------------------------------------------

    def _acts(
        self, load: RecordedLoad, connections: RecordedLoad, names: int, deliveries: Deliveries | None
    ) -> Acts:
        acks = load.acks
        if deliveries is not None:
            deliveries = deliveries.to(list(self._who))
        requests = [request for request in connections.requests if request.consumer in self._who]
        asked = np.array(
            [
                (request.at_us, request.consumer, REFUSES, wanted)
                for request in requests
                for wanted in request.entries or ()
            ],
            np.int64,
        ).reshape(-1, 4)
        known = np.isin(acks.consumer, list(self._who))
        us, number, kind, entry = (
            np.concatenate([column[known], asked[:, at]])
            for at, column in enumerate((acks.at_us, acks.consumer, acks.kind, acks.entry))
        )
        covered = covered_by(us, number, kind, entry)
        last_part, ends = (
            np.concatenate([last_parts(acks, by)[known], np.zeros(len(asked) + len(covered[0]), bool)])
            for by in (None, acks.consumer)
        )
        us, number, kind, entry = (
            np.concatenate([column, covered[at]]) for at, column in enumerate((us, number, kind, entry))
        )
        ends |= np.isin(kind, (WHOLE, UP_TO, COVERED))
        acked = _first_acked(us, np.where(last_part, WHOLE, kind), entry, len(load.stored_us))
        kept, like, answer = self._likes(names, deliveries, (us[ends], number[ends], entry[ends]), acked)
        us, number, kind, entry = (
            np.concatenate([column, kept[:, at]]) for at, column in enumerate((us, number, kind, entry))
        )
        ends = np.concatenate([ends & np.isin(kind[: len(ends)], (WHOLE, PART)), np.zeros(len(kept), bool)])
        order = np.lexsort((np.arange(len(us)), us, entry))
        us, number, kind, entry, ends = us[order], number[order], kind[order], entry[order], ends[order]
        place = np.cumsum(known) - 1
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.arange(len(order))
        flow_order = self._flows[1]
        after = left_after(deliveries, answer)
        turns = self._turns_of((us, number, entry), np.flatnonzero(ends), deliveries, answer, after)
        nobody = np.zeros(len(requests), np.int64)
        return Acts(
            start=np.searchsorted(entry, np.arange(len(acked) + 1)).astype(np.int64),
            us=np.concatenate([us, np.array([request.at_us for request in requests], np.int64)]),
            sent_us=np.concatenate([_first_sent(deliveries, number, entry), nobody]),
            who=np.concatenate([self._names_of(number), nobody]),
            number=np.concatenate([number, nobody]),
            kind=np.concatenate([kind, np.full(len(requests), REQUEST, np.int64)]),
            entry=np.concatenate([entry, np.full(len(requests), _NO_ENTRY, np.int64)]),
            # With one active consumer a rewind redelivers entries that another connection holds and acknowledges; a
            # consumer without an answer of its own then does not answer.
            acked_us=np.full(len(acked), NEVER, np.int64) if load.is_single_active else acked,
            flow_us=connections.flows[0][flow_order],
            flow_permits=connections.flows[2][flow_order],
            like_start=like[0],
            like_us=like[1],
            like_answer_us=like[2],
            like_busy=after.busy.astype(np.uint8)[like[3]],
            turn_act=turns[0],
            turn_until_us=turns[1].until_us,
            turn_ends_us=turns[1].ends_us,
            requested=self._place_requests(requests, len(us), asked_for_all(requests, deliveries, answer)),
            words={int(row_of[place[row]]): words for row, words in acks.words.items() if known[row]},
        )

    def _names_of(self, numbers: Ints) -> Ints:
        """The number of each connection's name."""
        return np.array([self._who[number] for number in numbers.tolist()], np.int64)

    def _place_requests(
        self, requests: Sequence[Request], first: int, for_all: frozenset[int]
    ) -> dict[int, tuple[int, ...]]:
        requested = {}
        for at, request in enumerate(requests):
            self._requests.setdefault(request.consumer, []).append((request.at_us, first + at))
            if request.entries is not None and at not in for_all:
                requested[first + at] = request.entries
        return requested

    def _likes(
        self, names: int, deliveries: Deliveries | None, acts: tuple[Ints, Ints, Ints], acked: Ints
    ) -> tuple[Ints, tuple[Ints, Ints, Ints, Ints], Ints]:
        """Rows of entries that connections never answered, and deliveries with answers by name and connection.

        The latter: first rows, times of deliveries and answers, and the deliveries by number. Then the time of each
        delivery's answer, 0 = another answered it.
        """
        nothing = np.zeros(0, np.int64)
        if deliveries is None:
            starts = np.zeros(names + len(self._like) + 1, np.int64)
            return np.zeros((0, 4), np.int64), (starts, nothing, nothing, nothing), nothing
        until = np.array(
            [self._until.get(number, NEVER) for number in deliveries.consumer.tolist()], np.int64
        )
        answer = _answers(deliveries, until, acts)
        kept = np.stack(
            [until, deliveries.consumer, np.full(len(until), KEEPS, np.int64), deliveries.entry], axis=1
        )[answer == NEVER]
        # an unanswered entry that another connection acknowledged meanwhile shows nothing about this one
        tells = (answer != NEVER) | (acked[deliveries.entry] > until)
        answer, telling = np.where(tells, answer, 0), np.flatnonzero(tells)
        consumers = deliveries.consumer[telling]
        like = np.array([self._like[number] for number in consumers.tolist()], np.int64)
        like, telling = np.concatenate([self._names_of(consumers), like]), np.tile(telling, 2)
        order = np.lexsort((deliveries.at_us[telling], like))
        rows = telling[order]
        start = np.searchsorted(like[order], np.arange(names + len(self._like) + 1)).astype(np.int64)
        return kept, (start, deliveries.at_us[rows], answer[rows], rows), answer

    def _turns_of(
        self,
        acts: tuple[Ints, Ints, Ints],
        rows: Ints,
        deliveries: Deliveries | None,
        answer: Ints,
        after: LeftAfter,
    ) -> tuple[Ints, LeftAfter]:
        """Rows of acknowledgements of whole entries by connection and time, and what was left after each.

        Those of entries that the connection was not sent under the simulated recorded rules are left out.
        """
        if deliveries is None:
            return np.zeros(0, np.int64), after
        us, number, entry = acts
        rows = rows[np.lexsort((us[rows], number[rows]))]
        answered = _found_in(
            (number[rows], entry[rows], us[rows]), (deliveries.consumer, deliveries.entry, answer)
        )
        # who was sent an entry instead answers it as it was answered: one more ack for it would be one too many
        rows, answered = rows[answered >= 0], answered[answered >= 0]
        until_us, ends_us = after.until_us[answered], after.ends_us[answered]
        borrowed = borrowed_turns(number[rows], us[rows], deliveries, answer, self._connected)
        ends_us[_within(number[rows], us[rows], borrowed)] = 0
        after.busy[_within(deliveries.consumer, answer, borrowed)] = True
        taken = np.array([place for some in borrowed for place in some.places], np.int64)
        takers = np.array([some.connection for some in borrowed for _ in some.places], np.int64)
        number = np.concatenate([number[rows], takers])
        rows = np.concatenate([rows, rows[taken]])
        until_us = np.concatenate([until_us, np.full(len(taken), NEVER)])
        ends_us = np.concatenate([ends_us, np.full(len(taken), BORROWED)])
        order = np.lexsort((us[rows], number))
        number, rows = number[order], rows[order]
        numbers, first, counts = np.unique(number, return_index=True, return_counts=True)
        self._turns = {
            int(connection): (int(begin), int(begin + count))
            for connection, begin, count in zip(numbers, first, counts, strict=True)
        }
        return rows, LeftAfter(until_us[order], ends_us[order], np.zeros(len(rows), bool))


def clients_of(load: RecordedLoad, others: Iterable[Join] = ()) -> dict[int, int]:
    """Return the number of the client behind each connection.

    Connections of one name that follow each other are one client that connected again; those at the same time are several.
    Of ``others``, which the log does not have, each is like the connection that it names, or the first of its name.
    """
    until = {number: at_us for at_us, number in load.leaves}
    found: dict[int, int] = {}
    ends: dict[str, dict[int, int]] = {}  # by name: clients, and when they were connected last
    count = 0
    for join in sorted(load.joins, key=lambda join: join.at_us):
        named = ends.setdefault(join.name, {})
        client = next((client for client, end_us in named.items() if end_us <= join.at_us), count)
        count += client == count
        found[join.number] = client
        named[client] = until.get(join.number, NEVER)
    for join in others:
        if join.number not in found:
            client = found.get(join.like or 0, next(iter(ends.get(join.name, ())), count))
            count += client == count
            ends.setdefault(join.name, {}).setdefault(client, NEVER)
            found[join.number] = client
    return found


def taken_ahead(load: RecordedLoad) -> dict[int, int]:
    """Return how many messages each connection had taken from its queue and not acknowledged, at most.

    Its grants of permits show it: those after the first stand for messages that it has taken.
    """
    at_us, consumer, permits = load.flows
    found = {}
    for number in np.unique(consumer).tolist():
        grants = np.flatnonzero(consumer == number)
        grants = grants[np.argsort(at_us[grants], kind="stable")][1:]
        acked = np.flatnonzero(load.acks.consumer == number)
        acked = acked[np.argsort(load.acks.at_us[acked], kind="stable")]
        messages = np.append(0, np.cumsum(load.num_messages[load.acks.entry[acked]]))
        before = np.searchsorted(load.acks.at_us[acked], at_us[grants])
        ahead = np.cumsum(permits[grants]) - messages[before]
        found[number] = max(int(ahead.max(initial=0)), 0)
    return found


@dataclass(frozen=True, slots=True)
class LeftAfter:
    """The entries that a connection had left to answer after each answer.

    ``ends_us``: all that it was sent before this time was answered by then, and it answered no more for a while; 0 =
    something was left. ``until_us``: the same if what was answered shortly afterwards counts, and ``NEVER`` instead of 0.
    ``busy``: of what it had received together with the entry or later something was left.
    """

    until_us: Ints
    ends_us: Ints
    busy: npt.NDArray[np.bool_]


def left_after(deliveries: Deliveries | None, answer: Ints) -> LeftAfter:
    """Find out what each connection had left to answer after each answer.

    A client that answers half of what came together has no time for the other half. One that answers all that came together,
    and nothing of what came later, had not taken the latter from its queue.
    """
    until_us, ends_us = np.zeros(len(answer), np.int64), np.zeros(len(answer), np.int64)
    busy = np.zeros(len(answer), bool)
    if deliveries is None:
        return LeftAfter(until_us, ends_us, busy)
    order = np.lexsort((deliveries.entry, deliveries.at_us, deliveries.consumer))
    consumer, at_us, until = deliveries.consumer[order], deliveries.at_us[order], answer[order]
    for number in np.unique(consumer).tolist():
        first, end = np.searchsorted(consumer, [number, number + 1])
        sent, done, rows = at_us[first:end], until[first:end], order[first:end]
        received_us = done - 2 * deliveries.delays.network_us
        together = np.searchsorted(sent, np.minimum(received_us, sent + TOGETHER_US), side="right")
        received = np.searchsorted(sent, received_us, side="right")
        latest = np.append(0, np.maximum.accumulate(done))  # answer of the entries sent first
        times = np.append(np.sort(done), NEVER)
        following = times[np.searchsorted(times, done, side="right").clip(max=len(done))]
        goes_on = following <= done + TOGETHER_US
        busy[rows] = _highest_between(done, np.arange(1, len(done) + 1), received) > done
        for column, late_us, left in ((until_us, TOGETHER_US, NEVER), (ends_us, 0, 0)):
            some = np.where(latest[received] > done + late_us, sent + TOGETHER_US, NEVER)
            column[rows] = np.where((latest[together] > done + late_us) | goes_on, left, some)
    return LeftAfter(until_us, ends_us, busy)


def _messages_sent(load: RecordedLoad, deliveries: Deliveries) -> dict[int, int]:
    """Count the messages that were sent to each connection."""
    numbers, place = np.unique(deliveries.consumer, return_inverse=True)
    counts = np.zeros(len(numbers), np.int64)
    np.add.at(counts, place, load.num_messages[deliveries.entry])
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Borrowed:
    """The turns that a connection would have taken as another did, if it had had more to answer.

    ``places``: those of the acknowledgements whose turns they are. ``first_us``, ``last_us``: the first and the last time of
    all acknowledgements that were looked at together with them.
    """

    connection: int
    places: Sequence[int]
    first_us: int
    last_us: int


def borrowed_turns(
    number: Ints, us: Ints, deliveries: Deliveries, answer: Ints, connected: Mapping[int, tuple[int, int]]
) -> list[Borrowed]:
    """Find the turns that connections would have taken as others did, by connection and time.

    Acknowledgements of all clients that follow each other within ``TOGETHER_US`` are looked at together. A connection that
    had nothing left behind them may have answered no more entries than another, which had some left, for no other reason: it
    borrows the last turns of that one, as many as it had fewer, behind its own acknowledgements: those used up what it had.

    Args:
        number: the connection of each acknowledgement.
        us: its time.
        deliveries: those under the recorded rules.
        answer: the time of each delivery's answer.
        connected: from when until when each connection was there.
    """
    if not len(us):
        return []
    order = np.argsort(us, kind="stable")
    group = np.empty(len(us), np.int64)
    group[order] = np.cumsum(np.diff(us[order], prepend=us[order[0]]) > TOGETHER_US)
    count = int(group.max()) + 1
    first_us, last_us = np.full(count, NEVER), np.zeros(count, np.int64)
    np.minimum.at(first_us, group, us)
    np.maximum.at(last_us, group, us)
    most, busiest = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for connection in connected:
        some_left = _some_left(deliveries, answer, connection, last_us)
        more = some_left & (_acks_of(connection, number, group, count) > most)
        most[more] = _acks_of(connection, number, group, count)[more]
        busiest[more] = connection
    places = {connection: np.flatnonzero(number == connection) for connection in connected}
    places = {connection: some[np.argsort(us[some], kind="stable")] for connection, some in places.items()}
    found = []
    for connection, (from_us, to_us) in connected.items():
        fewer = most - _acks_of(connection, number, group, count)
        borrows = (most > 0) & (fewer >= 0) & (from_us <= first_us) & (last_us <= to_us)
        borrows &= ~_some_left(deliveries, answer, connection, last_us)
        for at in np.flatnonzero(borrows).tolist():
            of_busiest, own = places[int(busiest[at])], places[connection]
            end = int(np.searchsorted(group[of_busiest], at, side="right"))
            turns = of_busiest[end - fewer[at] : end].tolist()
            before = int(np.searchsorted(group[own], at, side="right"))
            if before and group[own[before - 1]] == at:
                last = int(own[before - 1])
                turns = [turn if us[turn] > us[last] else last for turn in turns]
            found.append(Borrowed(connection, turns, int(first_us[at]), int(last_us[at])))
    return found


def _acks_of(connection: int, number: Ints, group: Ints, count: int) -> Ints:
    """Count the acknowledgements of a connection in each group."""
    return np.bincount(group[number == connection], minlength=count).astype(np.int64)


def _within(connection: Ints, us: Ints, borrowed: Sequence[Borrowed]) -> npt.NDArray[np.bool_]:
    """Mark the times at which connections took turns that were looked at for borrowing."""
    marks = np.zeros(len(us), bool)
    for number in dict.fromkeys(some.connection for some in borrowed):
        spans = [(some.first_us, some.last_us) for some in borrowed if some.connection == number]
        first_us, last_us = np.array(spans, np.int64).T
        rows = np.flatnonzero(connection == number)
        at = np.searchsorted(first_us, us[rows], side="right") - 1
        marks[rows] = (at >= 0) & (us[rows] <= last_us[at])
    return marks


def _some_left(deliveries: Deliveries, answer: Ints, connection: int, at_us: Ints) -> npt.NDArray[np.bool_]:
    """Mark the times by which a connection had received something that it had not answered."""
    rows = np.flatnonzero(deliveries.consumer == connection)
    rows = rows[np.argsort(deliveries.at_us[rows], kind="stable")]
    received = np.searchsorted(deliveries.at_us[rows], at_us - 2 * deliveries.delays.network_us, side="right")
    left: npt.NDArray[np.bool_] = np.append(0, np.maximum.accumulate(answer[rows]))[received] > at_us
    return left


def asked_for_all(requests: Sequence[Request], deliveries: Deliveries | None, answer: Ints) -> frozenset[int]:
    """Find the requests that name two entries or more, and all that their consumer has: they ask for everything.

    Source: Consumer.redeliverUnacknowledgedMessages, which passes everything to the dispatcher by name.
    """
    several = {request.consumer for request in requests if len(request.entries or ()) > 1}
    if deliveries is None or not several:
        return frozenset()
    found = []
    for consumer in several:
        rows = np.flatnonzero(deliveries.consumer == consumer)
        entries = deliveries.entry[rows].tolist()
        steps = [
            (at_us, 0, entry) for at_us, entry in zip(deliveries.at_us[rows].tolist(), entries, strict=True)
        ]
        steps += [(at_us, 1, entry) for at_us, entry in zip(answer[rows].tolist(), entries, strict=True)]
        steps += [
            (request.at_us, 2, at)
            for at, request in enumerate(requests)
            if request.consumer == consumer and request.entries
        ]
        has: set[int] = set()
        for _, kind, what in sorted(steps):
            if kind == 0:
                has.add(what)
            elif kind == 1:
                has.discard(what)
            else:
                named = set(requests[what].entries or ())
                if len(named) > 1 and has <= named:
                    found.append(what)
                has -= named
    return frozenset(found)


def _highest_between(values: Ints, begin: Ints, end: Ints) -> Ints:
    """The highest of ``values[begin:end]`` of each pair, 0 for an empty one: a table of powers of two."""
    table, width = [values], 1
    while 2 * width <= len(values):
        last = table[-1]
        table.append(np.maximum(last[:-width], last[width:]))
        width *= 2
    found = np.zeros(len(begin), np.int64)
    length = end - begin
    for power, highest in enumerate(table):
        rows = np.flatnonzero((length >= 1 << power) & (length < 2 << power))
        found[rows] = np.maximum(highest[begin[rows]], highest[end[rows] - (1 << power)])
    return found


def _answers(deliveries: Deliveries, until: Ints, acts: tuple[Ints, Ints, Ints]) -> Ints:
    """The time at which each delivery was answered by its connection; NEVER = not while the connection lasted."""
    us, number, entry = acts
    order = np.lexsort((us, entry, number))
    _, ids = np.unique(np.concatenate([number, deliveries.consumer]), return_inverse=True)
    most = int(max(entry.max(initial=0), deliveries.entry.max(initial=0))) + 1
    pair = (ids[: len(number)] * most + entry)[order]
    wanted = ids[len(number) :] * most + deliveries.entry
    times = us[order]
    # rows of one pair are consecutive and sorted by time: skip those before the delivery
    answer = np.full(len(wanted), NEVER, np.int64)
    at, end = np.searchsorted(pair, wanted), np.searchsorted(pair, wanted, side="right")
    while (at < end).any():
        open_ = np.flatnonzero(at < end)
        late = times[at[open_]] < deliveries.at_us[open_]
        found = open_[~late]
        inside = times[at[found]] <= until[found]
        answer[found[inside]] = times[at[found[inside]]]
        at[found] = end[found]
        at[open_[late]] += 1
    return answer


def last_parts(acks: Acks, by: Ints | None) -> npt.NDArray[np.bool_]:
    """Mark the acks of single messages of a batch behind which none of the entry is left.

    ``by``: the connection of each ack, if each has to acknowledge all of them itself; ``None`` = all connections together.
    """
    marks = np.zeros(len(acks.entry), bool)
    left: dict[tuple[int, int], tuple[int, ...]] = {}
    for row in sorted(acks.words, key=lambda row: int(acks.at_us[row])):
        if acks.kind[row] != PART:
            continue
        key = (int(acks.entry[row]), 0 if by is None else int(by[row]))
        words = acks.words[row]
        before = left.get(key, words)
        left[key] = tuple(word & other for word, other in zip(words, before, strict=False))
        marks[row] = not any(left[key])
    return marks


def _found_in(wanted: tuple[Ints, Ints, Ints], columns: tuple[Ints, Ints, Ints]) -> Ints:
    """The row of ``columns`` that equals each row of ``wanted``, -1 = none does."""
    count = len(columns[0])
    ids = np.zeros(count + len(wanted[0]), np.int64)
    for column, other in zip(columns, wanted, strict=True):
        _, numbers = np.unique(np.concatenate([column, other]), return_inverse=True)
        _, ids = np.unique(ids * (int(numbers.max(initial=0)) + 1) + numbers, return_inverse=True)
    row = np.full(int(ids.max(initial=0)) + 1, -1, np.int64)
    row[ids[:count]] = np.arange(count)
    found: Ints = row[ids[count:]]
    return found


def _first_sent(deliveries: Deliveries | None, number: Ints, entry: Ints) -> Ints:
    """The time at which each connection was first sent each entry; 0 = never, or not known."""
    if deliveries is None:
        return np.zeros(len(number), np.int64)
    numbers = np.concatenate([deliveries.consumer, number])
    entries = np.concatenate([deliveries.entry, entry])
    times = np.concatenate([deliveries.at_us, np.full(len(number), NEVER)])
    order = np.lexsort((times, entries, numbers))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(numbers[order]) != 0) | (np.diff(entries[order]) != 0)
    head = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    first = np.empty(len(order), np.int64)
    first[order] = times[order][head]
    first[first == NEVER] = 0
    return first[len(deliveries.at_us) :]


def covered_by(us: Ints, number: Ints, kind: Ints, entry: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """A row for each entry that a cumulative ack covers, except its own and those of earlier cumulative acks."""
    rows = np.flatnonzero(kind == UP_TO)
    rows = rows[np.argsort(us[rows], kind="stable")]
    reached = np.concatenate([[-1], np.maximum.accumulate(entry[rows])])[:-1]
    counts = np.maximum(entry[rows] - reached - 1, 0)
    row = np.repeat(rows, counts)
    first = np.repeat(reached + 1 - (np.cumsum(counts) - counts), counts)
    covered = first + np.arange(len(row))
    return us[row], number[row], np.full(len(row), COVERED, np.int64), covered.astype(np.int64)


def _first_acked(us: Ints, kind: Ints, entry: Ints, count: int) -> Ints:
    """The time of each entry's first acknowledgement by any consumer; a cumulative ack covers all entries before it."""
    acked, up_to = (np.full(count, NEVER, np.int64) for _ in range(2))
    for wanted, into in ((WHOLE, acked), (UP_TO, up_to)):
        rows = kind == wanted
        np.minimum.at(into, entry[rows], us[rows])
    first: Ints = np.minimum(acked, np.minimum.accumulate(up_to[::-1])[::-1])
    return first


def _rows_by_consumer(consumer: Ints, at_us: Ints) -> tuple[dict[int, tuple[int, int]], Ints]:
    """Rows of each consumer when sorted by it and time, and that order."""
    order = np.lexsort((at_us, consumer))
    numbers, first, counts = np.unique(consumer[order], return_index=True, return_counts=True)
    rows = {
        int(number): (int(begin), int(begin + count))
        for number, begin, count in zip(numbers, first, counts, strict=True)
    }
    return rows, order


def changes_of(load: RecordedLoad) -> list[Change]:
    """Joins and leaves by time, at equal times in the order of the log."""
    changes = [Change(join.at_us, True, join.number, number=join.number) for join in load.joins]
    changes += [Change(at_us, False, number) for at_us, number in load.leaves]
    return sorted(changes, key=lambda change: change.at_us)


class RecordedPublishing:
    """The message log as the storage of a simulated dispatcher."""

    def __init__(self, load: RecordedLoad, stored_us: Ints, *, fallback: bool) -> None:
        self._load = load
        self._stored_us = stored_us
        self._h31 = load.h31[fallback]
        self._done = 0

    @property
    def left(self) -> int:
        """The number of entries not taken yet."""
        return len(self._h31) - self._done

    def take(self) -> Published:
        """The next entries, none at the end."""
        first, load = self._done, self._load
        some = slice(first, first + ENTRIES_AT_ONCE)
        self._done = min(first + ENTRIES_AT_ONCE, len(self._h31))
        return Published(
            first=first,
            key=np.zeros(0, np.int32),
            h31=self._h31[some],
            publish_us=self._stored_us[some].copy(),
            size_bytes=load.size_bytes[some],
            num_messages=load.num_messages[some],
        )
