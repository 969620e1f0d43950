"""Hunt Failover and Shared, whose dispatchers look at no keys; and play schedules on the dispatchers themselves.

Schedules are chosen here and played by compiled code: those of Failover by ``failover_steps``, those of Shared by
``broker_steps``. The promises are those that hold without keys: an entry is not sent while it is pending on a connected
consumer (``DOUBLE_OUTSTANDING``), and clients that acknowledge all get all (``STUCK``); of Shared also ``STARVED`` and
``LEAK``.

A *player* plays a schedule on the dispatcher that ``verify`` compares with recordings: it confirms a find, and writes its
log.

Source: PersistentDispatcherSingleActiveConsumer, PersistentDispatcherMultipleConsumers.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dispatch_core.broker import state as st_
from dispatch_core.broker.multiple_consumers import MultipleConsumersDispatcher, Round
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.single_active_rules import ActiveChange, Pick
from dispatch_core.errors import UnsupportedRuleError
from dispatch_core.hunt import promises
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt.bounded import BoundedSearch
from dispatch_core.hunt.broker_steps import LAST_ROUNDS
from dispatch_core.hunt.failover_steps import (
    HAS_LOOKED,
    NOT_WAITING,
    TO_BE_TOLD,
    TO_LOOK_AGAIN,
    FailoverRules,
)
from dispatch_core.hunt.replayed import Replay
from dispatch_core.hunt.search import LONGEST, SHORTEST, AnyHunter, Find, Hunter
from dispatch_core.hunt.world import MAX_ENTRIES
from dispatch_core.hunt.written_log import TOPIC, WrittenLog, type_of

#: The key that entries have: it makes no difference.
KEYS: Final = ("key-0",)
_MANY_PERMITS: Final = 10
#: Steps that a Failover dispatcher does not have; a read attempt is delayed only behind a slow send (``writes``).
_NOT_OF_FAILOVER: Final = (s_.REPLAY,)
_NOT_WITHOUT_WRITES: Final = (*_NOT_OF_FAILOVER, s_.RETRY)
#: Schedules that ``random`` plays at most.
AT_ONCE: Final = 500


class Player(ABC):
    """A schedule that is played. ``broken``: an entry was sent while it was pending, and nothing follows."""

    broken = False

    @abstractmethod
    def settle(self) -> None:
        """Let clients acknowledge all and grant permits, and reads complete, until nothing moves."""

    @abstractmethod
    def entries_left(self) -> list[int]:
        """List the stored entries that are not acknowledged."""


# --- Failover --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Read:
    """A read in flight, when it was issued. ``start``: the read position; ``end``: entries that were stored.

    ``waited``: see ``failover_steps``. ``requests``: how often its reader had requested redelivery.
    """

    start: int
    end: int
    waited: int
    requests: int


class FailoverPlayer(WrittenLog, Player):
    """Plays a schedule on a Failover dispatcher; the consumer whose name comes first is the active one."""

    def __init__(self, profile: Profile, schedule: Sequence[int]) -> None:
        stored = [step for step in schedule if s_.kind_of(step) in (s_.STORE, s_.STORE_BATCH)][:MAX_ENTRIES]
        sizes = [s_.BATCH if s_.kind_of(step) == s_.STORE_BATCH else 1 for step in stored]
        super().__init__(profile, [KEYS[0]] * len(stored), sizes)
        self.core = SingleActiveDispatcher(
            profile, TOPIC, 0, exclusive=False, num_messages=np.array(sizes or [1], np.int64)
        )
        self._numbers: dict[int, int] = {}
        self._joined = 0
        self._most = profile.number("maxConsumersPerSubscription")
        self._reads: list[_Read] = []
        self._holders: dict[int, int] = {}  # entry → number of the consumer that was sent it last
        self._discarded: set[int] = set()  # entries that the client of their holder does not have
        self._requests: Counter[int] = Counter()  # of each consumer, for redelivery
        self._parts: dict[int, int] = {}  # entry → messages of it that are acknowledged, of a batch in part
        self._is_slow = False  # the next send takes long
        self._attempt_due = False  # a read attempt follows when a send is written
        self._looks_late = False  # the next read that waits looks again at the end only
        self._away: list[int] = []  # names that resets have disconnected: their clients connect again
        for step in schedule:
            if not self.broken:
                self._take(step)

    def settle(self) -> None:
        """See ``Player.settle``; the clients that resets have disconnected connect again."""
        for name in self._away:
            if name not in self._numbers:
                self._join(name, _MANY_PERMITS)
        for _ in range(LAST_ROUNDS):
            for number in [*self._numbers.values()]:
                for entry in self._pending_on(number):
                    self._ack(number, entry)
                if self.core.permits[number] < 1:
                    self._grant(number, _MANY_PERMITS)
            self._delay_over()
            self._end_send()
            self._look_again()
            self._complete_read()
            if self.broken or not self.entries_left():
                return

    def entries_left(self) -> list[int]:
        """See ``Player.entries_left``."""
        return [entry for entry in range(self._stored) if not self.core.state.deleted[entry]]

    def pending(self) -> dict[str, list[int]]:
        """Return the entries that each connected consumer holds, by its name."""
        return {f"c{name + 1}": self._pending_on(number) for name, number in self._numbers.items()}

    def _take(self, step: int) -> None:
        kind, name = s_.kind_of(step), s_.name_of(step)
        number = self._numbers.get(name)
        if kind in (s_.STORE, s_.STORE_BATCH):
            self._store()
        elif kind in (s_.CLEAR, s_.SKIP):
            self._move(kind)
        elif kind == s_.RESET:
            self._reset()
        elif kind == s_.READ:
            self._complete_read()
        elif kind == s_.TIMER:
            self._delay_over()
        elif kind == s_.RETRY:
            self._end_send()
        elif kind == s_.SLOW_SEND:
            self._is_slow = True
        elif kind == s_.SLOW_CHECK:
            self._looks_late = True
        elif kind == s_.JOIN:
            if number is None:
                self._join(name, s_.PERMITS[s_.detail_of(step)])
        elif kind == s_.JOIN_LOW:
            if number is None:
                self._join(name, s_.PERMITS_LOW, priority_level=1)
        elif number is None:
            return
        elif kind == s_.LEAVE:
            self._leave(name, number)
        else:
            self._command(kind, number)

    def _command(self, kind: int, number: int) -> None:
        pending = self._pending_on(number)
        if kind == s_.FLOW:
            self._grant(number, 1)
        elif kind in (s_.NACK_FIRST, s_.NACK_ALL):
            self._request(number)
        elif not pending:
            return
        elif kind == s_.ACK_UP_TO:
            self._ack_up_to(number, pending[-1])
        elif kind == s_.ACK_PART:
            self._ack_part(number, pending[0])
        elif kind in (s_.ACK_FIRST, s_.ACK_LAST):
            self._ack(number, pending[0 if kind == s_.ACK_FIRST else -1])

    def _pending_on(self, number: int) -> list[int]:
        """List what a client has: it discards what was read before its last request (PIP-84)."""
        sent = (entry for entry, holder in self._holders.items() if holder == number)
        return sorted(entry for entry in sent if entry not in self._discarded)

    def _take_back(self, number: int) -> None:
        """Forget what a consumer was sent."""
        self._holders = {entry: holder for entry, holder in self._holders.items() if holder != number}

    def _join(self, name: int, permits: int, priority_level: int = 0) -> None:
        if 0 < self._most <= len(self._numbers):
            return  # the broker refuses it
        self._joined += 1
        number = self._numbers[name] = self._joined
        called = f"c{name + 1}"
        self._write_join(number, called, priority_level)
        pick = self.core.join(number, called, priority_level)
        self._notify(pick.notified)
        self._chosen(pick)
        self._grant(number, permits)

    def _leave(self, name: int, number: int, *, by_reset: bool = False) -> None:
        del self._numbers[name]
        self._write("consumer_removed", number)
        self._take_back(number)
        pick = self.core.leave(number, by_reset=by_reset)
        if pick is not None:
            self._chosen(pick)
        elif self.core.pending:
            self._cancel()

    def _notify(self, notices: Sequence[tuple[int, int | None]]) -> None:
        for number, active in notices:
            self._write("active_notified", number, active=active)

    def _move(self, kind: int) -> None:
        """Clear the backlog, or skip its first entry."""
        before, left = int(self.core.state.s[st_.MARK_DELETE]), self.entries_left()
        if left:
            target = self._stored - 1 if kind == s_.CLEAR else left[0]
            self._write_move("clear_backlog" if kind == s_.CLEAR else "skip", before, target)
            self.core.move_forward(target)

    def _reset(self) -> None:
        """Reset the cursor to the first entry: the active consumer is disconnected before, and the others stay.

        Nobody else becomes active until a consumer joins or leaves; what is read until then goes to the one that is gone.
        """
        if not self._stored:
            return
        names = {number: name for name, number in self._numbers.items()}
        active = self.core.active
        if active in names:
            self._away.append(names[active])
            self._leave(names[active], active, by_reset=True)
        self._write_move("reset_cursor", int(self.core.state.s[st_.MARK_DELETE]), -1)
        self.core.reset(0)
        self._parts.clear()

    def _chosen(self, pick: Pick) -> None:
        if not pick.changed:
            return
        if self.core.pending:
            self._cancel()
        change, notices = self.core.begin_active_change()
        self._notify(notices)
        if change is ActiveChange.AT_ONCE:
            self._attempt()

    def _cancel(self) -> None:
        waiting = [read for read in self._reads if self._waits(read)]
        self.core.cancel_read(cancelled=bool(waiting))
        if waiting:
            self._reads.remove(waiting[0])

    def _grant(self, number: int, permits: int) -> None:
        self._write("flow", number, permits=permits, blocked=False)
        self.core.flow(number, permits)
        if self.core.flow_reads(number):
            self._attempt()

    def _ack(self, number: int, entry: int) -> None:
        self._write("ack", number, ack_type="Individual", positions=self._positions([entry]))
        self.core.acknowledge(entry)
        self._holders.pop(entry, None)

    def _ack_up_to(self, number: int, entry: int) -> None:
        """Acknowledge cumulatively: what others hold up to there is acknowledged, too."""
        self._write("ack", number, ack_type="Cumulative", positions=self._positions([entry]))
        self.core.acknowledge_up_to(entry)
        for earlier in [known for known in self._holders if known <= entry]:
            del self._holders[earlier]

    def _ack_part(self, number: int, entry: int) -> None:
        acked, size = self._parts.get(entry, 0) + 1, self.sizes[entry]
        if acked >= size or not self.profile.settings.get("acknowledgmentAtBatchIndexLevelEnabled"):
            return
        self._parts[entry] = acked
        words = [((1 << size) - 1) ^ ((1 << acked) - 1)]  # the first ones are acknowledged
        positions = self._positions([entry])
        self._write("ack", number, ack_type="Individual", positions=positions, ack_sets=[words])
        self.core.acknowledge(entry, words)

    def _request(self, number: int) -> None:
        """Request everything again: the client drops what it has, the active consumer's dispatcher rewinds."""
        self._write("redeliver", number)
        self._requests[number] += 1
        self._take_back(number)
        if not self.core.hears_redelivery(number):
            return
        waiting = [read for read in self._reads if self._waits(read)]
        self.core.redeliver(number, cancelled=bool(waiting))
        if waiting:
            self._reads.remove(waiting[0])
        self._attempt()

    def _delay_over(self) -> None:
        if self.core.delay_running:
            self._notify(self.core.delay_over())
            self._attempt()

    def _end_send(self) -> None:
        """Have a slow send written."""
        if self._attempt_due:
            self._attempt_due = False
            self._attempt()

    def _readable(self, start: int) -> list[int]:
        return [entry for entry in range(start, self._stored) if not self.core.state.deleted[entry]]

    def _waits(self, read: _Read) -> bool:
        if read.waited == TO_BE_TOLD:
            return self._stored == read.end or not self._readable(int(self.core.state.s[st_.READ_POSITION]))
        return read.waited == TO_LOOK_AGAIN

    def _look_again(self) -> None:
        for read in self._reads:
            if read.waited == TO_LOOK_AGAIN:
                is_there = self._readable(int(self.core.state.s[st_.READ_POSITION]))
                read.waited = HAS_LOOKED if is_there else TO_BE_TOLD

    def _attempt(self) -> None:
        start = int(self.core.state.s[st_.READ_POSITION])
        if self.core.attempt_read(self.core.active, start=start) is None:
            return
        waits = not self._readable(start)
        if waits and any(self._waits(read) for read in self._reads):
            self.core.fail_read()
            return
        assert self.core.active is not None
        waited = NOT_WAITING
        if waits:
            waited = TO_LOOK_AGAIN if self._looks_late else TO_BE_TOLD
            self._looks_late = False
        self._reads.append(_Read(start, self._stored, waited, self._requests[self.core.active]))

    def _complete_read(self) -> None:
        """Complete the oldest read that does not wait."""
        at = next((at for at, read in enumerate(self._reads) if not self._waits(read)), None)
        if at is None:
            return
        read, size = self._reads[at], self.core.size_of_read(at)
        start = int(self.core.state.s[st_.READ_POSITION]) if read.waited == TO_BE_TOLD else read.start
        entries = self._readable(start)
        if read.waited != NOT_WAITING and "waiting_read_gets_entries" not in self.profile.changes:
            entries = [entry for entry in entries if entry < read.end]
        entries = entries[:size]
        del self._reads[at]
        result = self.core.read_done(entries, frozenset(range(self._stored)), at)
        if result.entries is None:
            self._notify(result.notified)
            if result.rewound:
                self._attempt()
            return
        if result.entries:
            self._send(result.entries, read.requests)
            if self._is_slow:
                self._is_slow, self._attempt_due = False, True
                return
        self._attempt()

    def _send(self, entries: Sequence[int], requests: int) -> None:
        """Send entries of a read; ``requests``: see ``_Read``."""
        number, _ = self.core.send(entries)
        sizes = [self.sizes[entry] for entry in entries]
        self._write("sent", number, positions=self._positions(entries), batch_sizes=sizes)
        if number not in self._numbers.values():
            return  # a reset has disconnected it, and nobody else is active
        for entry in entries:
            self.broken |= entry in self._holders
            self._holders[entry] = number
            (self._discarded.discard if requests == self._requests[number] else self._discarded.add)(entry)


