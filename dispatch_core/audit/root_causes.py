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
from dataclasses import dataclass, field
from typing import Any, Final

from dispatch_core.audit.catalogue import (
    COMPLETENESS,
    DUPLICATE_DELIVERY,
    KIND_ORDER,
    KINDS,
    PER_KEY_ORDER,
)
from dispatch_core.audit.sentences.lists import counted, counts_by_name, listed
from dispatch_core.audit.sentences.names import ConnectionNumbers, ConsumerNames, shown
from dispatch_core.times import clock

#: Keys, or entries, that a sentence names.
_MOST_NAMED: Final = 3
#: Entries and keys of a cause that are counted one by one.
MOST_COUNTED: Final = 10_000
NO_NAMES: Final = ConnectionNumbers()


@dataclass(slots=True)
class RootCause:
    """Findings (rows of ``anomalies``) that one event has caused: their numbers, and what a sentence quotes of them.

    ``worst``: the row that is quoted. Entries and keys are counted up to ``MOST_COUNTED``, so a day of them takes little
    memory.
    """

    worst: Mapping[str, Any]
    count: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    consumers: dict[int, None] = field(default_factory=dict)
    _rank: tuple[Any, ...] | None = None
    _positions: set[str] = field(default_factory=set)
    _keys: set[str] = field(default_factory=set)
    _named: list[tuple[tuple[Any, ...], str]] = field(default_factory=list)
    _times: tuple[int, int] | None = None

    def add(self, row: Mapping[str, Any], rank: tuple[Any, ...] | None = None) -> None:
        """Add a finding. ``rank``: the lower, the worse; without it, earlier ones are worse."""
        rank = (self.count,) if rank is None else rank
        if self._rank is None or rank < self._rank:
            self._rank, self.worst = rank, row
        self.count += 1
        self.kinds[row["kind"]] += 1
        self.consumers.update(dict.fromkeys(row.get("consumers") or ()))
        positions = row.get("positions") or ()
        if len(self._positions) < MOST_COUNTED:
            self._positions.update(positions)
        if row["key"] is not None and len(self._keys) < MOST_COUNTED:
            self._keys.add(row["key"])
        self._name(row, rank, positions)
        t_us = row.get("t_us")
        if t_us is not None:
            first, last = self._times or (t_us, t_us)
            self._times = min(first, t_us), max(last, t_us)

    def sentence(self, names: ConsumerNames = NO_NAMES) -> str:
        """Say what was found: how many findings of which kinds, for how many entries, keys and consumers, and the worst."""
        if self.count == 1:
            return str(self.worst["explanation"])
        counts = counts_by_name(
            {
                kind: self.kinds[kind]
                for kind in sorted(self.kinds, key=lambda kind: KIND_ORDER.get(kind, len(KIND_ORDER)))
            }
        )
        consumers = [*self.consumers]
        at = f" at {names.of(consumers[0])}" if consumers and _by_consumer(self.worst) else ""
        others = listed((names.of(number) for number in consumers[1:]), most=_MOST_NAMED) if at else ""
        who_held = (
            f", which {others} held" if others and KINDS[self.worst["kind"]].promise != COMPLETENESS else ""
        )
        named = [name for _, name in self._named]
        worst = f"; the worst are {listed(named)}" if len(named) > 1 else ""
        return f"{counts}{at}{self._when()}: {self._extent()}{who_held}{worst}: {self.worst['explanation']}"

    def _extent(self) -> str:
        of_keys = f" of {_counted(len(self._keys), 'key', 'keys')}" if self._keys else ""
        return f"{_counted(len(self._positions), 'entry', 'entries')}{of_keys}"

    def _when(self) -> str:
        if self._times is None:
            return ""
        first, last = map(clock, self._times)
        return f" at {first}" if first == last else f", from {first} to {last}"

    def _name(self, row: Mapping[str, Any], rank: tuple[Any, ...], positions: Sequence[str]) -> None:
        """Note the key of a finding, or its first entry where there is no key, if it is among the worst."""
        name = shown(row["key"]) if row["key"] is not None else positions[0] if positions else None
        if name is None:
            return
        before = next((at for at, (_, other) in enumerate(self._named) if other == name), None)
        if before is not None:
            self._named[before] = min(self._named[before], (rank, name))
        else:
            self._named.append((rank, name))
        self._named.sort()
        del self._named[_MOST_NAMED:]


def _counted(number: int, singular: str, plural_form: str) -> str:
    return counted(number, singular, plural_form) + (" or more" if number >= MOST_COUNTED else "")


def by_root_cause(rows: Iterable[Mapping[str, Any]]) -> list[RootCause]:
    """Group findings by their cause; groups and their rows stay in the order of ``rows``, certain ones apart from others."""
    causes: dict[tuple[Any, ...], RootCause] = {}
    for row in rows:
        causes.setdefault(identity_of(row), RootCause(row)).add(row)
    return [*causes.values()]


def identity_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a tuple that findings of one cause have in common; certain ones are apart from others."""
    return bool(row.get("uncertain")), *_cause_of(row)


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
