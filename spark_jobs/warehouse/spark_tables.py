"""Spark's side of the warehouse: Arrow contracts as Spark schemas, reading Delta tables, staging rows for them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dispatch_core.recording.parquet import ROW_GROUP_ROWS
from spark_jobs.intervals import Interval
from spark_jobs.warehouse.contracts import StagedFile, stored_schema
from spark_jobs.warehouse.delta_tables import WarehouseError, data_files, files_until, table_path


def spark_schema(contract: pa.Schema) -> StructType:
    """An Arrow schema as Spark's."""
    return from_arrow_schema(contract)


def read(spark: SparkSession, warehouse: Path, name: str, span: Interval) -> DataFrame:
    """The rows that a table has of the interval (see ``read_until``)."""
    return _of_files(spark, warehouse, name, data_files(warehouse, name, span))


def read_until(spark: SparkSession, warehouse: Path, name: str, span: Interval) -> DataFrame:
    """The rows that a table has of all intervals up to this one, as of its newest version; none of a missing table.

    Delta's log says which files these are, and ``warehouse`` reads it without the JVM: there it takes several Spark jobs for
    each table, more than all the work on a small interval. Tables have no deletion vectors, so files are all there is.
    Raises ``WarehouseError`` where the table has other columns than its contract.
    """
    return _of_files(spark, warehouse, name, [file for file, _start in files_until(warehouse, name, span)])


def _of_files(spark: SparkSession, warehouse: Path, name: str, files: list[str]) -> DataFrame:
    wanted = spark_schema(stored_schema(name))
    if not files:
        # Rows from Python would start Python's workers for none.
        return spark.range(0).select(*(F.lit(None).cast(one.dataType).alias(one.name) for one in wanted))
    # The interval stands in the path below the table's folder.
    root = str(table_path(warehouse, name).absolute())
    return spark.read.schema(wanted).option("basePath", root).parquet(*files)


def in_interval(span: Interval) -> str:
    """The SQL predicate for the rows of one interval (the session's time zone is UTC)."""
    return f"interval_start = TIMESTAMP '{span.start.strftime('%Y-%m-%d %H:%M:%S')}'"


def with_contract(frame: DataFrame, name: str) -> DataFrame:
    """Select the table's columns in the contract's order and types: the schema contract at the end of a transform.

    Raises ``WarehouseError`` where the frame has other columns; a value that its type cannot hold fails the job.
    """
    wanted = spark_schema(stored_schema(name))
    if set(frame.columns) != set(wanted.names):
        missing, extra = (
            sorted(set(wanted.names) - set(frame.columns)),
            sorted(set(frame.columns) - set(wanted.names)),
        )
        raise WarehouseError(f"rows for table {name}: columns missing {missing}, not in its contract {extra}")
    return frame.select(*(F.col(one.name).cast(one.dataType) for one in wanted))


def stage(frame: DataFrame, name: str, staging: Path) -> list[StagedFile]:
    """Write a frame's rows as data files of a table into the staging folder; not yet part of the table.

    Spark's plain Parquet writer does it, and ``warehouse.replace_interval`` commits: so rows get into every table in one
    way, and a small job does not pay for a second transaction log in the JVM.
    """
    folder = staging / f"{name}-rows"
    rows = frame.transform(with_contract, name).drop("interval_start")
    # Small row groups, which a reader can skip by their statistics.
    rows.write.option("parquet.block.row.count.limit", ROW_GROUP_ROWS).parquet(str(folder))
    paths = sorted(folder.glob("part-*.parquet"))
    return [StagedFile(name, path, pq.read_metadata(path).num_rows) for path in paths]
