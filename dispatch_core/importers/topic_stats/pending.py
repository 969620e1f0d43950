"""Entries pending on each consumer of a snapshot, as far as counts and owners prove it.

The statistics count unacknowledged messages and do not list them. The cursor tells which stored entries are not
acknowledged; each of those that was read is pending on a consumer or waits in the replay set. Who may hold it:

* STICKY: the owner of the hash, whose ranges nobody else has;
* draining hashes (4.x): an entry of a hash that drains for a consumer is pending on that one or waits; of any other hash,
  on the owner of the hash or waits (a hash with pending entries drains when it moves);
* the other rules, only while nobody is held back as a newcomer: on the owner of the hash or waits, for who joined last
  did so before anything that is pending now was read;
* one active consumer: all of it, as it is read for it and a rewind reads all again; but only while a read waits for
  more, for between the choice of another consumer and the rewind nothing is read, and all that the one before was sent
  lies before the read position.

Where as many messages may be pending on a consumer as its statistics count, all of them are, and nothing of them waits.
Where the counts differ, nothing is said. What the log itself shows, from its beginning up to the snapshot, needs no proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dispatch_core.broker.profiles import OrderingRule, Profile
from dispatch_core.importers.topic_stats.documents import ConsumerStats, Snapshot

Ints = npt.NDArray[np.int64]


def pending_of(
    snapshot: Snapshot,
    profile: Profile,
    unacked: Ints,
    seen: Sequence[Ints],
    hashes: Ints,
    messages: Ints,
) -> list[Ints]:
    """Per consumer those of ``unacked`` that are pending on it for sure, beside those that the log shows.

    ``unacked``: rows of the message log that were read and are not acknowledged; ``seen``: those of them that the log
    shows to be pending, by consumer; ``hashes``, ``messages``: sticky key hash and number of messages, by row of the
    message log.
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
    if not (drains or snapshot.mode == "STICKY" or (by_position and not snapshot.newcomers)):
        return nothing
    listed = Counter(sticky for consumer in snapshot.consumers for sticky in consumer.draining)
    return [
        _of(consumer, listed, rest, shown, hashes, messages)
        for consumer, shown in zip(snapshot.consumers, seen, strict=True)
    ]


def _of(
    consumer: ConsumerStats, listed: Counter[int], rest: Ints, seen: Ints, hashes: Ints, messages: Ints
) -> Ints:
    """``listed``: for how many consumers each hash drains. ``rest``: what the log shows at nobody."""
    if consumer.unacked is None:
        return rest[:0]
    found = []
    sure = True  # how many messages the draining hashes take
    of_draining = 0
    for sticky, entries in consumer.draining.items():
        of_hash, of_seen = rest[hashes[rest] == sticky], seen[hashes[seen] == sticky]
        # Before #24736 a hash may be listed for a consumer that it drains for no more, too.
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
    """Mark those of ``hashes`` that lie in any of the ranges."""
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
