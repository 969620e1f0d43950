"""Upkeep on real folders and tables: what is landed is verified, what may go goes, what is in use stays."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_jobs.intervals import Interval, interval
from spark_jobs.location import Location
from spark_jobs.maintenance import maintain
from spark_jobs.maintenance.retention import REMADE_TABLES, ChecksumError, Retention
from spark_jobs.pull.pull_logs import landed_files, pull
from spark_jobs.warehouse import delta_tables
from spark_jobs.warehouse.contracts import file_schema
from spark_jobs.warehouse.delta_tables import (
    Publication,
    all_files,
    read_table,
    record_run,
    replace_interval,
    table_path,
    write_rows,
)
from spark_jobs.warehouse.records import turn

DAY, NEXT = interval("2026-11-21"), interval("2026-11-22T06:00:00", "2026-11-22T12:00:00")
NOW = datetime.now(UTC) + timedelta(days=100)
KEEP_NOTHING = Retention(results=2, pages=2, what_if=2, unreachable=2)


def nothing(kind: pa.DataType) -> object:
    """A value for a column that may not be null."""
    if pa.types.is_list(kind):
        return []
    return {"string": "", "binary": b"", "bool": False, "double": 0.0}.get(str(kind), 0)


def fill(home: Path, name: str, span: Interval, rows: int, run: Publication | None = None) -> None:
    """Some rows of a table for an interval, in the place of earlier ones."""
    contract = file_schema(name)
    empty = {column.name: None if column.nullable else nothing(column.type) for column in contract}
    table = pa.Table.from_pylist([empty] * rows, schema=contract)
    replace_interval(
        home / "warehouse", name, span, [write_rows(home / "warehouse", name, span, table)], run=run
    )


def worked(home: Path, span: Interval) -> None:
    summary = {"interval_start": span.start.isoformat(), "interval_end": span.end.isoformat()}
    record_run(home / "warehouse", "replay", span, datetime.now(UTC), summary)


def rows(home: Path, name: str, span: Interval) -> int:
    return read_table(home / "warehouse", name, span).num_rows


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An installation with two intervals; a table was replaced once, so it has files that its newest version lacks."""
    for span in (DAY, NEXT):
        for name in (*REMADE_TABLES, "consumer_events", "verdicts"):
            fill(tmp_path, name, span, 2)
            fill(tmp_path, name, span, 3)
        worked(tmp_path, span)
    return tmp_path


def test_landed_files_are_what_was_landed_until_a_byte_changes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("messages.jsonl", "events.jsonl"):
        (source / name).write_text(json.dumps({"name": name}) + "\n", encoding="utf-8")
    landing = tmp_path / "landing"
    pull(source, landing, "2026-11-21")
    assert maintain.verify(landing)["files"] == 2
    path = next(path for name, path in landed_files(landing, DAY) if name.endswith("messages.jsonl"))
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b" \n")
    with pytest.raises(ChecksumError, match=r"(?s)1 of 2 landed files.*messages\.jsonl") as failure:
        maintain.verify(landing)
    assert str(path) in str(failure.value)
    path.delete()
    with pytest.raises(ChecksumError, match="is missing"):
        maintain.verify(landing)


def test_results_that_can_be_made_again_go_and_logs_and_verdicts_stay(home: Path) -> None:
    summary = maintain.retain(
        home, Retention(results=90, pages=None, what_if=None, unreachable=None), now=NOW
    )
    assert summary["removed"] == {f"rows of {name}": 2 for name in REMADE_TABLES}
    for span in (DAY, NEXT):
        assert [rows(home, name, span) for name in REMADE_TABLES] == [0, 0, 0, 0]
        assert (rows(home, "consumer_events", span), rows(home, "verdicts", span)) == (3, 3)


def test_a_dry_run_tells_the_same_and_removes_nothing(home: Path) -> None:
    before = sorted(path for path in home.rglob("*") if path.is_file() and path.name != ".lock")
    lines: list[str] = []
    dry = maintain.retain(home, KEEP_NOTHING, dry_run=True, now=NOW, report=lines.append)
    after = sorted(path for path in home.rglob("*") if path.is_file() and path.name != ".lock")
    assert after == before
    assert any("would remove rows of deliveries 2026-11-21" in line for line in lines)
    wet = maintain.retain(home, KEEP_NOTHING, now=NOW)
    assert {kind: wet["removed"][kind] for kind in dry["removed"]} == dry["removed"]


