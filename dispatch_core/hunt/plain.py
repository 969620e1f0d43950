"""Hunt Failover and Shared: schedules played on the dispatchers themselves, in plain Python.

Their rounds and active-consumer changes are control plane, so nothing is compiled: some ten thousand steps a second, where
``search`` plays millions. The promises are those that hold without keys: an entry is not sent while it is pending on a
connected consumer (``DOUBLE_OUTSTANDING``), and clients that acknowledge all get all (``STUCK``).

Source: PersistentDispatcherSingleActiveConsumer, PersistentDispatcherMultipleConsumers.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
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
from dispatch_core.hunt.broker_steps import LAST_ROUNDS
from dispatch_core.hunt.replayed import TOPIC, Replay
from dispatch_core.hunt.search import LONGEST, SHORTEST, AnyHunter, Find, Hunter
from dispatch_core.hunt.world import MAX_ENTRIES

#: The key that entries have: it makes no difference.
KEYS: Final = ("key-0",)
_MANY_PERMITS: Final = 10
#: Schedules that ``random`` plays at most.
AT_ONCE: Final = 500


class Player(ABC):
    """A schedule that is played. ``broken``: promise, entry, consumer number and cause of the first broken promise."""

    broken: tuple[int, int, int, str] | None = None

    @abstractmethod
    def settle(self) -> None:
        """Let clients acknowledge all and grant permits, and reads complete, until nothing moves."""

    @abstractmethod
    def entries_left(self) -> list[int]:
        """List the stored entries that are not acknowledged."""

    @abstractmethod
    def connected(self) -> list[int]:
        """List the numbers of the connected consumers."""

    @abstractmethod
    def cause_of_standstill(self) -> str:
        """Name the cause why an entry never comes."""

    def check(self) -> None:
        """Note that an entry never comes, if so."""
        left = self.entries_left()
        if self.broken is None and left and self.connected():
            self.broken = promises.STUCK, left[0], self.connected()[0], self.cause_of_standstill()


# --- Failover --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Read:
    """A read in flight. ``start``: the read position when it was issued; ``waits``: nothing was there then."""

    start: int
    waits: bool


class FailoverPlayer(Player):
    """Plays a schedule on a Failover dispatcher; the consumer whose name comes first is the active one."""

    def __init__(self, profile: Profile, schedule: Sequence[int]) -> None:
        stored = [step for step in schedule if s_.kind_of(step) == s_.STORE][:MAX_ENTRIES]
        self.core = SingleActiveDispatcher(
            profile, TOPIC, 0, exclusive=False, num_messages=np.ones(max(len(stored), 1), np.int64)
        )
        self._profile = profile
        self._numbers: dict[int, int] = {}
        self._joined = self._stored = 0
        self._reads: list[_Read] = []
        self._holders: dict[int, int] = {}  # entry → number of the consumer that was sent it last
        for step in schedule:
            if self.broken is None:
                self._take(step)

    def settle(self) -> None:
        """See ``Player.settle``."""
        for _ in range(LAST_ROUNDS):
            for number in [*self._numbers.values()]:
                for entry in self._pending_on(number):
                    self._ack(entry)
                if self.core.permits[number] < 1:
                    self._grant(number, _MANY_PERMITS)
            self._delay_over()
            self._complete_read()
            if self.broken is not None or not self.entries_left():
                return

    def entries_left(self) -> list[int]:
        """See ``Player.entries_left``."""
        return [entry for entry in range(self._stored) if not self.core.state.deleted[entry]]

    def connected(self) -> list[int]:
        """See ``Player.connected``."""
        return [*self._numbers.values()]

    def cause_of_standstill(self) -> str:
        """See ``Player.cause_of_standstill``."""
        return "no_read"

    def _take(self, step: int) -> None:
        kind, name = s_.kind_of(step), s_.name_of(step)
        number = self._numbers.get(name)
        if kind == s_.STORE:
            self._stored = min(self._stored + 1, MAX_ENTRIES)
        elif kind == s_.READ:
            self._complete_read()
        elif kind == s_.TIMER:
            self._delay_over()
        elif kind == s_.JOIN:
            if number is None:
                self._join(name, s_.PERMITS[s_.detail_of(step)])
        elif number is None:
            return
        elif kind == s_.LEAVE:
            self._leave(name, number)
        elif kind == s_.FLOW:
            self._grant(number, 1)
        elif kind in (s_.NACK_FIRST, s_.NACK_ALL):
            self._request(number)
        elif kind in (s_.ACK_FIRST, s_.ACK_LAST) and self._pending_on(number):
            self._ack(self._pending_on(number)[0 if kind == s_.ACK_FIRST else -1])

    def _pending_on(self, number: int) -> list[int]:
        return sorted(entry for entry, holder in self._holders.items() if holder == number)

    def _join(self, name: int, permits: int) -> None:
        self._joined += 1
        number = self._numbers[name] = self._joined
        self._chosen(self.core.join(number, f"c{name + 1}"))
        self._grant(number, permits)

    def _leave(self, name: int, number: int) -> None:
        del self._numbers[name]
        for entry in self._pending_on(number):
            del self._holders[entry]
        pick = self.core.leave(number)
        if pick is not None:
            self._chosen(pick)
        elif self.core.pending:
            self._cancel()

    def _chosen(self, pick: Pick) -> None:
        if not pick.changed:
            return
        if self.core.pending:
            self._cancel()
        change, _ = self.core.begin_active_change()
        if change is ActiveChange.AT_ONCE:
            self._attempt()

    def _cancel(self) -> None:
        waiting = [read for read in self._reads if self._waits(read)]
        self.core.cancel_read(cancelled=bool(waiting))
        if waiting:
            self._reads.remove(waiting[0])

    def _grant(self, number: int, permits: int) -> None:
        self.core.flow(number, permits)
        if self.core.flow_reads(number):
            self._attempt()

    def _ack(self, entry: int) -> None:
        self.core.acknowledge(entry)
        self._holders.pop(entry, None)

    def _request(self, number: int) -> None:
        """Request everything again: the client drops what it has, the active consumer's dispatcher rewinds."""
        for entry in self._pending_on(number):
            del self._holders[entry]
        if not self.core.hears_redelivery(number):
            return
        waiting = [read for read in self._reads if self._waits(read)]
        self.core.redeliver(number, cancelled=bool(waiting))
        if waiting:
            self._reads.remove(waiting[0])
        self._attempt()

    def _delay_over(self) -> None:
        if self.core.delay_running:
            self.core.delay_over()
            self._attempt()

    def _readable(self, start: int) -> list[int]:
        return [entry for entry in range(start, self._stored) if not self.core.state.deleted[entry]]

    def _waits(self, read: _Read) -> bool:
        return read.waits and not self._readable(int(self.core.state.s[st_.READ_POSITION]))

    def _attempt(self) -> None:
        if self.core.attempt_read(self.core.active) is None:
            return
        start = int(self.core.state.s[st_.READ_POSITION])
        waits = not self._readable(start)
        if waits and any(self._waits(read) for read in self._reads):
            self.core.fail_read()
            return
        self._reads.append(_Read(start, waits))

    def _complete_read(self) -> None:
        """Complete the oldest read that does not wait."""
        at = next((at for at, read in enumerate(self._reads) if not self._waits(read)), None)
        if at is None:
            return
        read, size = self._reads[at], self.core.size_of_read(at)
        start = int(self.core.state.s[st_.READ_POSITION]) if read.waits else read.start
        entries = self._readable(start)[:size]
        if read.waits and "waiting_read_gets_entries" not in self._profile.changes:
            entries = []
        del self._reads[at]
        result = self.core.read_done(entries, frozenset(range(self._stored)), at)
        if result.entries is None:
            if result.rewound:
                self._attempt()
            return
        if result.entries:
            self._send(result.entries)
        self._attempt()

    def _send(self, entries: Sequence[int]) -> None:
        number, _ = self.core.send(entries)
        for entry in entries:
            holder = self._holders.get(entry)
            if holder is not None and self.broken is None:
                cause = "replayed_again" if holder == number else "active_change"
                self.broken = promises.DOUBLE_OUTSTANDING, entry, number, cause
            self._holders[entry] = number


