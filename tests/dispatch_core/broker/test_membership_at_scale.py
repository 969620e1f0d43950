"""Membership changes with many consumers: fast paths give the results of the plain ones, in bounded work."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.broker import pending_acks, permits, profiles, read_loop, replay_set
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.selectors import factory
from dispatch_core.broker.selectors.assignments import Assignments, contains, impacted
from dispatch_core.broker.selectors.ring import NOBODY, Ring
from dispatch_core.errors import SelectorRefusedError

RANGE = {"subscriptionKeySharedUseConsistentHashing": False}
CLASSIC = {"subscriptionKeySharedUseClassicPersistentImplementation": True}

#: One release per selector: rings C, C-classic, A, A0, B; range split; sticky ranges by end points and exact.
SELECTORS: list[tuple[str, dict[str, bool], dict[str, Any]]] = [
    ("4.2.4", {}, {}),
    ("4.2.4", CLASSIC, {}),
    ("3.0.0", {}, {}),
    ("4.0.0-preview.1", {}, {}),
    ("3.0.17", {}, {}),
    ("4.2.4", RANGE, {}),
    ("3.0.17", RANGE, {}),
    ("4.0.0", {}, {"key_shared_mode": "STICKY"}),
    ("4.2.4", {}, {"key_shared_mode": "STICKY"}),
]

names = st.sampled_from(["c1", "c11", "c110", "same", "w140097", "w23754", ""])
#: A name joins, or the consumer at an index leaves.
histories = st.lists(st.one_of(names, st.integers(0, 30)), min_size=1, max_size=25)


def small_points(config: dict[str, bool], points: int) -> dict[str, Any]:
    return {**config, "subscriptionKeySharedConsistentHashingReplicaPoints": points}


# --- selectors -------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.dictionaries(st.integers(0, 60), st.sampled_from([NOBODY, 1, 2, 3]), max_size=8), max_size=8)
)
def test_a_ring_says_what_moved(changes: list[dict[int, int]]) -> None:
    """Compare with a dictionary of points, hash by hash."""
    ring, points = Ring(), dict[int, int]()
    hashes = range(64)

    def owners() -> list[int | None]:
        order = sorted(points)
        return [
            points[next((point for point in order if point >= value), order[0])] if order else None
            for value in hashes
        ]

    for change in changes:
        before = owners()
        moved = ring.change(change).moved(0, 63)
        points = {point: owner for point, owner in {**points, **change}.items() if owner != NOBODY}
        after = owners()
        assert [ring.owner_of(value) for value in hashes] == after
        for value, old, new in zip(hashes, before, after, strict=True):
            gave = [consumer for consumer, ranges in moved.removed.items() if contains(ranges, value)]
            took = [consumer for consumer, ranges in moved.added.items() if contains(ranges, value)]
            changed = old != new
            assert gave == ([old] if changed and old is not None else [])
            assert took == ([new] if changed and new is not None else [])


cuts = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([None, 1, 2, 3])), max_size=12)


@given(cuts, cuts)
def test_reports_that_are_alike_at_both_ends_are_compared_in_between(
    first_parts: list[tuple[int, int | None]], then_parts: list[tuple[int, int | None]]
) -> None:
    def report(parts: list[tuple[int, int | None]]) -> Assignments:
        ends = sorted(dict([*parts, (50, 4)]).items())
        starts = [0, *(end + 1 for end, _ in ends)]
        return Assignments(
            tuple((s, e, owner) for s, (e, owner) in zip(starts, ends, strict=False) if owner is not None)
        )

    before, after = report(first_parts), report(then_parts)
    moved = impacted(before, after)
    assert moved.touched is not None
    for value in range(52):
        old, new = (
            next((owner for start, end, owner in side.ranges if start <= value <= end), None)
            for side in (before, after)
        )
        assert any(s <= value <= e for s, e in zip(*moved.touched, strict=True)) == (old != new)
        for owner, ranges_of in ((old, moved.removed), (new, moved.added)):
            holders = [consumer for consumer, ranges in ranges_of.items() if contains(ranges, value)]
            assert holders == ([owner] if old != new and owner is not None else [])


@pytest.mark.parametrize(("version", "config", "more"), SELECTORS, ids=str)
@given(history=histories, points=st.sampled_from([1, 3, 40]))
@settings(max_examples=25, deadline=None)
def test_no_hash_outside_of_what_was_touched_has_another_owner(
    version: str, config: dict[str, bool], more: dict[str, Any], history: list[str | int], points: int
) -> None:
    """A lookup of many hashes equals a lookup of each."""
    selector = factory.build(profiles.resolve(version, small_points(config, points), **more))
    probes = np.concatenate([np.arange(0, 65536, 1021), np.arange(0, 1 << 31, 50_000_017)])
    live: list[int] = []
    before = selector.select_array(probes)
    for number, step in enumerate(history, start=1):
        if isinstance(step, str):
            start = (number * 7919) % 60000
            try:
                moved = selector.add(number, step, [(start, start + 4000), (start + 5000, start + 5000)])
            except SelectorRefusedError:
                continue
            live.append(number)
        elif live:
            moved = selector.remove(live.pop(step % len(live)))
        else:
            continue
        after = selector.select_array(probes)
        chosen = [selector.select(value) for value in probes.tolist()]
        assert after.tolist() == [-1 if owner is None else owner for owner in chosen]
        assert moved.touched is not None
        places = selector.places(probes)
        inside = np.zeros(len(probes), bool)
        for start, end in zip(*moved.touched, strict=True):
            inside |= (places >= start) & (places <= end)
        assert not ((before != after) & ~inside).any()
        before = after


# --- the dispatcher --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 3)), min_size=3, max_size=20))
@settings(max_examples=25, deadline=None)
def test_what_drains_and_comes_back_is_found_consumer_by_consumer(steps: list[tuple[bool, int, int]]) -> None:
    """Compare with a search of all pending entries of consumers that lost or won ranges, in the order of the report."""
    rng = np.random.default_rng(len(steps))
    hashes = rng.integers(1, 65536, 200)
    core = KeySharedDispatcher(
        profiles.resolve("4.2.4", small_points({}, 20)), hashes, np.ones(200, np.int64), 40
    )
    state, live = core.state, list[int]()
    sent = 0

    def expected(moved: dict[int, tuple[tuple[int, int], ...]]) -> list[tuple[int, int]]:
        return [
            (consumer, int(hashes[entry]))
            for consumer, ranges in moved.items()
            for entry in core.pending_on(consumer)
            if contains(ranges, int(hashes[entry]))
        ]

    for number, (joins, which, more) in enumerate(steps, start=1):
        if joins or not live:
            core.join(number, f"c{which}")
            live.append(number)
            moved = core.select_in(number)
            lost = [pair for pair in expected(moved.removed) if pair[0] != number]
            draining, returned = core.register(moved, number)
        else:
            leaving = live.pop(which % len(live))
            moved = core.select_out(leaving)
            lost = [pair for pair in expected(moved.removed) if pair[0] != leaving] if live else []
            left = core.drop(leaving, moved)
            draining, returned = left.draining, left.returned
            core.forget(leaving)
        assert draining == lost
        order = list(moved.added)
        assert [order.index(item.consumer) for item in returned] == sorted(
            order.index(item.consumer) for item in returned
        )
        owners = [core.owner_of(int(value)) for value in hashes]
        slots = [st_.NOBODY if owner is None else core.slot(owner) for owner in owners]
        assert state.hash_owner[state.hash_id].tolist() == slots
        for entry in range(sent, min(sent + 12 * more, 200)):  # sent to their owners, and left pending
            owner, hash_id = slots[entry], int(state.hash_id[entry])
            if owner != st_.NOBODY and state.drain_owner[hash_id] == st_.NOBODY:
                pending_acks.hold(state, owner, entry, hash_id)
                core.sent_alone(entry, [])
            sent = entry + 1
        core.check_invariants()


def send_consumer_by_consumer(state: st_.State, is_replay: bool, entries: st_.I64, outcome: st_.I64) -> None:
    """List them in the broker's order: consumer after consumer of the list."""
    for slot in state.order[: state.s[st_.N_CONSUMERS]].tolist():
        chosen = np.flatnonzero(outcome[: len(entries)] == slot).tolist()
        pending = messages = acked = 0
        for at in chosen:
            entry = int(entries[at])
            if is_replay:
                replay_set.remove_from_replay(state, entry)
            messages += int(state.num_messages[entry])
            acked += int(state.acked_indexes[entry])
            hash_id = int(state.hash_id[entry])
            if state.drain_owner[hash_id] in (st_.NOBODY, slot):
                pending_acks.hold(state, slot, entry, hash_id)
                pending += 1
            else:
                read_loop.requeue(state, entry, hash_id)
                outcome[at] = read_loop.REFUSED
        if messages:
            permits.charge_send(state, slot, messages, acked, max(pending, 1))
            state.s[st_.TOTAL_PERMITS] -= messages - acked


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=30), st.booleans(), st.integers(0, 1 << 20))
@settings(max_examples=60, deadline=None)
def test_a_round_charges_everybody_as_if_it_went_consumer_by_consumer(
    chosen: list[int], is_replay: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, len(chosen)).astype(np.int32)
    hashes = rng.integers(0, 8, len(chosen)).astype(np.int32)
    acked = rng.integers(0, sizes)
    owner = rng.integers(-1, 6, 8)
    average = rng.random(6) * 3
    limit = int(rng.integers(0, 40))
    results = []
    for send in (read_loop.send_groups, send_consumer_by_consumer):
        state = st_.new_state(hashes, sizes, 8, 6)
        state.order[:] = [3, 1, 0, 5, 4, 2]
        state.s[st_.N_CONSUMERS] = 6
        state.s[[st_.IN_ORDER, st_.TRACK_DRAINING]] = 1
        state.s[[st_.MAX_UNACKED_CONSUMER, st_.MAX_UNACKED_SUBSCRIPTION]] = limit
        state.acked_indexes[:] = acked
        state.average[:] = average
        state.drain_owner[:] = owner
        if is_replay:
            for entry in range(len(chosen)):
                replay_set.add_to_replay(state, entry, int(hashes[entry]))
        outcome = np.asarray([*chosen, 0], dtype=np.int64)
        send(state, is_replay, np.arange(len(chosen)), outcome)
        results.append((state, outcome))
    (state, outcome), (then_parts, expected) = results
    assert outcome.tolist() == expected.tolist()
    for name in state._fields:
        assert getattr(state, name).tolist() == getattr(then_parts, name).tolist(), name
    for name in ("batch_messages", "batch_acked", "batch_entries"):
        assert not getattr(state, name).any()


