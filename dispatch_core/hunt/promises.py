"""Promises that a schedule may break, checked at every delivery and at its end.

========================  =====================================================================================
promise                   broken if
========================  =====================================================================================
``SPLIT_KEY``             an entry is sent while another consumer holds an entry of its key
``OUT_OF_ORDER``          an entry is sent for the first time after a later one of its key
``DOUBLE_OUTSTANDING``    an entry is sent while it is pending already
``STUCK``                 clients acknowledge all, grant permits, and an entry never comes
``STARVED``               the same, while a consumer hangs: the entry is of another consumer, and of another key than what
                          the hanging one holds
``LEAK``                  clients have acknowledged all, and a counter of unacknowledged messages is not 0, or the
                          dispatcher's permits are not those of its consumers
========================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.broker.state import (
    I64,
    IN_ORDER,
    N_CONSUMERS,
    NOBODY,
    TOTAL_PERMITS,
    TOTAL_UNACKED,
    WIDE,
    State,
)
from dispatch_core.hunt import world as w_
from dispatch_core.hunt.world import World

KEPT, SPLIT_KEY, OUT_OF_ORDER, DOUBLE_OUTSTANDING, STUCK, STARVED, LEAK = range(7)
NAMES: Final = {
    SPLIT_KEY: "split_key",
    OUT_OF_ORDER: "out_of_order",
    DOUBLE_OUTSTANDING: "double_outstanding",
    STUCK: "stuck",
    STARVED: "starved",
    LEAK: "leak",
}

#: What comes of a schedule that breaks a promise.
OUTCOMES: Final = {
    SPLIT_KEY: "entry 1:{entry} is sent while another consumer holds an entry of its key",
    OUT_OF_ORDER: "entry 1:{entry} is sent after a later one of its key",
    DOUBLE_OUTSTANDING: "entry 1:{entry} is sent while it is pending already",
    STUCK: "entry 1:{entry} never comes, although clients acknowledge all and grant permits",
    STARVED: "entry 1:{entry} never comes while another consumer hangs, although all others acknowledge and grant permits",
    LEAK: "a counter of the dispatcher is wrong for good, although everything is acknowledged",
}


def bits_of(names: Collection[str]) -> int:
    """Return a bit for each promise of these names.

    >>> bits_of(["split_key", "stuck"]) == 1 << SPLIT_KEY | 1 << STUCK
    True
    """
    return sum(1 << number for number, name in NAMES.items() if name in names)


@compiled_inside
def is_among(promise: int, bits: int) -> bool:
    """Check whether a promise is one of those of ``bits_of``."""
    return (bits >> promise) & 1 == 1


@compiled_inside
def check_round(st: State, world: World, is_replay: bool, entries: I64) -> None:
    """Check what a round is about to send (``world.outcome``): the first broken promise is noted."""
    for i in range(len(entries)):
        slot = world.outcome[i]
        if slot >= 0 and world.w[w_.BROKEN] == KEPT:
            broken = broken_by(st, world, entries[i], slot)
            if broken != KEPT:
                world.w[w_.BROKEN] = broken
                world.w[w_.AT_ENTRY] = entries[i]
                world.w[w_.AT_SLOT] = slot
                world.w[w_.AT_REPLAY] = int(is_replay)


@compiled_inside
def broken_by(st: State, world: World, entry: int, slot: int) -> int:
    """Return the promise that sending an entry to a consumer breaks."""
    if st.holder[entry] != NOBODY:
        return DOUBLE_OUTSTANDING
    if st.s[IN_ORDER] == 0 or st.deleted[entry] == 1:
        return KEPT  # what is acknowledged or skipped has no place in the order
    key = st.hash_id[entry]
    for other in range(world.w[w_.STORED]):
        if other == entry or st.hash_id[other] != key:
            continue
        if st.holder[other] != NOBODY and st.holder[other] != slot:
            return SPLIT_KEY
        if other > entry and world.ever_sent[other] == 1 and world.ever_sent[entry] == 0:
            return OUT_OF_ORDER
    return KEPT


@compiled_inside
def note_stuck(st: State, world: World, entry: int) -> None:
    """Note that an entry never comes."""
    world.w[w_.BROKEN] = STUCK if world.w[w_.HANGING] == 0 else STARVED
    world.w[w_.AT_ENTRY] = entry
    world.w[w_.AT_SLOT] = st.hash_owner[st.hash_id[entry]]


@compiled_inside
def check_counters(st: State, world: World) -> None:
    """Check the counters of a dispatcher whose clients hold nothing."""
    unacked, permits = WIDE, WIDE
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at] + WIDE
        permits += st.permits[slot]
        if st.unacked[slot] != 0:
            unacked = slot + 1
    if unacked != 0 or st.s[TOTAL_UNACKED] != 0 or st.s[TOTAL_PERMITS] != permits:
        world.w[w_.BROKEN] = LEAK
        world.w[w_.AT_ENTRY] = world.w[w_.STORED] - 1
        world.w[w_.AT_SLOT] = unacked - 1
