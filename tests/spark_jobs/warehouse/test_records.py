"""Small tables that processes change one after the other, without a lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from spark_jobs.location import Location
from spark_jobs.warehouse import records as module
from spark_jobs.warehouse.records import Records, TurnError, turn

ROWS = pa.schema([pa.field("name", pa.string()), pa.field("count", pa.int64())])


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return Location.of(tmp_path / "records")


def counts(records: Records) -> dict[str, int]:
    return {row["name"]: row["count"] for row in records.read().to_pylist()}


def test_no_change_of_several_writers_is_lost(place: Location) -> None:
    records = Records(place, ROWS)
    assert (records.exists(), records.read().num_rows) == (False, 0)

    def count(name: str) -> None:
        def change(rows: pa.Table) -> pa.Table:
            known = {row["name"]: row["count"] for row in rows.to_pylist()}
            known[name] = known.get(name, 0) + 1
            return pa.Table.from_pylist([{"name": of, "count": number} for of, number in known.items()], ROWS)

        for _ in range(5):
            records.update(change)

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(count, ("a", "b", "a", "b")))
    assert counts(records) == {"a": 10, "b": 10}


def test_rows_are_added_and_a_change_to_nothing_commits_nothing(place: Location) -> None:
    records = Records(place, ROWS)
    with ThreadPoolExecutor(3) as writers:
        list(writers.map(lambda name: records.append(pa.table({"name": [name], "count": [1]}, ROWS)), "xyz"))
    assert counts(records) == {"x": 1, "y": 1, "z": 1}
    version = module.open_delta(place).version()
    records.update(lambda _rows: None)
    assert module.open_delta(place).version() == version
    records.update(lambda rows: rows.slice(0, 0))
    assert counts(records) == {}


def test_one_has_the_turn_and_one_that_died_loses_it(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        turn(place, "mail", wait_s=1),
        turn(place, "other", wait_s=1),
        pytest.raises(TurnError, match="another process has had the turn of mail for 0 s"),
        turn(place, "mail", wait_s=0.3),
    ):
        pass
    with turn(place, "mail", wait_s=1):
        pass
    monkeypatch.setattr(module, "_TURN_S", 0.5)
    assert module._taken(Records(place, module._TURNS), "mail", "one that died")
    with turn(place, "mail", wait_s=5):
        pass


def test_a_commit_whose_answer_was_lost_counts_once(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    records = Records(place, ROWS)
    records.append(pa.table({"name": ["a"], "count": [1]}, ROWS))
    commit = module.DeltaTable.create_write_transaction
    lost = iter([True])

    def committed(table: Any, *arguments: Any, **options: Any) -> None:
        commit(table, *arguments, **options)
        if next(lost, False):
            raise CommitFailedError("version 2 exists")

    monkeypatch.setattr(module.DeltaTable, "create_write_transaction", committed)
    records.append(pa.table({"name": ["b"], "count": [2]}, ROWS))
    assert counts(records) == {"a": 1, "b": 2}
    assert records.read().num_rows == 2
