"""Search schedules that break a promise, and shrink them.

``Hunter`` plays schedules on one profile and three keys. ``random`` plays seeded ones of growing length; the same seed gives
the same schedules. ``shrink`` leaves out steps, and grants fewer permits, as long as the same promise is broken: no single
step can be left out of the result.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.broker import hashing
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.multiple_consumers import MultipleConsumersDispatcher
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.state import I8, I64, State
from dispatch_core.errors import UnsupportedRuleError
from dispatch_core.hunt import bounded as b_
from dispatch_core.hunt import broker_steps, causes, distinct, promises, situations
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt import world as w_
from dispatch_core.hunt.bounded import BoundedSearch
from dispatch_core.hunt.broker_steps import ASKS_SELECTOR, BROKEN, IMPOSSIBLE, settle, take
from dispatch_core.hunt.ownership import SLOTS_PER_NAME, Owners, Ownership, nobody_owns
from dispatch_core.hunt.world import World

#: Lengths of random schedules, in steps that are tried; some of them are not possible.
SHORTEST: Final = 6
LONGEST: Final = 26
#: Schedules that compiled code plays before it returns, so that progress can be shown and a budget kept.
AT_ONCE: Final = 20_000

# what compiled code reports
PLAYED, STEPS, FOUND, RANDOM, WANTED, CHUNK = range(6)
N_REPORTED: Final = 6

_DISPATCHERS: Final[Mapping[Dispatcher, Callable[..., MultipleConsumersDispatcher]]] = {
    Dispatcher.KEY_SHARED: KeySharedDispatcher,
    Dispatcher.KEY_SHARED_CLASSIC: ClassicKeySharedDispatcher,
    Dispatcher.SHARED: SharedDispatcher,
    Dispatcher.SHARED_CLASSIC: SharedDispatcher,
}


@dataclass(frozen=True, slots=True)
class Find:
    """A schedule that breaks a promise.

    ``promise``: see ``promises``. ``entry``, ``slot``: the entry that shows it, and the consumer that is sent it, or should
    be. ``cause``: see ``causes``; empty while it is not asked for.
    """

    promise: int
    steps: tuple[int, ...]
    entry: int
    slot: int
    cause: str = ""

    @property
    def name(self) -> str:
        """The name of the promise."""
        return promises.NAMES[self.promise]

    @property
    def group(self) -> tuple[int, str]:
        """The promise and the cause: finds that have both in common are counted as one."""
        return self.promise, self.cause


# --- data plane ------------------------------------------------------------------------------------------------------


@compiled_inside
def begin(words: I64, empty: I64) -> None:
    """Begin a schedule: nobody is connected, nothing is stored."""
    for at in range(len(words)):
        words[at] = empty[at]


@compiled_inside
def next_random(report: I64) -> int:
    """Return the next of a sequence of pseudo random numbers, 31 bits (a linear congruential generator)."""
    report[RANDOM] = report[RANDOM] * 6364136223846793005 + 1442695040888963407
    return (report[RANDOM] >> 33) & 0x7FFFFFFF


@compiled
def play(
    st: State, world: World, owners: Owners, words: I64, empty: I64, steps: I64, settles: bool, report: I64
) -> int:
    """Play steps, and settle if wanted; steps that are not possible are passed over."""
    begin(words, empty)
    names = len(world.slot_of_name)
    for at in range(len(steps)):
        came_to = take(st, world, owners, steps[at])
        if came_to != IMPOSSIBLE:
            report[STEPS] += 1
        if came_to in (BROKEN, ASKS_SELECTOR):
            return came_to
    if not settles:
        return broker_steps.DONE
    report[STEPS] += 1
    return settle(st, world, names)


@compiled
def play_random(
    st: State,
    world: World,
    owners: Owners,
    words: I64,
    empty: I64,
    matters: I64,
    choices: I64,
    steps: I64,
    report: I64,
    sketch: I8,
    beginnings: I64,
    led_to: I64,
) -> int:
    """Play random schedules until one breaks a promise, the selector is asked, or ``report[CHUNK]`` are played.

    The numbers of the last schedule are in ``steps``, its length in ``report[FOUND]``. ``report[WANTED]`` has a bit for each
    promise that is searched for; schedules that break others are passed over. ``sketch``: see ``distinct``, empty if states
    are not counted. ``beginnings``: see ``situations``; every other schedule begins as one of them. ``led_to``: room
    for the situations of a schedule.
    """
    names = len(world.slot_of_name)
    for _ in range(report[CHUNK]):
        seed = report[RANDOM]
        begin(words, empty)
        length = SHORTEST + next_random(report) % (LONGEST - SHORTEST + 1)
        came_to = 0
        taken = 0
        known_to = 0
        if beginnings[0] > 0 and report[PLAYED] % 2 == 1:
            begun = situations.begin_with(beginnings, next_random(report), steps)
            length = min(length, LONGEST - begun)
            while taken < begun and came_to not in (BROKEN, ASKS_SELECTOR):
                came_to = take(st, world, owners, steps[taken])
                led_to[taken] = situations.situation(st, world)
                taken += 1
            known_to = taken
        for _ in range(length):
            number = choices[next_random(report) % len(choices)]
            came_to = take(st, world, owners, number)
            if came_to == IMPOSSIBLE:
                continue
            steps[taken] = number
            taken += 1
            if len(sketch) > 0 and came_to != ASKS_SELECTOR:
                distinct.note(words, matters, sketch)
            if came_to in (BROKEN, ASKS_SELECTOR):
                break
            led_to[taken - 1] = situations.situation(st, world)
            known_to = taken
        if came_to not in (BROKEN, ASKS_SELECTOR):
            came_to = settle(st, world, names)
        if came_to == ASKS_SELECTOR:
            report[RANDOM] = seed
            return came_to
        situations.keep(steps, led_to, known_to, beginnings)
        report[PLAYED] += 1
        report[STEPS] += taken
        if came_to == BROKEN and promises.is_among(world.w[w_.BROKEN], report[WANTED]):
            report[FOUND] = taken
            return came_to
    return broker_steps.DONE


@compiled
def add_steps(
    st: State,
    world: World,
    owners: Owners,
    words: I64,
    empty: I64,
    matters: I64,
    parent: I64,
    choices: I64,
    schedules: I8,
    longer: I8,
    table: I64,
    at: I64,
) -> int:
    """Add every step to every schedule of a level (``bounded``), and settle where a state is new.

    ``parent``: room for a state.
    """
    names = len(world.slot_of_name)
    while at[b_.PARENT] < at[b_.PARENTS]:
        begin(words, empty)
        for step in range(at[b_.LENGTH]):
            take(st, world, owners, b_.step_of(at, choices, schedules, step))
        begin(parent, words)
        joined = b_.names_joined(at, choices, schedules)
        while at[b_.CHOICE] < len(choices):
            pause = b_.pauses(at, longer, table)
            if pause != b_.LEVEL_DONE:
                return pause
            came_to = IMPOSSIBLE
            if not b_.joins_too_early(at, choices, joined):
                came_to = take(st, world, owners, choices[at[b_.CHOICE]])
            if came_to == ASKS_SELECTOR:
                return b_.ASKS
            at[b_.CHOICE] += 1
            if came_to == IMPOSSIBLE:
                continue
            at[b_.PLAYED] += 1
            at[b_.TAKEN] += 1
            if came_to == BROKEN:
                if promises.is_among(world.w[w_.BROKEN], at[b_.WANTED]):
                    return b_.BROKEN_BY_STEP
            elif b_.is_new(at, words, matters, table):
                at[b_.TAKEN] += 1
                came_to = settle(st, world, names)
                if came_to == BROKEN and promises.is_among(world.w[w_.BROKEN], at[b_.WANTED]):
                    return b_.BROKEN_AT_END
                b_.keep(at, schedules, longer)
            begin(words, parent)
        at[b_.CHOICE] = 0
        at[b_.PARENT] += 1
    return b_.LEVEL_DONE


# --- control plane ---------------------------------------------------------------------------------------------------


class AnyHunter(ABC):
    """A hunter that plays and shrinks schedules. ``pass_over``: causes that are known."""

    keys: tuple[str, ...]

    def __init__(self, pass_over: Collection[str]) -> None:
        self._pass_over = frozenset(pass_over)
        self.passed_over: Counter[str] = Counter()
        #: Random schedules that are played at most; ``None`` = no limit.
        self.limit: int | None = None

    @property
    @abstractmethod
    def played(self) -> int:
        """Random schedules played so far."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps taken so far."""

    @abstractmethod
    def random(self) -> Find | None:
        """Play random schedules until one breaks a promise; ``None`` after some that do not."""

    def _room(self, at_once: int) -> int:
        """Return how many schedules may be played at once."""
        return at_once if self.limit is None else min(at_once, self.limit - self.played)

    @abstractmethod
    def play(self, steps: Sequence[int]) -> Find | None:
        """Play one schedule; returns the promise that it breaks, if it breaks any."""

    @abstractmethod
    def bounded_search(self) -> BoundedSearch:
        """Return a search that plays every schedule, the shortest first."""

    @abstractmethod
    def found(self, steps: Sequence[int]) -> Find:
        """Return the schedule played last, which has broken a promise."""

    @abstractmethod
    def cause_of(self, find: Find) -> str:
        """Return the cause of the schedule played last."""

    def shrink(self, find: Find) -> Find:
        """Leave out steps and permits of a schedule as long as it breaks the same promise; the result has a cause.

        A shorter schedule that ends by a cause to be passed over is none of it.
        """
        steps = list(find.steps)
        best, smaller = find, True
        while smaller:
            smaller = False
            for shorter in _shorter(steps):
                again = self._same(shorter, find.promise)
                if again is not None:
                    best, steps, smaller = again, shorter, True
                    break
        # Consistent hashing goes by names: with other ones the schedule may break nothing.
        renamed = self._same(s_.renamed_names(best.steps), find.promise) or self.play(best.steps)
        assert renamed is not None
        return replace(renamed, cause=self.cause_of(renamed))

    def _same(self, steps: Sequence[int], promise: int) -> Find | None:
        """Play a schedule; returns it if it breaks the promise by a cause that is not passed over."""
        again = self.play(steps)
        if again is None or again.promise != promise or self.is_passed_over(again):
            return None
        return again

    def is_passed_over(self, find: Find) -> bool:
        """Check the cause of the schedule played last, if its state shows one."""
        if not self._pass_over:
            return False
        cause = self.cause_of(find)
        return cause in self._pass_over and cause not in causes.BY_STEPS


