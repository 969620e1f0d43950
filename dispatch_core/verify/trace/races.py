"""Search the orders that a trace leaves open between effects of I/O threads and decisions of the dispatcher.

The dispatcher decides under its lock; clients' flows and acks are applied by I/O threads without it. A trace shows when
such a command *arrived* and when its *effect* was logged; a decision in between may have seen it or not. The driver takes
the order of the lines first (the *plain* order). Only where that gives another answer than the recorded one, the orders
that the trace leaves open are tried, on copies of the state:

* a command that has arrived when the decision ends, and whose effect is not logged yet when it begins, may come before
  any *step* of the decision;
* what follows the logged removal of a pending ack on the same thread (the unacked counter, the cursor) may come later, as
  long as no later line of that connection shows that it is done;
* permits that an earlier window took for counted may not have been, until a line shows it: they are taken back;
* an ack that overlapped the very send that blocked its consumer on unacked messages may have come before it: whether the
  block is there shows only later, so it stays in question until it is cleared;
* whether the subscription is blocked on unacked messages may depend on such an order, too, and shows only later
  (``subscription_block``): an *open fact*, until a decision shows it or refutes it;
* a consumer that joined while a read was in flight may be held back by the position behind that read (``joins``): an open
  fact;
* a batch of which some indexes were acknowledged may have been written before or after the dispatcher lowered its total
  permits for it, or meanwhile (``permits.lower_total``): an open fact, too.

Commands of one connection keep their order. An order that gives the recorded answer in full is taken: the decisions in
which the plain order differs are *uncertain*, with the ``seq`` of the racing line; the state goes on from there, and what
follows is judged as ever. If no order does, they are divergent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from typing import Final, Generic, Protocol, TypeVar

from dispatch_core.verify.trace.limits_in_force import Limit
from dispatch_core.verify.trace.work_after_divergence import PER_COMMAND, PER_ORDER

A = TypeVar("A")

#: Number of orders that are tried for one decision before it is called divergent.
MAX_ORDERS: Final = 600

#: Pseudo connections, of what no client's connection brings: the first numbers of open facts, of breaks of connections, of
#: requests to come, of commands behind acks that come before sends, of unblocks to come and of removals for requests, which
#: count down from here ...
FACTS: Final = -(1 << 40)
BREAKS: Final = -(1 << 41)
REQUESTS: Final = -(1 << 42)
BEHIND_PLACED: Final = -(1 << 43)
UNBLOCKS: Final = -(1 << 45)
REMOVALS: Final = -(1 << 46)
#: ... and the numbers of the close of the dispatcher, of the timer that cancels a waiting read, of the cursor's reset and of
#: the change of a policy's limit of unacknowledged messages, and of a move of mark-delete behind a trim.
CLOSE: Final = -(1 << 44)
CANCEL: Final = CLOSE - 1
RESET: Final = CLOSE - 2
LIMIT: Final = CLOSE - 3
LATE_MOVE: Final = CLOSE - 4


@dataclass(slots=True)
class CountedTwice:
    """Messages of a batch that two acks of its indexes may count, both.

    ``under_way``: the connections of the two, as far as they have not gone on: until then no shown counter refutes it.
    """

    entry: int
    messages: int
    under_way: set[int]


@dataclass(slots=True, eq=False)
class Command:
    """A client's command, or the part of it that concerns one entry, from its arrival to its effect."""

    seq: int  # of the line that shows its arrival
    connection: int  # consumer number of the connection it came by
    what: str = ""  # for people: "flow of 10"; empty = "ack of 3:7", by ``entry``
    permits: int = 0  # flow
    entry: int = -1  # ack, move of the cursor (its target)
    words: tuple[int, ...] = ()  # of an ack of batch indexes: those that stay unacknowledged
    unblocks: int | None = None  # a consumer whose block would not be there, had an earlier ack come first
    blocks_again: int | None = None  # a consumer that an ack unblocks, whose thread has not come so far
    uncounts: Command | None = None  # a flow that an earlier window took for counted, and that is still open
    held_from: int | None = None  # an open fact: the connection's consumer joined at this read position
    total_by: int = 0  # an open fact: the dispatcher's total permits differ by so many
    total_parts: tuple[int, ...] = ()  # or by one of these
    limit_ended: bool = (
        False  # an open fact: a policy's limit had ended before an ack of the consumer, which unblocked it
    )
    subscription_blocked: bool | None = None  # an open fact: the subscription is blocked, or is not
    stay: tuple[int, ...] = ()  # an open fact: entries that a request for everything has not taken
    uncleared: int = 0  # an open fact: messages sent when a request for everything had cleared the counter
    counted_twice: CountedTwice | None = None  # an open fact about acks of batch indexes
    trims: bool = False  # an open fact: the trim of a move comes behind a send of what the move has passed
    requests: bool = False  # a redelivery request whose line is to come has begun
    removes: int | None = None  # an entry whose pending ack such a request removes
    step: int = 0  # of a late one: before which step of the window it takes effect in the plain order
    earliest: int = (
        0  # the first step of the window that it may come before: those in front were logged already
    )
    latest: int | None = (
        None  # of an ack: it comes before this step of the window at the latest, as lines prove
    )
    trims_to: int | None = None  # mark-delete is here when an attempt trims, and moves later
    closes: bool = False  # the dispatcher is closed
    cancels: bool = False  # a waiting read is cancelled
    limit: Limit | None = None  # a policy's limit of unacknowledged messages changes to this one
    resets_from: int | None = None  # a reset takes effect after the round; mark-delete was here before
    breaks: bool = False  # the connection breaks; its consumer is removed at line ``seq``
    inactive: bool = False  # of one that breaks: it is not active any more, either
    applied: bool = False  # before its own line, by an order that a decision proved
    result: object = None  # what applying it early gave, for the line that is to come

    @property
    def is_fact(self) -> bool:
        """True for an open fact, false for a command."""
        about_a_consumer = self.held_from is not None or self.limit_ended
        about_a_dispatcher = self.total_by != 0 or self.subscription_blocked is not None
        return about_a_consumer or about_a_dispatcher or self.about_a_counter

    @property
    def about_a_counter(self) -> bool:
        """True for an open fact that a shown counter of unacknowledged messages settles."""
        return bool(self.stay) or self.uncleared != 0 or self.counted_twice is not None or self.trims


