"""Keep the shortest beginning that leads to each kind of situation, so that schedules can go on from there.

A random schedule seldom comes to what takes many steps. So a hunter keeps how its schedules came to each *situation*: what
counts of a state, roughly. Half of its schedules begin as one that was kept, each situation as often as any other, and go on
at random: rare situations are gone on from as often as those that nearly every schedule comes to.

Situations are numbered by a hash. Two that get the same number count as one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.broker import state as st_
from dispatch_core.broker.state import I64, NOBODY, WIDE, State
from dispatch_core.hunt import world as w_
from dispatch_core.hunt.world import World

#: Steps of a beginning that is kept, at most.
LONGEST: Final = 20
_BITS: Final = 14
_SIZE: Final = 1 << _BITS
_ROW: Final = 1 + LONGEST  # the number of its steps, and these
_MANY: Final = 2  # more than one of something
_PRIME: Final = 1099511628211


def no_beginnings() -> I64:
    """Make the table of beginnings: how many situations are known, their numbers, then a row for each number."""
    return np.zeros(1 + _SIZE + _SIZE * _ROW, np.int64)


@compiled_inside
def keep(steps: I64, led_to: I64, taken: int, beginnings: I64) -> None:
    """Keep the beginnings of a schedule whose situations are new or took more steps.

    ``led_to``: the situation after each of its first ``taken`` steps.
    """
    for last in range(min(taken, LONGEST)):
        at = 1 + _SIZE + led_to[last] * _ROW
        if beginnings[at] == 0:
            beginnings[0] += 1
            beginnings[beginnings[0]] = led_to[last]
        elif beginnings[at] <= last + 1:
            continue
        beginnings[at] = last + 1
        for step in range(last + 1):
            beginnings[at + 1 + step] = steps[step]


@compiled_inside
def begin_with(beginnings: I64, chosen: int, steps: I64) -> int:
    """Copy the ``chosen`` beginning into ``steps``; returns how many steps it has."""
    at = 1 + _SIZE + beginnings[1 + chosen % beginnings[0]] * _ROW
    for step in range(beginnings[at]):
        steps[step] = beginnings[at + 1 + step]
    return beginnings[at]


@compiled_inside
def situation(st: State, world: World) -> int:
    """Number the situation of a state: who could be sent what, what is in flight, which steps of the broker are due."""
    w, s = world.w, st.s
    connected, ready, blocked = WIDE, WIDE, WIDE
    for name in range(len(world.slot_of_name)):
        slot = world.slot_of_name[name]
        if slot != NOBODY:
            connected += 1
            ready += int(st.permits[slot] > 0)
            blocked += int(st.blocked[slot])
    pending, holders, unsent = WIDE, WIDE, WIDE
    for entry in range(w[w_.STORED]):
        if st.holder[entry] != NOBODY:
            pending += 1
            holders |= 1 << st.holder[entry]
        if st.in_replay[entry] == 1 and world.ever_sent[entry] == 0:
            unsent += 1
    in_flight = WIDE
    for at in range(w[w_.REPLAYS]):
        in_flight += world.replay_sizes[at]
    draining = WIDE
    for key in range(len(st.drain_owner)):
        draining += int(st.drain_owner[key] != NOBODY)
    value = connected
    value = 4 * value + ready
    value = 3 * value + min(blocked, _MANY)
    value = 3 * value + min(pending, _MANY)
    value = 64 * value + holders
    value = 3 * value + min(unsent, _MANY)
    value = 3 * value + min(s[st_.N_REPLAY], _MANY)
    value = 3 * value + min(in_flight, _MANY)
    value = 3 * value + min(draining, _MANY)
    value = 3 * value + min(max(w[w_.STORED] - s[st_.READ_POSITION], 0), _MANY)
    value = 3 * value + min(s[st_.N_RECENT], _MANY)
    for due in (s[st_.PENDING_READ], s[st_.REWIND_DUE], s[st_.SKIP_NEXT_REPLAY], s[st_.BLOCKED_ON_UNACKED]):
        value = 2 * value + due
    for due in (w[w_.TAKEN], w[w_.ACKS_IN_SCAN], w[w_.ACKS_IN_ROUND], w[w_.HANGING]):
        value = 2 * value + int(due != 0)
    value = 4 * value + 2 * w[w_.TIMER] + w[w_.RETRY]
    return ((value * _PRIME) >> 24) & (_SIZE - 1)