class Hunter(AnyHunter):
    """Plays schedules on the Key_Shared or Shared dispatcher of a profile.

    ``keys``: names of the keys that entries may have. ``wanted``: names of the promises to search for. ``groups``: further
    kinds of steps, see ``schedule.GROUPS``. ``pass_over``: causes that are known; schedules that end by them are counted in
    ``passed_over``. ``at_once``: schedules that ``random`` plays at most. ``sketch``: counts the states
    that random schedules lead to. Raises ``UnsupportedRuleError`` for other dispatchers.
    """

    def __init__(
        self,
        profile: Profile,
        keys: Sequence[str],
        *,
        seed: int = 0,
        wanted: Collection[str] = tuple(promises.NAMES.values()),
        groups: Collection[str] = (),
        pass_over: Collection[str] = (),
        at_once: int = AT_ONCE,
        sketch: I8 | None = None,
    ) -> None:
        super().__init__(pass_over)
        if profile.dispatcher not in _DISPATCHERS:
            raise UnsupportedRuleError(f"{profile.name}: neither Key_Shared nor Shared")
        self.profile = profile
        self.keys = tuple(keys)
        names = [f"c{number + 1}" for number in range(s_.NAMES)]
        hashes = [profile.hash_space.sticky(hashing.h31(key.encode())) for key in keys]
        core = _DISPATCHERS[profile.dispatcher](
            profile,
            np.array((hashes * w_.MAX_ENTRIES)[: w_.MAX_ENTRIES], np.int64),
            np.ones(w_.MAX_ENTRIES, np.int64),
            SLOTS_PER_NAME * len(names),
        )
        if profile.is_shared:
            self._owners = nobody_owns(len(names))
        else:
            known = core.hash_values(np.arange(len(core.state.hash_owner)))
            self._ownership = Ownership(profile, names, known.tolist())
            self._owners = self._ownership.tables
        changes = profile.changes
        rules = [
            (w_.CLASSIC, int(profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC)),
            (w_.RELEASES_WON, int("added_ranges" in changes)),
            (w_.EMPTY_WHEN_WAITED, int("waiting_read_gets_entries" not in changes)),
            (w_.CANCEL_CLEARS_REPLAY, int("cancel_clears_replay_read" in changes)),
            (
                w_.BATCH_INDEX_ACKS,
                int(bool(profile.settings.get("acknowledgmentAtBatchIndexLevelEnabled"))),
            ),
            (w_.TRIMS_AFTER_MOVE, int(core.trims_after_a_move())),
            (w_.OWN_LIMIT, profile.number("maxUnackedMessagesPerConsumer")),
            (w_.SHARED, int(profile.is_shared)),
        ]
        self._arena = w_.fresh(core.state, s_.NAMES, core.state.hash_id[: len(keys)], rules)
        self._empty = self._arena.words.copy()
        self._choices = np.array(s_.all_steps(keys=len(keys), groups=groups), np.int64)
        self._steps = np.zeros(LONGEST + 1, np.int64)
        self.report = np.zeros(N_REPORTED, np.int64)
        self.report[WANTED] = promises.bits_of(wanted)
        self._at_once = at_once
        self._sketch = distinct.new_sketch(0) if sketch is None else sketch
        self._beginnings = situations.no_beginnings()
        self._led_to = np.zeros(LONGEST + 1, np.int64)
        self.report[RANDOM] = np.int64(seed * 2_654_435_761 + 1)

    @property
    def played(self) -> int:
        """Random schedules played so far."""
        return int(self.report[PLAYED])

    @property
    def steps(self) -> int:
        """Steps taken so far, of clients and of the broker."""
        return int(self.report[STEPS])

    def random(self) -> Find | None:
        """Play random schedules until one breaks a promise; ``None`` after ``at_once`` that do not or are passed over."""
        a = self._arena
        until = self.played + self._at_once
        while self.played < until:
            came_to = ASKS_SELECTOR
            while came_to == ASKS_SELECTOR:
                self.report[CHUNK] = self._room(until - self.played)
                with np.errstate(over="ignore"):  # of the random numbers, where it runs interpreted
                    came_to = play_random(
                        a.state,
                        a.world,
                        self._owners,
                        a.words,
                        self._empty,
                        a.matters,
                        self._choices,
                        self._steps,
                        self.report,
                        self._sketch,
                        self._beginnings,
                        self._led_to,
                    )
                if came_to == ASKS_SELECTOR:
                    self._ask()
            if came_to != BROKEN:
                return None
            find = self.found(self._steps[: self.report[FOUND]].tolist())
            if not self.is_passed_over(find):
                return find
            self.passed_over[self.cause_of(find)] += 1
        return None

    def bounded_search(
        self, choices: Sequence[int] | None = None, wanted: int | None = None
    ) -> BoundedSearch:
        """See ``AnyHunter.bounded_search``. Consistent hashing and STICKY go by names.

        ``choices``, ``wanted``: other steps and promises than those of the hunter, as numbers and bits.
        """
        profile = self.profile
        steps = self._choices if choices is None else np.array(choices, np.int64)
        goes_by_names = profile.consistent_hashing or profile.key_shared_mode == "STICKY"
        return BoundedSearch(
            functools.partial(self._add_steps, self._empty.copy(), steps),
            steps,
            int(self.report[WANTED]) if wanted is None else wanted,
            names_matter=goes_by_names and not profile.is_shared,
        )

    def _add_steps(self, parent: I64, choices: I64, schedules: I8, longer: I8, table: I64, at: I64) -> int:
        a = self._arena
        while True:
            came_to = add_steps(
                a.state,
                a.world,
                self._owners,
                a.words,
                self._empty,
                a.matters,
                parent,
                choices,
                schedules,
                longer,
                table,
                at,
            )
            if came_to != b_.ASKS:
                return came_to
            self._ask()

    def play(self, steps: Sequence[int], *, settles: bool = True) -> Find | None:
        """Play one schedule; returns the promise that it breaks, if it breaks any. Without ``settles`` its steps alone."""
        a = self._arena
        numbers = np.array(steps, np.int64)
        while True:
            came_to = play(
                a.state,
                a.world,
                self._owners,
                a.words,
                self._empty,
                numbers,
                settles,
                self.report,
            )
            if came_to != ASKS_SELECTOR:
                break
            self._ask()
        return self.found(steps) if came_to == BROKEN else None

    def cause_of(self, find: Find) -> str:
        """Return the cause of the schedule played last."""
        cause_of = causes.cause_in_shared if self.profile.is_shared else causes.cause_of
        return cause_of(self._arena.state, self._arena.world, find.promise, find.steps)

    def entries_left(self) -> list[int]:
        """List the stored entries that are not acknowledged at the end of the schedule played last."""
        a = self._arena
        return [entry for entry in range(int(a.world.w[w_.STORED])) if not a.state.deleted[entry]]

    def counters(self) -> dict[str, int]:
        """Return positions and counters at the end of the schedule played last, by the names of ``world.COUNTERS``."""
        return w_.counters(self._arena.state)

    def _ask(self) -> None:
        w = self._arena.world.w
        self._ownership.expand(int(w[w_.NODE]), int(w[w_.MOVE]))

    def found(self, steps: Sequence[int]) -> Find:
        """See ``AnyHunter.found``."""
        w = self._arena.world.w
        return Find(int(w[w_.BROKEN]), tuple(steps), int(w[w_.AT_ENTRY]), int(w[w_.AT_SLOT]))


def _shorter(steps: list[int]) -> list[list[int]]:
    """List schedules that are a little less than ``steps``: without a step, without two, with fewer permits or messages."""
    found = [steps[:at] + steps[at + 1 :] for at in range(len(steps))]
    found += [
        steps[:first] + steps[first + 1 : second] + steps[second + 1 :]
        for first in range(len(steps))
        for second in range(first + 1, len(steps))
    ]
    for at, number in enumerate(steps):
        kind, name, detail = s_.kind_of(number), s_.name_of(number), s_.detail_of(number)
        fewer = [s_.step(kind, name, less) for less in range(detail)]
        if kind == s_.STORE_BATCH:
            fewer.append(s_.step(s_.STORE, name, detail))
        if kind == s_.JOIN_LOW:
            fewer.append(s_.step(s_.JOIN, name, len(s_.PERMITS) - 1))
        found += [[*steps[:at], less, *steps[at + 1 :]] for less in fewer]
    return found
