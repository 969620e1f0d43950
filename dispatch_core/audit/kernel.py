"""The rules of the audit as one pass over a dispatcher's history: who holds what, and what that makes of each sending.

Theory of operation
-------------------
A *delivery* is one entry in one ``sent`` line; deliveries are numbered in the order of the log. A delivery is *open* from
its sending until the entry is acked, asked for again by that connection, or lost with the connection; the open deliveries
of an entry are the connections at which it is outstanding. Acks count from their arrival.

Three sets of doubly linked lists hold the open deliveries by entry, by connection and by key, so that every event costs
what it touches. Per key, ``open_only_at`` remembers the one connection that holds all of them (the normal case, in which
a split is impossible and nothing is searched); per (connection, key) pair the highest ordinal ever sent tells in one step
whether a sending goes backwards. Only where it does are earlier deliveries looked at.

A sending of entry *e* to connection *c* is

* **out of order** when (a) a later entry of the key went to *c* before, and *c* did not ask for *e* again after it first
  got such a later entry (Failover and Exclusive: nor was there a hand-over or rewind); or (b) *e* was never sent before
  and a later entry of the key was. If a request excuses (a), it is an **overtaken redelivery**;
* a **split key** when an entry of the key that is not later than *e* is open at another connection;
* **double outstanding** when *e* itself is open at another connection;
* a **duplicate after ack** when *e* was acked;
* **redelivered** when it was sent before and is neither of the last two; the cause is what closed the last delivery.

``scan`` returns findings as rows ``(delivery, kind, other delivery, other operation)``, -1 = none.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dispatch_core.jit import compiled

Array = npt.NDArray[Any]

OUT_OF_ORDER, OVERTAKEN, SPLIT, DOUBLE, AFTER_ACK, REDELIVERED = range(6)
#: One about order, a split, and two of the repeated sending (double and after its ack).
MOST_FINDINGS_PER_DELIVERY: Final = 4

#: How a delivery ended; the first is still open.
OPEN: Final = 0
ACKED: Final = 1
NACKED: Final = 2
NACKED_ALL: Final = 3
DISCONNECTED: Final = 4
ALL_LEFT: Final = 5
RELOADED: Final = 6
REPLACED: Final = 7  # sent again to the same connection while open there
REWOUND: Final = 8  # open still; Failover and Exclusive went back to the mark-delete position

NOBODY: Final = -1
MANY: Final = -2

# Columns of the state of a delivery.
_ENTRY: Final = 0  # ordinal
_CONSUMER: Final = 1
_OPERATION: Final = 2
_BEFORE_OF_ENTRY: Final = 3  # the delivery of the same entry before this one
_BEFORE_OF_KEY: Final = 4
_OPEN_OF_ENTRY: Final = 5  # next open delivery of the same entry
_NEXT_AT_CONSUMER: Final = 6
_LAST_AT_CONSUMER: Final = 7
_NEXT_OF_KEY: Final = 8
_LAST_OF_KEY: Final = 9
_END: Final = 10  # how it ended
_END_OPERATION: Final = 11
DELIVERY_COLUMNS: Final = 12

# Columns of the state of an entry; the last one counts the deliveries that a request for everything closed.
_LAST_DELIVERY, _FIRST_OPEN, _ACK_OPERATION, _TIMES_SENT, _NACKED_WITH_ALL = range(5)
_ENTRY_COLUMNS: Final = 5

# Columns of the state of a key.
_KEY_LAST_DELIVERY, _KEY_FIRST_OPEN, _KEY_OPEN_COUNT, _KEY_ONLY_AT, _KEY_HIGHEST, _KEY_FIRST_PAIR = range(6)
_KEY_COLUMNS: Final = 6

# Columns of a (connection, key) pair.
_PAIR_CONSUMER, _PAIR_HIGHEST, _PAIR_NEXT = range(3)
_PAIR_COLUMNS: Final = 3


@compiled
def _open(
    deliveries: Array, entries: Array, keys: Array, first_at: Array, entry_key: Array, delivery: int
) -> None:
    entry = deliveries[delivery, _ENTRY]
    consumer = deliveries[delivery, _CONSUMER]
    deliveries[delivery, _END] = OPEN
    deliveries[delivery, _OPEN_OF_ENTRY] = entries[entry, _FIRST_OPEN]
    entries[entry, _FIRST_OPEN] = delivery
    after = first_at[consumer]
    deliveries[delivery, _NEXT_AT_CONSUMER] = after
    if after >= 0:
        deliveries[after, _LAST_AT_CONSUMER] = delivery
    first_at[consumer] = delivery
    key = entry_key[entry]
    if key < 0:
        return
    after = keys[key, _KEY_FIRST_OPEN]
    deliveries[delivery, _NEXT_OF_KEY] = after
    if after >= 0:
        deliveries[after, _LAST_OF_KEY] = delivery
    keys[key, _KEY_FIRST_OPEN] = delivery
    if keys[key, _KEY_OPEN_COUNT] == 0:
        keys[key, _KEY_ONLY_AT] = consumer
    elif keys[key, _KEY_ONLY_AT] != consumer:
        keys[key, _KEY_ONLY_AT] = MANY
    keys[key, _KEY_OPEN_COUNT] += 1


@compiled
def _close(
    deliveries: Array,
    entries: Array,
    keys: Array,
    first_at: Array,
    entry_key: Array,
    delivery: int,
    how: int,
    operation: int,
) -> None:
    entry = deliveries[delivery, _ENTRY]
    deliveries[delivery, _END] = how
    deliveries[delivery, _END_OPERATION] = operation
    if how == NACKED_ALL:
        entries[entry, _NACKED_WITH_ALL] += 1
    if entries[entry, _FIRST_OPEN] == delivery:
        entries[entry, _FIRST_OPEN] = deliveries[delivery, _OPEN_OF_ENTRY]
    else:
        at = entries[entry, _FIRST_OPEN]
        while deliveries[at, _OPEN_OF_ENTRY] != delivery:
            at = deliveries[at, _OPEN_OF_ENTRY]
        deliveries[at, _OPEN_OF_ENTRY] = deliveries[delivery, _OPEN_OF_ENTRY]
    before = deliveries[delivery, _LAST_AT_CONSUMER]
    after = deliveries[delivery, _NEXT_AT_CONSUMER]
    if before >= 0:
        deliveries[before, _NEXT_AT_CONSUMER] = after
    else:
        first_at[deliveries[delivery, _CONSUMER]] = after
    if after >= 0:
        deliveries[after, _LAST_AT_CONSUMER] = before
    key = entry_key[entry]
    if key < 0:
        return
    before = deliveries[delivery, _LAST_OF_KEY]
    after = deliveries[delivery, _NEXT_OF_KEY]
    if before >= 0:
        deliveries[before, _NEXT_OF_KEY] = after
    else:
        keys[key, _KEY_FIRST_OPEN] = after
    if after >= 0:
        deliveries[after, _LAST_OF_KEY] = before
    keys[key, _KEY_OPEN_COUNT] -= 1


@compiled
def _open_at(deliveries: Array, entries: Array, entry: int, consumer: int) -> int:
    """The open delivery of ``entry`` at ``consumer``, or -1."""
    at = entries[entry, _FIRST_OPEN]
    while at >= 0 and deliveries[at, _CONSUMER] != consumer:
        at = deliveries[at, _OPEN_OF_ENTRY]
    return at


@compiled
def _open_elsewhere(deliveries: Array, entries: Array, entry: int, consumer: int) -> int:
    """An open delivery of ``entry`` at another connection, the latest one, or -1."""
    at = entries[entry, _FIRST_OPEN]
    while at >= 0 and deliveries[at, _CONSUMER] == consumer:
        at = deliveries[at, _OPEN_OF_ENTRY]
    return at


@compiled
def _split_by(deliveries: Array, keys: Array, key: int, entry: int, consumer: int) -> int:
    """The open delivery at another connection of the earliest entry of ``key`` up to ``entry``, or -1."""
    only_at = keys[key, _KEY_ONLY_AT]
    if keys[key, _KEY_OPEN_COUNT] == 0 or only_at == consumer:
        return -1
    best = -1
    seen = NOBODY
    at = keys[key, _KEY_FIRST_OPEN]
    while at >= 0:
        holder = deliveries[at, _CONSUMER]
        if seen == NOBODY:
            seen = holder
        elif seen != holder:
            seen = MANY
        earlier = best < 0 or deliveries[at, _ENTRY] < deliveries[best, _ENTRY]
        if holder != consumer and deliveries[at, _ENTRY] <= entry and earlier:
            best = at
        at = deliveries[at, _NEXT_OF_KEY]
    keys[key, _KEY_ONLY_AT] = seen
    return best


@compiled
def _pair(keys: Array, pairs: Array, key: int, consumer: int) -> int:
    """The pair (consumer, key), moved to the front of the key's pairs; -1 if there is none yet."""
    before = -1
    at = keys[key, _KEY_FIRST_PAIR]
    while at >= 0 and pairs[at, _PAIR_CONSUMER] != consumer:
        before = at
        at = pairs[at, _PAIR_NEXT]
    if at >= 0 and before >= 0:
        pairs[before, _PAIR_NEXT] = pairs[at, _PAIR_NEXT]
        pairs[at, _PAIR_NEXT] = keys[key, _KEY_FIRST_PAIR]
        keys[key, _KEY_FIRST_PAIR] = at
    return at


