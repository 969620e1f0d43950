"""Apply the rules of the audit in one pass over a dispatcher's operations: find what is wrong with each delivery.

Theory of operation
-------------------
A *delivery* is one entry in one ``sent`` line; deliveries are numbered in the order of the log. A delivery is *open* from
its ``sent`` line until the entry is acked, the connection requests its redelivery, or the connection is lost. An entry is
outstanding at the connections of its open deliveries. Acks count from their arrival.

Example: 3:1 and 3:2 of key k are sent to connection 1, then 3:1 is sent to connection 2. Nothing has closed the first two
deliveries, so the third is *double outstanding* (3:1 is open at connection 1) and a *split key* (so is an entry of k up to
3:1). After an ack of 3:1 it would be a *duplicate after ack* instead.

Three sets of doubly linked lists hold the open deliveries by entry, by connection and by key, so that each event costs only
what it touches. Per key, ``KEY_ONLY_AT`` is the one connection that holds all open deliveries; this is the normal case, in
which no split is possible and nothing is searched. Per (connection, key) pair, the highest ordinal sent shows in one step
that a delivery goes backwards. Only then are earlier deliveries searched.

A delivery of entry *e* to connection *c* is

* **out of order** when (a) a later entry of the key went to *c* before, and *c* did not request redelivery of *e* after it
  first got such a later entry (Failover and Exclusive: nor did the active consumer change or the cursor rewind); or (b) *e*
  was never sent before and a later entry of the key was. If a request excuses (a), it is an **overtaken redelivery**. A
  request counts from its arrival and takes effect within ``REQUEST_RACE_US``: if *c* first got a later entry in between,
  the finding names the request (*other operation*), which may explain it;
* a **split key** when an entry of the key that is not later than *e* is open at another connection;
* **double outstanding** when *e* itself is open at another connection;
* a **duplicate after ack** when *e* was acked;
* **redelivered** when it was sent before and is neither of the last two; the cause is what closed the last delivery.

The state is kept in arrays (``layout``) that outlive a pass, so that a log can be taken in batches. Findings are rows
``(delivery, kind, other delivery, other operation, hand-over)``, -1 = none.

On Failover and Exclusive a change of the active consumer delivers again what the old one has not acknowledged, and goes on
behind it, while the old one may stay connected. This *hand-over* (``layout.HANDOVER``) explains a split or a double at
a connection that was sent the entry before the change, and an ack that came while the entries were read for the new one. It
does not explain what was sent to two connections after the change, or a connection that gets entries without any change.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled
from dispatch_core.audit.deliveries.layout import (
    ACK_OPERATION,
    ACKED,
    ACKED_BEFORE_RELOAD,
    ACKED_UP_TO,
    ALL_LEFT,
    BEFORE_OF_ENTRY,
    BEFORE_OF_KEY,
    CARRIED,
    CHANGED_AT,
    CHANGES,
    CONNECTED,
    CONSUMER,
    DELETIONS_LOGGED,
    DELIVERIES,
    DISCONNECTED,
    END,
    END_OPERATION,
    ENTRY,
    EXACT,
    FIRST_CHANGE,
    FIRST_OPEN,
    FIRST_REQUEST,
    HANDED_BY,
    HANDED_OVER,
    HANDOVER,
    HANDOVER_LATE,
    HIGHEST_SENT,
    JUMP_HIGHEST,
    JUMP_LENGTH,
    JUMP_OF_KEY,
    KEY_EARLIEST,
    KEY_EARLIEST_ELSEWHERE,
    KEY_FIRST_OPEN,
    KEY_FIRST_PAIR,
    KEY_HIGHEST,
    KEY_LAST_DELIVERY,
    KEY_ONLY_AT,
    KEY_OPEN_COUNT,
    KEY_SEARCHED,
    LAST_AT_CONSUMER,
    LAST_DELIVERY,
    LAST_EMPTY,
    LAST_MOVE,
    LAST_MOVED_TO,
    LAST_OF_KEY,
    LAST_RELOAD,
    LAST_REWIND,
    LAST_TO,
    MANY,
    MAYBE_HANDOVER,
    MOVED,
    MOVES_LOGGED,
    NACKED,
    NACKED_ALL,
    NACKED_WITH_ALL,
    NEXT_AT_CONSUMER,
    NEXT_OF_KEY,
    NO_HANDOVER,
    OPEN,
    OPEN_OF_ENTRY,
    OPERATION,
    PAIR_CONSUMER,
    PAIR_HIGHEST,
    PAIR_NEXT,
    PAIRS,
    RELOADED,
    REPLACED,
    REQUEST_CONSUMER,
    REQUEST_NEXT,
    REQUEST_OPERATION,
    REQUESTS,
    REWIND_DUE,
    REWOUND,
    RUN_HIGHEST,
    SENT_ANY,
    SENT_TO,
    TIMES_SENT,
    Array,
)

OUT_OF_ORDER, OVERTAKEN, SPLIT, DOUBLE, AFTER_ACK, REDELIVERED, PERHAPS_AFTER_MOVE, PERHAPS_MOVED_BACK = (
    range(8)
)
#: Without a trace a redelivery request is seen on arrival only, as an acknowledgement is. A delivery that follows it within
#: this time may have been under way when it took effect.
REQUEST_RACE_US: Final = 20_000
#: One about order, a split, and two about a repeated delivery (double outstanding and after its ack).
MOST_FINDINGS_PER_DELIVERY: Final = 4
FINDING_COLUMNS: Final = 5


@compiled
def _open(
    deliveries: Array, entries: Array, keys: Array, first_at: Array, entry_key: Array, delivery: int
) -> None:
    entry = deliveries[delivery, ENTRY]
    consumer = deliveries[delivery, CONSUMER]
    deliveries[delivery, END] = OPEN
    deliveries[delivery, OPEN_OF_ENTRY] = entries[entry, FIRST_OPEN]
    entries[entry, FIRST_OPEN] = delivery
    after = first_at[consumer]
    deliveries[delivery, NEXT_AT_CONSUMER] = after
    if after >= 0:
        deliveries[after, LAST_AT_CONSUMER] = delivery
    first_at[consumer] = delivery
    key = entry_key[entry]
    if key < 0:
        return
    after = keys[key, KEY_FIRST_OPEN]
    deliveries[delivery, NEXT_OF_KEY] = after
    if after >= 0:
        deliveries[after, LAST_OF_KEY] = delivery
    keys[key, KEY_FIRST_OPEN] = delivery
    if keys[key, KEY_OPEN_COUNT] == 0:
        keys[key, KEY_ONLY_AT] = consumer
    elif keys[key, KEY_ONLY_AT] != consumer:
        keys[key, KEY_ONLY_AT] = MANY
    keys[key, KEY_OPEN_COUNT] += 1


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
    entry = deliveries[delivery, ENTRY]
    deliveries[delivery, END] = how
    deliveries[delivery, END_OPERATION] = operation
    if how == NACKED_ALL:
        entries[entry, NACKED_WITH_ALL] += 1
    if entries[entry, FIRST_OPEN] == delivery:
        entries[entry, FIRST_OPEN] = deliveries[delivery, OPEN_OF_ENTRY]
    else:
        at = entries[entry, FIRST_OPEN]
        while deliveries[at, OPEN_OF_ENTRY] != delivery:
            at = deliveries[at, OPEN_OF_ENTRY]
        deliveries[at, OPEN_OF_ENTRY] = deliveries[delivery, OPEN_OF_ENTRY]
    before = deliveries[delivery, LAST_AT_CONSUMER]
    after = deliveries[delivery, NEXT_AT_CONSUMER]
    if before >= 0:
        deliveries[before, NEXT_AT_CONSUMER] = after
    else:
        first_at[deliveries[delivery, CONSUMER]] = after
    if after >= 0:
        deliveries[after, LAST_AT_CONSUMER] = before
    key = entry_key[entry]
    if key < 0:
        return
    before = deliveries[delivery, LAST_OF_KEY]
    after = deliveries[delivery, NEXT_OF_KEY]
    if before >= 0:
        deliveries[before, NEXT_OF_KEY] = after
    else:
        keys[key, KEY_FIRST_OPEN] = after
    if after >= 0:
        deliveries[after, LAST_OF_KEY] = before
    keys[key, KEY_OPEN_COUNT] -= 1


@compiled
def _open_at(deliveries: Array, entries: Array, entry: int, consumer: int) -> int:
    """Return the open delivery of ``entry`` at ``consumer``, or -1."""
    at = entries[entry, FIRST_OPEN]
    while at >= 0 and deliveries[at, CONSUMER] != consumer:
        at = deliveries[at, OPEN_OF_ENTRY]
    return at


@compiled
def _open_elsewhere(deliveries: Array, entries: Array, entry: int, consumer: int) -> int:
    """Return the latest open delivery of ``entry`` at another connection, or -1."""
    at = entries[entry, FIRST_OPEN]
    while at >= 0 and deliveries[at, CONSUMER] == consumer:
        at = deliveries[at, OPEN_OF_ENTRY]
    return at


@compiled
def _is_of_earlier(deliveries: Array, delivery: int, other: int) -> bool:
    """Check whether a delivery is of an earlier entry than another one; of the same entry, the later delivery counts."""
    entry, entry_of_other = deliveries[delivery, ENTRY], deliveries[other, ENTRY]
    return entry < entry_of_other or (entry == entry_of_other and delivery > other)


@compiled
def _split_by(deliveries: Array, keys: Array, key: int, entry: int, consumer: int) -> int:
    """Return the open delivery at another connection of the earliest entry of ``key`` up to ``entry``, or -1."""
    only_at = keys[key, KEY_ONLY_AT]
    if keys[key, KEY_OPEN_COUNT] == 0 or only_at == consumer:
        return -1
    first, elsewhere, searched = (
        keys[key, KEY_EARLIEST],
        keys[key, KEY_EARLIEST_ELSEWHERE],
        keys[key, KEY_SEARCHED],
    )
    closed = first >= 0 and deliveries[first, END] != OPEN
    if closed or (elsewhere >= 0 and deliveries[elsewhere, END] != OPEN):
        first, elsewhere, searched = -1, -1, -1
    # The list begins with the latest delivery: behind the last one searched, all have been.
    at = keys[key, KEY_FIRST_OPEN]
    keys[key, KEY_SEARCHED] = at
    while at > searched:
        if first < 0 or _is_of_earlier(deliveries, at, first):
            if first >= 0 and deliveries[first, CONSUMER] != deliveries[at, CONSUMER]:
                elsewhere = first
            first = at
        elif deliveries[at, CONSUMER] != deliveries[first, CONSUMER] and (
            elsewhere < 0 or _is_of_earlier(deliveries, at, elsewhere)
        ):
            elsewhere = at
        at = deliveries[at, NEXT_OF_KEY]
    keys[key, KEY_EARLIEST], keys[key, KEY_EARLIEST_ELSEWHERE] = first, elsewhere
    keys[key, KEY_ONLY_AT] = deliveries[first, CONSUMER] if elsewhere < 0 else MANY
    best = elsewhere if deliveries[first, CONSUMER] == consumer else first
    return best if best >= 0 and deliveries[best, ENTRY] <= entry else -1


@compiled
def _pair(keys: Array, pairs: Array, key: int, consumer: int) -> int:
    """Return the pair (consumer, key) and move it to the front of the key's pairs; -1 if there is none yet."""
    before = -1
    at = keys[key, KEY_FIRST_PAIR]
    while at >= 0 and pairs[at, PAIR_CONSUMER] != consumer:
        before = at
        at = pairs[at, PAIR_NEXT]
    if at >= 0 and before >= 0:
        pairs[before, PAIR_NEXT] = pairs[at, PAIR_NEXT]
        pairs[at, PAIR_NEXT] = keys[key, KEY_FIRST_PAIR]
        keys[key, KEY_FIRST_PAIR] = at
    return at


