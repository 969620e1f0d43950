"""Release A against release B: outcomes, their order, and the page of a home with 2,000 subscriptions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_core.errors import DispatchAuditError
from dispatch_core.what_if.compare import OrderLimits
from dispatch_core.what_if.measure import Measures
from dispatch_core.what_if.upgrade_risk import (
    INTRODUCES,
    NOT_BETTER,
    NOT_JUDGED,
    OUTCOMES,
    PREVENTS,
    SAME,
    SLOWER,
    STRANDS,
    Upgrade,
    counts,
    risk,
    summary,
    upgrade,
    worst_first,
)
from dispatch_core.what_if.upgrade_risk_groups import folded
from dispatch_core.what_if.upgrade_risk_page import WORST_SHOWN, risk_page
from dispatch_core.what_if.upgrade_risk_text import for_people
from tests.dispatch_core.what_if.upgrades import (
    ASKED,
    HOSTILE,
    UNMEASURED,
    home,
    measures,
    partitions,
    predicted,
)

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "recordings"


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (measures(), [measures(4)] * 5, INTRODUCES),
        (measures(63), [measures()] * 5, PREVENTS),
        (measures(63), [measures(60)] * 5, NOT_BETTER),
        (measures(), [measures()] * 5, SAME),
        (measures(), [measures(never_sent=5)] * 5, STRANDS),
        (measures(), [measures(stuck_keys=1)] * 5, STRANDS),
        (measures(63), [measures(never_sent=5)] * 5, STRANDS),
        (measures(never_sent=30), [measures(never_sent=30)] * 5, NOT_BETTER),
        (measures(), [measures(never_sent=5)] * 4 + [measures()], NOT_BETTER),
        (measures(), [measures(p99=1200)] * 5, SLOWER),
        (measures(), [measures(p99=1140)] * 5, SAME),
        (measures(p99=10), [measures(p99=29)] * 5, SAME),
        (measures(), [Measures()] * 5, NOT_JUDGED),
        (measures(), [], NOT_JUDGED),
    ],
)
def test_the_outcome_compares_both_sides(before: Measures, after: list[Measures], outcome: str) -> None:
    assert risk([predicted(before, after)]).outcome == outcome


def test_what_the_simulation_of_the_recorded_rules_leaves_unsent_too_is_no_risk() -> None:
    row = predicted(measures(), [measures(never_sent=5)] * 5, control=[measures(never_sent=9), measures()])
    assert risk([row]).outcome == NOT_BETTER
    assert risk([replace(row, control=())]).outcome == STRANDS


def test_the_policy_says_what_is_a_violation() -> None:
    row = predicted(measures(), [measures(4)] * 5)
    assert risk([replace(row, tolerated=OrderLimits(split_key=4))]).outcome == SAME


def test_release_a_is_predicted_if_it_is_not_the_recorded_one() -> None:
    """Both sides are simulated, and the recording is not one of them."""
    before, after = predicted(measures(), [measures(4)] * 5), predicted(measures(), [measures()] * 5)
    found = risk([before, after])
    assert (found.outcome, found.as_json()["order_violations"]) == (PREVENTS, [4, 0])
    assert found.as_json()["probability_before"] == before.confidence.probability
    unsent = predicted(measures(), [measures(never_sent=5)] * 5)
    assert risk([unsent, after]).outcome == SAME
    assert risk([after, unsent]).outcome == STRANDS
    assert risk([predicted(measures(), [], problem="no such rules"), after]).outcome == NOT_JUDGED


def test_two_sides_that_are_the_same_are_refused() -> None:
    with pytest.raises(DispatchAuditError, match=r"both sides are 4\.2\.4"):
        upgrade("4.2.4", {}, "4.2.4")
    with pytest.raises(DispatchAuditError, match="newest"):
        upgrade("newest", {})
    assert upgrade("4.2.4", {}).names == ("as recorded", "4.2.4")
    given = upgrade("4.2.4", {"subscriptionSharedUseClassicPersistentImplementation": True}, "4.0.0")
    assert [rules.name for rules in given.rules] == [
        "4.0.0", "4.2.4 subscriptionSharedUseClassicPersistentImplementation=true",
    ]  # fmt: skip


def test_reasons_are_given_for_what_was_not_judged() -> None:
    whole = predicted(measures(), [measures()] * 5, not_measured=UNMEASURED)
    assert risk([whole]).not_judged == (f"how often such a prediction comes true ({UNMEASURED})",)
    alone = predicted(measures(order_uncertain=2), [measures()] * 5, control=[])
    without, doubtful = risk([alone]).not_judged
    assert without.startswith("the recorded rules could not be simulated")
    assert doubtful == "2 findings against the order that the recording cannot prove"
    (nothing,) = risk([predicted(measures(), [Measures()] * 5)]).not_judged
    assert nothing == "nothing was delivered in the time that is measured"
    assert risk([predicted(None, [], problem="no header")]).not_judged == ("no header",)


def test_the_greatest_risk_comes_first_and_the_surest_of_equal_outcomes() -> None:
    found = [
        predicted(measures(63), [measures()] * 5, topic="t/better"),
        predicted(measures(), [measures(2)] * 3 + [measures()] * 2, topic="t/unsure"),
        predicted(measures(), [measures(2)] * 5, topic="t/few"),
        predicted(measures(), [measures(9)] * 5, topic="t/many"),
        predicted(measures(), [measures()] * 5, topic="t/same"),
        predicted(measures(), [measures()] * 3 + [measures(2)] * 2, topic="t/perhaps"),
        predicted(None, [], problem="no header", topic="t/unknown"),
    ]
    order = [row.after.topic for row in worst_first(risk([row]) for row in found)]
    assert order == ["t/many", "t/few", "t/unsure", "t/unknown", "t/perhaps", "t/same", "t/better"]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return folded([found.as_json() for found in home(2000)])


def test_a_page_of_2000_subscriptions_begins_with_the_counts_and_the_worst(
    rows: list[dict[str, Any]],
) -> None:
    assert [OUTCOMES.index(row["outcome"]) for row in rows] == sorted(
        OUTCOMES.index(row["outcome"]) for row in rows
    )
    page = risk_page(ASKED.as_json(), rows, {"intervals": "2026-11-21 to 2026-11-23"})
    assert len(page) < 2_500_000
    assert page.count('<tr role="row"><td role="cell"><span') == 2000
    assert "2,000 subscriptions: worse 150, not judged 50, better 50" in page
    first, _, rest = page.partition("<details>")
    assert first.count(f">{INTRODUCES}</span><div") == WORST_SHOWN
    assert re.findall(r"<summary><h2>([^<]+)</h2>", page) == [
        "introduces order violations: 25", "leaves more unsent: 50", "not judged: 50", "longer waits: 50",
        "not better: 50", "same: 1,700", "prevents order violations: 50",
    ]  # fmt: skip
    assert rest.count(UNMEASURED) == 1
    assert HOSTILE not in page
    assert page == risk_page(ASKED.as_json(), rows, {"intervals": "2026-11-21 to 2026-11-23"})


def test_partitions_are_one_row_whose_worst_one_decides() -> None:
    """Partition 2 of 4 gets 7 violations, partition 3 loses 63: the sum gets better, and the outcome is the worst."""
    others = [risk([predicted(measures(), [measures()] * 5, topic="persistent://shop/eu/orders")])]
    found = worst_first([*others, *partitions(4, 2)])
    row, other = folded([part.as_json() for part in found])
    assert (row["topic"], row["outcome"], row["incarnation"]) == (
        "persistent://shop/eu/orders",
        INTRODUCES,
        None,
    )
    assert (row["order_violations"], row["moving_keys"]) == ([63, 7], [120, 120])
    assert (row["wait_ms_p99"], row["moved"]) == ([900, 903], 0.25)
    assert [(part["topic"][-1], part["outcome"]) for part in row["parts"]] == [
        ("2", INTRODUCES), ("1", SAME), ("0", SAME), ("3", PREVENTS),
    ]  # fmt: skip
    assert (other["parts"], other["outcome"]) == ([], SAME), "a topic without partitions, of the same name"
    text = for_people([row, other], summary(counts([INTRODUCES, SAME]), ASKED), most=9)
    assert "2 subscriptions: 1 introduces order violations, 1 same" in text
    assert "persistent://shop/eu/orders  s  4 partitions\n  order violations 63 → 7" in text
    assert "  partition 2: introduces order violations (" in text
    assert "partition 1" not in text


def test_a_part_that_gets_better_is_not_hidden_by_parts_that_stay_the_same() -> None:
    better = predicted(measures(63), [measures()] * 5, incarnation=1)
    same = predicted(measures(), [measures()] * 5, incarnation=2)
    rows = [found.as_json() for found in worst_first([risk([same]), risk([better])])]
    (row,) = folded(rows)
    assert (row["outcome"], row["topic"], len(row["parts"])) == (PREVENTS, better.topic, 2)
    page = risk_page(ASKED.as_json(), [row])
    assert "1 subscription (2 with each partition and incarnation): worse 0, not judged 0, better 1" in page
    assert "<summary>2 incarnations</summary>" in page
    assert "<li>incarnation 1: prevents order violations" in page


def test_a_part_without_a_prediction_leaves_the_sum_of_the_others() -> None:
    unknown = predicted(None, [], problem="no header", topic="t-partition-0")
    known = predicted(measures(2), [measures(2)] * 5, topic="t-partition-1")
    (row,) = folded([found.as_json() for found in worst_first([risk([known]), risk([unknown])])])
    assert (row["outcome"], row["order_violations"], row["topic"]) == (NOT_JUDGED, [2, 2], "t")
    assert "no header" in row["not_judged"]


@pytest.mark.slow
def test_2000_dispatchers_of_partitioned_topics_are_a_smaller_page(rows: list[dict[str, Any]]) -> None:
    found = [
        part
        for topic in range(20)
        for part in partitions(100, topic, topic=f"persistent://shop/eu/orders-{topic}")
    ]
    some = folded([part.as_json() for part in worst_first(found)])
    page = risk_page(ASKED.as_json(), some)
    assert "20 subscriptions (2,000 with each partition and incarnation): worse 20" in page
    assert page.count("<summary>100 partitions</summary>") == 20
    assert len(page) < len(risk_page(ASKED.as_json(), rows)) / 2


def test_a_home_in_which_nothing_changes_says_so(rows: list[dict[str, Any]]) -> None:
    page = risk_page(ASKED.as_json(), [row for row in rows if row["outcome"] in (SAME, PREVENTS)])
    assert "Nothing gets worse, and nothing remains broken" in page


def test_people_are_shown_the_worst_and_the_counts(rows: list[dict[str, Any]]) -> None:
    found = counts(row["outcome"] for row in rows)
    assert list(found) == list(OUTCOMES)
    text = for_people(rows, summary(found, ASKED), most=2)
    assert text.splitlines()[0].startswith(
        "5.0.1 against as recorded: 2,000 subscriptions: 50 introduces order violations, 50 leaves more unsent"
    )
    assert text.count("introduces order violations (") == 2
    assert f"order violations 0 → {rows[0]['order_violations'][1]}" in text
    assert text.splitlines()[-1] == "and 298 more, 50 of them better, which --json and the page list"


@pytest.mark.slow
def test_the_command_compares_recordings_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classic = SAMPLES / "4.2.4" / "designed-rolling-restart-classic-ch"
    page = tmp_path / "pages" / "risk.html"
    given = ["upgrade-risk", str(classic), "--broker-version", "5.0.1", "--seeds", "1", "--json"]
    assert main([*given, "--out", str(page)]) == 0
    row, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["outcome"], row["order_violations"][0]) == (PREVENTS, 63)
    assert last["outcomes"] == {name: int(name == PREVENTS) for name in OUTCOMES}
    assert last["asked"]["called"] == ["as recorded", "5.0.1"]
    assert "better 1" in page.read_text("utf-8")
    classic_again = ["--set", "subscriptionKeySharedUseClassicPersistentImplementation=true"]
    good = SAMPLES / "4.2.4" / "designed-rolling-restart-ch"
    assert main(["upgrade-risk", str(good), "--broker-version", "4.2.4", *classic_again, "--seeds", "1"]) == 1
    assert "1 introduces order violations" in capsys.readouterr().out


def test_the_command_needs_a_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade-risk", str(SAMPLES)]) == 2
    assert "needs --broker-version" in capsys.readouterr().err
    assert main(["upgrade-risk", str(SAMPLES), "--broker-version", "5.0.1", "--seeds", "0"]) == 2


def test_an_upgrade_is_written_as_json_values() -> None:
    asked = Upgrade("5.0.1", {"dispatcherMaxReadBatchSize": 16}, "4.2.4")
    assert json.loads(json.dumps(asked.as_json())) == {
        "release": "5.0.1",
        "settings": {"dispatcherMaxReadBatchSize": 16},
        "against": "4.2.4",
        "called": ["4.2.4", "5.0.1 dispatcherMaxReadBatchSize=16"],
    }
