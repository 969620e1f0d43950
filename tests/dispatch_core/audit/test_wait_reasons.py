"""Reasons why an entry waits: each rule by itself, their order, and that asking changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.audit.catalogue import LIMIT_REASONS, STALL_REASONS
from dispatch_core.audit.waits import reasons
from dispatch_core.audit.waits.reasons import REASONS
from dispatch_core.broker import gates, permits, state
from dispatch_core.broker.ordering import draining_hashes, last_sent_position, read_position
from dispatch_core.broker.state import State

ENTRIES, HASHES, CONSUMERS = 6, 2, 3


@st.composite
def states(draw: st.DrawFn) -> State:
    """Any dispatcher of a few entries and consumers, legal or not in how it came about."""
    core = state.new_state(
        np.array([0, 1] * (ENTRIES // 2), np.int32), np.ones(ENTRIES, np.int32), HASHES, CONSUMERS
    )
    slots = st.integers(-1, CONSUMERS - 1)
    s = core.s
    s[state.N_CONSUMERS] = draw(st.integers(0, CONSUMERS))
    s[state.MARK_DELETE] = draw(st.integers(-1, 3))
    s[state.READ_POSITION] = draw(st.integers(int(s[state.MARK_DELETE]) + 1, ENTRIES))
    for flag in (state.IN_ORDER, state.TRACK_DRAINING, state.TRACK_LAST_SENT, state.BLOCKED_ON_UNACKED):
        s[flag] = draw(st.integers(0, 1))
    for limit in (state.MAX_UNACKED_CONSUMER, state.LOOK_AHEAD_PER_CONSUMER, state.N_REPLAY):
        s[limit] = draw(st.integers(0, 4))
    for array in (core.hash_owner, core.drain_owner):
        array[:] = draw(st.lists(slots, min_size=HASHES, max_size=HASHES))
    core.replay_count[:] = draw(st.lists(st.integers(0, 2), min_size=HASHES, max_size=HASHES))
    for counter in (core.permits, core.unacked):
        counter[:] = draw(st.lists(st.integers(-2, 4), min_size=CONSUMERS, max_size=CONSUMERS))
    core.in_replay[:] = draw(st.lists(st.integers(0, 1), min_size=ENTRIES, max_size=ENTRIES))
    recently_joined = draw(st.lists(st.integers(0, CONSUMERS - 1), unique=True))
    for slot in recently_joined:
        core.recent[s[state.N_RECENT]] = slot
        core.joined_at[slot] = draw(st.integers(-1, ENTRIES))
        s[state.N_RECENT] += 1
    return core


def copy(core: State) -> State:
    fields: dict[str, Any] = {name: getattr(core, name).copy() for name in State._fields}
    return State(**fields)


ENTRY = st.integers(0, ENTRIES - 1)


def test_every_reason_of_the_catalogue_has_a_code() -> None:
    assert REASONS[gates.OPEN] is None
    assert sorted(REASONS[1:], key=str) == sorted((*STALL_REASONS, *LIMIT_REASONS))
    assert REASONS[gates.LOOK_AHEAD_LIMIT] == "look_ahead_limit"
    assert REASONS[gates.FAILOVER_DELAY] == "failover_delay"


@given(states(), ENTRY, st.booleans(), st.booleans(), st.integers(0, 5), st.integers(0, 3))
def test_asking_changes_nothing_and_answers_alike(
    core: State, entry: int, classic: bool, inferred: bool, rank: int, ahead: int
) -> None:
    before = copy(core)
    answers = {reasons.why_waiting(core, classic, entry, rank, ahead, inferred) for _ in range(2)}
    assert len(answers) == 1
    assert answers <= set(range(gates.FAILOVER_DELAY))  # that is for others to say
    for name, array in zip(State._fields, before, strict=True):
        assert (getattr(core, name) == array).all(), name


@given(states(), ENTRY, st.booleans(), st.integers(0, 5))
def test_a_reason_is_given_only_where_its_rule_holds(
    core: State, entry: int, classic: bool, rank: int
) -> None:
    code = reasons.why_waiting(core, classic, entry, rank, 0, False)
    hash_id = int(core.hash_id[entry])
    slot = int(core.hash_owner[hash_id])
    assert (code == gates.NO_CONSUMER) == (core.s[state.N_CONSUMERS] == 0)
    if code == gates.NO_CONSUMER:
        return
    assert (code == gates.UNCOVERED_RANGE) == (slot == state.NOBODY)
    if code == gates.UNCOVERED_RANGE:
        return
    room = permits.room_in_messages(core, slot) if classic else permits.usable_permits(core, slot)
    unread = not core.in_replay[entry] and entry >= core.s[state.READ_POSITION]
    assert code != gates.DRAINING_HASH or not draining_hashes.may_hold(core, slot, hash_id)
    assert code not in (gates.RECENTLY_JOINED, gates.LAST_SENT_POSITION) or slot in recently_joined(core)
    assert code != gates.RECENTLY_JOINED or classic
    assert code != gates.NO_PERMITS or room <= 0
    assert code not in (gates.UNACKED_LIMIT_SUBSCRIPTION, gates.LOOK_AHEAD_LIMIT) or unread
    assert code != gates.LOOK_AHEAD_LIMIT or core.s[state.N_REPLAY] >= permits.look_ahead_limit(core)
    if code == gates.OPEN:
        assert room > 0


def recently_joined(core: State) -> set[int]:
    return set(core.recent[: core.s[state.N_RECENT]].tolist())


@given(states(), ENTRY, st.integers(0, CONSUMERS - 1))
def test_recently_joined_wait_exactly_as_the_rules_that_free_them_say(
    core: State, entry: int, slot: int
) -> None:
    """``position_limit`` frees who is to be freed and then answers; here nobody is freed, and the answer is the same."""
    is_replay = bool(core.in_replay[entry]) or entry < int(core.s[state.READ_POSITION])
    freed = copy(core)
    limit = read_position.position_limit(freed, slot, is_replay)
    assert gates.joined_too_late(core, True, slot, entry, is_replay) == (
        not read_position.within(entry, limit)
    )
    freed = copy(core)
    limit = last_sent_position.position_limit(freed, slot, is_replay)
    expected = core.s[state.TRACK_LAST_SENT] == 1 and not last_sent_position.within(entry, limit)
    assert gates.joined_too_late(core, False, slot, entry, is_replay) == expected


@pytest.mark.parametrize(("ahead", "reason"), [(0, None), (1, None), (2, "no_permits")])
def test_permits_are_for_what_waits_first(ahead: int, reason: str | None) -> None:
    core = state.new_state(np.zeros(3, np.int32), np.ones(3, np.int32), 1, 1)
    core.s[state.N_CONSUMERS], core.hash_owner[0], core.permits[0] = 1, 0, 2
    assert REASONS[reasons.why_waiting(core, False, 2, ahead, ahead, False)] == reason


def test_a_consumer_at_its_limit_lacks_no_permits() -> None:
    core = state.new_state(np.zeros(1, np.int32), np.ones(1, np.int32), 1, 1)
    core.s[state.N_CONSUMERS], core.hash_owner[0], core.s[state.MAX_UNACKED_CONSUMER] = 1, 0, 3
    core.unacked[0] = 3
    assert REASONS[reasons.why_waiting(core, False, 0, 0, 0, False)] == "unacked_limit_consumer"
    core.unacked[0], core.blocked[0] = 2, 1  # it stays blocked down to half of the limit
    assert REASONS[reasons.why_waiting(core, False, 0, 0, 0, False)] == "unacked_limit_consumer"
    core.blocked[0] = 0
    assert REASONS[reasons.why_waiting(core, False, 0, 0, 0, False)] == "no_permits"


def test_the_subscriptions_limits_hold_only_what_is_not_read() -> None:
    core = state.new_state(np.zeros(2, np.int32), np.ones(2, np.int32), 1, 1)
    core.s[state.N_CONSUMERS], core.hash_owner[0], core.permits[0] = 1, 0, 9
    core.s[state.READ_POSITION], core.s[state.BLOCKED_ON_UNACKED] = 1, 1
    assert [REASONS[reasons.why_waiting(core, False, entry, 0, 0, False)] for entry in (0, 1)] == [
        None,
        "unacked_limit_subscription",
    ]
    core.in_replay[1] = 1
    assert reasons.why_waiting(core, False, 1, 0, 0, False) == gates.OPEN


def test_where_reads_are_inferred_what_waits_before_counts_for_the_look_ahead_limit() -> None:
    core = state.new_state(np.zeros(9, np.int32), np.ones(9, np.int32), 1, 1)
    core.s[state.N_CONSUMERS], core.hash_owner[0], core.permits[0] = 1, 0, 9
    core.s[state.LOOK_AHEAD_PER_CONSUMER] = 4
    found = [REASONS[reasons.why_waiting(core, False, 5, rank, 0, True)] for rank in (3, 4)]
    assert found == [None, "look_ahead_limit"]
    assert reasons.why_waiting(core, False, 5, 4, 0, False) == gates.OPEN
    assert reasons.why_waiting(core, True, 5, 4, 0, True) == gates.OPEN  # classic has no such limit
