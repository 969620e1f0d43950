"""The Failover/Exclusive dispatcher: active-consumer change, delay, rewind, reads, permits, redelivery."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.single_active_rules import ActiveChange, ConsumerBusyError, read_size
from dispatch_core.broker.state import MARK_DELETE, READ_POSITION
from dispatch_core.errors import IllegalTransitionError

DELAY = "activeConsumerFailoverDelayTimeMillis"


def failover(
    version: str = "4.2.4",
    *,
    partition: int = 0,
    entries: int = 20,
    sizes: list[int] | None = None,
    **config: Any,
) -> SingleActiveDispatcher:
    profile = resolve(version, config, subscription_type="Failover", partition_index=partition)
    messages = np.ones(entries, np.int64) if sizes is None else np.array(sizes, np.int64)
    return SingleActiveDispatcher(
        profile, "persistent://public/default/t", partition, exclusive=False, num_messages=messages
    )


def exclusive(
    version: str = "4.2.4", *, hashes: list[int] | None = None, entries: int = 20
) -> SingleActiveDispatcher:
    profile = resolve(version, {}, subscription_type="Exclusive")
    return SingleActiveDispatcher(
        profile, "t", -1, exclusive=True, num_messages=np.ones(entries, np.int64), hashes=hashes
    )


def start(core: SingleActiveDispatcher, consumer: int, name: str, permits: int) -> None:
    """Let a first consumer join: active and notified, with permits."""
    assert core.join(consumer, name).changed
    step, _ = core.begin_active_change()
    if step is ActiveChange.DELAY_STARTS:
        core.delay_over()
    core.flow(consumer, permits)


def dispatch(core: SingleActiveDispatcher, entries: list[int]) -> tuple[int, int]:
    """Complete a read with ``entries`` and dispatch them."""
    assert core.attempt_read(core.active) is not None
    result = core.read_done(entries)
    assert result.entries is not None
    return core.send(result.entries)


def scalars(core: SingleActiveDispatcher) -> tuple[int, int]:
    return int(core.state.s[MARK_DELETE]), int(core.state.s[READ_POSITION])


# --- active-consumer change ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("late_cumulative", "again"), [(None, [4, 6, 7, 8, 9]), (6, [7, 8, 9])])
def test_what_an_active_consumer_change_sends_again(late_cumulative: int | None, again: list[int]) -> None:
    """Mark-delete 3, 5 acknowledged, 4 to 9 sent to c1; c1 leaves, c2 gets all unacknowledged entries in order."""
    core = failover()
    start(core, 1, "c1", 10)
    assert not core.join(2, "c2").changed
    core.flow(2, 10)
    dispatch(core, list(range(10)))
    core.acknowledge_up_to(3)
    core.acknowledge(5)
    assert scalars(core) == (3, 10)
    core.flow(1, 10)
    assert core.attempt_read(1) == 10  # waits

    pick = core.leave(1)
    assert pick is not None
    assert (pick.active, pick.changed) == (2, True)
    core.cancel_read(cancelled=True)
    assert core.begin_active_change() == (ActiveChange.DELAY_STARTS, ())
    assert not core.flow_reads(2)  # the delay holds it
    if late_cumulative is not None:
        core.acknowledge_up_to(late_cumulative)  # by the consumer that is gone
    assert core.delay_over() == ((2, 2),)
    assert core.state.s[READ_POSITION] == core.state.s[MARK_DELETE] + 1
    assert core.attempt_read(2) == 10
    assert core.read_done(again).entries == tuple(again)
    with pytest.raises(IllegalTransitionError, match="never issued"):
        core.read_done([])


@pytest.mark.parametrize(
    ("size", "behind"), [(10, 9), (2, 2)], ids=["looks at all entries", "has as many as it asked for"]
)
def test_a_read_passes_the_acknowledged_entries_at_the_end(size: int, behind: int) -> None:
    """As in 4.2.4 soak-5115-failover-ring-racing: what lies behind the first entries was acknowledged before the rewind."""
    core = failover(entries=9)
    start(core, 1, "c1", size)
    for entry in range(2, 9):
        core.acknowledge(entry)
    assert core.attempt_read(1) == size
    core.read_done([0, 1])
    assert scalars(core) == (-1, behind)


def test_a_read_that_waits_at_the_end_goes_on_from_there_although_the_cursor_is_rewound() -> None:
    """As in 4.2.4 failover-batches-40045-modulo-racing: what is pending before it does not come again."""
    core = failover(entries=4)
    start(core, 2, "c2", 4)
    assert dispatch(core, [0, 1, 2, 3]) == (2, 4)
    assert core.join(1, "c1").changed
    assert core.begin_active_change()[0] is ActiveChange.DELAY_STARTS
    core.flow(1, 10)
    assert core.attempt_read(1) == 10  # nothing is stored behind entry 3
    core.delay_over()
    assert scalars(core) == (-1, 0)
    assert core.read_done([]).entries == ()
    assert scalars(core) == (-1, 4)


def test_a_read_that_returns_what_is_acknowledged_or_skips_what_is_not_is_no_read_of_this_cursor() -> None:
    core = failover()
    start(core, 1, "c1", 10)
    core.acknowledge(1)
    core.attempt_read(1)
    for wrong, why in (([0, 1, 2], "acknowledged"), ([0, 3], "skips 2"), ([2, 0], "skips 0")):
        before = copy.deepcopy(core.__dict__)
        with pytest.raises(IllegalTransitionError, match=why):
            core.read_done(wrong)
        same_state(core.__dict__, before)
    assert core.read_done([0, 1, 2], frozenset({1})).entries == (
        0,
        1,
        2,
    )  # the ack may have come after the read


def test_the_delay_does_not_hold_the_read_after_a_written_batch() -> None:
    """The new active consumer gets entries from the cursor's position, and older ones after the rewind."""
    core = failover()
    start(core, 2, "c2", 4)
    assert core.attempt_read(2) == 4
    result = core.read_done([0, 1, 2, 3])
    assert core.send(result.entries or ()) == (2, 4)
    assert core.join(1, "c1").changed  # while the batch is being written
    assert core.begin_active_change()[0] is ActiveChange.DELAY_STARTS
    core.flow(1, 3)
    assert not core.flow_reads(1)
    assert core.attempt_read(1) == 3
    assert core.read_done([4, 5, 6]).entries == (4, 5, 6)
    assert core.send([4, 5, 6]) == (1, 3)
    assert core.delay_over() == ((1, 1), (2, 1))
    core.flow(1, 10)
    assert dispatch(core, [0, 1, 2, 3, 4, 5, 6]) == (1, 10)