def test_a_run_at_work_on_an_interval_publishes_after_its_rows_were_removed(home: Path) -> None:
    run = Publication.begin(home / "warehouse", DAY, ["deliveries"])
    keep = Retention(results=90, pages=None, what_if=None, unreachable=None)
    assert maintain.retain(home, keep, now=NOW)["left_alone"] == []
    assert rows(home, "deliveries", DAY) == 0
    fill(home, "deliveries", DAY, 4, run)
    assert rows(home, "deliveries", DAY) == 4


def test_a_file_that_a_run_has_staged_stays_until_it_is_old(home: Path) -> None:
    table = pa.Table.from_pylist([], schema=file_schema("waits"))
    staged = write_rows(home / "warehouse", "waits", DAY, table)
    fill(home, "waits", NEXT, 1)
    keep = Retention(results=None, pages=None, what_if=None, unreachable=2)
    maintain.retain(home, keep)
    assert staged.path.exists()
    long_ago = time.time() - 3 * 86_400
    os.utime(staged.path.url, (long_ago, long_ago))
    maintain.retain(home, keep)
    assert not staged.path.exists()
    assert len(all_files(home / "warehouse", "waits")) == 1


def test_files_of_earlier_versions_and_dead_writers_go_and_every_row_stays(home: Path) -> None:
    """Paths have characters that are encoded in Delta's log; a file in use must not be taken for an unreachable one."""
    table = home / "warehouse" / "consumer_events"
    partition = next(folder for folder in table.iterdir() if folder.name.startswith("interval_start="))
    orphan = partition / "part-of-a-killed-writer.zstd.parquet"
    shutil.copy(next(partition.glob("*.parquet")), orphan)
    long_ago = time.time() - 40 * 86_400
    for path in table.rglob("*.parquet"):
        os.utime(path, (long_ago, long_ago))
    files = len(list(table.rglob("part-*.parquet")))
    unreachable = Retention(results=None, pages=None, what_if=None, unreachable=30)
    maintain.retain(home, unreachable)
    assert not orphan.exists()
    assert (rows(home, "consumer_events", DAY), rows(home, "consumer_events", NEXT)) == (3, 3)
    left = len(list(table.rglob("part-*.parquet")))
    assert left < files
    live = [Path(uri).name for uri in DeltaTable(str(table)).file_uris()]
    assert {path.name for path in table.rglob("part-*.parquet")} >= set(live)


def test_pages_go_by_age_and_what_others_put_there_stays(home: Path) -> None:
    for kind, name in (
        ("reports", "2026-11-21"), ("data-docs", "2026-11-21"), ("what-if", "0" * 20), ("reports", "by hand"),
    ):  # fmt: skip
        (home / kind / name).mkdir(parents=True)
        (home / kind / name / "index.html").write_text("page", encoding="utf-8")
    keep = Retention(results=None, pages=90, what_if=None, unreachable=None)
    summary = maintain.retain(home, keep, now=NOW)
    assert summary["removed"] == {"reports": 1, "data-docs": 1}
    assert (home / "reports" / "by hand").is_dir()
    assert (home / "what-if" / ("0" * 20)).is_dir()


def test_a_hunt_that_was_killed_goes_too_by_its_newest_file(home: Path) -> None:
    long_ago = NOW.timestamp() - 100 * 86_400
    for digest in ("0" * 20, "1" * 20):
        for name in ("4.2.4-0.json", "4.2.4-1.json"):
            chunk = home / "hunts" / digest / "chunks" / name
            chunk.parent.mkdir(parents=True, exist_ok=True)
            chunk.write_text("{}", encoding="utf-8")
            os.utime(chunk, (long_ago, long_ago))
    os.utime(chunk, (NOW.timestamp(), NOW.timestamp()))
    keep = Retention(results=None, pages=None, what_if=None, hunts=90, unreachable=None)
    assert maintain.retain(home, keep, now=NOW)["removed"] == {"hunts": 1}
    assert [folder.name for folder in (home / "hunts").iterdir()] == ["1" * 20]


def test_alerts_go_only_when_a_number_of_days_was_given(home: Path) -> None:
    alert = home / "alerts" / "2026-11-21" / "0123.json"
    alert.parent.mkdir(parents=True)
    alert.write_text("{}", encoding="utf-8")
    keep = {"results": None, "snapshots": None, "unreachable": None}
    assert maintain.retain(home, Retention(**keep), now=NOW)["removed"] == {}
    assert maintain.retain(home, Retention(alerts=101, **keep), now=NOW)["removed"] == {}
    assert maintain.retain(home, Retention(alerts=90, **keep), now=NOW)["removed"] == {"alerts": 1}
    assert not alert.parent.exists()