@dataclass(slots=True)
class Connection:
    """Commands of one connection under way, in order. ``number``: connections are numbered as they first have one."""

    number: int = 0
    waiting: deque[Command] = field(default_factory=deque)  # arrived, effect not logged
    late: list[Command] = field(default_factory=list)  # effect logged, its later steps possibly still to come
    arrived: int = 0  # permits of its flows
    applied: int = 0  # permits that have reached the dispatcher

    def open(self) -> list[Command]:
        """Commands that have arrived and have had no effect yet."""
        return [command for command in self.waiting if not command.applied]


@dataclass(frozen=True, slots=True)
class Difference:
    """Decisions in which an answer and the trace part."""

    decision_class: str
    expected: str
    recorded: str
    decisions: int = 1
    seq: int = 0
    weight: int = 1  # how much differs; guides the search
    unlogged: Command | None = None  # what may explain it, and no line shows


class Shift(Enum):
    """Kind of deviation of a connection's commands from the plain order."""

    EARLY = "early"  # the first ``count`` waiting ones take effect before the step
    SOONER = "sooner"  # the first ``count`` late ones do, those whose own step is a later one
    LATER = (
        "later"  # none of the last ``count`` late ones does; a step beyond the last one = after the decision
    )


@dataclass(frozen=True, slots=True)
class Move:
    """One deviation from the plain order: so many commands of a connection before ``step``, or from ``step`` on."""

    connection: int
    shift: Shift
    count: int
    step: int

    @property
    def key(self) -> tuple[int, Shift]:
        """Return the key that one order has at most one move of."""
        return self.connection, self.shift


Moves = dict[tuple[int, Shift], Move]


class Stage(Protocol):
    """The driver's core as the search uses it: restore a state and apply commands."""

    def restore(self) -> None:
        """Restore the core as it was before the decision, late steps not applied."""

    def apply_early(self, command: Command) -> None:
        """Apply the whole effect of a command that has arrived."""

    def apply_late(self, command: Command) -> None:
        """Apply the later steps of a command whose effect was logged."""


