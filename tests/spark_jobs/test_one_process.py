"""Small stages without Spark: the same tables as with it, and Spark where a process died or somebody chose a master."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs import session, stage_command
from spark_jobs.location import Location
from spark_jobs.one_process import one_process
from spark_jobs.replay.command import run_step
from spark_jobs.replay.replay_groups import may_fold_here, run_folder
from spark_jobs.warehouse.contracts import GROUP, NOT_COMPARED
from spark_jobs.warehouse.delta_tables import read_table
from tests.spark_jobs.conftest import SAMPLE, Home, all_stages
from tests.spark_jobs.orders import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def without_spark(sample: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("one process"), sample.span)
    all_stages(one_process(), home, SAMPLE)
    return home


def in_order(home: Home, table: str) -> dict[tuple[Any, ...], list[str]]:
    """The rows of each dispatcher, or topic, in the order of the files."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for row in read_table(home.warehouse, table).to_pylist():
        found.setdefault(tuple(row[name] for name in GROUP[table]), []).append(repr(row))
    return found


@pytest.mark.parametrize("table", [name for name in TABLES if name not in ("verdicts", *NOT_COMPARED)])
def test_the_tables_are_those_that_spark_makes(sample: Home, without_spark: Home, table: str) -> None:
    ours, theirs = (read_table(home.warehouse, table).to_pylist() for home in (without_spark, sample))
    assert sorted(map(repr, ours)) == sorted(map(repr, theirs))


@pytest.mark.parametrize("table", ["consumer_events", "messages"])
def test_rows_that_are_sorted_are_in_the_order_of_spark(
    sample: Home, without_spark: Home, table: str
) -> None:
    ours = in_order(without_spark, table)
    assert ours == in_order(sample, table)
    assert len(ours) > 1


def test_missing_values_come_first(spark: SparkSession) -> None:
    import pyarrow as pa

    from spark_jobs.warehouse.spark_tables import spark_schema

    schema = pa.schema([("topic", pa.string()), ("seq", pa.int64())])
    rows = [{"topic": topic, "seq": seq} for topic in ("b", "é", "Z") for seq in (2, None, 1)]

    def ordered(with_session: SparkSession) -> list[dict[str, Any]]:
        made = with_session.createDataFrame(
            with_session.sparkContext.parallelize(rows, 2), spark_schema(schema)
        )
        found: list[dict[str, Any]] = (
            made.repartition(1, "topic").sortWithinPartitions("topic", "seq").toArrow().to_pylist()
        )
        return found

    assert ordered(one_process()) == ordered(spark)
    assert ordered(one_process())[0] == {"topic": "Z", "seq": None}


def test_a_group_is_folded_here_once_and_by_spark_if_that_process_died(
    without_spark: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DISPATCH_AUDIT_SPARK_MASTER", raising=False)
    monkeypatch.setattr(session, "is_chosen", lambda: False)
    started: list[str] = []
    monkeypatch.setattr(stage_command, "one_process", lambda: started.append("here") or one_process())
    warehouse = Location.of(without_spark.warehouse)
    arguments = ["--interval-start", without_spark.span.name, "--warehouse", str(warehouse), "--run-id", "r"]
    assert run_step(["plan", *arguments, "--groups", "1"]) == 0
    assert run_step(["group", *arguments, "--group", "0"]) == 0
    assert started == ["here", "here"]
    assert '"dispatchers"' in capsys.readouterr().out
    begun = run_folder(warehouse, without_spark.span, "r") / "begun-0-here"
    assert begun.exists()
    assert may_fold_here(warehouse, without_spark.span, "r", 0) is False
    begun.delete()
    assert may_fold_here(warehouse, without_spark.span, "r", 0) is True
    assert run_step(["publish", *arguments]) == 0
    assert run_step(["discard", *arguments]) == 0


def test_who_chose_a_master_gets_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("DISPATCH_AUDIT_SPARK_MASTER", raising=False)
    assert not session.is_chosen()
    monkeypatch.setenv("DISPATCH_AUDIT_SPARK_MASTER", "spark://host:7077")
    assert session.is_chosen()
