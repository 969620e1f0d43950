"""Checks for wrong rules that no recording shows: each holds under the right rule and fails under the wrong one.

The checks give small histories to the core directly. Consumers are numbers; entries 0, 1, … have ``KEY`` by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dispatch_core.broker import hashing, permits
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.selectors.consistent_hashing import ConsistentHashingSelector
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from tests.wrong_rules.non_persistent import NON_PERSISTENT_CHECKS

KEY: Final = 11858
DELAY: Final = "activeConsumerFailoverDelayTimeMillis"


def key_shared(version: str, sizes: list[int], **config: Any) -> KeySharedDispatcher:
    """Make a dispatcher over entries of one key."""
    hashes = np.full(len(sizes), KEY, np.int64)
    return KeySharedDispatcher(resolve(version, config), hashes, np.array(sizes, np.int64), 4)


def connect(core: KeySharedDispatcher, consumer: int, given: int) -> None:
    """Let a consumer join and grant permits."""
    core.join(consumer, f"c{consumer}")
    core.join_selector(consumer)
    if given and core.flow(consumer, given):
        core.flow_applied(consumer, given)


def dispatch(core: KeySharedDispatcher, kind: str, entries: list[int]) -> dict[int, list[int]]:
    """Dispatch the result of an attempted read; return the entries of each consumer."""
    if not core.read_done(kind, entries):
        return {}
    outcome = core.round(kind, entries)
    core.finish_round(outcome, has_more=True)
    return outcome.sent


def failover(version: str = "4.2.4", **config: Any) -> SingleActiveDispatcher:
    """Make a Failover dispatcher with active consumer 2, which has 10 permits; 1 would be preferred to it."""
    profile = resolve(version, config, subscription_type="Failover", partition_index=0)
    core = SingleActiveDispatcher(profile, "t", 0, exclusive=False, num_messages=np.ones(20, np.int64))
    core.join(2, "c2")
    core.begin_active_change()
    if core.delay_running:
        core.delay_over()
    core.flow(2, 10)
    return core


def average_is_rounded_half_up() -> None:
    """5 messages in 2 entries: 3 per entry, so 3 messages of room take one entry, not two."""
    core = key_shared("4.2.4", [2, 3, 1, 1], maxUnackedMessagesPerConsumer=8)
    connect(core, 1, 100)
    core.attempt_read()
    assert dispatch(core, "Normal", [0, 1]) == {1: [0, 1]}
    assert permits.usable_permits(core.state, 0) == 1


def average_is_smoothed() -> None:
    """4 messages per entry, then 1: the average goes from 4 to 3.7, and 8 messages of room take two entries."""
    core = key_shared("4.2.4", [4, 1, 1, 1], maxUnackedMessagesPerConsumer=13)
    connect(core, 1, 100)
    for entry in (0, 1):
        core.attempt_read()
        dispatch(core, "Normal", [entry])
    assert float(core.state.average[0]) == 4 * 0.9 + (1 - 0.9) * 1
    assert permits.usable_permits(core.state, 0) == 2


def subscription_unblocks_below_half() -> None:
    """A limit of 4: with 2 unacknowledged messages the consumer stays blocked, with 1 it does not."""
    core = key_shared("4.2.4", [1] * 8, maxUnackedMessagesPerSubscription=4)
    connect(core, 1, 100)
    core.attempt_read()
    dispatch(core, "Normal", [0, 1, 2, 3])
    for entry, pending in ((0, True), (1, True), (2, False)):
        core.ack(entry)
        assert (core.attempt_read().kind == "None") is pending


def everything_asked_for_sets_the_counter_to_zero_until_4_2_2() -> None:
    """A half acknowledged batch, known to the counter alone: "redeliver all" subtracts or forgets it."""
    for version, left in (("4.2.1", 0), ("4.2.4", 2)):
        core = key_shared(version, [4])
        connect(core, 1, 100)
        core.attempt_read()
        dispatch(core, "Normal", [0])
        core.pending_ack_removed(0)
        core.lower_for_redelivery(1, 2, everything=True)
        assert core.unacked(1) == left


def the_first_consumer_finds_a_rewound_cursor() -> None:
    """All consumers leave; the next one gets all entries that are not acknowledged."""
    core = key_shared("4.2.4", [1] * 4)
    connect(core, 1, 100)
    core.attempt_read()
    dispatch(core, "Normal", [0, 1, 2])
    core.acknowledge(0)
    core.leave(1)
    core.join(2, "c2")
    assert int(core.state.s[st_.READ_POSITION]) == 1


def a_read_from_before_all_left_is_dropped() -> None:
    """A read completes after the next first consumer has joined: none of it is sent, the cursor rewinds."""
    core = key_shared("4.2.4", [1] * 4)
    connect(core, 1, 100)
    assert core.attempt_read().kind == "Normal"
    core.leave(1)
    connect(core, 2, 100)
    assert dispatch(core, "Normal", [0, 1]) == {}
    assert core.attempt_read().kind == "Normal"
    assert dispatch(core, "Normal", [0, 1]) == {2: [0, 1]}


def an_attempt_drops_what_mark_delete_has_passed_until_4_2_2() -> None:
    """An entry is acknowledged while it waits in the replay set."""
    for version, waiting in (("4.0.0", 0), ("4.2.4", 1)):
        core = key_shared(version, [1] * 2)
        connect(core, 1, 1)
        core.attempt_read()
        dispatch(core, "Normal", [0, 1])  # one permit: the second entry has to wait
        for entry in (0, 1):
            core.acknowledge(entry)
        core.attempt_read()
        assert int(core.state.s[st_.N_REPLAY]) == waiting


def a_joining_consumer_right_behind_mark_delete_is_free() -> None:
    """The read position is one entry past mark-delete: no entry is outstanding that the joining consumer could overtake."""
    core = key_shared("4.0.0-preview.1", [1] * 2)
    connect(core, 1, 100)
    core.attempt_read()
    dispatch(core, "Normal", [0])
    core.acknowledge(0)
    connect(core, 2, 100)
    assert [int(at) for at in core.state.joined_at[:2]] == [st_.NOT_TRACKED] * 2


def classic(version: str) -> ClassicKeySharedDispatcher:
    """Make a classic dispatcher with two consumers, the first of which got entries 0 to 4."""
    config = {"subscriptionKeySharedUseClassicPersistentImplementation": True}
    core = ClassicKeySharedDispatcher(resolve(version, config), np.full(6, KEY), np.ones(6, np.int64), 4)
    connect(core, 1, 100)
    core.attempt_read()
    dispatch(core, "Normal", [0, 1, 2, 3, 4])
    return core


def a_classic_consumer_right_behind_mark_delete_is_free() -> None:
    """The same for the last sent position."""
    core = classic("4.2.4")
    for entry in range(4):
        core.acknowledge(entry)
    connect(core, 2, 0)
    assert core.recently_joined() == {2: 5}
    core.leave(2)
    core.acknowledge(4)
    connect(core, 3, 0)
    assert core.recently_joined() == {}


def recently_joined_consumers_stand_by_position_since_4_0_2() -> None:
    """The read position has gone back between two joins."""
    for version, order in (("4.0.0", [2, 3]), ("4.2.4", [3, 2])):
        core = classic(version)
        connect(core, 2, 0)
        core.state.s[st_.READ_POSITION] = 3
        connect(core, 3, 0)
        assert list(core.recently_joined()) == order


def the_first_on_a_point_keeps_it() -> None:
    """Point 34919 belongs to c1 when c3 comes to it, and to c3 once c1 has left."""
    ring = ConsistentHashingSelector(replica_points=100)
    for consumer in (1, 2, 3):
        ring.add(consumer, f"c{consumer}")
    assert ring.select(34919) == 1
    ring.remove(1)
    assert ring.select(34919) == 3


def the_hash_zero_is_one() -> None:
    """``key-30884`` falls on slot 0 of 65536, which means "no hash" in 4.x."""
    key = np.array([hashing.h31(b"key-30884")], np.int64)
    assert hashing.RANGE_4X.sticky_array(key).tolist() == [1]
    assert hashing.MURMUR_31.sticky_array(key).tolist() == [1362034688]


def the_failover_delay_does_not_hold_a_read_after_a_write() -> None:
    """After a written batch the next read is for the active consumer, even during the delay."""
    core = failover(**{DELAY: 1000})
    core.join(1, "c1")
    core.flow(1, 5)
    core.begin_active_change()
    assert core.delay_running
    assert core.attempt_read(1) == 5


def the_failover_delay_holds_flow() -> None:
    """A flow command of the new active consumer makes no read before the cursor is rewound."""
    core = failover(**{DELAY: 1000})
    core.join(1, "c1")
    core.begin_active_change()
    core.flow(1, 5)
    assert core.delay_running
    assert not core.flow_reads(1)


def a_read_for_the_old_active_consumer_is_dropped() -> None:
    """A read was running at the active-consumer change: the new consumer gets none of it, and the cursor rewinds."""
    core = failover()
    assert core.attempt_read(2) == 10
    core.join(1, "c1")
    core.cancel_read(cancelled=False)
    core.begin_active_change()
    result = core.read_done([0, 1])
    assert result.entries is None
    assert result.rewound


def a_replaced_read_is_ignored_since_4_2_4() -> None:
    """A redelivery request could not cancel the running read and starts a new one."""
    for version, sent in (("4.2.4", None), ("4.2.3", (0, 1))):
        core = failover(version)
        core.attempt_read(2)
        core.redeliver(2, cancelled=False)
        core.attempt_read(2)
        assert core.read_done([0, 1]).entries == sent


def trim_lowers_unacked_counters() -> None:
    """A consumer that is blocked on unacknowledged messages gets on when they are skipped."""
    core = key_shared("4.2.4", [1] * 10, maxUnackedMessagesPerConsumer=4)
    connect(core, 1, 8)
    core.attempt_read()
    assert dispatch(core, "Normal", [0, 1, 2, 3]) == {1: [0, 1, 2, 3]}
    assert core.is_blocked(1)
    core.move_forward(3)
    core.trim_passed()
    assert core.unacked(1) == 0
    assert not core.is_blocked(1)


def _permits_of_a_batch(*acks: tuple[bool, int]) -> int:
    """Deliver a batch of four after acks (cumulative or not, and the indexes they leave); return what it cost."""
    profile = resolve("4.2.4", {DELAY: 0}, subscription_type="Failover", partition_index=0)
    core = SingleActiveDispatcher(profile, "t", 0, exclusive=False, num_messages=np.array([4]))
    core.join(1, "c1")
    core.begin_active_change()
    core.flow(1, 10)
    for cumulative, left in acks:
        (core.acknowledge_up_to if cumulative else core.acknowledge)(0, [left])
    core.attempt_read(1)
    core.send(core.read_done([0]).entries or ())
    return 10 - core.permits[1]


def a_cumulative_ack_takes_single_indexes_back() -> None:
    """Index 3 alone, then 0 cumulatively: 1, 2 and 3 are left."""
    assert _permits_of_a_batch((False, 0b0111), (True, 0b1110)) == 3


def a_late_cumulative_ack_changes_nothing() -> None:
    """Cumulatively up to 2, then late up to 1: only 3 is left."""
    assert _permits_of_a_batch((True, 0b1000), (True, 0b1100)) == 1


def shared(sizes: list[int], consumers: dict[int, tuple[int, int]]) -> SharedDispatcher:
    """Make a Shared dispatcher with these consumers: number → priority level and permits."""
    profile = resolve("4.2.4", {"dispatcherMaxRoundRobinBatchSize": 1}, subscription_type="Shared")
    core = SharedDispatcher(profile, np.zeros(len(sizes), np.int64), np.array(sizes), 2 * len(consumers))
    for consumer, (level, given) in consumers.items():
        core.join(consumer, f"c{consumer}", level)
        core.flow(consumer, given)
        core.flow_applied(consumer, given)
    return core


def turns(core: SharedDispatcher, entries: list[int]) -> list[int]:
    """Dispatch a read result; return the consumers in the order of their turns."""
    core.attempt_read()
    core.read_done("Normal", entries)
    outcome = core.round("Normal", entries)
    core.finish_round(outcome)
    return [turn.consumer for turn in outcome.turns]


def better_levels_come_first() -> None:
    """The broker's own example, and a consumer of level 0 that gets permits again."""
    core = shared([1] * 9, {1: (0, 2), 2: (0, 1), 3: (0, 1), 4: (1, 2), 5: (1, 1)})
    assert turns(core, [0, 1, 2, 3, 4]) == [1, 2, 3, 1, 4]
    core.flow(1, 1)
    core.flow_applied(1, 1)
    assert turns(core, [5, 6, 7]) == [1, 4, 5]