# --- Shared ----------------------------------------------------------------------------------------------------------


class SharedPlayer(Replay, Player):
    """Plays a schedule on a Shared dispatcher."""

    core: SharedDispatcher  # type: ignore[assignment]

    def __init__(self, profile: Profile, schedule: Sequence[int]) -> None:
        super().__init__(profile, [f"key-{number}" for number in range(s_.KEYS)], schedule)

    def _take(self, step: int) -> None:
        if not self.broken:
            super()._take(step)

    def _new_core(self, profile: Profile, messages: st_.I64, consumers: int) -> MultipleConsumersDispatcher:
        return SharedDispatcher(profile, np.zeros(len(messages), np.int64), messages, consumers)

    def _added(self, number: int, called: str, priority_level: int) -> None:
        self.core.join(number, called, priority_level)

    def _removed(self, number: int) -> None:
        self.core.leave(number)

    def _forgets(self, number: int) -> bool:
        return False

    def _frees(self) -> bool:
        return False

    def _dispatch(self, kind: str, entries: list[int]) -> None:
        self._before = self.core.state.holder.copy()
        super()._dispatch(kind, entries)

    def _note(self, outcome: Round) -> None:
        """Note an entry that is sent while it is pending."""
        entries = [entry for taken in outcome.sent.values() for entry in taken]
        self.broken |= any(self._before[entry] != st_.NOBODY for entry in entries)


