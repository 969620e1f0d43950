"""Find deliveries that differ from the rules only as a consequence of another finding.

Rules that hold a recently joined consumer back look at all entries, whatever their key. Example: 3:7 is never acknowledged,
a finding ``ack_hole``. By the rule, a consumer that joined when 3:9 had been read gets nothing from 3:10 on for good. If
the broker sends it entries all the same, dozens of deliveries differ from the rule, although 3:7 is the only fault. In the
same way an entry that was sent out of turn makes the consumer wait for entries that had seemingly been read by then.

Only later entries can be consequences, since the limit of a recently joined consumer lies behind what had been read. And
only faults that nothing explains have consequences: where the rules themselves let a key overtake (the finding has a
``cause``), the replay did as the broker did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dispatch_core.broker import gates
from dispatch_core.verify.without_trace import positions
from dispatch_core.verify.without_trace.key_shared import KeySharedFold
from dispatch_core.verify.without_trace.single_active import SingleActiveFold

RECENTLY_JOINED: Final = KeySharedFold.reasons[gates.RECENTLY_JOINED]
SKIPS: Final = SingleActiveFold.reasons[positions.SKIPS]
GOES_BACK: Final = SingleActiveFold.reasons[positions.GOES_BACK]
NOT_ACTIVE: Final = SingleActiveFold.reasons[positions.NOT_ACTIVE]

#: Kinds of findings about entries that were not sent, or not acknowledged, until the last line of the evidence.
_UNFINISHED: Final = ("never_delivered", "ack_hole", "stuck_key", "stuck_consumer", "stuck_subscription")
#: Kinds of findings about entries that were sent at the wrong time or to the wrong consumer.
_OUT_OF_TURN: Final = ("out_of_order", "split_key", "double_outstanding", "duplicate_after_ack")

Position = tuple[int, int]


class Consequences:
    """Possible consequences of ``anomalies``, the findings of a log other than divergences.

    ``elsewhere``: entries that Failover or Exclusive sent to a consumer that was not active: position and line.
    """

    def __init__(
        self, anomalies: Iterable[Mapping[str, Any]], elsewhere: Iterable[tuple[Position, int]] = ()
    ) -> None:
        self._unfinished: list[tuple[Position, int, int]] = []  # the earliest, from line, to line
        self._out_of_turn = [(position, position, seq) for position, seq in elsewhere]  # from, to, from line
        for row in anomalies:
            first = row["seqs"][0]
            named = [_position(text) for text in row["positions"]]
            if named and row["kind"] in _UNFINISHED:
                self._unfinished.append((min(named), first, row["seqs"][-1]))
            elif named and row["kind"] in _OUT_OF_TURN and row["cause"] is None:
                self._out_of_turn.append((min(named), max(named), first))

    def explain(self, position: Position, seq: int, reason: str | None) -> bool:
        """Check whether the entry sent in line ``seq`` differs from the rules, for ``reason``, as a consequence."""
        if reason == SKIPS:
            return any(first < position for first, *_ in [*self._unfinished, *self._out_of_turn])
        if reason == GOES_BACK:
            return any(position < last and since <= seq for _, last, since in self._out_of_turn)
        if reason != RECENTLY_JOINED:
            return False
        waits = any(first < position and since <= seq <= until for first, since, until in self._unfinished)
        return waits or any(first < position and since < seq for first, _, since in self._out_of_turn)


def _position(text: str) -> Position:
    ledger, _, entry = text.rpartition(":")
    return int(ledger), int(entry)


def unfinished(anomalies: Iterable[Mapping[str, Any]], positions: Iterable[str]) -> bool:
    """Check for a finding that one of these entries was not sent, or not acknowledged."""
    named = set(positions)
    return any(row["kind"] in _UNFINISHED and not named.isdisjoint(row["positions"]) for row in anomalies)


def holders_of_holes(anomalies: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return, by consumer, the line from which on it holds an entry that is never acknowledged."""
    since: dict[int, int] = {}
    for row in anomalies:
        if row["kind"] == "ack_hole":
            for consumer in row["consumers"]:
                since[consumer] = min(since.get(consumer, row["seqs"][0]), row["seqs"][0])
    return since
