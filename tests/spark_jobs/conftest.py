"""One Spark session for all tests of this room, and one warehouse made from the sample by all stages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.intervals import Interval, interval

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE = Path(__file__).parents[1] / "data" / "recordings"


@dataclass
class Home:
    """Folders of one run of the pipeline, and the summaries of its stages."""

    root: Path
    span: Interval
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def landing(self) -> Path:
        return self.root / "landing"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from spark_jobs.session import build_session

    # py4j says goodbye when the interpreter ends, after pytest has closed the streams it would log to.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    session = build_session("tests", size_bytes=0)
    yield session
    session.stop()


def all_stages(spark: SparkSession, home: Home, source: Path) -> None:
    from spark_jobs.aggregates.aggregate_interval import aggregate
    from spark_jobs.ingest.ingest_interval import ingest
    from spark_jobs.pull.pull_logs import pull
    from spark_jobs.replay.replay_interval import replay

    home.summaries["pull"] = pull(source, home.landing, home.span.start)
    home.summaries["ingest"] = ingest(spark, home.landing, home.warehouse, home.span)
    home.summaries["replay"] = replay(spark, home.warehouse, home.span)
    home.summaries["aggregates"] = aggregate(home.warehouse, home.span)


@pytest.fixture(scope="session")
def sample(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The sample, pulled, ingested, replayed and aggregated. Tests read it and do not write to it."""
    home = Home(tmp_path_factory.mktemp("sample home"), interval("2026-11-21"))
    all_stages(spark, home, SAMPLE)
    return home
