"""Read staged files for an exchange, and write its partitions as data files. Runs in Spark's Python workers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa

from dispatch_core.recording.stored_files import parquet_file
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.warehouse.contracts import STAGED_FILE, conform, file_schema
from spark_jobs.warehouse.staging import Sink

_ROWS_AT_ONCE = 1 << 16


def read_staged(batches: Iterator[pa.RecordBatch], table: str) -> Iterator[pa.RecordBatch]:
    """Map paths to the rows of these files of ``table``, for ``mapInArrow``."""
    wanted = file_schema(table)
    for batch in batches:
        for path in batch["path"].to_pylist():
            with parquet_file(path) as file:
                for rows in file.iter_batches(_ROWS_AT_ONCE, use_threads=False):
                    yield from conform(pa.Table.from_batches([rows]), wanted).to_batches()


def write_sorted(
    batches: Iterator[pa.RecordBatch],
    *,
    warehouse: str,
    table: str,
    interval_start: datetime,
    interval_end: datetime,
    number: int,
) -> Iterator[pa.RecordBatch]:
    """Write the rows of partition ``number`` as a data file of ``table``; yield rows of ``STAGED_FILE``."""
    span = Interval(interval_start, interval_end)
    with Sink(Location.of(warehouse), span, f"sorted-{number:05d}", undo=False) as sink:
        for batch in batches:
            sink.write(table, pa.Table.from_batches([batch]))
        staged = [file.as_json() for file in sink.close()]
    yield pa.RecordBatch.from_pylist(staged, schema=pa.schema(STAGED_FILE))
