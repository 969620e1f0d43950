"""Acks, redelivery requests and the releases that follow them, in a trace of a dispatcher with several consumers.

An ack *arrives*, and takes effect when the line of its pending ack stands; the release of its hash follows. A redelivery
request works the other way round: what it lets go is logged first, its own line last.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, TypeVar

from dispatch_core.broker.multiple_consumers import Acked, MultipleConsumersDispatcher, Released
from dispatch_core.broker.state import NOBODY
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.acks_before_trims import lines_before_trim
from dispatch_core.verify.trace.draining_releases import Releases
from dispatch_core.verify.trace.driver import acknowledged_by, who
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.open_totals import OpenTotalsDriver
from dispatch_core.verify.trace.races import REMOVALS, Command, Outcome
from dispatch_core.verify.trace.racing import CursorStep, Window

A = TypeVar("A")

#: Kinds that a connection's thread writes when the command before is done.
_OF_A_CONNECTION = frozenset({"flow", "ack", "redeliver"})
_NEXT_OF_A_CONNECTION = frozenset({*_OF_A_CONNECTION, "flow_applied"})


@dataclass(frozen=True, slots=True)
class Redelivered:
    """Step of a redelivery request that lowers the counter of its consumer and clears the block.

    Its place in the plain order is behind the line of the request (``redelivery_requests``).
    """

    messages: int


@dataclass(frozen=True, slots=True)
class OnlyCursor:
    """Last step of an ack that found nothing pending: it reaches the cursor."""


@dataclass(frozen=True, slots=True)
class Request:
    """A redelivery request to come: index and line, and the index of the line of its connection before it."""

    at: int
    line: Line
    previous: int


#: Lines that begin a decision which depends on draining hashes.
_DECISIONS: Final = frozenset({"read_attempt", "round_begin"})
#: Lines behind which nothing counts for the decision any more that they show.
_DECIDED: Final = frozenset({"read_issued", "replay_read_issued", "read_attempt_end", "sent", "round_end"})


def _key(ack: Command) -> tuple[int, int]:
    return ack.entry, ack.connection


@dataclass(frozen=True, slots=True)
class ParkedFlow:
    """Last step of a redelivery request: the permits that were parked while the consumer was blocked count.

    The read attempt that the request causes may come before it. ``applied_at``: index of the line that says that they have
    reached the dispatcher, after they were counted, or -1. In the plain order they do not count before it unless an attempt
    shows that.
    """

    everything: bool
    applied_at: int


class PendingAcksDriver(OpenTotalsDriver):
    """Verify pending acks: acknowledgements, redelivery requests and the releases that follow them."""

    core: MultipleConsumersDispatcher
    #: Class of decision under which removals of pending acks are counted.
    removals_class: ClassVar[str] = "draining"

    def __init__(self, entries: Entries, facts: TraceFacts, *, tracked: bool) -> None:
        """``tracked``: hashes drain under the rules in force, so that releases are logged."""
        super().__init__(entries, facts)
        # (entry, connection) → the ack that arrived and has had no effect yet. Two consumers may hold one entry.
        self._acks: dict[tuple[int, int], Command] = {}
        self._removed: dict[int, list[int]] = {}  # consumer → entries let go for a redelivery request to come
        self._requests: dict[int, deque[Request]] = {}  # consumer → its redelivery requests to come
        self._last_ahead: dict[int, int] = {}  # consumer → index of the last known line of its connection
        # Consumer whose next request has taken everything, as releases show → the entries whose release is to come.
        self._cleared: dict[int, list[int]] = {}
        self._tracked = tracked
        self._releases = Releases(tracked=tracked)
        self._removals_logged = facts.removals_logged
        # See ``refused_now``, with the index of the line.
        self._refused: tuple[int, list[tuple[int, int]]] = (-1, [])
        # Consumer and entry of removals for a request that a decision has seen before their lines → their releases.
        self._removed_early: dict[tuple[int, int], Released] = {}

    def _ahead_redeliver(self, at: int, line: Line) -> None:
        """See ``Driver``."""
        if line.consumer is not None:
            previous = self._last_ahead.get(line.consumer, -1)
            self._requests.setdefault(line.consumer, deque()).append(Request(at, line, previous))
        self._ahead_flow(at, line)

    def _ahead_flow(self, at: int, line: Line) -> None:
        """See ``Driver``: a line of a connection's thread."""
        if line.consumer is not None:
            self._last_ahead[line.consumer] = at

    _ahead_flow_counted = _ahead_ack = _ahead_consumer_added = _ahead_flow

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``: acks that arrived, and entries let go for a request."""
        super()._change_ordinals(change)
        self._acks = {_key(command): command for command in self._acks.values()}
        self._removed = {consumer: [*map(change, entries)] for consumer, entries in self._removed.items()}
        self._cleared = {consumer: [*map(change, entries)] for consumer, entries in self._cleared.items()}
        self._removed_early = {
            (consumer, change(entry)): released for (consumer, entry), released in self._removed_early.items()
        }

    def _commands(self) -> list[Command]:
        """See ``RacingDriver``."""
        kept = {id(command): command for command in (*super()._commands(), *self._acks.values())}
        return list(kept.values())

    @property
    def refused_now(self) -> list[tuple[int, int]]:
        """(consumer, hash) that draining held back at the last line."""
        at, refused = self._refused
        return refused if at == self._at else []

    def _releases_are_over(self, line: Line, at: int = -1) -> None:
        """Report releases that are missing before a line: of its connection, and by the index ``at`` of the dispatcher."""
        own = line.consumer if line.kind in _OF_A_CONNECTION else None
        missing = self._releases.missing(connection=own, at=at)
        if missing and self.stopped is None:
            self._report_missing(missing)

    def _overdue(self, line: Line) -> None:
        """See ``Driver``: releases of the dispatcher's thread."""
        self._releases_are_over(line, self._at)
        self._deadline = self._releases.deadline

    def _expect_by(self, released: list[Released], window: Window) -> None:
        """Expect releases of the dispatcher's thread among the lines of a window."""
        self._releases.expect(released, until=window.end)
        self._deadline = self._releases.deadline

    # --- acks and redelivery -------------------------------------------------------------------------------------

    def _trims_after_a_move(self) -> bool:
        """See ``RacingDriver``."""
        return self.core.trims_after_a_move()

    def _trim_passed(self) -> list[Released]:
        """See ``RacingDriver``."""
        return self.core.trim_passed()

    def _trimmed_now(self, released: list[Released]) -> None:
        """See ``RacingDriver``: each removed pending ack has a release, and an ack of it finds nothing pending."""
        self._releases.expect(released)
        self._finish_acks_of_nobody()

    def _take_acks_before_trim(self, lines: Iterable[tuple[int, Line]]) -> None:
        """Take the lines of other threads that prove to come before a trim; ``lines``: those in which they stand."""
        owed = self._releases.unmet()
        for at in lines_before_trim(lines, self._passed_up_to(), self.core.pending_hash, owed):
            self._take_early(at)

    def _passed_up_to(self) -> int:
        """Return mark-delete after the moves of the cursor that are under way."""
        return max([self.core.mark_delete(), *(move.entry for move in self._moves_under_way())])

    def _settle_moves_at(self, ack: Line) -> None:
        """Finish moves of the cursor under way at an ack, but not their trim if it leaves an entry of the ack pending.

        The removal of a passed entry proves that the ack came before the trim; it stands before the connection's next
        command.
        """
        if not self._moves_under_way():
            return
        mark_delete = self._passed_up_to()
        passed = [entry for entry in ack.inputs["positions"] if 0 <= entry <= mark_delete]
        trimmed = not passed or not any(entry in passed for entry in self._removed_for(ack))
        self._settle_cursor(CursorStep.TRIM if trimmed else CursorStep.MOVE)

    def _removed_for(self, ack: Line) -> Iterator[int]:
        """Yield the entries whose pending acks go between an ack, the present line, and the next line of its connection."""
        for line in self._later_lines():
            if line.kind == "pending_ack_removed":
                yield from line.recorded["positions"]
            elif line.kind in _OF_A_CONNECTION and line.consumer == ack.consumer:
                return

    def _finish_acks_of_nobody(self) -> None:
        """Finish acks that have arrived of entries that are not pending any more: they only reach the cursor."""
        for command in [c for c in self._acks.values() if self.core.holder(c.entry) is None]:
            del self._acks[_key(command)]
            self._forget(command)
            if not command.applied:
                self.core.acknowledge(command.entry)

    def _take_overdue_acks(self, consumer: int) -> None:
        """Report acks that have had no effect by the next command of their connection, and apply them.

        One thread takes the commands of a connection in order: an ack has let go of its pending acks before the next one.
        """
        if not self._acks or not self._removals_logged:
            return
        acks = [ack for ack in self._acks.values() if ack.connection == consumer and not ack.applied]
        if not acks:
            return
        trimmed = self._trimmed_up_to()
        for ack in acks:
            if ack.entry <= trimmed:
                continue
            del self._acks[_key(ack)]
            self._forget(ack)
            acked = self.core.ack(ack.entry, consumer)
            if acked is None:
                self.core.acknowledge(ack.entry)
            else:
                expected = f"pending ack removed: {self._positions([ack.entry])}"
                self._differ(self.removals_class, expected, "nothing", decisions=0)

    def _trimmed_up_to(self) -> int:
        """Return the last entry that a trim may have removed; it writes no lines of removals. -1 = there is no trim."""
        trims = self.core.trims_in_attempts() or self.core.trims_after_a_move()
        return self._passed_up_to() if trims else -1

    def _on_flow(self, line: Line) -> None:
        """See ``RacingDriver``."""
        self._take_overdue_acks(who(line))
        super()._on_flow(line)

    def _on_ack(self, line: Line) -> None:
        self._take_overdue_acks(who(line))
        self._settle_moves_at(line)
        connection = self.connection(who(line))
        self._settle(connection)
        if line.inputs["ack_type"] != "Individual":
            return  # cumulative acks mean nothing to Key_Shared and Shared
        for entry, words in acknowledged_by(line):
            if entry < 0:
                continue
            command = self._arrival(line, entry, words)
            if command.applied:
                if command.result is not None:  # its removal's line is to come
                    connection.waiting.append(command)
                    self._acks[_key(command)] = command
                continue
            if command.words:
                # The positions of a command have their effect in order.
                if self._removals_logged and connection.waiting and connection.waiting[-1].seq == line.seq:
                    connection.waiting.append(command)
                else:
                    self._acknowledge_indexes(command)
            elif self.core.holder(entry, who(line)) is None:
                self._acknowledged_now(command, None, 0)
                if not self.core.state.deleted.item(entry):
                    command.result = OnlyCursor()
                    connection.late.append(command)
            else:
                connection.waiting.append(command)
                self._acks[_key(command)] = command

    def _acknowledge_indexes(self, command: Command) -> None:
        """Apply an ack of batch indexes."""
        holder = self.core.holder(command.entry, command.connection)
        messages = self.core.acknowledge_indexes(command.entry, command.words, command.connection)
        self._acknowledged_now(command, holder, messages)

    def _acknowledged_now(self, command: Command, holder: int | None, messages: int) -> None:
        """Take an ack that has no line of its effect: of batch indexes, by so many ``messages``, or of nobody's entry."""

    def begin_command(self, command: Command) -> object:
        """Apply an ack in full; returns its effect on the consumer that held the entry, None if nobody did."""
        if command.words:
            self.core.acknowledge_indexes(command.entry, command.words, command.connection)
            return None
        return self.core.ack(command.entry, command.connection)

    def block_again(self, ack: Command) -> None:
        """See ``RacingDriver``."""
        assert isinstance(ack.result, Acked), "an ack that unblocks knows its holder"
        self.core.block_again(ack.result.consumer, ack.result.permits)

    def finish_command(self, command: Command) -> None:
        """Apply the later parts of an ack (holder's counter, cursor) or of a redelivery request (counter, permits)."""
        begun, consumer = command.result, command.connection
        if isinstance(begun, Acked):
            self.core.finish_ack(command.entry, begun.consumer, begun.messages)
        elif isinstance(begun, OnlyCursor):
            self.core.acknowledge(command.entry)
        elif isinstance(begun, Redelivered):
            self.core.lower_for_redelivery(consumer, begun.messages)
        else:
            assert isinstance(begun, ParkedFlow), "an ack that took effect knows its holder"
            self.core.flow_parked(consumer, everything=begun.everything)

    def _on_mark_delete(self, line: Line) -> None:
        """See ``RacingDriver``. Acks that only reach the cursor are done where mark-delete has passed them."""
        super()._on_mark_delete(line)
        position = line.recorded["mark_delete"]
        reached = -1 if position is None else self._entries.last_up_to(*position)
        for command in list(self._late_commands()):
            if isinstance(command.result, OnlyCursor) and command.entry <= reached:
                self.connection(command.connection).late.remove(command)
                self.finish_command(command)

    def _on_pending_ack_removed(self, line: Line) -> None:
        for recorded in line.recorded["positions"]:
            early = self._removed_early.pop((who(line), recorded), None)
            if early is not None:
                self._releases.expect([early], connection=early.consumer)
                continue
            command = self._next_removal(who(line))
            entry = self._requested_entry(who(line)) if command is None else command.entry
            if entry is None or entry != recorded:
                said = self._positions([recorded])
                expected = "none" if entry is None else self._positions([entry])
                self._differ(self.removals_class, f"pending ack removed: {expected}", said, decisions=0)
                continue
            if command is not None:
                del self._acks[_key(command)]
            by = None if command is None else command.connection
            self._report_missing(self._releases.missing(connection=by))
            if command is not None and command.applied:
                self._forget(command)
                if isinstance(command.result, Acked):
                    self._releases.expect([command.result.released], connection=command.connection)
                continue
            if command is not None:
                self._settle(self.connection(command.connection))
            if command is None:
                released = self.core.pending_ack_removed(entry, who(line))
                self._releases.expect([released], connection=released.consumer)
                self._removed.setdefault(released.consumer, []).append(entry)
                continue
            acked = self.core.begin_ack(entry, command.connection)
            if acked is None:
                raise IllegalTransitionError(
                    f"entry {entry} is pending on nobody", rule="only a pending ack is removed"
                )
            self._releases.expect([acked.released], connection=command.connection)
            command.result = acked
            self.connection(command.connection).late.append(command)
            self._forget(command)
            if acked.notices:
                self._unblocking[acked.consumer] = Command(
                    command.seq,
                    command.connection,
                    f"the unblock by the {self._name(command)}",
                    result=acked,
                    blocks_again=acked.consumer,
                )

    def _found_nothing(self) -> dict[tuple[int, int], int]:
        """See ``RacingDriver``.

        An ack of an entry that the window sends, and whose pending ack no line removes before the connection goes on, came
        before the send: it is of an earlier delivery.
        """
        acks = [ack for ack in self._peeked.values() if ack.entry >= 0 and not (ack.applied or ack.words)]
        if not acks or not self._removals_logged:
            return {}
        receiver = {
            entry: line.consumer
            for _at, line in self._within(self._window_end)
            if line.kind == "sent" and line.consumer is not None
            for entry in line.recorded["positions"]
        }
        trimmed = self._trimmed_up_to()
        return {
            (ack.connection, ack.entry): self._step_of_send(receiver[ack.entry])
            for ack in acks
            if ack.entry in receiver
            and ack.entry > trimmed
            and self.core.holder(ack.entry, ack.connection) is None
            and self._removes_nothing(ack)
        }

    def _removes_nothing(self, ack: Command) -> bool:
        """Check that the connection of an ack goes on before any line removes a pending ack of its entry."""
        for _at, line in self._lines.between(self._at + 1, self._lines.horizon(self._at)):
            if line.seq <= ack.seq:
                continue
            if line.kind == "pending_ack_removed" and ack.entry in line.recorded["positions"]:
                return False
            if line.kind in _OF_A_CONNECTION and line.consumer == ack.connection:
                return True
        return False

    def _next_removal(self, holder: int, entry: int = -1) -> Command | None:
        """Return the ack that removes a pending ack of ``holder`` now, if any does; ``entry``: one of this entry.

        They do so in the order in which they arrived, those of the holder's own connection first.
        """
        acks = [
            ack
            for ack in self._acks.values()
            if entry in (-1, ack.entry) and self._held_before(ack) == holder
        ]
        return min(acks, key=lambda ack: (ack.connection != holder, ack.seq), default=None)

    def _requested_entry(self, holder: int) -> int | None:
        """Return the entry whose pending ack is removed from ``holder`` now by its next redelivery request."""
        request = self._next_request(holder)
        if request is None:
            return None
        wanted, pending = request.inputs["positions"], self._pending_by_now(holder)
        if wanted is None:
            return pending[0] if pending else None
        still = set(pending)
        return next((entry for entry in wanted if entry in still), None)

    def _pending_by_now(self, consumer: int) -> list[int]:
        """Return what is pending on a consumer, without what the round under way sends to it by a line to come."""
        pending = self.core.pending_on(consumer)
        end = max((window.end for window in self._open), default=self._at)
        later = [line for _at, line in self._within(end) if line.kind == "sent" and line.consumer == consumer]
        if not later:
            return pending
        sent = {entry for line in later for entry in line.recorded["positions"]}
        return [entry for entry in pending if entry not in sent]

    def _next_request(self, consumer: int) -> Line | None:
        """Return the next redelivery request of a consumer among the lines ahead."""
        requests = self._requests.get(consumer)
        if not requests or requests[0].at >= self._lines.horizon(self._at):
            return None
        return requests[0].line

    def _held_before(self, command: Command) -> int | None:
        """Return the consumer that holds, or held, the entry of an ack whose removal's line is to come."""
        if command.applied:
            return command.result.consumer if isinstance(command.result, Acked) else None
        return self.core.holder(command.entry, command.connection)

    def _forget(self, command: Command) -> None:
        """Forget an ack that has had its effect, and apply the acks of indexes that follow it in its command."""
        waiting = self.connection(command.connection).waiting
        if command in waiting:
            waiting.remove(command)
        while waiting and waiting[0].words:
            following = waiting.popleft()
            if not following.applied:
                self._acknowledge_indexes(following)

    def _on_redeliver(self, line: Line) -> None:
        """Finish a redelivery request: removals stand before its line, the rest of its entries is removed now."""
        self._settle_all()
        self._let_go_for(line)
        self._requests[who(line)].popleft()
        asked = self._removed.pop(who(line), [])
        messages = self.core.add_requested(who(line), sorted(asked))
        self._finish_later(line, Redelivered(messages))

    def _finish_later(self, request: Line, lowering: Redelivered | None) -> None:
        """Note the steps of a redelivery request that follow its line; ``lowering``: ``None`` if it came before."""
        parked = ParkedFlow(request.inputs["positions"] is None, self._parked_reach_at(who(request)))
        steps = [parked] if lowering is None else [lowering, parked]
        late = self.connection(who(request)).late
        late += [Command(request.seq, who(request), "redelivery request", result=step) for step in steps]

    def _parked_reach_at(self, consumer: int) -> int:
        """Return the index of the line at which a consumer's parked permits reach the dispatcher; -1 = none is known."""
        parked = self.core.state.parked_permits[self.core.slot(consumer)]
        for at, line in self._lines.between(self._at + 1, self._lines.horizon(self._at)):
            if line.consumer == consumer and line.kind in _NEXT_OF_A_CONNECTION:
                return at if line.kind == "flow_applied" and line.inputs["permits"] == parked else -1
        return -1

    def _under_way(self, steps: int) -> tuple[dict[int, list[Command]], dict[int, list[Command]]]:
        """See ``RacingDriver``."""
        for command in self._late_commands():
            if isinstance(command.result, ParkedFlow):
                command.step = 0 if self._counts_by_end(command.connection, command.result) else steps
            elif command.result is CursorStep.TRIM:
                command.step = steps if self._trims_later(command.entry) else 0
        waiting, late = super()._under_way(steps)
        return waiting | self._removals_for_requests(), late

    def _removals_for_requests(self) -> dict[int, list[Command]]:
        """Return the removals for redelivery requests that a decision may have seen, by pseudo connection.

        The thread of a connection removes the pending acks one by one, each with a line, and releases the hash behind it. A
        scan that runs meanwhile may find the hash draining or not. The line of the request follows.
        """
        waiting: dict[int, list[Command]] = {}
        if not self._tracked or not any(self._requests.values()):
            return waiting
        acked = {ack.entry for ack in (*self._acks.values(), *self._peeked.values())}
        for _at, line in self._within(self._window_end):
            if line.kind in _DECIDED:
                break
            request = None if line.consumer is None else self._next_request(line.consumer)
            if line.kind != "pending_ack_removed" or request is None:
                continue
            consumer, wanted = who(line), request.inputs["positions"]
            for entry in line.recorded["positions"]:
                if entry < 0 or entry in acked or self.core.holder(entry, consumer) != consumer:
                    continue
                if wanted is None or entry in wanted:
                    what = f"the removal of {self._entries.position(entry)} for a redelivery request"
                    command = Command(line.seq, consumer, what, removes=entry)
                    waiting.setdefault(REMOVALS - consumer, []).append(command)
        return waiting

    def _commit(self, outcome: Outcome[A], late: dict[int, list[Command]]) -> None:
        """See ``RacingDriver``: removals that a decision has seen have had their effect before their lines."""
        super()._commit(outcome, late)
        for command in outcome.early:
            if command.removes is not None and isinstance(command.result, Released):
                self._removed_early[command.connection, command.removes] = command.result
                self._removed.setdefault(command.connection, []).append(command.removes)

    def _trims_later(self, target: int) -> bool:
        """Check whether the trim of a move comes behind the present window: it has pending acks to remove and no release.

        A trim lets go of a pending ack and of its hash right after each other, and the latter has a line.
        """
        if not self._tracked or not (self.core.state.holder[: target + 1] != NOBODY).any():
            return False
        return all(line.kind != "draining_release" for _at, line in self._within(self._window_end))

    def _is_flow(self, command: Command) -> bool:
        """See ``RacingDriver``: of parked permits, too."""
        return super()._is_flow(command) or isinstance(command.result, ParkedFlow)

    def _comes_later(self, command: Command) -> bool:
        """See ``RacingDriver``: parked permits, until they reach the dispatcher or their connection goes on."""
        flow = command.result
        own = self._line.consumer == command.connection
        return isinstance(flow, ParkedFlow) and flow.applied_at > self._at and not own

    def _counts_by_end(self, consumer: int, flow: ParkedFlow) -> bool:
        """Check whether parked permits count within the present window: its end, or their own line, shows it."""
        return flow.applied_at <= self._window_end or self._shown_counted(consumer)

    def _lowered_by(self, command: Command) -> int:
        """See ``RacingDriver``: also of an ack or a redelivery request that has let go of its pending acks."""
        if isinstance(command.result, (Acked, Redelivered)):
            return command.result.messages
        return 0 if isinstance(command.result, (ParkedFlow, OnlyCursor)) else super()._lowered_by(command)

    def _lowers_counter_of(self, command: Command) -> int | None:
        """See ``RacingDriver``."""
        return command.result.consumer if isinstance(command.result, Acked) else None

    def _shown_counted(self, consumer: int) -> bool:
        """Check whether the end of the present attempt shows a consumer with its parked permits counted."""
        st, slot = self.core.state, self.core.slot(consumer)
        return self._permits_at_end.get(consumer) == st.permits.item(slot) + st.parked_permits.item(slot)

    def _settle_counted(self) -> None:
        """Count the parked permits that the end of an attempt, the present line, shows to count."""
        for command in self._late_commands():
            if isinstance(command.result, ParkedFlow) and self._shown_counted(command.connection):
                self._settle(self.connection(command.connection))

    def _let_go_for(self, request: Line) -> None:
        """Remove everything a redelivery request still finds pending, in position order (null = all of it)."""
        self._let_go(who(request), self._wanted_by(request))

    def _wanted_by(self, request: Line) -> list[int]:
        """Return the entries that a redelivery request finds pending now."""
        wanted, pending = request.inputs["positions"], self._pending_by_now(who(request))
        return pending if wanted is None else sorted(set(pending) & set(wanted))

    def _let_go(self, consumer: int, entries: list[int]) -> None:
        for entry in entries:
            self._releases.expect([self.core.pending_ack_removed(entry, consumer)], connection=consumer)
            self._removed.setdefault(consumer, []).append(entry)

    def _let_go_at_once(self, request: Line) -> None:
        """Remove what a request for everything takes at once, as far as it is released before the next decision.

        The thread of the connection takes it at once, then releases one hash after the other, without the dispatcher's lock
        (PendingAcksMap.forEachAndClear). A decision in between finds the others still draining.
        """
        consumer = who(request)
        taken = self._still_cleared(consumer) if consumer in self._cleared else self._wanted_by(request)
        released = self._released_before_decision(consumer)
        now: list[int] = []
        self._cleared[consumer] = later = []
        for entry in taken:
            hash_value = self.core.pending_hash(entry)
            if released is None:
                now.append(entry)
            elif released[hash_value]:
                released[hash_value] -= 1
                now.append(entry)
            else:
                later.append(entry)
        self._let_go(consumer, now)

    def _still_cleared(self, consumer: int) -> list[int]:
        """Return the entries that the next request of a consumer has taken, and that no release has shown yet."""
        pending = set(self.core.pending_on(consumer))
        return [entry for entry in self._cleared.get(consumer, ()) if entry in pending]

    def _released_before_decision(self, consumer: int) -> Counter[int | None] | None:
        """Return the hashes that a request for everything releases before the next decision; ``None`` = all of them."""
        released: Counter[int | None] = Counter()
        decided = False
        for line in (self._line, *self._later_lines()):
            if line.kind in _DECISIONS:
                decided = True
            elif line.consumer != consumer:
                continue
            elif line.kind == "redeliver":
                break
            elif line.kind == "draining_release" and not line.recorded["closing"]:
                if decided:
                    return released
                released[line.recorded["hash"]] += 1
        return None

    # --- releases ------------------------------------------------------------------------------------------------

    def _on_draining_release(self, line: Line) -> None:
        consumer, hash_value = who(line), line.recorded["hash"]
        before = None if line.recorded["closing"] else self._releases.meet(consumer, hash_value)
        if before is not None and before == line.recorded["ref_count_before"]:
            self.tally.exact("draining")
            return
        recorded = (
            f"release of hash {hash_value} by {consumer} with {line.recorded['ref_count_before']} before"
        )
        if before is None and not line.recorded["closing"]:
            before = self._released_at_once(consumer, hash_value)
        if before is None:
            self._differ("draining", "no release", recorded)
        elif before == line.recorded["ref_count_before"]:
            self.tally.exact("draining")
        else:
            self._differ("draining", f"release with {before} before", recorded)

    def _released_at_once(self, consumer: int, hash_value: int) -> int | None:
        """Apply a trim, or a request for everything, that releases a hash; returns the reference count before.

        Both let go of several entries at once, without a line for each. ``None``: neither releases the hash.
        """
        before = None
        if self._is_trimmed(consumer, hash_value):
            before = self._trim_now(consumer, hash_value)
        request = self._next_request(consumer) if before is None else None
        if request is not None and self._takes_at_once(request):
            self._let_go_at_once(request)
            before = self._releases.meet(consumer, hash_value)
        return self._trim_now(consumer, hash_value) if before is None else before

    def _takes_at_once(self, request: Line) -> bool:
        """Check whether no entry of a request has a line for its removal. Recorders may name the entries of any request."""
        wanted = set(request.inputs["positions"] or ())
        for line in self._later_lines():
            if line is request:
                break
            own = line.kind == "pending_ack_removed" and line.consumer == request.consumer
            if own and wanted.intersection(line.recorded["positions"]):
                return False
        return True

    def _is_trimmed(self, consumer: int, hash_value: int) -> bool:
        """Check whether a trim that is under way lets go of an entry of a hash."""
        target = max((move.entry for move in self._moves_under_way()), default=-1)
        return any(
            entry <= target and self.core.pending_hash(entry) == hash_value
            for entry in self.core.pending_on(consumer)
        )

    def _trim_now(self, consumer: int, hash_value: int) -> int | None:
        if self._moves_under_way():
            self._take_acks_before_trim(self._lines.between(self._at, self._lines.horizon(self._at)))
        self._settle_cursor(CursorStep.TRIM)
        return self._releases.meet(consumer, hash_value)

    def _report_missing(self, missing: list[Released]) -> None:
        for item in missing:
            expected = f"release of hash {item.hash} by {item.consumer} with {item.ref_count_before} before"
            self._differ("draining", expected, "nothing", decisions=0)

    def _on_end(self, _line: Line) -> None:
        self._report_missing(self._releases.missing_at_end())
