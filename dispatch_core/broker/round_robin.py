"""Round robin of Shared: which consumer has the next turn, and how many entries it gets.

Theory of operation
-------------------
A round hands a read result to the consumers in *turns*. A turn goes to the next consumer that is *available*: it has permits
and is not blocked on unacknowledged messages. It gets the first entries that are left. The round ends when none are left or
nobody is available; what is left then goes to the replay set.

*Who is next.* The dispatcher remembers an index into its list of consumers. The list is sorted by priority level (0 comes
first), and else by time of joining. The index begins at 0 and is one behind the consumer that had the last turn, in this
round or an earlier one. Three places are looked at, in this order:

1. if the consumer at the index has another level than 0: the consumers of better levels, the first one available;
2. the consumers of its level, from the index on and then from the first of that level;
3. the consumers of worse levels, in list order.

An index behind the end of the list is 0. Nobody tells the index that a consumer has joined or left: the list moves under it.
It is kept until the dispatcher is made anew. Nothing in this choice is random.

*A list that is not sorted.* The dispatcher of a non-persistent topic keeps its consumers in the order in which they joined,
whatever their levels, and uses the same search. It then compares neighbours, not levels: step 1 ends at the first consumer
of no better level, step 2 at the first one of another level, and step 3 takes everybody behind. So a consumer that could
take an entry may not be found, and there are lists that the search never leaves (``EndlessSearchError``).

*How many entries.* Permits and the room below the limit of unacknowledged messages count messages, a turn hands out entries.
The two are converted by the average batch of the read result (not of the consumer), rounded down, at least 1. A turn has one
entry at least. *Size* is ``dispatcherMaxRoundRobinBatchSize``.

==========================  ==================================================================  =========================
releases                    entries of a turn                                                   source
==========================  ==================================================================  =========================
3.x, classic,               min(messages left, permits, room, size) / average, rounded down     #7266, #16670
4.0.0-preview.1
4.0.0 to 4.0.3              min(permits, min(max(messages left, size), room) / average          PIP-379 (#23352)
                            rounded up): the size limits nothing
4.0.4, 4.1 and later        min(size, min(messages left, permits, room) / average rounded up):  #24092, #24117
                            the size counts entries
==========================  ==================================================================  =========================

A connection that is not writable counts as one permit. No log shows that, but for a connection that breaks
(``SharedDispatcher.connection_broke``).

Source: AbstractDispatcherMultipleConsumers.getNextConsumer, PersistentDispatcherMultipleConsumers(Classic)
.trySendMessagesToConsumers.

The broker's own example: consumers with the levels 0, 0, 0, 1, 1 and the permits 2, 1, 1, 2, 1.

>>> levels, permits, index, turns = [0, 0, 0, 1, 1], [2, 1, 1, 2, 1], 0, []
>>> while (at := next_consumer(levels, lambda consumer: permits[consumer] > 0, index)) is not None:
...     permits[at], index = permits[at] - 1, at + 1
...     turns.append(f"C{at + 1}")
>>> turns
['C1', 'C2', 'C3', 'C1', 'C4', 'C5', 'C4']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_with_caller
from dispatch_core.broker.permits import is_available as has_room
from dispatch_core.broker.permits import unacked_room
from dispatch_core.broker.state import (
    CLOSED,
    I8,
    I32,
    I64,
    N_CONSUMERS,
    NOBODY,
    ROUND_ROBIN_INDEX,
    TURN_RULE,
    TURN_SIZE,
    WIDE,
    State,
)
from dispatch_core.errors import DispatchAuditError

#: The answer of ``next_place`` where the broker searches a list that is not sorted without end.
ENDLESS: Final = -2


class TurnRule(IntEnum):
    """The rule by which the entries of a turn are counted; see the module."""

    MESSAGES = 0  # 3.x, classic
    PERMITS = 1  # 4.0.0 to 4.0.3
    ENTRIES = 2  # 4.0.4 and later


_MESSAGES: Final = int(TurnRule.MESSAGES)
_PERMITS: Final = int(TurnRule.PERMITS)


class EndlessSearchError(DispatchAuditError):
    """The broker searches a list that is not sorted without end, until a consumer of the level at the index is available.

    The scan comes back to the first consumer of the level, meets another level before the index, and begins again.

    >>> next_consumer([0, 1, 0], lambda place: place == 1, 2)
    Traceback (most recent call last):
    dispatch_core.broker.round_robin.EndlessSearchError: no consumer of level 0 is available from place 2 on, ...
    """

    def __init__(self, index: int, level: int) -> None:
        super().__init__(
            f"no consumer of level {level} is available from place {index} on, and the broker searches on without end: "
            "consumers of several priority levels joined in turns. Give all consumers of a non-persistent topic one "
            "priority level"
        )


# --- who is next -----------------------------------------------------------------------------------------------------


@compiled
def next_place(order: I32, levels: I64, available: I8, count: int, index: int) -> int:
    """Return the place in a list of ``count`` consumers of the one that has the next turn, NOBODY or ENDLESS.

    ``order``: the list; ``levels``, ``available``: of each consumer; ``index``: the remembered one.
    """
    if count == 0:
        return NOBODY
    if index >= count:
        index = 0
    level = levels[order[index]]
    place = 0
    while place < index and levels[order[place]] < level:  # better levels
        if available[order[place]] == 1:
            return place
        place += 1
    behind = index
    while behind < count and levels[order[behind]] == level:
        if available[order[behind]] == 1:
            return behind
        behind += 1
    place = 0
    while levels[order[place]] != level:
        place += 1
    while place < index and levels[order[place]] == level:
        if available[order[place]] == 1:
            return place
        place += 1
    if place < index:
        return ENDLESS  # another level is before the index
    for place in range(behind, count):  # worse levels
        if available[order[place]] == 1:
            return place
    return NOBODY


def next_consumer(levels: Sequence[int], is_available: Callable[[int], bool], index: int) -> int | None:
    """Return the place in the list of the consumer that has the next turn; ``None`` if nobody is available.

    ``levels``: priority level of each consumer, in list order; ``is_available(place)``; ``index``: the remembered one.

    The third of three has the next turn, then the first; if the first has no permits, the second:

    >>> next_consumer([0, 0, 0], lambda _: True, 2), next_consumer([0, 0, 0], lambda _: True, 3)
    (2, 0)
    >>> next_consumer([0, 0, 0], lambda place: place != 0, 3)
    1

    A consumer of level 0 has permits again, so that it comes before those of level 1:

    >>> next_consumer([0, 1, 1], lambda _: True, 2)
    0

    A list that is not sorted: the consumer of level 1 has joined first. Behind the index nobody is left, so that the search
    ends with nobody although that consumer could take an entry:

    >>> next_consumer([1, 0], lambda place: place == 0, 1)

    Raises ``EndlessSearchError`` where the broker searches such a list without end.
    """
    count = len(levels)
    available = np.array([is_available(place) for place in range(count)], np.uint8)
    place = next_place(np.arange(count, dtype=np.int32), np.array(levels, np.int64), available, count, index)
    if place == ENDLESS:
        raise EndlessSearchError(index, levels[index])
    return None if place == NOBODY else int(place)


@compiled
def take_turn(st: State) -> int:
    """Return the slot of the consumer that has the next turn, and move the index behind it; NOBODY if nobody has.

    Nobody has in a dispatcher that is closed. Its list is sorted, so the search always ends.

    >>> from dispatch_core.broker.state import example_state
    >>> st = example_state(consumers=3)
    >>> st.permits[:] = 1, 0, 1
    >>> [int(take_turn(st)) for _ in range(3)]
    [0, 2, 0]
    """
    if st.s[CLOSED] == 1:
        return NOBODY
    for at in range(st.s[N_CONSUMERS]):
        slot = st.order[at] + WIDE
        st.available[slot] = int(has_room(st, slot))
    place = next_place(st.order, st.level, st.available, st.s[N_CONSUMERS], st.s[ROUND_ROBIN_INDEX])
    if place < 0:
        return NOBODY
    st.s[ROUND_ROBIN_INDEX] = place + 1
    return st.order[place] + WIDE


# --- how many entries ------------------------------------------------------------------------------------------------


@compiled_with_caller
def average_batch(messages: int, entries: int) -> int:
    """Return the messages per entry of a read result, rounded down, at least 1.

    >>> average_batch(7, 2), average_batch(0, 3), average_batch(0, 0)
    (3, 1, 1)
    """
    return max(messages // max(entries, 1), 1)


@compiled
def entries_of_turn(rule: int, left: int, permits: int, room: int, average: int, size: int) -> int:
    """Return how many entries the consumer of a turn gets, at least 1; there may be fewer.

    Args:
        rule: a ``TurnRule``, that of the release.
        left: messages of the read result that nobody has got yet.
        permits: of the consumer.
        room: messages until the consumer has as many unacknowledged ones as it may; ``permits.UNLIMITED`` without a limit.
        average: messages per entry of the read result.
        size: ``dispatcherMaxRoundRobinBatchSize``.

    Ten batches of ten messages, for a consumer with 10 permits, then for one with 1000:

    >>> [int(entries_of_turn(rule, 100, 10, 1 << 62, 10, 20)) for rule in range(3)]
    [1, 10, 1]
    >>> [int(entries_of_turn(rule, 100, 1000, 1 << 62, 10, 20)) for rule in range(3)]
    [2, 10, 10]
    """
    if rule == _MESSAGES:
        return max(min(left, permits, room, size) // average, 1)
    if rule == _PERMITS:
        return max(min(permits, _rounded_up(min(max(left, size), room), average)), 1)
    return max(min(size, _rounded_up(min(left, permits, room), average)), 1)


@compiled_with_caller
def _rounded_up(messages: int, average: int) -> int:
    return (messages + average - 1) // average


@compiled
def size_of_turn(st: State, slot: int, is_writable: bool, left: int, average: int) -> int:
    """Return how many entries a consumer gets now, see ``entries_of_turn``; one that is not writable counts as one permit.

    >>> from dispatch_core.broker.state import TURN_RULE, TURN_SIZE, example_state
    >>> st = example_state()
    >>> st.s[TURN_RULE], st.s[TURN_SIZE], st.permits[0] = TurnRule.ENTRIES, 20, 8
    >>> int(size_of_turn(st, 0, True, 10, 1)), int(size_of_turn(st, 0, False, 10, 1))
    (8, 1)
    """
    permits = st.permits[slot] if is_writable else 1 + WIDE
    return entries_of_turn(st.s[TURN_RULE], left, permits, unacked_room(st, slot), average, st.s[TURN_SIZE])
