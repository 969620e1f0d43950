"""PIP-474: who is hot, what the overflow keeps in order, and when a stuck consumer stops all others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.simulation.dispatcher_run import Delays
from dispatch_core.simulation.key_shared_run import KeySharedRun
from dispatch_core.simulation.scenario import Scenario
from dispatch_core.simulation.sink import LastSent
from dispatch_core.simulation.synthetic import common, given_by
from dispatch_core.what_if.compare import Row, rows_of
from dispatch_core.what_if.proposals.hot_key_overflow import (
    HotKeyRule,
    Overflow,
    hot_hashes,
    seconds_to_stop,
)
from dispatch_core.what_if.recorded import load_of
from dispatch_core.what_if.rules import RECORDED, named
from dispatch_core.what_if.run import simulate
from tests.dispatch_core.simulation.simulated import simulated
from tests.dispatch_core.what_if.outcomes import findings

LIMIT = "keySharedLookAheadMsgInReplayThresholdPerSubscription"
#: A consumer of four that hangs, with a queue of 40 messages and a look-ahead limit of 200.
STUCK = {"stuck_consumers": 1, "messages": 4000, "keys": 12, "key_skew": 0, "settings": {LIMIT: 200}}
COUNTS = st.dictionaries(st.integers(0, 50), st.integers(0, 100), max_size=30)


@given(COUNTS, st.integers(1, 3000))
def test_hot_hashes_are_the_fullest_and_dominate(counts: dict[int, int], limit: int) -> None:
    size, rule = sum(counts.values()), HotKeyRule()
    found = hot_hashes(counts, size=size, limit=limit)
    if not found:
        fullest = sorted(counts.values(), reverse=True)[: rule.top]
        assert size < rule.watermark * limit or sum(fullest) < rule.dominance * size or not any(fullest)
        return
    assert len(found) <= rule.top
    assert size >= rule.watermark * limit
    assert sum(counts[hash_id] for hash_id in found) >= rule.dominance * size
    least = min(counts[hash_id] for hash_id in found)
    assert least > 0
    assert all(count <= least for hash_id, count in counts.items() if hash_id not in found)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("divert"), st.integers(0, 2)),
        st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("back"), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_overflow_gives_each_hash_in_the_order_of_its_ledger(steps: list[tuple[str, ...]]) -> None:
    overflow = Overflow(HotKeyRule(batch=3))
    overflow.mark(range(3))
    waiting: dict[int, list[int]] = {hash_id: [] for hash_id in range(3)}
    away: dict[int, list[tuple[int, int]]] = {hash_id: [] for hash_id in range(3)}
    number = 0
    for what, *args in steps:
        hash_id = int(args[0])
        if what == "divert":
            overflow.divert(hash_id, number, now_us=0)
            waiting[hash_id].append(number)
            number += 1
        elif what == "take":
            taken = overflow.take(hash_id, int(args[1]))
            wanted = waiting[hash_id][: min(int(args[1]), 3)]
            assert [entry for _, entry in taken] == wanted
            del waiting[hash_id][: len(wanted)]
            away[hash_id] += taken
        elif away[hash_id]:
            placed = away[hash_id].pop()
            overflow.put_back(hash_id, placed)
            waiting[hash_id] = sorted([*waiting[hash_id], placed[1]])
        assert overflow.waiting(hash_id) == len(waiting[hash_id])
        assert overflow.first() == min((some[0] for some in waiting.values() if some), default=None)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """Return the predictions for a recorded stuck consumer."""
    log = simulated(tmp_path_factory.mktemp("stuck"), **STUCK)
    rules = [RECORDED, named("pip-474"), named("pip-474-replay-queue")]
    return {row.rules.name: row for row in rows_of(log, rules, seeds=range(2))}


def test_a_stuck_consumer_stops_all_others_and_no_more_with_an_overflow(rows: dict[str, Row]) -> None:
    stopped = rows[RECORDED.name].recorded
    assert stopped is not None
    assert stopped.never_sent > 1000
    for name in ("pip-474", "pip-474-replay-queue"):
        measured = rows[name].simulated
        assert measured is not None
        assert measured.order_violations == measured.double_outstanding == measured.duplicates == 0
        # All but what the stuck consumer itself is behind with, a third of the messages.
        assert measured.never_sent < stopped.never_sent / 1.5
        others = {who: count for who, count in measured.messages_of.items() if who != "consumer-0"}
        assert sum(others.values()) > 1.5 * sum(
            count for who, count in stopped.messages_of.items() if who != "consumer-0"
        )


def test_the_overflow_lets_the_cursor_move_on_and_the_longer_queue_does_not(rows: dict[str, Row]) -> None:
    ranges = "acknowledged ranges in the end"
    overflow, queue = (rows[name].shown for name in ("pip-474", "pip-474-replay-queue"))
    assert overflow is not None
    assert queue is not None
    assert overflow.figures["diverted entries"] > 500
    assert overflow.figures[ranges] < 60 < 300 < queue.figures[ranges]


def test_many_keys_behind_a_stuck_consumer_are_not_hot(tmp_path: Path) -> None:
    """The top ten of a hundred equal hashes are no half of the queue: the proposal does nothing."""
    log = simulated(tmp_path, **STUCK | {"keys": 400})
    (row,) = rows_of(log, [named("pip-474")], seeds=[0])
    assert row.shown is not None
    assert row.recorded is not None
    assert row.shown.figures["diverted entries"] == 0
    assert row.shown.measures.never_sent > 0.9 * row.recorded.never_sent


def test_what_a_crashed_consumer_had_goes_behind_what_was_diverted(tmp_path: Path) -> None:
    """By the words of the document: entries sent before their hash was hot come back to the end of the overflow."""
    log = simulated(
        tmp_path, **STUCK | {"crashing_consumers": 4, "keys": 12, "settings": {LIMIT: 200}, "messages": 6000}
    )
    load = load_of(log)
    assert load.profile is not None
    as_recorded = Counter(kind for kind, _ in findings(simulate(load, load.profile)).elements())
    rules = named("pip-474")
    found = simulate(load, rules.profile_for(log), proposal=rules.proposal)
    kinds = Counter(kind for kind, _ in findings(found).elements())
    assert as_recorded["out_of_order"] == 0
    assert kinds["out_of_order"] > 0
    assert kinds["double_outstanding"] == kinds["duplicate_after_ack"] == 0


@pytest.mark.slow
def test_the_tipping_point_of_the_proposal() -> None:
    """20 consumers, 2,500 messages a second, 125 of them for the stuck one: normal reads stop after about 160 s."""
    scenario = Scenario(
        messages=430_000,
        rate=2500,
        keys=40,
        key_skew=0,
        consumers=20,
        key_shared_mode="STICKY",
        ack_us=15_000,
        stuck_consumers=1,
    )
    last = LastSent()
    # Reads of 10 ms take entries in batches: a fiftieth of the reads, and of the time of this test.
    KeySharedRun(replace(given_by(scenario, 0, common(scenario)), delays=Delays(read_us=10_000)), last).run()
    stuck_at, stopped_at = last.at_us[1], max(last.at_us.values())
    assert last.entries[1] == 1000
    assert (stopped_at - stuck_at) / 1_000_000 == pytest.approx(seconds_to_stop(20_000, 125), rel=0.05)
