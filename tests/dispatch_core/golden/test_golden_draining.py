"""The tracker of draining hashes against a plain model: notices, batches and statistics in any history.

Golden vectors have the answers of the broker's class; these tests cover any number of consumers and hashes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.ordering import draining_hashes as dh
from dispatch_core.broker.state import (
    LAZY_RELEASE_COUNTS,
    NOBODY,
    TRACK_DRAINING,
    State,
    new_state,
    restore,
    save,
)

CONSUMERS = 65  # more than one word of a hash's row in ``drain_listed``
HASHES = 3


def tracker(*, counts: bool) -> State:
    none = np.zeros(0, np.int32)
    state = new_state(none, none, HASHES, CONSUMERS)
    state.s[LAZY_RELEASE_COUNTS], state.s[TRACK_DRAINING] = int(counts), 1
    return state


def blocks(state: State, slot: int, hash_id: int) -> bool:
    return bool(dh.should_block(state, slot, hash_id, np.zeros(3, np.int64)))


@dataclass
class Model:
    """PIP-379's tracker as a map of entries and a map of statistics."""

    counts: bool
    entries: dict[int, list[int]] = field(default_factory=dict)  # hash → owner, references, attempts
    stats: dict[int, tuple[set[int], list[int]]] = field(default_factory=dict)  # slot → listed, cleared
    level: int = 0
    remembered: bool = False
    notice: int | None = None

    def add(self, slot: int, hash_id: int) -> bool:
        if hash_id not in self.entries:
            self.entries[hash_id] = [slot, 1, 0]
            self.stats.setdefault(slot, (set(), [0]))[0].add(hash_id)
            return True
        self.entries[hash_id][1] += self.entries[hash_id][0] == slot
        return self.entries[hash_id][0] == slot

    def release(self, slot: int, hash_id: int, closing: bool) -> int:
        if hash_id not in self.entries:
            return 0
        owner, refs, attempts = self.entries[hash_id]
        if owner != slot:
            return -1
        self.entries[hash_id][1] -= 1
        if refs == 1:
            del self.entries[hash_id]
            self._clear(slot, hash_id)
            if attempts and not closing:
                if self.level > 0:
                    self.remembered = True
                else:
                    self.notice = hash_id
        return refs

    def should_block(self, slot: int, hash_id: int) -> bool:
        if hash_id not in self.entries:
            return False
        if self.entries[hash_id][0] != slot:
            self.entries[hash_id][2] += 1
            return True
        del self.entries[hash_id]
        if self.counts:
            self._clear(slot, hash_id)
        return False

    def end_batch(self) -> None:
        self.level -= 1
        if not self.level and self.remembered:
            self.remembered, self.notice = False, dh.END_OF_BATCH

    def _clear(self, slot: int, hash_id: int) -> None:
        if slot in self.stats:
            self.stats[slot][0].discard(hash_id)
            self.stats[slot][1][0] += 1


slots = st.sampled_from([0, 1, 29, 30, 31, 64])
hashes = st.integers(0, HASHES - 1)
operations = st.one_of(
    st.tuples(st.just("add"), slots, hashes),
    st.tuples(st.just("add"), slots, hashes),
    st.tuples(st.just("release"), slots, hashes, st.booleans()),
    st.tuples(st.just("should_block"), slots, hashes),
    st.tuples(st.just("forget"), slots),
    st.tuples(st.sampled_from(["start", "end", "clear"])),
)


@given(st.lists(operations, max_size=60), st.booleans())
def test_any_history_is_the_models(history: list[tuple[object, ...]], counts: bool) -> None:
    state, model = tracker(counts=counts), Model(counts)
    for operation in history:
        model.notice = None
        match operation:
            case ("add", int(slot), int(at)):
                assert dh.drain(state, slot, at) == model.add(slot, at)
            case ("release", int(slot), int(at), bool(closing)):
                assert dh.release(state, slot, at, closing) == model.release(slot, at, closing)
            case ("should_block", int(slot), int(at)):
                assert blocks(state, slot, at) == model.should_block(slot, at)
            case ("forget", int(slot)):
                dh.forget_consumer(state, slot)
                model.stats.pop(slot, None)
            case ("start",):
                dh.start_batch(state)
                model.level += 1
            case ("end",) if model.level:
                dh.end_batch(state)
                model.end_batch()
            case ("clear",):
                dh.clear_draining(state)
                model.entries, model.stats = {}, {}
        assert dh.take_notice(state) == model.notice
        assert dh.take_notice(state) is None
        draining = {
            at: [int(state.drain_owner[at]), int(state.drain_refs[at]), int(state.drain_attempts[at])]
            for at in range(HASHES)
            if state.drain_owner[at] != NOBODY
        }
        assert draining == model.entries
        for slot in (0, 1, 29, 30, 31, 64):
            own, cleared = model.stats.get(slot, (set(), [0]))
            assert dh.listed(state, slot) == [(at, *draining[at][1:]) for at in sorted(own & draining.keys())]
            assert state.cleared_total[slot] == cleared[0]


@pytest.mark.parametrize("counts", [False, True])
def test_a_hash_that_came_back_before_24736_is_listed_twice_later(counts: bool) -> None:
    """A lazily freed hash stays in the old owner's list: not shown while free, shown for both when it drains again."""
    state = tracker(counts=counts)
    dh.drain(state, 0, 1)
    assert blocks(state, 0, 1) is False
    assert (dh.listed(state, 0), int(state.cleared_total[0])) == ([], int(counts))
    dh.drain(state, 2, 1)
    dh.drain(state, 2, 1)
    assert dh.listed(state, 2) == [(1, 2, 0)]
    assert dh.listed(state, 0) == ([] if counts else [(1, 2, 0)])


def test_a_batch_gives_one_notice_at_its_outermost_end() -> None:
    state = tracker(counts=True)
    for at in (0, 1):
        dh.drain(state, 0, at)
        assert blocks(state, 1, at)
    dh.start_batch(state)
    dh.start_batch(state)
    dh.release(state, 0, 0)
    dh.release(state, 0, 1)
    dh.end_batch(state)
    assert dh.take_notice(state) is None
    dh.end_batch(state)
    assert dh.take_notice(state) == dh.END_OF_BATCH


def test_no_notice_where_nothing_was_held_back_or_the_consumer_closes() -> None:
    state = tracker(counts=True)
    dh.drain(state, 0, 0)
    dh.release(state, 0, 0)
    assert dh.take_notice(state) is None
    dh.drain(state, 0, 0)
    assert blocks(state, 1, 0)
    dh.release(state, 0, 0, True)
    assert dh.take_notice(state) is None


def test_statistics_are_part_of_a_saved_state() -> None:
    state = tracker(counts=False)
    dh.drain(state, 31, 2)
    saved = save(state, 0, high=0, all_hashes=True)  # a consumer leaves
    blocks(state, 31, 2)
    dh.forget_consumer(state, 31)
    dh.drain(state, 1, 2)
    restore(state, saved)
    assert (dh.listed(state, 31), dh.listed(state, 1)) == ([(2, 1, 0)], [])


def test_zero_is_no_hash() -> None:
    assert [dh.drainable(value) for value in (0, 1, 65535)] == [False, True, True]
