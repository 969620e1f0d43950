"""A task's sums over row groups against the definition over whole logs, and which rows it takes."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dispatch_core.audit.hash_share import fair_of as fair_of_log
from spark_jobs.aggregates.hash_share_task import Log, fair_of
from spark_jobs.warehouse.contracts import LOG, file_schema
from tests.spark_jobs.conftest import empty_row

LOGS: list[Log] = [("c", f"t{at}", "s", 0) for at in range(4)] + [("c", "t2", "s", 1), ("c", "t2", "z", 0)]


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of a table; what a row leaves out is zero or empty text, or null where it may be."""
    contract = file_schema(name)
    return pa.Table.from_pylist([empty_row(contract) | row for row in rows], schema=contract)


def life(random: Random, log: Log) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Spans of ownership and sendings of one log; some connections have no name, some names several connections."""
    whose = dict(zip(LOG, log, strict=True))
    owned = []
    for consumer in range(5):
        name = None if consumer == 4 else f"w{consumer % 3}"
        for _ in range(random.randrange(1, 6)):
            since, start = random.randrange(60), random.randrange(1000)
            until = None if random.random() < 0.3 else since + random.randrange(1, 60)
            spans = ((start, start + random.randrange(50)), (2000, 2000 + random.randrange(9)))
            owned += [
                whose
                | {"consumer": consumer, "consumer_name": name, "from_seq": since, "until_seq": until}
                | {"range_start": low, "range_end": high}
                for low, high in spans
            ]
    sent = [
        whose | {"seq": random.randrange(150), "num_messages": random.choice([None, 1, 3])} for _ in range(90)
    ]
    return owned, sorted(sent, key=lambda row: row["seq"])


def written(folder: Path, name: str, rows: list[dict[str, Any]], group_rows: int) -> list[str]:
    """The rows in two files; a log may begin in the first and end in the second."""
    whole, cut = table(name, rows), len(rows) * 2 // 5
    paths = [str(folder / f"{name}-{number}.parquet") for number in range(2)]
    for path, part in zip(paths, (whole.slice(0, cut), whole.slice(cut)), strict=True):
        pq.write_table(part, path, row_group_size=group_rows)
    return paths


@pytest.mark.parametrize("group_rows", [1, 7, 100_000])
@pytest.mark.parametrize("seed", range(3))
def test_sums_over_row_groups_are_those_of_whole_logs(tmp_path: Path, seed: int, group_rows: int) -> None:
    random = Random(seed)
    lives = {log: life(random, log) for log in LOGS}
    ownership, deliveries = (
        written(tmp_path, name, [row for of_log in lives.values() for row in of_log[at]], group_rows)
        for at, name in enumerate(("ownership", "deliveries"))
    )
    wanted = [LOGS[5], LOGS[1], LOGS[4]]
    found = fair_of(wanted, ownership, deliveries).to_pylist()
    assert {tuple(row[name] for name in LOG) for row in found} == set(wanted)
    for log in wanted:
        owned, sent = lives[log]
        expected = fair_of_log(table("deliveries", sent), table("ownership", owned))
        mine = {row["name"]: row for row in found if tuple(row[name] for name in LOG) == log}
        assert {name: (row["by_hashes"], row["by_number"]) for name, row in mine.items()} == {
            name: (pytest.approx(by_hashes), pytest.approx(by_number))
            for name, (by_hashes, by_number) in expected.items()
        }
        for name, row in mine.items():
            assert set(row["owned_by"]) == {
                one["consumer"]
                for one in owned
                if (one["consumer_name"] or f"consumer {one['consumer']}") == name
            }


def test_a_log_of_which_nobody_owned_anything_has_no_row(tmp_path: Path) -> None:
    _, sent = life(Random(1), LOGS[0])
    deliveries = written(tmp_path, "deliveries", sent, 10)
    assert fair_of([LOGS[0]], [], deliveries).num_rows == 0
