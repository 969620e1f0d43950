"""Play every schedule of up to so many steps, the shortest first: breadth-first search over the states of a dispatcher.

Two schedules that lead to the same state go on alike, so longer ones begin with the first of them only. A state is all that
later decisions depend on (``world.Arena.matters``), and is known by a hash of 64 bits. Where names of consumers make no
difference, a name joins only after those before it have: other schedules are the same ones with other names.

A schedule is kept as the places of its steps among ``choices``, one byte each, and played again when steps are added to it:
that takes less memory than its state does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.broker.state import I8, I64
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt.distinct import hash_of

# scalars: where a search is, and what it has done
PARENT: Final = 0  # the schedule of the last level that steps are added to
CHOICE: Final = 1  # the place of the step that comes next
LENGTH: Final = 2  # steps of the schedules of the last level
PARENTS: Final = 3  # schedules of the last level
LONGER: Final = 4  # schedules of the next level, so far
STATES: Final = 5  # distinct ones
PLAYED: Final = 6  # schedules
TAKEN: Final = 7  # steps
UNTIL: Final = 8  # it pauses when so many schedules are played
BY_ORDER: Final = 9  # 1 = a name joins only after those before it
WANTED: Final = 10  # a bit for each promise that is searched for
N_SCALARS: Final = 11

# what adding steps comes to
LEVEL_DONE, PAUSED, NO_ROOM, ASKS, BROKEN_BY_STEP, BROKEN_AT_END = range(6)

#: Schedules that are played before a search pauses.
AT_ONCE: Final = 500_000
_FIRST_ROOM: Final = 1 << 12
_EMPTY: Final = 0


# --- data plane ------------------------------------------------------------------------------------------------------


@compiled_inside
def joins_too_early(at: I64, choices: I64, joined: int) -> bool:
    """Check whether the next step lets a name join before one that comes before it; ``joined``: names that have."""
    number = choices[at[CHOICE]]
    joins = s_.kind_of(number) in (s_.JOIN, s_.JOIN_LOW)
    return joins and at[BY_ORDER] == 1 and s_.name_of(number) > joined


@compiled_inside
def step_of(at: I64, choices: I64, schedules: I8, step: int) -> int:
    """Return a step of the schedule that steps are added to."""
    return choices[schedules[at[PARENT] * at[LENGTH] + step]]


@compiled_inside
def names_joined(at: I64, choices: I64, schedules: I8) -> int:
    """Count the names that have joined in the schedule that steps are added to."""
    joined = 0
    for step in range(at[LENGTH]):
        number = step_of(at, choices, schedules, step)
        if s_.kind_of(number) in (s_.JOIN, s_.JOIN_LOW):
            joined = max(joined, s_.name_of(number) + 1)
    return joined


@compiled_inside
def pauses(at: I64, longer: I8, table: I64) -> int:
    """Return ``NO_ROOM`` if one more schedule or state has none, ``PAUSED`` if it is time to, else ``LEVEL_DONE``."""
    if (at[LONGER] + 1) * (at[LENGTH] + 1) > len(longer) or 2 * (at[STATES] + 1) > len(table):
        return NO_ROOM
    return PAUSED if at[PLAYED] >= at[UNTIL] else LEVEL_DONE


@compiled_inside
def place_in(table: I64, number: int) -> int:
    """Return the place of a hash in a table (open addressing), or the empty one that it belongs in."""
    place = number & (len(table) - 1)
    while table[place] not in (_EMPTY, number):
        place = (place + 1) & (len(table) - 1)
    return place


@compiled_inside
def is_new(at: I64, words: I64, matters: I64, table: I64) -> bool:
    """Note a state in the table of hashes; false if it is there already."""
    number = hash_of(words, matters)
    if number == _EMPTY:
        number += 1
    place = place_in(table, number)
    if table[place] == number:
        return False
    table[place] = number
    at[STATES] += 1
    return True


@compiled_inside
def keep(at: I64, schedules: I8, longer: I8) -> None:
    """Keep the schedule that was played last for the next level; ``CHOICE`` is behind its last step."""
    length = at[LENGTH]
    first = at[LONGER] * (length + 1)
    for step in range(length):
        longer[first + step] = schedules[at[PARENT] * length + step]
    longer[first + length] = at[CHOICE] - 1
    at[LONGER] += 1


@compiled
def copy_hashes(table: I64, larger: I64) -> None:
    """Copy the hashes of a table into a larger one."""
    for number in table:
        if number != _EMPTY:
            larger[place_in(larger, number)] = number


# --- control plane ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """A schedule that breaks a promise; ``at_end``: when the subscription settles, so longer ones may begin with it."""

    steps: tuple[int, ...]
    at_end: bool


class BoundedSearch:
    """Plays every schedule, one length after the other.

    ``add_steps(schedules, longer, table, at)`` adds steps to the schedules of a level. It returns what that comes to, and
    goes on from there the next time. ``choices``: the steps there are. ``wanted``: a bit for each promise.
    ``names_matter``: the dispatcher goes by names of consumers.
    """

    def __init__(
        self, add_steps: Callable[[I8, I8, I64, I64], int], choices: I64, wanted: int, *, names_matter: bool
    ) -> None:
        self._add_steps = add_steps
        self._choices = choices
        self._at = np.zeros(N_SCALARS, np.int64)
        self._at[[PARENTS, BY_ORDER, WANTED]] = 1, int(not names_matter), wanted
        self._schedules: I8 = np.zeros(0, np.uint8)
        self._longer: I8 = np.zeros(_FIRST_ROOM, np.uint8)
        self._table = np.zeros(_FIRST_ROOM, np.int64)

    @property
    def length(self) -> int:
        """Steps of the longest schedules that were all played."""
        return int(self._at[LENGTH])

    @property
    def states(self) -> int:
        """Distinct states so far."""
        return int(self._at[STATES])

    @property
    def played(self) -> int:
        """Schedules played so far."""
        return int(self._at[PLAYED])

    @property
    def steps(self) -> int:
        """Steps taken so far, of clients and of the broker."""
        return int(self._at[TAKEN])

    def longer(self) -> Iterator[Ended | None]:
        """Play the schedules of one step more; yields each that breaks a promise, and ``None`` for pauses.

        No longer schedule begins with one that was yielded, unless ``go_on`` is called then.
        """
        came_to = PAUSED
        while came_to != LEVEL_DONE:
            self._at[UNTIL] = self.played + AT_ONCE
            with np.errstate(over="ignore"):  # of the hashes, where it runs interpreted
                came_to = self._add_steps(self._schedules, self._longer, self._table, self._at)
            if came_to == NO_ROOM:
                self._make_room()
            elif came_to == PAUSED:
                yield None
            elif came_to != LEVEL_DONE:
                places = self._last_places()
                yield Ended(tuple(self._choices[places].tolist()), came_to == BROKEN_AT_END)
        length, count = self.length + 1, int(self._at[LONGER])
        self._schedules = self._longer[: length * count].copy()
        self._longer = np.zeros(_FIRST_ROOM, np.uint8)
        self._at[[LENGTH, PARENTS, PARENT, CHOICE, LONGER]] = length, count, 0, 0, 0

    def go_on(self) -> None:
        """Let longer schedules begin with the one that was yielded last, which breaks a promise at its end."""
        places = self._last_places()
        first = int(self._at[LONGER]) * len(places)
        self._longer[first : first + len(places)] = places
        self._at[LONGER] += 1

    def _last_places(self) -> list[int]:
        """Return the places of the steps of the schedule that was played last; ``CHOICE`` is behind its last step."""
        first = int(self._at[PARENT]) * self.length
        return [*self._schedules[first : first + self.length].tolist(), int(self._at[CHOICE]) - 1]

    def _make_room(self) -> None:
        self._longer = np.concatenate([self._longer, np.zeros(len(self._longer), np.uint8)])
        if 2 * (self.states + 1) > len(self._table):
            larger = np.zeros(4 * len(self._table), np.int64)
            copy_hashes(self._table, larger)
            self._table = larger
