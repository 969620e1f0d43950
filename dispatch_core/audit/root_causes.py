"""Group the findings that one event has caused, and write one sentence for each group.

A consumer that takes over the hashes of another one may get a hundred keys out of order at once: a hand-over, or a restart.
A consumer without permits keeps all its keys waiting. Such findings have the consumer in common that got, or should get, the
messages. Within a load of the topic a number stands for one time that a consumer was connected.

=============================================  ====================================================
findings                                       are of one cause if they have the same
=============================================  ====================================================
of order and duplicates                        consumer that got the messages
of waits, losses and permits                   kind, reason and consumer
all others                                     kind
=============================================  ====================================================

>>> rows = [
...     {"kind": kind, "key": key, "positions": [position], "consumers": [6, 5], "t_us": t_us, "explanation": f"{key} …"}
...     for kind, key, position, t_us in [
...         ("split_key", "key-32", "21:55", 1795249463_000_000),
...         ("split_key", "key-27", "21:58", 1795249463_200_000),
...         ("out_of_order", "key-32", "21:55", 1795249463_400_000),
...     ]
... ]
>>> [group] = by_root_cause(rows)
>>> print(group.sentence(ConsumerNames({6: "w2", 5: "w1"})))
1 out_of_order, 2 split_key at w2, from 08:24:23.000 to 08:24:23.400: 2 entries of 2 keys, which w1 held; the worst are \
key-32 and key-27: key-32 …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatch_core.audit.catalogue import (
    COMPLETENESS,
    DUPLICATE_DELIVERY,
    KIND_ORDER,
    KINDS,
    PER_KEY_ORDER,
)
from dispatch_core.audit.sentences.lists import counted, counts_by_name, listed
from dispatch_core.audit.sentences.names import ConsumerNames, shown
from dispatch_core.times import clock

#: Keys, or entries, that a sentence names.
_MOST_NAMED: Final = 3
NO_NAMES: Final = ConsumerNames({})


@dataclass(frozen=True, slots=True)
class RootCause:
    """Findings (rows of ``anomalies``) that one event has caused, in the order in which they were given, the worst first."""

    rows: tuple[Mapping[str, Any], ...]

    def sentence(self, names: ConsumerNames = NO_NAMES) -> str:
        """Say what was found: how many findings of which kinds, for how many entries, keys and consumers, and the worst."""
        first = self.rows[0]
        if len(self.rows) == 1:
            return str(first["explanation"])
        kinds = Counter(row["kind"] for row in self.rows)
        counts = counts_by_name({kind: kinds[kind] for kind in sorted(kinds, key=KIND_ORDER.__getitem__)})
        consumers = list(dict.fromkeys(number for row in self.rows for number in row.get("consumers") or ()))
        at = f" at {names.of(consumers[0])}" if consumers and _by_consumer(first) else ""
        others = listed((names.of(number) for number in consumers[1:]), most=_MOST_NAMED) if at else ""
        who_held = f", which {others} held" if others and KINDS[first["kind"]].promise != COMPLETENESS else ""
        named = self._named()
        worst = f"; the worst are {listed(named)}" if len(named) > 1 else ""
        return f"{counts}{at}{self._times()}: {self._extent()}{who_held}{worst}: {first['explanation']}"

    def _extent(self) -> str:
        entries = len({position for row in self.rows for position in row.get("positions") or ()})
        keys = len({row["key"] for row in self.rows if row["key"] is not None})
        of_keys = f" of {counted(keys, 'key', 'keys')}" if keys else ""
        return f"{counted(entries, 'entry', 'entries')}{of_keys}"

    def _times(self) -> str:
        times = [row["t_us"] for row in self.rows if row.get("t_us") is not None]
        if not times:
            return ""
        first, last = clock(min(times)), clock(max(times))
        return f" at {first}" if first == last else f", from {first} to {last}"

    def _named(self) -> list[str]:
        """The keys of the worst findings, or their entries where there is no key."""
        named: dict[str, None] = {}
        for row in self.rows:
            if row["key"] is not None:
                named.setdefault(shown(row["key"]))
            elif row.get("positions"):
                named.setdefault(row["positions"][0])
            if len(named) == _MOST_NAMED:
                break
        return list(named)


def by_root_cause(rows: Iterable[Mapping[str, Any]]) -> list[RootCause]:
    """Group findings by their cause; groups and their rows stay in the order of ``rows``, certain ones apart from others."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((bool(row.get("uncertain")), *_cause_of(row)), []).append(row)
    return [RootCause(tuple(group)) for group in groups.values()]


def _cause_of(row: Mapping[str, Any]) -> Sequence[Any]:
    kind, consumers = row["kind"], row.get("consumers") or ()
    if kind not in KINDS:
        return (kind,)
    load = row.get("incarnation")
    if KINDS[kind].promise in (PER_KEY_ORDER, DUPLICATE_DELIVERY) and consumers:
        return "deliveries", load, consumers[0]
    if KINDS[kind].promise == COMPLETENESS:
        return kind, load, row.get("reason"), consumers[0] if consumers else None
    return (kind,)


def _by_consumer(row: Mapping[str, Any]) -> bool:
    return len(_cause_of(row)) > 1
