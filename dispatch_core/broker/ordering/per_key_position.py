"""Last sent position of each key (PIP-282, alternative 1; #20179): no release has it.

Theory of operation
-------------------
PIP-282 holds a joining consumer to the last sent position of the *subscription*: of every key it gets nothing beyond it
until all up to it is acknowledged. Its first alternative keeps that position *per key*. A joining consumer remembers, for
every key that is not acknowledged entirely, the last position that was sent. Of such a key it gets only entries up to that
position (redeliveries) until mark-delete has reached it; other keys are free at once, so one slow key holds back no other.
Where several consumers have joined recently, each is held to the lowest position that they remember of the key, as PIP-282
does in replays.

Example: 1:6 of key A is with c1, 1:9 to 1:11 of key B are with c2, and 1:7, 1:8 of A were not sent. c3 joins and remembers
{A: 1:6, B: 1:11}. Of A it may be sent 1:6 again, but not 1:7. Of a key C it may be sent anything.

The price is memory: every recently joined consumer has a position for each key in flight ("vulnerable to an increase in
keys"). ``tracked`` counts them. Keys are told apart by their sticky hash here; the proposal uses the bytes of the key, which
can only be more.

Source: PIP-282 (Alternatives), #20179.
"""

from __future__ import annotations

from dispatch_core.broker.pluggable import OrderingRule, View


class PerKeyPositions(OrderingRule):
    """The positions of recently joined consumers, by consumer and sticky hash."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._last: dict[int, int] = {}  # hash → last entry sent, while it is not acknowledged
        self._joined: dict[int, dict[int, int]] = {}  # consumer → its positions when it joined
        self._dropped_to = -2  # mark-delete when positions up to it were dropped

    def joined(self, consumer: int) -> None:
        """Remember the last sent position of every key in flight, if others are connected."""
        self._drop_reached()
        if len(self._view.consumers()) > 1 and self._last:
            self._joined[consumer] = dict(self._last)

    def left(self, consumer: int) -> None:
        """Forget what a consumer remembered; a consumer that is alone is free."""
        self._joined.pop(consumer, None)
        if len(self._view.consumers()) < 2:
            self._joined.clear()

    def sent(self, consumer: int, sticky_hash: int, entry: int) -> None:
        """Move the last sent position of the key."""
        self._last[sticky_hash] = max(entry, self._last.get(sticky_hash, entry))

    def may_send(self, consumer: int, sticky_hash: int, entry: int, ahead: int) -> bool:
        """True if the consumer remembers nothing of the key, or the entry was sent before it joined."""
        self._drop_reached()
        if sticky_hash not in self._joined.get(consumer, ()):
            return True
        return entry <= min(positions.get(sticky_hash, entry) for positions in self._joined.values())

    def tracked(self) -> int:
        """Return the number of positions kept, over all consumers and of all keys in flight."""
        return len(self._last) + sum(map(len, self._joined.values()))

    def _drop_reached(self) -> None:
        reached = self._view.mark_delete()
        if reached == self._dropped_to:
            return
        self._dropped_to = reached
        self._last = {key: entry for key, entry in self._last.items() if entry > reached}
        for positions in self._joined.values():
            for key in [key for key, entry in positions.items() if entry <= reached]:
                del positions[key]
        self._joined = {consumer: positions for consumer, positions in self._joined.items() if positions}
