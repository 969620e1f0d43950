"""Two releases compared on Spark: the same result as in one process, over a range of intervals, and in its files."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.times import micros
from dispatch_core.what_if.compare import NO_VIOLATION
from dispatch_core.what_if.upgrade_risk import (
    INTRODUCES,
    NOT_JUDGED,
    PREVENTS,
    SAME,
    risks_of,
    worst_first,
)
from spark_jobs.intervals import Interval
from spark_jobs.replay.dispatcher_files import dispatchers
from spark_jobs.what_if.request import RequestError
from spark_jobs.what_if.upgrade_risk import compare_releases, risk_request, risks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark_jobs.conftest import Home

pytestmark = pytest.mark.spark

SAMPLE = Path(__file__).parents[2] / "data" / "recordings"
CLASSIC = "subscriptionKeySharedUseClassicPersistentImplementation=true"


@pytest.mark.slow
def test_tasks_compare_as_one_process_does(spark: SparkSession, sample: Home) -> None:
    wanted = risk_request("5.0.1", seeds=1)
    found = dispatchers(spark, sample.warehouse, sample.span)
    there = risks(spark, found, wanted, sample.span)
    direct = worst_first(
        risks_of(log, wanted.upgrade, seeds=[0], tolerated=NO_VIOLATION, from_us=micros(sample.span.start))
        for source in find_recordings([SAMPLE])
        for log in read_recording(source).logs
    )
    assert len(there) == 5
    for row, risk in zip(there, direct, strict=True):
        here = json.loads(json.dumps(risk.as_json()))
        assert {**row, "recording": ""} == {**here, "recording": ""}
    assert {row["outcome"] for row in there} == {SAME, PREVENTS}


def test_the_files_are_written_as_a_whole(spark: SparkSession, sample: Home, tmp_path: Path) -> None:
    out = tmp_path / "what-if" / "run"
    out.mkdir(parents=True)
    (out / "of-an-earlier-attempt.json").write_text("{}", encoding="utf-8")
    wanted = risk_request("4.2.4", assignments=[CLASSIC], topics="*restart*", seeds=1)
    summary = compare_releases(spark, sample.warehouse, sample.span, wanted, out)
    assert sorted(path.name for path in out.iterdir()) == [
        "index.html",
        "upgrade-risk.html",
        "upgrade-risk.json",
    ]
    assert (summary["dispatchers"], summary["worse"], summary["not_judged"]) == (2, 1, 0)
    assert summary["index"] == str(out / "upgrade-risk.html")
    kept = json.loads((out / "upgrade-risk.json").read_text(encoding="utf-8"))
    assert kept["asked"]["settings"] == {CLASSIC.partition("=")[0]: True}
    assert kept["risks"][0]["outcome"] == INTRODUCES
    assert "rolling-restart-ch" in (out / "upgrade-risk.html").read_text(encoding="utf-8")
    assert 'href="upgrade-risk.html"' in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_range_of_intervals_has_the_dispatchers_of_each(
    spark: SparkSession, sample: Home, tmp_path: Path
) -> None:
    """Two intervals give what the day gives that both are parts of."""
    from spark_jobs.ingest.ingest_interval import ingest
    from spark_jobs.pull.pull_logs import pull

    cut = sample.span.start.replace(hour=8, minute=24)
    spans = [Interval(sample.span.start, cut), Interval(cut, sample.span.end)]
    names = (
        ("drain-one-by-one-ch", "failover-modulo-p1", "negative-acks-ch"),
        ("restart-ch", "restart-classic-ch"),
    )
    for span, some in zip(spans, names, strict=True):
        source = tmp_path / f"source-{span.name}"
        for recording in (SAMPLE / "4.2.4").iterdir():
            if recording.name.endswith(some):
                shutil.copytree(recording, source / recording.name)
        pull(source, source / "landing", span.start, interval_end=span.end)
        ingest(spark, source / "landing", tmp_path / "warehouse", span)
    wanted = risk_request("5.0.1", seeds=1)
    summaries, rows = {}, {}
    for name, warehouse, span in (
        ("day", sample.warehouse, sample.span),
        ("parts", tmp_path / "warehouse", sample.span),
        ("last", tmp_path / "warehouse", spans[1]),
    ):
        summaries[name] = compare_releases(spark, warehouse, span, wanted, tmp_path / name)
        rows[name] = json.loads((tmp_path / name / "upgrade-risk.json").read_text("utf-8"))["risks"]
    assert rows["parts"] == rows["day"]
    assert (summaries["last"]["dispatchers"], summaries["parts"]["dispatchers"]) == (2, 5)


def test_what_takes_too_long_or_cannot_be_read_is_not_judged(spark: SparkSession, sample: Home) -> None:
    found = dispatchers(spark, sample.warehouse, sample.span)
    (row, *_) = risks(spark, found[:1], risk_request("5.0.1", seeds=1, most_events=10), sample.span)
    assert (row["outcome"], row["topic"]) == (NOT_JUDGED, found[0]["topic"])
    assert row["not_judged"][0].endswith(
        "lines of events are more than 10 (most_events), so it was not simulated"
    )


def test_wrong_requests_are_refused(spark: SparkSession, sample: Home, tmp_path: Path) -> None:
    never = Interval(
        datetime.fromisoformat("2020-01-01T00:00:00Z"), datetime.fromisoformat("2020-01-03T00:00:00Z")
    )
    with pytest.raises(
        RequestError, match=r"no interval that starts from 2020-01-01.*intervals from 2026-11-21"
    ):
        compare_releases(spark, sample.warehouse, never, risk_request("5.0.1"), tmp_path / "out")
    with pytest.raises(RequestError, match=r"'nobody' .*match none of the 5 dispatchers"):
        compare_releases(
            spark, sample.warehouse, sample.span, risk_request("5.0.1", topics="nobody"), tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"release": " "},
        {"release": "two"},
        {"seeds": 0},
        {"topics": ""},
        {"most_events": 0},
        {"assignments": ["dispatcherMax=1"]},
    ],
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DispatchAuditError):
        risk_request(**({"release": "5.0.1"} | wrong))
