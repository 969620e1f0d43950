"""Compare the state that a trace shows with the core's: permits, counters, flags, positions of the cursor.

Each compared field of a line (``inputs.STATE_FIELDS``, ``inputs.POSITION_FIELDS``) is a decision of the class ``state`` or
``position``. A value is compared at its own line. In the plain order everything that arrived in front of that line has had
its effect. If the values differ, they are compared with those that the open effects allow (``open_effects``): a flow or an
ack whose effect is logged only later, or between the sampling of the value and its line. Then the value is uncertain, and
the line of the command is named. The core goes on as before: only the total permits decide an open fact
(``open_totals``).

Within a round a consumer's values are those before the send to it up to the line of that send, and those after it from the
line ``send_returned`` on; in between both are possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np

from dispatch_core.broker import state as st_
from dispatch_core.broker.multiple_consumers import Acked, Released, Round
from dispatch_core.broker.profiles import Profile
from dispatch_core.verify.inputs import STATE_FIELDS, Entries, Line, ShownConsumer, shown_consumers
from dispatch_core.verify.tally import Fields
from dispatch_core.verify.trace import limits_in_force
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.earlier_positions import HELD_UP_US, Begun
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.index_acks import CountedLater, IndexAcksDriver
from dispatch_core.verify.trace.limits_in_force import Limit
from dispatch_core.verify.trace.mark_delete_lines import Arrival
from dispatch_core.verify.trace.pending_acks import OnlyCursor, ParkedFlow, Redelivered
from dispatch_core.verify.trace.races import CANCEL, LIMIT, Command
from dispatch_core.verify.trace.racing import NEXT_SECTION, CursorStep, Window
from dispatch_core.verify.trace.shown_positions import OF_A_CONNECTION, PositionsDriver

_AUTO_SPLIT: Final = "HashRangeAutoSplitStickyKeyConsumerSelector"
_CONSISTENT_HASHING: Final = "ConsistentHashingStickyKeyConsumerSelector"
_STICKY: Final = "HashRangeExclusiveStickyKeyConsumerSelector"


_UNDER_THE_LOCK: Final = frozenset(
    {
        *(NEXT_SECTION - {"redeliver", "end"}),
        *("read_attempt_end", "round_end", "sent", "send_returned"),
        *("replay_already_deleted", "read_done", "usable_seen", "draining_blocked"),
        "recently_joined_pruned",  # markDeletePositionMoveForward
    }
)


#: Pseudo connection of what a trim after a move of the cursor does to counters.
_TRIM: Final = -1


class Charge(NamedTuple):
    """The charge of a round to a consumer, between the lines ``sent`` and ``send_returned``."""

    sent: int  # seq
    returned: int  # seq
    permits: int
    unacked: int
    blocked: bool  # by this send
    average: float  # messages per entry before it


class MarkedLimit(NamedTuple):
    """The last limit of unacknowledged messages that a mark set or removed, and the one before.

    ``begun``: the mark's is taken as in force, not the one before.
    """

    mark: Line
    limit: Limit
    before: Limit
    begun: bool


class Counters(NamedTuple):
    """Values of a consumer at some moment; ``racing``: seq of the command whose other order gives them, 0 = plain.

    ``connected``: its connection has not broken. ``limit``: of unacknowledged messages, where a line to come sets it, else
    ``None``: that in force.
    """

    permits: int
    unacked: int
    blocked: bool
    average: float
    racing: int = 0
    connected: bool = True
    limit: int | None = None


def _before(charge: Charge, counters: Counters) -> Counters:
    """Return the values before a send was charged."""
    return counters._replace(
        permits=counters.permits + charge.permits,
        unacked=counters.unacked - charge.unacked,
        blocked=counters.blocked and not charge.blocked,
        average=charge.average,
    )


def _arrival(command: Command, line: Line) -> Arrival:
    return Arrival(command.connection, command.seq, command.entry, line.t_us)


class ShownStateDriver(PositionsDriver, IndexAcksDriver):
    """Verify the lines and fields that show the state of the dispatcher."""

    state_fields: ClassVar[Fields] = STATE_FIELDS
    section_kinds: ClassVar[frozenset[str]] = _UNDER_THE_LOCK
    #: Ways in which a connection that breaks matters before its consumer is removed: whether it is inactive, too.
    breaks: ClassVar[tuple[bool, ...]] = ()

    def __init__(self, entries: Entries, facts: TraceFacts, profile: Profile, *, tracked: bool) -> None:
        super().__init__(entries, facts, tracked=tracked)
        self._selector_name = (
            _STICKY
            if profile.key_shared_mode == "STICKY"
            else _CONSISTENT_HASHING
            if profile.consistent_hashing
            else _AUTO_SPLIT
        )
        # Of the last round, in the order of its sends; before them those that a flow which is being counted overlaps.
        self._charges: dict[int, list[Charge]] = {}
        self._clear_due = False  # all consumers have left: the draining hashes are cleared
        self._now = np.zeros(0, np.int64)  # scratch
        # Holder and command of acks whose release is to come: the cursor's turn is after it.
        self._before_release: list[tuple[int, Command]] = []
        self._sampled_after = 0  # seq of the last line of the dispatcher's thread in a read attempt …
        self._sampled_before = 0  # … and of the one before
        self._moved_at: Line | None = None  # the last move of the cursor by which counters fall
        # Consumer → seq and permits of its flow that is being counted: the line that shows its counters is to come.
        self._counting: dict[int, tuple[int, int]] = {}
        self._marked_limit: MarkedLimit | None = None
        # Line within the present attempt that cancels a read, and whose thread may clear the flags later; 0 = there is none.
        self._cancelled_at = 0
        # Such a cancel that may clear the flag of a replay read after the attempt.
        self._forgets_replay: Command | None = None

    def _before_flow_counted(self, line: Line) -> None:
        """See ``Driver``: lines that the thread of a connection writes."""
        self._effects_are_over(line)
        self._connection_goes_on(line)

    def _before_ack(self, line: Line) -> None:
        """See ``Driver``."""
        self._effects_are_over(line)
        self._connection_goes_on(line)
        self._releases_are_over(line)

    def _before_redeliver(self, line: Line) -> None:
        """See ``Driver``."""
        self._effects_are_over(line)
        self._releases_are_over(line)

    def _before_flow(self, line: Line) -> None:
        """See ``Driver``."""
        self._close_limit_marked_long_ago(line)
        self._effects_are_over(line)
        self._connection_goes_on(line)
        if line.consumer is not None:
            self._effects_open.flow(line.consumer, line.seq, line.inputs["permits"])
            if self._counting_logged:
                self._counting[line.consumer] = line.seq, line.inputs["permits"]
        self._releases_are_over(line)

    def _sampled(self, line: Line) -> None:
        """Take a line that the dispatcher's thread writes in a read attempt."""
        self._close_limit_marked_long_ago(line)
        self._sampled_before, self._sampled_after = self._sampled_after, line.seq

    # See ``Driver``.
    _before_read_attempt = _before_read_issued = _before_replay_read_issued = _sampled
    _before_replay_already_deleted = _before_usable_seen = _before_draining_blocked = _sampled

    def _before_read_done(self, line: Line) -> None:
        """See ``Driver``."""
        self._sampled(line)
        super()._before_read_done(line)

    # --- permits, counters and flags -----------------------------------------------------------------------------

    def _on_flow(self, line: Line) -> None:
        self._compare_counters(line, ("blocked",), lambda c: (c.blocked,), since=line.seq)
        if who(line) in self._contested and line.recorded["blocked"] is False:
            del self._contested[who(line)]  # it was not blocked, as the line shows
            self.core.unblock(who(line))
        missing = self._unblocked_by_order.pop(who(line), None)
        if missing is not None and line.recorded["blocked"]:
            self.block_again(missing)
        self._change_limit_by(line)
        super()._on_flow(line)

    def _on_flow_counted(self, line: Line) -> None:
        super()._on_flow_counted(line)
        since, _ = self._counting.get(who(line), (line.seq, 0))
        self._compare_counters(
            line,
            ("permits_after", "blocked_after"),
            lambda c: (c.permits, c.blocked),
            since=since,
            counted=True,
        )
        self._counting.pop(who(line), None)

    def _count_instead_of_park(self, line: Line, counters: list[Counters]) -> None:
        """Set the values that hold if a flow within a send that blocks its consumer came before the block.

        Such a flow is counted and not parked. If the line shows that, the core counts it, too.
        """
        consumer, recorded = who(line), line.recorded["permits_after"]
        flow = self._counting.get(consumer)
        blocking = (charge for charge in self._charges.get(consumer, ()) if charge.blocked)
        charge = next((c for c in blocking if flow is not None and c.sent < flow[0] < c.returned), None)
        if charge is None or flow is None:
            return
        plain, counted = counters[0], flow[1]
        if not plain.blocked or recorded == plain.permits:
            return
        shown = plain._replace(permits=plain.permits + counted, racing=charge.sent)
        before = shown._replace(permits=shown.permits + charge.permits, blocked=False)
        counters[1:] = [shown, before]
        if recorded in (counter.permits for counter in counters[1:]):
            self.core.count_parked(consumer, counted)

    def _on_send_returned(self, line: Line) -> None:
        self._note_returned()
        charges = self._charges.get(who(line), ())
        since = next((charge.sent for charge in charges if charge.returned == line.seq), line.seq)
        self._compare_counters(line, ("permits_after",), lambda c: (c.permits,), since=since, returned=True)

    def _on_usable_seen(self, line: Line) -> None:
        consumer = who(line)
        self._compare_counters(
            line, ("value",), lambda c: (self._usable(consumer, c),), since=self._sampled_before
        )

    def _compare_counters(
        self,
        line: Line,
        fields: tuple[str, ...],
        values: Callable[[Counters], tuple[object, ...]],
        *,
        since: int,
        counted: bool = False,
        returned: bool = False,
    ) -> None:
        """Compare fields of a line with ``values`` of a consumer's counters, sampled after line ``since``.

        ``counted``: the consumer's last flow is in them for sure. ``returned``: the charge of its send is.
        """
        recorded = line.recorded
        plain = values(self._plain_at(who(line), line.seq))
        if tuple([recorded[name] for name in fields]) == plain:
            self.tally.exact("state", len(fields))
            return
        counters = self._counters(who(line), since, line.seq, own_flow=counted, returned=returned)
        if counted:
            self._count_instead_of_park(line, counters)
        for at, name in enumerate(fields):
            self._compare_one(line, name, recorded[name], [(values(c)[at], c.racing) for c in counters])

    def _on_read_attempt_end(self, line: Line) -> None:
        s, recorded = self.core.state.s, line.recorded
        self._compare_total(line)
        self._compare_pending(line)
        usable = recorded["usable"]
        if usable is None:
            return
        self._settle_counted()
        if not self._late_commands() and usable == self._consumers_now():
            self._forget_refuted()
            self.tally.exact("state")
            return
        racing = 0
        expected: list[int] = []
        rows = shown_consumers(line)
        fits = len(rows) == int(s[st_.N_CONSUMERS])
        for at, consumer in enumerate(self.core.connected()):
            plain = self._plain_at(consumer, line.seq)
            own = ShownConsumer(consumer, self._usable(consumer, plain), plain.permits, plain.unacked)
            expected += own
            fits = fits and rows[at].consumer == consumer
            if not fits or rows[at] == own:
                continue
            shown = (
                self._show_by_counter(consumer, own.unacked, rows[at].unacked)
                if rows[at].unacked != own.unacked
                else 0
            )
            counters = self._counters(consumer, self._sampled_after, line.seq)
            moments = [(self._usable(consumer, c), c.permits, c.unacked, c.racing) for c in counters]
            if shown:
                moments.append((*own[1:], shown))
                racing = max(racing, shown)
            # The three are read one after the other, so each may be of another moment.
            seqs = [
                next((other[3] for other in moments if other[of] == value), None)
                for of, value in enumerate(rows[at][1:])
            ]
            fits = None not in seqs
            racing = max([racing, *(seq for seq in seqs if seq is not None)])
        self._settle_value(line, "usable", expected, usable, (racing or None) if fits else None)

    def _compare_pending(self, line: Line) -> None:
        """Compare whether reads are pending at the end of an attempt.

        A thread that cancels a read clears the flags behind its line. Where it clears that of a replay read, too, the
        attempt may have set that before: the read is forgotten, though it will complete.
        """
        s, cancelled_at, recorded = self.core.state.s, self._cancelled_at, line.recorded
        normal, replay = bool(s[st_.PENDING_READ]), bool(s[st_.PENDING_REPLAY])
        values = [(normal, 0)]
        if cancelled_at:
            values.append((True, cancelled_at))
        self._compare_one(line, "pending_read", recorded["pending_read"], values)
        clears_replay = cancelled_at > 0 and self.core.cancel_clears_replay_read()
        values = [(replay, 0)]
        if clears_replay:
            values.append((not replay, cancelled_at))
        self._compare_one(line, "pending_replay", recorded["pending_replay"], values)
        if clears_replay and replay and recorded["pending_replay"] is False:
            s[st_.PENDING_REPLAY] = 0
        elif clears_replay and replay:
            self._forgets_replay = Command(cancelled_at, CANCEL, "the cancel of the read", cancels=True)

    def _compare_total(self, line: Line) -> None:
        """Compare the total permits: a value that fits open facts about it shows them, and refutes the others."""
        recorded, s = line.recorded["total_permits"], self.core.state.s
        if recorded is None:
            return
        expected = int(s[st_.TOTAL_PERMITS])
        racing = self._take_total(recorded, expected)
        self._settle_value(line, "total_permits", expected, recorded, racing)

    def _consumers_now(self) -> list[int]:
        """Return consumer, usable permits, permits and unacked messages of each connected consumer, in a row."""
        room = 4 * int(self.core.state.s[st_.N_CONSUMERS])
        if len(self._now) < room:
            self._now = np.zeros(2 * room, np.int64)
        self.core.consumers_now(self._now)
        found: list[int] = self._now[:room].tolist()
        return found

    def _counters(
        self, consumer: int, since: int, seq: int, *, own_flow: bool = False, returned: bool = False
    ) -> list[Counters]:
        """Return the values that a consumer may have at line ``seq``, sampled after line ``since``; the plain ones first.

        ``own_flow``: the consumer's last flow is in it for sure. ``returned``: the charge of its send is.
        """
        self._trim_is_over(since)
        found = [self._plain_at(consumer, seq)]
        charges = () if returned else self._charges.get(consumer, ())
        for charge in reversed([c for c in charges if c.sent <= seq and since < c.returned]):
            found.append(_before(charge, found[-1])._replace(racing=charge.sent))
        missing = self._effects_open.permits_missing(consumer, since)
        if own_flow and missing:
            last = min(missing)
            missing = {count - last: at for count, at in missing.items() if count > last}
        lowered = self._effects_open.unacked_missing(consumer, since)
        early = self._lowered_early(consumer)
        others = [c._replace(permits=c.permits - by, racing=at) for c in found for by, at in missing.items()]
        found += others
        found += [
            c._replace(unacked=c.unacked + by, racing=max(at, c.racing))
            for c in found
            for by, at in (*lowered.items(), *early.items(), *self._to_be_lowered(consumer).items())
        ]
        return [
            *found,
            *self._with_other_block(consumer, found, lowered, early),
            *self._without_connection(consumer, found),
            *self._with_other_limit(found),
        ]

    def _with_other_limit(self, found: list[Counters]) -> list[Counters]:
        """Return the values under another limit that may be in force, by which the last delivery may have blocked or not."""
        other = self._other_limit()
        if other is None:
            return []
        line, limit = other
        most = self._unacked_under(limit)
        limited = [c._replace(limit=most, racing=max(line.seq, c.racing)) for c in found]
        return [*limited, *(c._replace(blocked=c.unacked >= most > 0) for c in limited)]

    def _unacked_under(self, limit: Limit) -> int:
        """Return the limit of unacknowledged messages per consumer if ``limit`` has begun or ended; 0 = none."""
        most = self._limits.unacked(limit)
        return self.core.profile.number("maxUnackedMessagesPerConsumer") if most is None else most

    def _other_limit(self) -> tuple[Line, Limit] | None:
        """Return a limit of unacknowledged messages that may be in force instead, and its line.

        Its mark stands and a decision has shown that it had not begun; it has a mark, and may not have begun; or its line or
        mark comes soon.
        """
        marked = self._marked_limit
        if marked is not None:
            return marked.mark, marked.before if marked.begun else marked.limit
        if not (self._to_come["limit"] or self._to_come["step"]):
            return None
        within_us = limits_in_force.SEEN_WITHIN_US
        for _at, line in itertools.chain(
            *(self._lines_to_come(kind, within_us) for kind in ("limit", "step"))
        ):
            limit = limits_in_force.of_line(line)
            if limit is None or not limit.active or limit.what not in limits_in_force.UNACKED:
                continue
            if self._limits.unacked(limit) != self._limits.unacked():
                return line, limit
        return None

    # --- trims -------------------------------------------------------------------------------------------------------

    def _move_forward(self, line: Line, target: int) -> None:
        """See ``CursorDriver``."""
        self._effects_open.close(_TRIM, line.seq)
        self._moved_at = line
        super()._move_forward(line, target)

    def _trim_passed(self) -> list[Released]:
        """See ``RacingDriver``."""
        before = {consumer: self.core.unacked(consumer) for consumer in self.core.connected()}
        released = super()._trim_passed()
        self._effects.lowered = {c: count - self.core.unacked(c) for c, count in before.items()}
        return released

    def _trimmed_now(self, released: list[Released]) -> None:
        """See ``PendingAcksDriver``. No line shows when counters fall; where hashes drain, they do so behind the releases.

        The thread that has stored mark-delete trims without the dispatcher's lock, some time after the line of the move, and
        before the operation is answered (PersistentSubscription.skipMessages, markDeletePositionMoveForward).
        """
        super()._trimmed_now(released)
        if self._moved_at is None:
            return
        for consumer, messages in self._effects.lowered.items():
            if messages > 0:
                self._effects_open.ack(_TRIM, self._moved_at.seq, consumer, messages)

    def _open_trim(self, sent: Line) -> None:
        """Open a fact if a send has entries that a move has passed: the trim may come behind it, and takes them, too.

        Where hashes drain, the releases of the trim show that.
        """
        moved, consumer = self._moved_at, who(sent)
        if self._tracked or moved is None or self._trim_is_long_ago() or not self._trims_after_a_move():
            return
        passed = [entry for entry in sent.recorded["positions"] if 0 <= entry <= self.core.mark_delete()]
        known = any(fact.trims and fact.connection == consumer for fact in self._facts)
        if passed and not known:
            what = f"the move of the cursor, whose trim comes after {self._positions(passed)} was sent,"
            self._facts.append(Command(moved.seq, consumer, what, trims=True))

    def apply_fact(self, fact: Command) -> None:
        """See ``RacingDriver``."""
        super().apply_fact(fact)
        if fact.trims:
            self._effects.trimmed += self._trim_passed()

    def _show(self, fact: Command) -> None:
        """See ``RedeliveryRequestsDriver``."""
        super()._show(fact)
        self._take_trimmed()

    def _is_refuted(self, fact: Command) -> bool:
        """See ``RedeliveryRequestsDriver``. A trim may be still to come."""
        return super()._is_refuted(fact) or (fact.trims and self._trim_is_long_ago())

    def _adds(self, fact: Command) -> int:
        """See ``RedeliveryRequestsDriver``."""
        if not fact.trims or self._trim_is_long_ago():
            return super()._adds(fact)
        mark_delete = self.core.mark_delete()
        return -self._messages([e for e in self.core.pending_on(fact.connection) if e <= mark_delete])

    def _trim_is_over(self, since: int) -> None:
        """Take a trim as done by a value that is sampled after line ``since``, if the move was long ago."""
        if self._moved_at is not None and self._trim_is_long_ago():
            self._effects_open.close(_TRIM, since)
            self._moved_at = None

    def _trim_is_long_ago(self) -> bool:
        """Check whether the last move of the cursor is so long ago that its trim is over."""
        return self._moved_at is None or self._line.t_us - self._moved_at.t_us > HELD_UP_US

    def _on_cursor_state(self, line: Line) -> None:
        """See ``CursorDriver``: who asks for the positions has the answer to the operation."""
        self._effects_open.close(_TRIM, line.seq)
        super()._on_cursor_state(line)

    # --- limits ------------------------------------------------------------------------------------------------------

    def _on_limit(self, line: Line) -> None:
        """Take a limit that begins or ends. Behind a mark, one of unacknowledged messages may do so later."""
        limit = limits_in_force.of_line(line)
        if limit is not None and limit.what in limits_in_force.UNACKED:
            self._close_marked_limit()
            before = self._limits.now(limit.what)
            if line.kind == "step" and limit != before:
                self._marked_limit = MarkedLimit(line, limit, before, begun=True)
        super()._on_limit(line)

    def _close_limit_marked_long_ago(self, line: Line) -> None:
        """Take a limit as in force whose mark stands so far before ``line`` that it has reached the dispatcher."""
        marked = self._marked_limit
        if marked is not None and line.t_us - marked.mark.t_us > limits_in_force.REACHES_WITHIN_US:
            self._close_marked_limit()

    def _close_marked_limit(self) -> None:
        """Take the limit of the last mark as in force."""
        marked, self._marked_limit = self._marked_limit, None
        if marked is not None and not marked.begun:
            self._limits.take(marked.limit)
            self._limits_changed()

    def _change_of_limit(self) -> Command | None:
        """See ``RacingDriver``."""
        other = self._other_limit()
        if other is None:
            return None
        line, limit = other
        change = "beginning" if limits_in_force.begins(line) else "end"
        return Command(line.seq, LIMIT, f"the {change} of the limit {limit.what}", limit=limit)

    def change_limit(self, limit: Limit) -> None:
        """See ``RacingDriver``."""
        self.core.limit_unacked(self._limits.unacked(limit))

    def _limit_has_changed(self, limit: Limit) -> None:
        """See ``RacingDriver``. Once a limit has begun behind its mark, it stays."""
        self._limits.take(limit)
        self.core.limit_unacked(self._limits.unacked())
        marked = self._marked_limit
        self._marked_limit = marked._replace(begun=False) if marked is not None and marked.begun else None

    def _change_limit_by(self, flow: Line) -> None:
        """Change a limit that may have changed, if a flow shows it: whether it finds its consumer blocked."""
        other, consumer = self._other_limit(), who(flow)
        shown = None if other is None else self._counted_as_blocked(flow)
        if other is None or shown is None:
            return
        line, limit = other
        unacked, now = self.core.unacked(consumer), self._unacked_under(self._limits.now(limit.what))
        expected = self.core.is_blocked(consumer) or unacked >= now > 0
        if expected == shown or (unacked >= self._unacked_under(limit) > 0) != shown:
            return
        if limits_in_force.begins(line):
            reason = (
                "the limit may be in force before its line" if shown else "the limit may begin after its mark"
            )
        else:
            reason = "the limit may end after its mark"
        self._differ(
            "state",
            f"blocked {expected} by {limit.what}",
            f"blocked {shown}",
            decisions=0,
            racing=(line.seq, reason),
        )
        self._finish_acks()
        self._limit_has_changed(limit)
        if not shown:
            self.core.unblock(consumer)

    def _counted_as_blocked(self, flow: Line) -> bool | None:
        """Return whether the consumer of a flow is blocked when its permits are counted; ``None`` = no line shows it."""
        for line in self._later_lines():
            if line.kind == "flow_counted" and line.consumer == flow.consumer:
                blocked: bool | None = line.recorded["blocked_after"]
                return blocked
        return None

    def _without_connection(self, consumer: int, found: list[Counters]) -> list[Counters]:
        """Return the values of a consumer whose connection has broken: it has no usable permits until it is removed.

        Source: PersistentStickyKeyDispatcherMultipleConsumers.getAvailablePermits, ServerCnx.isActive.
        """
        removal = self._removal_ahead(consumer) if True in self.breaks else None
        if removal is None:
            return []
        return [c._replace(connected=False, racing=removal.seq) for c in found]

    def _with_other_block(
        self, consumer: int, found: list[Counters], lowered: dict[int, int], early: dict[int, int]
    ) -> list[Counters]:
        """Return the values with the block set or cleared, where an open ack or request may have cleared it.

        A consumer is blocked as long as it has more than half of its limit unacknowledged, unless it asks for redelivery.
        """
        plain, half = found[0], int(self.core.state.s[st_.MAX_UNACKED_CONSUMER]) // 2
        contested = self._contested.get(consumer)
        if plain.blocked and contested is not None:
            return [c._replace(blocked=False, racing=contested.seq) for c in found]
        missing = self._unblocked_by_order.get(consumer)
        if not plain.blocked and missing is not None:
            return [c._replace(blocked=True, racing=missing.seq) for c in found]
        if plain.blocked and (early or (lowered and plain.unacked <= half)):
            parked = int(self.core.state.parked_permits[self.core.slot(consumer)])
            at = max([*lowered.values(), *early.values()])
            return [c._replace(blocked=False, permits=c.permits + parked, racing=at) for c in found]
        if not plain.blocked and lowered and half > 0 and plain.unacked + max(lowered) > half:
            at = max(lowered.values())
            return [c._replace(blocked=True, racing=at) for c in found]
        return []

    def _plain_at(self, consumer: int, seq: int) -> Counters:
        """Return a consumer's values in the plain order at line ``seq``; it may stand in front of the send of its round."""
        plain = self._plain_counters(consumer, self._late_commands())
        # Commands that a decision has shown to come before it, and whose line is to come.
        peeked = self._peeked.values() if self._peeked else ()
        ahead = [c for c in peeked if c.applied and c.seq > seq]
        if ahead:
            counted = (c for c in ahead if c.connection == consumer and c.result is not False)  # not parked
            flowed = sum(command.permits for command in counted)
            acked = sum(self._lowers(command, consumer)[0] for command in ahead)
            plain = plain._replace(permits=plain.permits - flowed, unacked=plain.unacked + acked)
        for charge in reversed(self._charges.get(consumer, ())):
            if seq < charge.sent:
                plain = _before(charge, plain)
        return plain

    def _plain_counters(self, consumer: int, late: Sequence[Command]) -> Counters:
        """Return a consumer's values in the plain order: commands whose effect is open (``late``) have had it."""
        st, slot = self.core.state, self.core.slot(consumer)
        flowed, unacked = st.permits.item(slot), st.unacked.item(slot)
        blocked, average = bool(st.blocked.item(slot)), st.average.item(slot)
        if not late:
            return Counters(flowed, unacked, blocked, average)
        parked, limit = st.parked_permits.item(slot), st.s.item(st_.MAX_UNACKED_CONSUMER)
        for command in late:
            if isinstance(command.result, Acked) and command.result.consumer != consumer:
                continue
            if command.permits and command.connection == consumer:
                blocked = blocked or (limit > 0 and unacked >= limit)
                if blocked:
                    parked += command.permits
                else:
                    flowed += command.permits
                continue
            if isinstance(command.result, ParkedFlow) and command.connection == consumer:
                if command.result.applied_at <= self._at:
                    flowed, parked = flowed + parked, 0
                continue
            messages, unblocks = self._lowers(command, consumer)
            unacked -= messages
            tested = messages > 0 and st.s[st_.UNBLOCK_TEST] != st_.UNBLOCK_BEFORE and unacked <= limit // 2
            if blocked and tested:
                flowed, parked = flowed + parked, 0
            blocked = blocked and not (unblocks or tested)
        return Counters(flowed, unacked, blocked, average)

    def _lowers(self, command: Command, consumer: int) -> tuple[int, bool]:
        """Return by how many messages a late command lowers a consumer's counter, and whether it clears its block."""
        result = command.result
        if isinstance(result, (Acked, CountedLater)):
            return (result.messages if result.consumer == consumer else 0), False
        if isinstance(result, Redelivered) and command.connection == consumer:
            return result.messages, True
        return 0, False

    def _lowered_early(self, consumer: int) -> dict[int, int]:
        """Return by how many messages a redelivery request to come may have lowered the counter, with its ``seq``.

        The consumer takes its entries out of its pending acks and lowers the counter before the dispatcher gets the request,
        which its line shows (Consumer.redeliverUnacknowledgedMessages). A classic dispatcher has no lines of these removals.
        Where they have lines, the counter may be lowered by all of them as soon as the first one stands.
        """
        request = self._next_request(consumer)
        if request is None or consumer in self._requests_begun:
            return {}
        removed = self._removed.get(consumer)
        taken = [removed, removed + self._removed_later(request)] if removed else [self._taken_for(request)]
        lowered = {-sum(map(self.core.unacked_messages, entries)): request.seq for entries in taken}
        lowered.pop(0, None)
        return lowered

    def _removed_later(self, request: Line) -> list[int]:
        """Return the entries whose removals for a redelivery request have lines between the present one and the request."""
        lines = itertools.takewhile(lambda line: line.seq < request.seq, self._later_lines())
        removals = [
            line for line in lines if (line.kind, line.consumer) == ("pending_ack_removed", who(request))
        ]
        return [entry for line in removals for entry in line.recorded["positions"] if entry >= 0]

    def _to_be_lowered(self, consumer: int) -> dict[int, int]:
        """Return by how many messages a counter may be higher that a begun request lowers, with the request's ``seq``.

        The total of the subscription falls first, which may unblock it. A decision may come in between
        (Consumer.addAndGetUnAckedMsgs).
        """
        begun = self._requests_begun.get(consumer)
        return {begun.messages: self._requests[consumer][0].line.seq} if begun is not None else {}

    def _taken_for(self, request: Line) -> list[int]:
        """Return the entries that a redelivery request may have taken already: none before the line before it."""
        consumer, named = who(request), request.inputs["positions"]
        for line in self._later_lines():
            if line.seq >= request.seq:
                break
            if line.consumer == consumer and line.kind in OF_A_CONNECTION:
                return []
        pending = self._pending_by_now(consumer)
        return pending if named is None else [entry for entry in pending if entry in set(named)]

    def _usable(self, consumer: int, counters: Counters) -> int:
        if not counters.connected:
            return 0
        st, slot = self.core.state, self.core.slot(consumer)
        own = st.permits[slot], st.unacked[slot], st.average[slot]
        st.permits[slot], st.unacked[slot], st.average[slot] = (
            counters.permits,
            counters.unacked,
            counters.average,
        )
        if counters.limit is not None:
            self.core.limit_unacked(counters.limit)
        usable = self.core.usable(consumer)
        if counters.limit is not None:
            self.core.limit_unacked(self._limits.unacked())
        st.permits[slot], st.unacked[slot], st.average[slot] = own
        return usable

    def _compare_one(
        self, line: Line, name: str, recorded: object, values: Sequence[tuple[object, int]]
    ) -> None:
        """Compare a value with the plain one, the first, and with others that are possible, each with its racing line."""
        if recorded is None:
            return
        racing = next((seq for value, seq in values if value == recorded), 0)
        self._settle_value(line, name, values[0][0], recorded, racing or None)

    def _settle_value(
        self, line: Line, name: str, expected: object, recorded: object, racing: int | None
    ) -> None:
        if expected == recorded:
            self.tally.exact("state")
            return
        reason = None if racing is None else (racing, f"the command at seq {racing} overlaps the value")
        self._differ("state", f"{name} {expected}", str(recorded), racing=reason)

    # --- fixed values --------------------------------------------------------------------------------------------

    def _compare_selector(self, line: Line) -> None:
        """Compare the selector's class."""
        self._compare_fixed(line, "selector", self._selector_name, line.recorded["selector"])

    def _compare_sizes(self, line: Line) -> None:
        """Compare the number of messages of each entry sent with that of the message log."""
        recorded, entries = line.recorded["batch_sizes"], line.recorded["positions"]
        sizes = self.core.state.num_messages
        expected = [sizes.item(entry) if entry >= 0 else None for entry in entries]
        self._compare_fixed(line, "batch_sizes", expected, recorded)

    def _on_pending_ack_removed(self, line: Line) -> None:
        recorded, positions = line.recorded["hash"], line.recorded["positions"]
        if recorded is not None and len(positions) == 1 and positions[0] >= 0:
            expected = self._hash_to_remove(positions[0], who(line))
            if expected is not None:
                self._compare_fixed(line, "hash", expected, recorded)
        for entry in positions:
            self._open_removal(entry, who(line))
        super()._on_pending_ack_removed(line)

    def _open_removal(self, entry: int, holder: int) -> None:
        """Open the effect of an ack, or of a redelivery request to come, on the counter of the holder."""
        command = self._next_removal(holder, entry) if entry >= 0 else None
        if command is None:
            return
        self._effects_open.close(command.connection, self._line.seq)
        messages = self.core.unacked_messages(entry)
        permits = self._freed_by_ack(holder, messages)
        self._effects_open.ack(
            command.connection, self._line.seq, holder, messages, entry=entry, permits=permits
        )
        if self._tracked and self._reaches_cursor(command):
            self._before_release.append((holder, command))
        elif not self._tracked:
            self._comes_to_cursor(command)

    def _freed_by_ack(self, holder: int, messages: int) -> int:
        """Return the parked permits that an ack frees, which lowers the holder's counter by ``messages``."""
        if not self.core.is_blocked(holder):
            return 0
        st, plain = self.core.state, self._plain_counters(holder, self._late_commands())
        lowest = plain.unacked if st.s[st_.UNBLOCK_TEST] == st_.UNBLOCK_BEFORE else plain.unacked - messages
        unblocks = plain.blocked and lowest <= int(st.s[st_.MAX_UNACKED_CONSUMER]) // 2
        return int(st.parked_permits[self.core.slot(holder)]) if unblocks else 0

    def _on_draining_release(self, line: Line) -> None:
        super()._on_draining_release(line)
        if line.recorded["closing"]:
            return
        for at, (holder, command) in enumerate(self._before_release):
            if holder == line.consumer:
                del self._before_release[at]
                self._on_their_way.arrived(_arrival(command, line))
                return

    def _comes_to_cursor(self, command: Command) -> None:
        """Note that an ack is on its way to the cursor, unless mark-delete has passed its entry."""
        if self._reaches_cursor(command):
            self._on_their_way.arrived(_arrival(command, self._line))

    def _reaches_cursor(self, command: Command) -> bool:
        if not (self.core.state.deleted.item(command.entry) or self._may_move_to(command.entry)):
            self._forget_old_acks()
            return True
        return command.entry > self._plain_positions(self._line.seq)[1]

    def _acknowledged_now(self, command: Command, holder: int | None, messages: int) -> None:
        """See ``PendingAcksDriver``."""
        super()._acknowledged_now(command, holder, messages)
        consumer = st_.NOBODY if holder is None else holder
        self._effects_open.ack(command.connection, command.seq, consumer, messages, entry=command.entry)

    def _on_redeliver(self, line: Line) -> None:
        super()._on_redeliver(line)
        consumer = who(line)
        request = next(
            (late for late in self.connection(consumer).late if isinstance(late.result, Redelivered)), None
        )
        if request is not None:
            messages, _ = self._lowers(request, consumer)
            parked = int(self.core.state.parked_permits[self.core.slot(consumer)])
            self._effects_open.ack(consumer, line.seq, consumer, messages, permits=parked)

    def _hash_to_remove(self, entry: int, holder: int) -> int | None:
        """Return the hash that is kept with a pending ack which is removed now; ``None`` if there is none."""
        early = self._removed_early.get((holder, entry))
        if early is not None:
            return early.hash
        command = self._next_removal(holder, entry)
        if command is not None and command.applied:
            return command.result.released.hash if isinstance(command.result, Acked) else None
        return self.core.pending_hash(entry)

    def _on_draining_clear(self, line: Line) -> None:
        due, self._clear_due = self._clear_due, False
        if due:
            self.tally.exact("state")
        else:
            self._differ("state", "the draining hashes stay", "cleared")

    def _report_unmet_clear(self) -> None:
        """Report that the draining hashes should have been cleared by now."""
        if self._clear_due:
            self._clear_due = False
            self._differ("state", "the draining hashes are cleared", "nothing", decisions=0)

    def _compare_fixed(self, line: Line, name: str, expected: object, recorded: object) -> None:
        """Compare a value that no open order changes, if the line has it."""
        if recorded is None:
            return
        if expected == recorded:
            self.tally.exact("state")
        else:
            self._differ("state", f"{name} {expected}", str(recorded))

    # --- positions of the cursor ---------------------------------------------------------------------------------

    def _all_applied(self) -> tuple[int, int]:
        """See ``PositionsDriver``. Return the same if all acks whose removal is logged have reached the cursor."""
        read_position, mark_delete = self._positions_now()
        at = mark_delete + 1
        if not self._may_move_to(at):
            return read_position, mark_delete
        deleted, more = self.core.state.deleted, self._acknowledged_late()
        at = max(
            [at, *(move.entry + 1 for move in self._moves_under_way() if move.result is CursorStep.MOVE)]
        )
        while at < len(deleted) and (at in more or deleted.item(at)):
            at += 1
        return max(read_position, at), at - 1

    def _acknowledged_late(self) -> set[int]:
        """See ``PositionsDriver``."""
        live = self._live.values()
        return {self._acknowledges(command) for connection in live for command in connection.late}

    def _held_back(self, seq: int) -> list[int]:
        """See ``PositionsDriver``. Acks that an earlier decision has shown to come before it, and whose line is to come."""
        ahead = [c.entry for c in self._peeked.values() if c.applied and c.entry >= 0 and c.seq > seq]
        return [*ahead, *(command.entry for _, command in self._before_release)]

    def _waiting_acks(self) -> list[Arrival]:
        """See ``PositionsDriver``."""
        waiting = [*self._acks.values(), *(command for _, command in self._before_release)]
        return [_arrival(command, self._line) for command in waiting]

    def _acks_are_over(self, connection: int) -> None:
        """See ``PositionsDriver``."""
        if self._before_release:
            self._before_release = [item for item in self._before_release if item[1].connection != connection]
        super()._acks_are_over(connection)

    def _sampled_since(self, line: Line) -> int:
        """See ``PositionsDriver``."""
        return self._section_at if line.kind in _UNDER_THE_LOCK | OF_A_CONNECTION else line.seq - 1

    def _move_racing(self) -> int | None:
        """See ``PositionsDriver``."""
        moves = self._moves_under_way()
        return moves[0].seq if moves else None

    def _read_is_pending(self) -> bool:
        """See ``PositionsDriver``."""
        return bool(self.core.state.s[st_.PENDING_READ])

    def _read_size(self, _read_done: Line | None = None) -> int:
        """See ``PositionsDriver``."""
        return int(self.core.state.s[st_.READ_SIZE])

    def _reset(self, entry: int) -> None:
        """See ``CursorDriver``."""
        self._before_release.clear()
        self._note_reset(entry)
        super()._reset(entry)

    def _acknowledges(self, command: Command) -> int:
        """See ``RacingDriver``."""
        return command.entry if isinstance(command.result, (Acked, OnlyCursor)) else -1

    def _on_consumer_removed(self, line: Line) -> None:
        """Compare the positions: the thread of the connection goes on if the broker disconnects the consumer."""
        self._compare_positions(line)
        self._effects_open.forget(who(line))
        self._acks_are_over(who(line))
        self._report_unmet_clear()

    def _on_recently_joined_pruned(self, line: Line) -> None:
        self._compare_positions(line)

    def _on_mark_delete(self, line: Line) -> None:
        super()._on_mark_delete(line)
        self._compare_moved(line)

    def _on_rewind(self, line: Line) -> None:
        super()._on_rewind(line)
        self._compare_rewound(line)

    def _begun(self, line: Line) -> Begun | None:
        """See ``PositionsDriver``. The core rewinds at the beginning of a round that finds no consumers.

        Its line ``rewind`` is written when that is done. An operation of another thread may come in between.
        """
        begun = super()._begun(line)
        if begun is not None or line.kind != "cursor_op" or not self._open:
            return begun
        window = self._open[-1]
        if window.begun.kind != "round_begin" or all(
            other.kind != "rewind" for _at, other in self._within(window.end)
        ):
            return None
        return Begun(window.begun.seq - 1)

    # --- comparison ----------------------------------------------------------------------------------------------

    # See ``Driver``: what a window does not compare.
    def _judged_sent(self, line: Line) -> None:
        """See ``Driver``."""
        self._compare_sizes(line)
        self._note_sent(line)
        self._open_trim(line)

    _judged_read_issued = PositionsDriver._compare_positions

    def _charged(self, outcome: Round, window: Window, before: Mapping[int, Counters]) -> None:
        """Note what a round charged; ``before``: counters before it."""
        st, returned = self.core.state, {}
        for _at, line in self._within(window.end):
            if line.kind == "send_returned" and line.consumer is not None:
                returned[line.consumer] = line.seq
        end = self._lines[window.end].seq
        self._charges = self._charges_while_counting()
        for consumer in outcome.sent:
            slot, own = self.core.slot(consumer), before.get(consumer)
            if consumer in self._sent_at and own is not None:
                charge = Charge(
                    self._sent_at[consumer],
                    returned.get(consumer, end),
                    outcome.permits_before[consumer] - int(st.permits[slot]),
                    self._messages_of(outcome, consumer),
                    bool(st.blocked[slot]) and not own.blocked,
                    own.average,
                )
                self._charges.setdefault(consumer, []).append(charge)

    def _charges_while_counting(self) -> dict[int, list[Charge]]:
        """Return the charges of sends that a flow which is being counted overlaps.

        Its line may show the permits before them: the thread of its connection may be held up between its look at the
        counters and its line.
        """
        overlapping = {
            consumer: [charge for charge in self._charges.get(consumer, ()) if charge.returned > seq]
            for consumer, (seq, _permits) in self._counting.items()
        }
        return {consumer: charges for consumer, charges in overlapping.items() if charges}

    def _messages_of(self, outcome: Round, consumer: int) -> int:
        sent = outcome.sent[consumer]
        sizes = self.core.state.num_messages
        messages = sum([sizes.item(entry) for entry in sent])
        return messages - outcome.already_acked.get(consumer, 0)
