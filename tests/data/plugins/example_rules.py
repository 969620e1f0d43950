"""An example package with a selector and an ordering rule, found by its entry points."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_core.broker.pluggable import OrderingRule, RangesSelector, View


class ByName(RangesSelector):
    """Equal parts of the hash space in the order of the consumers' names."""

    def ranges(self, consumers: Sequence[tuple[int, str]]) -> list[tuple[int, int, int]]:
        """Return a part for each consumer."""
        count = len(consumers)
        in_order = sorted(consumers, key=lambda consumer: consumer[1])
        return [
            (at * 65536 // count, (at + 1) * 65536 // count - 1, number)
            for at, (number, _) in enumerate(in_order)
        ]


class OneInFlight(OrderingRule):
    """At most one entry of a key is pending at a time, whoever its owner is."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._last: dict[int, int] = {}  # hash → the entry that was sent last

    def may_send(self, consumer: int, sticky_hash: int, entry: int, ahead: int) -> bool:
        """True if nothing of the hash is pending, or about to be sent."""
        last = self._last.get(sticky_hash)
        return ahead == 0 and (last is None or self._view.holder(last) is None)

    def sent(self, consumer: int, sticky_hash: int, entry: int) -> None:
        """Remember the entry."""
        self._last[sticky_hash] = entry

    def tracked(self) -> int:
        """Return the number of keys remembered."""
        return len(self._last)


def by_name(view: View) -> ByName:
    """Make the selector."""
    return ByName()


def one_in_flight(view: View) -> OneInFlight:
    """Make the ordering rule."""
    return OneInFlight(view)


def fails(view: View) -> OrderingRule:
    """Fail, as a plug-in may."""
    raise KeyError("no such table")


NOT_A_FUNCTION = 7