def test_a_script_of_reports_goes_after_the_last_page_that_needs_it(home: Path) -> None:
    """A page may need a script that was written up to a day before it."""
    page, script = (
        home / "reports" / "2026-11-21" / "index.html",
        home / "reports" / "scripts" / "plotly-1.js",
    )
    for path, age_days in ((page, 10.0), (script, 10.9)):
        path.parent.mkdir(parents=True)
        path.write_text("text", encoding="utf-8")
        os.utime(path, (time.time() - age_days * 86_400,) * 2)
    keep = {"results": None, "snapshots": None, "unreachable": None}
    kinds = [maintain.retain(home, Retention(pages=days, **keep))["removed"] for days in (11, 10, 9)]
    assert kinds == [{}, {"reports": 1}, {"scripts of reports": 1}]
    assert not script.exists()


def test_old_commits_are_removed_from_the_logs_of_all_tables(home: Path) -> None:
    with turn(Location.of(home / "turns"), "alerts", wait_s=60):
        pass
    logs = [home / "turns" / "_delta_log", home / "warehouse" / "verdicts" / "_delta_log"]
    for _again in range(12):
        with turn(Location.of(home / "turns"), "alerts", wait_s=60):
            fill(home, "verdicts", DAY, 3)
    before = [len(list(log.iterdir())) for log in logs]
    assert maintain.compact(home)["log_files_removed"] == 0, "written a moment ago"
    for path in home.rglob("_delta_log/*"):
        os.utime(path, (time.time() - 40 * 86_400,) * 2)
    assert maintain.compact(home, dry_run=True)["log_files_removed"] == 0
    assert maintain.compact(home)["log_files_removed"] > 10
    assert [len(list(log.iterdir())) for log in logs] < before
    assert rows(home, "verdicts", DAY) == 3
    fill(home, "verdicts", DAY, 4)
    assert rows(home, "verdicts", DAY) == 4


def test_landed_files_that_were_replaced_go_and_those_in_use_stay(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    log = source / "events.jsonl"
    log.write_text('{"a": 1}\n', encoding="utf-8")
    pull(source, tmp_path / "landing", "2026-11-21")
    log.write_text('{"b": 22}\n', encoding="utf-8")
    pull(source, tmp_path / "landing", "2026-11-21")
    keep = Retention(results=None, pages=None, what_if=None, unreachable=30)
    assert maintain.retain(tmp_path, keep)["removed"] == {}, "replaced a moment ago"
    summary = maintain.retain(tmp_path, keep, now=NOW)
    assert summary["removed"] == {"landed files that were replaced": 1}
    [(_name, landed)] = landed_files(tmp_path / "landing", DAY)
    assert landed.read_text() == '{"b": 22}\n'
    assert maintain.verify(tmp_path / "landing")["files"] == 1


def test_what_runs_noted_for_their_tasks_goes_when_it_is_old(tmp_path: Path) -> None:
    for name in ("groups-2026-11-20/dead", "run-2026-11-20-1"):
        (tmp_path / "warehouse" / "_staging" / name).mkdir(parents=True)
        (tmp_path / "warehouse" / "_staging" / name / "plan.json").write_text("{}", encoding="utf-8")
    keep = Retention(results=None, pages=None, what_if=None, unreachable=30)
    assert maintain.retain(tmp_path, keep)["removed"] == {}
    assert maintain.retain(tmp_path, keep, now=NOW)["removed"] == {"staged files": 2}
    assert list((tmp_path / "warehouse" / "_staging").rglob("*.json")) == []


@pytest.mark.parametrize(("commits", "checkpoints"), [("10", []), ("100", ["run_metadata"])])
def test_run_metadata_is_joined_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: str, checkpoints: list[str]
) -> None:
    """Tables of older homes write their own checkpoints every hundred commits only."""
    monkeypatch.setitem(delta_tables._CONFIGURATION, "delta.checkpointInterval", commits)
    for _run in range(40):
        worked(tmp_path, DAY)
    warehouse = tmp_path / "warehouse"
    before = read_table(warehouse, "run_metadata").num_rows
    summary = maintain.compact(tmp_path)
    assert summary["files_joined"] == 40
    assert summary["checkpoints"] == checkpoints
    assert read_table(warehouse, "run_metadata").num_rows == before == 40
    assert len(DeltaTable(table_path(warehouse, "run_metadata").url).file_uris()) < 5
    assert maintain.compact(tmp_path) == summary | {"files_joined": 0, "checkpoints": []}


def test_the_command_says_what_is_wrong_and_ends_with_two(tmp_path: Path, capsys) -> None:
    assert maintain.main(["retain", "--home", str(tmp_path), "--keep-pages", "1"]) == 2
    assert "at least 2" in capsys.readouterr().err
    assert maintain.main(["verify", "--home", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 0