@compiled
def _request(entries: Array, requests: Array, entry: int, consumer: int, operation: int, count: int) -> int:
    """Note a redelivery request of ``consumer`` that names ``entry``; returns the number of requests noted so far."""
    at = entries[entry, FIRST_REQUEST]
    while at >= 0 and requests[at, REQUEST_CONSUMER] != consumer:
        at = requests[at, REQUEST_NEXT]
    if at >= 0:
        requests[at, REQUEST_OPERATION] = operation
        return count
    requests[count, REQUEST_CONSUMER], requests[count, REQUEST_OPERATION] = consumer, operation
    requests[count, REQUEST_NEXT] = entries[entry, FIRST_REQUEST]
    entries[entry, FIRST_REQUEST] = count
    return count + 1


@compiled
def _last_request(deliveries: Array, entries: Array, requests: Array, entry: int, consumer: int) -> int:
    """Return the last operation in which ``consumer`` requested redelivery of ``entry``, or -1.

    A request for everything is found by the deliveries it closed.
    """
    last = -1
    at = entries[entry, FIRST_REQUEST]
    while at >= 0:
        if requests[at, REQUEST_CONSUMER] == consumer:
            last = requests[at, REQUEST_OPERATION]
        at = requests[at, REQUEST_NEXT]
    if entries[entry, NACKED_WITH_ALL] == 0:
        return last
    at = entries[entry, LAST_DELIVERY]
    while at >= 0 and not (deliveries[at, CONSUMER] == consumer and deliveries[at, END] == NACKED_ALL):
        at = deliveries[at, BEFORE_OF_ENTRY]
    if at >= 0 and deliveries[at, END_OPERATION] > last:
        last = deliveries[at, END_OPERATION]
    return last


