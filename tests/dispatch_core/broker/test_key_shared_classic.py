"""Key_Shared by read position (3.x, classic of 4.x): the proposal's flows break order here, and any history's invariants."""

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
    """The hash of a key whose owner is ``first`` with c1 and c2 connected, and ``then`` with c3 too."""
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


class Life:
    """A dispatcher over a log of hashes, with reads that complete at once unless they are told not to."""

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
    """What waited for permits of the older consumer is sent to the newcomer, what the older one holds comes after."""
    profile = profile_of(version)
    a, b = key_that_goes(profile, 1, 3), key_that_goes(profile, 2, 2)
    life = Life(profile, [a, a, a, b, b, b])
    life.join(1, 1)
    life.join(2, 1000)
    life.run()
    assert life.got == {1: [0], 2: [3, 4, 5]}
    life.join(3, 1000)
    assert life.core.recently_joined() == {3: 6}
    life.run()
    life.leave(1)
    assert life.got[3] == [1, 2, 0]


def test_flow_1_race_breaks_order() -> None:
    """The read position has passed entries that are not dispatched yet: they are before the newcomer's position."""
    profile = profile_of("3.3.9")
    a, b = key_that_goes(profile, 1, 3), key_that_goes(profile, 2, 2)
    life = Life(profile, [a, a, a, a, b, b])
    life.join(1, 1)
    life.join(2, 1000)
    assert life.core.attempt_read().kind == "Normal"
    life.dispatch("Normal", [0])
    life.give(1, 1000)
    assert life.core.attempt_read().kind == "Normal"
    life.core.read_position_seen(6)  # the cursor has moved, the entries are on their way
    life.join(3, 1000)
    life.dispatch("Normal", [1, 2, 3, 4, 5])
    life.run()
    life.leave(1)
    assert life.got[3] == [1, 2, 3, 0]


@pytest.mark.parametrize("version", ["3.0.17", "3.3.9"])
def test_flow_2_breaks_order(version: str) -> None:
    profile = profile_of(version)
    a = key_that_goes(profile, 1, 3)
    life = Life(profile, [a, a])
    life.join(1, 1)
    life.join(2, 1000)
    life.run()
    life.join(3, 1000)
    life.run()
    life.leave(1)
    assert life.got == {1: [0], 3: [1, 0]}


def test_a_newcomer_gets_nothing_that_was_not_read_when_it_joined() -> None:
    """Until all before is acknowledged; then it is free."""
    profile = profile_of("3.3.9")
    a, b = key_that_goes(profile, 1, 3), key_that_goes(profile, 2, 2)
    life = Life(profile, [b, b, a, a])
    life.stored = 2
    life.join(1, 1000)
    life.join(2, 1000)
    life.run()
    life.join(3, 1000)
    life.stored = 4
    life.core.read_done("Normal", [])  # the waiting read wakes up
    life.core.finish_round(life.core.round("Normal", []), has_more=True)
    life.run()
    assert 3 not in life.got
    assert life.core.recently_joined() == {3: 2}
    life.ack(0)
    assert life.core.recently_joined() == {3: 2}
    life.ack(1)
    assert life.core.recently_joined() == {}
    life.run()
    assert life.got[3] == [2, 3]


# --- what differs between releases -------------------------------------------------------------------------------------


def behind(version: str) -> Life:
    """Two newcomers, the second one with the smaller position: the first two have left, and the cursor was rewound."""
    life = Life(profile_of(version), list(range(1, 9)))
    life.join(1, 0)
    s = life.core.state.s
    for number, read_position in ((2, 8), (3, 4)):
        s[st_.READ_POSITION] = read_position
        life.join(number, 10)
    return life


@pytest.mark.parametrize(
    ("version", "order"), [("3.0.8", [2, 3]), ("3.0.9", [3, 2]), ("4.0.1", [2, 3]), ("4.0.2", [3, 2])]
)
def test_newcomers_are_sorted_since_23795(version: str, order: list[int]) -> None:
    assert list(behind(version).core.recently_joined()) == order


def test_an_older_newcomer_with_a_larger_position_holds_up_the_next_before_23795() -> None:
    for version, freed in (("3.0.8", {2: 8, 3: 4}), ("3.0.9", {2: 8})):
        life = behind(version)
        for entry in range(4):
            life.core.acknowledge(entry)
        life.core.prune()
        assert life.core.recently_joined() == freed


@pytest.mark.parametrize(("version", "remembered"), [("3.0.8", True), ("3.0.9", False)])
def test_nobody_is_remembered_while_a_rewind_is_due_since_23802(version: str, remembered: bool) -> None:
    life = Life(profile_of(version), [1, 2, 3])
    life.join(1, 10)
    life.core.state.s[st_.READ_POSITION] = 3
    life.core.state.s[st_.REWIND_DUE] = 1
    life.join(2, 10)
    assert (2 in life.core.recently_joined()) is remembered


