"""Estimate of the broker's delays: acknowledgements show slow moments, and never decide which consumer gets an entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.profiles import resolve
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.simulation.dispatcher_run import Delays, Pace
from dispatch_core.what_if import broker_delays, compare
from dispatch_core.what_if.assumed import assumptions_of
from dispatch_core.what_if.broker_delays import (
    MOST_WORK,
    START_UP_EXPLAINS,
    START_UPS,
    USUAL,
    USUAL_BEFORE_4_1,
    Paces,
    _delays_at,
    _laid_over,
    _moments,
    acks_borne_out,
    answered,
    most_likely,
    of_release,
    starting,
    usual,
    work_of,
)
from dispatch_core.what_if.clients import Deliveries, StartUp
from dispatch_core.what_if.recorded import Acks, RecordedLoad, load_of
from dispatch_core.what_if.rules import RuleSet
from dispatch_core.what_if.run import _uneven, deliveries_of, simulate
from tests.dispatch_core.logs_without_trace import DATA, stripped
from tests.dispatch_core.what_if.outcomes import findings

DRAINED = "recordings/4.2.4/designed-drain-one-by-one-ch"
TWICE = "verify/4.0.0/designed-same-name-batches-range"


def log_of(name: str) -> DispatcherLog:
    (log,) = read_recording(find_recordings([str(DATA / name)])[0]).logs
    return stripped(log)


@pytest.fixture(scope="module")
def drained() -> RecordedLoad:
    return load_of(log_of(DRAINED))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_an_ack_needs_a_delivery_before_it_and_a_second_one_a_second_delivery(drained: RecordedLoad) -> None:
    acks = replace(
        drained.acks,
        at_us=ints(20, 30, 20, 5),
        consumer=ints(1, 1, 2, 1),
        entry=ints(0, 0, 0, 1),
        kind=ints(0, 0, 0, 0),
    )
    load = replace(drained, acks=acks)
    once = Deliveries(ints(10, 10), ints(1, 1), ints(0, 1), USUAL, drained.stored_us)
    assert answered(load, once).tolist() == [True, False, False, False]
    twice = Deliveries(ints(10, 25, 1, 19), ints(1, 1, 1, 2), ints(0, 0, 1, 0), USUAL, drained.stored_us)
    assert answered(load, twice).tolist() == [True, True, True, True]
    assert acks_borne_out(load, twice) == 4


def test_a_slow_moment_explains_what_was_acknowledged_twice() -> None:
    """4.0.0: a forgotten replay read that is under way is delivered again (#23384); its acks come twice."""
    log = log_of(TWICE)
    load = load_of(log)
    assert load.profile is not None
    found = deliveries_of(load)
    assert found is not None
    assert found.paces
    assert acks_borne_out(load, found) == len(load.acks.entry)
    as_usual = replace(found, paces=())
    assert findings(simulate(load, load.profile, deliveries=found)) == findings(log)
    assert findings(simulate(load, load.profile, deliveries=as_usual)) != findings(log)


def test_where_the_usual_broker_explains_all_no_moment_is_looked_for(drained: RecordedLoad) -> None:
    found = deliveries_of(drained)
    assert found is not None
    assert found.paces == ()
    assert drained.profile is not None
    assert found.delays == usual(drained.profile) == USUAL
    assert USUAL_BEFORE_4_1.replay_entry_us > USUAL.replay_entry_us


def test_a_pace_holds_from_its_time_on(drained: RecordedLoad) -> None:
    assert drained.profile is not None
    found = deliveries_of(drained)
    assert found is not None
    middle = int(np.median(found.at_us))

    def sent(*paces: Pace) -> list[tuple[int, str]]:
        events = simulate(drained, drained.profile, deliveries=replace(found, paces=paces)).events
        return list(zip(events["t_us"].to_pylist(), events["kind"].to_pylist(), strict=True))

    assert sent(Pace(middle, found.delays)) == sent()
    slow = sent(Pace(middle, replace(found.delays, read_us=5_000, replay_us=5_000)))
    assert slow != sent()
    assert [line for line in slow if line[0] < middle] == [line for line in sent() if line[0] < middle]


times = st.integers(0, 1000)


@given(st.lists(st.tuples(times, times), max_size=6))
def test_moments_laid_over_each_other_are_in_order_and_the_last_one_holds(
    moments: list[tuple[int, int]],
) -> None:
    base = Delays()
    like = Deliveries(ints(), ints(), ints(), base, ints())
    for first, second in moments:
        from_us, to_us = min(first, second), max(first, second) + 1
        before = like.paces
        slow = replace(base, hop_us=3 * base.hop_us)
        like = replace(like, paces=_laid_over(like, from_us, to_us, slow))
        assert [pace.from_us for pace in like.paces] == sorted(pace.from_us for pace in like.paces)

        def at(paces: tuple[Pace, ...], us: int) -> Delays:
            return next((pace.delays for pace in reversed(paces) if pace.from_us <= us), base)

        assert at(like.paces, from_us) == slow
        for us in range(0, 1003, 17):
            if not from_us <= us < to_us:
                assert at(like.paces, us) == at(before, us)


# --- a broker that has just started ------------------------------------------------------------------------------------


class Explains:
    """A stand-in for the simulation that explains a given number of acks: ``usually``, or by the factor of the start-up."""

    def __init__(self, load: RecordedLoad, usually: int, **by_first_pace: int) -> None:
        self.load, self.usually = load, usually
        self.by_factor = {int(name.removeprefix("factor_")): count for name, count in by_first_pace.items()}
        self.runs = 0

    def __call__(self, delays: Delays, stored_us: np.ndarray, paces: Paces) -> Deliveries:
        self.runs += 1
        acks = self.load.acks
        factor = paces[0].delays.write_us // delays.write_us if paces else 1
        starts = factor > 1 and paces[0].from_us == min(join.at_us for join in self.load.joins)
        some = slice(0, self.by_factor.get(factor, self.usually) if starts else self.usually)
        return Deliveries(
            acks.at_us[some] - 1, acks.consumer[some], acks.entry[some], delays, stored_us, paces
        )


def with_entries(load: RecordedLoad, count: int) -> RecordedLoad:
    """Make a load of some entries, each acknowledged once by the first consumer."""
    entry = np.arange(count, dtype=np.int64)
    first_us = int(load.stored_us[0]) + 10 * entry
    acks = Acks(first_us + 5_000, np.full(count, load.joins[0].number), entry, np.zeros(count, np.int64), {})
    return replace(load, stored_us=first_us, published_us=first_us, acks=acks)


def test_a_start_up_is_taken_where_it_explains_much_more(drained: RecordedLoad) -> None:
    assert drained.profile is not None
    load = with_entries(drained, 1000)
    needed = round(START_UP_EXPLAINS * 1000)
    found = most_likely(load, drained.profile, Explains(load, 500, factor_32=500 + needed))
    assert found.start_up is not None
    assert found.start_up.factor == 32
    assert found.paces == starting(USUAL, found.start_up, min(join.at_us for join in load.joins))
    assert acks_borne_out(load, found) == 500 + needed
    (speed,) = [text for text in assumptions_of(load, found) if text.startswith("a read takes")]
    assert "a start that took 32 times as long in everything, half of that 100 ms later" in speed
    assert "moments" not in speed


def test_a_start_up_that_explains_little_more_is_not_taken(drained: RecordedLoad) -> None:
    assert drained.profile is not None
    load = with_entries(drained, 1000)
    needed = round(START_UP_EXPLAINS * 1000)
    found = most_likely(load, drained.profile, Explains(load, 500, factor_32=500 + needed - 1))
    assert found.start_up is None
    assert found.paces == ()


def test_of_several_start_ups_the_one_that_explains_most_is_taken(drained: RecordedLoad) -> None:
    assert drained.profile is not None
    load = with_entries(drained, 1000)
    found = most_likely(
        load, drained.profile, Explains(load, 500, factor_8=600, factor_32=900, factor_128=700)
    )
    assert found.start_up is not None
    assert found.start_up.factor == 32


def test_a_broker_that_starts_becomes_twice_as_fast_again_and_again(drained: RecordedLoad) -> None:
    paces = starting(USUAL, StartUp(8, 400), 1_000)
    assert [pace.from_us for pace in paces] == [1_000, 1_400, 1_800, 2_200]
    assert [pace.delays.replay_us / USUAL.replay_us for pace in paces] == [8, 4, 2, 1]
    assert [pace.delays.hop_us / USUAL.hop_us for pace in paces] == [8, 4, 2, 1]
    assert paces[-1].delays == USUAL
    assert all(start_up.factor.bit_count() == 1 for start_up in START_UPS)  # halves end at 1


def test_a_moment_of_a_broker_that_starts_is_slower_than_its_start(drained: RecordedLoad) -> None:
    paces = starting(USUAL, StartUp(8, 1_000_000), 0)
    like = Deliveries(ints(), ints(), ints(), USUAL, ints(), paces)
    laid = next(
        iter(_moments(like, like, 1_500_000))
    )  # 4 times a replay read, and 4 times everything by the start
    moment = next(pace for pace in laid if pace not in paces)
    assert moment.delays.replay_us == 16 * USUAL.replay_us
    assert moment.delays.read_us == 4 * USUAL.read_us
    after = Deliveries(ints(), ints(), ints(), USUAL, ints(), laid)
    assert _delays_at(after, 1_600_000) == _delays_at(like, 1_600_000)


# --- what the search may cost ----------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("entries", [1, 300, 5_000, 60_000, 400_000, 1_300_000])
def test_a_search_costs_no_more_than_its_bound_whatever_the_size(drained: RecordedLoad, entries: int) -> None:
    """The first simulation always runs; no further one runs once the bound is reached."""
    assert drained.profile is not None
    load = with_entries(drained, entries)
    simulate_ = Explains(load, 0)
    most_likely(load, drained.profile, simulate_)
    assert simulate_.runs == 1 or simulate_.runs * work_of(load) <= MOST_WORK
    assert simulate_.runs <= 2 * (
        200 + len(broker_delays.OTHERS) + len(broker_delays.STORED_AFTER) + len(START_UPS) + 1
    )


def test_a_small_load_is_searched_in_full_and_a_huge_one_simulated_once(drained: RecordedLoad) -> None:
    assert drained.profile is not None
    counts = {}
    for entries in (500, 1_300_000):
        load = with_entries(drained, entries)
        simulate_ = Explains(load, 0)
        most_likely(load, drained.profile, simulate_)
        counts[entries] = simulate_.runs
    each = 1 + len(broker_delays.OTHERS) + len(broker_delays.STORED_AFTER) + 100 + len(START_UPS)
    assert counts == {500: 2 * each, 1_300_000: 1}  # from two storage times on


def test_clients_that_come_and_go_are_work_too(drained: RecordedLoad) -> None:
    fewer = replace(drained, joins=drained.joins[:1], leaves=())
    assert work_of(fewer) < work_of(drained)


def test_timers_can_be_set_and_are_in_the_simulated_header() -> None:
    log = log_of(DRAINED)
    name = "keySharedUnblockingIntervalMs"
    usual_row, slow_row = compare.rows_of(
        log, [RuleSet("as recorded"), RuleSet("slow", None, {name: "500"})], seeds=[0]
    )
    assert slow_row.problem is None
    assert slow_row.warnings == ()
    assert slow_row.simulated != usual_row.simulated
    load = load_of(log)
    assert load.profile is not None
    config = simulate(load, load.profile, timers={name: "500"}).header["config"]
    assert config[name] == "500"


def test_an_older_release_has_the_usual_time_of_the_storage_in_addition() -> None:
    recorded, older = resolve("4.2.4"), resolve("4.0.0")
    slow = replace(USUAL, replay_us=3_500, replay_entry_us=0)
    found = of_release(slow, recorded, older)
    assert (found.replay_us, found.replay_entry_us) == (3_500 + 350 - 40, 100 - 4)
    assert of_release(USUAL, recorded, older) == USUAL_BEFORE_4_1
    assert of_release(slow, recorded, resolve("4.1.3")) == slow


def test_what_a_newer_release_has_in_its_cache_is_as_much_faster_as_usual() -> None:
    slow = replace(USUAL_BEFORE_4_1, replay_us=3_500)
    found = of_release(slow, resolve("4.0.0"), resolve("4.2.4"))
    assert (found.replay_us, found.replay_entry_us) == (400, 4)


def test_a_stall_is_as_long_for_short_reads_as_for_long_ones() -> None:
    even, uneven = _uneven(0), _uneven(1)
    assert not even.stalls_us.any()
    share = (uneven.stalls_us > 0).mean()
    assert 0.08 < share < 0.12
    assert 1_800 < np.median(uneven.stalls_us[uneven.stalls_us > 0]) < 2_900