@compiled
def _later(deliveries: Array, last: int, entry: int, consumer: int, before: int) -> int:
    """Return the last delivery before operation ``before`` of a later entry of the key; ``consumer`` -1 = any; -1 = none."""
    at = last
    while at >= 0:
        jump = deliveries[at, JUMP_OF_KEY]
        if deliveries[at, OPERATION] >= before:
            over = jump >= 0 and deliveries[jump, OPERATION] >= before
        elif deliveries[at, ENTRY] <= entry:
            over = jump >= 0 and deliveries[at, JUMP_HIGHEST] <= entry
        elif consumer < 0 or deliveries[at, CONSUMER] == consumer:
            return at
        else:
            over = False
        at = jump if over else deliveries[at, BEFORE_OF_KEY]
    return -1


@compiled
def _first_later(deliveries: Array, last: int, entry: int, consumer: int, since: int) -> int:
    """Return the first delivery to ``consumer`` of an entry of the key that is later than ``entry``, by an operation
    from ``since`` on; -1 = none.
    """
    found = -1
    at = last
    while at >= 0 and deliveries[at, OPERATION] >= since:
        if deliveries[at, ENTRY] > entry and deliveries[at, CONSUMER] == consumer:
            found = at
        at = deliveries[at, BEFORE_OF_KEY]
    return found


