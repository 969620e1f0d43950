"""Confidence of predictions, groups of topics, and logs that cannot be predicted."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.what_if import compare
from dispatch_core.what_if.compare import (
    Confidence,
    FirstConsumers,
    OrderLimits,
    Outcome,
    Row,
    evidence_of,
    groups_of,
    judged,
    rows_of,
)
from dispatch_core.what_if.measure import Measures, Spread
from dispatch_core.what_if.rules import RECORDED, RuleSet, named
from dispatch_core.what_if.tell import as_json, for_people, problem_of, sentence
from tests.dispatch_core.audit.judging import rule
from tests.dispatch_core.audit.small_logs import added, flow, message, numbered, read, sent, write

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
CLASSIC = SAMPLES / "designed-rolling-restart-classic-ch"


def outcomes(*violations: int, same: float = 1.0) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(seed, Measures(entries=10, messages=10, split_key=count, wait_ms=Spread(1, 2, 3)), same)
        for seed, count in enumerate(violations)
    )


def row(
    topic: str, violations: Sequence[int], *, recorded: int = 0, rules: str = "ch", subscription: str = "s"
) -> Row:
    found = outcomes(*violations)
    return Row(
        recording=f"r/{topic}",
        cluster="c",
        topic=topic,
        subscription=subscription,
        subscription_type="Key_Shared",
        incarnation=0,
        rules=RuleSet(rules),
        profile="p",
        recorded=Measures(topics=1, entries=10, split_key=recorded),
        outcomes=found,
        control=outcomes(recorded),
        judged=judged([outcomes(recorded)], [Measures(split_key=recorded)]),
    )


def confidence(*violations: int, control: int = 0, recorded: int = 0, same: float = 1.0) -> Confidence:
    measured = Measures(entries=10, split_key=recorded)
    return Confidence.of(
        outcomes(*violations), judged([outcomes(control, same=same)], [measured]), compare.NO_VIOLATION
    )


def test_a_prediction_is_surer_the_more_simulations_agree() -> None:
    shares = [confidence(*[1] * count, *[0] * (5 - count)) for count in range(6)]
    said = [found.probability if found.violates else 1 - found.probability for found in shares]
    assert said == sorted(said)
    assert (said[0], said[-1]) == (pytest.approx(0, abs=0.1), pytest.approx(1, abs=0.15))
    assert [found.violating for found in shares] == [0, 1, 2, 3, 4, 5]


def test_what_a_probability_rests_on_is_said() -> None:
    good = confidence(0, 0, 0).reason
    assert good.startswith(
        "0 of 3 simulations have more order violations than are tolerated; under the recorded rules"
    )
    assert good.endswith("has what was recorded, and 100.0% of the positions go first where they went")
    wrong = confidence(0, 0, 0, recorded=7, same=0.5).reason
    assert "the simulation has 0 order violations, the recording 7, and 50.0% of" in wrong
    alone = Confidence.of(outcomes(0, 0), judged([()], [Measures()]), compare.NO_VIOLATION)
    assert alone.control is None
    assert "nothing shows how good the simulation is" in alone.reason


def test_a_tolerated_violation_is_no_evidence_of_too_many() -> None:
    found = evidence_of(outcomes(0, 2, 3), OrderLimits(0, 2))
    assert (found.simulations, found.violating) == (3, 1)


@pytest.mark.parametrize(("violations", "verdict"), [((0,) * 5, "PASS"), ((7,) * 5, "FAIL"), ((), "UNKNOWN")])
def test_the_likelier_is_predicted(violations: tuple[int, ...], verdict: str) -> None:
    assert replace(row("t", (0,)), outcomes=outcomes(*violations)).verdict == verdict


def test_what_is_shown_is_a_simulation_that_has_what_is_predicted() -> None:
    mixed = row("t", (0, 0, 0, 0, 9))
    assert mixed.simulated is not None
    assert (mixed.verdict, mixed.simulated.split_key) == ("PASS", 0)


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ({"split_key": 1}, "FAIL"),
        ({"split_key": 2}, "PASS"),
        ({"split_key": None}, "PASS"),
        ({"out_of_order": 9}, "FAIL"),
    ],
)
def test_a_policy_may_tolerate_predicted_violations(limits: dict[str, float | None], verdict: str) -> None:
    tolerated = OrderLimits.of(rule(per_key_order=limits))
    assert replace(row("t", (2,) * 5), tolerated=tolerated).verdict == verdict


def test_topics_together_may_have_what_each_of_them_may() -> None:
    rows = [
        replace(row(topic, (2,) * 5), tolerated=OrderLimits(0, limit))
        for topic, limit in (("a", 3), ("b", 0))
    ]
    assert [single.verdict for single in rows] == ["PASS", "FAIL"]
    (group,) = groups_of(rows)
    assert (group.tolerated, group.verdict) == (OrderLimits(0, 3), "FAIL")
    assert OrderLimits.over([OrderLimits(1, None), OrderLimits(2, 5)]) == OrderLimits(3, None)


def test_nothing_sent_is_no_pass() -> None:
    nothing = replace(row("t", (0,)), outcomes=(Outcome(0, Measures(), None),))
    assert nothing.verdict == "UNKNOWN"


def test_topics_of_one_subscription_and_rule_make_a_group() -> None:
    rows = [
        row("a", (0, 2)),
        row("b", (1, 0), recorded=3),
        row("a", (0, 0), rules="range"),
        row("b", (0, 0), rules="range"),
    ]
    first, second = groups_of(rows)
    assert (first.rules.name, second.rules.name, first.topic, first.subscription) == ("ch", "range", "", "s")
    assert [outcome.measures.split_key for outcome in first.outcomes] == [1, 2]
    assert first.recorded is not None
    assert (first.recorded.topics, first.recorded.split_key) == (2, 3)
    assert first.confidence is not None
    assert first.confidence.control is not None
    assert first.confidence.control.right == 1.0


def test_no_group_of_one_topic_or_of_one_that_stands_there_twice() -> None:
    assert list(groups_of([row("a", (0,))])) == []
    assert list(groups_of([row("a", (0,)), row("b", (0,), subscription="other")])) == []
    assert list(groups_of([row("a", (0,)), row("b", (0,)), row("a", (1,))])) == []


def test_a_group_says_what_is_left_out() -> None:
    broken = replace(row("c", (0,)), outcomes=(), recorded=None, problem="no load")
    (group,) = groups_of([row("a", (0,)), row("b", (0,)), broken])
    assert group.problem == "1 of 3 topics could not be simulated and are left out"


def test_first_consumers_are_compared_by_position() -> None:
    here = FirstConsumers(np.array([1, 1, 2, 2]), np.array([0, 1, 0, 9]), np.array([7, 8, 7, 7]))
    there = FirstConsumers(np.array([1, 2, 2]), np.array([0, 0, 9]), np.array([7, 7, 8]))
    assert here.shared_with(there) == 0.5
    assert here.shared_with(here) == 1.0
    nothing = FirstConsumers(*(np.empty(0, np.int64),) * 3)
    assert nothing.shared_with(here) is None
    assert here.shared_with(nothing) == 0.0


@pytest.fixture(scope="module")
def classic() -> DispatcherLog:
    return read(CLASSIC)


@pytest.mark.slow
def test_the_recorded_rules_do_what_was_recorded_and_draining_hashes_keep_order(
    classic: DispatcherLog,
) -> None:
    as_it_was, draining = rows_of(classic, [RECORDED, named("ch")], seeds=[0, 1, 2])
    assert as_it_was.same_first_consumer is not None
    assert as_it_was.same_first_consumer >= 0.95
    assert (as_it_was.verdict, draining.verdict) == ("FAIL", "PASS")
    assert as_it_was.recorded == draining.recorded
    assert draining.profile == "4.2.4 sticky key, draining hashes, consistent hashing"
    assert draining.simulated is not None
    assert draining.simulated.messages + draining.simulated.never_sent == 720


@pytest.mark.slow
def test_what_happens_from_a_time_on_is_measured_and_all_is_simulated(classic: DispatcherLog) -> None:
    """First deliveries before and after a time are all of them; none that was sent before it counts as never sent."""
    assert classic.start_t_us is not None
    from_us = classic.start_t_us + 2_000_000
    whole, later = compare.case_of(classic), compare.case_of(classic, from_us)
    before = whole.first.ledger.size - later.first.ledger.size
    assert 0 < before < whole.first.ledger.size
    assert later.recorded.entries == whole.recorded.entries - before
    assert later.recorded.never_sent == whole.recorded.never_sent == 0
    assert 0 < later.recorded.order_violations < whole.recorded.order_violations
    assert (later.begin, later.recorded.from_us) == (whole.begin, from_us)
    profile = named("ch").profile_for(classic)
    all_of_it, end = (compare.outcome(case, profile, 0).measures for case in (whole, later))
    assert 0 < end.entries < all_of_it.entries
    assert (end.never_sent, end.until_us) == (all_of_it.never_sent, all_of_it.until_us)


@pytest.mark.slow
def test_every_simulation_is_a_call_of_its_own_that_can_be_sent_away(classic: DispatcherLog) -> None:
    """A pickled case and profile give a pickled outcome, as in a Spark task, the same every time."""
    case, profile = compare.case_of(classic), named("range").profile_for(classic)
    here = compare.outcome(case, profile, 1)
    sent_away = pickle.loads(pickle.dumps((case, profile)))
    there = pickle.loads(pickle.dumps(compare.outcome(*sent_away, 1)))
    assert (there.measures, there.same_first_consumer) == (here.measures, here.same_first_consumer)
    (first,) = rows_of(classic, [named("range")], seeds=[1])
    assert first.outcomes[0].measures == here.measures


@pytest.mark.slow
def test_to_whom_entries_were_sent_is_never_read(classic: DispatcherLog) -> None:
    """The same load whose deliveries name other consumers gives the same simulation."""
    sent = np.array([kind == "sent" for kind in classic.events["kind"].to_pylist()])
    shuffled = np.array(classic.events["consumer"].to_pylist(), object)
    shuffled[sent] = shuffled[sent][::-1]
    at = classic.events.column_names.index("consumer")
    column = pa.array(shuffled.tolist(), classic.events.schema.field("consumer").type)
    assert not column.equals(classic.events["consumer"].combine_chunks())
    blind = replace(classic, events=classic.events.set_column(at, "consumer", column))
    profile = named("classic-range").profile_for(classic)
    seen, unseen = (compare.outcome(compare.case_of(log), profile, 0) for log in (classic, blind))
    assert unseen.measures.order_violations == seen.measures.order_violations
    assert unseen.measures.messages_of == seen.measures.messages_of
    assert unseen.measures.waits.us.tolist() == seen.measures.waits.us.tolist()


SENTENCES = [
    ((0,) * 5, 63, "ch would have prevented these 63 order violations ("),
    ((9,) * 5, 63, "ch would not have prevented order violations: 9 instead of 63 ("),
    ((9,) * 5, 0, "ch would have had 9 order violations, where none was recorded ("),
    ((0,) * 5, 0, "ch would have had no order violation either ("),
    ((0,) * 5, 1, "ch would have prevented this 1 order violation ("),
]


@pytest.mark.parametrize(("violations", "recorded", "begin"), SENTENCES)
def test_a_prediction_is_one_sentence(violations: tuple[int, ...], recorded: int, begin: str) -> None:
    said = sentence(row("t", violations, recorded=recorded))
    assert said.startswith(begin)
    assert re.search(r"\(\d+ of 100\)\.$", said)


@pytest.mark.parametrize(
    ("recorded", "then", "said"),
    [
        (30, 0, "30 of 206 entries were never sent, under these rules none would be missing"),
        (0, 30, "30 of 206 entries would not have been sent by the end of the log, not 0"),
        (30, 30, "30 of 206 entries would not have been sent, as recorded"),
    ],
)
def test_entries_that_nobody_is_sent_are_part_of_the_sentence(recorded: int, then: int, said: str) -> None:
    base = row("t", (0,) * 5)
    found = tuple(
        replace(simulated, measures=replace(simulated.measures, entries=206 - then, never_sent=then))
        for simulated in base.outcomes
    )
    assert base.recorded is not None
    known = replace(base.recorded, entries=206 - recorded, never_sent=recorded)
    assert said in sentence(replace(base, recorded=known, outcomes=found))


def test_a_log_that_cannot_be_simulated_says_why_and_stays(tmp_path: Path) -> None:
    known = read(write(tmp_path / "a" / "b", [message(0, "k")], numbered([added(1), sent(1, 0)])))
    nobody = read(write(tmp_path / "c" / "d", [message(0, "k")], numbered([flow(1, 5)])))
    for log in (nobody, replace(known, header={}), replace(known, messages=known.messages.slice(0, 0))):
        (found,) = rows_of(log, [named("ch")], seeds=[0])
        assert (found.verdict, found.simulated) == ("UNKNOWN", None)
        assert found.problem
        assert found.problem in for_people([found])
        assert as_json(found)["problem"] == found.problem


def test_names_are_foreign_in_a_table() -> None:
    rules = RuleSet("clusterName=\udcff", None, {"clusterName": "\udcff"})
    hostile = replace(
        row("t\x1b[2J", (0,)), recording="r/\x1b[2J\n", rules=rules, problem="q\x1b" + "x" * 300
    )
    text = for_people([hostile])
    assert "x" * 300 in text
    for written in (text, json.dumps(as_json(hostile), ensure_ascii=False), problem_of(hostile)):
        written.encode()  # can be written
    assert "\x1b" not in text
    assert "\\x1b[2J" in text
