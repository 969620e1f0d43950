"""Read the warehouse's tables into Spark, and stage rows of Spark for them."""

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
    """Convert an Arrow schema to Spark's."""
    return from_arrow_schema(contract)


def read(spark: SparkSession, warehouse: Path, name: str, span: Interval) -> DataFrame:
    """Read a table's rows of one interval; see ``read_until``."""
    return _of_files(spark, warehouse, name, data_files(warehouse, name, span))


def read_until(spark: SparkSession, warehouse: Path, name: str, span: Interval) -> DataFrame:
    """Read a table's rows of all intervals up to this one; a missing table has none.

    The files are listed from Delta's log by ``delta_tables``, without the JVM. Delta on Spark would take several jobs per
    table for that, more than all the work on a small interval. The tables have no deletion vectors, so every row of a file
    counts. Raises ``WarehouseError`` if the table has other columns than its contract.
    """
    return _of_files(spark, warehouse, name, [file for file, _start in files_until(warehouse, name, span)])


def _of_files(spark: SparkSession, warehouse: Path, name: str, files: list[str]) -> DataFrame:
    wanted = spark_schema(stored_schema(name))
    if not files:
        # An empty frame made of rows from Python would start Python workers.
        return spark.range(0).select(
            *(F.lit(None).cast(field.dataType).alias(field.name) for field in wanted)
        )
    # The interval is in the path below the table's folder.
    root = str(table_path(warehouse, name).absolute())
    return spark.read.schema(wanted).option("basePath", root).parquet(*files)


def with_contract(frame: DataFrame, name: str) -> DataFrame:
    """Select the table's columns in the contract's order and types.

    Raises ``WarehouseError`` if the frame has other columns; a value that does not fit its type fails the job.
    """
    wanted = spark_schema(stored_schema(name))
    if set(frame.columns) != set(wanted.names):
        missing, extra = (
            sorted(set(wanted.names) - set(frame.columns)),
            sorted(set(frame.columns) - set(wanted.names)),
        )
        raise WarehouseError(f"rows for table {name}: columns missing {missing}, not in its contract {extra}")
    return frame.select(*(F.col(field.name).cast(field.dataType) for field in wanted))


def stage(frame: DataFrame, name: str, staging: Path) -> list[StagedFile]:
    """Write a frame's rows as data files into the staging folder; ``delta_tables.replace_interval`` commits them.

    Spark's plain Parquet writer is used, so that a small job does not pay for a second transaction log in the JVM.
    """
    folder = staging / f"{name}-rows"
    rows = frame.transform(with_contract, name).drop("interval_start")
    # A reader can skip small row groups by their statistics.
    rows.write.option("parquet.block.row.count.limit", ROW_GROUP_ROWS).parquet(str(folder))
    paths = sorted(folder.glob("part-*.parquet"))
    return [StagedFile(name, path, pq.read_metadata(path).num_rows) for path in paths]