@compiled
def _follow_in_key(deliveries: Array, delivery: int, before: int) -> None:
    """Put a delivery behind ``before``, the last one of its key, and set its jump.

    A jump goes over one delivery, or over the two jumps in front of it if they are equally long. So a search takes a number
    of steps that grows with the logarithm of the deliveries (Myers, "An applicative random-access stack", 1983).
    """
    deliveries[delivery, BEFORE_OF_KEY] = before
    deliveries[delivery, JUMP_OF_KEY] = before
    deliveries[delivery, JUMP_HIGHEST] = deliveries[delivery, ENTRY]
    deliveries[delivery, JUMP_LENGTH] = 1
    if before < 0:
        return
    middle = deliveries[before, JUMP_OF_KEY]
    if middle < 0 or deliveries[middle, JUMP_OF_KEY] < 0:
        return
    if deliveries[before, JUMP_LENGTH] == deliveries[middle, JUMP_LENGTH]:
        deliveries[delivery, JUMP_OF_KEY] = deliveries[middle, JUMP_OF_KEY]
        deliveries[delivery, JUMP_HIGHEST] = max(
            deliveries[delivery, ENTRY], deliveries[before, JUMP_HIGHEST], deliveries[middle, JUMP_HIGHEST]
        )
        deliveries[delivery, JUMP_LENGTH] = 1 + 2 * deliveries[before, JUMP_LENGTH]


@compiled
def _may_be_rewound(entries: Array, last_to: int, entry: int, consumer: int, acked_up_to: int) -> bool:
    """Check whether the cursor may have been rewound before ``entry`` is sent to ``consumer`` once more.

    A join or a leave rewinds if it changes the active consumer. Another connection then gets the entries; or the same one
    gets them again, from the first that was sent and not acknowledged. ``last_to``: of the last delivery, -1 = none.
    """
    if last_to != consumer:
        return True
    for earlier in range(acked_up_to + 1, entry):
        if entries[earlier, TIMES_SENT] > 0 and entries[earlier, ACK_OPERATION] < 0:
            return False
    return True