# --- the search ------------------------------------------------------------------------------------------------------


def player_of(profile: Profile, schedule: Sequence[int]) -> FailoverPlayer | SharedPlayer:
    """Play a schedule on the dispatcher of a profile; raises ``UnsupportedRuleError`` for one that is played elsewhere."""
    if profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        return FailoverPlayer(profile, schedule)
    if profile.dispatcher in (Dispatcher.SHARED, Dispatcher.SHARED_CLASSIC):
        return SharedPlayer(profile, schedule)
    raise UnsupportedRuleError(f"{profile.name}: neither Failover nor Shared")


class UnkeyedHunter(AnyHunter):
    """Plays schedules on the Failover or the Shared dispatcher of a profile; arguments as for ``search.Hunter``."""

    def __init__(
        self,
        profile: Profile,
        *,
        seed: int = 0,
        wanted: Collection[str] = tuple(promises.NAMES.values()),
        groups: Collection[str] = (),
        pass_over: Collection[str] = (),
    ) -> None:
        super().__init__(pass_over)
        self.profile = profile
        self.keys = KEYS
        self._played = 0
        self._wanted = frozenset(wanted)
        self._random = random.Random(seed)  # noqa: S311 - no secret
        kinds: tuple[int, ...] = ()
        if profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
            kinds = _NOT_OF_FAILOVER if "writes" in groups else _NOT_WITHOUT_WRITES
        self._choices = [
            step for step in s_.all_steps(keys=1, groups=groups) if s_.kind_of(step) not in kinds
        ]
        self._rules = Hunter(profile, KEYS * s_.KEYS) if profile.is_shared else FailoverRules(profile, TOPIC)

    @property
    def played(self) -> int:
        """Random schedules played so far."""
        return self._played

    @property
    def steps(self) -> int:
        """Steps taken so far, of clients and of the broker."""
        return self._rules.steps

    def play(self, steps: Sequence[int]) -> Find | None:
        """See ``AnyHunter.play``."""
        return self._rules.play(steps)

    def bounded_search(self) -> BoundedSearch:
        """See ``AnyHunter.bounded_search``."""
        return self._rules.bounded_search(self._choices, promises.bits_of(self._wanted))

    def found(self, steps: Sequence[int]) -> Find:
        """See ``AnyHunter.found``."""
        return self._rules.found(steps)

    def cause_of(self, find: Find) -> str:
        """See ``AnyHunter.cause_of``."""
        return self._rules.cause_of(find)

    def random(self) -> Find | None:
        """Play random schedules until one breaks a promise that is wanted; ``None`` after ``AT_ONCE`` that do not."""
        for _ in range(self._room(AT_ONCE)):
            length = self._random.randint(SHORTEST, LONGEST)
            find = self.play(self._random.choices(self._choices, k=length))
            self._played += 1
            if find is None or find.name not in self._wanted:
                continue
            if not self.is_passed_over(find):
                return find
            self.passed_over[self.cause_of(find)] += 1
        return None


def played(profile: Profile, keys: Sequence[str], schedule: Sequence[int]) -> WrittenLog:
    """Play a schedule and let it settle; returns its log. ``keys``: of a Key_Shared subscription."""
    if type_of(profile) == "Key_Shared":
        replay = Replay(profile, keys, schedule)
        replay.settle()
        return replay
    player = player_of(profile, schedule)
    if not player.broken:
        player.settle()
    return player


def hunter_of(profile: Profile, keys: Sequence[str]) -> AnyHunter:
    """Return a hunter for the dispatcher of a profile, to play schedules; Key_Shared: with these keys."""
    is_keyed = type_of(profile) == "Key_Shared"
    return Hunter(profile, keys) if is_keyed else UnkeyedHunter(profile)
