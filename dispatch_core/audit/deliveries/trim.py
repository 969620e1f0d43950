"""Cut the state of the audit's rules: drop settled entries at its front and renumber the rest, in one pass per array.

An entry is *settled* when it is acked and no delivery of it is open. An acknowledgement that an earlier incarnation got
settles it too, until this incarnation sends the entry: then it had not been stored. An entry of before the subscription is
settled until it is sent. Settled entries at the front of the
window are dropped with their deliveries, their requests, and the operations that nothing else refers to. No rule needs them
as long as no line sends them again (the window then refuses to judge), and acknowledging or requesting them again changes
nothing:

* order is judged by *later* entries of the key only (``_later``, the highest ordinals of key and pair);
* splits and doubles are judged by open deliveries only;
* causes and delivery numbers come from deliveries of the entry itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dispatch_core.arrays.jit import compiled
from dispatch_core.audit.deliveries.layout import (
    ACK_OPERATION,
    ACKED_BEFORE_RELOAD,
    ACKED_UP_TO,
    BEFORE_OF_ENTRY,
    BEFORE_OF_KEY,
    CHANGED_AT,
    DELIVERIES,
    END_OPERATION,
    ENTRY,
    FIRST_CHANGE,
    FIRST_OPEN,
    FIRST_REQUEST,
    HANDED_OVER,
    HIGHEST_SENT,
    JUMP_HIGHEST,
    JUMP_OF_KEY,
    KEY_EARLIEST,
    KEY_EARLIEST_ELSEWHERE,
    KEY_FIRST_OPEN,
    KEY_FIRST_PAIR,
    KEY_HIGHEST,
    KEY_LAST_DELIVERY,
    KEY_SEARCHED,
    LAST_AT_CONSUMER,
    LAST_DELIVERY,
    LAST_EMPTY,
    LAST_MOVE,
    LAST_MOVED_TO,
    LAST_OF_KEY,
    LAST_RELOAD,
    LAST_REWIND,
    NEXT_AT_CONSUMER,
    NEXT_OF_KEY,
    OPEN_OF_ENTRY,
    OPERATION,
    PAIR_HIGHEST,
    PAIR_NEXT,
    PAIRS,
    REQUEST_NEXT,
    REQUEST_OPERATION,
    REQUESTS,
    RUN_HIGHEST,
    TIMES_SENT,
    Array,
)

#: Single numbers that name an operation.
_OPERATIONS: Final = (
    *(LAST_REWIND, LAST_RELOAD, FIRST_CHANGE, HANDED_OVER, CHANGED_AT),
    *(LAST_MOVE, LAST_EMPTY),
)


@compiled
def settled(entries: Array, past: int) -> int:
    """Count the entries at the front that are acked and pending on nobody.

    ``past``: the first ones, up to so many, were stored before the subscription began; those never sent are settled too.
    """
    for entry in range(len(entries)):
        acked = entries[entry, ACK_OPERATION] >= 0 or entries[entry, ACKED_BEFORE_RELOAD] != 0
        acked = acked or (entry < past and entries[entry, TIMES_SENT] == 0)
        if not acked or entries[entry, FIRST_OPEN] >= 0:
            return entry
    return len(entries)


@compiled
def operations_of(
    cut: int, s: Array, deliveries: Array, entries: Array, requests: Array, used: Array
) -> None:
    """Mark in ``used`` every operation that entries from ``cut`` on, or the rules themselves, refer to."""
    for delivery in range(s[DELIVERIES]):
        if deliveries[delivery, ENTRY] >= cut:
            used[deliveries[delivery, OPERATION]] = True
            if deliveries[delivery, END_OPERATION] >= 0:
                used[deliveries[delivery, END_OPERATION]] = True
    for entry in range(cut, len(entries)):
        if entries[entry, ACK_OPERATION] >= 0:
            used[entries[entry, ACK_OPERATION]] = True
        at = entries[entry, FIRST_REQUEST]
        while at >= 0:
            used[requests[at, REQUEST_OPERATION]] = True
            at = requests[at, REQUEST_NEXT]
    for scalar in _OPERATIONS:
        if s[scalar] >= 0:
            used[s[scalar]] = True


@compiled
def _new(numbers: Array, old: int) -> int:
    return numbers[old] if old >= 0 else -1


@compiled
def cut_requests(cut: int, s: Array, entries: Array, requests: Array, new_op: Array) -> None:
    """Drop the requests for entries before ``cut``; to be called before the entries themselves are cut."""
    new = np.full(s[REQUESTS], -1, dtype=np.int32)
    for entry in range(cut, len(entries)):
        at = entries[entry, FIRST_REQUEST]
        while at >= 0:
            new[at] = 0
            at = requests[at, REQUEST_NEXT]
    count = 0
    for old in range(len(new)):
        if new[old] >= 0:
            new[old] = count
            count += 1
    for old in range(len(new)):
        at = new[old]
        if at >= 0:
            requests[at] = requests[old]
            requests[at, REQUEST_OPERATION] = new_op[requests[at, REQUEST_OPERATION]]
            requests[at, REQUEST_NEXT] = _new(new, requests[at, REQUEST_NEXT])
    for entry in range(cut, len(entries)):
        entries[entry, FIRST_REQUEST] = _new(new, entries[entry, FIRST_REQUEST])
    s[REQUESTS] = count


@compiled
def cut_pairs(cut: int, s: Array, keys: Array, pairs: Array) -> None:
    """Drop the pairs whose highest entry lies before ``cut``: no later delivery can go back behind them."""
    new = np.full(s[PAIRS], -1, dtype=np.int32)
    for key in range(len(keys)):
        before = -1
        at = keys[key, KEY_FIRST_PAIR]
        keys[key, KEY_FIRST_PAIR] = -1
        while at >= 0:
            after = pairs[at, PAIR_NEXT]
            if pairs[at, PAIR_HIGHEST] >= cut:
                new[at] = 0
                pairs[at, PAIR_NEXT] = -1
                if before >= 0:
                    pairs[before, PAIR_NEXT] = at
                else:
                    keys[key, KEY_FIRST_PAIR] = at
                before = at
            at = after
    count = 0
    for old in range(len(new)):
        if new[old] >= 0:
            new[old] = count
            count += 1
    for old in range(len(new)):
        at = new[old]
        if at >= 0:
            pairs[at] = pairs[old]
            pairs[at, PAIR_HIGHEST] -= cut
            pairs[at, PAIR_NEXT] = _new(new, pairs[at, PAIR_NEXT])
    for key in range(len(keys)):
        keys[key, KEY_FIRST_PAIR] = _new(new, keys[key, KEY_FIRST_PAIR])
    s[PAIRS] = count


@compiled
def cut_deliveries(
    cut: int, s: Array, deliveries: Array, entries: Array, keys: Array, first_at: Array, new_op: Array
) -> None:
    """Drop the entries before ``cut`` and their deliveries; the chains of a key skip them."""
    total = s[DELIVERIES]
    new = np.full(total, -1, dtype=np.int32)
    count = 0
    for old in range(total):
        if deliveries[old, ENTRY] >= cut:
            new[old] = count
            count += 1
    # per delivery: itself, or the last one of its key before it that stays
    staying = np.full(total, -1, dtype=np.int32)
    for old in range(total):
        before = _new(staying, deliveries[old, BEFORE_OF_KEY])
        at = new[old]
        staying[old] = at if at >= 0 else before
        if at < 0:
            continue
        deliveries[at] = deliveries[old]
        deliveries[at, BEFORE_OF_KEY] = before
        deliveries[at, JUMP_OF_KEY] = _new(staying, deliveries[at, JUMP_OF_KEY])
        deliveries[at, JUMP_HIGHEST] -= cut
        deliveries[at, ENTRY] -= cut
        deliveries[at, OPERATION] = new_op[deliveries[at, OPERATION]]
        deliveries[at, END_OPERATION] = _new(new_op, deliveries[at, END_OPERATION])
        for column in (
            BEFORE_OF_ENTRY,
            OPEN_OF_ENTRY,
            NEXT_AT_CONSUMER,
            LAST_AT_CONSUMER,
            NEXT_OF_KEY,
            LAST_OF_KEY,
        ):
            deliveries[at, column] = _new(new, deliveries[at, column])
    s[DELIVERIES] = count
    for old in range(cut, len(entries)):
        at = old - cut
        entries[at] = entries[old]
        entries[at, LAST_DELIVERY] = _new(new, entries[at, LAST_DELIVERY])
        entries[at, FIRST_OPEN] = _new(new, entries[at, FIRST_OPEN])
        entries[at, ACK_OPERATION] = _new(new_op, entries[at, ACK_OPERATION])
    for key in range(len(keys)):
        keys[key, KEY_LAST_DELIVERY] = _new(staying, keys[key, KEY_LAST_DELIVERY])
        keys[key, KEY_FIRST_OPEN] = _new(new, keys[key, KEY_FIRST_OPEN])
        keys[key, KEY_HIGHEST] = max(keys[key, KEY_HIGHEST] - cut, -1)
        for column in (KEY_EARLIEST, KEY_EARLIEST_ELSEWHERE, KEY_SEARCHED):
            keys[key, column] = -1
    for consumer in range(len(first_at)):
        first_at[consumer] = _new(new, first_at[consumer])


@compiled
def cut_scalars(cut: int, s: Array, new_op: Array) -> None:
    """Renumber the entries and operations that single numbers refer to."""
    s[ACKED_UP_TO] = max(s[ACKED_UP_TO] - cut, -1)
    s[HIGHEST_SENT] = max(s[HIGHEST_SENT] - cut, -1)
    s[RUN_HIGHEST] = max(s[RUN_HIGHEST] - cut, -1)
    s[LAST_MOVED_TO] = max(s[LAST_MOVED_TO] - cut, -1)
    for scalar in _OPERATIONS:
        s[scalar] = _new(new_op, s[scalar])
