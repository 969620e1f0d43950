"""Replay in groups: the same tables as in one go, and nothing is published of what is not whole or not new."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.tables import REPLAY_TABLES
from spark_jobs.intervals import interval
from spark_jobs.replay import command as replay_command
from spark_jobs.replay import replay_groups
from spark_jobs.replay.replay_groups import discard, fold_group, plan, publish_groups, run_folder
from spark_jobs.replay.replay_interval import InputsChangedError, ReplayError
from spark_jobs.warehouse.delta_tables import (
    PublishedMeanwhileError,
    all_files,
    read_table,
    record_run,
    replace_interval,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark_jobs.conftest import Home

pytestmark = pytest.mark.spark

DAY = interval("2026-11-21")


def tables_of(warehouse: Path) -> dict[str, list[str]]:
    return {name: sorted(map(repr, read_table(warehouse, name).to_pylist())) for name in REPLAY_TABLES}


def data_files_of(warehouse: Path) -> set[str]:
    """All data files of the result tables, of commits or not."""
    return {str(path) for name in REPLAY_TABLES for path in (warehouse / name).rglob("part-*.parquet")}


def live_files(warehouse: Path) -> set[str]:
    return {path for name in REPLAY_TABLES for path in all_files(warehouse, name)}


@pytest.fixture
def warehouse(sample: Home, tmp_path: Path) -> Path:
    """The sample, ingested and not replayed."""
    copy = tmp_path / "warehouse"
    shutil.copytree(sample.warehouse, copy)
    for name in REPLAY_TABLES:
        replace_interval(copy, name, DAY, [])
    return copy


def test_groups_of_two_runs_give_the_tables_of_one_replay_each(
    spark: SparkSession, sample: Home, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_groups, "EVENTS_PER_TASK", 1_000)
    whole = tables_of(sample.warehouse)
    before = data_files_of(warehouse)
    planned = plan(spark, warehouse, DAY, "run one", groups=3, limits=LimitRules())
    assert sum(group["dispatchers"] for group in planned["groups"]) == planned["dispatchers"] == 5
    assert [group["group"] for group in planned["groups"]] == [0, 1, 2]
    fold_group(spark, warehouse, DAY, "run one", 0)
    with pytest.raises(InputsChangedError, match="group 1 of 3 of 2026-11-21 is not folded"):
        publish_groups(warehouse, DAY, "run one")
    assert not any(tables_of(warehouse).values())

    plan(spark, warehouse, DAY, "another run", groups=1, limits=LimitRules())
    for group in (1, 2, 0):  # one of them a second time
        fold_group(spark, warehouse, DAY, "run one", group)
    summary = publish_groups(warehouse, DAY, "run one")
    published_first = live_files(warehouse)
    assert tables_of(warehouse) == whole
    assert summary["rows"] == sample.summaries["replay"]["rows"]
    assert publish_groups(warehouse, DAY, "run one") == summary, "asked again, it does nothing"

    fold_group(spark, warehouse, DAY, "another run", 0)
    with pytest.raises(PublishedMeanwhileError, match="another run published deliveries of 2026-11-21"):
        publish_groups(warehouse, DAY, "another run")
    plan(spark, warehouse, DAY, "third run", groups=1, limits=LimitRules())
    fold_group(spark, warehouse, DAY, "third run", 0)
    publish_groups(warehouse, DAY, "third run")
    assert tables_of(warehouse) == whole
    for run in ("run one", "another run", "third run"):
        discard(warehouse, DAY, run)
        assert not run_folder(warehouse, DAY, run).exists()
    assert data_files_of(warehouse) - before <= {*live_files(warehouse), *published_first}


def test_what_was_ingested_since_the_plan_is_not_passed_over(
    spark: SparkSession, warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(spark, warehouse, DAY, "run", groups=1, limits=LimitRules())
    fold_group(spark, warehouse, DAY, "run", 0)
    earlier = interval("2026-11-20")
    summary = {"interval_start": earlier.start.isoformat(), "interval_end": earlier.end.isoformat()}
    record_run(warehouse, "ingest", earlier, datetime.now(UTC), summary | {"inputs_digest": "a late log"})
    where = ["--interval-start", "2026-11-21", "--warehouse", str(warehouse), "--run-id", "run"]
    assert replay_command.main(["publish", *where]) == 75
    assert "were ingested while it was replayed; the tables are as before" in capsys.readouterr().err
    assert not any(tables_of(warehouse).values())
    assert replay_command.main(["discard", *where]) == 0
    assert json.loads(capsys.readouterr().out)["stage"] == "discard"
    assert replay_command.main(["publish", *where]) == 75


def test_a_plan_for_nothing_and_a_step_that_is_none(
    spark: SparkSession, warehouse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ReplayError, match="no dispatcher has a line in 2026-11-20"):
        plan(spark, warehouse, interval("2026-11-20"), "run", groups=2, limits=LimitRules())
    with pytest.raises(ReplayError, match="0 groups"):
        plan(spark, warehouse, DAY, "run", groups=0, limits=LimitRules())
    plan(spark, warehouse, DAY, "run", groups=2, limits=LimitRules())
    with pytest.raises(ReplayError, match="group 7 of 2026-11-21: the plan has groups 0 to"):
        fold_group(spark, warehouse, DAY, "run", 7)
    assert replay_command.main(["fold"]) == 2
    assert "there are plan, group, publish, discard" in capsys.readouterr().err


def test_what_runs_left_long_ago_is_swept_by_a_plan(spark: SparkSession, warehouse: Path) -> None:
    for run in ("old", "new"):
        (run_folder(warehouse, DAY, run) / "plan.json").write_text("{}")
    os.utime((run_folder(warehouse, DAY, "old") / "plan.json").url, ns=(10**18, 10**18))
    plan(spark, warehouse, DAY, "run", groups=1, limits=LimitRules())
    assert not run_folder(warehouse, DAY, "old").exists()
    assert run_folder(warehouse, DAY, "new").exists()
