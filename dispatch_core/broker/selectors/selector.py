"""The interface of the Key_Shared selectors (StickyKeyConsumerSelector), and the broker's notion of *the same* consumer.

A consumer has an identity (the object, here its number) and an ``equals`` (consumer id and client address). On a healthy
broker no two connected consumers are equal. Where two are, the selectors differ in which of them they look at, so each
selector is given ``same``, the broker's ``equals``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dispatch_core.broker.selectors.assignments import Assignments, Impacted, Range

#: The broker's ``equals`` of two consumers.
Same = Callable[[int, int], bool]
#: The closed ranges a consumer announces: None = no key-shared metadata, empty = metadata without ranges.
Announced = Sequence[Range] | None

V = TypeVar("V")


class Selector(Protocol):
    """The assignment of sticky key hashes to consumers. Consumers are the log's numbers."""

    def add(self, consumer: int, name: str, ranges: Announced = None) -> Impacted:
        """Add a consumer; returns the ranges that moved (none where consumers share points, 3.0.0 to 3.3.1).

        Raises ``SelectorRefusedError``, with nothing changed, where the broker refuses it.
        """
        ...

    def remove(self, consumer: int) -> Impacted:
        """Remove a consumer; returns the ranges that moved. A consumer it does not know changes nothing."""
        ...

    def select(self, sticky_hash: int) -> int | None:
        """Return the consumer that owns ``sticky_hash``; None for nobody."""
        ...

    def select_array(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Apply ``select`` to a whole array; -1 for nobody."""
        ...

    def places(self, sticky_hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places of hashes in the space that ``Impacted.touched`` counts in: the hash itself, or its slot."""
        ...

    def assignments(self) -> Assignments:
        """Return the range report, in the format of the release."""
        ...


def equal_key(mapping: dict[int, V], consumer: int, same: Same) -> int | None:
    """Return the key of ``mapping`` that equals ``consumer``, as a Java map would find it; None for none."""
    if consumer in mapping:
        return consumer
    if same is operator.eq:  # by identity, which the map itself knows
        return None
    return next((key for key in mapping if same(key, consumer)), None)


def any_equal(consumers: Sequence[int], consumer: int, same: Same) -> bool:
    """True if ``consumer`` equals any of ``consumers``."""
    return consumer in consumers if same is operator.eq else any(same(other, consumer) for other in consumers)


def grouped(ranges: Iterable[tuple[int, int, int]], same: Same) -> tuple[tuple[int, int, int], ...]:
    """Report ranges as 3.x does: a map from consumer to ranges, so the first of equal consumers has all their ranges.

    >>> grouped([(0, 9, 2), (10, 19, 1), (20, 29, 3)], same=lambda first, second: {first, second} <= {1, 2})
    ((0, 9, 2), (10, 19, 2), (20, 29, 3))
    """
    first: dict[int, int] = {}  # consumer → the first consumer that equals it
    out = []
    for start, end, consumer in ranges:
        if consumer not in first:
            equal = equal_key(first, consumer, same)
            first[consumer] = consumer if equal is None else first[equal]
        out.append((start, end, first[consumer]))
    return tuple(sorted(out))


def utf16(name: str) -> bytes:
    r"""Return a sort key equal to Java's String order (UTF-16 code units), in which ``consumer-10`` comes before
    ``consumer-2``.

    >>> sorted(["consumer-2", "\ufffd", "consumer-10", "\U0001f600"], key=utf16)
    ['consumer-10', 'consumer-2', '😀', '�']
    """
    return name.encode("utf-16-be", "surrogatepass")