@compiled
def _begin_run(s: Array, consumer: int, operation: int) -> None:
    """Begin the deliveries to another connection; a join or leave since the last ones began makes it a hand-over.

    If none lies between, one of several before them may do: a line is written beside the change, not with it.
    """
    first = s[SENT_TO] < 0
    s[SENT_TO], s[RUN_HIGHEST] = consumer, -1
    if first or s[CHANGES] > 0:
        s[HANDED_OVER], s[HANDED_BY], s[CHANGED_AT] = operation, HANDOVER, s[FIRST_CHANGE]
        s[CARRIED] = max(s[CHANGES] - 1, 0)
    elif s[CARRIED] > 0:
        s[HANDED_OVER], s[HANDED_BY] = operation, MAYBE_HANDOVER
        s[CARRIED] -= 1
    s[CHANGES], s[FIRST_CHANGE] = 0, -1


@compiled
def _beyond_handover(
    deliveries: Array, keys: Array, key: int, entry: int, consumer: int, handed_over: int
) -> int:
    """Return an open delivery since the hand-over, at another connection, of an entry of ``key`` up to ``entry``; or -1."""
    at = keys[key, KEY_FIRST_OPEN]
    while at >= 0:
        made_since = deliveries[at, OPERATION] >= handed_over
        if made_since and deliveries[at, CONSUMER] != consumer and deliveries[at, ENTRY] <= entry:
            return at
        at = deliveries[at, NEXT_OF_KEY]
    return -1


@compiled
def _handed_after_ack(s: Array, deliveries: Array, entry: int, consumer: int, before: int, acked: int) -> int:
    """Return what the hand-over in force has to do with an acked ``entry`` that is sent again: the entry was sent to another
    connection before it, and the new one gets it in its turn.
    """
    if before < 0 or s[HANDED_OVER] < 0 or deliveries[before, CONSUMER] == consumer:
        return NO_HANDOVER
    if deliveries[before, OPERATION] >= s[HANDED_OVER] or entry <= s[RUN_HIGHEST]:
        return NO_HANDOVER
    return s[HANDED_BY] if acked > s[CHANGED_AT] else HANDOVER_LATE


@compiled
def _pass(entries: Array, first: int, upto: int, op: int) -> None:
    """Settle the entries from ``first`` up to ``upto`` that were not acknowledged: the cursor passed them."""
    for entry in range(first, upto + 1):
        if entries[entry, ACK_OPERATION] < 0:
            entries[entry, ACK_OPERATION] = op


@compiled
def _note(
    found: Array, count: int, delivery: int, kind: int, other: int, operation: int, handover: int
) -> int:
    """Append a finding to the ``count`` in ``found``; returns the new count."""
    found[count, 0], found[count, 1], found[count, 2], found[count, 3] = delivery, kind, other, operation
    found[count, 4] = handover
    return count + 1