def a_new_dispatcher_begins_with_the_first_consumer() -> None:
    """A subscription that is deleted and made again has a new dispatcher; one whose consumers left has the old one."""
    core = shared([1] * 9, {1: (0, 5), 2: (0, 5)})
    assert turns(core, [0]) == [1]
    for consumer in (1, 2):
        core.leave(consumer)
    core.made_anew()
    core.reset(1)
    for consumer in (3, 4):
        core.join(consumer, f"c{consumer}")
        core.flow(consumer, 5)
        core.flow_applied(consumer, 5)
    assert turns(core, [1]) == [3]


def two_consumers_hold_an_entry() -> None:
    """It is sent to consumer 1, and once more to consumer 2 from an overlapping read: each acknowledges it."""
    core = shared([1] * 2, {1: (0, 5), 2: (0, 5)})
    assert turns(core, [0]) + turns(core, [0]) == [1, 2]
    acked = core.ack(0, by=1)
    assert acked is not None
    assert acked.consumer == 1
    assert core.pending_on(2) == [0]


#: Wrong rule → the check that it fails.
CHECKS: Final[dict[str, Callable[[], None]]] = {
    "trim_keeps_unacked": trim_lowers_unacked_counters,
    "average_rounded_down": average_is_rounded_half_up,
    "average_not_smoothed": average_is_smoothed,
    "subscription_unblocks_at_half": subscription_unblocks_below_half,
    "redeliver_all_counts_each": everything_asked_for_sets_the_counter_to_zero_until_4_2_2,
    "no_rewind": the_first_consumer_finds_a_rewound_cursor,
    "old_read_is_dispatched": a_read_from_before_all_left_is_dropped,
    "trim_at_attempts": an_attempt_drops_what_mark_delete_has_passed_until_4_2_2,
    "alone_held_back_too": a_joining_consumer_right_behind_mark_delete_is_free,
    "classic_held_back_with_one_entry_read": a_classic_consumer_right_behind_mark_delete_is_free,
    "classic_recently_joined_sorted": recently_joined_consumers_stand_by_position_since_4_0_2,
    "joining_wins_a_point": the_first_on_a_point_keeps_it,
    "hash_zero": the_hash_zero_is_one,
    "failover_delay_holds_reads": the_failover_delay_does_not_hold_a_read_after_a_write,
    "failover_delay_does_not_hold_flow": the_failover_delay_holds_flow,
    "failover_old_read_is_sent": a_read_for_the_old_active_consumer_is_dropped,
    "failover_epochs": a_replaced_read_is_ignored_since_4_2_4,
    "failover_cumulative_set_is_joined": a_cumulative_ack_takes_single_indexes_back,
    "failover_cumulative_set_goes_back": a_late_cumulative_ack_changes_nothing,
    "shared_level_of_the_index_first": better_levels_come_first,
    "shared_worse_levels_never": better_levels_come_first,
    "shared_last_holder_only": two_consumers_hold_an_entry,
    "shared_new_dispatcher_goes_on": a_new_dispatcher_begins_with_the_first_consumer,
    **NON_PERSISTENT_CHECKS,
}
