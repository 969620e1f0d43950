"""The Key_Shared dispatcher alone: PIP-282's flows under draining hashes, and invariants of any history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.broker import hashing, profiles
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.errors import IllegalTransitionError, UnsupportedRuleError

PROFILE = profiles.resolve("4.2.4")


def sticky(*keys: str) -> np.ndarray:
    return np.array([PROFILE.hash_space.sticky(hashing.h31(key.encode())) for key in keys], dtype=np.int64)


def dispatcher(*keys: str, consumers: int = 8, **config: int) -> KeySharedDispatcher:
    profile = profiles.resolve("4.2.4", config)
    return KeySharedDispatcher(profile, sticky(*keys), np.ones(len(keys), np.int64), consumers)


def join(core: KeySharedDispatcher, number: int, name: str, permits: int = 1000) -> None:
    core.join(number, name)
    core.join_selector(number)
    give(core, number, permits)


def give(core: KeySharedDispatcher, number: int, permits: int) -> None:
    if core.flow(number, permits):
        core.flow_applied(number, permits)


def ack(core: KeySharedDispatcher, entry: int) -> None:
    assert core.ack(entry) is not None


def turn(core: KeySharedDispatcher, stored: int) -> dict[int, list[int]]:
    """Attempt a read and, if it reads entries, dispatch them; return the entries of each consumer."""
    read = core.attempt_read()
    if read.kind == "Normal":
        first = int(core.state.s[1])
        entries = [e for e in range(first, stored) if not core.state.deleted[e]][: read.max_entries]
        if not entries:
            core.read_cancelled()
            return {}
    elif read.kind == "Replay":
        entries = [e for e in read.entries if not core.state.deleted[e]]
        if not entries:
            return {}
    else:
        return {}
    core.read_done(read.kind, entries)
    outcome = core.round(read.kind, entries)
    core.finish_round(outcome, has_more=entries[-1] + 1 < stored)
    return outcome.sent


def run(core: KeySharedDispatcher, stored: int, turns: int = 6) -> dict[int, list[int]]:
    got: dict[int, list[int]] = {}
    for _ in range(turns):
        for consumer, entries in turn(core, stored).items():
            got.setdefault(consumer, []).extend(entries)
        core.check_invariants()
    return got


# With c1, c2, c3 joined in this order both keys belong to c2 (reference §2.4, §4.2); c4 takes both over when it joins.
A, B = "key-a", "key-b"


def test_walk_with_real_hashes() -> None:
    core = dispatcher(A, A, B, A)
    for number in (1, 2, 3):
        join(core, number, f"c{number}")
    assert run(core, stored=3) == {2: [0, 1, 2]}
    join(core, 4, "c4")
    assert core.draining() == {8785: (2, 2, 0), 50828: (2, 1, 0)}
    assert run(core, stored=4, turns=1) == {}  # entry 3 is read, refused for c4 and put aside
    assert core.draining()[8785] == (2, 2, 1)
    ack(core, 0)
    assert core.draining()[8785][1] == 1
    left = core.leave(4)
    assert [(r.consumer, r.hash) for r in left.returned] == [(2, 8785), (2, 50828)]
    assert core.draining() == {}
    assert int(core.state.cleared_total[core.slot(2)]) == 2
    assert run(core, stored=4) == {2: [3]}


def test_a_third_consumer_waits_for_the_drainer_too() -> None:
    core = dispatcher(A, A, B)
    for number in (1, 2, 3):
        join(core, number, f"c{number}")
    run(core, stored=3)
    join(core, 4, "c4")
    join(core, 5, "c5")
    assert core.draining() == {8785: (2, 2, 0), 50828: (2, 1, 0)}
    assert core.assignments().ranges
    assert next(c for s, e, c in core.assignments().ranges if s <= 50828 <= e) == 5


@pytest.mark.parametrize("way_out", ["disconnect", "ack"])
def test_flow_2_of_pip_282_keeps_order(way_out: str) -> None:
    """The first entry is sent to a consumer with one permit, the key moves, the old owner leaves or acks."""
    core = dispatcher(A, A)
    join(core, 2, "c2", permits=1)
    assert run(core, stored=2) == {2: [0]}
    join(core, 1, "c1")
    join(core, 4, "c4")
    assert core.draining()[8785][:2] == (2, 1)
    assert run(core, stored=2) == {}
    if way_out == "disconnect":
        core.leave(2)
        assert run(core, stored=2) == {4: [0, 1]}
    else:
        ack(core, 0)
        assert run(core, stored=2) == {4: [1]}


def test_permits_are_messages_and_reads_are_capped() -> None:
    core = dispatcher(*[f"k{i}" for i in range(300)])
    join(core, 1, "c1", permits=150)
    assert [len(turn(core, 300)[1]) for _ in range(2)] == [100, 50]
    assert core.attempt_read().kind == "None"


def test_unacked_limit_blocks_and_half_of_it_unblocks() -> None:
    core = dispatcher(*["k"] * 8, maxUnackedMessagesPerConsumer=4)
    join(core, 1, "c1", permits=10)
    assert run(core, stored=8) == {1: [0, 1, 2, 3]}
    assert core.flow(1, 5) is False  # parked
    ack(core, 0)
    assert run(core, stored=8) == {}
    ack(core, 1)  # 2 <= 4 / 2
    assert run(core, stored=8) == {1: [4, 5]}


def test_a_nack_forgets_the_hash_and_comes_again() -> None:
    core = dispatcher(A, A, A)
    join(core, 2, "c2", permits=3)
    run(core, stored=3)
    core.redeliver(2, [1])
    assert core.state.redelivery_count[1] == 1
    give(core, 2, 5)
    assert run(core, stored=3) == {2: [1]}


def test_other_dispatchers_and_reads_of_random_size_are_refused_by_name() -> None:
    for version, config in (("3.0.7", {}), ("4.2.4", {"preciseDispatcherFlowControl": True})):
        with pytest.raises(UnsupportedRuleError, match=version):
            KeySharedDispatcher(profiles.resolve(version, config), sticky(A), np.ones(1, np.int64), 1)


def test_illegal_events_raise_and_change_nothing() -> None:
    core = dispatcher(A)
    join(core, 1, "c1")
    before = [array.copy() for array in core.state]
    for event in (
        lambda: core.join(1, "c1"),
        lambda: core.flow(9, 1),
        lambda: core.leave(9),
        lambda: core.pending_ack_removed(0),
    ):
        with pytest.raises(IllegalTransitionError):
            event()
    assert all((saved == now).all() for saved, now in zip(before, core.state, strict=True))


# --- the promise --------------------------------------------------------------------------------------------------------

KEYS = [f"key-{i % 7}" for i in range(60)]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(["c1", "c2", "c3", "c11"]), st.integers(0, 6)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("flow"), st.integers(0, 9), st.integers(1, 8)),
        st.tuples(st.just("store"), st.integers(1, 10)),
        st.tuples(st.just("turn"), st.integers(1, 4)),
        st.tuples(st.just("ack"), st.integers(0, 30)),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(steps)
def test_no_split_key_and_no_reordering_without_redelivery_requests(history: list[tuple]) -> None:
    """PIP-379's promise, over random runs of a subscription with crashes but without negative acks."""
    core = dispatcher(*KEYS, consumers=len(history) + 1)
    hashes = sticky(*KEYS)
    live: list[int] = []
    outstanding: dict[int, int] = {}
    first_sent: dict[int, int] = {}  # hash → latest entry sent for the first time
    got: dict[tuple[int, int], int] = {}  # (connection, hash) → latest entry
    seen: set[int] = set()
    stored = next_number = 0
    for step in history:
        if step[0] == "join":
            next_number += 1
            live.append(next_number)
            join(core, next_number, step[1], step[2])
        elif step[0] == "leave" and live:
            gone = live.pop(step[1] % len(live))
            core.leave(gone)
            outstanding = {e: c for e, c in outstanding.items() if c != gone}
            if not live:
                outstanding.clear()
        elif step[0] == "flow" and live:
            give(core, live[step[1] % len(live)], step[2])
        elif step[0] == "store":
            stored = min(stored + step[1], len(KEYS))
        elif step[0] == "ack" and outstanding:
            entry = sorted(outstanding)[step[1] % len(outstanding)]
            del outstanding[entry]
            ack(core, entry)
        elif step[0] == "turn":
            for _ in range(step[1]):
                for consumer, entries in turn(core, stored).items():
                    for entry in entries:
                        value = int(hashes[entry])
                        assert consumer in live
                        assert entry not in outstanding, "double outstanding"
                        blockers = [
                            e
                            for e, c in outstanding.items()
                            if hashes[e] == value and c != consumer and e <= entry
                        ]
                        assert not blockers, "split key"
                        assert got.get((consumer, value), -1) < entry, "a connection went backwards"
                        got[consumer, value] = entry
                        if entry not in seen:
                            assert first_sent.get(value, -1) < entry, "sent first after a later one"
                            first_sent[value] = entry
                            seen.add(entry)
                        outstanding[entry] = consumer
        core.check_invariants()
