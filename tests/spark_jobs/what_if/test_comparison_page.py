"""The page of a comparison: what is on it, and that names out of a log stay text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.what_if.compare import rows_of
from dispatch_core.what_if.tell import as_json
from spark_jobs.what_if.comparison_page import MOST_SHOWN, comparison_page
from spark_jobs.what_if.request import KNOWN_RULES, request

SAMPLE = Path(__file__).parents[2] / "data" / "recordings"
HOSTILE = '<script>alert(1)</script>"\u202e\n'


def asked(**more: object) -> dict[str, object]:
    return {
        "interval_start": "2026-11-21T00:00:00+00:00",
        **request(["as recorded"], assignments=["dispatcherMaxReadBatchSize=16"]).as_json(),
        **more,
    }


def row(verdict: str = "PASS", prediction: dict | None = None, **more: object) -> dict[str, object]:
    return {
        "cluster": "standalone", "topic": "t", "subscription": "s", "incarnation": 0, "rules": "ch",
        "verdict": verdict, "problem": None, "prediction": prediction and json.dumps(prediction), **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def predicted() -> list[dict[str, object]]:
    """Real predictions for one recording, as the stage gives them."""
    source = next(
        recording for recording in find_recordings([SAMPLE]) if "rolling-restart-ch" in str(recording.name)
    )
    wanted = request(["as recorded", "classic-ch"], seeds=1)
    return [
        row(
            found.verdict, as_json(found), topic=found.topic, subscription=found.subscription,
            rules=found.rules.name, problem=found.problem,
        )
        for log in read_recording(source).logs
        for found in rows_of(log, wanted.rules_for(log), seeds=range(1))
    ]  # fmt: skip


def test_recording_and_predictions_stand_side_by_side(predicted) -> None:
    page = comparison_page(asked(), predicted)
    assert page.count('<tr class="recorded">') == 1
    assert '<td>classic-ch</td><td class="FAIL">FAIL</td>' in page
    assert "dispatcherMaxReadBatchSize=16" in page
    assert "<h2>Assumed</h2>" in page
    assert "<script" not in page


def test_what_the_simulation_lacks_is_said_once() -> None:
    """By the sentence, or by a note where the sentence has another reason."""
    lacks = "the simulation lacks a dispatch rate; waits come out too short"
    for sentence in (
        f"ch would do (98 of 100, not measured: {lacks}).",
        "ch: a Shared subscription promises no order.",
    ):
        page = comparison_page(
            asked(), [row(prediction={"sentence": sentence, "warnings": [lacks], "assumptions": []})]
        )
        assert page.count(lacks) == 1


def test_names_are_text_on_one_line() -> None:
    names = dict.fromkeys(("cluster", "topic", "subscription", "rules", "problem"), HOSTILE)
    page = comparison_page(asked(topics=HOSTILE), [row("UNKNOWN", **names), row(HOSTILE)])
    assert "<script" not in page
    assert "\u202e" not in page
    assert page.count("&lt;script&gt;") >= 6
    assert 'class="UNKNOWN">UNKNOWN' in page


def test_the_worst_come_first_and_a_long_list_says_how_many_are_left_out() -> None:
    rows = [row(topic=f"topic-{number}") for number in range(MOST_SHOWN + 7)] + [row("FAIL", topic="worst")]
    page = comparison_page(asked(), rows)
    assert page.index("<h2>worst") < page.index("<h2>topic-0 ")
    assert "8 more are in comparison.json" in page


def test_rules_are_named_once_and_the_recorded_ones_stand_beside_settings() -> None:
    wanted = request(["as recorded", "ch"], assignments=["dispatcherMaxReadBatchSize=16"])
    assert [rule.name for rule in wanted.rules] == ["as recorded", "ch"]
    assert [dict(rule.settings).get("dispatcherMaxReadBatchSize") for rule in wanted.rules] == [None, 16]
    given = request(["as recorded"], broker_version="4.0.0")
    assert [(rule.name, rule.broker_version) for rule in given.rules] == [
        ("as recorded", None),
        ("4.0.0", "4.0.0"),
    ]
    assert [rule.name for rule in request().rules] == ["as recorded"]
    assert (request(["matrix"]).rules, request(["matrix"]).matrix) == ((), True)
    assert len(request(KNOWN_RULES).rules) == len(KNOWN_RULES) - 1


def test_patterns_take_what_they_name_and_mind_case() -> None:
    wanted = request(subscriptions="orders-*", topics="persistent://a/b/*")
    there = {"topic": "persistent://a/b/c", "subscription": "orders-eu"}
    assert wanted.wants(there)
    assert not wanted.wants({**there, "subscription": "Orders-eu"})
    assert not wanted.wants({**there, "topic": "persistent://x/b/c"})
