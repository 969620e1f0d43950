"""Find the entries pending on each consumer of a snapshot, as far as counts and owners prove them.

The statistics count unacknowledged messages and do not list them. The cursor shows which stored entries are not
acknowledged. Each of these that was read is either pending on a consumer or waits in the replay set. The consumers on which
it may be pending:

* STICKY: the owner of the hash.
* Draining hashes (4.x): if the hash drains for a consumer, that consumer; else the owner of the hash (a hash with pending
  entries drains when it moves).
* The other rules: the owner of the hash, but only while no recently joined consumer is held back. Then all pending entries
  were read after the last join.
* One active consumer: the active one, but only while a read waits for more entries. Between the choice of another consumer
  and the rewind no read is made, and all entries sent to the previous consumer lie before the read position.

If the messages that may be pending on a consumer are as many as its statistics count, all of them are pending. For example,
a consumer owns the hashes of 5:1, 5:4 and 5:7 and its ``unackedMessages`` is 3: all three are pending. If it is 2, nothing
is known. Entries that the log itself shows to be pending (``ProvenByLog``) need no such proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.broker.profiles import OrderingRule, Profile
from dispatch_core.importers.topic_stats.documents import ConsumerStats, Snapshot
from dispatch_core.recording.checkpoint import Position

Ints = npt.NDArray[np.int64]


def pending_of(
    snapshot: Snapshot,
    profile: Profile,
    unacked: Ints,
    seen: Sequence[Ints],
    hashes: Ints,
    messages: Ints,
) -> list[Ints]:
    """The rows of ``unacked`` that are certainly pending, for each consumer, in addition to ``seen``.

    Args:
        snapshot: the statistics.
        profile: the rules.
        unacked: rows of the message log that were read and are not acknowledged.
        seen: the rows of ``unacked`` that the log shows to be pending, for each consumer.
        hashes: sticky key hash of each row of the message log.
        messages: number of messages of each row of the message log.
    """
    nothing = [unacked[:0] for _ in snapshot.consumers]
    rest = np.setdiff1d(unacked, np.concatenate([unacked[:0], *seen]))
    if snapshot.subscription_type in ("Failover", "Exclusive"):
        waits = snapshot.cursor is not None and snapshot.cursor.waits
        return [rest if active and waits else rest[:0] for active in _is_active(snapshot)]
    if snapshot.subscription_type != "Key_Shared" or any(
        consumer.ranges is None for consumer in snapshot.consumers
    ):
        return nothing
    by_position = profile.ordering in (OrderingRule.READ_POSITION, OrderingRule.LAST_SENT_POSITION)
    drains = profile.ordering is OrderingRule.DRAINING_HASHES
    if not (drains or snapshot.mode == "STICKY" or (by_position and not snapshot.has_recently_joined)):
        return nothing
    listed = Counter(sticky for consumer in snapshot.consumers for sticky in consumer.draining)
    return [
        _of(consumer, listed, rest, shown, hashes, messages)
        for consumer, shown in zip(snapshot.consumers, seen, strict=True)
    ]


def _of(
    consumer: ConsumerStats, listed: Counter[int], rest: Ints, seen: Ints, hashes: Ints, messages: Ints
) -> Ints:
    """The rows of ``rest`` that are certainly pending on ``consumer``.

    ``listed``: for each hash the number of consumers for which it drains. ``rest``: rows that the log shows on no consumer.
    """
    if consumer.unacked is None:
        return rest[:0]
    found = []
    sure = True  # true while ``of_draining`` is the exact number of messages of draining hashes
    of_draining = 0
    for sticky, entries in consumer.draining.items():
        of_hash, of_seen = rest[hashes[rest] == sticky], seen[hashes[seen] == sticky]
        # Before #24736 a hash may still be listed for a consumer for which it no longer drains.
        once = listed[sticky] == 1
        sure = sure and once and bool((messages[of_hash] == 1).all() and (messages[of_seen] == 1).all())
        of_draining += entries
        if once and len(of_hash) + len(of_seen) == entries:
            found.append(of_hash)
    draining = np.fromiter(listed, np.int64, len(listed))
    own = rest[_within(consumer.ranges or (), hashes[rest]) & ~np.isin(hashes[rest], draining)]
    own_seen = seen[~np.isin(hashes[seen], np.fromiter(consumer.draining, np.int64, len(consumer.draining)))]
    if sure and consumer.unacked - of_draining == int(messages[own].sum() + messages[own_seen].sum()):
        found.append(own)
    return np.sort(np.concatenate(found)) if found else rest[:0]


def _within(ranges: Sequence[tuple[int, int]], hashes: Ints) -> npt.NDArray[np.bool_]:
    """Mark the ``hashes`` that lie in any of the ranges."""
    bounds = np.array(sorted(ranges), np.int64).reshape(-1, 2)
    place = np.searchsorted(bounds[:, 0], hashes, side="right") - 1
    inside: npt.NDArray[np.bool_] = (place >= 0) & (hashes <= np.append(bounds[:, 1], -1)[place])
    return inside


def _is_active(snapshot: Snapshot) -> list[bool]:
    """Mark the active consumer, if it is certain: by its name, or because it is the only one."""
    names = [consumer.name for consumer in snapshot.consumers]
    if len(names) == 1:
        return [True]
    return [name == snapshot.active and names.count(name) == 1 for name in names]


class ProvenByLog:
    """Entries that the lines of a log prove to be pending on each consumer; any doubt about an entry removes it.

    An acknowledgement, also of a part of a batch, removes the entry from every consumer. ``settled``: the entries
    acknowledged in the last call of ``take``.
    """

    def __init__(self) -> None:
        self._outstanding: dict[int, set[Position]] = {}
        self.settled: set[Position] = set()

    def take(self, lines: pa.Table) -> None:
        """Process the next lines."""
        self.settled = set()
        for line in lines.select(["kind", "consumer", "positions", "ack_type"]).to_pylist():
            kind, number = line["kind"], line["consumer"]
            named = {(position["ledger_id"], position["entry_id"]) for position in line["positions"] or ()}
            if kind == "sent":
                self._outstanding.setdefault(number, set()).update(named)
                self.settled -= named
            elif kind in ("gap", "checkpoint"):
                self._outstanding.clear()  # lines are missing around it
            elif kind == "consumer_removed":
                self._outstanding.pop(number, None)
            elif kind == "redeliver":
                self._outstanding[number] = self._outstanding.get(number, set()) - named if named else set()
            elif kind == "ack":
                if line["ack_type"] == "Cumulative" and named:
                    upto = max(named)
                    named |= {
                        position for its in self._outstanding.values() for position in its if position <= upto
                    }
                self.settled |= named
                for its in self._outstanding.values():
                    its.difference_update(named)

    def rows(self, number: int, row_of: Mapping[Position, int]) -> npt.NDArray[np.int64]:
        """The rows of the message log that are pending on a connection, ascending."""
        its = self._outstanding.get(number, ())
        return np.array(sorted(row_of[position] for position in its if position in row_of), np.int64)
