"""Whatever the order of runs, the tables are the same, row by row: backwards, shuffled, repeated, with a late log."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.ingest.with_history import ingest_with_history
from spark_jobs.pull.pull_logs import pull
from spark_jobs.warehouse.delta_tables import read_table
from tests.spark_jobs.orders import Home, anomalies_across, assert_same, crossings, cut, runs, span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SAMPLE = Path(__file__).parents[1] / "data" / "recordings" / "4.2.4"
INTERVALS = 4
#: The first segment of the third interval: there is another one, so it is there before it comes.
LATE = 5


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("logs")
    cut(SAMPLE / "designed-rolling-restart-ch", out, INTERVALS, late=LATE)
    cut(SAMPLE / "designed-rolling-restart-ch", out / "whole", INTERVALS)
    return out


@pytest.fixture(scope="module")
def in_order(spark: SparkSession, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("in order"), logs / "whole" / "log", to_the_end=False)
    home.run(spark, range(1, INTERVALS + 1))
    return home


def test_work_is_under_way_across_every_cut(logs: Path, in_order: Home) -> None:
    every = set(range(1, INTERVALS))
    assert crossings(logs / "whole" / "log", INTERVALS) == {"unacked": every, "draining": every}
    assert anomalies_across(in_order.warehouse, INTERVALS) == every
    assert {
        read_table(in_order.warehouse, "deliveries", span(number)).num_rows > 0
        for number in range(1, INTERVALS + 1)
    } == {True}


def test_backwards_with_a_log_that_comes_late_and_an_interval_run_again(
    spark: SparkSession, logs: Path, in_order: Home, tmp_path: Path
) -> None:
    source = tmp_path / "log"
    shutil.copytree(logs / "log", source)
    home = Home(tmp_path / "home", source, to_the_end=False)
    home.run(spark, [4, 2])
    assert home.history == [span(number).name for number in (1, 2, 3)], (
        "the first run brings all earlier rows"
    )

    shutil.copytree(logs / "late", source, dirs_exist_ok=True)
    home.run(spark, [1, 1])
    marked = [run["interval_start"] for run in runs(home.warehouse, "stale")]
    assert marked == [span(4).start.isoformat()], "it was marked once; the third has not been audited yet"
    assert home.recompute(spark) == [span(4).name]
    assert runs(home.warehouse, "ingest")[-2]["interval_start"] == span(3).start.isoformat(), (
        "the late log, as history"
    )
    home.run(spark, [3])
    assert home.recompute(spark) == []
    assert_same(home, in_order)


def test_two_runs_at_once_ingest_their_common_history_once(
    spark: SparkSession, in_order: Home, tmp_path: Path
) -> None:
    home = Home(tmp_path, in_order.source)
    for number in (3, 4):
        pull(home.source, home.landing, span(number).start, interval_end=span(number).end)
    with ThreadPoolExecutor(2) as both:
        started = [
            both.submit(ingest_with_history, spark, home.landing, home.warehouse, span(number))
            for number in (4, 3)
        ]
        done = [thread.result() for thread in started]
    assert_same(home, in_order, ("messages", "consumer_events", "quarantine"))
    ingested = [run["interval_start"] for run in runs(home.warehouse, "ingest")]
    for number in (1, 2):
        assert ingested.count(span(number).start.isoformat()) == 1
        assert sum(span(number).name in summary["history"] for summary in done) == 1
