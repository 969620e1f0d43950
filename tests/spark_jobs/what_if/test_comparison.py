"""Comparisons on Spark: tasks per dispatcher and rule set give the same result as one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dispatch_core.audit.policy.reader import PolicyReader
from dispatch_core.audit.policy.rules import PolicyRules
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.times import micros
from dispatch_core.what_if.compare import rows_of
from dispatch_core.what_if.rules import named
from dispatch_core.what_if.tell import as_json
from spark_jobs.intervals import Interval, interval
from spark_jobs.replay.dispatcher_files import dispatchers
from spark_jobs.what_if.comparison import compare, predictions, what_if
from spark_jobs.what_if.request import RequestError, request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark_jobs.conftest import Home

pytestmark = pytest.mark.spark

SAMPLE = Path(__file__).parents[2] / "data" / "recordings"


@pytest.mark.slow
def test_tasks_predict_what_one_process_predicts(spark: SparkSession, sample: Home) -> None:
    rules = [named("ch"), named("classic-ch")]
    found = what_if(spark, sample.warehouse, sample.span, rules, seeds=1).to_pylist()
    topics = [row for row in found if row["topic"] is not None]
    assert len(topics) == 5 * len(rules)
    direct = {
        (log.topic, row.rules.name): as_json(row)
        for source in find_recordings([SAMPLE])
        for log in read_recording(source).logs
        for row in rows_of(log, rules, seeds=[0], from_us=micros(sample.span.start))
    }
    for row in topics:
        there = direct[row["topic"], row["rules"]]
        here = json.loads(row["prediction"])
        assert here["simulated"] == json.loads(json.dumps(there["simulated"])), row["topic"]
        assert (here["recorded"], row["verdict"]) == (there["recorded"], there["verdict"])
    restarts = {row["rules"]: row["verdict"] for row in topics if "rolling-restart-ch" in row["topic"]}
    assert restarts == {"ch": "PASS", "classic-ch": "FAIL"}


def test_the_interval_is_measured_and_the_policy_tolerates(spark: SparkSession, sample: Home) -> None:
    """An interval that begins amid the recordings has a part of the deliveries; a policy may allow violations."""
    begin = sample.span.start.replace(hour=8, minute=24, second=17)
    later = Interval(begin, sample.span.end)
    wanted = request(["classic-ch"], seeds=1)
    restarted = [
        row
        for row in dispatchers(spark, sample.warehouse, sample.span)
        if "rolling-restart-ch" in row["topic"]
    ]

    def predicted(span: Interval, policy: PolicyRules | None = None) -> dict[str, Any]:
        (row,) = predictions(spark, restarted, wanted, span, policy).to_pylist()
        return row | {"recorded": json.loads(row["prediction"])["recorded"]}

    whole, end = predicted(sample.span), predicted(later)
    assert 0 < end["recorded"]["messages"] < whole["recorded"]["messages"]
    text = "version: 1\nrules:\n- name: all\n  topics: '*'\n  per_key_order: {out_of_order: any, split_key: any}\n"
    tolerant = PolicyReader("policy", text.encode()).policy_rules()
    assert (whole["verdict"], predicted(sample.span, tolerant)["verdict"]) == ("FAIL", "PASS")


def test_an_interval_without_dispatchers_has_no_predictions(spark: SparkSession, sample: Home) -> None:
    assert what_if(spark, sample.warehouse, interval("2020-01-01"), [named("ch")]).num_rows == 0


def test_a_comparison_is_written_as_a_whole_and_replaces_an_earlier_one(
    spark: SparkSession, sample: Home, tmp_path: Path
) -> None:
    out = tmp_path / "what-if" / "run"
    out.mkdir(parents=True)
    (out / "of-an-earlier-attempt.json").write_text("{}", encoding="utf-8")
    wanted = request(["as recorded", "matrix"], topics="*rolling-restart-ch*", seeds=1)
    summary = compare(spark, sample.warehouse, sample.span, wanted, out)
    assert summary["dispatchers"] == 1
    assert sorted(path.name for path in out.iterdir()) == ["comparison.json", "index.html"]
    assert [path.name for path in out.parent.iterdir()] == ["run"]
    comparison = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert comparison["asked"]["topics"] == "*rolling-restart-ch*"
    rules = {prediction["rules"]: prediction["verdict"] for prediction in comparison["predictions"]}
    assert (rules["as recorded"], rules["4.2.4-ch"], rules["4.2.4-classic-ch"]) == ("PASS", "PASS", "FAIL")
    assert len(rules) == summary["predictions"] == summary["PASS"] + summary["FAIL"]
    assert "4.2.4-classic-ch" in (out / "index.html").read_text(encoding="utf-8")


def test_what_takes_nothing_is_refused_with_what_there_is(
    spark: SparkSession, sample: Home, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=r"no interval that starts at 2020-01-01.*There are 2026-11-21"):
        compare(spark, sample.warehouse, interval("2020-01-01"), request(), tmp_path / "out")
    with pytest.raises(RequestError, match=r"'nobody'.*none of the 5 dispatchers.*There are persistent://"):
        compare(spark, sample.warehouse, sample.span, request(subscriptions="nobody"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
