"""Which broker a log speaks for: acknowledgements tell slow moments, and never decide who is sent what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.simulation.life import Delays, Pace
from dispatch_core.what_if import compare
from dispatch_core.what_if.clients import Sendings
from dispatch_core.what_if.likely import USUAL, USUAL_BEFORE_4_1, _laid_over, acks_borne_out, answered, usual
from dispatch_core.what_if.recorded import RecordedLoad, load_of
from dispatch_core.what_if.rules import RuleSet
from dispatch_core.what_if.run import sendings_of, simulate
from tests.conformance.what_if_identity import findings
from tests.dispatch_core.user_level.user_level_logs import DATA, stripped

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


def test_an_ack_needs_a_sending_before_it_and_a_second_one_a_second_sending(drained: RecordedLoad) -> None:
    acks = replace(
        drained.acks,
        at_us=ints(20, 30, 20, 5),
        consumer=ints(1, 1, 2, 1),
        entry=ints(0, 0, 0, 1),
        kind=ints(0, 0, 0, 0),
    )
    load = replace(drained, acks=acks)
    once = Sendings(ints(10, 10), ints(1, 1), ints(0, 1), USUAL, drained.stored_us)
    assert answered(load, once).tolist() == [True, False, False, False]
    twice = Sendings(ints(10, 25, 1, 19), ints(1, 1, 1, 2), ints(0, 0, 1, 0), USUAL, drained.stored_us)
    assert answered(load, twice).tolist() == [True, True, True, True]
    assert acks_borne_out(load, twice) == 4


def test_a_slow_moment_explains_what_was_acknowledged_twice() -> None:
    """4.0.0: a replay read that is forgotten while it is under way is sent again (#23384); its acks come twice."""
    log = log_of(TWICE)
    load = load_of(log)
    assert load.profile is not None
    found = sendings_of(load)
    assert found is not None
    assert found.paces
    assert acks_borne_out(load, found) == len(load.acks.entry)
    as_usual = replace(found, paces=())
    assert findings(simulate(load, load.profile, sendings=found)) == findings(log)
    assert findings(simulate(load, load.profile, sendings=as_usual)) != findings(log)


def test_where_the_usual_broker_explains_all_no_moment_is_looked_for(drained: RecordedLoad) -> None:
    found = sendings_of(drained)
    assert found is not None
    assert found.paces == ()
    assert drained.profile is not None
    assert found.delays == usual(drained.profile) == USUAL
    assert USUAL_BEFORE_4_1.replay_entry_us > USUAL.replay_entry_us


def test_a_pace_holds_from_its_time_on(drained: RecordedLoad) -> None:
    assert drained.profile is not None
    found = sendings_of(drained)
    assert found is not None
    middle = int(np.median(found.at_us))

    def sent(*paces: Pace) -> list[tuple[int, str]]:
        events = simulate(drained, drained.profile, sendings=replace(found, paces=paces)).events
        return list(zip(events["t_us"].to_pylist(), events["kind"].to_pylist(), strict=True))

    assert sent(Pace(middle, found.delays)) == sent()
    slow = sent(Pace(middle, replace(found.delays, read_us=5_000, replay_us=5_000)))
    assert slow != sent()
    assert [one for one in slow if one[0] < middle] == [one for one in sent() if one[0] < middle]


times = st.integers(0, 1000)


@given(st.lists(st.tuples(times, times), max_size=6))
def test_moments_laid_over_each_other_are_in_order_and_the_last_one_holds(
    moments: list[tuple[int, int]],
) -> None:
    base = Delays()
    like = Sendings(ints(), ints(), ints(), base, ints())
    for one, other in moments:
        from_us, to_us = min(one, other), max(one, other) + 1
        before = like.paces
        like = replace(like, paces=_laid_over(like, from_us, to_us, (3.0, 3.0, 3.0, 3.0)))
        assert [pace.from_us for pace in like.paces] == sorted(pace.from_us for pace in like.paces)

        def at(paces: tuple[Pace, ...], us: int) -> Delays:
            return next((pace.delays for pace in reversed(paces) if pace.from_us <= us), base)

        assert at(like.paces, from_us).hop_us == 3 * base.hop_us
        for us in range(0, 1003, 17):
            if not from_us <= us < to_us:
                assert at(like.paces, us) == at(before, us)


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