# --- Shared ----------------------------------------------------------------------------------------------------------


class SharedPlayer(Replay, Player):
    """Plays a schedule on a Shared dispatcher."""

    core: SharedDispatcher  # type: ignore[assignment]

    def __init__(self, profile: Profile, schedule: Sequence[int]) -> None:
        self._is_replay = False
        super().__init__(profile, [f"key-{number}" for number in range(s_.KEYS)], schedule)

    def connected(self) -> list[int]:
        """See ``Player.connected``."""
        return [*self._numbers.values()]

    def cause_of_standstill(self) -> str:
        """See ``Player.cause_of_standstill``."""
        return "rewind_waits" if self.core.state.s[st_.REWIND_DUE] else "no_read"

    def _take(self, step: int) -> None:
        if self.broken is None:
            super()._take(step)

    def _new_core(self, profile: Profile, messages: st_.I64, consumers: int) -> MultipleConsumersDispatcher:
        return SharedDispatcher(profile, np.zeros(len(messages), np.int64), messages, consumers)

    def _added(self, number: int, called: str) -> None:
        self.core.join(number, called)

    def _removed(self, number: int) -> None:
        self.core.leave(number)

    def _forgets(self, number: int) -> bool:
        return False

    def _frees(self) -> bool:
        return False

    def _dispatch(self, kind: str, entries: list[int]) -> None:
        self._is_replay = kind == "Replay"
        self._before = self.core.state.holder.copy()
        super()._dispatch(kind, entries)

    def _note(self, outcome: Round) -> None:
        """Note an entry that is sent while it is pending."""
        for number, taken in outcome.sent.items():
            for entry in taken:
                if self._before[entry] != st_.NOBODY and self.broken is None:
                    cause = "replayed_again" if self._is_replay else "read_again"
                    self.broken = promises.DOUBLE_OUTSTANDING, entry, number, cause


