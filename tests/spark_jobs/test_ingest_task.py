"""What one ingest task stages, without Spark."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dispatch_core.cli.main import main
from spark_jobs.ingest_task import stage_files
from spark_jobs.intervals import interval
from spark_jobs.runs import not_runs


@pytest.mark.parametrize("form", ["parquet", "jsonl.gz"])
def test_a_file_of_several_dispatchers_needs_no_exchange(tmp_path: Path, form: str) -> None:
    made = ["--messages=400", "--keys=20", "--consumers=2", "--dispatchers=4", "--dispatchers-per-file=4"]
    assert main(["generate", str(tmp_path / "log"), *made, f"--format={form}"]) == 0
    (events,) = (tmp_path / "log").rglob(f"events.{form}")
    (tmp_path / "staged").mkdir()
    (report,) = stage_files("a", [(events.name, events)], tmp_path / "staged", interval("2026-01-01"))
    assert report["rows_in"] == report["rows_accepted"] > 400
    assert not_runs((run["path"], run["groups"]) for run in report["runs"]) == set()
    (staged,) = report["staged"]
    rows = pq.ParquetFile(staged["path"]).read(columns=["topic", "kind", "seq"]).to_pylist()
    runs = [(topic, list(run)) for topic, run in groupby(rows, key=lambda row: row["topic"])]
    assert len({topic for topic, _run in runs}) == len(runs) == 4
    for _topic, run in runs:
        assert [row["kind"] for row in run].index("header") == 0
        assert [row["seq"] for row in run] == list(range(len(run)))
