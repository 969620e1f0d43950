"""Play a schedule on the dispatcher of the core, and write the log that a recorder would have written.

The order of the broker's work at each step is that of ``broker_steps``; here every decision is a call of the dispatcher that
``verify`` compares with recordings, so a find is confirmed by it, and has a log that all other commands read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dispatch_core.broker import hashing
from dispatch_core.broker import state as st_
from dispatch_core.broker.commands import Flows
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.multiple_consumers import MultipleConsumersDispatcher, Round
from dispatch_core.broker.ordering import last_sent_position
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.replay_set import first_in_replay
from dispatch_core.broker.state import I64
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt.broker_steps import LAST_ROUNDS
from dispatch_core.hunt.ownership import ranges_of
from dispatch_core.hunt.world import MAX_ENTRIES
from dispatch_core.hunt.written_log import WrittenLog

_MANY_PERMITS: Final = 10


class Replay(WrittenLog):
    """The dispatcher, its clients and reads in flight, and the lines written so far.

    ``sent``: consumer number and entries of each send, in order.
    """

    def __init__(self, profile: Profile, keys: Sequence[str], schedule: Sequence[int]) -> None:
        stored = [step for step in schedule if s_.kind_of(step) in (s_.STORE, s_.STORE_BATCH)][:MAX_ENTRIES]
        sizes = [s_.BATCH if s_.kind_of(step) == s_.STORE_BATCH else 1 for step in stored]
        super().__init__(profile, [keys[s_.detail_of(step)] for step in stored], sizes)
        joins = sum(s_.kind_of(step) in (s_.JOIN, s_.JOIN_LOW) for step in schedule)
        self.core: Any = self._new_core(profile, np.array(self.sizes or [1], np.int64), joins + 1)
        self.sent: list[tuple[int, list[int]]] = []
        self._numbers: dict[int, int] = {}  # name → number of its connection
        self._joined = 0
        self._limit: int | None = None  # of the normal read in flight
        self._waited = False
        self._replays: list[list[int]] = []
        self._taken: list[int] | None = (
            None  # entries that the cursor has returned and the dispatcher has not
        )
        self._retry = False
        self._timer = False
        self._cancels = False
        self._acks_within: dict[int, int] = {}  # ACK_IN_SCAN or ACK_IN_ROUND → name of the consumer
        self._hanging: set[int] = set()  # names
        for step in schedule:
            self._take(step)

    def settle(self) -> None:
        """See ``broker_steps.settle``; ends when nothing is left, or nothing moves."""
        for _ in range(LAST_ROUNDS):
            for name in sorted(self._numbers):
                number = self._numbers[name]
                if name in self._hanging:
                    continue
                for entry in self.core.pending_on(number):
                    self._ack(number, entry)
                if int(self.core.state.permits[self.core.slot(number)]) < 1:
                    self._grant(number, _MANY_PERMITS)
            self._complete_replay()
            self._complete_normal()
            self._run_timer()
            self._run_retry()
            if self.core.state.deleted[: self._stored].all():
                return

    def entries_left(self) -> list[int]:
        """List the stored entries that are not acknowledged."""
        return [entry for entry in range(self._stored) if not self.core.state.deleted[entry]]

    def pending(self) -> dict[str, list[int]]:
        """Return the entries that are pending on each connected consumer, by its name."""
        return {f"c{name + 1}": self.core.pending_on(number) for name, number in self._numbers.items()}

    # --- steps ---------------------------------------------------------------------------------------------------

    def _take(self, step: int) -> None:
        kind, name = s_.kind_of(step), s_.name_of(step)
        if kind in (s_.STORE, s_.STORE_BATCH):
            self._store()
        elif kind == s_.READ:
            self._complete_normal()
        elif kind == s_.REPLAY:
            self._complete_replay()
        elif kind == s_.TIMER:
            self._run_timer()
        elif kind == s_.RETRY:
            self._run_retry()
        elif kind == s_.CURSOR:
            self._move_cursor()
        elif kind == s_.CLEAR:
            self._move_forward(self._stored - 1, "clear_backlog")
        elif kind == s_.SKIP:
            self._move_forward(self._first_of_backlog(), "skip")
        elif kind == s_.RESET:
            self._reset()
        elif kind == s_.LIMIT:
            self._limit_unacked(s_.LIMITS[s_.detail_of(step)])
        elif kind == s_.JOIN:
            if name not in self._numbers:
                self._join(name, s_.PERMITS[s_.detail_of(step)])
        elif kind == s_.JOIN_LOW:
            if name not in self._numbers:
                self._join(name, s_.PERMITS_LOW, priority_level=1)
        elif name in self._numbers:
            self._command(kind, name, self._numbers[name])

    def _command(self, kind: int, name: int, number: int) -> None:
        pending = self.core.pending_on(number)
        if kind == s_.LEAVE:
            self._leave(name, number)
        elif name in self._hanging:
            return
        elif kind == s_.HANG:
            self._hanging.add(name)
        elif kind in (s_.ACK_IN_SCAN, s_.ACK_IN_ROUND):
            if not self._classic:
                self._acks_within.setdefault(kind, name)
        elif kind == s_.FLOW:
            self._grant(number, 1)
        elif kind == s_.NACK_ALL:
            self._write("redeliver", number)
            self._request(number, pending, everything=True)
        elif not pending:
            return
        elif kind == s_.NACK_FIRST:
            self._write("redeliver", number, positions=self._positions(pending[:1]))
            self._request(number, pending[:1])
        elif kind == s_.ACK_PART:
            self._ack_part(number, pending[0])
        else:
            self._ack(number, pending[-1] if kind == s_.ACK_LAST else pending[0])

    def _join(self, name: int, permits: int, priority_level: int = 0) -> None:
        if self._is_refused(name):
            return
        self._joined += 1
        number = self._numbers[name] = self._joined
        called = f"c{name + 1}"
        key_shared = {} if self.profile.is_shared else {"key_shared": self._key_shared(name)}
        self._write_join(number, called, priority_level, **key_shared)
        self._added(number, called, priority_level)
        self._grant(number, permits)

    def _is_refused(self, name: int) -> bool:
        """Check whether the ranges of a consumer meet those of one that is connected (STICKY)."""
        ranges = ranges_of(self.profile, name)
        return ranges is not None and self.core.selector.in_the_way(self._joined + 1, ranges) is not None

    def _key_shared(self, name: int) -> dict[str, Any]:
        """Return what a consumer of a Key_Shared subscription says when it joins."""
        mode, ranges = self.profile.key_shared_mode, ranges_of(self.profile, name) or ()
        shown = [[start, end] for start, end in ranges]
        return {"mode": mode, "allow_out_of_order": self.profile.allow_out_of_order, "ranges": shown}

    def _leave(self, name: int, number: int, *, by_reset: bool = False) -> None:
        del self._numbers[name]
        self._hanging.discard(name)
        pending, was_blocked = self.core.pending_on(number), self._is_blocked()
        self._write("consumer_removed", number)
        self._removed(number)
        if not self._numbers and self._read_waits():
            self._cancel_read()
        late = bool(self.core.state.s[st_.READS_WHEN_ADDED])  # a reset has removed all consumers by then
        if self.core.read_follows(pending, was_blocked=was_blocked) and not (by_reset and late):
            self._attempt()
        if self._forgets(number):
            self._attempt()

    # --- what other dispatchers do in their own way --------------------------------------------------------------

    def _new_core(self, profile: Profile, messages: I64, consumers: int) -> MultipleConsumersDispatcher:
        """Make the dispatcher, for entries of so many messages and at most so many consumers."""
        keys = self.keys or [""]
        hashes = [profile.hash_space.sticky(hashing.h31(key.encode())) for key in keys]
        dispatcher = ClassicKeySharedDispatcher if self._classic else KeySharedDispatcher
        return dispatcher(profile, np.array(hashes, np.int64), messages, consumers)

    def _added(self, number: int, called: str, priority_level: int) -> None:
        """Add a consumer to the dispatcher."""
        self.core.join(number, called, priority_level)
        self.core.join_selector(number, ranges_of(self.profile, int(called[1:]) - 1))
        self._take_notice()

    def _removed(self, number: int) -> None:
        """Remove a consumer from the dispatcher; its pending entries are taken back."""
        self.core.drop(number, self.core.select_out(number))
        self._take_notice()

    def _forgets(self, number: int) -> bool:
        """Forget a consumer after the read attempt of its removal; returns whether another attempt follows."""
        forgets = self._numbers or self.core.state.s[st_.TRACK_LAST_SENT] or self._classic
        return bool(forgets and self.core.forget(number))

    def _note(self, outcome: Round) -> None:
        """Take what a round has sent; for those that check it."""

    # --- commands ------------------------------------------------------------------------------------------------

    def _grant(self, number: int, permits: int) -> None:
        self._write("flow", number, permits=permits, blocked=self.core.is_blocked(number))
        if self.core.flow(number, permits):
            self.core.flow_applied(number, permits)
            self._attempt()

    def _flow(self, number: int, flows: Flows) -> None:
        for at in range(flows.notices):
            self.core.flow_applied(number, flows.permits if at == 0 else 0)
            self._attempt()

    def _ack(self, number: int, entry: int) -> None:
        self._write("ack", number, ack_type="Individual", positions=self._positions([entry]))
        before = self.core.mark_delete()
        was_blocked = self._is_blocked()
        done = self.core.ack(entry)
        if done is not None:
            self._flow(done.consumer, done.flows)
            if was_blocked and not self._is_blocked():
                self._attempt()
        if self.core.mark_delete() != before:
            self._mark_delete_moved()
        self._take_notice()

    def _request(self, number: int, entries: list[int], *, everything: bool = False) -> None:
        was_blocked = self._is_blocked()
        done = self.core.redeliver(number, entries, everything=everything)
        self._take_notice()
        if self.core.read_follows(entries, was_blocked=was_blocked):
            self._attempt()
        self._flow(number, done.flows)

    def _is_blocked(self) -> bool:
        """Check whether the subscription is blocked on unacknowledged messages."""
        return bool(self.core.state.s[st_.BLOCKED_ON_UNACKED])

    def _ack_part(self, number: int, entry: int) -> None:
        left = self.core.unacked_messages(entry) - 1
        if left < 1 or not self.profile.settings.get("acknowledgmentAtBatchIndexLevelEnabled"):
            return
        every = (1 << self.sizes[entry]) - 1
        words = [every ^ ((1 << (self.sizes[entry] - left)) - 1)]  # the first ones are acknowledged
        self._write(
            "ack", number, ack_type="Individual", positions=self._positions([entry]), ack_sets=[words]
        )
        was_blocked = self._is_blocked()
        self.core.acknowledge_indexes(entry, words)
        if was_blocked and not self._is_blocked():
            self._attempt()

    def _ack_within(self, kind: int) -> None:
        number = self._numbers.get(self._acks_within.pop(kind))
        pending = [] if number is None else self.core.pending_on(number)
        if number is None or not pending:
            return
        self._write("ack", number, ack_type="Individual", positions=self._positions(pending[:1]))
        done = self.core.ack(pending[0])
        assert done is not None
        for at in range(done.flows.notices):
            self.core.flow_applied(number, done.flows.permits if at == 0 else 0)
        self._retry = True
        self._take_notice()

    def _mark_delete_moved(self) -> None:
        if self._frees():
            self._attempt()
        if self.core.trims_in_attempts():
            self._start_timer()

    def _take_notice(self) -> None:
        if self.core.state.s[st_.DRAIN_NOTICE]:
            self.core.state.s[st_.DRAIN_NOTICE] = 0
            self._start_timer()

    def _start_timer(self) -> None:
        self._timer = True
        self._cancels = bool(self.core.state.s[st_.PENDING_READ])

    def _first_of_backlog(self) -> int:
        before = int(self.core.mark_delete())
        left = (entry for entry in range(before + 1, self._stored) if not self.core.state.deleted[entry])
        return next(left, before)

    def _move_forward(self, target: int, by: str) -> None:
        before = self.core.mark_delete()
        if before >= target:
            return
        self._write_move(by, before, target)
        self.core.move_forward(target)
        if self.core.trims_after_a_move():
            was_blocked = self._is_blocked()
            connected = self.core.connected()
            parked = {number: self._parked(number) for number in connected if self.core.is_blocked(number)}
            self.core.trim_passed()
            for number, permits in parked.items():
                if not self.core.is_blocked(number):
                    self._flow(number, Flows(1, permits - self._parked(number)))
            if was_blocked and not self._is_blocked():
                self._attempt()
            self.core.state.s[st_.DRAIN_NOTICE] = 0
            self._start_timer()
        self._mark_delete_moved()

    def _reset(self) -> None:
        if not self._stored:
            return
        names = {number: name for name, number in self._numbers.items()}
        for number in self.core.connected():
            self._leave(names[number], number, by_reset=True)
        self._write_move("reset_cursor", self.core.mark_delete(), -1)
        self.core.reset(0)

    def _limit_unacked(self, limit: int) -> None:
        now = limit or self.profile.number("maxUnackedMessagesPerConsumer")
        if now != int(self.core.state.s[st_.MAX_UNACKED_CONSUMER]):
            value = {"value": limit} if limit else {}
            self._write("limit", None, what="unacked_topic", active=bool(limit), **value)
            self.core.limit_unacked(limit or None)

    def _parked(self, number: int) -> int:
        return int(self.core.state.parked_permits[self.core.slot(number)])

    def _run_timer(self) -> None:
        if not self._timer:
            return
        self._timer = False
        if self._cancels and self.core.state.s[st_.N_REPLAY] > 0 and self._read_waits():
            self._cancel_read()
        self._attempt()

    def _run_retry(self) -> None:
        if self._retry:
            self._retry = False
            self._attempt()

    def _frees(self) -> bool:
        """Free recently joined consumers that mark-delete has reached; returns whether there were any."""
        if isinstance(self.core, ClassicKeySharedDispatcher):
            return self.core.prune()
        waiting = len(self.core.recently_joined())
        return bool(waiting) and bool(last_sent_position.prune(self.core.state))

    # --- reads ---------------------------------------------------------------------------------------------------

    @property
    def _classic(self) -> bool:
        return self.profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC

    def _readable(self) -> list[int]:
        start, deleted = int(self.core.state.s[st_.READ_POSITION]), self.core.state.deleted
        return [entry for entry in range(start, self._stored) if not deleted[entry]]

    def _read_waits(self) -> bool:
        return self._limit is not None and self._waited and self._taken is None and not self._readable()

    def _cancel_read(self) -> None:
        self.core.read_cancelled()
        self._limit = None

    def _attempt(self) -> None:
        self._cancels = False
        had_pending_read = bool(self.core.state.s[st_.PENDING_READ])
        first, skips = int(first_in_replay(self.core.state)), self.core.state.s[st_.SKIP_NEXT_REPLAY]
        if s_.ACK_IN_SCAN not in self._acks_within or first < 0 or skips:
            read = self.core.attempt_read()
        else:
            read = self.core.attempt_read(self._between, pauses=(first + 1,))
        if self.core.state.s[st_.DRAIN_NOTICE]:  # its trim has freed a hash, before it has issued a read
            self._take_notice()
            self._cancels = had_pending_read
        if read.kind == "Normal":
            self._limit, self._waited = read.max_entries, not self._readable()
        elif read.kind == "Replay":
            entries = [entry for entry in read.entries if entry not in read.already_deleted]
            if entries:
                self._replays.append(entries)
            else:
                self._retry = True
        elif read.kind == "Backoff":
            self._retry = True

    def _between(self, step: int) -> None:
        """Let the acknowledgement come within a scan: step 2 follows its first entry."""
        if step == 2 and self.core.may_read():
            self._ack_within(s_.ACK_IN_SCAN)

    def _complete_normal(self) -> None:
        if self._limit is None or self._read_waits():
            return
        entries, self._limit, self._taken = self._read_on(), None, None
        self._dispatch("Normal", entries)

    def _read_on(self) -> list[int]:
        if self._taken is not None:
            return self._taken
        if self._waited and "waiting_read_gets_entries" not in self.profile.changes:
            return []
        return self._readable()[: self._limit]

    def _move_cursor(self) -> None:
        if self._limit is None or self._taken is not None or self._read_waits() or not self._read_on():
            return
        self._taken = self._read_on()
        s = self.core.state.s
        s[st_.READ_POSITION] = max(int(s[st_.READ_POSITION]), self._taken[-1] + 1)

    def _complete_replay(self) -> None:
        if self._replays:
            self._dispatch("Replay", self._replays.pop(0))

    def _dispatch(self, kind: str, entries: list[int]) -> None:
        if not self.core.read_done(kind, entries):
            self._attempt()
            return
        if entries and s_.ACK_IN_ROUND in self._acks_within:
            outcome = self.core.round(kind, entries, within=lambda: self._ack_within(s_.ACK_IN_ROUND))
        else:
            outcome = self.core.round(kind, entries)
        self._note(outcome)
        for number, taken in outcome.sent.items():
            self.sent.append((number, taken))
            sizes = [self.sizes[entry] for entry in taken]
            self._write("sent", number, positions=self._positions(taken), batch_sizes=sizes)
        looks_ahead = self.core.finish_round(
            outcome, has_more=int(self.core.state.s[st_.READ_POSITION]) < self._stored
        )
        if outcome.sent or (outcome.retry and looks_ahead):
            self._attempt()
        elif outcome.retry:
            self._retry = True