@compiled
def _asked_again(
    deliveries: Array,
    entries: Array,
    requests: Array,
    request_operations: Array,
    width: int,
    entry: int,
    consumer: int,
    now: int,
) -> int:
    """The last operation before ``now`` in which ``consumer`` asked for ``entry`` again, or -1.

    ``requests`` holds ``consumer * width + entry`` of every request that names its entries, in order;
    requests for everything left their mark on the deliveries they closed.
    """
    wanted = consumer * width + entry
    low = 0
    high = len(requests)
    while low < high:  # the first request behind those of this pair up to now
        middle = (low + high) // 2
        if requests[middle] < wanted or (requests[middle] == wanted and request_operations[middle] < now):
            low = middle + 1
        else:
            high = middle
    last = -1
    if low > 0 and requests[low - 1] == wanted:
        last = request_operations[low - 1]
    if entries[entry, _NACKED_WITH_ALL] == 0:
        return last
    at = entries[entry, _LAST_DELIVERY]
    while at >= 0 and not (deliveries[at, _CONSUMER] == consumer and deliveries[at, _END] == NACKED_ALL):
        at = deliveries[at, _BEFORE_OF_ENTRY]
    if at >= 0 and deliveries[at, _END_OPERATION] > last:
        last = deliveries[at, _END_OPERATION]
    return last


