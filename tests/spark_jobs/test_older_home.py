"""A home that an earlier version wrote goes on with this one: its next interval, and its old ones run again."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.aggregates.aggregate_interval import aggregate
from spark_jobs.ingest.with_history import ingest_with_history
from spark_jobs.intervals import Interval, interval
from spark_jobs.pull.pull_logs import land, pull
from spark_jobs.pull.segments import read_catalogue
from spark_jobs.replay.replay_interval import replay
from spark_jobs.warehouse.contracts import PARTITION
from spark_jobs.warehouse.delta_tables import has_table, read_table
from tests.spark_jobs.orders import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

#: Verdicts are not given here.
WRITTEN = sorted(set(TABLES) - {"verdicts"})
SAMPLE = Path(__file__).resolve().parents[1] / "data" / "homes" / "33dab6c.tar.gz"
FIRST = interval("2026-01-01")
SECOND = interval("2026-01-02")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The old home; the logs that it was made of are gone from their source."""
    with tarfile.open(SAMPLE) as archive:
        archive.extractall(tmp_path / "old")
    return tmp_path / "old"


def run(spark: SparkSession, home: Path, span: Interval) -> None:
    ingest_with_history(spark, home / "landing", home / "warehouse", span)
    replay(spark, home / "warehouse", span)
    aggregate(home / "warehouse", span)


def rows_of(home: Path, span: Interval) -> Iterator[tuple[str, list[str]]]:
    """The rows of an interval in each table, in an order of their own."""
    for name in WRITTEN:
        rows = read_table(home / "warehouse", name).to_pylist() if has_table(home / "warehouse", name) else []
        yield name, sorted(repr(row) for row in rows if row.get(PARTITION) == span.start)


def test_an_older_home_goes_on_and_is_made_anew_interval_by_interval(
    spark: SparkSession, home: Path, tmp_path: Path
) -> None:
    catalogue = read_catalogue(home / "landing")
    ((sources, segments),) = catalogue.items()
    before = dict(rows_of(home, FIRST))
    assert all(before[name] for name in ("deliveries", "messages", "consumer_events", "balance"))

    # The rows of the second day are in segments that the old version landed, and nowhere else.
    land(home / "landing", SECOND, sources)
    run(spark, home, SECOND)

    fresh = tmp_path / "fresh"
    source = tmp_path / "logs"
    for segment in segments.values():
        path = tmp_path / segment.name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(segment.path(home / "landing")), path)
    for span in (FIRST, SECOND):
        pull(source, fresh / "landing", span.start, interval_end=span.end)
        run(spark, fresh, span)
    second = dict(rows_of(fresh, SECOND))
    assert second["deliveries"]
    assert dict(rows_of(home, SECOND)) == second
    assert dict(rows_of(home, FIRST)) == before

    # What a later version adds to the old interval comes when it is run again.
    run(spark, home, FIRST)
    assert dict(rows_of(home, FIRST)) == dict(rows_of(fresh, FIRST))