def test_a_running_read_completes_for_the_wrong_consumer_and_rewinds_at_once() -> None:
    core = failover()
    start(core, 2, "c2", 4)
    assert core.attempt_read(2) == 4
    assert core.join(1, "c1").changed
    core.cancel_read(cancelled=False)
    assert core.begin_active_change() == (ActiveChange.WAITS_FOR_READ, ())
    result = core.read_done([0, 1, 2, 3])
    assert (result.entries, result.rewound, result.notified) == (None, True, ((1, 1), (2, 1)))
    assert scalars(core) == (-1, 0)
    assert not core.delay_running


def test_a_second_change_while_the_delay_runs_starts_no_second_delay() -> None:
    core = failover()
    start(core, 3, "c3", 4)
    core.join(2, "c2")
    assert core.begin_active_change()[0] is ActiveChange.DELAY_STARTS
    core.join(1, "c1")
    assert core.begin_active_change()[0] is ActiveChange.DELAY_RUNS
    assert core.delay_over() == ((1, 1), (2, 1), (3, 1))  # the consumer that is active then
    with pytest.raises(IllegalTransitionError, match="no active-consumer change is under way"):
        core.delay_over()


@pytest.mark.parametrize("delay", [0, -1])
def test_without_a_delay_a_change_rewinds_at_once(delay: int) -> None:
    config: dict[str, Any] = {DELAY: delay}
    core = failover(**config)
    core.join(1, "c1")
    assert core.begin_active_change() == (ActiveChange.AT_ONCE, ((1, 1),))


def test_the_last_consumer_leaves_and_another_comes() -> None:
    core = failover()
    start(core, 1, "c1", 5)
    dispatch(core, [0, 1])
    core.acknowledge(0)
    core.attempt_read(1)
    assert core.leave(1) is None
    assert core.active is None
    core.cancel_read(cancelled=True)
    assert core.would_read(1) is None
    pick = core.join(2, "c0")
    assert (pick.active, pick.changed) == (2, True)
    core.begin_active_change()
    core.delay_over()
    assert scalars(core) == (0, 1)
    core.flow(2, 5)
    assert dispatch(core, [1, 2]) == (2, 5)


