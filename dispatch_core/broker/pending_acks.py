"""Pending acks: the consumer that holds each sent entry (PendingAcksMap, Consumer).

An entry is held by at most one consumer here; ``several_holders`` has the others of the rare entries with several.

Invariant: ``unacked[c]`` = sum of ``pending_count`` over the entries
that ``c`` holds, as long as nothing but whole entries is acknowledged.

An entry with three messages is delivered to consumer 0, then its pending ack is removed:

>>> import numpy as np
>>> from dispatch_core.broker.state import new_state
>>> st = new_state(np.zeros(1, np.int32), np.full(1, 3, np.int32), n_hashes=1, n_consumers=1)
>>> hold(st, 0, 0, 0)
>>> int(st.holder[0]), int(st.pending_count[0]), int(unacked_messages(st, 0))
(0, 3, 3)
>>> int(let_go(st, 0, 0)), int(st.holder[0])  # its hash was not draining
(0, -1)
"""

from __future__ import annotations

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.ordering.draining_hashes import release
from dispatch_core.broker.state import I64, NO_HASH, NOBODY, STORED_HASH, WIDE, State


@compiled
def hash_to_store(st: State, hash_id: int) -> int:
    """Return the hash kept with a pending ack: the entry's own; the classic dispatcher of 4.x keeps 0 for all entries."""
    return hash_id if st.s[STORED_HASH] == NO_HASH else st.s[STORED_HASH]


@compiled
def hold(st: State, slot: int, entry: int, hash_id: int) -> None:
    """Add a pending ack: the entry is delivered to the consumer's connection."""
    st.holder[entry] = slot
    st.pending_hash[entry] = hash_to_store(st, hash_id)
    st.pending_count[entry] = st.num_messages[entry]


@compiled
def let_go(st: State, slot: int, entry: int, closing: bool = False) -> int:
    """Remove a pending ack (ack, redelivery request, close). ``closing``: the consumer leaves.

    Returns the draining reference count before it (see ``draining_hashes.release``).
    """
    hash_id = st.pending_hash[entry] + WIDE
    st.holder[entry] = NOBODY
    st.pending_hash[entry] = NO_HASH
    st.pending_count[entry] = 0
    return release(st, slot, hash_id, closing)


@compiled
def pending_on(st: State, slot: int, first: int, last: int, out: I64) -> int:
    """Write the entries in [first, last) that are pending on ``slot`` into ``out``, ascending; returns how many."""
    n = 0
    for entry in range(first, last):
        if st.holder[entry] == slot:
            out[n] = entry
            n += 1
    return n


@compiled
def unacked_messages(st: State, entry: int) -> int:
    """Count the messages of an entry that are not acknowledged (getUnAckedCountForBatchIndexLevelEnabled)."""
    return st.num_messages[entry] - st.acked_indexes[entry] + WIDE
