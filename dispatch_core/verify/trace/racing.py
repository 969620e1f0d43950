"""Base of drivers that decide in windows, so that commands racing with a decision can be placed (see ``races``).

A *window* is one critical section of the dispatcher: a read attempt, a round, a membership change, with all lines that
it wrote. The window is decided as a whole when its first line is reached, and compared with its lines; flows and acks
that overlap it are tried in the orders the trace leaves open. Its end is searched for in the next ``HORIZON`` lines.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, pairwise, takewhile
from typing import ClassVar, Final, TypeVar

from dispatch_core.broker import state as st_
from dispatch_core.broker.multiple_consumers import (
    Between,
    MultipleConsumersDispatcher,
    Released,
)
from dispatch_core.broker.state import State
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.verify.inputs import Entries, Line, shown_consumers
from dispatch_core.verify.tally import Finding, Tally, cut_off
from dispatch_core.verify.trace.cursor_operations import CursorDriver
from dispatch_core.verify.trace.driver import NEVER, acknowledged_by, who
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.limits_in_force import Limit
from dispatch_core.verify.trace.races import (
    BEHIND_PLACED,
    CLOSE,
    FACTS,
    LIMIT,
    Command,
    Connection,
    Difference,
    Outcome,
    in_plain_order,
    search,
)

A = TypeVar("A")

#: Pseudo connection of what moves the cursor without an ack.
_CURSOR: Final = -1
#: Pseudo connections of flows to take back count down in twos from here; those of contested blocks lie in between.
_COUNTED: Final = -3

#: Kinds that the dispatcher writes under its lock: a membership change is over when one of them stands.
NEXT_SECTION = frozenset(
    {
        "consumer_added",
        "consumer_removing",
        "consumer_removed",
        "selector_added",
        "selector_refused",
        "selector_removed",
        "flow_applied",
        "read_attempt",
        "read_issued",
        "replay_read_issued",
        "round_begin",
        "redeliver",
        "rewind",
        "end",
    }
)


#: Kinds of which one follows a rewind, in the section that rewinds.
_AFTER_A_REWIND: Final = NEXT_SECTION | {"read_attempt_end", "round_end"}


class CursorStep(Enum):
    """A step of a move of the cursor forward."""

    MOVE = "mark-delete moves"
    TRIM = "replay set and pending acks are trimmed"


@dataclass(slots=True)
class Effects:
    """Side effects of the present order of a window; forgotten when another order is tried."""

    results: list[tuple[Command, object]] = field(default_factory=list)
    trimmed: list[Released] = field(default_factory=list)  # by trims after a move of the cursor
    lowered: dict[int, int] = field(
        default_factory=dict
    )  # consumer → messages by which the last trim lowered its counter


@dataclass(slots=True)
class Window:
    """One critical section of the trace, from the present line to the line with index ``end``.

    ``closed``: its end is in the log. A log that ends inside a window says nothing about the rest of it. ``membership``:
    it is a membership change.
    """

    begun: Line
    end: int
    closed: bool = True
    membership: bool = False
    counts: dict[str, int] = field(default_factory=dict)  # decisions per class
    differing: list[Difference] = field(default_factory=list)
    racing: Command | None = None
    unjudged: dict[str, int] = field(default_factory=dict)  # decisions per class, of ``counts``
    reason: str = ""  # why they are not judged

    def leave_unjudged(self, decision_class: str, decisions: int, reason: str) -> None:
        """Leave decisions of the window unjudged."""
        self.unjudged[decision_class] = self.unjudged.get(decision_class, 0) + decisions
        self.reason = reason

    def count(self, decision_class: str, decisions: int = 1) -> None:
        """Add decisions of a class to the window."""
        self.counts[decision_class] = self.counts.get(decision_class, 0) + decisions


class RacingDriver(CursorDriver):
    """Commands under way, and windows. A subclass applies acks, early and late, and decides the windows."""

    core: MultipleConsumersDispatcher
    #: The trace has a line for the moment at which an ack takes effect.
    acks_are_logged: ClassVar[bool] = True
    #: Before which step of a round comes, in the plain order, what arrives before the line of the send to that consumer.
    send_step: ClassVar[int] = 1
    #: Steps of a round for each of its sends, whose consumers are chosen right before them; 0 = sends are no steps.
    steps_of_send: ClassVar[int] = 0

    def __init__(self, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(entries)
        self._open: list[Window] = []  # decided, not counted: their last line is to come
        self._connections: dict[int, Connection] = {}
        self._live: dict[int, Connection] = {}  # those of them that may have commands
        self._peeked: dict[tuple[int, int], Command] = {}  # (seq, entry): arrives within a window
        self._effects = Effects()
        self._closing: Command | None = None  # the dispatcher is closed within the present window
        self._sent_at: dict[int, int] = {}  # consumer → seq of its send in the present window
        # Consumer and entry of pending acks that go in the present window before a send, as its lines prove → before which
        # step.
        self._gone_first: dict[tuple[int, int], int] = {}
        self._window_end = 0  # index of the last line of the present window
        self._permits_at_end: dict[
            int, int
        ] = {}  # consumer → permits that the end of the present attempt shows
        self._placed: list[Command] = []  # that arrive in the present window, with a place in the plain order
        # Consumer → flows that a window took for counted, and that no line shows to be.
        self._taken: dict[int, list[Command]] = {}
        self._facts: list[Command] = []  # open facts, see ``races``
        self._counting_logged = facts.counting_logged

    def _count_due(self) -> None:
        """See ``Driver``: windows that have ended by the present line."""
        while self._open and self._open[0].closed and self._open[0].end <= self._at:
            self._count_window(self._open.pop(0))
        self._counted_behind = self._open[0].end if self._open and self._open[0].closed else NEVER

    def _take_early(self, at: int) -> None:
        """Take a line that is ahead, because it proves to come before what the present one begins.

        One that the core refuses is left for its own time.
        """
        present = self._at, self._line
        self._at, self._line = at, self._lines[at]
        try:
            self._handlers[self._line.kind](self._line)
            self._judged.add(at)
        except IllegalTransitionError:
            pass
        finally:
            self._at, self._line = present

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``: entries of the commands under way, of those that arrive within a window, or that findings name."""
        super()._change_ordinals(change)
        peeked = [*self._peeked.items()]
        named = (window.racing for window in self._open if window.racing is not None)
        for command in {id(command): command for command in chain(self._commands(), named)}.values():
            if command.entry >= 0:
                command.entry = change(command.entry)
        self._peeked = {(seq, command.entry): command for (seq, _), command in peeked}

    def _commands(self) -> list[Command]:
        """Return every command that is kept, once."""
        connections = sorted(self._live.values(), key=_number)
        kept = chain(
            *(connection.waiting for connection in connections),
            *(connection.late for connection in connections),
            *self._taken.values(),
            self._peeked.values(),
        )
        return list({id(command): command for command in kept}.values())

    def forget_lines(self) -> None:
        """See ``Driver.forget_lines``: a decided window is counted by its last line."""
        self._lines.forget(min([self._at + 1, *(window.end for window in self._open)]))

    def finish(self, *, goes_on: bool = False) -> Tally:
        """End the log; returns the tally. Open windows were cut off, not missed; acks that began to take effect go through.

        ``goes_on``: the log has more lines than were fed; then what is open is not counted, and will be when they are.
        """
        for window in self._open:
            if goes_on:
                self.tally.leave_out(window.counts)
                continue
            for decision_class, decisions in window.counts.items():
                self.tally.settle(decision_class, decisions, decisions, "uncertain")
            self.tally.note(cut_off(window.begun))
        self._open.clear()
        self._counted_behind = NEVER
        self._settle_all()
        if not goes_on:
            self._report_unmet_moves()
        self.tally.close(None if self.stopped is None else self.stopped[0])
        return self.tally

    def connection(self, consumer: int) -> Connection:
        """Return the commands under way of one consumer's connection."""
        known = self._live.get(consumer)
        if known is None:
            known = self._connections.get(consumer)
            if known is None:
                known = self._connections[consumer] = Connection(len(self._connections))
            self._live[consumer] = known
        return known

    def _late_commands(self) -> list[Command]:
        """Return the commands whose effect was logged, and whose later steps are possibly still to come."""
        late = [connection for connection in self._live.values() if connection.late]
        if len(late) == 1:
            return late[0].late
        late.sort(key=_number)
        return [command for connection in late for command in connection.late]

    def _may_move_to(self, entry: int) -> bool:
        """Check whether a late command (``_late_commands``) moves the cursor, or acknowledges ``entry``."""
        for connection in self._live.values():
            for command in connection.late:
                if command.result is CursorStep.MOVE:
                    return True
                if command.entry == entry and self._acknowledges(command) == entry:
                    return True
        return False

    @abstractmethod
    def _acknowledges(self, command: Command) -> int:
        """Return the entry that a late command will acknowledge at the cursor; -1 = none."""

    # --- flow ----------------------------------------------------------------------------------------------------

    def _on_flow(self, line: Line) -> None:
        """Count permits in the consumer as soon as the command has arrived.

        ``flow_counted`` is logged after that; until then a decision may not have seen them. Traces of a heavy load leave
        that line out: there it is open until the dispatcher's line.
        """
        connection = self.connection(who(line))
        self._settle(connection, flows=self._counting_logged)
        command = self._arrival(line)
        connection.arrived += command.permits
        if not command.applied:
            connection.late.append(command)

    def _on_flow_counted(self, line: Line) -> None:
        self._settle(self.connection(who(line)), flows=True)

    def _on_flow_applied(self, line: Line) -> None:
        """Count permits in the dispatcher; the consumer has done so before.

        If it was an ack that unblocked the consumer, it has lowered the unacked counter, or not yet, as the release has it.
        Of a consumer that is not blocked the line says nothing about acks, only about requests that unblocked it.
        """
        permits = self._permits(line)
        connection = self.connection(who(line))
        requests = any(command.entry < 0 and not command.permits for command in connection.late)
        lowers_first = self.core.state.s[st_.UNBLOCK_TEST] == st_.UNBLOCK_AFTER
        if lowers_first and (requests or self.core.is_blocked(who(line))):
            self._settle(connection)
        self._settle_applied(connection, permits)
        self.core.flow_applied(who(line), permits)

    def _settle_applied(self, connection: Connection, permits: int) -> None:
        """Finish the flows that permits which have reached the dispatcher show to be counted, and no later ones.

        The permits of a connection reach the dispatcher in the order of its flows; those of flows that were parked come
        later, as a sum. So an open flow is counted only if more has reached the dispatcher than the other flows had.
        Example: flows of 1, 1 and 1 have arrived, the last is open. The first line of 1 shows nothing about it, the third
        does.
        """
        connection.applied += permits
        taken = self._taken_of(connection)
        unproved = [*taken, *(command for command in connection.late if command.permits)]
        known = connection.arrived - sum(command.permits for command in unproved)
        for command in sorted(unproved, key=lambda command: command.seq):
            if known >= connection.applied:
                return
            known += command.permits
            if any(command is other for other in taken):
                self._taken[command.connection].remove(command)
                continue
            at = next(at for at, other in enumerate(connection.late) if other is command)
            done, connection.late = connection.late[: at + 1], connection.late[at + 1 :]
            for earlier in done:
                self.finish_late(earlier)
        connection.applied = min(connection.applied, known)  # flows of before the log began

    def _taken_of(self, connection: Connection) -> list[Command]:
        """Return the flows of a connection that a window took for counted, and that no line shows to be."""
        return [
            flow for c, flows in self._taken.items() if self.connection(c) is connection for flow in flows
        ]

    def _permits(self, line: Line) -> int:
        """Return the permits of a ``flow_applied`` line; raises ``IllegalTransitionError`` if it has none."""
        permits: int | None = line.inputs["permits"]
        if permits is None:
            raise IllegalTransitionError("no permits", rule="the dispatcher counts what has reached it")
        return permits

    def _arrival(self, line: Line, entry: int = -1, words: tuple[int, ...] = ()) -> Command:
        """Return the command of a flow line, or of one entry of an ack line; the same object as when it was peeked at."""
        known = self._peeked.pop((line.seq, entry), None)
        if known is not None:
            return known
        if line.kind == "flow":
            return Command(
                line.seq, who(line), f"flow of {line.inputs['permits']}", permits=line.inputs["permits"]
            )
        return Command(line.seq, who(line), entry=entry, words=words)

    def _name(self, command: Command) -> str:
        """Name a command for people. Most acks never need a name."""
        return command.what or f"ack of {self._entries.position(command.entry)}"

    # --- commands under way --------------------------------------------------------------------------------------

    def _settle(self, connection: Connection, *, flows: bool = False) -> None:
        """Finish the later steps of a connection's acks: a later line of it shows that they are done.

        ``flows``: its flows are, too. They stay open until the dispatcher's line where their counting is not logged: an
        attempt that began before them may be logged after.
        """
        if flows and self._taken:
            self._taken = {
                c: open_ for c, open_ in self._taken.items() if self.connection(c) is not connection
            }
        if not connection.late:
            return
        for command in list(connection.late):
            if flows or not command.permits:
                connection.late.remove(command)
                self.finish_late(command)

    def finish_late(self, command: Command) -> None:
        """Apply the later steps of a command whose effect was logged."""
        if command.result is CursorStep.MOVE:
            self.core.move_forward(command.entry)
        elif command.result is CursorStep.TRIM:
            self._effects.trimmed += self._trim_passed()
        elif command.permits:
            command.result = self.core.flow(command.connection, command.permits)
        elif command.cancels:
            self.core.read_cancelled()
        else:
            self.finish_command(command)

    def _settle_all(self) -> None:
        """Finish the later steps of all connections, but those that a line to come shows to come later."""
        self._taken.clear()
        for connection in sorted(self._live.values(), key=_number):
            for command in [command for command in connection.late if not self._comes_later(command)]:
                connection.late.remove(command)
                self.finish_late(command)
        self._take_trimmed()

    def _comes_later(self, _command: Command) -> bool:
        """Check whether a line to come shows that a step is not done yet."""
        return False

    @abstractmethod
    def begin_command(self, command: Command) -> object:
        """Apply an ack that has arrived before the line of its effect; returns the result to compare with this line."""

    def begin_request(self, command: Command) -> object:
        """Let a redelivery request whose line is to come do what it does before; returns what it did."""

    def reset_later(self, command: Command) -> None:
        """Have a reset take effect after the decision; nothing, where no decision depends on it."""

    def _change_of_limit(self) -> Command | None:
        """Return the change of a policy's limit that may come before a decision; nothing, where none is replayed."""
        return None

    def change_limit(self, limit: Limit) -> None:
        """Change a policy's limit of unacknowledged messages; nothing, where no decision depends on it."""

    def _limit_has_changed(self, limit: Limit) -> None:
        """Take note that a decision has shown the change of a limit; nothing, where no decision depends on it."""

    def block_again(self, ack: Command) -> None:
        """Take back that an ack has unblocked a consumer; nothing, where no consumer is blocked."""

    def break_connection(self, command: Command) -> None:
        """Apply the break of a connection before its consumer is removed; nothing, where no decision depends on it."""

    def apply_fact(self, fact: Command) -> None:
        """Apply an open fact; a subclass that opens some extends this."""

    @abstractmethod
    def finish_command(self, command: Command) -> None:
        """Apply the later steps of an ack whose effect was logged."""

    # --- operations on the cursor --------------------------------------------------------------------------------

    @property
    def _cursor(self) -> State:
        """See ``CursorDriver``."""
        return self.core.state

    def _on_cursor_op(self, line: Line) -> None:
        super()._on_cursor_op(line)
        for key in [key for key in self._peeked if key[0] == line.seq]:
            del self._peeked[key]

    def _move_forward(self, line: Line, target: int) -> None:
        """See ``CursorDriver``: the move takes effect before the next line of a moved mark-delete, or has had it."""
        peeked = self._peeked.get((line.seq, target))
        steps = [] if peeked is not None and peeked.applied else [CursorStep.MOVE]
        steps += [CursorStep.TRIM] if self._trims_after_a_move() else []
        self.connection(_CURSOR).late += [self._move_to(line, target, step) for step in steps]

    def _move_seen_at(self, line: Line, target: int) -> int | None:
        """See ``CursorDriver``: the line is in the window that has seen the move."""
        peeked = self._peeked.get((line.seq, target))
        return self._open[-1].begun.seq if peeked is not None and peeked.applied else None

    def _move_to(self, line: Line, target: int, step: CursorStep) -> Command:
        """Return a step of a move of the cursor forward."""
        what = f"move of the cursor to {self._entries.position(target)}"
        return Command(line.seq, _CURSOR, what, entry=target, result=step)

    def _begin_behind(self, target: int) -> None:
        """See ``CursorDriver``."""
        self.core.move_forward(target)

    def _begin_without(self, entry: int, words: Sequence[int]) -> None:
        """See ``CursorDriver``."""
        if words:
            self.core.acknowledge_indexes(entry, words)
        else:
            self.core.acknowledge(entry)

    def _trims_after_a_move(self) -> bool:
        """Check whether replay set and pending acks are trimmed after a move; not, for dispatchers without the rule."""
        return False

    def _trim_passed(self) -> list[Released]:
        """Trim them; returns the releases."""
        return []

    def _trimmed_now(self, released: list[Released]) -> None:
        """Take the releases of trims that hold: they are no trial of the search."""

    def _moves_under_way(self) -> list[Command]:
        """Return the steps of moves of the cursor that no line has shown to be done."""
        connection = self._connections.get(_CURSOR)
        return [] if connection is None else connection.late

    def _on_mark_delete(self, _line: Line) -> None:
        """Mark-delete has moved: moves of the cursor are done."""
        self._settle_cursor(CursorStep.MOVE)

    def _settle_cursor(self, last: CursorStep) -> None:
        """Finish the steps of moves under way, up to a kind of step: a line shows that they are done."""
        connection = self._connections.get(_CURSOR)
        if connection is None or not connection.late:
            return
        for command in list(connection.late):
            if command.result is CursorStep.MOVE or last is CursorStep.TRIM:
                connection.late.remove(command)
                self.finish_late(command)
        self._take_trimmed()

    def _take_trimmed(self) -> None:
        released, self._effects.trimmed = self._effects.trimmed, []
        if released:
            self._trimmed_now(released)

    def _reset(self, entry: int) -> None:
        """See ``CursorDriver``."""
        self._settle_all()
        self.core.reset(entry)

    def _on_rewind(self, line: Line) -> None:
        self._on_rewind_after_reset(line)

    def _rewinds_new_cursor(self) -> bool:
        """See ``CursorDriver``. A round that finds no consumers rewinds, too; a first consumer is added right afterwards."""
        following = (line.kind for line in self._later_lines())
        return next((kind for kind in following if kind in _AFTER_A_REWIND), "") == "consumer_added"

    def _finish_acks(self) -> tuple[int, str] | None:
        """See ``CursorDriver``."""
        late = [command for command in self._late_commands() if not self._is_flow(command)]
        for connection in sorted(self._live.values(), key=_number):
            for command in [command for command in connection.late if not self._is_flow(command)]:
                connection.late.remove(command)
                self.finish_late(command)
        self._take_trimmed()
        last = max(late, key=lambda command: command.seq, default=None)
        return (
            None
            if last is None
            else (last.seq, f"{self._name(last)} may come after the operation on the cursor")
        )

    def _is_flow(self, command: Command) -> bool:
        """Check whether a step only counts permits: an operation of another thread does not wait for it."""
        return command.permits > 0

    def _acks_under_way(self, low: int, high: int) -> bool:
        """See ``CursorDriver``: acks that arrived, and steps of others that no line has shown to be done."""
        return any(low <= command.entry < high for command in self._commands())

    # --- windows -------------------------------------------------------------------------------------------------

    def _section(self) -> Window:
        """Return the membership change of the present line: up to the dispatcher's next line under its lock."""
        stop = self._lines.horizon(self._at)
        at = self._lines.first_of(NEXT_SECTION, self._at + 1, stop)
        return Window(self._line, at - 1, closed=at < len(self._lines), membership=True)

    def _frame(self, line: Line, finish: str) -> Window:
        """Return the window from the present line to the line of kind ``finish`` that ends it.

        Without one it ends where the next of its kind begins, or is cut off with the log.
        """
        stop = self._lines.horizon(self._at)
        at = self._lines.first_of((finish, line.kind), self._at + 1, stop)
        if at < stop and self._lines[at].kind == finish:
            return Window(line, at)
        return Window(line, at - 1, closed=at < len(self._lines))

    def _within(self, end: int) -> Sequence[tuple[int, Line]]:
        """Return the lines after the present one up to index ``end``, with their indexes."""
        return self._lines.of_window(self._at + 1, end + 1)

    def _decide(
        self,
        window: Window,
        steps: int,
        decide: Callable[[Between], A],
        differences: Callable[[A], list[Difference]],
    ) -> Outcome[A]:
        """Decide a window; see ``races.search``. One whose end the log does not show is decided and not compared."""
        if not window.closed:
            self._settle_all()
            return Outcome(decide(lambda _step: None), [])
        self._sent_at, self._gone_first = {}, {}
        any_removed = False
        sending: Line | None = None  # the send whose line stands, and that of its return does not yet
        self._window_end = window.end
        self._permits_at_end = {}
        self._closing = None
        logged = 0  # steps of the window that are over, as its lines show
        for at, line in self._within(window.end):
            kind = line.kind
            if kind == "sent" and line.consumer is not None:
                self._sent_at[line.consumer] = line.seq
                sending = line
                if any_removed and not self.steps_of_send:
                    self._note_gone_first(self._gone_before(at, line))
                logged = self._steps_behind_send(line.consumer, logged)
            elif kind == "send_returned":
                sending = None
            elif kind == "pending_ack_removed":
                any_removed = True
                if sending is not None and sending.consumer == line.consumer and not self.steps_of_send:
                    self._note_gone_first(self._gone_within(at, sending))
            elif kind in ("flow", "ack"):
                if at not in self._judged:
                    self._peek(line, logged)
            elif kind == "cursor_op":
                if at not in self._judged:
                    self._peek_at_move(line, logged)
            elif kind == "all_disconnecting":
                self._closing = Command(
                    line.seq, CLOSE, "the close of the dispatcher", closes=True, earliest=logged
                )
            elif kind in ("read_issued", "replay_already_deleted"):
                logged = steps
            elif kind == "replay_read_issued":
                logged = steps - 1  # the cursor leaves acknowledged entries out when it has the request
            elif kind == "read_attempt_end":
                self._permits_at_end = {shown.consumer: shown.permits for shown in shown_consumers(line)}
        if self._peeked and not self.steps_of_send:
            self._note_gone_first(self._found_nothing())
        waiting, late = self._under_way(steps)
        if not waiting and not late:
            answer = decide(lambda _step: None)
            return in_plain_order(answer, differences(answer))
        stage = _Stage(self, window)
        return self._search(
            window,
            waiting,
            late,
            lambda: search(stage, waiting, late, steps, decide, differences, self._take_work),
        )

    def _search(
        self,
        _window: Window,
        waiting: dict[int, list[Command]],
        late: dict[int, list[Command]],
        decide: Callable[[], Outcome[A]],
    ) -> Outcome[A]:
        """Decide a window (``races.search``) and commit the order that holds; returns the outcome."""
        outcome = decide()
        self._commit(outcome, late)
        for command in chain(self._peeked.values(), *waiting.values()):
            command.earliest = 0
        return outcome

    def _peek(self, line: Line, logged: int) -> None:
        """Note a command that arrives within the window, when ``logged`` of its steps are over."""
        arriving: list[tuple[int, tuple[int, ...]]] = [(-1, ())] if line.kind == "flow" else []
        if line.kind == "ack" and line.inputs["ack_type"] == "Individual":
            arriving = [(entry, words) for entry, words in acknowledged_by(line) if entry >= 0]
        for entry, words in arriving:
            if (line.seq, entry) not in self._peeked:
                self._peeked[line.seq, entry] = self._arrival(line, entry, words)
            self._peeked[line.seq, entry].earliest = logged

    def _peek_at_move(self, line: Line, logged: int) -> None:
        """Note a move of the cursor forward that begins within the window, when ``logged`` of its steps are over."""
        target = self._last_up_to(line.inputs["target"]) if line.inputs["op"] == "mark_delete" else None
        if target is None or target <= self.core.mark_delete():
            return
        command = self._peeked.setdefault((line.seq, target), self._move_to(line, target, CursorStep.MOVE))
        command.earliest = logged

    def _under_way(self, steps: int) -> tuple[dict[int, list[Command]], dict[int, list[Command]]]:
        """Commands that may come before a window of so many steps, and those that may come later than in the plain order.

        Permits that arrive during a round are there in the plain order when the send to their consumer is logged after
        them, else after the round.
        """
        live = sorted(self._live.items(), key=lambda item: item[1].number)
        self._live = {consumer: c for consumer, c in live if c.waiting or c.late}
        waiting = {consumer: c.open() for consumer, c in self._live.items() if c.waiting}
        late = {consumer: list(c.late) for consumer, c in self._live.items() if c.late}
        for command in self._peeked.values():
            if command.applied:
                continue
            self.connection(command.connection)
            moves = command.result is CursorStep.MOVE
            if not moves and not command.permits and self.acks_are_logged:
                waiting.setdefault(command.connection, []).append(command)
                continue
            command.step = steps if moves else self._step_of(command, steps)
            self._placed.append(command)
            late.setdefault(command.connection, []).append(command)
        waiting |= self._open_blocks()
        for consumer, flows in self._taken.items():
            waiting[_COUNTED - 2 * consumer] = [
                Command(flow.seq, consumer, flow.what, uncounts=flow) for flow in reversed(flows)
            ]
        if self._closing is not None:
            waiting[CLOSE] = [self._closing]
        limit = self._change_of_limit()
        if limit is not None:
            waiting[LIMIT] = [limit]
        waiting |= {FACTS - number: [fact] for number, fact in enumerate(self._facts)}
        if self._gone_first:
            self._place_before_sends(waiting, late)
        for commands in late.values():  # commands of one connection keep their order
            for command, following in pairwise(commands):
                following.step = max(command.step, following.step)
        return {c: commands for c, commands in waiting.items() if commands}, late

    def _step_of_send(self, _consumer: int) -> int:
        """Return before which step of a round comes, in the plain order, what arrives before the send to a consumer."""
        return self.send_step

    def _steps_behind_send(self, _consumer: int, logged: int) -> int:
        """Return how many steps of a round are over behind the line of a send, of which ``logged`` were before it."""
        return logged + self.steps_of_send

    def _note_gone_first(self, gone: Mapping[tuple[int, int], int]) -> None:
        for item, step in gone.items():
            self._gone_first[item] = min(step, self._gone_first.get(item, step))

    def _open_blocks(self) -> dict[int, list[Command]]:
        """Return what may unblock a consumer before a decision or block it again, by pseudo connection; nothing, here."""
        return {}

    def _gone_before(self, at: int, send: Line) -> dict[tuple[int, int], int]:
        """Return consumer and entry of pending acks of which a send proves that they went before it → before which step.

        A send adds its pending acks behind its line, under the lock under which a removal writes its own. So where it sends
        an entry again, and the removal stands in front of it, it was the pending ack of the earlier send that went.
        """
        sent = {(send.consumer, entry) for entry in send.recorded["positions"]}
        return {gone: self._step_of_send(gone[0]) for gone in self._removed_between(at) if gone in sent}

    def _gone_within(self, at: int, send: Line) -> dict[tuple[int, int], int]:
        """Return, as ``_gone_before``, the pending acks that go at index ``at`` and are there again behind a send.

        The send adds its pending acks somewhere between its line and that of its return. If one is removed again later, then
        it was that of an earlier send which went here.
        """
        return {
            (send.consumer, entry): self._step_of_send(send.consumer)
            for entry in self._lines[at].recorded["positions"]
            if send.consumer is not None
            and entry in send.recorded["positions"]
            and self._goes_again(at, entry)
        }

    def _goes_again(self, at: int, entry: int) -> bool:
        """Check whether the next line behind index ``at`` that sends an entry or removes its pending ack removes it."""
        consumer = self._lines[at].consumer
        for _at, line in self._lines.between(at + 1, self._lines.horizon(self._at)):
            if line.kind == "sent" and entry in line.recorded["positions"]:
                return False
            if line.kind == "pending_ack_removed" and entry in line.recorded["positions"]:
                return line.consumer == consumer
        return False

    def _found_nothing(self) -> dict[tuple[int, int], int]:
        """Return, as ``_gone_before``, connection and entry of acks that have found nothing pending; nothing, here."""
        return {}

    def _removed_between(self, stop: int) -> Iterator[tuple[int, int]]:
        """Yield consumer and entry of the pending acks that go in the present window, before the line at index ``stop``."""
        for _at, line in self._within(stop - 1):
            if line.kind == "pending_ack_removed" and line.consumer is not None:
                yield from ((line.consumer, entry) for entry in line.recorded["positions"])

    def _place_before_sends(self, waiting: dict[int, list[Command]], late: dict[int, list[Command]]) -> None:
        """Place the acks of ``_gone_first`` before the sends of a window, and what their connections did before."""
        for connection, commands in list(waiting.items()):
            proven = [self._gone_before_step(command) for command in commands]
            count = max((at for at, step in enumerate(proven, 1) if step is not None), default=0)
            if not count:
                continue
            first, following = commands[:count], commands[count:]
            for at, command in enumerate(first):  # a connection's commands keep their order
                command.step = command.latest = min(step for step in proven[at:] if step is not None)
            for command in following:
                command.earliest = max(command.earliest, first[-1].step)
            waiting[connection], waiting[BEHIND_PLACED - connection] = [], following
            self._placed += first
            placed = late.setdefault(connection, [])
            placed += first
            placed.sort(key=lambda command: command.seq)

    def _gone_before_step(self, command: Command) -> int | None:
        """Return the step before which the pending ack of a command goes, as lines prove; ``None`` = they do not."""
        if command.entry < 0 or command.is_fact:
            return None
        holder = self.core.holder(command.entry, command.connection)
        return self._gone_first.get((command.connection if holder is None else holder, command.entry))

    def _step_of(self, command: Command, steps: int) -> int:
        """Return before which step of a window a command that arrives within it has its effect, in the plain order."""
        before_send = command.permits and command.seq < self._sent_at.get(command.connection, 0)
        return self._step_of_send(command.connection) if before_send else steps

    def _commit(self, outcome: Outcome[A], late: dict[int, list[Command]]) -> None:
        self.core.connections_return()
        for command, result in self._effects.results:
            command.result = result
        for command in outcome.early:
            command.applied = True
        for consumer in late:
            connection = self.connection(consumer)
            connection.late = [c for c in connection.late if c in outcome.late]
        for command in self._placed:
            command.applied = command not in outcome.late
        self._placed.clear()
        for command in chain(*late.values()):
            command.step, command.latest = 0, None
        for consumer, commands in late.items():
            taken = [c for c in commands if c.permits and c.result and c not in outcome.late]
            if taken:
                self._taken.setdefault(consumer, []).extend(taken)
        for command in outcome.early:
            if command.uncounts is not None:
                self._reopen(command.uncounts)
            if command.limit is not None:
                self._limit_has_changed(command.limit)
        self._close_facts([*outcome.early, *outcome.refuted])
        self._take_trimmed()
        self._effects = Effects()

    def _close_facts(self, closed: Sequence[Command]) -> None:
        """Forget open facts that the decisions have shown, with other facts about the same consumer, or refuted."""
        shown = {fact.connection for fact in closed if fact.applied and fact.held_from is not None}
        self._facts = [
            fact
            for fact in self._facts
            if fact not in closed and (fact.held_from is None or fact.connection not in shown)
        ]

    def _reopen(self, flow: Command) -> None:
        """Reopen a flow that was taken for counted: it is late, or still to arrive."""
        self._taken[flow.connection].remove(flow)
        if any(flow is other for other in self._peeked.values()):
            flow.applied = False
        else:
            self.connection(flow.connection).late.insert(0, flow)

    def _judge(self, window: Window, outcome: Outcome[A]) -> None:
        """Note what a window's decision gave; it is counted when its last line has been fed, which proves it."""
        if outcome.given_up and not outcome.explained:
            self._give_up()
            for difference in outcome.plain:
                window.leave_unjudged(difference.decision_class, difference.decisions, self._work.reason)
        else:
            window.differing = outcome.plain
        window.racing = outcome.racing if outcome.explained else None
        self._open.append(window)
        if self._open[0].closed:
            self._counted_behind = self._open[0].end

    def _count_window(self, window: Window) -> None:
        for decision_class, decisions in window.counts.items():
            differing = sum(d.decisions for d in window.differing if d.decision_class == decision_class)
            unjudged = window.unjudged.get(decision_class, 0)
            self.tally.exact(decision_class, decisions - differing - unjudged)
            self.tally.leave_unjudged(decision_class, unjudged, window.reason)
        for finding, decisions in self._findings_of(window):
            self._count(finding, decisions)

    def findings_to_come(self) -> list[Finding]:
        """See ``Driver.findings_to_come``: those of the open windows that will be counted."""
        to_come = takewhile(lambda window: window.closed, self._open)
        return [finding for window in to_come for finding, _ in self._findings_of(window)]

    def _findings_of(self, window: Window) -> Iterator[tuple[Finding, int]]:
        """Yield the differences of a window, each with the number of its decisions."""
        racing = window.racing
        reason = (
            f"{self._name(racing)} arrived at seq {racing.seq}, its effect overlaps the decision"
            if racing
            else None
        )
        end = self._lines[window.end].seq
        for difference in sorted(window.differing, key=lambda difference: difference.seq or end):
            finding = Finding(
                difference.seq or end,
                self._lines[window.end].t_us,
                difference.decision_class,
                "divergent" if racing is None else "uncertain",
                difference.expected,
                difference.recorded,
                racing.seq if racing else None,
                reason,
            )
            yield finding, difference.decisions


