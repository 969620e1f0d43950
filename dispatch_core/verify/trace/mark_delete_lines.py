"""Find when acknowledgements reach the cursor, by the lines that say that mark-delete has moved.

An acknowledgement reaches the cursor some time after the line of its pending ack, and before the next command of its
connection, which one thread takes in order. If it moves mark-delete, that thread writes a line ``mark_delete``; if not, it
writes none (PersistentSubscription.acknowledgeMessage). So the number of these lines says which of two acknowledgements came
first, and their place says when. The positions that the lines show are not looked at.

Mark-delete is at entry 3. Acks of entries 5 and 4 arrive, from consumers 2 and 1:

>>> ways = AcksOnTheirWay()
>>> ways.arrived(Arrival(connection=2, seq=10, entry=5, t_us=1_000))
>>> ways.arrived(Arrival(connection=1, seq=12, entry=4, t_us=1_010))
>>> ways.mark_delete(Applied(5))
3

Two ``mark_delete`` lines follow. Had entry 5 come first, it would have moved nothing, and there would be one line. So the
first line is that of entry 4, and entry 5 comes after it:

>>> ways.moved(Applied(5), 1_100, lambda: [MovedLine(t_us=1_200)])
>>> ways.mark_delete(Applied(5))
4
>>> ways.moved(Applied(5), 1_200, lambda: [])
>>> ways.mark_delete(Applied(5))
5

Where the numbers allow several orders, an ack of which no line shows that it was late has come before. A line without such
an ack is written by another thread: the broker stores mark-delete once a second or so.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

#: Number of ``mark_delete`` lines ahead that an order has to explain.
LINES_AHEAD: Final = 6
#: Number of lines of any kind within which they are looked for.
WITHIN: Final = 200
#: An ack has reached the cursor after this time, microseconds. The longest in the recordings is 3 ms.
LATEST_US: Final = 10_000
#: Number of states that are looked at for one line.
_MOST_STATES: Final = 400


class Arrival(NamedTuple):
    """A line ahead, or the present one: an acknowledgement of an entry, ``seq``, begins to have its effect."""

    connection: int
    seq: int
    entry: int
    t_us: int


class NextCommand(NamedTuple):
    """A line ahead: the next command of a connection."""

    connection: int


class MovedLine(NamedTuple):
    """A line ahead: mark-delete has moved."""

    t_us: int


Ahead = Arrival | NextCommand | MovedLine


class Applied(NamedTuple):
    """Mark-delete if all acknowledgements on their way had reached the cursor, and the entries acknowledged above it."""

    mark_delete: int
    above: Container[int] = frozenset()


class _Ack(NamedTuple):
    seq: int
    connection: int
    entries: tuple[int, ...]
    first: int  # the lowest of ``entries``
    t_us: int  # of the last one

    def with_entry(self, arrival: Arrival) -> _Ack:
        """Return it with one more of its entries."""
        entries = *self.entries, arrival.entry
        return self._replace(entries=entries, first=min(self.first, arrival.entry), t_us=arrival.t_us)


_first: Final = attrgetter("first")


def _ack(arrival: Arrival) -> _Ack:
    return _Ack(arrival.seq, arrival.connection, (arrival.entry,), arrival.entry, arrival.t_us)


class _State(NamedTuple):
    """Acks on their way, in the order of their lines.

    ``lines_due``: acks that have moved mark-delete by the next command of their connection, and had no line by then. The
    broker stores mark-delete once a second or so, and the thread that does writes the line.
    ``reached``: entries of acks ahead that have reached the cursor.
    """

    acks: tuple[_Ack, ...] = ()
    lines_due: int = 0
    reached: frozenset[int] = frozenset()

    def with_arrival(self, arrival: Arrival) -> _State:
        own = (arrival.seq, arrival.connection)
        same = next((ack for ack in self.acks if (ack.seq, ack.connection) == own), None)
        if same is None:
            return _State((*self.acks, _ack(arrival)), self.lines_due, self.reached)
        acks = tuple(ack for ack in self.acks if ack is not same)
        return _State((*acks, same.with_entry(arrival)), self.lines_due, self.reached)

    def without(self, ack: _Ack, lines_due: int | None = None) -> _State:
        acks = tuple([other for other in self.acks if other is not ack])
        lines = self.lines_due if lines_due is None else lines_due
        return _State(acks, lines, self.reached.union(ack.entries))

    def mark_delete(self, applied: Applied) -> int:
        at = _in_front_of(self.acks, applied.mark_delete)
        if at == applied.mark_delete and self.reached:
            while at + 1 in self.reached or at + 1 in applied.above:
                at += 1
        return at

    def mover(self, applied: Applied) -> _Ack | None:
        """Return the ack that would move mark-delete now."""
        following = self.mark_delete(applied) + 1
        return next((ack for ack in self.acks if following in ack.entries), None)

    def over(self, applied: Applied, acks: Iterable[_Ack]) -> _State:
        """Return the state in which acks have reached the cursor, as far as known without a line."""
        state = self
        for ack in acks:
            moves = state.mark_delete(applied) + 1 in ack.entries and state.mover(applied) is ack
            state = state.without(ack, lines_due=state.lines_due + moves)
        return state

    def of(self, connection: int) -> list[_Ack]:
        return [ack for ack in self.acks if ack.connection == connection]

    def as_of(self, applied: Applied, t_us: int) -> _State:
        """Return the state at a time."""
        return self.over(applied, [ack for ack in self.acks if ack.t_us + LATEST_US < t_us])

    def moves(self, applied: Applied) -> Iterator[_State]:
        """Yield the states that one ``mark_delete`` line may leave; those in which more acks have come before first."""
        mover = self.mover(applied)
        if mover is not None:
            chain = [self.without(mover)]
            while (following := chain[-1].mover(applied)) is not None:
                chain.append(chain[-1].without(following))
            yield from reversed(chain)
        if self.lines_due:
            yield _State(self.acks, self.lines_due - 1, self.reached)


class AcksOnTheirWay:
    """Acknowledgements whose effect has begun, and that no line shows to have reached the cursor."""

    def __init__(self) -> None:
        self._acks: dict[
            tuple[int, int], _Ack
        ] = {}  # connection and seq → ack, in the order of their last entries
        self._of: dict[int, list[_Ack]] = {}  # those of a connection, in the same order
        self._lines_due = 0  # see ``_State``

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self._acks)

    def arrived(self, arrival: Arrival) -> None:
        """Take the effect on one pending ack of an acknowledgement."""
        own = arrival.connection, arrival.seq
        same = self._acks.pop(own, None)
        of_connection = self._of.setdefault(arrival.connection, [])
        if same is not None:
            of_connection.remove(same)
        ack = self._acks[own] = _ack(arrival) if same is None else same.with_entry(arrival)
        of_connection.append(ack)

    def any_of(self, connection: int) -> bool:
        """Check for acknowledgements of a connection."""
        return connection in self._of

    def over(self, connection: int, applied: Applied) -> None:
        """Take the next command of a connection, or its end: its acknowledgements have reached the cursor."""
        acks = self._of.pop(connection, [])
        for ack in acks:
            if ack.first <= applied.mark_delete + 1:  # it may have moved mark-delete
                self._take(self._state().over(applied, acks))
                return
        for ack in acks:
            del self._acks[connection, ack.seq]

    def any_from_before(self, t_us: int) -> bool:
        """Check for acknowledgements from so long before a time that they have reached the cursor."""
        return bool(self._acks) and next(iter(self._acks.values())).t_us + LATEST_US < t_us

    def as_of(self, applied: Applied, t_us: int) -> None:
        """Take the time: acknowledgements from long before have reached the cursor."""
        self._take(self._state().as_of(applied, t_us))

    def moved(self, applied: Applied, t_us: int, following: Callable[[], Sequence[Ahead]]) -> None:
        """Take a line ``mark_delete``; ``following``: gives the lines behind it, in order, if they matter."""
        state = self._state().as_of(applied, t_us)
        options = list(state.moves(applied)) or [state]
        if len(options) == 1:
            self._take(options[0])
        else:
            ahead, left = following(), [_MOST_STATES]
            costs = [_unexplained(option, applied, ahead, left) for option in options]
            self._take(options[costs.index(min(costs))])

    def take_back(self, acks: Iterable[_Ack], mark_delete: int) -> None:
        """Take acknowledgements to be still on their way that would have moved mark-delete beyond where a line shows it."""
        gone = (ack for ack in acks if (ack.connection, ack.seq) not in self._acks)
        again = _of_entries((ack, [entry for entry in ack.entries if entry > mark_delete]) for ack in gone)
        self._take(_State((*again, *self._acks.values()), self._lines_due))

    def acks(self) -> list[_Ack]:
        """Return the acknowledgements on their way, in the order of their lines."""
        return list(self._acks.values())

    def mark_delete(self, applied: Applied) -> int:
        """Return mark-delete with the acknowledgements that have reached the cursor."""
        return _in_front_of(self._acks.values(), applied.mark_delete)

    def seq_of(self, entry: int) -> int | None:
        """Return the line of the acknowledgement on its way of an entry; ``None`` if there is none."""
        return next((ack.seq for ack in self._acks.values() if entry in ack.entries), None)

    def entry_behind(self, entry: int) -> int | None:
        """Return the next entry of the acknowledgement on its way of an entry; ``None`` if there is none."""
        acks = (ack.entries for ack in self._acks.values() if entry in ack.entries)
        return min((other for other in next(acks, ()) if other > entry), default=None)

    def forget(self) -> None:
        """Forget all of them: the cursor is moved by something else."""
        self._take(_State())

    def drop(self, count: int) -> None:
        """Lower the ordinals of acknowledged entries; the first ``count`` entries are dropped."""
        acks = _of_entries(
            (ack, [entry - count for entry in ack.entries if entry >= count]) for ack in self._acks.values()
        )
        self._take(_State(acks, self._lines_due))

    def _state(self) -> _State:
        return _State(tuple(self._acks.values()), self._lines_due)

    def _take(self, state: _State) -> None:
        self._acks = {(ack.connection, ack.seq): ack for ack in state.acks}
        self._of = {}
        for ack in state.acks:
            self._of.setdefault(ack.connection, []).append(ack)
        self._lines_due = state.lines_due


def _of_entries(acks: Iterable[tuple[_Ack, Sequence[int]]]) -> tuple[_Ack, ...]:
    """Return acks with other entries, without those that have none."""
    return tuple(ack._replace(entries=tuple(entries), first=min(entries)) for ack, entries in acks if entries)


def _in_front_of(acks: Iterable[_Ack], mark_delete: int) -> int:
    """Return mark-delete without acks that are on their way."""
    return min(mark_delete, min(map(_first, acks), default=mark_delete + 1) - 1)


def _unexplained(state: _State, applied: Applied, following: Sequence[Ahead], left: list[int]) -> int:
    """Return how many lines ahead have no ack that moved mark-delete, or acks no line, in the best order from a state."""
    found = 0
    for at, ahead in enumerate(following):
        if isinstance(ahead, Arrival):
            state = state.with_arrival(ahead)
            continue
        before = state.lines_due
        if isinstance(ahead, NextCommand):
            state = state.over(applied, state.of(ahead.connection))
        else:
            state = state.as_of(applied, ahead.t_us)
        found += state.lines_due - before
        if isinstance(ahead, MovedLine):
            options = list(state.moves(applied))
            left[0] -= len(options)
            if not options:
                found += 1
            elif len(options) == 1 or left[0] <= 0:
                state = options[0]
            else:
                rest = following[at + 1 :]
                return found + min(_unexplained(option, applied, rest, left) for option in options)
    return found
