"""Key_Shared by read position (3.x, classic of 4.x): PIP-282's flows break order; invariants of any history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.broker import hashing, profiles, replay_set
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared_classic import UNKNOWN_HASH, ClassicKeySharedDispatcher
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.selectors import factory
from dispatch_core.errors import UnsupportedRuleError

CLASSIC = {"subscriptionKeySharedUseClassicPersistentImplementation": True}
RELEASES = ("3.0.0", "3.0.4", "3.0.17", "3.3.9", "4.0.0", "4.0.13", "4.2.4")


def profile_of(version: str, **settings: int | bool) -> Profile:
    return profiles.resolve(version, {**(CLASSIC if version >= "4" else {}), **settings})


def key_that_goes(profile: Profile, first: int, then: int) -> int:
    """Return the hash of a key whose owner is ``first`` with c1 and c2 connected, and ``then`` with c3 too."""
    selectors = [factory.build(profile), factory.build(profile)]
    for number in (1, 2):
        for selector in selectors:
            selector.add(number, f"c{number}")
    selectors[1].add(3, "c3")
    for n in range(400):
        value = profile.hash_space.sticky(hashing.h31(b"key-%d" % n))
        if [selector.select(value) for selector in selectors] == [first, then]:
            return value
    raise AssertionError("four hundred keys spread over three consumers")


class Driver:
    """A dispatcher over a log of hashes; reads complete at once by default."""

    def __init__(self, profile: Profile, hashes: list[int], consumers: int = 12) -> None:
        self.core = ClassicKeySharedDispatcher(
            profile, np.array(hashes, np.int64), np.ones(len(hashes), np.int64), consumers
        )
        self.stored = len(hashes)
        self.got: dict[int, list[int]] = {}

    def join(self, number: int, permits: int) -> None:
        self.core.join(number, f"c{number}")
        self.core.join_selector(number)
        self.give(number, permits)

    def give(self, number: int, permits: int) -> None:
        if self.core.flow(number, permits):
            self.core.flow_applied(number, permits)

    def leave(self, number: int) -> None:
        self.core.drop(number, self.core.select_out(number))
        if self.core.connected():
            self.run()
        else:
            self.core.read_cancelled()
        self.core.forget(number)
        self.run()

    def ack(self, entry: int) -> None:
        self.core.ack(entry)
        self.core.prune()

    def unread(self, size: int) -> list[int]:
        s = self.core.state.s
        waiting = [e for e in range(s[st_.READ_POSITION], self.stored) if not self.core.state.deleted[e]]
        return waiting[:size]

    def dispatch(self, kind: str, entries: list[int]) -> None:
        if not self.core.read_done(kind, entries):
            return
        outcome = self.core.round(kind, entries)
        self.core.finish_round(outcome, has_more=True)
        for consumer, sent in outcome.sent.items():
            self.got.setdefault(consumer, []).extend(sent)

    def run(self) -> None:
        """Attempt reads until none is issued."""
        for _ in range(10 * self.stored + 10):
            read = self.core.attempt_read()
            if read.kind == "Replay":
                entries = [e for e in read.entries if e not in read.already_deleted]
                if entries:
                    self.dispatch("Replay", entries)
            elif read.kind == "Normal" and self.unread(read.max_entries):
                self.dispatch("Normal", self.unread(read.max_entries))
            else:
                return


# --- the flows of PIP-282 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.0.0", "3.0.17", "3.3.9"])
def test_flow_1_breaks_order(version: str) -> None:
    """Entries that wait for the older consumer's permits go to the joining one, although older ones are outstanding."""
    profile = profile_of(version)
    a, b = key_that_goes(profile, 1, 3), key_that_goes(profile, 2, 2)
    driver = Driver(profile, [a, a, a, b, b, b])
    driver.join(1, 1)
    driver.join(2, 1000)
    driver.run()
    assert driver.got == {1: [0], 2: [3, 4, 5]}
    driver.join(3, 1000)
    assert driver.core.recently_joined() == {3: 6}
    driver.run()
    driver.leave(1)
    assert driver.got[3] == [1, 2, 0]


