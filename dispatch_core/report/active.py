"""Find when each consumer of a Failover or Exclusive subscription was connected, and when it was the active one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dispatch_core.report.ring import Change, Ring

#: Consumers with a row of their own, those that were active longest.
MAX_ROWS: Final = 40
#: Times that are drawn, of each kind.
MAX_SPANS: Final = 1_500


@dataclass(frozen=True, slots=True)
class Activity:
    """Times at which consumers were active. Spans are (consumer, begin, end), in microseconds and by time.

    Attributes:
        consumers: names, longest active first; all connections of a name are one row.
        active, connected: at most ``MAX_SPANS`` each.
        active_us: time for which each of ``consumers`` was active.
        nobody_us: time for which no consumer was active, between the first and the last time that one was.
        changes: number of times that the active consumer changed.
        left_out: consumers without a row.
    """

    consumers: tuple[str, ...]
    active: tuple[tuple[str, int, int], ...]
    connected: tuple[tuple[str, int, int], ...]
    active_us: tuple[int, ...]
    nobody_us: int
    changes: int
    left_out: int


def activity(ring: Ring, changes: Sequence[Change], span_us: tuple[int, int]) -> Activity:
    """Reduce the owners of a single-active dispatcher (the active consumer owns everything), and its joins and leaves."""
    spans = sorted(
        (since, until, ring.owners[owner])
        for owner, since, until in zip(
            ring.owner.tolist(), ring.from_us.tolist(), ring.until_us.tolist(), strict=True
        )
    )
    total: defaultdict[str, int] = defaultdict(int)
    nobody_us = taken_over = 0
    for at, (since, until, name) in enumerate(spans):
        total[name] += until - since
        if at:
            nobody_us += max(0, since - spans[at - 1][1])
            taken_over += name != spans[at - 1][2]
    connected = _connected(changes, span_us)
    for name, _since, _until in connected:
        total[name] += 0
    ranked = sorted(total, key=lambda name: (-total[name], name))
    kept = tuple(ranked[:MAX_ROWS])
    shown = set(kept)
    return Activity(
        consumers=kept,
        active=tuple((name, since, until) for since, until, name in spans if name in shown)[:MAX_SPANS],
        connected=tuple(span for span in connected if span[0] in shown)[:MAX_SPANS],
        active_us=tuple(total[name] for name in kept),
        nobody_us=nobody_us,
        changes=taken_over,
        left_out=len(ranked) - len(kept),
    )


def _connected(changes: Sequence[Change], span_us: tuple[int, int]) -> list[tuple[str, int, int]]:
    """Times for which at least one connection of a name was there; a leave without its join began with the interval."""
    start_us, end_us = span_us
    connections: defaultdict[str, int] = defaultdict(int)
    since: dict[str, int] = {}
    found = []

    def add(name: str, begin: int, end: int) -> None:
        begin, end = max(begin, start_us), min(end, end_us)
        if end > begin:
            found.append((name, begin, end))

    load = None
    for change in changes:
        if load not in (None, change.incarnation):
            # The topic was loaded anew: who was connected before is not any more.
            for name, begin in since.items():
                add(name, begin, change.t_us)
            connections.clear()
            since.clear()
        load = change.incarnation
        if change.joined:
            connections[change.name] += 1
            since.setdefault(change.name, change.t_us)
        elif connections[change.name] > 1:
            connections[change.name] -= 1
        else:
            connections[change.name] = 0
            add(change.name, since.pop(change.name, start_us), change.t_us)
    for name, begin in since.items():
        add(name, begin, end_us)
    return sorted(found, key=lambda span: (span[1], span[2], span[0]))
