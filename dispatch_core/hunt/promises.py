"""Promises that a schedule may break, checked at every delivery and at its end.

========================  =====================================================================================
promise                   broken if
========================  =====================================================================================
``SPLIT_KEY``             an entry is sent while another consumer holds an entry of its key
``OUT_OF_ORDER``          an entry is sent for the first time after a later one of its key
``DOUBLE_OUTSTANDING``    an entry is sent while it is pending already
``STUCK``                 clients acknowledge all, grant permits, and an entry never comes
========================  =====================================================================================
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.broker.state import I64, IN_ORDER, NOBODY, State
from dispatch_core.hunt import world as w_
from dispatch_core.hunt.world import World

KEPT, SPLIT_KEY, OUT_OF_ORDER, DOUBLE_OUTSTANDING, STUCK = range(5)
NAMES: Final = {
    SPLIT_KEY: "split_key",
    OUT_OF_ORDER: "out_of_order",
    DOUBLE_OUTSTANDING: "double_outstanding",
    STUCK: "stuck",
}

#: What comes of a schedule that breaks a promise.
OUTCOMES: Final = {
    SPLIT_KEY: "entry 1:{entry} is sent while another consumer holds an entry of its key",
    OUT_OF_ORDER: "entry 1:{entry} is sent after a later one of its key",
    DOUBLE_OUTSTANDING: "entry 1:{entry} is sent while it is pending already",
    STUCK: "entry 1:{entry} never comes, although clients acknowledge all and grant permits",
}


@compiled_inside
def check_round(st: State, world: World, entries: I64) -> None:
    """Check what a round is about to send (``world.outcome``): the first broken promise is noted."""
    for i in range(len(entries)):
        slot = world.outcome[i]
        if slot >= 0 and world.w[w_.BROKEN] == KEPT:
            broken = broken_by(st, world, entries[i], slot)
            if broken != KEPT:
                world.w[w_.BROKEN] = broken
                world.w[w_.AT_ENTRY] = entries[i]
                world.w[w_.AT_SLOT] = slot


@compiled_inside
def broken_by(st: State, world: World, entry: int, slot: int) -> int:
    """Return the promise that sending an entry to a consumer breaks."""
    if st.holder[entry] != NOBODY:
        return DOUBLE_OUTSTANDING
    if st.s[IN_ORDER] == 0:
        return KEPT
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
def note_stuck(st: State, world: World) -> None:
    """Note that the first entry that is left never comes."""
    world.w[w_.BROKEN] = STUCK
    for entry in range(world.w[w_.STORED]):
        if st.deleted[entry] == 0 and st.hash_owner[st.hash_id[entry]] != NOBODY:
            world.w[w_.AT_ENTRY] = entry
            world.w[w_.AT_SLOT] = st.hash_owner[st.hash_id[entry]]
            return