# --- the search ------------------------------------------------------------------------------------------------------


def player_of(profile: Profile, schedule: Sequence[int]) -> Player:
    """Play a schedule on the dispatcher of a profile; raises ``UnsupportedRuleError`` for one that is played elsewhere."""
    if profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        return FailoverPlayer(profile, schedule)
    if profile.dispatcher in (Dispatcher.SHARED, Dispatcher.SHARED_CLASSIC):
        return SharedPlayer(profile, schedule)
    raise UnsupportedRuleError(f"{profile.name}: neither Failover nor Shared")


class PlainHunter(AnyHunter):
    """Plays schedules on the Failover or the Shared dispatcher of a profile; arguments as for ``search.Hunter``."""

    def __init__(
        self,
        profile: Profile,
        *,
        seed: int = 0,
        wanted: Collection[str] = tuple(promises.NAMES.values()),
        pass_over: Collection[str] = (),
    ) -> None:
        super().__init__(pass_over)
        self.profile = profile
        self.keys = KEYS
        self._played = self._steps = 0
        self._wanted = frozenset(wanted)
        self._random = random.Random(seed)  # noqa: S311 - no secret
        kinds = (s_.REPLAY, s_.RETRY) if profile.dispatcher is Dispatcher.SINGLE_ACTIVE else ()
        self._choices = [step for step in s_.all_steps(keys=1) if s_.kind_of(step) not in kinds]
        self._cause = ""

    @property
    def played(self) -> int:
        """Random schedules played so far."""
        return self._played

    @property
    def steps(self) -> int:
        """Steps of the schedules played so far."""
        return self._steps

    def play(self, steps: Sequence[int]) -> Find | None:
        """See ``AnyHunter.play``."""
        player = player_of(self.profile, steps)
        self._steps += len(steps)
        if player.broken is None:
            player.settle()
            player.check()
        if player.broken is None:
            return None
        promise, entry, number, self._cause = player.broken
        return Find(promise, tuple(steps), entry, number)

    def cause_of(self, find: Find) -> str:
        """See ``AnyHunter.cause_of``."""
        return self._cause

    def random(self) -> Find | None:
        """Play random schedules until one breaks a promise that is wanted; ``None`` after ``AT_ONCE`` that do not."""
        for _ in range(self._room(AT_ONCE)):
            length = self._random.randint(SHORTEST, LONGEST)
            find = self.play(self._random.choices(self._choices, k=length))
            self._played += 1
            if find is None or find.name not in self._wanted:
                continue
            if not self._is_passed_over(find):
                return find
            self.passed_over[self._cause] += 1
        return None


def hunter_of(profile: Profile, keys: Sequence[str]) -> AnyHunter:
    """Return a hunter for the dispatcher of a profile, to play schedules; Key_Shared: with these keys."""
    is_plain = profile.is_shared or profile.dispatcher is Dispatcher.SINGLE_ACTIVE
    return PlainHunter(profile) if is_plain else Hunter(profile, keys)
