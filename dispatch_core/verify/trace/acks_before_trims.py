"""Find the lines of clients' threads that come before a trim.

A *trim* removes the pending acks of all entries that mark-delete has passed, one consumer after the other. Until 4.0.10, 4.1
and 4.2.1 a read attempt begins with it; in later releases it follows a move of the cursor (``cursor_moves``). Meanwhile
clients' threads go on. An ack may take effect right before the trim of its consumer; the trim then finds one entry less.

Acks and trims hold the lock of the consumer's pending acks when they write their lines, so these stand in the order of their
effects (PendingAcksMap.remove, .removeAllUpTo). An ack has ``pending_ack_removed`` and a release, a trim has releases only.
Thus ``pending_ack_removed`` of a passed entry proves that the ack came first. Behind the first release of the trim there
cannot be one.

Entries 0 and 1 are passed. Consumer 1 acknowledges entry 0, then the trim removes entry 1:

>>> lines = [
...     Line(7, 0, "ack", 1, {"positions": [0]}, {}),
...     Line(8, 0, "pending_ack_removed", 1, {}, {"positions": [0]}),
...     Line(9, 0, "draining_release", 1, {}, {"hash": 500, "closing": False}),
...     Line(10, 0, "draining_release", 1, {}, {"hash": 500, "closing": False}),
... ]
>>> lines_before_trim(enumerate(lines), 1, {0: 500, 1: 500}.get, [])
[0, 1, 2]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from dispatch_core.broker.multiple_consumers import Released
from dispatch_core.verify.inputs import Line

#: Kinds that threads of clients and of the cursor write.
_OF_OTHER_THREADS: Final = frozenset({"ack", "flow", "flow_counted", "mark_delete"})
#: Kinds that the program which drives a recording writes, or that only say what it asks for.
_OF_A_DRIVER: Final = frozenset({"step", "cursor_op", "cursor_state"})


def lines_before_trim(
    lines: Iterable[tuple[int, Line]],
    mark_delete: int,
    hash_of: Callable[[int], int | None],
    owed: Iterable[Released],
) -> list[int]:
    """Return the indexes of the lines to take before the trim: up to the last removal that came first, and its release.

    Args:
        lines: those from the beginning of the attempt, or from the first release of the trim on, with their indexes.
        mark_delete: the last entry that the trim removes.
        hash_of: returns the hash of a pending entry, ``None`` for one that is pending on nobody.
        owed: releases by acks in front of these lines whose lines are to come.
    """
    unmet: Counter[tuple[int | None, int]] = Counter((item.consumer, item.hash) for item in owed)
    of_passed: set[tuple[int | None, int]] = set()
    trimmed: set[int | None] = set()
    others: list[int] = []
    count = 0  # so many of ``others`` come before the trim
    for at, line in lines:
        if line.kind == "pending_ack_removed":
            others.append(at)
            for entry in line.recorded["positions"]:
                hash_value = hash_of(entry)
                if hash_value is None:
                    continue
                unmet[line.consumer, hash_value] += 1
                if entry <= mark_delete and line.consumer not in trimmed:
                    of_passed.add((line.consumer, hash_value))
                    count = len(others)
        elif line.kind == "draining_release":
            key = line.consumer, line.recorded["hash"]
            if not unmet[key]:
                trimmed.add(line.consumer)
                continue
            unmet[key] -= 1
            others.append(at)
            if key in of_passed and line.consumer not in trimmed:
                count = len(others)
        elif line.kind in _OF_OTHER_THREADS:
            others.append(at)
        elif line.kind not in _OF_A_DRIVER:
            break
    return others[:count]
