"""Find the number that each consumer of a snapshot has in a log.

A log numbers connections, the broker's statistics name consumers. A line that adds a connection gives both, and the user may
give both. A connection that joined before the log begins is found by the hashes of the entries that it is sent, because each
hash has one owner. A connection is matched only if exactly one consumer is possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.sentences.names import shown
from dispatch_core.importers.topic_stats.documents import ConsumerStats, TopicStatsError
from dispatch_core.recording.checkpoint import joins

#: Kinds of lines whose consumer is connected. ``active_notified`` is not one: it may come before the line that adds it.
OF_CONNECTED: Final = ("flow", "sent", "ack", "redeliver", "consumer_removed")


def numbers_of(
    consumers: Sequence[ConsumerStats],
    before: pa.Table,
    after: pa.Table,
    sent_hashes: Iterable[tuple[int, int]],
    given: Mapping[int, str],
) -> list[int]:
    """The log's number of each consumer.

    A consumer that the log never names gets a number that the log does not use.

    Args:
        consumers: those of the snapshot.
        before: the log's events up to the snapshot.
        after: the log's events from the snapshot on.
        sent_hashes: (number, sticky hash) of entries sent after the snapshot and before the next join or leave.
        given: names by number, from the user.

    Raises:
        TopicStatsError: log and snapshot contradict each other, or several answers are possible.
    """
    free = list(range(len(consumers)))
    found: dict[int, int] = {}  # number → consumer
    for number, (name, address) in (
        _connected(before) | {n: (name, None) for n, name in given.items()}
    ).items():
        fits = [at for at in free if consumers[at].name == name and _same(consumers[at].address, address)]
        if not fits:
            raise TopicStatsError(
                f"connection {number} ({shown(name or 'nameless')}) is connected when the snapshot was taken, and the stats "
                f"name {_names(consumers)}; check --taken, --connection and whether stats and log are of one topic and load"
            )
        found[number] = fits[0]  # of consumers with one name and address the log adds the older one first
        free.remove(fits[0])
    unnamed = sorted(_named(after) - set(found))
    possible = {number: set(free) for number in unnamed}
    for number, sticky in sent_hashes:
        if number in possible and any(consumers[at].ranges for at in free):
            possible[number] &= {
                at for at in free if consumers[at].owns(sticky) or sticky in consumers[at].draining
            }
    _settle(possible, found)
    if any(possible.values()) or len(found) < len(unnamed):
        _refuse(consumers, possible)
    taken = set(found.values())
    unused = _highest(before, after, found) + 1
    for at in range(len(consumers)):
        if at not in taken:
            found[unused] = at
            unused += 1
    return [number for number, _ in sorted(found.items(), key=lambda pair: pair[1])]


def _settle(possible: dict[int, set[int]], found: dict[int, int]) -> None:
    """Move numbers with a single possible consumer from ``possible`` to ``found`` until there is none."""
    while sure := [number for number, places in possible.items() if len(places) == 1]:
        number = sure[0]
        (at,) = possible.pop(number)
        found[number] = at
        for places in possible.values():
            places.discard(at)


def _refuse(consumers: Sequence[ConsumerStats], possible: Mapping[int, set[int]]) -> None:
    for number, places in possible.items():
        if not places:
            raise TopicStatsError(
                f"connection {number} has lines after the snapshot, never joins in the log, and can be none of the "
                f"consumers that the stats name ({_names(consumers)}); check --taken and whether stats and log are of one "
                "topic and load"
            )
    number, places = min(possible.items())
    names = ", ".join(shown(consumers[at].name) for at in sorted(places))
    raise TopicStatsError(
        f"connection {number} joined before the log begins and may be any of {names}; name it with --connection "
        f"{number}=NAME"
    )


def _connected(before: pa.Table) -> dict[int, tuple[str | None, str | None]]:
    """Name and address of the connections that, by the log, are connected."""
    left = set(before.filter(pc.equal(before["kind"], "consumer_removed"))["consumer"].to_pylist())
    rows = joins(before, ("consumer", "name", "address"))
    return {row["consumer"]: (row["name"], row["address"]) for row in rows if row["consumer"] not in left}


def _named(after: pa.Table) -> set[int]:
    """Connections with a line before the one that adds them, or without such a line."""
    seen: set[int] = set()
    added: set[int] = set()
    kinds, numbers = after["kind"].to_pylist(), after["consumer"].to_pylist()
    for kind, number in zip(kinds, numbers, strict=True):
        if kind == "consumer_added":
            added.add(number)
        elif kind in OF_CONNECTED and number is not None and number not in added:
            seen.add(number)
    return seen


def _same(shown_address: str | None, logged: str | None) -> bool:
    """True if two addresses may be the same: the broker's has a slash before it, and a log's may lack the port."""
    if not shown_address or not logged:
        return True
    address, other = shown_address.rpartition("/")[2], logged.rpartition("/")[2]
    return address == other or address.rpartition(":")[0] == other


def _highest(before: pa.Table, after: pa.Table, found: Mapping[int, int]) -> int:
    numbers = [
        number for table in (before, after) for number in table["consumer"].to_pylist() if number is not None
    ]
    return max([*numbers, *found], default=0)


def _names(consumers: Sequence[ConsumerStats]) -> str:
    return ", ".join(shown(consumer.name) for consumer in consumers) or "nobody"
