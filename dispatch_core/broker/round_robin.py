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
from enum import Enum
from itertools import takewhile
from typing import NamedTuple

from dispatch_core.errors import DispatchAuditError


class TurnRule(Enum):
    """The rule by which the entries of a turn are counted; see the module."""

    MESSAGES = "3.x, classic"
    PERMITS = "4.0.0 to 4.0.3"
    ENTRIES = "4.0.4 and later"


class Room(NamedTuple):
    """Room of a consumer, in messages.

    ``below_limit``: until it has as many unacknowledged messages as it may; ``permits.UNLIMITED`` without a limit.
    """

    permits: int
    below_limit: int


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
    if not levels:
        return None
    index = index if index < len(levels) else 0
    level = levels[index]
    better = takewhile(lambda place: levels[place] < level, range(index))
    behind = list(takewhile(lambda place: levels[place] == level, range(index, len(levels))))
    first = levels.index(level)
    before = list(takewhile(lambda place: levels[place] == level, range(first, index)))
    from_index = [*behind, *before]
    never_back = first + len(before) < index
    worse = range(0) if never_back else range(index + len(behind), len(levels))
    found = next((place for place in (*better, *from_index, *worse) if is_available(place)), None)
    if found is None and never_back:
        raise EndlessSearchError(index, level)
    return found


def average_batch(messages: int, entries: int) -> int:
    """Return the messages per entry of a read result, rounded down, at least 1.

    >>> average_batch(7, 2), average_batch(0, 3)
    (3, 1)
    """
    return max(messages // entries, 1)


def entries_of_turn(rule: TurnRule, left: int, room: Room, average: int, batch_size: int) -> int:
    """Return how many entries the consumer of a turn gets, at least 1; there may be fewer.

    Args:
        rule: that of the release.
        left: messages of the read result that nobody has got yet.
        room: what the consumer may take.
        average: messages per entry of the read result.
        batch_size: ``dispatcherMaxRoundRobinBatchSize``.

    Ten batches of ten messages, for a consumer with 10 permits, then for one with 1000:

    >>> [entries_of_turn(rule, 100, Room(10, 1 << 62), 10, 20) for rule in TurnRule]
    [1, 10, 1]
    >>> [entries_of_turn(rule, 100, Room(1000, 1 << 62), 10, 20) for rule in TurnRule]
    [2, 10, 10]
    """
    if rule is TurnRule.MESSAGES:
        return max(min(left, room.permits, room.below_limit, batch_size) // average, 1)
    if rule is TurnRule.PERMITS:
        return max(min(room.permits, _rounded_up(min(max(left, batch_size), room.below_limit), average)), 1)
    return max(min(batch_size, _rounded_up(min(left, room.permits, room.below_limit), average)), 1)


def _rounded_up(messages: int, average: int) -> int:
    return (messages + average - 1) // average