def test_flow_1_race_breaks_order() -> None:
    """The read position has passed entries not yet dispatched: they are before the joining consumer's position."""
    profile = profile_of("3.3.9")
    a, b = key_that_goes(profile, 1, 3), key_that_goes(profile, 2, 2)
    driver = Driver(profile, [a, a, a, a, b, b])
    driver.join(1, 1)
    driver.join(2, 1000)
    assert driver.core.attempt_read().kind == "Normal"
    driver.dispatch("Normal", [0])
    driver.give(1, 1000)
    assert driver.core.attempt_read().kind == "Normal"
    driver.core.read_position_seen(6)  # the cursor has moved, the entries are on their way
    driver.join(3, 1000)
    driver.dispatch("Normal", [1, 2, 3, 4, 5])
    driver.run()
    driver.leave(1)
    assert driver.got[3] == [1, 2, 3, 0]


@pytest.mark.parametrize("version", ["3.0.17", "3.3.9"])
def test_flow_2_breaks_order(version: str) -> None:
    profile = profile_of(version)
    a = key_that_goes(profile, 1, 3)
    driver = Driver(profile, [a, a])
    driver.join(1, 1)
    driver.join(2, 1000)
    driver.run()
    driver.join(3, 1000)
    driver.run()
    driver.leave(1)
    assert driver.got == {1: [0], 3: [1, 0]}


def test_a_joining_consumer_gets_nothing_that_was_not_read_when_it_joined() -> None:
    """The consumer waits until all entries before its position are acknowledged."""
    profile = profile_of("3.3.9")
    a, b = key_that_goes(profile, 1, 3), key_that_goes(profile, 2, 2)
    driver = Driver(profile, [b, b, a, a])
    driver.stored = 2
    driver.join(1, 1000)
    driver.join(2, 1000)
    driver.run()
    driver.join(3, 1000)
    driver.stored = 4
    driver.core.read_done("Normal", [])  # the waiting read wakes up
    driver.core.finish_round(driver.core.round("Normal", []), has_more=True)
    driver.run()
    assert 3 not in driver.got
    assert driver.core.recently_joined() == {3: 2}
    driver.ack(0)
    assert driver.core.recently_joined() == {3: 2}
    driver.ack(1)
    assert driver.core.recently_joined() == {}
    driver.run()
    assert driver.got[3] == [2, 3]


# --- what differs between releases -------------------------------------------------------------------------------------


def behind(version: str) -> Driver:
    """Two recently joined consumers, the second with the smaller position, after a rewind when all had left."""
    driver = Driver(profile_of(version), list(range(1, 9)))
    driver.join(1, 0)
    s = driver.core.state.s
    for number, read_position in ((2, 8), (3, 4)):
        s[st_.READ_POSITION] = read_position
        driver.join(number, 10)
    return driver


@pytest.mark.parametrize(
    ("version", "order"), [("3.0.8", [2, 3]), ("3.0.9", [3, 2]), ("4.0.1", [2, 3]), ("4.0.2", [3, 2])]
)
def test_recently_joined_consumers_are_sorted_since_23795(version: str, order: list[int]) -> None:
    assert list(behind(version).core.recently_joined()) == order


def test_an_older_consumer_with_a_larger_position_holds_up_the_next_before_23795() -> None:
    for version, freed in (("3.0.8", {2: 8, 3: 4}), ("3.0.9", {2: 8})):
        driver = behind(version)
        for entry in range(4):
            driver.core.acknowledge(entry)
        driver.core.prune()
        assert driver.core.recently_joined() == freed


