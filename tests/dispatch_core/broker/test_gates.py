"""Gates: each predicate alone, each order against the table that declares it, and dispatch against the gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.audit.waits.reasons import why_waiting
from dispatch_core.broker import gates, permits, read_loop, read_loop_classic, state
from dispatch_core.broker.ordering import last_sent_position, read_position, recently_joined
from dispatch_core.broker.state import NOBODY, State

ENTRIES, HASHES, CONSUMERS = 6, 2, 3


@st.composite
def states(draw: st.DrawFn) -> State:
    """Draw any state of a dispatcher with a few entries and consumers, reachable or not."""
    core = state.new_state(
        np.array([0, 1] * (ENTRIES // 2), np.int32), np.ones(ENTRIES, np.int32), HASHES, CONSUMERS
    )
    slots = st.integers(-1, CONSUMERS - 1)
    s = core.s
    s[state.N_CONSUMERS] = draw(st.integers(0, CONSUMERS))
    s[state.MARK_DELETE] = draw(st.integers(-1, 3))
    s[state.READ_POSITION] = draw(st.integers(int(s[state.MARK_DELETE]) + 1, ENTRIES))
    s[state.STAMP] = 7
    flags = (
        state.IN_ORDER,
        state.TRACK_DRAINING,
        state.TRACK_LAST_SENT,
        state.BLOCKED_ON_UNACKED,
        state.BLOCKED_HASH_MEMORY,
    )
    for flag in flags:
        s[flag] = draw(st.integers(0, 1))
    for limit in (state.MAX_UNACKED_CONSUMER, state.LOOK_AHEAD_PER_CONSUMER, state.N_REPLAY):
        s[limit] = draw(st.integers(0, 4))
    for array in (core.hash_owner, core.drain_owner):
        array[:] = draw(st.lists(slots, min_size=HASHES, max_size=HASHES))
    core.replay_count[:] = draw(st.lists(st.integers(0, 2), min_size=HASHES, max_size=HASHES))
    core.hash_blocked[:] = draw(st.lists(st.sampled_from([-1, 7]), min_size=HASHES, max_size=HASHES))
    for counter in (core.permits, core.unacked):
        counter[:] = draw(st.lists(st.integers(-2, 4), min_size=CONSUMERS, max_size=CONSUMERS))
    for bits in (core.blocked, core.connected):
        bits[:] = draw(st.lists(st.integers(0, 1), min_size=CONSUMERS, max_size=CONSUMERS))
    core.held_stamp[:] = draw(st.lists(st.sampled_from([-1, 7]), min_size=CONSUMERS, max_size=CONSUMERS))
    core.average[:] = draw(st.lists(st.floats(0, 3), min_size=CONSUMERS, max_size=CONSUMERS))
    core.in_replay[:] = draw(st.lists(st.integers(0, 1), min_size=ENTRIES, max_size=ENTRIES))
    for slot in draw(st.lists(st.integers(0, CONSUMERS - 1), unique=True)):
        core.recent[s[state.N_RECENT]] = slot
        core.joined_at[slot] = draw(st.integers(-1, ENTRIES))
        s[state.N_RECENT] += 1
    return core


def copy(core: State) -> State:
    fields: dict[str, Any] = {name: getattr(core, name).copy() for name in State._fields}
    return State(**fields)


def same(before: State, after: State) -> bool:
    return all((getattr(before, name) == getattr(after, name)).all() for name in State._fields)


def attempts() -> Any:
    return np.zeros(9, np.int64)


ENTRY, SLOT = st.integers(0, ENTRIES - 1), st.integers(0, CONSUMERS - 1)

#: Gate → predicate that is true if the gate is closed for an entry and a consumer.
Closed = Callable[[State, bool, int, int, bool], bool]
CLOSED: dict[int, Closed] = {
    gates.NO_CONSUMER: lambda core, classic, slot, entry, is_replay: gates.no_consumer(core),
    gates.NOT_CONNECTED: lambda core, classic, slot, entry, is_replay: gates.not_connected(core, slot),
    gates.UNCOVERED_RANGE: lambda core, classic, slot, entry, is_replay: gates.uncovered_range(
        core, int(core.hash_id[entry])
    ),
    gates.OTHER_OWNER: lambda core, classic, slot, entry, is_replay: gates.other_owner(
        core, slot, int(core.hash_id[entry])
    ),
    gates.HASH_HELD_BACK: lambda core, classic, slot, entry, is_replay: gates.hash_held_back(
        core, int(core.hash_id[entry]), int(core.s[state.STAMP])
    ),
    gates.DRAINING_HASH: lambda core, classic, slot, entry, is_replay: gates.drains_elsewhere(
        core, slot, int(core.hash_id[entry])
    ),
    gates.RECENTLY_JOINED: lambda core, classic, slot, entry, is_replay: (
        classic and gates.joined_too_late(core, True, slot, entry, is_replay)
    ),
    gates.LAST_SENT_POSITION: lambda core, classic, slot, entry, is_replay: (
        not classic and gates.joined_too_late(core, False, slot, entry, is_replay)
    ),
    gates.UNACKED_LIMIT_CONSUMER: lambda core, classic, slot, entry, is_replay: gates.unacked_limit_consumer(
        core, slot
    ),
    gates.NO_PERMITS: lambda core, classic, slot, entry, is_replay: gates.no_permits(core, classic, slot, 0),
    gates.UNACKED_LIMIT_SUBSCRIPTION: lambda core, classic, slot, entry, is_replay: (
        gates.not_read_yet(core, entry) and gates.unacked_limit_subscription(core)
    ),
    gates.LOOK_AHEAD_LIMIT: lambda core, classic, slot, entry, is_replay: (
        not classic and gates.not_read_yet(core, entry) and gates.replay_set_is_full(core, 0)
    ),
    gates.REPLAY_ORDER: lambda core, classic, slot, entry, is_replay: (
        gates.replay_order_of_consumer(core, slot)
        if classic
        else gates.replay_order(core, is_replay, int(core.hash_id[entry]))
    ),
}


def first(order: tuple[int, ...], core: State, classic: bool, slot: int, entry: int, is_replay: bool) -> int:
    """Return the first closed gate of an order, tested in turn."""
    for gate in order:
        if CLOSED[gate](core, classic, slot, entry, is_replay):
            return gate
    return gates.OPEN


def test_every_gate_has_a_name_and_a_place_in_an_order() -> None:
    orders = (gates.DISPATCH_ORDER, gates.WHY_NOT_ORDER, gates.WHY_WAITING_ORDER, gates.SINGLE_ACTIVE_ORDER)
    assert len(gates.GATES) == len(set(gates.GATES)) == gates.HASH_HELD_BACK + 1
    assert {gate for order in orders for gate in order} == set(range(1, len(gates.GATES)))
    assert all(len(set(order)) == len(order) for order in orders)
    assert set(CLOSED) | {gates.FAILOVER_DELAY} == set(range(1, len(gates.GATES)))


# --- the orders --------------------------------------------------------------------------------------------------------


@given(states(), ENTRY, st.booleans())
def test_dispatch_looks_at_the_gates_in_its_order(core: State, entry: int, is_replay: bool) -> None:
    hash_id, stamp = int(core.hash_id[entry]), int(core.s[state.STAMP])
    slot = int(core.hash_owner[hash_id])
    expected = first(gates.DISPATCH_ORDER, core, False, slot, entry, is_replay)
    assert gates.first_gate(copy(core), hash_id, entry, is_replay, stamp, attempts()) == expected
    chosen = read_loop.choose(copy(core), is_replay, entry, stamp, True, attempts())
    assert chosen == (slot if expected == gates.OPEN else read_loop.TO_REPLAY)


@given(states(), SLOT, ENTRY, st.booleans(), st.booleans())
def test_why_not_looks_at_the_gates_in_its_order(
    core: State, slot: int, entry: int, classic: bool, is_replay: bool
) -> None:
    core.s[state.TRACK_DRAINING] &= not classic  # no dispatcher of 3.x or classic knows draining hashes
    before = copy(core)
    expected = first(gates.WHY_NOT_ORDER, core, classic, slot, entry, is_replay)
    if expected == gates.OPEN:
        expected = gates.NO_PERMITS  # the round has used them up
    assert gates.first_gate_for(core, classic, slot, entry, is_replay) == expected
    assert same(before, core)


@given(states(), ENTRY, st.booleans())
def test_why_waiting_looks_at_the_gates_in_its_order(core: State, entry: int, classic: bool) -> None:
    before, slot = copy(core), int(core.hash_owner[core.hash_id[entry]])
    is_replay = not gates.not_read_yet(core, entry)
    expected = first(gates.WHY_WAITING_ORDER, core, classic, slot, entry, is_replay)
    assert why_waiting(core, classic, entry, 0, 0, False) == expected
    assert same(before, core)


@pytest.mark.parametrize("has_active", [True, False])
@pytest.mark.parametrize("delay_runs", [True, False])
@pytest.mark.parametrize("count", [-1, 0, 1])
def test_one_gate_holds_everything_of_a_failover_subscription(
    has_active: bool, delay_runs: bool, count: int
) -> None:
    closed = {
        gates.NO_CONSUMER: not has_active,
        gates.FAILOVER_DELAY: delay_runs,
        gates.NO_PERMITS: gates.lacks_permits(count),
    }
    expected = next((gate for gate in gates.SINGLE_ACTIVE_ORDER if closed[gate]), gates.OPEN)
    assert gates.first_gate_single_active(has_active, delay_runs, count) == expected


# --- the predicates ----------------------------------------------------------------------------------------------------


@given(states(), SLOT, st.integers(0, HASHES - 1))
def test_asking_whether_a_hash_drains_gives_the_brokers_answer(core: State, slot: int, hash_id: int) -> None:
    before = copy(core)
    asked = gates.drains_elsewhere(core, slot, hash_id)
    assert same(before, core)
    noted = attempts()
    assert gates.draining_refuses(core, slot, hash_id, noted) == asked
    assert noted[0] == core.drain_attempts[hash_id] == asked
    assert gates.drains_elsewhere(core, slot, hash_id) == asked


@given(states(), SLOT, ENTRY, st.booleans())
def test_asking_for_a_limit_gives_the_answer_of_dispatch(
    core: State, slot: int, entry: int, is_replay: bool
) -> None:
    before = copy(core)
    asked = [gates.joined_too_late(core, classic, slot, entry, is_replay) for classic in (False, True)]
    assert same(before, core)
    assert gates.beyond_last_sent(copy(core), slot, entry, is_replay) == asked[0]
    limit = read_position.position_limit(core, slot, is_replay)
    assert (not read_position.within(entry, limit)) == asked[1]


@given(states(), SLOT, st.booleans())
def test_whom_mark_delete_has_passed_has_no_limit(core: State, slot: int, is_replay: bool) -> None:
    for rule in (read_position, last_sent_position):
        freed = copy(core)
        rule.prune(freed)
        restricted = freed.joined_at[slot] != state.NOT_TRACKED
        assert (rule.limit_now(core, slot, is_replay) != recently_joined.UNRESTRICTED) == restricted
        assert rule.limit_now(freed, slot, is_replay) == rule.limit_now(core, slot, is_replay)


@given(states(), SLOT)
def test_a_scan_that_begins_has_all_permits_left(core: State, slot: int) -> None:
    core.left_stamp[slot] = core.s[state.STAMP] - 1
    assert gates.no_permits_left(core, slot) == gates.no_permits(core, False, slot, 0)
    assert permits.entries_left(core, slot) == permits.usable_permits(core, slot)
    core.s[state.STAMP] += 1
    assert permits.entries_left_classic(core, slot) == permits.room_in_messages(core, slot)


@given(states(), SLOT)
def test_at_the_unacked_limit_there_are_no_permits(core: State, slot: int) -> None:
    if permits.at_unacked_limit(core, slot):
        assert gates.unacked_limit_consumer(core, slot)
        assert gates.no_permits(core, False, slot, 0)
        assert gates.no_permits(core, True, slot, 0)
    limit = int(core.s[state.MAX_UNACKED_CONSUMER])
    assert permits.at_unacked_limit(core, slot) == (0 < limit <= core.unacked[slot])


def test_a_blocked_consumer_with_room_is_sent_entries_of_other_consumers_reads() -> None:
    """Dispatch looks at the room below the limit, reads at the block: 2 of 4 acknowledged, blocked down to half."""
    core = state.new_state(np.zeros(1, np.int32), np.ones(1, np.int32), 1, 1)
    core.s[state.N_CONSUMERS], core.s[state.MAX_UNACKED_CONSUMER], core.hash_owner[0] = 1, 4, 0
    core.permits[0], core.unacked[0], core.blocked[0] = 5, 3, 1
    assert gates.unacked_limit_consumer(core, 0)
    assert not permits.is_available(core, 0)
    assert not gates.no_permits(core, False, 0, 0)
    assert read_loop.choose(core, False, 0, 1, False, attempts()) == 0


@given(states(), ENTRY, st.integers(0, 6))
def test_the_look_ahead_limit_counts_what_must_be_in_the_replay_set(
    core: State, entry: int, at_least: int
) -> None:
    full = gates.replay_set_is_full(core, 0)
    assert full == (core.s[state.N_REPLAY] >= permits.look_ahead_limit(core))
    assert gates.replay_set_is_full(core, at_least) >= full
    assert gates.not_read_yet(core, entry) == (
        core.in_replay[entry] == 0 and entry >= core.s[state.READ_POSITION]
    )


@given(states(), st.integers(0, HASHES - 1))
def test_the_order_of_replays_is_for_normal_reads_only(core: State, hash_id: int) -> None:
    assert not gates.replay_order(core, True, hash_id)
    in_order = core.s[state.IN_ORDER] == 1
    assert gates.replay_order(core, False, hash_id) == (in_order and core.replay_count[hash_id] > 0)


# --- dispatch of 3.x and classic against the gates ---------------------------------------------------------------------


@given(states(), st.booleans(), st.sets(ENTRY, min_size=1))
def test_classic_dispatch_sends_up_to_the_first_closed_gate_of_each_consumer(
    core: State, is_replay: bool, chosen: set[int]
) -> None:
    """Each owner gets all entries up to the first one with a closed gate (permits, R0 of the consumer or read position)."""
    core.s[state.TRACK_DRAINING] = core.s[state.N_REPLAY] = 0
    core.in_replay[:] = 0
    core.s[state.MIN_REPLAYED] = -1
    core.s[state.N_CONSUMERS], core.order[:] = CONSUMERS, np.arange(CONSUMERS)
    core.held_stamp[:] = -1
    entries = np.array(sorted(chosen), np.int64)
    asked = copy(core)
    outcome = np.zeros(len(entries), np.int64)
    read_loop_classic.group(core, is_replay, entries, outcome)
    owners = [int(asked.hash_owner[asked.hash_id[entry]]) for entry in entries.tolist()]
    r0 = {
        owner
        for owner, entry in zip(owners, entries.tolist(), strict=True)
        if gates.replay_order(asked, is_replay, int(asked.hash_id[entry]))
    }
    ended, taken = set[int](), dict.fromkeys(range(CONSUMERS), 0)
    requeued = [entry for entry, owner in zip(entries.tolist(), owners, strict=True) if owner == NOBODY]
    assert all(outcome[entries.tolist().index(entry)] == read_loop_classic.TO_REPLAY for entry in requeued)
    if requeued:
        return  # what has no owner enters the replay set first, and R0 sees it
    for at, (owner, entry) in enumerate(zip(owners, entries.tolist(), strict=True)):
        closed = (
            owner in ended
            or owner in r0
            or gates.no_permits(asked, True, owner, taken[owner])
            or gates.joined_too_late(asked, True, owner, entry, is_replay)
        )
        assert outcome[at] == (read_loop_classic.TO_REPLAY if closed else owner)
        taken[owner] += not closed
        if closed:
            ended.add(owner)