@compiled
def take(
    first_op: int,
    window_code: Array,
    window_t_us: Array,
    op_code: Array,
    op_consumer: Array,
    op_value: Array,
    op_start: Array,
    op_ordinals: Array,
    entry_key: Array,
    delayed_until: Array,
    single_active: bool,
    ordered: bool,
    checkpoint_until: int,
    s: Array,
    deliveries: Array,
    entries: Array,
    keys: Array,
    first_at: Array,
    connected: Array,
    pairs: Array,
    requests: Array,
    number: Array,
    ended: Array,
    found: Array,
) -> int:
    """Apply further operations (codes: ``operations``), the first of which has the number ``first_op``.

    ``window_code``, ``window_t_us``: codes and times of all operations of the window, by number.
    ``delayed_until``: by entry the first operation behind its delay (0 = it has none); what was sent before may come first.
    Empty if no entry is delayed. ``checkpoint_until``: deliveries of operations before it are those of a checkpoint, whose
    order says nothing.
    The arrays have room for everything that the operations may add. Filled in: ``number``, the delivery number of each new
    delivery; ``ended``, the end of the delivery before it (``layout``; -1 = there was none); ``found``, the findings.

    Returns the number of findings.
    """
    width = len(entry_key)
    pair_count = s[PAIRS]
    request_count = s[REQUESTS]
    connected_count = s[CONNECTED]
    count = 0
    first = s[DELIVERIES]
    now = first  # deliveries so far
    acked_up_to = s[ACKED_UP_TO]
    last_rewind = s[LAST_REWIND]
    rewind_due = s[REWIND_DUE] != 0
    highest_sent = s[HIGHEST_SENT]
    sent_any = s[SENT_ANY] != 0
    last_reload = s[LAST_RELOAD]
    last_move, last_moved_to, last_empty = s[LAST_MOVE], s[LAST_MOVED_TO], s[LAST_EMPTY]
    moves_logged, deletions_logged = s[MOVES_LOGGED] != 0, s[DELETIONS_LOGGED] != 0
    last_to = s[LAST_TO]
    for index in range(len(op_code)):
        op = first_op + index
        code, consumer = op_code[index], op_consumer[index]
        start, stop = op_start[index], op_start[index + 1]
        if single_active and (code <= 1 or 5 <= code <= 7):
            rewind_due = sent_any
            if code > 1:
                last_rewind = op
            else:
                s[CHANGES] += 1
                if s[FIRST_CHANGE] < 0:
                    s[FIRST_CHANGE] = op
        if code == 2:  # SENT
            runs = single_active and op >= checkpoint_until
            if runs and consumer != s[SENT_TO] and stop > start:
                _begin_run(s, consumer, op)
            if rewind_due and stop > start and op_ordinals[start] <= highest_sent:
                if _may_be_rewound(entries, last_to, op_ordinals[start], consumer, acked_up_to):
                    last_rewind = op
                rewind_due = False
            for i in range(start, stop):
                entry = op_ordinals[i]
                key = entry_key[entry]
                before = entries[entry, LAST_DELIVERY]
                acked = entries[entry, ACK_OPERATION]
                if acked >= 0 and entry == last_moved_to and window_code[acked] >= 10:
                    # The position of a move may be meant as the last entry before it, or as the first one behind it.
                    acked = entries[entry, ACK_OPERATION] = -1
                    last_moved_to = -1
                perhaps_moved = acked >= 0 and acked < last_empty
                # After a move backwards everything behind the new position is new to the subscription.
                is_first = before < 0 or deliveries[before, OPERATION] < last_move
                if ordered and key >= 0:
                    pair = _pair(keys, pairs, key, consumer)
                    backwards = pair >= 0 and pairs[pair, PAIR_HIGHEST] > entry
                    wrong = racing = -1
                    if backwards:
                        last = keys[key, KEY_LAST_DELIVERY]
                        asked = _last_request(deliveries, entries, requests, entry, consumer)
                        excuse = max(asked, last_rewind, last_move)
                        later = -1
                        if excuse >= 0:
                            later = _later(deliveries, last, entry, consumer, excuse)
                        if later < 0:
                            wrong = _later(deliveries, last, entry, consumer, op + 1)
                            # by REDELIVER or REDELIVER_ALL
                            requested = excuse >= 0 and 5 <= window_code[excuse] <= 6
                            if wrong >= 0 and requested and not is_first:
                                later = _first_later(deliveries, last, entry, consumer, excuse)
                                sent_us = window_t_us[deliveries[later, OPERATION]]
                                if sent_us - window_t_us[excuse] < REQUEST_RACE_US:
                                    wrong, racing = later, excuse
                        elif asked >= 0:
                            later = _later(deliveries, last, entry, consumer, asked)
                            if later >= 0 and before >= 0:
                                count = _note(found, count, now, OVERTAKEN, later, asked, NO_HANDOVER)
                    due = 0
                    if len(delayed_until) > 0:
                        due = delayed_until[entry]
                    if wrong >= 0 and deliveries[wrong, OPERATION] < due:
                        wrong = -1
                    kind = OUT_OF_ORDER
                    if wrong < 0 and is_first and keys[key, KEY_HIGHEST] > entry:
                        wrong = _later(deliveries, keys[key, KEY_LAST_DELIVERY], entry, -1, op + 1)
                        if wrong >= 0 and deliveries[wrong, OPERATION] < due:
                            wrong = -1
                        if wrong >= 0 and deliveries[wrong, OPERATION] < last_empty:
                            kind = PERHAPS_MOVED_BACK
                    if wrong >= 0:
                        count = _note(found, count, now, kind, wrong, racing, NO_HANDOVER)
                    split = _split_by(deliveries, keys, key, entry, consumer)
                    if split >= 0:
                        handover = NO_HANDOVER
                        if runs:
                            beyond = _beyond_handover(deliveries, keys, key, entry, consumer, s[HANDED_OVER])
                            if beyond >= 0:
                                split = beyond
                            else:
                                handover = s[HANDED_BY]
                        count = _note(found, count, now, SPLIT, split, -1, handover)
                    if pair < 0:
                        pair = pair_count
                        pair_count += 1
                        pairs[pair, PAIR_CONSUMER], pairs[pair, PAIR_HIGHEST] = consumer, entry
                        pairs[pair, PAIR_NEXT] = keys[key, KEY_FIRST_PAIR]
                        keys[key, KEY_FIRST_PAIR] = pair
                    pairs[pair, PAIR_HIGHEST] = max(pairs[pair, PAIR_HIGHEST], entry)
                    keys[key, KEY_HIGHEST] = max(keys[key, KEY_HIGHEST], entry)
                double = _open_elsewhere(deliveries, entries, entry, consumer)
                if acked >= 0:
                    handover = NO_HANDOVER
                    if runs:
                        handover = _handed_after_ack(s, deliveries, entry, consumer, before, acked)
                    kind = PERHAPS_AFTER_MOVE if perhaps_moved else AFTER_ACK
                    count = _note(found, count, now, kind, before, acked, handover)
                    if perhaps_moved:  # then it is to be acknowledged again
                        entries[entry, ACK_OPERATION] = -1
                        acked_up_to = min(acked_up_to, entry - 1)
                if before >= 0:
                    ended[now - first] = deliveries[before, END]
                    if ended[now - first] == OPEN and last_rewind > deliveries[before, OPERATION]:
                        ended[now - first] = REWOUND
                    if last_reload > deliveries[before, OPERATION]:
                        ended[now - first] = RELOADED
                    if last_move > deliveries[before, OPERATION]:
                        ended[now - first] = MOVED
                    if double < 0 and acked < 0:
                        ended_by = deliveries[before, END_OPERATION]
                        count = _note(found, count, now, REDELIVERED, before, ended_by, NO_HANDOVER)
                if double >= 0:
                    handover = NO_HANDOVER
                    if runs and deliveries[double, OPERATION] < s[HANDED_OVER]:
                        in_turn = deliveries[before, OPERATION] < s[HANDED_OVER] and entry > s[RUN_HIGHEST]
                        if in_turn or ended[now - first] != OPEN:
                            handover = s[HANDED_BY]
                    count = _note(found, count, now, DOUBLE, double, -1, handover)
                same = _open_at(deliveries, entries, entry, consumer)
                if same >= 0:
                    _close(deliveries, entries, keys, first_at, entry_key, same, REPLACED, op)
                deliveries[now, ENTRY] = entry
                deliveries[now, CONSUMER] = consumer
                deliveries[now, OPERATION] = op
                deliveries[now, BEFORE_OF_ENTRY] = before
                if key >= 0:
                    _follow_in_key(deliveries, now, keys[key, KEY_LAST_DELIVERY])
                    keys[key, KEY_LAST_DELIVERY] = now
                highest_sent, last_to = max(highest_sent, entry), consumer
                sent_any = True
                if runs:
                    s[RUN_HIGHEST] = max(s[RUN_HIGHEST], entry)
                entries[entry, LAST_DELIVERY] = now
                entries[entry, TIMES_SENT] += 1
                entries[entry, ACKED_BEFORE_RELOAD] = 0
                number[now - first] = entries[entry, TIMES_SENT]
                _open(deliveries, entries, keys, first_at, entry_key, now)
                now += 1
        elif code == 3:  # ACK
            for i in range(start, stop):
                entry = op_ordinals[i]
                if entries[entry, ACK_OPERATION] < 0 or entry == last_moved_to:
                    entries[entry, ACK_OPERATION] = op
                if entry == last_moved_to:
                    last_moved_to = -1  # acknowledged in either meaning of the move's position
                while entries[entry, FIRST_OPEN] >= 0:
                    _close(
                        deliveries, entries, keys, first_at, entry_key, entries[entry, FIRST_OPEN], ACKED, op
                    )
        elif code == 4:  # ACK_CUMULATIVE: only where one consumer gets everything
            if single_active:
                highest = -1
                for i in range(start, stop):
                    highest = op_ordinals[i]
                    for entry in range(acked_up_to + 1, highest + 1):
                        if entries[entry, ACK_OPERATION] < 0:
                            entries[entry, ACK_OPERATION] = op
                    acked_up_to = max(acked_up_to, highest)
                if highest >= last_moved_to:
                    last_moved_to = -1
                for holder in range(len(first_at)):
                    at = first_at[holder]
                    while at >= 0:
                        after = deliveries[at, NEXT_AT_CONSUMER]
                        # Not up to what an earlier one reached: that may have come again.
                        if deliveries[at, ENTRY] <= highest:
                            _close(deliveries, entries, keys, first_at, entry_key, at, ACKED, op)
                        at = after
        elif code == 5:  # REDELIVER
            for i in range(start, stop):
                request_count = _request(entries, requests, op_ordinals[i], consumer, op, request_count)
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
                # A seek or a reset disconnects everybody, of Failover and Exclusive only the active consumer. A subscription
                # is deleted when nobody is left.
                is_active = single_active and last_to == consumer
                logged = moves_logged and (deletions_logged or connected_count > 0)
                if (connected_count == 0 or is_active) and not logged:
                    last_empty = op
            how = DISCONNECTED if connected_count > 0 else ALL_LEFT
            while first_at[consumer] >= 0:
                _close(deliveries, entries, keys, first_at, entry_key, first_at[consumer], how, op)
        elif code == 8:  # RELOAD: what the broker had in memory is gone, unstored acks with it
            for holder in range(len(first_at)):
                while first_at[holder] >= 0:
                    _close(deliveries, entries, keys, first_at, entry_key, first_at[holder], RELOADED, op)
            last_reload = op
            s[SENT_TO], s[CHANGES], s[CARRIED], s[FIRST_CHANGE], s[HANDED_OVER] = -1, 0, 0, -1, -1
            for holder in range(len(connected)):
                connected[holder] = False
            connected_count = 0
            for entry in range(width):
                if entries[entry, ACK_OPERATION] >= 0 and entries[entry, ACKED_BEFORE_RELOAD] == 0:
                    entries[entry, ACKED_BEFORE_RELOAD] = 1
                entries[entry, ACK_OPERATION] = -1
            acked_up_to = -1
        elif code == 13:  # MOVED_SOMEWHERE
            last_empty = op
        elif code >= 10:  # PASSED, RESET, MOVED
            upto = min(op_value[index], width - 1)
            for holder in range(len(first_at)):
                at = first_at[holder]
                while at >= 0:
                    after = deliveries[at, NEXT_AT_CONSUMER]
                    if code == 11 or deliveries[at, ENTRY] <= upto:
                        _close(deliveries, entries, keys, first_at, entry_key, at, MOVED, op)
                    at = after
            _pass(entries, 0, upto, op)
            last_moved_to = -1 if s[MOVES_LOGGED] == EXACT else upto
            if code == 10:
                acked_up_to = max(acked_up_to, upto)
            else:
                last_move, last_rewind, rewind_due, acked_up_to = op, op, False, upto
                for entry in range(upto + 1, width):
                    entries[entry, ACK_OPERATION] = -1
                    entries[entry, ACKED_BEFORE_RELOAD] = 0
                keys[:, KEY_HIGHEST] = -1
                if upto >= 0:
                    entries[upto, ACK_OPERATION] = op
    s[PAIRS], s[REQUESTS], s[CONNECTED], s[DELIVERIES] = pair_count, request_count, connected_count, now
    s[ACKED_UP_TO], s[LAST_REWIND], s[REWIND_DUE] = acked_up_to, last_rewind, rewind_due
    s[HIGHEST_SENT], s[SENT_ANY], s[LAST_RELOAD] = highest_sent, sent_any, last_reload
    s[LAST_MOVE], s[LAST_MOVED_TO], s[LAST_EMPTY], s[LAST_TO] = last_move, last_moved_to, last_empty, last_to
    return count
