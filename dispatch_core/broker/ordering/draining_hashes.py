"""Draining hashes (PIP-379, 4.x): a hash that moved away is held back until its old consumer's entries are acknowledged.

Theory of operation
-------------------
Example: consumer *o* holds two entries of hash *h* when a consumer joins and takes *h* over. *h* drains for *o* with
reference count 2. The new owner gets no entry of *h* until *o* has acknowledged both.

In general: while hash *h* drains for consumer *o*, ``drain_refs[h]`` counts the entries of *h* that were pending on *o* when
*h* moved away and still are. Only *o* may be sent entries of *h* meanwhile.

=============  ==========================================================  =============================================
state of h     event                                                       next
=============  ==========================================================  =============================================
FREE           h moves away from o, which holds k >= 1 of its entries      DRAINING(o, k)
FREE           h moves away from a consumer that holds none                FREE: the new owner may receive at once
DRAINING(o,k)  one of o's pending entries of h goes away                   DRAINING(o, k-1), FREE at 0
DRAINING(o,k)  h moves to a third consumer                                 unchanged
DRAINING(o,k)  h moves back to o (``added_ranges``: 4.0.7+, 4.1.1+)        FREE: one release per pending entry
DRAINING(o,k)  an entry of h is dispatched to o (it owns h again)          FREE, lazily
any            all consumers are gone                                      FREE
=============  ==========================================================  =============================================

Two transitions can meet (a join takes h from o while o's ack of it is on its way); the dispatcher's lock orders them,
and the log says in which order, so nothing is decided here.

*Unblock notice*: when the last reference of a hash that has refused an entry goes away, the dispatcher is notified to read.
Inside a batch (closing a consumer, trimming up to mark-delete, redelivering all) the notice is given once, at the end of
the outermost batch. A consumer that is closing gives no notice: its entries enter the replay set, and a read follows anyway.

*Statistics*: a consumer's ``drainingHashes`` are the hashes listed for it that drain now. Before #24736
(``LAZY_RELEASE_COUNTS`` off) a hash that was freed lazily stays listed for its old owner: it shows nothing while it does
not drain, and appears in two consumers' lists once it drains for another consumer.

Invariants: one owner per draining hash; ``drain_refs[h]`` >= 1 while it drains, and at most the number of entries of h
pending on its owner. Source: DrainingHashesTracker; #23352, #24736.

>>> import numpy as np
>>> from dispatch_core.broker.state import new_state
>>> st = new_state(np.zeros(1, np.int32), np.ones(1, np.int32), n_hashes=1, n_consumers=2)
>>> drain(st, 0, 0), should_block(st, 1, 0, np.zeros(3, np.int64)), listed(st, 0)
(True, True, [(0, 1, 1)])
>>> int(release(st, 0, 0)), take_notice(st), should_block(st, 1, 0, np.zeros(3, np.int64))
(1, 0, False)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker import hashing
from dispatch_core.broker.state import (
    DRAIN_BATCH,
    DRAIN_NOTICE,
    DRAIN_UNBLOCKED,
    I64,
    LAZY_RELEASE_COUNTS,
    LISTED_BITS,
    NOBODY,
    State,
)

END_OF_BATCH: Final = -1  # an unblock notice that names no hash
_NOTICE_OF_BATCH: Final = 1
_NOTICE_OF_HASH: Final = 2  # + hash id


def drainable(sticky_hash: int) -> bool:
    """True if a sticky key hash can drain at all; 0 means "not set".

    >>> drainable(0), drainable(1)
    (False, True)
    """
    return sticky_hash != hashing.NOT_SET


@compiled
def drain(st: State, slot: int, hash_id: int) -> bool:
    """Count one pending entry of a hash that moved away from ``slot``.

    Returns False, with nothing changed, when another consumer drains it already: no legal history does that.
    """
    if st.drain_owner[hash_id] == NOBODY:
        st.drain_owner[hash_id] = slot
        st.drain_refs[hash_id] = 1
        st.drain_attempts[hash_id] = 0
        st.drain_stats[slot] = 1
        _list(st, slot, hash_id)
        return True
    if st.drain_owner[hash_id] != slot:
        return False
    st.drain_refs[hash_id] += 1
    return True


@compiled
def release(st: State, slot: int, hash_id: int, closing: bool = False) -> int:
    """Uncount a pending entry of ``hash_id`` that left ``slot``; returns the reference count before, 0 = not draining.

    ``closing``: the consumer is leaving, and no notice is given that the hash is free. Returns -1, with nothing changed,
    when the hash drains for another consumer.
    """
    if st.drain_owner[hash_id] == NOBODY:
        return 0
    if st.drain_owner[hash_id] != slot:
        return -1
    before = st.drain_refs[hash_id]
    st.drain_refs[hash_id] = before - 1
    if before == 1:
        if not closing and st.drain_attempts[hash_id] > 0:
            _notice(st, hash_id)
        _free(st, hash_id)
        _cleared(st, slot, hash_id)
    return before


@compiled
def should_block(st: State, slot: int, hash_id: int, attempts: I64) -> bool:
    """True if ``slot`` must not be sent entries of ``hash_id`` now (shouldBlockStickyKeyHash).

    A refusal is counted, and noted in ``attempts``: ``attempts[0]`` = how many, then pairs (slot, hash id) as far as
    they fit. A hash that drains for ``slot`` itself is freed: it has come back.
    """
    owner = st.drain_owner[hash_id]
    if owner == NOBODY:
        return False
    if owner == slot:
        _free(st, hash_id)
        if st.s[LAZY_RELEASE_COUNTS] == 1:
            _cleared(st, slot, hash_id)
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
    """True if the hash drains for nobody else: the last check at send time (PendingAcksMap.addPendingAckIfAllowed)."""
    return st.drain_owner[hash_id] == NOBODY or st.drain_owner[hash_id] == slot


@compiled
def give_up(st: State, hash_id: int) -> None:
    """Free a hash although the rule has it draining: a log shows that the broker took it for free."""
    _free(st, hash_id)


@compiled
def clear_draining(st: State) -> None:
    """Clear everything when all consumers are gone; open batches stay open."""
    st.drain_owner[:] = NOBODY
    st.drain_refs[:] = 0
    st.drain_attempts[:] = 0
    if st.drain_stats.any():  # else nothing is listed
        st.drain_listed[:] = 0
    st.drain_stats[:] = 0
    st.cleared_total[:] = 0


@compiled
def forget_consumer(st: State, slot: int) -> None:
    """Forget the statistics of a consumer that has left."""
    if st.drain_stats[slot] == 1:  # else nothing is listed for it
        listed = st.drain_listed
        words = _word(st, slot, 1) - _word(st, slot, 0)
        others = ~(1 << (slot % LISTED_BITS))
        for word in range(_word(st, slot, 0), len(listed), words):
            listed[word] &= others
    st.drain_stats[slot] = 0
    st.cleared_total[slot] = 0


@compiled
def start_batch(st: State) -> None:
    """Begin a batch of releases that give one notice together; batches nest."""
    st.s[DRAIN_BATCH] += 1


@compiled
def end_batch(st: State) -> None:
    """End a batch; the outermost one gives the notice."""
    st.s[DRAIN_BATCH] -= 1
    if st.s[DRAIN_BATCH] == 0 and st.s[DRAIN_UNBLOCKED] == 1:
        st.s[DRAIN_UNBLOCKED] = 0
        st.s[DRAIN_NOTICE] = _NOTICE_OF_BATCH


def take_notice(st: State) -> int | None:
    """Take the unblock notice given since the last call: a hash id, ``END_OF_BATCH``, or None for none."""
    notice = int(st.s[DRAIN_NOTICE])
    st.s[DRAIN_NOTICE] = 0
    if not notice:
        return None
    return END_OF_BATCH if notice == _NOTICE_OF_BATCH else notice - _NOTICE_OF_HASH


@dataclass(frozen=True, slots=True)
class Statistics:
    """The draining hashes of one consumer as ``topics stats`` shows them; ``hashes``: see ``listed``."""

    hashes: list[tuple[int, int, int]]
    cleared_total: int  # drainingHashesClearedTotal

    @property
    def count(self) -> int:
        """``drainingHashesCount``."""
        return len(self.hashes)

    @property
    def unacked(self) -> int:
        """``drainingHashesUnackedMessages``: in spite of its name a number of entries."""
        return sum(refs for _, refs, _ in self.hashes)


def statistics(st: State, slot: int) -> Statistics:
    """Return the draining statistics of the consumer in a slot."""
    return Statistics(listed(st, slot), int(st.cleared_total[slot]))


def listed(st: State, slot: int) -> list[tuple[int, int, int]]:
    """Return ``drainingHashes`` of a consumer: (hash id, ``unackMsgs``, ``blockedAttempts``), ascending by hash id."""
    draining = np.flatnonzero(st.drain_owner != NOBODY)
    words = st.drain_listed.reshape(len(st.drain_owner), -1)[draining, slot // LISTED_BITS]
    ids = draining[(words >> (slot % LISTED_BITS)) & 1 == 1]
    return [(int(at), int(st.drain_refs[at]), int(st.drain_attempts[at])) for at in ids]


@compiled
def _free(st: State, hash_id: int) -> None:
    st.drain_owner[hash_id] = NOBODY
    st.drain_refs[hash_id] = 0
    st.drain_attempts[hash_id] = 0


@compiled
def _notice(st: State, hash_id: int) -> None:
    if st.s[DRAIN_BATCH] > 0:
        st.s[DRAIN_UNBLOCKED] = 1
    else:
        st.s[DRAIN_NOTICE] = _NOTICE_OF_HASH + hash_id


@compiled
def _cleared(st: State, slot: int, hash_id: int) -> None:
    if st.drain_stats[slot] == 1:
        _unlist(st, slot, hash_id)
        st.cleared_total[slot] += 1


@compiled
def _list(st: State, slot: int, hash_id: int) -> None:
    st.drain_listed[_word(st, slot, hash_id)] |= 1 << (slot % LISTED_BITS)


@compiled
def _unlist(st: State, slot: int, hash_id: int) -> None:
    st.drain_listed[_word(st, slot, hash_id)] &= ~(1 << (slot % LISTED_BITS))


@compiled
def _word(st: State, slot: int, hash_id: int) -> int:
    return hash_id * (len(st.drain_listed) // len(st.drain_owner)) + slot // LISTED_BITS
