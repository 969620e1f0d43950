"""The warehouse without a JVM: contracts, atomic replacement of an interval, staging folders."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from dispatch_core.recording.schema import EVENTS
from dispatch_core.tables import VERSION, VERSION_KEY, TablesVersionError
from dispatch_expectations.table_rows import interval_dataset
from spark_jobs.intervals import Interval, interval
from spark_jobs.location import Location
from spark_jobs.warehouse import delta_tables
from spark_jobs.warehouse.contracts import (
    ADDED,
    CONTRACTS,
    StagedFile,
    conform,
    data_file,
    file_schema,
    older_schema,
    stored_schema,
)
from spark_jobs.warehouse.delta_tables import (
    Publication,
    PublishedMeanwhileError,
    WarehouseError,
    all_files,
    compact,
    data_files,
    ensure_table,
    publishing,
    read_table,
    record_run,
    replace_interval,
    replace_rows,
    table_path,
    write_rows,
)
from spark_jobs.warehouse.file_rows import file_rows

DAY = interval("2026-11-21")
NEXT = interval("2026-11-22")


def table_of(name: str, rows: list[dict[str, object]]) -> pa.Table:
    """Rows of a table's files; columns that a row leaves out are null, or empty text and zero where they may not be."""
    contract = file_schema(name)
    empty = {
        field.name: None if field.nullable else {"string": "", "binary": b""}.get(str(field.type), 0)
        for field in contract
    }
    return pa.Table.from_pylist([empty | row for row in rows], schema=contract)


def staged(
    warehouse: Path, span: Interval, name: str, rows: list[dict[str, object]], part: str
) -> StagedFile:
    return write_rows(warehouse, name, span, table_of(name, rows), part)


def seqs(warehouse: Path, span=None) -> list[int]:
    return sorted(read_table(warehouse, "consumer_events", span)["seq"].to_pylist())


def events(warehouse: Path, span: Interval, *numbers: int) -> StagedFile:
    rows: list[dict[str, object]] = [{"seq": number, "kind": "ack"} for number in numbers]
    return staged(warehouse, span, "consumer_events", rows, f"{numbers[0]:05d}")


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_every_contract_survives_delta(tmp_path: Path, name: str) -> None:
    table = ensure_table(tmp_path, name)
    assert pa.schema(table.schema().to_arrow()).names == CONTRACTS[name].names
    ensure_table(tmp_path, name)
    assert read_table(tmp_path, name).schema.equals(CONTRACTS[name])


def test_an_interval_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    warehouse = tmp_path / "w"
    replace_interval(
        warehouse, "consumer_events", DAY, [events(warehouse, DAY, 1, 2), events(warehouse, DAY, 3)]
    )
    replace_interval(warehouse, "consumer_events", NEXT, [events(warehouse, NEXT, 4)])
    replace_interval(warehouse, "consumer_events", DAY, [events(warehouse, DAY, 5)])
    assert (seqs(warehouse, DAY), seqs(warehouse, NEXT), seqs(warehouse)) == ([5], [4], [4, 5])
    starts = read_table(warehouse, "consumer_events", NEXT)["interval_start"].to_pylist()
    assert starts == [datetime(2026, 11, 22, tzinfo=UTC)]


def test_files_keep_the_order_in_which_they_were_staged(tmp_path: Path) -> None:
    numbers = list(range(12))
    files = [events(tmp_path, DAY, number) for number in numbers]
    replace_interval(tmp_path, "consumer_events", DAY, files)
    paths = data_files(tmp_path, "consumer_events", DAY)
    assert [pq.ParquetFile(path).read()["seq"].to_pylist() for path in paths] == [
        [number] for number in numbers
    ]
    assert paths == sorted(paths)  # the order in which a log's files are read


def test_one_commit_per_replacement_and_none_for_nothing(tmp_path: Path) -> None:
    path = table_path(tmp_path, "consumer_events")
    replace_interval(tmp_path, "consumer_events", DAY, [])
    assert DeltaTable(path.url).version() == 0
    replace_interval(tmp_path, "consumer_events", DAY, [events(tmp_path, DAY, 1), events(tmp_path, DAY, 2)])
    assert DeltaTable(path.url).version() == 1
    replace_interval(tmp_path, "consumer_events", DAY, [])
    assert (DeltaTable(path.url).version(), seqs(tmp_path)) == (2, [])


def test_writers_of_different_intervals_do_not_disturb_each_other(tmp_path: Path) -> None:
    warehouse = tmp_path / "w"
    ensure_table(warehouse, "consumer_events")
    spans = [interval(f"2026-11-{day}") for day in range(10, 18)]

    def write_often(number: int) -> None:
        for round_ in range(10):
            file = events(warehouse, spans[number], number * 100 + round_)
            replace_interval(warehouse, "consumer_events", spans[number], [file])

    with ThreadPoolExecutor(len(spans)) as pool:
        list(pool.map(write_often, range(len(spans))))
    assert seqs(warehouse) == [number * 100 + 9 for number in range(len(spans))]