@compiled
def _later(deliveries: Array, last: int, entry: int, consumer: int, before: int) -> int:
    """The last delivery, in an operation before ``before``, of a later entry of the key; ``consumer`` -1 = to anyone."""
    at = last
    while at >= 0:
        if (
            deliveries[at, _ENTRY] > entry
            and deliveries[at, _OPERATION] < before
            and (consumer < 0 or deliveries[at, _CONSUMER] == consumer)
        ):
            return at
        at = deliveries[at, _BEFORE_OF_KEY]
    return -1


@compiled
def _note(found: Array, count: int, delivery: int, kind: int, other: int, operation: int) -> int:
    """Write a finding behind the ``count`` there are; returns how many there are now."""
    found[count, 0], found[count, 1], found[count, 2], found[count, 3] = delivery, kind, other, operation
    return count + 1


def scan(
    op_code: Array,
    op_consumer: Array,
    op_start: Array,
    op_ordinals: Array,
    entry_key: Array,
    number_of_keys: int,
    number_of_consumers: int,
    number_of_deliveries: int,
    requests: Array,
    request_operations: Array,
    single_active: bool,
    ordered: bool,
) -> tuple[Array, Array, Array, Array]:
    """One pass over the operations of a history (codes: ``history``).

    Returns per delivery its (ordinal, consumer, operation, delivery before) as columns 0-3 of the state, its delivery
    number, how the delivery before it had ended, and the findings.
    """
    deliveries = np.full((number_of_deliveries, DELIVERY_COLUMNS), -1, dtype=np.int32)
    entries = np.full((len(entry_key), _ENTRY_COLUMNS), -1, dtype=np.int32)
    entries[:, [_TIMES_SENT, _NACKED_WITH_ALL]] = 0
    keys = np.full((number_of_keys, _KEY_COLUMNS), -1, dtype=np.int32)
    keys[:, _KEY_OPEN_COUNT] = 0
    first_at = np.full(number_of_consumers, -1, dtype=np.int32)
    connected = np.zeros(number_of_consumers, dtype=np.bool_)
    number = np.zeros(number_of_deliveries, dtype=np.int32)
    ended = np.full(number_of_deliveries, -1, dtype=np.int8)
    # room for the worst case; what is never written costs no memory
    pairs = np.empty((number_of_deliveries, _PAIR_COLUMNS), dtype=np.int32)
    found = np.empty((MOST_FINDINGS_PER_DELIVERY * number_of_deliveries, 4), dtype=np.int32)
    count = _pass(
        op_code,
        op_consumer,
        op_start,
        op_ordinals,
        entry_key,
        requests,
        request_operations,
        single_active,
        ordered,
        deliveries,
        entries,
        keys,
        first_at,
        connected,
        number,
        ended,
        pairs,
        found,
    )
    return deliveries[:, :4].copy(), number, ended, found[:count].copy()


