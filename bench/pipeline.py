"""The pipeline from Parquet logs to published tables, against Spark alone: read, exchange, sort and write the same rows."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dispatch_core.recording.files import file_format
from dispatch_core.recording.schema import EVENTS, MESSAGES
from spark_jobs.aggregates.aggregate_interval import aggregate
from spark_jobs.ingest.ingest_interval import ingest
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.pull.pull_logs import pull
from spark_jobs.replay.replay_interval import replay
from spark_jobs.session import running_session
from spark_jobs.warehouse import spark_tables
from spark_jobs.warehouse.contracts import GROUP, ORDER

_CONTRACTS = {"messages": MESSAGES, "consumer_events": EVENTS}
_CONTENTS = {"messages": "messages", "events": "consumer_events"}


def prepare(source: str, home: str, day: str) -> tuple[float, dict[str, Any]]:
    """Land the logs of ``source``; copying them is no part of the comparison. Returns seconds, and the files landed."""
    began = time.perf_counter()
    Location.of(home).delete_folder()
    landed = pull(Path(source), Location.of(home) / "landing", interval(day).start)
    return time.perf_counter() - began, {"files": landed["files"], "bytes": landed["bytes"]}


def product(home: str, day: str) -> tuple[float, dict[str, Any]]:
    """Run ingest, replay and aggregates, all published; returns seconds without the start of Spark, and those per stage."""
    span, landing, warehouse = interval(day), Location.of(home) / "landing", Location.of(home) / "warehouse"
    warehouse.delete_folder()
    with running_session() as spark:
        _warm(spark)
        began = time.perf_counter()
        done = [
            ingest(spark, landing, warehouse, span),
            replay(spark, warehouse, span),
            aggregate(warehouse, span),
        ]
        seconds = time.perf_counter() - began
    facts: dict[str, Any] = {f"{report['stage']}_seconds": report["seconds"] for report in done}
    facts |= {"rows_accepted": done[0]["rows_accepted"], "deliveries": done[1]["rows"]["deliveries"]}
    return seconds, facts | {"dispatchers": done[1]["dispatchers"], "failed": done[1]["dispatchers_failed"]}


def baseline(source: str, into: str) -> tuple[float, dict[str, Any]]:
    """Run Spark alone, with the product's session: read the Parquet logs, group by dispatcher, sort, write."""
    found = sorted(path for path in Path(source).rglob("*.parquet") if file_format(path.name))
    by_table: dict[str, list[str]] = {name: [] for name in _CONTRACTS}
    for path in found:
        known = file_format(path.name)
        if known:
            by_table[_CONTENTS[known[0]]].append(str(path))
    shutil.rmtree(into, ignore_errors=True)
    with running_session() as spark:
        _warm(spark)
        cores = spark.sparkContext.defaultParallelism
        began = time.perf_counter()
        for name, paths in by_table.items():
            rows = spark.read.schema(spark_tables.spark_schema(_CONTRACTS[name])).parquet(*paths)
            rows.repartition(_partitions(cores, paths), *GROUP[name]).sortWithinPartitions(
                *GROUP[name], *ORDER[name]
            ).write.parquet(str(Path(into) / name))
        seconds = time.perf_counter() - began
    return seconds, {"files": len(found)}


def _partitions(cores: int, paths: list[str]) -> int:
    import pyarrow.parquet as pq

    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    return max(cores, rows // 1_000_000)


def _warm(spark: SparkSession) -> None:
    """Start the Python workers and the JVM's readers, so that this counts for neither side."""
    spark.range(1000).repartition(2).mapInArrow(_same, "id long").count()


def _same(batches: Any) -> Any:
    yield from batches