@dataclass(slots=True)
class Outcome(Generic[A]):
    """The answer that holds, and the order that gave it."""

    answer: A
    plain: list[Difference]  # what differs in the plain order; empty = exact
    left: list[Difference] = field(
        default_factory=list
    )  # what differs in the order that holds, all of it by what no line shows
    explained: bool = True
    early: list[Command] = field(default_factory=list)  # applied before their own line
    late: list[Command] = field(default_factory=list)  # to be applied after the decision
    racing: Command | None = None
    refuted: list[Command] = field(
        default_factory=list
    )  # open facts with which the answer would be another one
    given_up: bool = (
        False  # there was no work left to try all orders: the differences may be explained or not
    )


def in_plain_order(answer: A, plain: list[Difference]) -> Outcome[A]:
    """Return the outcome of a decision of which no other order is open."""
    unlogged = _unlogged(plain)
    if unlogged is None:
        return Outcome(answer, plain, explained=False)
    return Outcome(answer, plain, plain, racing=min(unlogged, key=_seq, default=None))


def search(
    stage: Stage,
    waiting: dict[int, list[Command]],
    late: dict[int, list[Command]],
    steps: int,
    decide: Callable[[Callable[[int], None]], A],
    differences: Callable[[A], list[Difference]],
    take_work: Callable[[int], bool] = lambda _work: True,
) -> Outcome[A]:
    """Decide in the plain order; where that differs from the trace, find an open order that does not.

    If no order explains all differences, the one that leaves least of them holds, provided that something without a line may
    explain what is left (``Difference.unlogged``).

    ``decide(between)`` runs the core once from the restored state and calls ``between(step)`` before each of its steps
    0 … ``steps`` - 1. ``waiting`` and ``late`` hold the commands of each connection, in order; an open fact has a pseudo
    connection of its own. ``take_work(work)`` is told the work of each order, and returns False when none is left
    (``work_after_divergence``).
    """
    applied = 0  # commands, by the last run

    def run(moves: Moves) -> tuple[A, list[Difference]]:
        nonlocal applied
        applied = 0
        late_steps = list(_late_steps(late, moves))

        def between(step: int) -> None:
            nonlocal applied
            for command, at in late_steps:
                if at == step:
                    stage.apply_late(command)
                    applied += 1
            for move in moves.values():
                if move.shift is Shift.EARLY and move.step == step:
                    for command in waiting[move.connection][: move.count]:
                        stage.apply_early(command)
                        applied += 1

        stage.restore()
        answer = decide(between)
        return answer, differences(answer)

    other = {
        commands[0]: run({(connection, Shift.EARLY): Move(connection, Shift.EARLY, 1, 0)})[1]
        for connection, commands in waiting.items()
        if commands[0].is_fact
    }
    answer, plain = run({})
    if not plain:
        refuted = [fact for fact, differing in other.items() if differing]
        delayed = [command for command, at in _late_steps(late, {}) if at >= steps]
        return Outcome(answer, [], late=delayed, refuted=refuted)
    has_work = True

    def may_go_on() -> bool:
        nonlocal has_work
        has_work = take_work(PER_ORDER + PER_COMMAND * applied)
        return has_work

    found = _improve(run, plain, list(_moves(waiting, late, steps)), may_go_on)
    if found is None:
        answer, _ = run({})
        delayed = [command for command, at in _late_steps(late, {}) if at >= steps]
        return Outcome(answer, plain, explained=False, given_up=not has_work, late=delayed)
    moves, answer, left = found
    early = [
        command
        for move in moves.values()
        if move.shift is Shift.EARLY
        for command in waiting[move.connection][: move.count]
    ]
    delayed = [command for command, at in _late_steps(late, moves) if at >= steps]
    racing = [*(_furthest(move, waiting, late) for move in moves.values()), *(_unlogged(left) or ())]
    return Outcome(answer, plain, left, True, early, delayed, min(racing, key=_seq))


def _seq(command: Command) -> int:
    return command.seq