@compiled
def _pass(
    op_code: Array,
    op_consumer: Array,
    op_start: Array,
    op_ordinals: Array,
    entry_key: Array,
    requests: Array,
    request_operations: Array,
    single_active: bool,
    ordered: bool,
    deliveries: Array,
    entries: Array,
    keys: Array,
    first_at: Array,
    connected: Array,
    number: Array,
    ended: Array,
    pairs: Array,
    found: Array,
) -> int:
    """Fill the arrays of ``scan``; returns the number of findings."""
    width = len(entry_key)
    pair_count = 0
    connected_count = 0
    count = 0
    now = 0  # deliveries so far
    acked_up_to = -1
    last_rewind = -1
    # a hand-over has begun; where no line shows its rewind, the first sending that goes back does
    rewind_due = False
    highest_sent = -1
    last_reload = -1
    for op in range(len(op_code)):
        code, consumer = op_code[op], op_consumer[op]
        start, stop = op_start[op], op_start[op + 1]
        if single_active and (code <= 1 or 5 <= code <= 7):
            last_rewind = op
            rewind_due = highest_sent >= 0
        if code == 2:  # SENT
            if rewind_due and stop > start and op_ordinals[start] <= highest_sent:
                last_rewind = op
                rewind_due = False
            for i in range(start, stop):
                entry = op_ordinals[i]
                key = entry_key[entry]
                before = entries[entry, _LAST_DELIVERY]
                acked = entries[entry, _ACK_OPERATION]
                if ordered and key >= 0:
                    pair = _pair(keys, pairs, key, consumer)
                    backwards = pair >= 0 and pairs[pair, _PAIR_HIGHEST] > entry
                    wrong = -1
                    if backwards:
                        last = keys[key, _KEY_LAST_DELIVERY]
                        asked = _asked_again(
                            deliveries, entries, requests, request_operations, width, entry, consumer, op
                        )
                        excuse = max(asked, last_rewind)
                        later = -1
                        if excuse >= 0:
                            later = _later(deliveries, last, entry, consumer, excuse)
                        if later < 0:
                            wrong = _later(deliveries, last, entry, consumer, op + 1)
                        elif asked >= 0:
                            later = _later(deliveries, last, entry, consumer, asked)
                            if later >= 0 and before >= 0:
                                count = _note(found, count, now, OVERTAKEN, later, asked)
                    if wrong < 0 and before < 0 and keys[key, _KEY_HIGHEST] > entry:
                        wrong = _later(deliveries, keys[key, _KEY_LAST_DELIVERY], entry, -1, op + 1)
                    if wrong >= 0:
                        count = _note(found, count, now, OUT_OF_ORDER, wrong, -1)
                    split = _split_by(deliveries, keys, key, entry, consumer)
                    if split >= 0:
                        count = _note(found, count, now, SPLIT, split, -1)
                    if pair < 0:
                        pair = pair_count
                        pair_count += 1
                        pairs[pair, _PAIR_CONSUMER], pairs[pair, _PAIR_HIGHEST] = consumer, entry
                        pairs[pair, _PAIR_NEXT] = keys[key, _KEY_FIRST_PAIR]
                        keys[key, _KEY_FIRST_PAIR] = pair
                    pairs[pair, _PAIR_HIGHEST] = max(pairs[pair, _PAIR_HIGHEST], entry)
                    keys[key, _KEY_HIGHEST] = max(keys[key, _KEY_HIGHEST], entry)
                double = _open_elsewhere(deliveries, entries, entry, consumer)
                if double >= 0:
                    count = _note(found, count, now, DOUBLE, double, -1)
                if acked >= 0:
                    count = _note(found, count, now, AFTER_ACK, before, acked)
                if before >= 0:
                    ended[now] = deliveries[before, _END]
                    if ended[now] == OPEN and last_rewind > deliveries[before, _OPERATION]:
                        ended[now] = REWOUND
                    if last_reload > deliveries[before, _OPERATION]:
                        ended[now] = RELOADED
                    if double < 0 and acked < 0:
                        ended_by = deliveries[before, _END_OPERATION]
                        count = _note(found, count, now, REDELIVERED, before, ended_by)
                same = _open_at(deliveries, entries, entry, consumer)
                if same >= 0:
                    _close(deliveries, entries, keys, first_at, entry_key, same, REPLACED, op)
                deliveries[now, _ENTRY] = entry
                deliveries[now, _CONSUMER] = consumer
                deliveries[now, _OPERATION] = op
                deliveries[now, _BEFORE_OF_ENTRY] = before
                if key >= 0:
                    deliveries[now, _BEFORE_OF_KEY] = keys[key, _KEY_LAST_DELIVERY]
                    keys[key, _KEY_LAST_DELIVERY] = now
                highest_sent = max(highest_sent, entry)
                entries[entry, _LAST_DELIVERY] = now
                entries[entry, _TIMES_SENT] += 1
                number[now] = entries[entry, _TIMES_SENT]
                _open(deliveries, entries, keys, first_at, entry_key, now)
                now += 1
        elif code == 3:  # ACK
            for i in range(start, stop):
                entry = op_ordinals[i]
                if entries[entry, _ACK_OPERATION] < 0:
                    entries[entry, _ACK_OPERATION] = op
                while entries[entry, _FIRST_OPEN] >= 0:
                    _close(
                        deliveries, entries, keys, first_at, entry_key, entries[entry, _FIRST_OPEN], ACKED, op
                    )
        elif code == 4:  # ACK_CUMULATIVE: only where one consumer gets everything
            if single_active:
                for i in range(start, stop):
                    highest = op_ordinals[i]
                    for entry in range(acked_up_to + 1, highest + 1):
                        if entries[entry, _ACK_OPERATION] < 0:
                            entries[entry, _ACK_OPERATION] = op
                    acked_up_to = max(acked_up_to, highest)
                for holder in range(len(first_at)):
                    at = first_at[holder]
                    while at >= 0:
                        after = deliveries[at, _NEXT_AT_CONSUMER]
                        if deliveries[at, _ENTRY] <= acked_up_to:
                            _close(deliveries, entries, keys, first_at, entry_key, at, ACKED, op)
                        at = after
        elif code == 5:  # REDELIVER
            for i in range(start, stop):
                same = _open_at(deliveries, entries, op_ordinals[i], consumer)
                if same >= 0:
                    _close(deliveries, entries, keys, first_at, entry_key, same, NACKED, op)
        elif code == 6:  # REDELIVER_ALL
            while first_at[consumer] >= 0:
                _close(deliveries, entries, keys, first_at, entry_key, first_at[consumer], NACKED_ALL, op)
        elif code == 0:  # ADDED
            if not connected[consumer]:
                connected[consumer] = True
                connected_count += 1
        elif code == 1:  # REMOVED
            if connected[consumer]:
                connected[consumer] = False
                connected_count -= 1
            how = DISCONNECTED if connected_count > 0 else ALL_LEFT
            while first_at[consumer] >= 0:
                _close(deliveries, entries, keys, first_at, entry_key, first_at[consumer], how, op)
        elif code == 8:  # RELOAD: what the broker had in memory is gone, unstored acks with it
            for holder in range(len(first_at)):
                while first_at[holder] >= 0:
                    _close(deliveries, entries, keys, first_at, entry_key, first_at[holder], RELOADED, op)
            last_reload = op
            for holder in range(len(connected)):
                connected[holder] = False
            connected_count = 0
            for entry in range(width):
                entries[entry, _ACK_OPERATION] = -1
            acked_up_to = -1
    return count
