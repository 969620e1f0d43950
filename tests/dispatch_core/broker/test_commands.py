"""Commands of clients as whole steps: each equals its parts and keeps the counters right."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from dispatch_core.broker import commands, cursor, pending_acks, permits
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.single_active import SingleActiveDispatcher

NO_ROOM = np.zeros(0, np.int64)
LIMIT = 8


def delivered(sizes: list[int], owners: list[int], *, given_permits: int = 100) -> st_.State:
    """Make batches of these sizes, each pending on the consumer in its slot; both consumers have an unacked limit."""
    n = len(sizes)
    state = st_.new_state(np.zeros(n, np.int32), np.array(sizes, np.int32), 1, 2)
    state.s[st_.MAX_UNACKED_CONSUMER] = LIMIT
    state.connected[:] = 1
    for slot in (0, 1):
        commands.flow(state, slot, given_permits)
    for entry, slot in enumerate(owners):
        pending_acks.hold(state, slot, entry, 0)
        permits.charge_send(state, slot, sizes[entry], 0, 1)
    cursor.moved_by_read(state, n - 1)
    return state


def same(state: st_.State, other: st_.State) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(state, other, strict=True))


def unacked_agrees(state: st_.State) -> bool:
    """The counters of consumers and subscription equal the unacknowledged messages of their pending entries."""
    open_ = state.num_messages - state.acked_indexes
    counted = [int(open_[state.holder == slot].sum()) for slot in (0, 1)]
    return counted == state.unacked.tolist() and state.s[st_.TOTAL_UNACKED] == sum(counted)


BATCHES = some.lists(some.tuples(some.integers(1, 5), some.integers(0, 1)), min_size=1, max_size=6)
TESTS = some.sampled_from([st_.UNBLOCK_AFTER, st_.UNBLOCK_BEFORE, st_.UNBLOCK_BEFORE_AND_AFTER])


# --- flow ------------------------------------------------------------------------------------------------------------


@given(some.lists(some.integers(1, 9), max_size=5), some.integers(0, 12))
@settings(deadline=None)
def test_flow_gives_all_permits_or_parks_them(granted: list[int], unacked: int) -> None:
    """Permits are counted by consumer and dispatcher alike, or parked: none is lost."""
    state = delivered([1], [0], given_permits=0)
    state.unacked[0] = unacked
    before = int(state.permits[0])
    for number in granted:
        assert commands.flow(state, 0, number) == (unacked < LIMIT)
    assert state.permits[0] - before + state.parked_permits[0] == sum(granted)
    assert state.s[st_.TOTAL_PERMITS] == (sum(granted) if unacked < LIMIT else 0)


def test_permits_of_a_consumer_that_left_do_not_reach_the_dispatcher() -> None:
    state = delivered([1], [0])
    before = int(state.s[st_.TOTAL_PERMITS])
    state.connected[0] = 0
    commands.apply_flow(state, 0, 5)
    assert state.s[st_.TOTAL_PERMITS] == before


# --- acks ------------------------------------------------------------------------------------------------------------


@given(BATCHES, TESTS, some.randoms())
@settings(deadline=None)
def test_an_ack_is_its_parts(batches: list[tuple[int, int]], unblock_test: int, random: Random) -> None:
    """The whole step and its three parts leave the same state, and free the same permits."""
    sizes, owners = [size for size, _ in batches], [slot for _, slot in batches]
    whole, parts = delivered(sizes, owners), delivered(sizes, owners)
    for state in (whole, parts):
        state.s[st_.UNBLOCK_TEST] = unblock_test
        commands.flow(state, 0, 7)  # parked where the consumer is blocked
    order = list(range(len(sizes)))
    random.shuffle(order)
    for entry in [*order, order[0]]:  # the first one twice: it is pending at no consumer then
        done = commands.ack(whole, entry)
        begun = commands.begin_ack(parts, entry)
        flows = begun.flows
        if begun.holder != st_.NOBODY:
            flows += commands.end_ack(parts, begun.holder, begun.messages).notices
        commands.acknowledge(parts, entry)
        assert same(whole, parts)
        assert (done.holder, done.messages, done.flows) == (begun.holder, begun.messages, flows)
        assert unacked_agrees(whole)
    assert whole.deleted.all()
    assert whole.s[st_.MARK_DELETE] == len(sizes) - 1
    if unblock_test != st_.UNBLOCK_BEFORE:  # a last batch above half of the limit leaves the block there
        assert not whole.blocked.any()
        assert not whole.parked_permits.any()


def test_parked_permits_flow_once_where_the_unblock_rule_is_tested_twice() -> None:
    state = delivered([4, 4], [0, 0])
    state.s[st_.UNBLOCK_TEST] = st_.UNBLOCK_BEFORE_AND_AFTER
    assert not commands.flow(state, 0, 7)
    assert commands.ack(state, 0)[3:] == (1, 7)
    state.s[st_.MAX_UNACKED_CONSUMER] = 0
    assert commands.ack(state, 1)[3:] == (
        2,
        0,
    )  # no limit: both variants notify the dispatcher, without permits


@given(some.integers(1, 6).flatmap(lambda n: some.tuples(some.just(n), some.lists(some.integers(0, n)))))
@settings(deadline=None)
def test_batch_indexes_lower_the_counter_once_each(case: tuple[int, list[int]]) -> None:
    """Acks of single indexes or of all: the counter falls by the batch size, and the last index deletes the entry."""
    size, steps = case
    state = delivered([size, 1], [0, 1])
    state.s[st_.COUNTS_REMAINING] = 1
    for left in [*sorted({*steps} - {size}, reverse=True), *([] if 0 in steps else [0])]:
        commands.ack_indexes(state, 0, left)
        assert state.unacked[0] == left
        assert bool(state.deleted[0]) is (left == 0)
    assert state.s[st_.MARK_DELETE] == 0
    assert state.holder[0] == 0  # the pending ack stays until an ack of the whole entry
    assert commands.ack(state, 0).messages == 0
    assert state.unacked[0] == 0


def sent_a_batch_of(messages: int, version: str = "4.2.4") -> KeySharedDispatcher:
    """Return a dispatcher that has sent a batch and a single message of one key to consumer 1."""
    profile = resolve(version, {"acknowledgmentAtBatchIndexLevelEnabled": True})
    core = KeySharedDispatcher(profile, np.full(2, 11858), np.array([messages, 1]), 1)
    core.join(1, "c1")
    core.join_selector(1)
    core.flow(1, 10)
    core.flow_applied(1, 10)
    core.attempt_read()
    core.read_done("Normal", [0, 1])
    core.round("Normal", [0, 1])
    return core


@pytest.mark.parametrize(("permits_given", "behind"), [(10, 6), (2, 2)])
def test_a_read_passes_the_acknowledged_entries_at_the_end(permits_given: int, behind: int) -> None:
    """A read that returns fewer entries than it asked for has looked at all of them."""
    core = KeySharedDispatcher(resolve("4.2.4"), np.full(6, 11858), np.ones(6, np.int64), 1)
    core.join(1, "c1")
    core.join_selector(1)
    core.flow(1, permits_given)
    core.flow_applied(1, permits_given)
    for entry in range(2, 6):
        core.acknowledge(entry)
    assert core.attempt_read().max_entries == permits_given
    core.read_done("Normal", [0, 1])
    assert core.state.s[st_.READ_POSITION] == behind


def test_the_last_batch_index_deletes_the_entry_as_the_broker_does() -> None:
    """As in 4.2.4 random-0008-classic-ch-quiet, seq 488 to 494: mark-delete moves at the ack that leaves no index.

    The next client of that batch may never acknowledge it as a whole; Failover deleted such entries already.
    """
    core = sent_a_batch_of(5)
    for words in ([30], [28], [24], [8]):
        assert core.acknowledge_indexes(0, words) == 1
        assert core.state.s[st_.MARK_DELETE] == -1
    assert core.acknowledge_indexes(0, [16]) == 1
    assert core.state.s[st_.MARK_DELETE] == 0
    assert core.pending_on(1) == [0, 1]
    acked = core.ack(0)
    assert acked is not None
    assert (acked.messages, core.unacked(1), core.pending_on(1)) == (0, 1, [1])


def test_batch_indexes_of_a_passed_entry_lower_the_counter() -> None:
    """As in 4.2.4 ops-24022-clear-classic-ch, seq 419: the backlog was cleared while the batch was pending."""
    core = sent_a_batch_of(3)
    core.move_forward(1)
    assert [core.acknowledge_indexes(0, words) for words in ([6], [6], [4])] == [1, 0, 1]
    assert core.unacked(1) == 2
    acked = core.ack(0)
    assert acked is not None
    assert (acked.messages, core.unacked(1), core.pending_on(1)) == (1, 1, [1])
    assert core.acknowledge_indexes(0, [6]) == 0  # pending on nobody


def test_a_trim_lowers_the_counter_by_what_single_acknowledgements_have_left() -> None:
    """A move passes a pending batch, one of its messages is acknowledged, and another move drops it (#25592)."""
    core = sent_a_batch_of(3)
    core.move_forward(0)
    assert core.acknowledge_indexes(0, [6]) == 1
    core.move_forward(1)
    core.trim_passed()
    assert (core.unacked(1), core.pending_on(1)) == (0, [])


@pytest.mark.parametrize(("release", "left"), [("4.0.0", -1), ("4.2.4", 0)])
@pytest.mark.parametrize("goes", ["ack", "begin_ack", "redeliver", "pending_ack_removed", "move_forward"])
def test_what_two_acks_count_both_is_given_back_since_25592(release: str, left: int, goes: str) -> None:
    """The pending ack lacks the message, too, whatever takes it away."""
    core = sent_a_batch_of(3, release)
    core.ack(1)
    assert core.acknowledge_indexes(0, [6]) == 1
    core.count_twice(1, 0, 1)
    assert (core.unacked(1), core.unacked_messages(0)) == (1, 2 if left else 1)
    if goes == "ack":
        core.ack(0)
    elif goes == "begin_ack":
        acked = core.begin_ack(0)
        assert acked is not None
        core.finish_ack(0, 1, acked.messages)
    elif goes == "redeliver":
        core.redeliver(1, [0])
    elif goes == "pending_ack_removed":
        core.pending_ack_removed(0, 1)
        core.lower_for_redelivery(1, core.add_requested(1, [0]))
    else:
        core.move_forward(0)
        core.trim_passed()
    assert core.unacked(1) == left


def test_before_25592_a_passed_batch_lowers_the_counter_again() -> None:
    """As in 4.0.0 soak-5376-ch-quiet: two clients acknowledge one batch, and the counter of the second one is negative."""
    core = sent_a_batch_of(3, "4.0.0")
    core.move_forward(1)
    assert [core.acknowledge_indexes(0, words) for words in ([6], [6], [4])] == [1, 1, 2]
    acked = core.ack(0)
    assert acked is not None
    assert (acked.messages, core.unacked(1)) == (3, 4 - 4 - 3)


@given(some.lists(some.integers(0, 9), min_size=1, max_size=6), some.integers(0, 9))
@settings(deadline=None)
def test_a_cumulative_ack_is_an_ack_of_each_entry(earlier: list[int], last: int) -> None:
    whole, each = delivered([1] * 10, [0] * 10), delivered([1] * 10, [0] * 10)
    for entry in earlier:
        cursor.acknowledge(whole, entry)
        cursor.acknowledge(each, entry)
    cursor.acknowledge_up_to(whole, last)
    for entry in range(last + 1):
        cursor.acknowledge(each, entry)
    assert same(whole, each)


def test_a_cumulative_ack_with_an_ack_set_leaves_the_rest_of_the_batch() -> None:
    profile = resolve("4.2.4", subscription_type="Failover", partition_index=0)
    core = SingleActiveDispatcher(profile, "t", 0, exclusive=False, num_messages=np.array([4, 4, 4]))
    core.acknowledge(0, [0b1100])
    core.acknowledge_up_to(1, [0b1000])
    assert core.state.deleted.tolist() == [1, 0, 0]
    core.acknowledge_up_to(1)
    assert core.state.s[st_.MARK_DELETE] == 1


# --- redelivery requests ---------------------------------------------------------------------------------------------


@given(BATCHES, some.booleans(), some.booleans())
@settings(deadline=None)
def test_a_redelivery_request_is_its_parts(
    batches: list[tuple[int, int]], everything: bool, in_one_batch: bool
) -> None:
    """The same in the order of a trace, where the counters follow the replay set."""
    sizes, owners = [size for size, _ in batches], [slot for _, slot in batches]
    whole, parts = delivered(sizes, owners), delivered(sizes, owners)
    for state in (whole, parts):
        state.s[st_.REDELIVERS_IN_ONE_BATCH] = int(in_one_batch)
        commands.flow(state, 0, 7)
    entries = np.flatnonzero(whole.holder == 0)
    parked = int(whole.parked_permits[0])
    flows = commands.redeliver(whole, 0, np.arange(len(sizes)), everything, NO_ROOM)
    messages = 0
    for entry in entries:
        pending_acks.let_go(parts, 0, entry)
        commands.add_requested(parts, entry)
        messages += sizes[entry]
    commands.lower_for_redelivery(parts, 0, messages, everything)
    assert commands.flow_parked(parts, 0, everything) == flows
    assert same(whole, parts)
    assert flows == (int(everything or in_one_batch or parked > 0), parked)
    assert unacked_agrees(whole)
    assert whole.unacked[0] == 0
    assert not whole.blocked[0]
    assert np.flatnonzero(whole.in_replay).tolist() == entries.tolist()
    assert whole.redelivery_count.tolist() == [int(slot == 0) for slot in owners]


def test_everything_is_what_the_consumer_holds() -> None:
    named, all_ = delivered([2, 3, 1], [0, 1, 0]), delivered([2, 3, 1], [0, 1, 0])
    commands.redeliver(named, 0, np.array([0, 2]), True, NO_ROOM)
    commands.redeliver_all(all_, 0, 0, 3, NO_ROOM)
    assert same(named, all_)


@pytest.mark.parametrize(("in_one_batch", "left"), [(False, 0), (True, 3)])
def test_a_request_for_everything_sets_the_counter_to_zero_until_25589(in_one_batch: bool, left: int) -> None:
    """A counter that is 3 too high, as after an entry that was charged and refused: subtracted, or forgotten.

    The replay without a trace once subtracted in every release; now it calls the same step.
    """
    state = delivered([2], [0])
    permits.add_unacked(state, 0, 3)
    state.s[st_.REDELIVERS_IN_ONE_BATCH] = int(in_one_batch)
    commands.redeliver_all(state, 0, 0, 1, NO_ROOM)
    assert (state.unacked[0], state.s[st_.TOTAL_UNACKED]) == (left, left)


def test_an_entry_below_mark_delete_is_not_replayed() -> None:
    state = delivered([1, 1], [0, 0])
    commands.acknowledge(state, 0)  # by the cursor alone: still pending
    commands.redeliver(state, 0, np.arange(2), True, NO_ROOM)
    assert (state.in_replay.tolist(), state.redelivery_count.tolist()) == ([0, 1], [0, 1])
    commands.ack(state, 1)
    assert state.redelivery_count[1] == 0


# --- end of a round --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "has_more", "needs_more", "sent_to", "looks_ahead", "retries"),
    [
        (True, True, 1, 0, True, True),
        (True, False, 1, 0, False, True),  # #26236: nothing more to look at
        (True, False, 0, 2, True, True),
        (False, True, 0, 2, False, False),
        (False, True, 0, 0, False, True),
    ],
)
def test_end_of_a_round(
    wants: bool, has_more: bool, needs_more: int, sent_to: int, looks_ahead: bool, retries: bool
) -> None:
    state = delivered([1], [0])
    state.s[st_.LOOK_AHEAD_NEEDS_MORE] = needs_more
    state.s[st_.SEND_IN_PROGRESS] = 1
    answer = commands.end_round(state, wants, has_more, sent_to)
    assert bool(answer & commands.LOOKS_AHEAD) is looks_ahead
    assert bool(answer & commands.RETRIES) is retries
    assert (state.s[st_.SEND_IN_PROGRESS], state.s[st_.SKIP_NEXT_REPLAY]) == (0, int(looks_ahead))


@pytest.mark.parametrize(
    ("owners", "sent_to", "recent", "answer"),
    [
        (-1, 0, 0, commands.RETRIES),  # an empty result
        (2, 0, 0, commands.LOOKS_AHEAD | commands.RETRIES),
        (0, 0, 1, 0),
        (2, 1, 0, commands.WAITS_FOR_WRITES),
        (2, 2, 0, 0),
    ],
)
def test_end_of_a_classic_round(owners: int, sent_to: int, recent: int, answer: int) -> None:
    state = delivered([1], [0])
    state.s[st_.N_RECENT] = recent
    assert commands.end_classic_round(state, owners, sent_to) == answer
    assert state.s[st_.SKIP_NEXT_REPLAY] == int(bool(answer & commands.LOOKS_AHEAD))