def test_nobody_is_there_when_the_read_of_the_last_consumer_completes() -> None:
    core = failover()
    start(core, 1, "c1", 5)
    core.attempt_read(1)
    core.leave(1)
    core.cancel_read(cancelled=False)
    result = core.read_done([0, 1])
    assert (result.entries, result.rewound, result.notified) == (None, True, ())


def test_consumers_of_a_worse_level_wait_until_all_better_ones_are_gone() -> None:
    core = failover(partition=1)
    assert core.join(1, "a", 1).active == 1
    assert core.join(2, "b", 0).active == 2
    assert core.join(3, "c", 0).order == (2, 3, 1)
    assert core.active == 3  # partition 1 of the two best
    core.leave(2)
    pick = core.leave(3)
    assert pick is not None
    assert pick.active == 1


def test_a_join_that_changes_nothing_is_notified_at_once() -> None:
    core = failover()
    start(core, 1, "c1", 1)
    pick = core.join(2, "c2")
    assert (pick.changed, pick.notified) == (False, ((2, 1),))


# --- who may join ----------------------------------------------------------------------------------------------------


def test_an_exclusive_subscription_takes_one_consumer() -> None:
    core = exclusive()
    start(core, 1, "a", 5)
    with pytest.raises(ConsumerBusyError, match="consumer 1 holds"):
        core.join(2, "b")
    assert core.members == (1,)
    core.leave(1)
    assert core.join(2, "b").active == 2


def test_nobody_is_notified_on_an_exclusive_subscription() -> None:
    core = exclusive()
    core.join(1, "a")
    assert core.begin_active_change() == (ActiveChange.AT_ONCE, ())


def test_a_failover_subscription_has_a_limit_of_consumers() -> None:
    core = failover()
    core._limit = 2  # maxConsumersPerSubscription
    core.join(1, "a")
    core.join(2, "b")
    with pytest.raises(ConsumerBusyError, match="maxConsumersPerSubscription"):
        core.join(3, "c")
    core.leave(1)
    core.join(3, "c")


@pytest.mark.parametrize(("version", "served"), [("4.2.4", (1, 2, 3)), ("4.0.0", (1, 2, 3, 4))])
def test_an_exclusive_consumer_with_key_hash_ranges_skips_other_keys(
    version: str, served: tuple[int, ...]
) -> None:
    """Before #24730 a gap between two ranges of one consumer was its own as well."""
    core = exclusive(version, hashes=[5, 100, 200, 65535, 101], entries=5)
    core.join(1, "a", ranges=[(100, 100), (200, 65535)])
    core.begin_active_change()
    core.flow(1, 10)
    core.attempt_read(1)
    result = core.read_done([0, 1, 2, 3, 4])
    assert result.entries == served
    assert core.send(result.entries or ()) == (1, 10)
    assert core.permits[1] == 10 - len(served)
    assert scalars(core) == (-1, 5)  # read and skipped, not acknowledged


# --- permits and reads -----------------------------------------------------------------------------------------------


def test_permits_count_messages_and_may_become_negative() -> None:
    core = failover(sizes=[3, 3, 3])
    start(core, 1, "c1", 4)
    assert dispatch(core, [0, 1]) == (1, 4)
    assert core.permits[1] == -2
    assert core.attempt_read(1) is None
    core.flow(1, 3)
    assert core.attempt_read(1) == 1


def test_batch_indexes_that_are_acknowledged_cost_no_permits() -> None:
    for version, left in (
        ("4.2.4", 10 - 2),
        ("4.0.0", 10 - 4),
    ):  # batch-index acks are on by default from 4.1.0
        core = failover(version, sizes=[4])
        start(core, 1, "c1", 10)
        core.acknowledge(0, [0b1100])  # the first two are acknowledged
        dispatch(core, [0])
        assert core.permits[1] == left
    core = failover(sizes=[4])
    core.acknowledge(0, [0b1100])
    core.acknowledge(0, [0b0011])
    assert core.state.s[MARK_DELETE] == 0


def test_a_cumulative_ack_inside_a_batch_stops_before_it() -> None:
    core = failover(sizes=[1, 1, 4])
    core.acknowledge_up_to(2, [0b1000])
    assert core.state.s[MARK_DELETE] == 1
    core.acknowledge_up_to(2)
    assert core.state.s[MARK_DELETE] == 2


