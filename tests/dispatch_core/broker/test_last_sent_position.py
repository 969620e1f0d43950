"""The last sent position (PIP-282, 4.0.0-preview.1): the proposal's flows and table; invariants of any history."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.broker import hashing, profiles
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.ordering import last_sent_position as rule
from dispatch_core.broker.ordering import recently_joined
from dispatch_core.broker.read_loop import dropped_by_min_replay
from dispatch_core.broker.selectors import factory

PROFILE = profiles.resolve("4.0.0-preview.1")


def key_that_goes(first: int, then: int) -> int:
    """Return the hash of a key whose owner is ``first`` with c1 and c2 connected, and ``then`` with c3 too."""
    selectors = [factory.build(PROFILE), factory.build(PROFILE)]
    for number in (1, 2):
        for selector in selectors:
            selector.add(number, f"c{number}")
    selectors[1].add(3, "c3")
    for n in range(200):
        value = PROFILE.hash_space.sticky(hashing.h31(b"key-%d" % n))
        if [selector.select(value) for selector in selectors] == [first, then]:
            return value
    raise AssertionError("two hundred keys spread over three consumers")


A = key_that_goes(1, 3)  # moves from c1 to c3 when c3 joins
B = key_that_goes(2, 2)


class Driver:
    """A dispatcher over a log of hashes; reads complete at once."""

    def __init__(self, hashes: list[int], consumers: int = 12) -> None:
        self.core = KeySharedDispatcher(
            PROFILE, np.array(hashes, np.int64), np.ones(len(hashes), np.int64), consumers
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

    def ack(self, entry: int) -> None:
        self.core.ack(entry)

    def leave(self, number: int, turns: int = 4) -> None:
        """Remove a consumer; the broker attempts a read before and after it forgets a recently joined one."""
        self.core.drop(number, self.core.select_out(number))
        self.run(turns=1)
        self.core.forget(number)
        self.run(turns)

    def read(self) -> tuple[str, list[int]] | None:
        """Attempt a read; return its kind and entries, or ``None`` if it reads nothing."""
        core = self.core
        read = core.attempt_read()
        if read.kind == "Replay":
            entries = [e for e in read.entries if e not in read.already_deleted]
        elif read.kind == "Normal":
            first = int(core.state.s[st_.READ_POSITION])
            entries = [e for e in range(first, self.stored) if not core.state.deleted[e]][: read.max_entries]
            if not entries:
                core.read_cancelled()
        else:
            entries = []
        if not entries:
            return None
        core.read_done(read.kind, entries)
        return read.kind, entries

    def round(self, kind: str, entries: list[int]) -> dict[int, list[int]]:
        outcome = self.core.round(kind, entries)
        self.core.finish_round(outcome, has_more=entries[-1] + 1 < self.stored)
        for number, sent in outcome.sent.items():
            self.got.setdefault(number, []).extend(sent)
        self.core.check_invariants()
        return outcome.sent

    def run(self, turns: int = 4) -> None:
        for _ in range(turns):
            result = self.read()
            if result is not None:
                self.round(*result)

    @property
    def last_sent(self) -> int:
        return int(self.core.state.s[st_.LAST_SENT])


# --- the proposal's own material -----------------------------------------------------------------------------------


def test_flow_1_joining_consumer_waits_for_what_was_sent_before_it() -> None:
    """1:6–1:8 of one key: 1:6 was sent to c1 before c3 took the key over, the other two wait for permits."""
    driver = Driver([A, A, A, B, B, B])
    driver.join(1, permits=1)
    driver.join(2, permits=1000)
    driver.run()
    assert driver.got == {1: [0], 2: [3, 4, 5]}
    assert (driver.last_sent, rule.sent_ranges(driver.core.state)) == (0, [(2, 5)])
    driver.join(3, permits=1000)
    driver.run()
    assert 3 not in driver.got
    driver.leave(1)
    assert driver.got[3] == [0], "1:7 and 1:8 need the ack of 1:6: c2 and c3 are still two"
    driver.ack(0)
    driver.run()
    assert driver.got[3] == [0, 1, 2]


def test_flow_1_all_at_once_when_only_the_joining_consumer_is_left() -> None:
    driver = Driver([A, A, A])
    driver.join(1, permits=1)
    driver.run()
    driver.join(3, permits=1000)
    driver.run()
    driver.leave(1)
    assert driver.got == {1: [0], 3: [0, 1, 2]}


@pytest.mark.parametrize("way_out", ["disconnect", "ack"])
def test_flow_1_with_a_read_in_flight_keeps_order(way_out: str) -> None:
    """A read has moved the read position when c3 joins, but is not dispatched; an older entry is outstanding at c1."""
    driver = Driver([A, A, A, A, B, B])
    driver.join(1, permits=1)
    driver.join(2, permits=1000)
    driver.stored = 1
    driver.run()
    driver.stored = 6
    result = driver.read()
    assert result == ("Normal", [1, 2, 3, 4, 5])
    driver.join(3, permits=1000)
    assert driver.round(*result) == {2: [4, 5]}
    driver.run()
    assert 3 not in driver.got
    if way_out == "disconnect":
        driver.leave(1)
        assert driver.got[3] == [0]
        driver.ack(0)
        driver.run()
        assert driver.got[3] == [0, 1, 2, 3]
    else:
        driver.ack(0)
        driver.run()
        assert driver.got[3] == [1, 2, 3]


def test_flow_2_keeps_order() -> None:
    """The second entry waits for permits when the key moves; the consumer with the first entry leaves."""
    driver = Driver([A, A])
    driver.join(1, permits=1)
    driver.join(2, permits=1000)
    driver.run()
    assert driver.got == {1: [0]}
    driver.join(3, permits=1000)
    driver.run()
    assert 3 not in driver.got
    driver.leave(1)
    assert driver.got[3] == [0]
    driver.ack(0)
    driver.run()
    assert driver.got[3] == [0, 1]


TABLE = [  # sent in this step, last sent position, individually sent ranges: entries of ledger 3
    ([1, 2, 3, 5, 8, 9, 10], 3, [(4, 5), (7, 10)]),
    ([7], 3, [(4, 5), (6, 10)]),
    ([6], 3, [(4, 10)]),
    ([4], 10, []),
]


def test_table_of_individually_sent_positions() -> None:
    state = st_.new_state(np.zeros(11, np.int32), np.ones(11, np.int32), 1, 1)
    state.s[st_.LAST_SENT] = 0
    for sent, last, ranges in TABLE:
        rule.begin_round(state)
        for entry in sent:
            rule.note_sent(state, entry)
        rule.advance(state)
        assert (int(state.s[st_.LAST_SENT]), rule.sent_ranges(state)) == (last, ranges)


# --- single rules --------------------------------------------------------------------------------------------------


def test_the_position_when_joining_is_allowed_the_next_one_is_not() -> None:
    assert rule.within(5, 5)
    assert not rule.within(6, 5)


def test_a_replay_read_holds_all_recently_joined_to_the_oldest_limit() -> None:
    state = st_.new_state(np.zeros(9, np.int32), np.ones(9, np.int32), 1, 3)
    for slot, position in ((1, 2), (2, 5)):
        recently_joined.hold_back(state, slot, position)
    assert rule.position_limit(state, 0, True) == recently_joined.UNRESTRICTED
    assert [rule.position_limit(state, 2, is_replay) for is_replay in (False, True)] == [5, 2]
    assert [rule.position_limit(state, 1, is_replay) for is_replay in (False, True)] == [2, 2]


def test_nobody_is_held_back_before_the_first_round_nor_with_everything_acknowledged() -> None:
    driver = Driver([A, B, B])
    driver.join(1, permits=10)
    driver.join(2, permits=10)
    assert driver.last_sent == st_.NOT_TRACKED
    assert driver.core.recently_joined() == {}
    driver.run()
    for entry in (0, 1, 2):
        driver.ack(entry)
    driver.join(3, permits=10)
    assert driver.core.recently_joined() == {}
    assert driver.core.sent_when_joining(3) == 2


def test_a_removal_reads_before_it_forgets_the_consumer_that_leaves() -> None:
    """In the read for its entries the position still limits the other consumers."""
    driver = Driver([A, B, A, B])
    driver.join(1, permits=1)
    driver.join(2, permits=1)
    driver.run()
    driver.join(3, permits=0)
    driver.join(4, permits=0)
    assert list(driver.core.recently_joined()) == [3, 4]
    driver.core.drop(3, driver.core.select_out(3))
    assert list(driver.core.recently_joined()) == [3, 4]
    driver.core.forget(3)
    assert list(driver.core.recently_joined()) == [4]


def test_when_all_have_left_nothing_counts_as_sent() -> None:
    driver = Driver([A, B, B])
    driver.join(1, permits=10)
    driver.run()
    assert driver.last_sent == 2
    driver.leave(1)
    assert driver.last_sent == st_.NOT_TRACKED
    driver.join(2, permits=10)
    driver.run()
    assert driver.got == {1: [0, 1, 2], 2: [0, 1, 2]}


def test_tracking_begins_with_what_is_acknowledged_above_mark_delete() -> None:
    driver = Driver([A, B, A, B])
    driver.join(1, permits=10)
    driver.run()
    driver.ack(0)
    driver.ack(2)
    driver.leave(1)
    driver.join(2, permits=1)
    driver.run(turns=1)
    assert driver.got[2] == [1]
    assert (driver.last_sent, rule.sent_ranges(driver.core.state)) == (2, [])


def test_sticky_and_out_of_order_subscriptions_are_not_tracked() -> None:
    for other in (
        profiles.resolve("4.0.0-preview.1", key_shared_mode="STICKY"),
        profiles.resolve("4.0.0-preview.1", allow_out_of_order=True),
    ):
        core = KeySharedDispatcher(other, np.zeros(1, np.int64), np.ones(1, np.int64), 1)
        assert not core.state.s[st_.TRACK_LAST_SENT]


# --- any history ---------------------------------------------------------------------------------------------------


class Model:
    """The rule in the proposal's words, over plain sets; recently joined consumers in the order of joining."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.last: int | None = None
        self.singly: set[int] = set()
        self.recently: dict[int, int] = {}
        self.ever: set[int] = set()

    @property
    def mark_delete(self) -> int:
        return int(self.driver.core.state.s[st_.MARK_DELETE])

    def _raise(self) -> None:
        if self.last is not None:
            self.last = max(self.last, self.mark_delete)

    def joined(self, number: int) -> None:
        self._raise()
        unread = int(self.driver.core.state.s[st_.READ_POSITION]) - self.mark_delete
        if self.last is not None and len(self.driver.core.connected()) > 1 and unread > 1:
            self.recently[number] = self.last

    def left(self, number: int) -> None:
        self.recently.pop(number, None)
        if len(self.driver.core.connected()) <= 1:
            self.recently.clear()
        if not self.driver.core.connected():
            self.last, self.singly = None, set()
        self.prune()

    def prune(self) -> None:
        for number, position in list(self.recently.items()):
            if position > self.mark_delete:
                return
            del self.recently[number]

    def sent(self, kind: str, sent: dict[int, list[int]]) -> None:
        deleted = self.driver.core.state.deleted
        self._raise()
        if self.last is None:
            self.last = self.mark_delete
            self.singly = {int(e) for e in np.flatnonzero(deleted) if e > self.last}
        self.prune()
        for number, entries in sent.items():
            limit = self.recently.get(number)
            if limit is not None and kind == "Replay":
                limit = min(limit, next(iter(self.recently.values())))
            assert limit is None or all(entry <= limit for entry in entries), "beyond the limit"
            self.singly |= set(entries)
            self.ever |= set(entries)
        while self.last + 1 in self.singly:
            self.last += 1
        self.singly = {entry for entry in self.singly if entry > self.last}
        assert all(e in self.ever or deleted[e] for e in range(self.last + 1)), (
            "not everything below was sent"
        )

    def compare(self) -> None:
        state = self.driver.core.state
        assert int(state.s[st_.LAST_SENT]) == (st_.NOT_TRACKED if self.last is None else self.last)
        ranges = rule.sent_ranges(state)
        assert {e for low, high in ranges for e in range(low + 1, high + 1)} >= self.singly
        assert all(high < following for (_, high), (following, _) in pairwise(ranges))
        self.prune()
        rule.prune(state)
        assert list(self.driver.core.recently_joined().items()) == list(self.recently.items())


