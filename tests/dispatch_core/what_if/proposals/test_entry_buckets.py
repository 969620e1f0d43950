"""PIP-486: buckets cover the ring, belong to one consumer each, and keep the order of keys when they move."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.hashing import h31
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.what_if.proposals.catalogue import proposal_named
from dispatch_core.what_if.proposals.entry_buckets import RING_SIZE, EntryBucketSelector, canonical, starts
from dispatch_core.what_if.recorded import load_of
from dispatch_core.what_if.run import simulate
from tests.dispatch_core.simulation.simulated import simulated
from tests.dispatch_core.what_if.outcomes import findings

COUNTS = st.integers(1, 1024)
RAW = st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=50)


@given(COUNTS, RAW)
def test_a_hash_lies_in_the_bucket_that_its_canonical_hash_begins(buckets: int, raw: list[int]) -> None:
    first = [*starts(buckets).tolist(), RING_SIZE]
    for hash_value, found in zip(raw, canonical(np.array(raw), buckets).tolist(), strict=True):
        at = first.index(0 if found == 1 else found)
        assert first[at] <= hash_value % RING_SIZE < first[at + 1]


@given(COUNTS, st.lists(st.text("abc", max_size=2), min_size=1, max_size=20), st.data())
def test_buckets_are_dealt_evenly_in_the_order_of_names(
    buckets: int, names: list[str], data: st.DataObject
) -> None:
    selector = EntryBucketSelector(buckets)
    for number, name in enumerate(names):
        selector.add(number, name)
    gone = data.draw(st.sets(st.integers(0, len(names) - 1), max_size=len(names) - 1))
    for number in gone:
        selector.remove(number)
    owners = selector.owners().tolist()
    counts = Counter(owners)
    left = [number for number in range(len(names)) if number not in gone]
    shares = [counts[number] for number in left]
    assert sum(shares) == buckets
    assert max(shares) - min(shares) <= 1
    assert owners == sorted(owners, key=lambda number: (names[number], number))


@pytest.mark.slow
@given(COUNTS, st.integers(1, 30))
def test_what_a_change_reports_is_what_has_another_owner(buckets: int, consumers: int) -> None:
    selector = EntryBucketSelector(buckets)
    for number in range(consumers):
        before = selector.owners()
        moved = selector.add(number, f"c{number:02}")
        after = selector.owners()
        changed = {int(starts(buckets)[at]) for at in np.flatnonzero(before != after)}
        won = {
            int(start)
            for start in starts(buckets).tolist()
            for ranges in moved.added.values()
            for low, high in ranges
            if low <= start <= high
        }
        assert won == changed


def holders_at_once(log: DispatcherLog, buckets: int) -> tuple[int, set[int]]:
    """Return the most consumers that held entries of a bucket at once, and the consumers that were sent anything."""
    positions = zip(log.messages["ledger_id"].to_pylist(), log.messages["entry_id"].to_pylist(), strict=True)
    hashes = np.array([h31(key.encode()) for key in log.messages["key"].to_pylist()])
    bucket_of = dict(zip(positions, canonical(hashes, buckets).tolist(), strict=True))
    pending: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    most, consumers = 0, set[int]()
    for row in log.events.to_pylist():
        if row["kind"] == "consumer_removed":
            for some in pending.values():
                for gone in [entry for entry, consumer in some.items() if consumer == row["consumer"]]:
                    del some[gone]
        for position in row["positions"] or ():
            entry = position["ledger_id"], position["entry_id"]
            some = pending[bucket_of[entry]]
            some.pop(entry, None)
            if row["kind"] == "sent":
                some[entry] = row["consumer"]
                consumers.add(row["consumer"])
                most = max(most, len(set(some.values())))
    return most, consumers


@pytest.mark.slow
def test_a_bucket_has_one_consumer_at_a_time_and_moves_when_that_has_answered(tmp_path: Path) -> None:
    """The rolling restart of four consumers moves buckets; keys stay in order, though the queue behind them is long."""
    log = simulated(tmp_path, churn="rolling-restart", messages=1500, ack_us=30_000)
    load = load_of(log)
    assert load.profile is not None
    for buckets in (3, 16):
        found = simulate(load, load.profile, proposal=proposal_named(f"pip-486-{buckets}"))
        kinds = Counter(kind for kind, _ in findings(found).elements())
        assert not {"out_of_order", "split_key", "double_outstanding", "duplicate_after_ack"} & kinds.keys()
        most, consumers = holders_at_once(found, buckets)
        assert most == 1
        assert len(consumers) > 4
    # By the hashes of the release's own rules a bucket is shared.
    assert holders_at_once(simulate(load, load.profile), 3)[0] > 1


def test_consumers_without_a_bucket_get_nothing(tmp_path: Path) -> None:
    load = load_of(simulated(tmp_path))
    assert load.profile is not None
    found = simulate(load, load.profile, proposal=proposal_named("pip-486-2"))
    sent_to = {row["consumer"] for row in found.events.to_pylist() if row["kind"] == "sent"}
    # Of consumer-0 to consumer-3, numbered from 1, j owns the buckets from j*2/4 to before (j+1)*2/4.
    assert sent_to == {2, 4}