def _unlogged(differences: list[Difference]) -> list[Command] | None:
    """Return what explains the differences, and no line shows; None if it does not explain them all."""
    commands = [difference.unlogged for difference in differences if difference.unlogged is not None]
    return commands if len(commands) == len(differences) else None


def _furthest(move: Move, waiting: dict[int, list[Command]], late: dict[int, list[Command]]) -> Command:
    """Return the command of a move that is farthest from its place in the plain order."""
    if move.shift is Shift.EARLY:
        return waiting[move.connection][move.count - 1]
    return late[move.connection][move.count - 1 if move.shift is Shift.SOONER else -move.count]


def _late_steps(late: dict[int, list[Command]], moves: Moves) -> Iterator[tuple[Command, int]]:
    """Yield each late command with the step before which it takes effect; its own unless a move sets another."""
    for connection, commands in late.items():
        later, sooner = moves.get((connection, Shift.LATER)), moves.get((connection, Shift.SOONER))
        first = len(commands) - (later.count if later else 0)
        for at, command in enumerate(commands):
            step = command.step if later is None or at < first else max(command.step, later.step)
            if command.step and sooner is not None and at < sooner.count:
                step = min(step, sooner.step)
            yield command, step


def _earliest(commands: list[Command]) -> int:
    return max(command.earliest for command in commands)


def _moves(waiting: dict[int, list[Command]], late: dict[int, list[Command]], steps: int) -> Iterable[Move]:
    for connection, commands in waiting.items():
        for count in range(1, len(commands) + 1):
            stop = 1 if commands[0].is_fact else steps
            for step in range(_earliest(commands[:count]), stop):
                yield Move(connection, Shift.EARLY, count, step)
    for connection, commands in late.items():
        for count in range(1, len(commands) + 1):
            # The latest first: what may still come after this window stays open for the next one.
            proven = (command.latest for command in commands[-count:] if command.latest is not None)
            last = min(proven, default=steps)
            for step in range(last, commands[-count].step, -1):
                yield Move(connection, Shift.LATER, count, step)
            for step in range(_earliest(commands[:count]), commands[count - 1].step):
                yield Move(connection, Shift.SOONER, count, step)


def _improve(
    run: Callable[[Moves], tuple[A, list[Difference]]],
    plain: list[Difference],
    moves: list[Move],
    may_go_on: Callable[[], bool],
) -> tuple[Moves, A, list[Difference]] | None:
    """Add one move after the other, each time the one that leaves least to explain; pairs where single ones do not help.

    Returns the order that holds, its answer and what differs in it; None if there is no such order. ``may_go_on`` is called
    after each order that was tried.
    """
    chosen: Moves = {}
    left = plain
    tried = 0
    goes_on = True
    while goes_on:
        singles = [move for move in moves if chosen.get(move.key) != move]
        options = [
            {move.key: move} for move in (singles if len(singles) <= MAX_ORDERS else _in_turns(singles))
        ]
        step: tuple[Moves, list[Difference]] | None = None
        for option in (*options, *_pairs(moves)):
            if step is not None and len(option) > 1:
                break
            if tried >= MAX_ORDERS or not goes_on:
                step = None
                break
            tried += 1
            trial = {**chosen, **option}
            answer, found = run(trial)
            goes_on = may_go_on()
            if not found:
                return trial, answer, found
            if _weight(found) < _weight(step[1] if step else left):
                step = trial, found
        if step is None:
            break
        chosen, left = step
    if _unlogged(left) is None:
        return None
    return chosen, *run(chosen)


def _in_turns(moves: list[Move]) -> Iterator[Move]:
    """Yield moves of each connection in turn, so that none of many moves of one keeps those of others from being tried."""
    of_connection: dict[tuple[int, Shift], list[Move]] = {}
    for move in moves:
        of_connection.setdefault(move.key, []).append(move)
    for turn in zip_longest(*of_connection.values()):
        yield from (move for move in turn if move is not None)


def _pairs(moves: list[Move]) -> Iterator[Moves]:
    for at, move in enumerate(moves):
        for other in moves[at + 1 :]:
            if move.key != other.key:
                yield {move.key: move, other.key: other}


def _weight(differences: list[Difference]) -> int:
    return sum(difference.weight for difference in differences)
