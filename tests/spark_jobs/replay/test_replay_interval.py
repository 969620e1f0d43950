"""Replay on Spark: the same tables as the core itself, whoever else fails and however often it is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay import replay_log as core
from dispatch_core.tables import REPLAY_TABLES
from spark_jobs.ingest.ingest_interval import ingest
from spark_jobs.intervals import interval
from spark_jobs.pull.pull_logs import pull
from spark_jobs.replay.replay_interval import ReplayError, replay
from spark_jobs.replay.replay_task import MAX_WORKER_DEATHS, recorded_rule
from spark_jobs.warehouse.delta_tables import read_table
from tests.checkout import PYTHONPATH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dispatch_core.recording.log import DispatcherLog
    from tests.spark_jobs.conftest import Home

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "tests" / "data" / "recordings"
DAY = interval("2026-11-21")
DIES, RAISES = "drain-one-by-one", "negative-acks"


def rows(table: pa.Table, *without: str) -> list[str]:
    return sorted(repr({k: v for k, v in row.items() if k not in without}) for row in table.to_pylist())


def tables_of(warehouse: Path) -> dict[str, list[str]]:
    return {name: rows(read_table(warehouse, name)) for name in REPLAY_TABLES}


def test_the_tables_are_what_the_core_returns(sample: Home) -> None:
    direct: dict[str, list[str]] = {name: [] for name in REPLAY_TABLES}
    for source in find_recordings([SAMPLE]):
        for log in read_recording(source).logs:
            for name, table in core.replay(log, interval_start=DAY.start, interval_end=DAY.end).items():
                direct[name] += rows(table)
    assert {name: len(found) for name, found in direct.items()} == sample.summaries["replay"]["rows"]
    for name, expected in direct.items():
        assert rows(read_table(sample.warehouse, name)) == sorted(expected), name
    assert sample.summaries["replay"]["dispatchers"] == 5
    assert sample.summaries["replay"]["dispatchers_failed"] == 0


def failing_rule(log: DispatcherLog, **span: Any) -> dict[str, pa.Table]:
    """The recorded rule, but one dispatcher kills its worker process and one meets a defect."""
    if DIES in log.topic:
        os.kill(os.getpid(), signal.SIGKILL)
    if RAISES in log.topic:
        raise ZeroDivisionError("a defect")
    return recorded_rule(log, **span)


def test_a_dispatcher_that_fails_or_kills_its_worker_stops_no_other_and_leaves_its_reason(
    spark: SparkSession, sample: Home, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse"
    shutil.copytree(sample.warehouse, warehouse)
    summary = replay(spark, warehouse, DAY, rule=failing_rule)
    assert (summary["dispatchers"], summary["dispatchers_failed"]) == (5, 2)

    def failed(row: dict[str, Any]) -> bool:
        return DIES in row["topic"] or RAISES in row["topic"]

    for name in REPLAY_TABLES:
        sound = [row for row in read_table(sample.warehouse, name).to_pylist() if not failed(row)]
        after = [row for row in read_table(warehouse, name).to_pylist() if not failed(row)]
        assert sorted(map(repr, after)) == sorted(map(repr, sound)), name
    states = {
        row["topic"].partition("designed-")[2]: row
        for row in read_table(warehouse, "dispatcher_state").to_pylist()
        if failed(row)
    }
    (died,) = (row for topic, row in states.items() if DIES in topic)
    (raised,) = (row for topic, row in states.items() if RAISES in topic)
    assert died["not_judged_reason"].startswith(f"the worker process died {MAX_WORKER_DEATHS} times")
    assert raised["not_judged_reason"].startswith("internal error ZeroDivisionError: a defect in test_replay")
    assert (raised["decisions"], raised["broker_version"]) == (0, "4.2.4")
    # What the log alone shows of it is still there.
    audited = [row for row in read_table(warehouse, "deliveries").to_pylist() if RAISES in row["topic"]]
    assert len(audited) == raised["entries_sent"] > 0
    assert {row["judgement"] for row in audited} == {"not_judged"}

    # Once the cause is gone, the next run replaces all of it.
    replay(spark, warehouse, DAY)
    assert tables_of(warehouse) == tables_of(sample.warehouse)


@pytest.mark.slow
def test_a_replay_that_is_killed_and_run_again_gives_the_same_tables(
    spark: SparkSession, sample: Home, tmp_path: Path
) -> None:
    warehouse = tmp_path / "warehouse"
    shutil.copytree(sample.warehouse, warehouse)
    before = set(warehouse.rglob("part-*.parquet"))
    command = [sys.executable, "-m", "spark_jobs.replay", "--interval-start", "2026-11-21"]
    process = subprocess.Popen(
        [*command, "--warehouse", str(warehouse)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    give_up = time.monotonic() + 120
    while (
        not set(warehouse.rglob("part-*.parquet")) - before
        and time.monotonic() < give_up
        and process.poll() is None
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL, "it must have been in the middle of its tasks"
    assert tables_of(warehouse) == tables_of(sample.warehouse), "what no commit names is not read"

    replay(spark, warehouse, DAY)
    assert tables_of(warehouse) == tables_of(sample.warehouse)
    assert not list((warehouse / "_staging").glob("run-*"))


def test_the_fold_goes_on_across_intervals_whatever_their_order(spark: SparkSession, tmp_path: Path) -> None:
    source = SAMPLE / "4.2.4" / "designed-drain-one-by-one-ch"
    (log,) = read_recording(find_recordings([source])[0]).logs
    times = log.events["t_us"].to_pylist()
    middle = interval("2026-11-21").start.fromtimestamp(
        (times[0] + times[-1]) // 2_000_000, tz=DAY.start.tzinfo
    )
    spans = [interval(DAY.start, middle), interval(middle, DAY.end)]
    landing, warehouse = tmp_path / "landing", tmp_path / "warehouse"
    for span in spans:
        pull(source, landing, span.start, interval_end=span.end)
        ingest(spark, landing, warehouse, span)
    for span in reversed(spans):
        replay(spark, warehouse, span)
    parts = {
        name: [read_table(warehouse, name, span) for span in spans] for name in ("deliveries", "anomalies")
    }
    assert all(part.num_rows for part in parts["deliveries"])
    whole = core.replay(log, interval_start=DAY.start, interval_end=DAY.end)
    for name, tables in parts.items():
        assert rows(pa.concat_tables(tables), "interval_start") == rows(whole[name], "interval_start"), name


def test_an_interval_without_a_dispatcher_is_refused(
    spark: SparkSession, sample: Home, tmp_path: Path
) -> None:
    with pytest.raises(ReplayError, match="no dispatcher has a line in 2026-11-20"):
        replay(spark, tmp_path / "warehouse", interval("2026-11-20"))


def test_an_unknown_release_is_not_judged_but_audited(spark: SparkSession, tmp_path: Path) -> None:
    import gzip

    source = tmp_path / "source"
    shutil.copytree(SAMPLE / "4.2.4" / "designed-failover-modulo-p1", source)
    trace = source / "trace.jsonl.gz"
    first, _, rest = gzip.decompress(trace.read_bytes()).partition(b"\n")
    header = json.loads(first) | {"broker_version": "2.3.0"}
    trace.write_bytes(gzip.compress(json.dumps(header).encode() + b"\n" + rest))
    pull(source, tmp_path / "landing", DAY.start)
    ingest(spark, tmp_path / "landing", tmp_path / "warehouse", DAY)
    replay(spark, tmp_path / "warehouse", DAY)
    (state,) = read_table(tmp_path / "warehouse", "dispatcher_state").to_pylist()
    assert "2.3.0" in state["not_judged_reason"]
    assert read_table(tmp_path / "warehouse", "deliveries").num_rows > 0