def test_small_files_are_joined_in_order_and_keep_their_place(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("spark_jobs.warehouse.delta_tables.ROWS_PER_FILE", 4)
    sizes = {1: 1, 2: 1, 3: 3, 4: 1, 5: 1}
    files = [events(tmp_path, DAY, *range(first * 10, first * 10 + count)) for first, count in sizes.items()]
    joined = compact(files)
    assert [file.rows for file in joined] == [2, 3, 2]
    assert [file.path for file in joined] == sorted(file.path for file in joined)
    replace_interval(tmp_path, "consumer_events", DAY, joined)
    assert read_table(tmp_path, "consumer_events")["seq"].to_pylist() == [10, 20, 30, 31, 32, 40, 50]


def test_a_table_with_other_columns_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = table_path(tmp_path, "waits")
    write_deltalake(
        path.url, pa.table({"interval_start": pa.array([DAY.start], pa.timestamp("us", "UTC")), "old": [1]})
    )
    with pytest.raises(
        WarehouseError, match=r"waits.*missing \['blocked_message_ms', 'cluster'.*extra \['old'\]"
    ):
        replace_interval(tmp_path, "waits", DAY, [])
    assert DeltaTable(path.url).version() == 0


def test_a_table_of_an_older_home_is_read_and_gets_the_later_columns(tmp_path: Path) -> None:
    path = table_path(tmp_path, "consumer_events")
    DeltaTable.create(path.url, schema=older_schema("consumer_events"), partition_by=["interval_start"])
    rows = table_of("consumer_events", [{"seq": 1, "kind": "ack"}])
    older = rows.drop_columns(sorted(ADDED & set(EVENTS.names)))
    older = older.add_column(0, "interval_start", pa.array([DAY.start], pa.timestamp("us", "UTC")))
    write_deltalake(path.url, older, mode="append")
    assert (seqs(tmp_path), len(data_files(tmp_path, "consumer_events", DAY))) == ([1], 1)
    moved = {"seq": 2, "kind": "cursor_moved", "by": "seek", "moved_to": {"ledger_id": 5, "entry_id": -1}}
    replace_interval(
        tmp_path, "consumer_events", NEXT, [staged(tmp_path, NEXT, "consumer_events", [moved], "0")]
    )
    rows = read_table(tmp_path, "consumer_events").sort_by("seq")
    assert rows.schema.equals(CONTRACTS["consumer_events"])
    assert rows["moved_to"].to_pylist() == [None, {"ledger_id": 5, "entry_id": -1}]
    assert seqs(tmp_path, DAY) == [1]


def test_the_balance_of_an_older_home_is_read_and_gets_the_later_column(tmp_path: Path) -> None:
    path = table_path(tmp_path, "balance")
    older = older_schema("balance")
    assert set(stored_schema("balance").names) - set(older.names) == {"equal_share"}
    DeltaTable.create(path.url, schema=older, partition_by=["interval_start"])
    rows = table_of("balance", [{"consumer_name": "a", "entries": 7}]).drop_columns(["equal_share"])
    rows = rows.add_column(0, "interval_start", pa.array([DAY.start], pa.timestamp("us", "UTC")))
    write_deltalake(path.url, rows, mode="append")
    (before,) = file_rows(data_files(tmp_path, "balance", DAY), ["consumer_name", "entries", "equal_share"])
    assert before.column_names == ["consumer_name", "entries"], "its reader adds the column (conform)"
    later = {"consumer_name": "b", "entries": 8, "equal_share": 0.5}
    replace_interval(tmp_path, "balance", NEXT, [staged(tmp_path, NEXT, "balance", [later], "0")])
    rows = read_table(tmp_path, "balance").sort_by("entries")
    assert rows.schema.equals(CONTRACTS["balance"])
    assert rows.select(["entries", "equal_share"]).to_pylist() == [
        {"entries": 7, "equal_share": None},
        {"entries": 8, "equal_share": 0.5},
    ]


def test_a_table_of_a_later_major_version_is_refused_by_every_reader_and_a_minor_one_is_read(
    tmp_path: Path,
) -> None:
    replace_interval(tmp_path, "consumer_events", DAY, [events(tmp_path, DAY, 1)])
    table = DeltaTable(table_path(tmp_path, "consumer_events").url)
    assert table.metadata().configuration[VERSION_KEY] == VERSION
    table.alter.set_table_properties({VERSION_KEY: "1.7"}, raise_if_not_exists=False)
    assert seqs(tmp_path) == [1]
    table.alter.set_table_properties({VERSION_KEY: "2.0"}, raise_if_not_exists=False)
    before = DeltaTable(table_path(tmp_path, "consumer_events").url).version()
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
    assert DeltaTable(table_path(tmp_path, "consumer_events").url).version() == before


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


def test_of_two_runs_of_one_interval_the_second_fails_its_commit(tmp_path: Path) -> None:
    first, second = (Publication.begin(tmp_path, DAY, ["consumer_events"]) for _ in range(2))
    other = Publication.begin(tmp_path, NEXT, ["consumer_events"])
    first.replace("consumer_events", [events(tmp_path, DAY, 1)])
    with pytest.raises(PublishedMeanwhileError, match="another run published consumer_events of 2026-11-21"):
        second.check()
    late = events(tmp_path, DAY, 2)
    with pytest.raises(PublishedMeanwhileError, match="its rows stay"):
        second.replace("consumer_events", [late])
    second.clean()
    other.replace("consumer_events", [events(tmp_path, NEXT, 3)])
    assert seqs(tmp_path) == [1, 3]
    assert not late.path.exists()
    Publication.begin(tmp_path, DAY, ["consumer_events"]).replace(
        "consumer_events", [events(tmp_path, DAY, 4)]
    )
    assert seqs(tmp_path, DAY) == [4]


def test_runs_of_one_interval_that_commit_at_once_publish_once(tmp_path: Path) -> None:
    ensure_table(tmp_path, "consumer_events")
    runs = [Publication.begin(tmp_path, DAY, ["consumer_events"]) for _ in range(6)]
    files = [events(tmp_path, DAY, number) for number in range(len(runs))]

    def publish(number: int) -> bool:
        try:
            runs[number].replace("consumer_events", [files[number]])
        except PublishedMeanwhileError:
            return False
        return True

    with ThreadPoolExecutor(len(runs)) as pool:
        published = list(pool.map(publish, range(len(runs))))
    assert published.count(True) == 1
    assert seqs(tmp_path) == [published.index(True)]


def test_a_commit_whose_answer_is_lost_loses_no_file(tmp_path: Path, monkeypatch) -> None:
    """The run does not know that its commit was accepted, and must not remove what the commit names."""
    commit = DeltaTable.create_write_transaction

    def committed(table, *arguments, **options) -> None:
        commit(table, *arguments, **options)
        raise OSError("the connection was closed")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", committed)
        with pytest.raises(OSError, match="closed"):
            replace_rows(tmp_path, "consumer_events", DAY, table_of("consumer_events", [{"seq": 1}]))
    assert seqs(tmp_path) == [1]

    def conflicting(table, *arguments, **options) -> None:
        commit(table, *arguments, **options)
        raise CommitFailedError("the version exists")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", conflicting)
        replace_rows(tmp_path, "consumer_events", DAY, table_of("consumer_events", [{"seq": 2}]))
    assert seqs(tmp_path) == [2]


def test_a_run_that_is_repeated_goes_on_where_it_was(tmp_path: Path) -> None:
    run = Publication.begin(tmp_path, DAY, ["consumer_events", "waits"])
    run.replace("consumer_events", [events(tmp_path, DAY, 1)])
    version = ensure_table(tmp_path, "consumer_events").version()
    again = Publication.of_json(tmp_path, DAY, run.as_json())
    again.check()
    assert again.replace("consumer_events", [events(tmp_path, DAY, 1)]) == 1
    assert ensure_table(tmp_path, "consumer_events").version() == version
    assert seqs(tmp_path) == [1]


def test_files_that_no_commit_names_are_not_read_and_go_with_their_run(tmp_path: Path) -> None:
    replace_rows(tmp_path, "consumer_events", DAY, table_of("consumer_events", [{"seq": 1, "kind": "ack"}]))
    killed = data_file(Location.of(tmp_path), "consumer_events", DAY, "00000")
    killed.write_bytes(b"half a file")
    with publishing(tmp_path, DAY, ["consumer_events"]) as run:
        run.staged([events(tmp_path, DAY, 2)])
    assert seqs(tmp_path) == [1]
    assert {stored.location for stored in killed.parent.files()} == {
        killed,
        Location.of(data_files(tmp_path, "consumer_events", DAY)[0]),
    }


def test_run_metadata_is_appended(tmp_path: Path) -> None:
    for rows in (1, 2):
        record_run(tmp_path, "ingest", DAY, datetime.now(UTC), {"rows_in": rows, "files": 1, "extra": [1]})
    assert sorted(read_table(tmp_path, "run_metadata")["rows_in"].to_pylist()) == [1, 2]


def test_files_of_an_appended_table_are_joined_before_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_tables, "_MOST_APPENDED", 4)
    for number in range(10):
        record_run(tmp_path, "replay", DAY, datetime.now(UTC), {"number": number})
        assert len(all_files(tmp_path, "run_metadata")) <= 4
    rows = read_table(tmp_path, "run_metadata").to_pylist()
    assert sorted(json.loads(row["summary_json"])["number"] for row in rows) == list(range(10))
