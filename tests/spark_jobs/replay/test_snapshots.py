"""Intervals that go on from the snapshots of the one before: the tables of replays from the beginning, whatever happens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dispatch_core.cli.main import main
from dispatch_core.errors import SnapshotError
from spark_jobs.replay.replay_interval import replay
from spark_jobs.replay.snapshot_files import WITHOUT
from spark_jobs.warehouse.delta_tables import data_files, read_table
from tests.spark_jobs.orders import Home, assert_same, cut, span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

INTERVALS = 3


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dispatcher of 20,000 lines in three hours, enough to be cut."""
    out = tmp_path_factory.mktemp("logs")
    made = ["--dispatchers", "1", "--messages", "8000", "--keys", "100", "--consumers", "5"]
    assert main(["generate", str(out / "made"), *made]) == 0
    (recording,) = (out / "made").iterdir()
    cut(recording, out, INTERVALS)
    return out / "log"


@pytest.fixture(scope="module")
def from_beginning(spark: SparkSession, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WITHOUT, "1")
        home = Home(tmp_path_factory.mktemp("from beginning"), logs, to_the_end=False)
        home.run(spark, range(1, INTERVALS + 1))
    assert read_table(home.warehouse, "snapshots").num_rows == 0
    return home


@pytest.fixture(scope="module")
def in_order(spark: SparkSession, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("in order"), logs, to_the_end=False)
    home.run(spark, range(1, INTERVALS + 1))
    return home


@pytest.fixture
def home(in_order: Home, tmp_path: Path) -> Home:
    """A home of its own, of all intervals."""
    shutil.copytree(in_order.root, tmp_path / "home")
    return Home(tmp_path / "home", in_order.source, to_the_end=False)


def changed(home: Home, number: int, column: str, value: object) -> None:
    """Write another value into the snapshot of an interval."""
    (path,) = data_files(home.warehouse, "snapshots", span(number))
    rows = pq.read_table(path, partitioning=None)
    at = rows.schema.get_field_index(column)
    values = [value(old) if callable(value) else value for old in rows[column].to_pylist()]
    pq.write_table(
        rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type)), path
    )


def flipped(data: bytes) -> bytes:
    """The bytes with another bit in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def test_the_tables_are_those_of_replays_from_the_beginning(
    spark: SparkSession, from_beginning: Home, in_order: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_same(in_order, from_beginning)
    states = read_table(in_order.warehouse, "snapshots").select(["interval_start", "state"]).to_pylist()
    assert [row["state"] is not None for row in states] == [True] * INTERVALS
    replay(spark, in_order.warehouse, span(INTERVALS))
    assert "1 from snapshots" in capsys.readouterr().err
    assert_same(in_order, from_beginning)


@pytest.mark.parametrize("column", ["state", "sha256"])
def test_a_damaged_snapshot_is_not_used(
    column: str, spark: SparkSession, home: Home, from_beginning: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(home, 2, column, "0" * 64 if column == "sha256" else flipped)
    capsys.readouterr()
    replay(spark, home.warehouse, span(3))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "could not be used" in line]
    assert "1 snapshots could not be used; replayed from the beginning instead: " in line
    assert "do not have their checksum" in line
    assert_same(home, from_beginning)


@pytest.mark.parametrize("column", ["code", "settings", "history"])
def test_a_snapshot_of_other_code_settings_or_rows_is_passed_over(
    column: str, spark: SparkSession, home: Home, from_beginning: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(home, 2, column, "another")
    capsys.readouterr()
    replay(spark, home.warehouse, span(3))
    shown = capsys.readouterr().err
    assert "1 from snapshots" in shown  # of the interval before
    named = [
        line for line in shown.splitlines() if "of another version of the code, and are not used" in line
    ]
    assert len(named) == (column == "code")
    changed(home, 1, column, "another")
    changed(home, 2, column, "another")
    replay(spark, home.warehouse, span(3))
    shown = capsys.readouterr().err
    assert "from snapshots" not in shown
    assert shown.count("of another version of the code, and are not used") == (column == "code")
    assert_same(home, from_beginning)


def test_a_snapshot_that_a_later_version_wrote_is_refused_by_name(
    spark: SparkSession, home: Home, from_beginning: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(home, 2, "format", 99)
    with pytest.raises(SnapshotError, match="a snapshot of form 99, which a later version wrote"):
        replay(spark, home.warehouse, span(3))
    monkeypatch.setenv(WITHOUT, "1")
    replay(spark, home.warehouse, span(3))
    assert_same(home, from_beginning)


def test_a_log_that_comes_late_makes_later_snapshots_unusable(
    spark: SparkSession, logs: Path, from_beginning: Home, tmp_path: Path
) -> None:
    source, late = tmp_path / "log", tmp_path / "late"
    shutil.copytree(logs, source)
    segments = sorted(path for path in source.rglob("*") if path.is_file() and path.name.startswith("events"))
    late.mkdir()
    moved = segments[1]
    shutil.move(moved, late / moved.name)
    home = Home(tmp_path / "home", source, to_the_end=False)
    home.run(spark, range(1, INTERVALS + 1))
    shutil.move(late / moved.name, moved)
    home.run(spark, [1])
    assert home.recompute(spark) == [span(number).name for number in (2, 3)]
    assert_same(home, from_beginning)