@pytest.mark.parametrize(
    ("single", "cumulative", "acknowledged"),
    [
        (0b110111, 0b111100, 2),  # index 3 alone, then the first two: index 3 is unacknowledged again
        (0b111011, 0b110000, 4),
        (0b111110, 0b111110, 1),  # goes no further: nothing changes
        (0b100000, 0b111000, 5),
        (0b000111, 0b111000, 3),  # between them all six, but the entry stays
    ],
)
def test_a_cumulative_ack_replaces_single_indexes(single: int, cumulative: int, acknowledged: int) -> None:
    core = failover(sizes=[6])
    start(core, 1, "c1", 10)
    core.acknowledge(0, [single])
    core.acknowledge_up_to(0, [cumulative])
    dispatch(core, [0])
    assert core.permits[1] == 10 - 6 + acknowledged
    assert core.state.s[MARK_DELETE] == -1


@pytest.mark.parametrize(
    ("permits", "batch", "writable", "per_entry", "size"),
    [
        (7, 100, True, 0, 7),
        (700, 100, True, 0, 100),
        (7, 100, False, 0, 1),
        (7, 100, True, 3, 3),
        (1, 5, True, 9, 1),
    ],
)
def test_size_of_a_read(permits: int, batch: int, writable: bool, per_entry: int, size: int) -> None:
    assert read_size(permits, batch, writable=writable, per_entry=per_entry) == size


def test_precise_flow_control_divides_by_the_average_batch() -> None:
    core = failover(sizes=[10] * 10, preciseDispatcherFlowControl=True)
    start(core, 1, "c1", 100)
    assert core.attempt_read(1) == 100  # nothing sent yet: one message per entry
    core.read_done([0, 1])
    core.send([0, 1])
    assert core.attempt_read(1) == 8
    assert core.messages_per_entry(1) == 10


def test_a_connection_that_is_not_writable_gets_reads_of_one() -> None:
    core = failover()
    start(core, 1, "c1", 9)
    core.set_writable(1, writable=False)
    assert core.would_read(1) == 1
    core.set_writable(1, writable=True)
    assert core.attempt_read(1) == 9
    assert core.attempt_read(1) is None  # one read at a time


# --- redelivery ------------------------------------------------------------------------------------------------------


def test_a_redelivery_request_rewinds_for_the_active_consumer_only() -> None:
    core = failover()
    start(core, 1, "c1", 10)
    core.join(2, "c2")
    dispatch(core, [0, 1, 2])
    core.acknowledge(1)
    core.attempt_read(1)
    assert not core.redeliver(2, cancelled=False)
    assert core.pending
    assert core.redeliver(1, cancelled=True)
    assert scalars(core) == (-1, 0)
    assert core.attempt_read(1) == 7
    assert core.read_done([0, 2, 3]).entries == (0, 2, 3)


def test_no_redelivery_while_the_delay_runs() -> None:
    core = failover()
    core.join(1, "c1")
    core.begin_active_change()
    assert not core.redeliver(1, cancelled=False)


@pytest.mark.parametrize(
    ("version", "dispatched"), [("4.2.3", True), ("4.2.4", False), ("4.0.12", True), ("4.0.13", False)]
)
def test_the_result_of_a_disowned_read(version: str, dispatched: bool) -> None:
    """A running read at a redelivery request for everything: dispatched before #26174, ignored since."""
    core = failover(version)
    start(core, 1, "c1", 10)
    core.attempt_read(1)
    core.redeliver(1, cancelled=False)
    assert core.attempt_read(1) == 10
    result = core.read_done([0, 1])
    assert (result.entries == (0, 1)) is dispatched
    assert not result.rewound
    assert core.pending is not dispatched
    assert core.read_done([0, 1]).entries == (0, 1)


def overlapping() -> SingleActiveDispatcher:
    """A dispatcher of 4.0.0 whose read from entry 2 on waits while a later one, from entry 0 on, is in flight."""
    core = failover("4.0.0")
    start(core, 1, "c1", 30)
    dispatch(core, [0])
    core.attempt_read(1)
    core.redeliver(1, cancelled=False)
    core.attempt_read(1, start=0)
    assert core.read_done([1]).entries == (1,)  # the disowned one: the dispatcher reads again
    core.attempt_read(1, start=2)
    return core