# --- work ------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "version", "config", "sticky"),
    [
        (KeySharedDispatcher, "4.2.4", {}, False),
        (KeySharedDispatcher, "4.2.4", RANGE, False),
        (KeySharedDispatcher, "4.2.4", {}, True),
        (ClassicKeySharedDispatcher, "3.0.17", {}, False),
        (ClassicKeySharedDispatcher, "4.2.4", CLASSIC, False),
    ],
    ids=["ring", "range", "sticky", "ring-3.x", "ring-classic"],
)
def test_a_thousand_consumers_come_and_go(
    kind: type[KeySharedDispatcher],
    version: str,
    config: dict[str, bool],
    sticky: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only hashes that moved are looked up again; only another order of growth exceeds the time limit."""
    consumers, hashes = 1000, 20_000
    mode: dict[str, Any] = {"key_shared_mode": "STICKY"} if sticky else {}
    profile = profiles.resolve(version, config, **mode)
    values = profile.hash_space.sticky_array(np.random.default_rng(1).integers(0, 1 << 31, hashes))
    core = kind(profile, values, np.ones(hashes, np.int64), 2 * consumers)
    looked_up = 0
    plain = core._selector.select_array

    def counted(hashes_asked: st_.I64) -> st_.I64:
        nonlocal looked_up
        looked_up += len(hashes_asked)
        return plain(hashes_asked)

    monkeypatch.setattr(core._selector, "select_array", counted)

    def join(number: int, name: int) -> None:
        core.join(number, f"c{name}")
        core.join_selector(number, [(65 * name, 65 * name + 64)] if sticky else None)

    began = time.process_time()
    for at in range(consumers):
        join(at, at)
    for at in range(200):
        core.leave(at)
        join(consumers + at, at)
    took_s = time.process_time() - began
    # The n-th of equal consumers wins one hash in n: 1 + 1/2 + … + 1/1000 = 7.5 of all; range split halves a range each.
    assert looked_up < 12 * hashes
    assert took_s < 60  # normally a few seconds
