"""Ingest of a recording's gzip'd JSONL, against ``pyarrow.json`` parsing the same bytes; both on all cores given."""

from __future__ import annotations

import gzip
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from dispatch_core.recording.ahead import usable_threads
from dispatch_core.recording.files import file_format
from spark_jobs.ingest.ingest_task import stage_files
from spark_jobs.ingest.sorted_runs import not_runs
from spark_jobs.intervals import Interval, interval

_BLOCK_BYTES = 4 << 20


def prepare(source: str, into: str, copies: int = 1) -> tuple[float, dict[str, Any]]:
    """Make the input: the recording in ``source`` (JSONL, gzip'd) ``copies`` times, one file of each kind.

    Copies lie in other ledgers and continue ``seq``, so that the files stay logs in order.
    """
    began = time.perf_counter()
    folder = Path(into)
    folder.mkdir(parents=True, exist_ok=True)
    size_bytes = 0
    for path in _logs(source):
        with gzip.open(path) as lines, gzip.open(folder / path.name, "wb", compresslevel=6) as out:
            read = lines.readlines()
            for text in _copied(read, copies):
                size_bytes += out.write(text)
    return time.perf_counter() - began, {"json_bytes": size_bytes}


def _copied(lines: list[bytes], copies: int) -> Iterator[bytes]:
    import re

    place = re.compile(rb'"(\d+):(-?\d+)"')
    sequence = re.compile(rb'"seq":(\d+)')
    header, body = (lines[:1], lines[1:]) if b'"format"' in lines[0] else ([], lines)
    yield from header
    for copy in range(copies):

        def further(match: re.Match[bytes], copy: int = copy) -> bytes:
            return b'"%d:%b"' % (int(match[1]) + 1_000_000 * copy, match[2])

        def later(match: re.Match[bytes], copy: int = copy) -> bytes:
            return b'"seq":%d' % (int(match[1]) + len(body) * copy)

        yield b"".join(place.sub(further, sequence.sub(later, line, count=1)) for line in body)


def product(source: str, into: str, day: str) -> tuple[float, dict[str, Any]]:
    """Read, check and stage rows as Parquet, grouped by dispatcher and in order; returns seconds, and rows."""
    folder = Path(into)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = [(str(path), path) for path in _logs(source)]
    span: Interval = interval(day)
    began = time.perf_counter()
    reports = stage_files("bench", files, folder, span, threads=usable_threads())
    seconds = time.perf_counter() - began
    runs = [run for report in reports for run in report["runs"]]
    for table in {run["table"] for run in runs}:
        if not_runs((run["paths"], run["groups"]) for run in runs if run["table"] == table):
            raise ValueError(
                f"{source}: the rows of {table} did not come in order: this would measure half the work"
            )
    facts = {
        name: sum(report[name] for report in reports)
        for name in ("rows_in", "rows_accepted", "rows_quarantined")
    }
    return seconds, facts


def baseline(source: str) -> tuple[float, dict[str, Any]]:
    """Run ``pyarrow.json.read_json`` over the same files, unpacked while reading, with its own types and threads."""
    rows = 0
    began = time.perf_counter()
    for path in _logs(source):
        with pa.input_stream(str(path), compression="gzip") as stream:
            rows += pj.read_json(stream, read_options=pj.ReadOptions(block_size=_BLOCK_BYTES)).num_rows
    return time.perf_counter() - began, {"lines": rows}


def _logs(source: str) -> list[Path]:
    return sorted(path for path in Path(source).rglob("*.jsonl.gz") if file_format(path.name))
