"""The baseline of a replay: pyarrow reads the same input and writes it again, and writes the same output."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.generated import files
from dispatch_core.recording.parquet import open_writer


def beside(source: str, staged: str, into: str) -> tuple[float, dict[str, Any]]:
    """Copy the log in ``source``, and the files that a replay of it left in ``staged``; returns seconds, and rows."""
    events, messages = files(source)
    outputs = sorted(str(path) for path in Path(staged).rglob("*.parquet"))
    try:
        return copy([*events, *messages], outputs, into)
    finally:
        shutil.rmtree(into, ignore_errors=True)


def copy(sources: Sequence[str], outputs: Sequence[str], into: str) -> tuple[float, dict[str, Any]]:
    """Read and write ``sources``, write ``outputs``; reading the outputs does not count. Returns seconds, and rows.

    Both use the writer of the product's own files, one row group at a time, so that neither side is short of memory.
    """
    folder = Path(into)
    folder.mkdir(parents=True, exist_ok=True)
    seconds, rows = 0.0, {"rows_copied": 0, "rows_out": 0}
    for number, path in enumerate(sources):
        began = time.perf_counter()
        with (
            pq.ParquetFile(path) as source,
            open_writer(folder / f"in-{number}.parquet", source.schema_arrow) as writer,
        ):
            for at in range(source.num_row_groups):
                group = source.read_row_group(at, use_threads=False)
                rows["rows_copied"] += group.num_rows
                writer.write_table(group)
        seconds += time.perf_counter() - began
    for number, path in enumerate(outputs):
        with pq.ParquetFile(path) as source:
            began = time.perf_counter()
            writer = open_writer(folder / f"out-{number}.parquet", source.schema_arrow)
            seconds += time.perf_counter() - began
            for at in range(source.num_row_groups):
                group = source.read_row_group(at, use_threads=False)
                rows["rows_out"] += group.num_rows
                began = time.perf_counter()
                writer.write_table(group)
                seconds += time.perf_counter() - began
            began = time.perf_counter()
            writer.close()
            seconds += time.perf_counter() - began
    sizes = {
        "bytes_in": sum(Path(path).stat().st_size for path in sources),
        "bytes_out": sum(Path(path).stat().st_size for path in outputs),
    }
    return seconds, rows | sizes
