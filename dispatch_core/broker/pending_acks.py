"""Pending acks: which consumer holds which sent entry (PendingAcksMap, Consumer).

An entry is held by at most one consumer here. Invariant: ``unacked[c]`` = sum of ``pending_count`` over the entries
that ``c`` holds, as long as nothing but whole entries is acknowledged.
"""

from __future__ import annotations

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.ordering.draining_hashes import release
from dispatch_core.broker.state import I64, NO_HASH, NOBODY, STORED_HASH, WIDE, State


@compiled
def hash_to_store(st: State, hash_id: int) -> int:
    """The hash kept with a pending ack: the entry's own; the classic dispatcher of 4.x keeps 0 whatever the entry."""
    return hash_id if st.s[STORED_HASH] == NO_HASH else st.s[STORED_HASH]


@compiled
def hold(st: State, slot: int, entry: int, hash_id: int) -> None:
    """The entry was handed to the consumer's connection."""
    st.holder[entry] = slot
    st.pending_hash[entry] = hash_to_store(st, hash_id)
    st.pending_count[entry] = st.num_messages[entry]


@compiled
def let_go(st: State, slot: int, entry: int, closing: bool = False) -> int:
    """A pending ack goes away (ack, redelivery, close). ``closing``: the consumer goes.

    Returns the draining reference count before it (see ``release``).
    """
    hash_id = st.pending_hash[entry] + WIDE
    st.holder[entry] = NOBODY
    st.pending_hash[entry] = NO_HASH
    st.pending_count[entry] = 0
    return release(st, slot, hash_id, closing)


@compiled
def held_by(st: State, slot: int, first: int, last: int, out: I64) -> int:
    """Write the entries in [first, last) that ``slot`` holds into ``out``, ascending; returns how many."""
    n = 0
    for entry in range(first, last):
        if st.holder[entry] == slot:
            out[n] = entry
            n += 1
    return n


@compiled
def unacked_messages(st: State, entry: int) -> int:
    """Messages of an entry that the cursor does not have as acknowledged (getUnAckedCountForBatchIndexLevelEnabled)."""
    return st.num_messages[entry] - st.acked_indexes[entry] + WIDE