def _number(connection: Connection) -> int:
    return connection.number


class _Stage:
    """The driver's core for the search: copies, and effects of commands."""

    def __init__(self, driver: RacingDriver, window: Window) -> None:
        self._driver = driver
        self._saved = driver.core.save(membership=window.membership)
        self._is_as_saved = True

    def restore(self) -> None:
        """Go back to the saved state. What was just saved is that state: most windows are decided once."""
        if not self._is_as_saved:
            self._driver.core.restore(self._saved)
        self._is_as_saved = False
        self._driver._effects = Effects()

    def apply_early(self, command: Command) -> None:
        driver = self._driver
        if command.unblocks is not None:
            driver.core.unblock(command.unblocks)
        elif command.blocks_again is not None:
            driver.block_again(command)
        elif command.is_fact:
            driver.apply_fact(command)
        elif command.closes:
            driver.core.close()
        elif command.cancels:
            driver.core.read_cancelled()
        elif command.limit is not None:
            driver.change_limit(command.limit)
        elif command.trims_to is not None:
            driver.core.trim_to(command.trims_to)
        elif command.resets_from is not None:
            driver.reset_later(command)
        elif command.removes is not None:
            released = driver.core.pending_ack_removed(command.removes, command.connection)
            driver._effects.results.append((command, released))
        elif command.requests:
            driver._effects.results.append((command, driver.begin_request(command)))
        elif command.breaks:
            driver.break_connection(command)
        elif command.uncounts is not None:
            driver.core.take_back(command.connection, command.uncounts.permits)
        elif command.permits:
            driver.core.flow(command.connection, command.permits)
        else:
            driver._effects.results.append((command, driver.begin_command(command)))

    def apply_late(self, command: Command) -> None:
        if command.latest is not None:  # it has arrived, and its effect is not logged yet
            self.apply_early(command)
        else:
            self._driver.finish_late(command)
