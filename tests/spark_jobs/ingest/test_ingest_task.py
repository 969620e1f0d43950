"""Staging of one ingest task, without Spark."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dispatch_core.cli.main import main
from dispatch_core.recording import parquet
from spark_jobs.ingest.ingest_task import stage_files
from spark_jobs.ingest.sorted_runs import not_runs
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.replay.replay_task import replay_dispatchers
from spark_jobs.warehouse import staging


@pytest.mark.parametrize("form", ["parquet", "jsonl.gz"])
def test_a_file_of_several_dispatchers_needs_no_exchange(tmp_path: Path, form: str) -> None:
    made = ["--messages=400", "--keys=20", "--consumers=2", "--dispatchers=4", "--dispatchers-per-file=4"]
    assert main(["generate", str(tmp_path / "log"), *made, f"--format={form}"]) == 0
    (events,) = (tmp_path / "log").rglob(f"events.{form}")
    (tmp_path / "staged").mkdir()
    (report,) = stage_files("a", [(events.name, events)], tmp_path / "staged", interval("2026-01-01"))
    assert report["rows_in"] == report["rows_accepted"] > 400
    assert all(run["sorted"] for run in report["runs"])
    assert not_runs((run["paths"], run["groups"]) for run in report["runs"]) == set()
    (staged,) = report["staged"]
    rows = pq.ParquetFile(staged["path"]).read(columns=["topic", "kind", "seq"]).to_pylist()
    runs = [(topic, list(run)) for topic, run in groupby(rows, key=lambda row: row["topic"])]
    assert len({topic for topic, _run in runs}) == len(runs) == 4
    for _topic, run in runs:
        assert [row["kind"] for row in run].index("header") == 0
        assert [row["seq"] for row in run] == list(range(len(run)))


def test_a_log_in_several_files_is_no_exchange_and_replays_as_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ["--messages=3000", "--keys=20", "--consumers=3", "--churn=rolling-restart"]
    assert main(["generate", str(tmp_path / "log"), *made]) == 0
    files = [(path.name, path) for path in sorted((tmp_path / "log").rglob("*.parquet"))]
    day = interval("2026-01-01")

    def results(name: str) -> tuple[int, dict[str, pa.Table]]:
        folder = tmp_path / name
        (folder / "replayed").mkdir(parents=True)
        reports = stage_files("a", files, folder, day)
        runs = [(run["table"], run["paths"], run["groups"]) for report in reports for run in report["runs"]]
        assert all(run["sorted"] for report in reports for run in report["runs"])
        for table in ("consumer_events", "messages"):
            assert not_runs((paths, groups) for of, paths, groups in runs if of == table) == set()
        files_of = {table: paths for table, paths, _groups in runs}
        (of_log,) = next(groups for table, _paths, groups in runs if table == "consumer_events")
        dispatcher = dict(zip(("cluster", "topic", "subscription"), of_log, strict=True))
        rows = replay_dispatchers(
            [
                dispatcher
                | {"event_files": files_of["consumer_events"], "message_files": files_of["messages"]}
            ],
            Location.of(folder / "replayed"),
            day,
        )
        assert not any(row.get("not_judged_reason") for row in rows)
        found = {row["table"]: pq.ParquetFile(row["path"]).read() for row in rows if row["table"]}
        return min(len(paths) for paths in files_of.values()), found

    in_one, expected = results("one")
    monkeypatch.setattr(staging, "OWN_FILE_ROWS", 100)
    monkeypatch.setattr(staging, "FILE_ROWS", 100)
    monkeypatch.setattr(staging, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(parquet, "_ROWS_AT_ONCE", 500)
    in_several, found = results("several")
    assert in_one == 1 < in_several
    assert found.keys() == expected.keys()
    for name, table in expected.items():
        assert found[name].equals(table), name