@pytest.mark.parametrize(("version", "kept"), [("3.3.9", True), ("4.0.0", False), ("4.2.4", False)])
def test_the_classic_dispatcher_of_4x_forgets_the_hash_of_a_pending_ack(version: str, kept: bool) -> None:
    """What a leaving consumer held enters the replay set with hash 0: R0 does not see its keys."""
    life = Life(profile_of(version), [77, 77])
    life.stored = 1
    life.join(1, 10)
    life.join(2, 0)
    life.run()
    holder = life.core.holder(0)
    if holder is None:  # it went to the consumer without permits
        life.give(2, 10)
        life.run()
        holder = life.core.holder(0)
    assert holder is not None
    life.core.drop(holder, life.core.select_out(holder))
    state = life.core.state
    assert life.core.hash_value(int(state.replay_hash[0])) == (77 if kept else UNKNOWN_HASH)
    assert state.replay_count[state.hash_id[1]] == int(kept)


def test_a_replaced_hash_is_not_counted() -> None:
    """A position that enters with hash 0 and is put back with its own is counted under 0, and lowers its own's count."""
    life = Life(profile_of("4.2.4"), [77, 77])
    state = life.core.state
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
    """Nothing could be sent: the next look at the replay set finds nothing, a normal read follows."""
    profile = profile_of("3.3.9")
    a, b = key_that_goes(profile, 1, 1), key_that_goes(profile, 2, 2)
    life = Life(profile, [a, a, a, b])
    life.join(1, 1)
    life.join(2, 1)
    life.core.attempt_read()
    life.dispatch("Normal", [0, 1])  # one of two
    life.core.attempt_read()
    life.core.read_done("Normal", [2])
    outcome = life.core.round("Normal", [2])
    assert life.core.finish_round(outcome, has_more=True)
    assert outcome.retry
    assert life.core.attempt_read().kind == "Normal"


@pytest.mark.parametrize(("version", "kind"), [("3.0.4", "Replay"), ("3.0.5", "None")])
def test_a_replay_read_leaves_out_what_has_no_permits_since_22245(version: str, kind: str) -> None:
    profile = profile_of(version)
    a = key_that_goes(profile, 1, 1)
    life = Life(profile, [a, a])
    life.join(1, 1)
    life.join(2, 5)
    life.core.attempt_read()
    life.dispatch("Normal", [0, 1])
    life.core.state.s[st_.PENDING_READ] = 1
    assert life.core.attempt_read().kind == kind


def test_only_profiles_of_the_read_position_are_taken() -> None:
    with pytest.raises(UnsupportedRuleError):
        Life(profiles.resolve("4.2.4"), [1])


# --- any history ---------------------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(st.sampled_from(("join", "leave", "flow", "ack", "nack", "store", "run")), st.integers(0, 30)),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(version=st.sampled_from(RELEASES), events=EVENTS, ordered=st.booleans())
def test_invariants_hold_in_any_history(version: str, events: list[tuple[str, int]], ordered: bool) -> None:
    """Newcomers keep their order, counts fit, nobody gets an entry beyond its position, all is sent in the end."""
    profile = profiles.resolve(version, CLASSIC if version >= "4" else {}, allow_out_of_order=not ordered)
    values = [profile.hash_space.sticky(hashing.h31(b"%d" % (n % 5))) for n in range(30)]
    life = Life(profile, values, consumers=70)
    life.stored = 0
    joined = 0
    for what, n in events:
        connected = life.core.connected()
        if what == "join":
            joined += 1
            life.join(joined, n)
        elif what == "store":
            life.stored = min(life.stored + 1 + n % 7, 30)
            if life.core.reads_ahead():
                life.dispatch("Normal", [])
        elif what == "run":
            life.run()
        elif connected and what == "leave":
            life.leave(connected[n % len(connected)])
        elif connected and what == "flow":
            life.give(connected[n % len(connected)], n)
        elif what == "ack":
            held = [e for c in connected for e in life.core.pending_on(c)]
            if held:
                life.ack(held[n % len(held)])
        elif connected and what == "nack":
            consumer = connected[n % len(connected)]
            asked = life.core.pending_on(consumer)
            life.core.redeliver(consumer, asked, everything=True)
        life.core.check_invariants()
        for consumer, position in life.core.recently_joined().items():
            assert consumer in life.core.connected()
            assert position > life.core.state.s[st_.MARK_DELETE] or not profile.changes & {
                "recently_joined_sorted"
            }
        if not ordered:
            assert not life.core.recently_joined()
    drain(life)


def drain(life: Life) -> None:
    """With permits and acks enough everything that is stored gets acknowledged: nothing stays behind."""
    if not life.core.connected():
        return
    for _ in range(3 * life.stored + 3):
        for consumer in life.core.connected():
            life.give(consumer, 100)
        life.run()
        if life.core.reads_ahead():
            life.dispatch("Normal", [])
        for consumer in life.core.connected():
            for entry in life.core.pending_on(consumer):
                life.ack(entry)
    assert life.core.state.s[st_.MARK_DELETE] == life.stored - 1
