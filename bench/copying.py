"""The baseline of a replay: pyarrow reads the same input and writes it again, and writes the same output."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def copy(
    sources: Sequence[str], outputs: Sequence[str], into: str, compression: str = "zstd"
) -> tuple[float, dict[str, Any]]:
    """Copy ``sources`` batch by batch; write ``outputs`` (read before the clock starts) once more. Seconds, and rows.

    Both with the settings of the product's own files, one row group at a time, so that neither side is short of memory.
    """
    folder = Path(into)
    folder.mkdir(parents=True, exist_ok=True)
    ready = [
        [pq.ParquetFile(path).read_row_group(at) for at in range(pq.ParquetFile(path).num_row_groups)]
        for path in outputs
    ]
    rows = 0
    began = time.perf_counter()
    for number, path in enumerate(sources):
        source = pq.ParquetFile(path)
        with pq.ParquetWriter(
            folder / f"in-{number}.parquet", source.schema_arrow, compression=compression
        ) as writer:
            for at in range(source.num_row_groups):
                group = source.read_row_group(at, use_threads=False)
                rows += group.num_rows
                writer.write_table(group)
    for number, groups in enumerate(ready):
        if not groups:
            continue
        with pq.ParquetWriter(
            folder / f"out-{number}.parquet", groups[0].schema, compression=compression
        ) as writer:
            for group in groups:
                writer.write_table(group)
    return time.perf_counter() - began, {
        "rows_copied": rows,
        "rows_out": sum(g.num_rows for gs in ready for g in gs),
    }
