"""Keep the effects of commands on counters of consumers that the lines so far leave open.

A flow raises its consumer's permits between the lines ``flow`` and ``flow_counted``. An ack lowers the counter of
unacknowledged messages between ``pending_ack_removed`` and the next line of its connection; where removals are not logged,
from the ``ack`` line on. A value that a trace shows is sampled before its line is written: a command of another thread whose
effect is logged between the two may be missing in it. So an effect that was closed after sampling began is open for it.

Two flows of 1 and 2 permits; the first is counted at line 11:

>>> effects = OpenEffects()
>>> effects.flow(connection=1, seq=10, permits=1)
>>> effects.close(connection=1, seq=11)
>>> effects.flow(connection=1, seq=12, permits=2)
>>> effects.permits_missing(1, since=11), effects.permits_missing(1, since=9)
({2: 12}, {2: 12, 3: 10})
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

#: Number of effects of one connection that are kept; older ones are closed.
_MOST: Final = 64


@dataclass(slots=True)
class _Effect:
    seq: int  # of the command
    consumer: int  # whose counters it changes
    permits: int  # by which they rise
    unacked: int  # messages by which the counter falls
    entry: int  # which it acknowledges; -1 = none
    closed_at: int | None = None  # seq of the line that shows it to be over
    at_cursor: int | None = None  # seq of the line that shows that mark-delete has passed its entry


class OpenEffects:
    """Effects of each connection's commands, in order. A value that they give comes with the ``seq`` of a command."""

    def __init__(self) -> None:
        self._of: dict[int, list[_Effect]] = {}
        # Acknowledgements that mark-delete has not passed, with their entries, as a heap, and how many there ever were.
        self._above: list[tuple[int, int, _Effect]] = []
        self._acks = 0

    def flow(self, connection: int, seq: int, permits: int) -> None:
        """Take a flow that arrived at line ``seq``."""
        self._add(connection, _Effect(seq, connection, permits, 0, -1))

    def ack(
        self, connection: int, seq: int, holder: int, messages: int, *, entry: int = -1, permits: int = 0
    ) -> None:
        """Take an acknowledgement, or a redelivery request, of what ``holder`` holds; ``permits``: parked ones it frees."""
        self._add(connection, _Effect(seq, holder, permits, messages, entry))

    def _add(self, connection: int, effect: _Effect) -> None:
        effects = self._of.setdefault(connection, [])
        effects.append(effect)
        if effect.entry >= 0:
            self._acks += 1
            heappush(self._above, (effect.entry, self._acks, effect))
        if len(effects) > _MOST:
            del effects[: len(effects) - _MOST]

    def close(self, connection: int, seq: int) -> None:
        """Take a line of a connection: what it did before is over."""
        for effect in reversed(self._of.get(connection, ())):
            if effect.closed_at is not None:
                break
            effect.closed_at = seq

    def passed(self, entry: int, seq: int) -> None:
        """Take a line that shows that mark-delete has reached ``entry``: acknowledgements up to it are at the cursor."""
        while self._above and self._above[0][0] <= entry:
            heappop(self._above)[2].at_cursor = seq

    def unfinished_acks(self, up_to: int) -> list[int]:
        """Return the lines of acks of entries up to ``up_to`` behind which their connection has no command yet."""
        last = [effects[-1] for effects in self._of.values() if effects]
        return [effect.seq for effect in last if effect.closed_at is None and 0 <= effect.entry <= up_to]

    def ack_of(self, entry: int) -> int | None:
        """Return the line of the last acknowledgement of an entry that is known; ``None`` = none is."""
        known = (effect.seq for effects in self._of.values() for effect in effects if effect.entry == entry)
        return max(known, default=None)

    def forget(self, consumer: int) -> None:
        """Forget a connection that is gone."""
        self._of.pop(consumer, None)

    def drop(self, count: int) -> None:
        """Lower the ordinals of acknowledged entries; the first ``count`` entries are dropped."""
        for effect in (effect for effects in self._of.values() for effect in effects):
            effect.entry = effect.entry - count if effect.entry >= count else -1
        kept = (item for item in self._above if item[0] >= count)
        self._above = sorted((entry - count, number, effect) for entry, number, effect in kept)

    def permits_missing(self, consumer: int, since: int) -> dict[int, int]:
        """Return numbers of permits that a value sampled after line ``since`` may lack."""
        return self._missing(since, lambda effect: effect.permits if effect.consumer == consumer else 0)

    def unacked_missing(self, consumer: int, since: int) -> dict[int, int]:
        """Return numbers of messages by which a counter sampled after line ``since`` may be higher."""
        return self._missing(since, lambda effect: effect.unacked if effect.consumer == consumer else 0)

    def first_entries_missing(self, since: int) -> dict[int, int]:
        """Return entries of which one may be the first whose acknowledgement has not reached the cursor yet."""
        found: dict[int, int] = {}
        for effects in self._of.values():
            lowest = None
            for effect in self._on_their_way(effects, since):
                if lowest is None or effect.entry < lowest:
                    lowest = effect.entry
                    found.setdefault(lowest, effect.seq)
        return found

    def any_before(self, seq: int, since: int) -> bool:
        """Check for an acknowledgement from before line ``seq`` that a position sampled after line ``since`` may lack."""
        return any(
            effect.seq < seq for effects in self._of.values() for effect in self._on_their_way(effects, since)
        )

    def _missing(self, since: int, amount: Callable[[_Effect], int]) -> dict[int, int]:
        """Return the sums of the last open effects of each connection: each lacks its effects in their order."""
        sums: dict[int, int] = {0: 0}
        for effects in self._of.values():
            own, total = {0: 0}, 0
            for effect in self._open(effects, since):
                by = amount(effect)
                if by:
                    total += by
                    own.setdefault(total, effect.seq)
            if len(own) > 1:
                sums = {
                    low + high: max(seq, other) for low, seq in sums.items() for high, other in own.items()
                }
        del sums[0]
        return sums

    def _on_their_way(self, effects: list[_Effect], since: int) -> Iterator[_Effect]:
        """Yield the open acknowledgements of a connection that may not have reached the cursor, the last one first."""
        for effect in self._open(effects, since):
            if effect.entry >= 0 and (effect.at_cursor is None or effect.at_cursor > since):
                yield effect

    def _open(self, effects: list[_Effect], since: int) -> Iterator[_Effect]:
        """Yield the effects of a connection that are open, the last one first."""
        for effect in reversed(effects):
            if effect.closed_at is not None and effect.closed_at <= since:
                return
            yield effect
