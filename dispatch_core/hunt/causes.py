"""Say which rule of the broker lets a schedule break a promise, as far as its state shows it.

Finds of one promise and one cause are counted as one, and the shortest of them is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatch_core.broker import state as st_
from dispatch_core.broker.gates import GATES, first_gate_for
from dispatch_core.broker.state import NOBODY, State
from dispatch_core.hunt import promises
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt import world as w_
from dispatch_core.hunt.world import World

#: Cause → sentence.
SENTENCES: Final = {
    "rewind_waits": (
        "all consumers had left while a read was in flight, and the cursor rewinds only when a normal read completes: that "
        "read waits for an entry that is not stored yet"
    ),
    "replay_read_forgotten": "a replay read was forgotten, so no other is issued",
    "normal_read_waits": (
        "a round could send nothing, so the next attempt passed the replay set over once, to read on: that read waits for "
        "an entry that is not stored yet, and nothing else makes the broker look at the replay set"
    ),
    "reads_twice": "the cursor rewound, or a replay read was issued, while a read of the same entry was in flight",
    "after_a_request": "a redelivery request moved an entry to the replay set while later ones of its key stayed pending",
    "after_a_leave": "a consumer left while a read was in flight",
    "after_a_join": "a key moved to a consumer that joined while entries of it were pending or in flight",
}


def cause_of(st: State, world: World, promise: int, steps: Sequence[int]) -> str:
    """Name the cause in the state at which a schedule has broken a promise: a name of ``SENTENCES``, or of a gate."""
    kinds = {s_.kind_of(number) for number in steps}
    if promise == promises.DOUBLE_OUTSTANDING:
        return "reads_twice"
    if promise != promises.STUCK:
        if kinds & {s_.NACK_FIRST, s_.NACK_ALL}:
            return "after_a_request"
        return "after_a_leave" if s_.LEAVE in kinds else "after_a_join"
    if st.s[st_.REWIND_DUE] == 1:
        return "rewind_waits"
    if st.s[st_.PENDING_REPLAY] == 1 and world.w[w_.REPLAYS] == 0:
        return "replay_read_forgotten"
    entry = int(world.w[w_.AT_ENTRY])
    slot = int(st.hash_owner[st.hash_id[entry]])
    classic = bool(world.w[w_.CLASSIC])
    gate = (
        NOBODY if slot == NOBODY else int(first_gate_for(st, classic, slot, entry, bool(st.in_replay[entry])))
    )
    name = GATES[gate] if gate > 0 else "no_read"
    if st.s[st_.PENDING_READ] == 1 and st.s[st_.N_REPLAY] > 0 and name != "draining_hash":
        return "normal_read_waits"
    return name


def sentence_of(cause: str) -> str:
    """Say a cause in words.

    >>> sentence_of("draining_hash")
    'draining_hash holds the entry for ever'
    >>> sentence_of("no_read")
    'nothing holds the entry, and no read is issued that would find it'
    """
    if cause == "no_read":
        return "nothing holds the entry, and no read is issued that would find it"
    return SENTENCES.get(cause, f"{cause} holds the entry for ever")