@pytest.mark.parametrize(("version", "remembered"), [("3.0.8", True), ("3.0.9", False)])
def test_nobody_is_remembered_while_a_rewind_is_due_since_23802(version: str, remembered: bool) -> None:
    driver = Driver(profile_of(version), [1, 2, 3])
    driver.join(1, 10)
    driver.core.state.s[st_.READ_POSITION] = 3
    driver.core.state.s[st_.REWIND_DUE] = 1
    driver.join(2, 10)
    assert (2 in driver.core.recently_joined()) is remembered


@pytest.mark.parametrize(("version", "kept"), [("3.3.9", True), ("4.0.0", False), ("4.2.4", False)])
def test_the_classic_dispatcher_of_4x_forgets_the_hash_of_a_pending_ack(version: str, kept: bool) -> None:
    """Pending entries of a leaving consumer enter the replay set with hash 0: R0 does not see their keys."""
    driver = Driver(profile_of(version), [77, 77])
    driver.stored = 1
    driver.join(1, 10)
    driver.join(2, 0)
    driver.run()
    holder = driver.core.holder(0)
    if holder is None:  # it went to the consumer without permits
        driver.give(2, 10)
        driver.run()
        holder = driver.core.holder(0)
    assert holder is not None
    driver.core.drop(holder, driver.core.select_out(holder))
    state = driver.core.state
    assert driver.core.hash_value(int(state.replay_hash[0])) == (77 if kept else UNKNOWN_HASH)
    assert state.replay_count[state.hash_id[1]] == int(kept)


def test_a_replaced_hash_is_not_counted() -> None:
    """A position that enters with hash 0 and returns with its own hash counts for 0, and lowers the count of its own."""
    driver = Driver(profile_of("4.2.4"), [77, 77])
    state = driver.core.state
    own = int(state.hash_id[0])
    replay_set.add_to_replay(state, 0, int(state.s[st_.STORED_HASH]))
    replay_set.add_to_replay(state, 0, own)
    assert state.replay_count[own] == 0
    replay_set.add_to_replay(state, 1, own)
    replay_set.remove_from_replay(state, 0)
    assert state.replay_count[own] == 0
    assert state.s[st_.N_REPLAY] == 1
    replay_set.remove_from_replay(state, 1)
    assert state.replay_count[own] == 0


def test_a_stuck_round_reads_on_once() -> None:
    """If a round sends nothing, the next replay read is skipped and a normal read follows."""
    profile = profile_of("3.3.9")
    a, b = key_that_goes(profile, 1, 1), key_that_goes(profile, 2, 2)
    driver = Driver(profile, [a, a, a, b])
    driver.join(1, 1)
    driver.join(2, 1)
    driver.core.attempt_read()
    driver.dispatch("Normal", [0, 1])  # one of two
    driver.core.attempt_read()
    driver.core.read_done("Normal", [2])
    outcome = driver.core.round("Normal", [2])
    assert driver.core.finish_round(outcome, has_more=True)
    assert outcome.retry
    assert driver.core.attempt_read().kind == "Normal"


def two_owners(permits: int) -> tuple[Driver, list[int]]:
    """Return a dispatcher with two consumers that have so many permits, which has read an entry of each."""
    profile = profile_of("4.2.4")
    driver = Driver(profile, [key_that_goes(profile, 1, 1), key_that_goes(profile, 2, 2)])
    driver.join(1, permits)
    driver.join(2, permits)
    driver.core.flow(1, 1)
    driver.core.flow_applied(1, 1)
    driver.core.attempt_read()
    assert driver.core.read_done("Normal", [0, 1])
    return driver, [0, 1]


@pytest.mark.parametrize("permits", [0, 1])
def test_a_round_in_turns_without_a_change_in_between_is_a_round(permits: int) -> None:
    (whole, entries), (in_turns, _) = two_owners(permits), two_owners(permits)
    expected = whole.core.round("Normal", entries)
    steps: list[int] = []
    assert in_turns.core.round_in_turns("Normal", entries, [{2}], steps.append) == expected
    assert steps == [0, 1, 2, 3]
    assert in_turns.core.state.in_replay.tolist() == whole.core.state.in_replay.tolist()