EVENTS = ("join", "leave", "flow", "ack", "ack", "nack", "turn", "turn", "turn")
HISTORIES = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 30)), min_size=10, max_size=60)


@settings(max_examples=60, deadline=None)
@given(HISTORIES, st.lists(st.integers(0, 5), min_size=20, max_size=40))
def test_any_history_keeps_the_rule(history: list[tuple[str, int]], keys: list[int]) -> None:
    driver = Driver([PROFILE.hash_space.sticky(hashing.h31(b"key-%d" % key)) for key in keys], consumers=80)
    model = Model(driver)

    def turn() -> None:
        result = driver.read()
        if result is not None:
            dropped = bool(dropped_by_min_replay(driver.core.state))
            sent = driver.round(*result)
            if not dropped:
                model.sent(result[0], sent)

    number = 0
    for what, pick in history:
        connected = driver.core.connected()
        if what == "join" or not connected:
            number += 1
            driver.core.join(number, f"c{number}")
            driver.core.join_selector(number)
            model.joined(number)
            driver.give(number, 1 + pick)
        elif what == "leave":
            gone = connected[pick % len(connected)]
            driver.core.drop(gone, driver.core.select_out(gone))
            turn()
            driver.core.forget(gone)
            model.left(gone)
        elif what == "flow":
            driver.give(connected[pick % len(connected)], 1 + pick % 4)
        elif what in ("ack", "nack"):
            pending = [(owner, entry) for owner in connected for entry in driver.core.pending_on(owner)]
            if not pending:
                continue
            owner, entry = pending[pick % len(pending)]
            if what == "ack":
                driver.ack(entry)
            else:
                driver.core.redeliver(owner, [entry])
        else:
            turn()
        model.compare()