def test_a_result_is_of_the_read_that_began_in_front_of_it() -> None:
    core = overlapping()
    assert core.reads_in_flight == 2
    assert core.read_of_result([0, 1], None, dispatched=True) == 0
    assert core.read_of_result([2, 3], None, dispatched=True) == 1
    assert core.read_of_result([2, 3], 1, dispatched=True) == 1
    assert core.read_done([2, 3], read=1).entries == (2, 3)
    # The one that is left began first and ends last, so it may have waited: then it begins where the position is.
    assert core.read_of_result([4, 5], None, dispatched=True) == 0


def test_of_reads_that_begin_alike_the_one_that_asked_for_fewest_has_a_short_result() -> None:
    core = failover("4.0.0")
    start(core, 1, "c1", 10)
    core.attempt_read(1)
    core.redeliver(1, cancelled=False)
    core.attempt_read(1, at_most=2, start=0)
    assert core.read_of_result([0, 1], 1, dispatched=True) == 1
    assert core.read_of_result([0, 1, 2], 1, dispatched=True) == 0


def test_later_reads_may_end_before_those_in_flight() -> None:
    core = failover("4.0.0")
    start(core, 1, "c1", 3)
    core.attempt_read(1)
    reads = core.reads_to_come()
    reads.issued(1, 3)
    assert not reads.ends_first([3], 1, dispatched=True)
    assert reads.left == 1
    assert reads.ends_first([0, 1, 2], 1, dispatched=True)
    assert reads.left == 0
    assert core.reads_in_flight == 1


def test_a_disowned_result_is_not_dispatched_since_its_epoch_counts() -> None:
    core = failover("4.2.4")
    start(core, 1, "c1", 10)
    core.attempt_read(1)
    core.redeliver(1, cancelled=False)
    core.attempt_read(1, start=0)
    assert core.read_of_result([0, 1], None, dispatched=True) == 1
    assert core.read_of_result([0, 1], None, dispatched=False) == 0


def test_a_read_fails_where_another_one_waits() -> None:
    core = overlapping()
    core.fail_read()
    assert (core.pending, core.reads_in_flight) == (False, 1)
    with pytest.raises(IllegalTransitionError, match="no other waits"):
        core.fail_read()


def test_the_read_that_waits_is_the_one_that_is_cancelled() -> None:
    core = overlapping()
    core.read_done([2], read=1)
    core.attempt_read(1, start=3)
    core.redeliver(1, cancelled=True)
    assert (core.reads_in_flight, core.pending) == (1, False)
    assert core.read_of_result([3], None, dispatched=True) == 0


def test_an_empty_result_passes_the_acknowledged_entries() -> None:
    core = failover()
    start(core, 1, "c1", 10)
    dispatch(core, [0, 1])
    core.acknowledge(2)
    core.acknowledge(3)
    core.attempt_read(1)
    assert core.read_done([]).entries == ()
    assert scalars(core) == (-1, 4)


# --- what cannot be --------------------------------------------------------------------------------------------------


def same_state(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name, value in before.items():
        if name == "state":
            assert all(np.array_equal(a, b) for a, b in zip(now[name], value, strict=True))
        elif name != "profile":
            assert now[name] == value, name


@pytest.mark.parametrize(
    "illegal",
    [
        lambda core: core.join(1, "c1"),
        lambda core: core.leave(9),
        lambda core: core.flow(9, 1),
        lambda core: core.acknowledge(99),
        lambda core: core.acknowledge_up_to(-1),
        lambda core: core.read_done([3, 4]),
        lambda core: core.read_done(list(range(11))),
        lambda core: core.delay_over(),
        lambda core: core.set_writable(9, writable=True),
    ],
)
def test_an_illegal_event_leaves_the_state_as_it_was(illegal: Any) -> None:
    core = failover()
    start(core, 1, "c1", 10)
    core.attempt_read(1)
    before = copy.deepcopy(core.__dict__)
    with pytest.raises(IllegalTransitionError):
        illegal(core)
    same_state(core.__dict__, before)


def test_nothing_is_sent_or_cancelled_out_of_place() -> None:
    core = failover()
    with pytest.raises(IllegalTransitionError, match="nobody is active"):
        core.send([0])
    with pytest.raises(IllegalTransitionError, match="none is pending"):
        core.cancel_read(cancelled=True)
