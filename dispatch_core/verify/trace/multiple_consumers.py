"""Base of the verification of dispatchers with several consumers: read attempts, read results, rounds.

The driver gives each line's inputs to the core. Read attempts and rounds are windows (see ``racing``): decided as a whole
and compared with all their lines. A subclass has the lines of its dispatcher's membership, and says how a round is decided.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.broker.multiple_consumers import (
    Between,
    MultipleConsumersDispatcher,
    Read,
    Released,
    Round,
    Saved,
)
from dispatch_core.broker.profiles import Dispatcher, OrderingRule, Profile
from dispatch_core.broker.state import CLOSED, MAX_UNACKED_CONSUMER, PENDING_REPLAY
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.recording.batch_sizes import batch_sizes
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.earlier_positions import HELD_UP_US
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.late_entries import LateEntries
from dispatch_core.verify.trace.limits_in_force import (
    REASON_OF_CHANCE,
    REASON_OF_DELAY,
    REASON_OF_RATE,
    DeliverTimes,
)
from dispatch_core.verify.trace.races import BREAKS, CANCEL, LATE_MOVE, Command, Difference
from dispatch_core.verify.trace.racing import Effects, Window
from dispatch_core.verify.trace.reads import ReadsUnderWay
from dispatch_core.verify.trace.recorded import Recorded, Sent, differing_read
from dispatch_core.verify.trace.removed_consumers import RemovedConsumers
from dispatch_core.verify.trace.shown_state import ShownStateDriver

#: A closed dispatcher disconnects all its consumers within this time, microseconds.
CLOSES_WITHIN_US: Final = 1_000_000
#: Lines that a dispatcher does not write while it disconnects its consumers.
_OF_A_DISPATCHER_IN_USE: Final = (
    "consumer_added",
    "round_begin",
    "read_issued",
    "replay_read_issued",
    "flow_applied",
)
#: Lines that it does not write after that.
_OF_AN_OPEN_DISPATCHER: Final = frozenset({"consumer_added", "read_issued", "replay_read_issued"})
_REMOVAL: Final = frozenset({"consumer_removing"})
_MOVE: Final = frozenset({"mark_delete"})
#: Lines of a consumer before which the thread that removes a pending ack of its own has released the hash.
_ENDS_A_REMOVAL: Final = frozenset({"ack", "redeliver", "consumer_removing", "consumer_removed"})
_USE_OR_REMOVAL: Final = frozenset({*_OF_A_DISPATCHER_IN_USE, "consumer_removed"})


class MultipleConsumersVerifier(ShownStateDriver):
    """State of one verification: the core, what is expected of the coming lines, and the tally."""

    #: Class of the core.
    dispatcher: ClassVar[Callable[..., MultipleConsumersDispatcher]]

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(entries, facts, profile, tracked=profile.ordering is OrderingRule.DRAINING_HASHES)
        self.hashes = self._hashes_of(log.messages, profile)
        self.core = self.dispatcher(profile, self.hashes, batch_sizes(log.messages), facts.consumers_added)
        self.core.know_ledgers(entries.start_of_ledger)
        # read results waiting for their round: type, entries, how many more that the message log does not hold
        self._results: deque[tuple[str, list[int], int]] = deque()
        # Traces of a heavy load leave read attempts out: they are then inferred from the first line that shows one.
        # When the load is over they may have lines.
        self._attempts_logged = facts.attempts_from_the_start
        self._late_entries = LateEntries(log.messages)
        self._deliver_times = DeliverTimes(log.messages)
        self._reads = ReadsUnderWay()
        # No line between the present one and this one is of a dispatcher in use, or removes a consumer.
        self._use_or_removal_at = 0
        self._removal_at = 0  # no line between the present one and this one begins a removal
        self._cancel: Command | None = None  # of a waiting read, within the present read attempt
        self._late_move: Command | None = None  # see ``_move_behind_trim``, of the present read attempt
        self._removed_consumers = RemovedConsumers()
        # Removals of pending acks that have their effect later, see ``_is_held_up``.
        self._held_up: list[Line] = []

    def extend(self, drop: int, messages: pa.Table) -> None:
        """See ``Driver.extend``."""
        if drop:
            self._change_ordinals(lambda entry: entry - drop)
            self._change_cursor_ordinals(drop)
        hashes = self._hashes_of(messages, self.core.profile)
        self.hashes = np.concatenate([self.hashes[drop:], hashes])
        self.core.extend(drop, hashes, batch_sizes(messages))
        self._late_entries.drop(drop)
        self._late_entries.add(messages)
        self._deliver_times.drop(drop)
        self._deliver_times.add(messages)
        self._take_acked_before()
        self._moved_between_lines()

    def _settled(self) -> int:
        """See ``Driver``."""
        return self.core.droppable()

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``: read results that wait for their round."""
        super()._change_ordinals(change)
        for removal in self._held_up:
            removal.change_ordinals(change)
        self._results = deque((kind, [*map(change, entries)], more) for kind, entries, more in self._results)

    @abstractmethod
    def _hashes_of(self, messages: pa.Table, profile: Profile) -> npt.NDArray[np.int64]:
        """Return the sticky key hash of each entry, as the dispatcher computes it."""

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_consumer_added(self, line: Line) -> None:
        self._settle_all()
        self.core.join(who(line), line.inputs["name"], line.inputs["priority_level"] or 0)
        moved_to = self._compare_positions(line)
        if moved_to is not None:
            self._read_moved_on(moved_to)

    def _read_moved_on(self, entry: int) -> None:
        """Take note that a read in flight has moved the read position to ``entry``; nothing depends on it, here."""

    def _keep_pending_acks(self, consumer: int) -> None:
        """Keep the pending acks of a consumer that leaves now, where they stay in it (``removed_consumers``)."""
        is_classic = self.core.profile.dispatcher in (
            Dispatcher.KEY_SHARED_CLASSIC,
            Dispatcher.SHARED_CLASSIC,
        )
        if is_classic or self.core.connected() == [consumer]:
            entries = self.core.pending_on(consumer)
            pending = {self._entries.position(entry): self.core.pending_hash(entry) for entry in entries}
            self._removed_consumers.add(consumer, self._line.t_us, pending)
            under_way = [ack.entry for ack in self.connection(consumer).open() if ack.entry >= 0]
            acked = (self._entries.position(entry) for entry in under_way)
            self._removed_consumers.let_go(consumer, acked, self._line.t_us)

    def _on_ack(self, line: Line) -> None:
        """See ``PendingAcksDriver``."""
        self._note_removed_acks(line)
        super()._on_ack(line)

    def _note_removed_acks(self, ack: Line) -> None:
        """Note what a consumer that was removed acknowledges."""
        if who(ack) in self._removed_consumers:
            known = (self._entries.position(entry) for entry in ack.inputs["positions"] if entry >= 0)
            self._removed_consumers.let_go(who(ack), known, ack.t_us)

    def _note_removed_request(self, removal: Line) -> None:
        """Note what a consumer that was removed asks for: the line of its request is behind those of the removals."""
        request = self._next_request(who(removal))
        if request is None or who(removal) not in self._removed_consumers:
            return
        named, entries = request.inputs["positions"], removal.recorded["positions"]
        asked = [entry for entry in entries if entry >= 0 and (named is None or entry in named)]
        self._removed_consumers.let_go(who(removal), map(self._entries.position, asked), removal.t_us)

    def _on_pending_ack_removed(self, line: Line) -> None:
        """See ``PendingAcksDriver``: a consumer that was removed may have its pending acks until it lets go of them."""
        self._note_removed_request(line)
        if who(line) not in self._removed_consumers:
            if self._is_held_up(line):
                self._held_up.append(line)
            else:
                super()._on_pending_ack_removed(line)
            return
        for entry in line.recorded["positions"]:
            position = self._entries.position(entry) if entry >= 0 else ""
            hash_value = self._removed_consumers.take(who(line), position)
            if hash_value is None:
                said = self._positions([entry])
                self._differ(self.removals_class, "pending ack removed: none", said, decisions=0)
            else:
                self._compare_fixed(line, "hash", hash_value, line.recorded["hash"])
                # The hash drains no more: what it counted went when the consumer left.
                self._releases.expect([Released(who(line), hash_value, 0)], connection=who(line))

    def _is_held_up(self, removal: Line) -> bool:
        """Check whether the thread that removes a pending ack is held up before it releases the hash.

        Lines in between show it: a decision finds the hash still draining that this release ends.
        """
        consumer, hash_value, blocked = removal.consumer, removal.recorded["hash"], False
        if not self._tracked or hash_value is None:
            return False
        for line in self._later_lines():
            if line.kind == "draining_blocked":
                blocked = blocked or line.recorded["hash"] == hash_value
            elif line.kind == "draining_release" and line.consumer == consumer:
                return (
                    blocked and line.recorded["hash"] == hash_value and line.recorded["ref_count_before"] == 1
                )
            elif line.consumer == consumer and line.kind in _ENDS_A_REMOVAL:
                return False
        return False

    def _on_draining_release(self, line: Line) -> None:
        """See ``PendingAcksDriver``: a removal that is held up has its effect here."""
        for removal in self._held_up:
            if (removal.consumer, removal.recorded["hash"]) == (line.consumer, line.recorded["hash"]):
                self._held_up.remove(removal)
                super()._on_pending_ack_removed(removal)
                break
        super()._on_draining_release(line)

    # --- connections that break ----------------------------------------------------------------------------------

    def _under_way(self, steps: int) -> tuple[dict[int, list[Command]], dict[int, list[Command]]]:
        """See ``RacingDriver``. A connection may have broken already if its consumer is removed soon, without a command."""
        waiting, late = super()._under_way(steps)
        if self._cancel is not None:
            self._placed.append(self._cancel)
            late[CANCEL] = [self._cancel]
        elif self._forgets_replay is not None:
            waiting[CANCEL] = [self._forgets_replay]
        if self._late_move is not None:
            waiting[LATE_MOVE] = [self._late_move]
        for consumer in self.core.connected() if self._removal_comes_soon() else ():
            removal = self._removal_ahead(consumer)
            if removal is not None:
                what = f"the end of the connection of consumer {consumer}"
                for inactive in self.breaks:
                    if inactive and self._shown_active(consumer, removal):
                        continue
                    command = Command(removal.seq, consumer, what, breaks=True, inactive=inactive)
                    waiting[BREAKS - 2 * consumer - inactive] = [command]
        return waiting, late

    def _shown_active(self, _consumer: int, _removal: Line) -> bool:
        """Check whether a line shows that a connection is active at the end of the window; no line shows it, here."""
        return False

    def _removal_comes_soon(self) -> bool:
        """Check whether any consumer is removed soon."""
        stop = self._lines.horizon(self._at)
        self._removal_at = self._lines.first_of(_REMOVAL, max(self._at + 1, self._removal_at), stop)
        return self._removal_at < stop and self._lines[self._removal_at].t_us - self._line.t_us <= HELD_UP_US

    def _cancel_within(self, window: Window) -> Command | None:
        """Return the cancel of a waiting read that comes before an attempt issues its own.

        The timer that cancels it does not hold the dispatcher's lock (``cancelPendingRead``, ``RescheduleReadHandler``).
        """
        for _at, line in self._within(window.end):
            if line.kind in ("read_issued", "replay_read_issued"):
                return None
            if line.kind == "read_cancelled" and line.inputs["cancelled"]:
                return Command(line.seq, CANCEL, "the cancel of the read", cancels=True)
        return None

    def break_connection(self, command: Command) -> None:
        """See ``RacingDriver``."""
        self.core.connection_broke(command.connection, inactive=command.inactive)

    # --- reads ---------------------------------------------------------------------------------------------------

    def _on_read_attempt(self, line: Line) -> None:
        self._attempts_logged = True
        self._attempt(self._frame(line, "read_attempt_end"))

    def _attempt(self, window: Window, *, including: bool = False) -> None:
        """Verify one read attempt; ``including``: the present line is one of its recorded lines."""
        if self.core.trims_in_attempts() and (self._moves_under_way() or self.core.overtaken()):
            self._take_acks_before_trim(self._within(window.end))
        recorded = self._attempt_lines(window, including=including)
        rated = self._rate_may_hold()
        limited: list[Difference] = []  # decisions that a rate, or chance, explains
        pauses = self._pauses(recorded)
        self._cancel = self._cancel_within(window)
        self._cancelled_at = 0
        replay_was_pending = bool(self.core.state.s[PENDING_REPLAY])

        self._late_move = self._move_behind_trim()

        def decide(between: Between) -> Read:
            limited.clear()
            self.core.trim_to(None)
            if self._may_be_closed(recorded):
                return self._attempt_closed(between, recorded)
            if rated:
                return self._attempt_under_rate(between, recorded, limited)
            return self._attempt_read(between, recorded, pauses, limited)

        def differences(read: Read) -> list[Difference]:
            return differing_read(read, recorded, self._positions)

        outcome = self._decide(
            window,
            3 + len(pauses),
            decide,
            lambda read: [*differences(read), *self._not_trimmed(window)],
        )
        self._late_move = self._forgets_replay = None
        self.core.trim_to(None)
        kind = outcome.answer.kind
        shows_cancel = kind == "Normal" or (kind == "Replay" and replay_was_pending)
        if self._cancel is not None and self._cancel.applied and not shows_cancel:
            self._cancelled_at = self._cancel.seq
        if not outcome.explained:  # what is missing is reported when its line is overdue
            outcome.plain = differences(outcome.answer)
            outcome.explained = not outcome.plain
        if rated and outcome.explained and not limited:
            self._limits.full_read(recorded.read.max_entries or len(recorded.read.entries))
        for difference in limited:
            reason = REASON_OF_RATE if rated else REASON_OF_CHANCE
            window.leave_unjudged(difference.decision_class, difference.decisions, reason)
        self._reads.attempted(outcome.answer)
        self._refused = self._at, list(outcome.answer.refused)
        if self.core.trimmed:
            self._expect_by(self.core.trimmed, window)
            self._finish_acks_of_nobody()
        self._judge(window, outcome)

    def _move_behind_trim(self) -> Command | None:
        """Return the move of mark-delete that an attempt may not have seen when it trimmed: its line is to come.

        The thread of an ack moves the cursor without the dispatcher's lock, and writes the line of the move then.
        """
        _, shown = self._moved_to
        if not self.core.trims_in_attempts() or shown >= self.core.mark_delete():
            return None
        horizon = self._lines.horizon(self._at)
        at = self._lines.first_of(_MOVE, self._at + 1, horizon)
        if at == horizon:
            return None
        what = "the move of mark-delete"
        return Command(self._lines[at].seq, LATE_MOVE, what, trims_to=shown)

    def _not_trimmed(self, window: Window) -> list[Difference]:
        """List the releases of an attempt's trim that have no line in it, if mark-delete may have moved later."""
        if self._late_move is None or not self.core.trimmed:
            return []
        missing = Counter((released.consumer, released.hash) for released in self.core.trimmed)
        missing.subtract(
            (who(line), line.recorded["hash"])
            for _at, line in self._within(window.end)
            if line.kind == "draining_release" and not line.recorded["closing"]
        )
        return [
            Difference("draining", f"release of hash {hash_value} by {consumer}", "nothing", decisions=0)
            for (consumer, hash_value), count in missing.items()
            for _ in range(count)
        ]

    def _pauses(self, _recorded: Recorded) -> Sequence[int]:
        """Return entries before which the scan of the replay set pauses, see ``attempt_read``; none, here."""
        return ()

    def _attempt_read(
        self, between: Between, _recorded: Recorded, pauses: Sequence[int], _limited: list[Difference]
    ) -> Read:
        """Attempt a read by the rules."""
        return self.core.attempt_read(between, pauses=pauses)

    def _may_be_closed(self, recorded: Recorded) -> bool:
        """Check whether the dispatcher may have been closed before an attempt that issued no read.

        Recorders need not log that. A dispatcher that is closed disconnects its consumers one after the other, and each of
        them attempts a read when it goes. So a consumer leaves here, and all others follow, before anything else is asked,
        and nobody joins after them.
        """
        if recorded.read.kind != "None" or self.core.state.s[CLOSED]:
            return False
        horizon = self._lines.horizon(self._at)
        self._use_or_removal_at = self._lines.first_of(
            _USE_OR_REMOVAL, max(self._at + 1, self._use_or_removal_at), horizon
        )
        if (
            self._use_or_removal_at == horizon
            or self._lines[self._use_or_removal_at].kind != "consumer_removed"
        ):
            return False
        left = {*self.core.connected()}
        for at, line in self._lines.between(self._at + 1, horizon):
            if line.t_us > self._line.t_us + CLOSES_WITHIN_US or line.kind in _OF_A_DISPATCHER_IN_USE:
                return False
            if line.kind == "consumer_removed":
                left.discard(who(line))
                if not left:
                    return self._lines.first_of(_OF_AN_OPEN_DISPATCHER, at + 1, horizon) == horizon
        return False

    def _attempt_closed(self, between: Between, recorded: Recorded) -> Read:
        """Attempt a read by the rules, and if that is not what the log has, as a closed dispatcher does."""
        saved = self.core.save()
        read = self.core.attempt_read(between)
        if not differing_read(read, recorded, self._positions):
            return read
        self._take_back(saved)
        self.core.close()
        return self.core.attempt_read(between)

    def _on_all_disconnecting(self, _line: Line) -> None:
        """The dispatcher is closed."""
        self.core.close()

    def _attempt_under_rate(self, between: Between, recorded: Recorded, limited: list[Difference]) -> Read:
        """Attempt a read by the rules, and if that is not what the log has, one of at most as many entries as it has."""
        saved = self.core.save()
        read = self.core.attempt_read(between)
        found = differing_read(read, recorded, self._positions)
        if not found:
            return read
        for at_most in self._allowed_by_rate(recorded.read):
            self._take_back(saved)
            capped = self.core.attempt_read(between, at_most)
            if not differing_read(capped, recorded, self._positions):
                limited += found
                return capped
            if len(capped.entries) > len(recorded.read.entries):
                break
        self._take_back(saved)
        return self.core.attempt_read(between)

    def _allowed_by_rate(self, read: Read) -> Iterable[int]:
        """Return how many entries a dispatch rate may have allowed an attempt with a recorded read, the fewest first."""
        return (read.max_entries or len(read.entries),)

    def _take_back(self, saved: Saved) -> None:
        """Take an attempt back: the core is as it was saved, and nothing has had an effect."""
        self.core.restore(saved)
        self._effects = Effects()

    def _limits_changed(self) -> None:
        """See ``CursorDriver``. Acks that have begun to take effect are tested against the limit before."""
        self._finish_acks()
        self.core.limit_unacked(self._limits.unacked())
        self._open_limit_ends()

    def _open_limit_ends(self) -> None:
        """Open a fact for each consumer that the last acks would have unblocked under the limit that is in force now.

        A recorder asks for policies once a second, so a policy may have reached the dispatcher some time before its line.
        """
        limit = int(self.core.state.s[MAX_UNACKED_CONSUMER])
        for consumer in self.core.connected():
            if self.core.is_blocked(consumer) and 2 * self.core.unacked(consumer) <= limit:
                what = "the end of a policy's limit of unacknowledged messages"
                self._facts.append(Command(self._line.seq, consumer, what, limit_ended=True))

    def apply_fact(self, fact: Command) -> None:
        """See ``RacingDriver``."""
        super().apply_fact(fact)
        if fact.limit_ended and fact.connection in self.core.connected():
            self.core.unblock(fact.connection)

    def _attempt_lines(self, window: Window, *, including: bool) -> Recorded:
        recorded = Recorded()
        own = [(self._at, self._line)] if including else []
        for at, line in [*own, *self._within(window.end)]:
            if line.kind in ("read_issued", "replay_read_issued") and recorded.read_seq:
                continue  # an attempt issues one read: this line belongs to no attempt
            if line.kind == "read_issued":
                recorded.read = Read("Normal", max_entries=line.recorded["max_entries"])
                recorded.read_seq = line.seq
                window.count("read")
            elif line.kind == "replay_read_issued":
                recorded.read = Read("Replay", entries=tuple(line.recorded["positions"]))
                recorded.read_seq = line.seq
                window.count("read")
            elif line.kind == "draining_blocked":
                recorded.blocked.append(((who(line), line.recorded["hash"]), line.seq))
                recorded.held_back[line.recorded["hash"]] += 1
                window.count("draining")
            elif line.kind == "replay_already_deleted":
                recorded.already_deleted = line.recorded["positions"]
                recorded.deleted_seq = line.seq
                window.count("state")
            else:
                if line.kind == "read_done":
                    recorded.results.setdefault(line.inputs["type"], line.seq)
                elif line.kind == "draining_release" and line.recorded["ref_count_before"] == 1:
                    recorded.released.add(line.recorded["hash"])
                elif line.kind == "recently_joined_pruned":
                    recorded.prunes = True
                continue
            self._judged.add(at)
        self._judged.discard(self._at)
        return recorded

    def _on_read_issued(self, line: Line) -> None:
        self._inferred_attempt(line)
        self._compare_positions(line)

    def _on_replay_read_issued(self, line: Line) -> None:
        self._inferred_attempt(line)

    def _inferred_attempt(self, line: Line) -> None:
        """Verify a line of an attempt that the trace does not frame."""
        if self._attempts_logged:
            decision_class = "draining" if line.kind == "draining_blocked" else "read"
            self._differ(decision_class, "nothing outside a read attempt", line.kind)
            return
        end = self._inferred_end(line)
        following = self._lines.between(end + 1, self._lines.horizon(self._at))
        end += int(next((other.kind for _at, other in following), "") == "replay_already_deleted")
        self._attempt(Window(line, end), including=True)

    def _inferred_end(self, _line: Line) -> int:
        """Return the last line of an attempt that the trace does not frame: its read, which the present line is."""
        return self._at

    def _on_read_cancelled(self, line: Line) -> None:
        if not line.inputs["cancelled"]:
            return
        self._reads.cancelled()
        cancel, self._cancel = self._cancel, None
        if cancel is None or cancel.seq != line.seq or not cancel.applied:
            self._cancelled_at = line.seq if self._read_is_pending() else 0
            self.core.read_cancelled()

    def _on_read_done(self, line: Line) -> None:
        kind, positions = line.inputs["type"], line.inputs["positions"]
        entries = [entry for entry in positions if entry >= 0]
        if not self._reads.completes(kind):
            self._differ("read", "no such read under way", f"a {kind.lower()} read completes", decisions=0)
        if line.recorded["hashes"] is not None:
            self._compare_hashes(positions, self.hashes, line.recorded["hashes"])
        taken = self.core.read_done(kind, entries)
        if taken:
            self._results.append((kind, entries, len(positions) - len(entries)))
        self._compare_read_done(line, rewound=not taken)

    # --- rounds --------------------------------------------------------------------------------------------------

    def _on_round_begin(self, line: Line) -> None:
        if not self._results:
            raise IllegalTransitionError(
                "a round without a read result", rule="a round dispatches one read result"
            )
        kind, entries, unknown = self._results.popleft()
        self.tally.rounds += 1
        if self._deliver_times.any_later(entries, line.t_us):
            self._stop_judging(REASON_OF_DELAY)
            self._leave(line)
            return
        self._compare_result(line, kind, entries, unknown)
        self._compare_positions(line)
        window = self._frame(line, "round_end")
        recorded = self._round_lines(window)
        sent_to = {sent.consumer for sent in recorded.sent}.intersection(self.core.connected())
        late = self._late_commands()
        before = {consumer: self._plain_counters(consumer, late) for consumer in sent_to}
        window.count("dispatch", len(entries) + unknown)
        has_more = recorded.end is not None and bool(recorded.end.inputs["has_more"])

        steps = self._steps_of_round(recorded)

        def decide(between: Between) -> Round:
            outcome = self._dispatch(kind, entries, between, steps)
            outcome.look_ahead = self.core.finish_round(outcome, has_more=has_more)
            self._go_on(outcome, window)
            return outcome

        def differences(answer: Round) -> list[Difference]:
            found = self._differing_round(answer, entries, recorded)
            return [*self._open_at_end(answer, found, recorded), *self._differing_charges(answer, window)]

        outcome = self._decide(window, steps, decide, differences)
        self._refused = self._at, outcome.answer.refused
        self._charged(outcome.answer, window, before)
        if unknown:
            outcome.plain.append(
                Difference(
                    "dispatch", "entries of the message log", f"{unknown} that it does not hold", unknown
                )
            )
            outcome.explained = False
        if outcome.left:
            self._take_end(outcome.answer)
        self._judge(window, outcome)
        self._open_totals(window, outcome.answer)
        self._after_round(outcome.answer)

    def _differing_charges(self, outcome: Round, window: Window) -> list[Difference]:
        """Find sends that are charged less than in the plain order, as indexes of them are acknowledged within the round.

        Acknowledged indexes are not charged. The dispatcher looks for them before the send, and no line shows when
        (AbstractBaseDispatcher.filterEntriesForConsumer). Other charges show in the permits (``shown_state``).
        """
        acked = {command.entry for command in self._peeked.values() if command.words}
        if not acked:
            return []
        found: list[Difference] = []
        sends, sent = -1, None
        for _at, line in self._within(window.end):
            if line.kind == "sent":
                sends, sent = sends + 1, line
            elif line.kind == "send_returned" and sent is not None:
                before, after = sent.recorded["permits_before"], line.recorded["permits_after"]
                sizes = {
                    entry: self.core.state.num_messages.item(entry)
                    for entry in sent.recorded["positions"]
                    if entry >= 0
                }
                charged = sum(sizes.values()) - outcome.acked_in_send(sends, who(sent))
                most = sum(size for entry, size in sizes.items() if entry in acked)
                if None not in (before, after) and 0 < charged - (before - after) <= most:
                    expected, recorded = (
                        f"charged {permits} permits" for permits in (charged, before - after)
                    )
                    found.append(Difference("permits", expected, recorded, 0, line.seq))
        return found

    def _steps_of_round(self, _recorded: Recorded) -> int:
        """Return in how many steps the core decides a round: other threads may come in between."""
        return 3

    def _dispatch(self, kind: str, entries: list[int], between: Between, _steps: int) -> Round:
        """Have the core dispatch a read result; ``between`` is called before each of the steps."""
        return self.core.round(kind, entries, between)

    @abstractmethod
    def _differing_round(
        self, outcome: Round, entries: Sequence[int], recorded: Recorded
    ) -> list[Difference]:
        """Compare a round with its lines."""

    def _open_at_end(
        self, outcome: Round, found: Iterable[Difference], recorded: Recorded
    ) -> list[Difference]:
        """Note what no line shows with the differences that it may explain: of what is sampled at the end of the round."""
        end = recorded.end
        return [
            replace(difference, unlogged=self._unlogged_at_end(outcome, end))
            if end is not None and difference.decision_class == "round"
            else difference
            for difference in found
        ]

    def _unlogged_at_end(self, _outcome: Round, _end: Line) -> Command | None:
        """Return what may explain another end of a round than that of the core, and no line shows; nothing, here."""
        return None

    def _take_end(self, outcome: Round) -> None:
        """Do what follows from the end of a round that only something without a line explains; nothing, here."""

    def _after_round(self, outcome: Round) -> None:
        """Do what follows a round that no line shows; nothing, here."""

    def _on_sent(self, line: Line) -> None:
        """Report a delivery outside a round: the lines of a round are compared with it."""
        got = self._positions(line.recorded["positions"])
        self._differ("dispatch", "nothing outside a round", f"consumer {who(line)} gets {got}", decisions=0)

    def _on_round_end(self, _line: Line) -> None:
        """Report the end of no round."""
        self._differ("round", "no round to end", "a round ends", decisions=0)

    def _compare_result(self, line: Line, kind: str, entries: list[int], unknown: int) -> None:
        """Compare the read result that a round dispatches: its type and its entries."""
        self._compare_fixed(line, "type", kind, line.recorded["type"])
        positions = line.recorded["positions"]
        same = positions is not None and [entry for entry in positions if entry >= 0] == entries
        if same and len(positions) == len(entries) + unknown:
            self.tally.exact("state")
        elif positions is not None:
            self._differ(
                "state", f"a round of {self._positions(entries)}", f"of {self._positions(positions)}"
            )

    def _go_on(self, outcome: Round, window: Window) -> None:
        """Apply what the lines of a window show about the end of the round: which sends were written by then."""
        self._take_written(window, outcome)

    def _round_lines(self, window: Window) -> Recorded:
        recorded = Recorded()
        for at, line in self._within(window.end):
            if line.kind == "sent":
                before = line.recorded["permits_before"]
                recorded.sent.append(Sent(who(line), line.recorded["positions"], before, line.seq))
                if before is not None:
                    window.count("permits")
            elif line.kind == "draining_blocked":
                recorded.blocked.append(((who(line), line.recorded["hash"]), line.seq))
                window.count("draining")
            elif line.kind == "pending_ack_refused":
                recorded.not_taken.append(line)
                window.count("state")
            elif line.kind == "round_end":
                recorded.end = line
                window.count("replay_set")
                window.count("round")
            else:
                continue
            self._judged.add(at)
        return recorded

    # --- reporting -----------------------------------------------------------------------------------------------

    def class_of(self, kind: str) -> str:
        """Return the class of decision for an illegal line of this kind."""
        return _CLASS_OF.get(kind, "dispatch")


_CLASS_OF = {
    "pending_ack_removed": "draining",
    "selector_added": "subscribe",
    "selector_removed": "subscribe",
    "consumer_added": "subscribe",
}
