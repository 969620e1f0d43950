"""The warehouse without a JVM: contracts, atomic replacement of an interval, staging folders."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dispatch_core.recording.schema import EVENTS
from dispatch_core.tables import VERSION, VERSION_KEY, TablesVersionError
from dispatch_expectations.table_rows import interval_dataset
from spark_jobs.intervals import interval
from spark_jobs.warehouse.contracts import (
    ADDED,
    CONTRACTS,
    StagedFile,
    conform,
    file_schema,
    older_schema,
    stored_schema,
)
from spark_jobs.warehouse.delta_tables import (
    WarehouseError,
    all_files,
    compact,
    data_files,
    ensure_table,
    read_table,
    record_run,
    replace_interval,
    stage_run,
    table_path,
)

DAY = interval("2026-11-21")
NEXT = interval("2026-11-22")


def staged(folder: Path, name: str, rows: list[dict[str, object]]) -> StagedFile:
    """A staged file; columns that a row leaves out are null, or empty text and zero where they may not be."""
    contract = file_schema(name)
    empty = {
        field.name: None if field.nullable else {"string": "", "binary": b""}.get(str(field.type), 0)
        for field in contract
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(pa.Table.from_pylist([empty | row for row in rows], schema=contract), path)
    return StagedFile(name, path, len(rows))


def seqs(warehouse: Path, span=None) -> list[int]:
    return sorted(read_table(warehouse, "consumer_events", span)["seq"].to_pylist())


def events(folder: Path, *numbers: int) -> StagedFile:
    return staged(folder, "consumer_events", [{"seq": number, "kind": "ack"} for number in numbers])


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_every_contract_survives_delta(tmp_path: Path, name: str) -> None:
    table = ensure_table(tmp_path, name)
    assert pa.schema(table.schema().to_arrow()).names == CONTRACTS[name].names
    ensure_table(tmp_path, name)
    assert read_table(tmp_path, name).schema.equals(CONTRACTS[name])


def test_an_interval_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    warehouse = tmp_path / "w"
    replace_interval(
        warehouse, "consumer_events", DAY, [events(tmp_path / "s", 1, 2), events(tmp_path / "s", 3)]
    )
    replace_interval(warehouse, "consumer_events", NEXT, [events(tmp_path / "s", 4)])
    replace_interval(warehouse, "consumer_events", DAY, [events(tmp_path / "s", 5)])
    assert (seqs(warehouse, DAY), seqs(warehouse, NEXT), seqs(warehouse)) == ([5], [4], [4, 5])
    starts = read_table(warehouse, "consumer_events", NEXT)["interval_start"].to_pylist()
    assert starts == [datetime(2026, 11, 22, tzinfo=UTC)]


def test_files_keep_the_order_in_which_they_were_staged(tmp_path: Path) -> None:
    numbers = list(range(12))
    replace_interval(tmp_path, "consumer_events", DAY, [events(tmp_path / "s", number) for number in numbers])
    paths = data_files(tmp_path, "consumer_events", DAY)
    assert [pq.ParquetFile(path).read()["seq"].to_pylist() for path in paths] == [
        [number] for number in numbers
    ]
    assert paths == sorted(paths)  # the order in which a log's files are read


def test_one_commit_per_replacement_and_none_for_nothing(tmp_path: Path) -> None:
    path = table_path(tmp_path, "consumer_events")
    replace_interval(tmp_path, "consumer_events", DAY, [])
    assert DeltaTable(path).version() == 0
    replace_interval(tmp_path, "consumer_events", DAY, [events(tmp_path / "s", 1), events(tmp_path / "s", 2)])
    assert DeltaTable(path).version() == 1
    replace_interval(tmp_path, "consumer_events", DAY, [])
    assert (DeltaTable(path).version(), seqs(tmp_path)) == (2, [])


def test_writers_of_different_intervals_do_not_disturb_each_other(tmp_path: Path) -> None:
    warehouse = tmp_path / "w"
    ensure_table(warehouse, "consumer_events")
    spans = [interval(f"2026-11-{day}") for day in range(10, 18)]

    def write_often(number: int) -> None:
        for round_ in range(10):
            file = events(tmp_path / f"s{number}-{round_}", number * 100 + round_)
            replace_interval(warehouse, "consumer_events", spans[number], [file])

    with ThreadPoolExecutor(len(spans)) as pool:
        list(pool.map(write_often, range(len(spans))))
    assert seqs(warehouse) == [number * 100 + 9 for number in range(len(spans))]


def test_small_files_are_joined_in_order(tmp_path: Path) -> None:
    files = [events(tmp_path / "s", number) for number in range(5)]
    joined = compact(files, tmp_path)
    assert [file.rows for file in joined] == [5]
    assert pq.read_table(joined[0].path)["seq"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_table_with_other_columns_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = table_path(tmp_path, "waits")
    write_deltalake(
        path, pa.table({"interval_start": pa.array([DAY.start], pa.timestamp("us", "UTC")), "old": [1]})
    )
    with pytest.raises(
        WarehouseError, match=r"waits.*missing \['blocked_message_ms', 'cluster'.*extra \['old'\]"
    ):
        replace_interval(tmp_path, "waits", DAY, [])
    assert DeltaTable(path).version() == 0


def test_a_table_of_an_older_home_is_read_and_gets_the_later_columns(tmp_path: Path) -> None:
    path = table_path(tmp_path, "consumer_events")
    DeltaTable.create(path, schema=older_schema("consumer_events"), partition_by=["interval_start"])
    older = pq.read_table(events(tmp_path / "s", 1).path).drop_columns(sorted(ADDED & set(EVENTS.names)))
    older = older.add_column(0, "interval_start", pa.array([DAY.start], pa.timestamp("us", "UTC")))
    write_deltalake(path, older, mode="append")
    assert (seqs(tmp_path), len(data_files(tmp_path, "consumer_events", DAY))) == ([1], 1)
    moved = {"seq": 2, "kind": "cursor_moved", "by": "seek", "moved_to": {"ledger_id": 5, "entry_id": -1}}
    replace_interval(tmp_path, "consumer_events", NEXT, [staged(tmp_path / "s", "consumer_events", [moved])])
    rows = read_table(tmp_path, "consumer_events").sort_by("seq")
    assert rows.schema.equals(CONTRACTS["consumer_events"])
    assert rows["moved_to"].to_pylist() == [None, {"ledger_id": 5, "entry_id": -1}]
    assert seqs(tmp_path, DAY) == [1]


def test_a_table_of_a_later_major_version_is_refused_by_every_reader_and_a_minor_one_is_read(
    tmp_path: Path,
) -> None:
    replace_interval(tmp_path, "consumer_events", DAY, [events(tmp_path / "s", 1)])
    table = DeltaTable(table_path(tmp_path, "consumer_events"))
    assert table.metadata().configuration[VERSION_KEY] == VERSION
    table.alter.set_table_properties({VERSION_KEY: "1.7"}, raise_if_not_exists=False)
    assert seqs(tmp_path) == [1]
    table.alter.set_table_properties({VERSION_KEY: "2.0"}, raise_if_not_exists=False)
    before = DeltaTable(table_path(tmp_path, "consumer_events")).version()
    readers = (
        lambda: read_table(tmp_path, "consumer_events"),
        lambda: data_files(tmp_path, "consumer_events", DAY),
        lambda: all_files(tmp_path, "consumer_events"),
        lambda: interval_dataset(tmp_path, "consumer_events", DAY.start),
        lambda: replace_interval(tmp_path, "consumer_events", DAY, []),
    )
    for read in readers:
        with pytest.raises(
            TablesVersionError, match=r"consumer_events: made in version '2.0'.*Use the release"
        ):
            read()
    assert DeltaTable(table_path(tmp_path, "consumer_events")).version() == before


def test_a_path_that_a_library_would_misread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match=r"misread a path that contains \[ \]"):
        replace_interval(tmp_path / "logs [old]", "waits", DAY, [])
    assert not (tmp_path / "logs [old]").exists()


def test_structs_that_may_be_missing_come_back_as_in_the_contract() -> None:
    contract = CONTRACTS["consumer_events"].field("read_position")
    loose = pa.table(
        {
            "read_position": pa.array(
                [None, {"ledger_id": 3, "entry_id": -1}],
                stored_schema("consumer_events").field("read_position").type,
            )
        }
    )
    back = conform(loose, pa.schema([contract]))
    assert back.schema.field("read_position").type == contract.type
    assert back["read_position"].to_pylist() == [None, {"ledger_id": 3, "entry_id": -1}]


def test_the_staging_folder_is_swept_locked_and_removed(tmp_path: Path) -> None:
    with stage_run(tmp_path, "replay", DAY) as folder:
        (folder / "x").touch()
        program = (
            "from pathlib import Path; from spark_jobs.intervals import interval\n"
            "from spark_jobs.warehouse.delta_tables import stage_run\n"
            f"stage_run(Path({str(tmp_path)!r}), 'replay', interval('2026-11-21')).__enter__()"
        )
        other = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        )
        assert "another run is doing replay for 2026-11-21 right now" in other.stderr
        assert (folder / "x").exists()
    assert not folder.exists()
    folder.mkdir()  # as a run that was killed leaves it
    with stage_run(tmp_path, "replay", DAY) as fresh:
        assert [child.name for child in fresh.parent.iterdir() if child.is_dir()] == [fresh.name]


def test_run_metadata_is_appended(tmp_path: Path) -> None:
    for rows in (1, 2):
        record_run(tmp_path, "ingest", DAY, datetime.now(UTC), {"rows_in": rows, "files": 1, "extra": [1]})
    assert sorted(read_table(tmp_path, "run_metadata")["rows_in"].to_pylist()) == [1, 2]
