"""A large recording of a real broker as the log of four hours, run in every order: the tables are the same, row by row.

Every cut lies where hashes drain, entries are unacknowledged and an anomaly is under way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.warehouse.delta_tables import read_table
from tests.spark_jobs.orders import Home, anomalies_across, assert_same, busy_moments, crossings, cut, span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARED = Path(os.environ.get("DISPATCH_AUDIT_SHARED") or Path(__file__).parents[3] / "shared")
RECORDING = SHARED / "recordings" / "4.2.4" / "large-50000-ch"
INTERVALS = 4
#: The first of the two segments of the second interval.
LATE = 3

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not RECORDING.exists(), reason=f"no {RECORDING.name} in {SHARED}"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from spark_jobs.session import build_session

    session = build_session("tests", size_bytes=0)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("logs")
    at = busy_moments(RECORDING, INTERVALS - 1)
    cut(RECORDING, out, INTERVALS, late=LATE, at=at)
    cut(RECORDING, out / "whole", INTERVALS, at=at)
    return out


@pytest.fixture(scope="module")
def whole(logs: Path) -> Path:
    return logs / "whole" / "log"


@pytest.fixture(scope="module")
def in_order(spark: SparkSession, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("in order"), whole)
    home.run(spark, range(1, INTERVALS + 1))
    return home


def test_work_is_under_way_across_every_cut(whole: Path, in_order: Home) -> None:
    every = set(range(1, INTERVALS))
    assert crossings(whole, INTERVALS) == {"unacked": every, "draining": every}
    assert anomalies_across(in_order.warehouse, INTERVALS) == every
    for number in range(1, INTERVALS + 1):
        assert read_table(in_order.warehouse, "deliveries", span(number)).num_rows > 1000
        assert read_table(in_order.warehouse, "verdicts", span(number)).num_rows > 0


@pytest.mark.parametrize(
    "order", [[4, 3, 2, 1], [3, 1, 4, 2], [1, 2, 3, 4, 2]], ids=["reverse", "shuffled", "again"]
)
def test_any_order_gives_the_same_tables(
    spark: SparkSession, in_order: Home, tmp_path: Path, order: list[int]
) -> None:
    home = Home(tmp_path, in_order.source)
    home.run(spark, order)
    assert home.recompute(spark) == [], "all files were there from the beginning"
    assert_same(home, in_order)


def test_a_log_that_comes_after_its_interval_was_done(
    spark: SparkSession, logs: Path, in_order: Home, tmp_path: Path
) -> None:
    source = tmp_path / "log"
    shutil.copytree(logs / "log", source)
    home = Home(tmp_path / "home", source)
    home.run(spark, [1, 2, 3])
    assert (
        read_table(home.warehouse, "deliveries", span(2)).num_rows
        < read_table(in_order.warehouse, "deliveries", span(2)).num_rows
    )
    shutil.copytree(logs / "late", source, dirs_exist_ok=True)
    home.run(spark, [4])
    assert home.recompute(spark) == [span(2).name, span(3).name]
    assert_same(home, in_order)