@pytest.mark.parametrize(("later", "sent"), [({2}, {1: [0], 2: [1]}), ({1}, {1: [0]})])
def test_only_turns_to_come_see_what_another_thread_does(later: set[int], sent: dict[int, list[int]]) -> None:
    """Permits of consumer 2 arrive between two turns."""
    driver, entries = two_owners(0)

    def between(step: int) -> None:
        if step == 1:
            driver.core.flow(2, 1)

    assert driver.core.round_in_turns("Normal", entries, [later], between).sent == sent


@pytest.mark.parametrize(("version", "kind"), [("3.0.4", "Replay"), ("3.0.5", "None")])
def test_a_replay_read_leaves_out_what_has_no_permits_since_22245(version: str, kind: str) -> None:
    profile = profile_of(version)
    a = key_that_goes(profile, 1, 1)
    driver = Driver(profile, [a, a])
    driver.join(1, 1)
    driver.join(2, 5)
    driver.core.attempt_read()
    driver.dispatch("Normal", [0, 1])
    driver.core.state.s[st_.PENDING_READ] = 1
    assert driver.core.attempt_read().kind == kind


def test_only_profiles_of_the_read_position_are_taken() -> None:
    with pytest.raises(UnsupportedRuleError):
        Driver(profiles.resolve("4.2.4"), [1])


# --- any history ---------------------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(st.sampled_from(("join", "leave", "flow", "ack", "nack", "store", "run")), st.integers(0, 30)),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(version=st.sampled_from(RELEASES), events=EVENTS, ordered=st.booleans())
def test_invariants_hold_in_any_history(version: str, events: list[tuple[str, int]], ordered: bool) -> None:
    """Recently joined consumers keep their order, counts are right, position limits hold, and all entries are sent."""
    profile = profiles.resolve(version, CLASSIC if version >= "4" else {}, allow_out_of_order=not ordered)
    values = [profile.hash_space.sticky(hashing.h31(b"%d" % (n % 5))) for n in range(30)]
    driver = Driver(profile, values, consumers=70)
    driver.stored = 0
    joined = 0
    for what, n in events:
        connected = driver.core.connected()
        if what == "join":
            joined += 1
            driver.join(joined, n)
        elif what == "store":
            driver.stored = min(driver.stored + 1 + n % 7, 30)
            if driver.core.reads_ahead():
                driver.dispatch("Normal", [])
        elif what == "run":
            driver.run()
        elif connected and what == "leave":
            driver.leave(connected[n % len(connected)])
        elif connected and what == "flow":
            driver.give(connected[n % len(connected)], n)
        elif what == "ack":
            pending = [e for c in connected for e in driver.core.pending_on(c)]
            if pending:
                driver.ack(pending[n % len(pending)])
        elif connected and what == "nack":
            consumer = connected[n % len(connected)]
            asked = driver.core.pending_on(consumer)
            driver.core.redeliver(consumer, asked, everything=True)
        driver.core.check_invariants()
        for consumer, position in driver.core.recently_joined().items():
            assert consumer in driver.core.connected()
            assert position > driver.core.state.s[st_.MARK_DELETE] or not profile.changes & {
                "recently_joined_sorted"
            }
        if not ordered:
            assert not driver.core.recently_joined()
    drain(driver)


def drain(driver: Driver) -> None:
    """With enough permits and acks all stored entries are acknowledged in the end."""
    if not driver.core.connected():
        return
    for _ in range(3 * driver.stored + 3):
        for consumer in driver.core.connected():
            driver.give(consumer, 100)
        driver.run()
        if driver.core.reads_ahead():
            driver.dispatch("Normal", [])
        for consumer in driver.core.connected():
            for entry in driver.core.pending_on(consumer):
                driver.ack(entry)
    assert driver.core.state.s[st_.MARK_DELETE] == driver.stored - 1
