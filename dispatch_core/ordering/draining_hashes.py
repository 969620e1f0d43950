"""Draining hashes (PIP-379, 4.x): a hash that moved away stays with its old consumer until that one is done with it.

Theory of operation
-------------------
While hash *h* drains for consumer *o*, ``drain_refs[h]`` counts the entries of *h* that were pending on *o* when *h*
moved away and still are, and nobody but *o* may be sent entries of *h*.

=============  ==========================================================  =============================================
state of h     event                                                       next
=============  ==========================================================  =============================================
FREE           h moves away from o, which holds k >= 1 of its entries      DRAINING(o, k)
FREE           h moves away from a consumer that holds none                FREE: the new owner may receive at once
DRAINING(o,k)  one of o's pending entries of h goes away                   DRAINING(o, k-1), FREE at 0
DRAINING(o,k)  h moves to a third consumer                                 unchanged
DRAINING(o,k)  h moves back to o (``added_ranges``: 4.0.7+, 4.1.1+)        FREE: one release per pending entry
DRAINING(o,k)  o is asked for h (it owns it again)                         FREE, lazily
any            all consumers are gone                                      FREE
=============  ==========================================================  =============================================

Two transitions can meet (a join takes h from o while o's ack of it is on its way); the dispatcher's lock orders them,
and the log says in which order, so nothing is decided here.

Invariants: one owner per draining hash; ``drain_refs[h]`` >= 1 while it drains, and at most the number of entries of h
pending on its owner. Source: DrainingHashesTracker; #23352, #24736.
"""

from __future__ import annotations

from dispatch_core.jit import compiled
from dispatch_core.state import I64, LAZY_RELEASE_COUNTS, NOBODY, State


@compiled
def drain(st: State, slot: int, hash_id: int) -> bool:
    """Count one pending entry of a hash that moved away from ``slot``.

    Returns False, with nothing changed, when another consumer drains it already: no legal history does that.
    """
    if st.drain_owner[hash_id] == NOBODY:
        st.drain_owner[hash_id] = slot
        st.drain_refs[hash_id] = 1
        st.drain_attempts[hash_id] = 0
        return True
    if st.drain_owner[hash_id] != slot:
        return False
    st.drain_refs[hash_id] += 1
    return True


@compiled
def release(st: State, slot: int, hash_id: int) -> int:
    """A pending entry of ``hash_id`` left ``slot``. Returns the reference count before it; 0 = it was not draining.

    -1, with nothing changed, when another consumer drains it.
    """
    if st.drain_owner[hash_id] == NOBODY:
        return 0
    if st.drain_owner[hash_id] != slot:
        return -1
    before = st.drain_refs[hash_id]
    st.drain_refs[hash_id] = before - 1
    if before == 1:
        _free(st, hash_id)
        st.cleared_total[slot] += 1
    return before


@compiled
def should_block(st: State, slot: int, hash_id: int, attempts: I64) -> bool:
    """Whether ``slot`` must not be sent entries of ``hash_id`` now.

    A refusal is counted, and noted in ``attempts``: ``attempts[0]`` = how many, then pairs (slot, hash id) as far as
    they fit. A hash that drains for ``slot`` itself is freed: it has come back.
    """
    owner = st.drain_owner[hash_id]
    if owner == NOBODY:
        return False
    if owner == slot:
        _free(st, hash_id)
        if st.s[LAZY_RELEASE_COUNTS] == 1:
            st.cleared_total[slot] += 1
        return False
    st.drain_attempts[hash_id] += 1
    at = 1 + 2 * attempts[0]
    if at + 1 < len(attempts):
        attempts[at] = slot
        attempts[at + 1] = hash_id
    attempts[0] += 1
    return True


@compiled
def may_hold(st: State, slot: int, hash_id: int) -> bool:
    """The last check at send time: no other consumer drains the hash (PendingAcksMap.addPendingAckIfAllowed)."""
    return st.drain_owner[hash_id] == NOBODY or st.drain_owner[hash_id] == slot


@compiled
def clear_draining(st: State) -> None:
    """All consumers are gone."""
    for hash_id in range(len(st.drain_owner)):
        _free(st, hash_id)


@compiled
def _free(st: State, hash_id: int) -> None:
    st.drain_owner[hash_id] = NOBODY
    st.drain_refs[hash_id] = 0
    st.drain_attempts[hash_id] = 0
