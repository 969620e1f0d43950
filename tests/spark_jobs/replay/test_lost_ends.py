"""Dispatchers of which rows behind the last line could not be read, by the tables of the ingest."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dispatch_core.times import micros
from spark_jobs.intervals import interval
from spark_jobs.replay.lost_ends import with_lost_ends
from spark_jobs.warehouse.contracts import CONTRACTS

DAY = interval("2026-11-21")
NEXT = interval("2026-11-22")
Line = tuple[str, str, int] | tuple[str, str, int, int]  # topic, file, line, incarnation
Refused = tuple[str, int | None]


def warehouse(
    folder: Path, lines: list[Line], refused: list[Refused], later: list[Line] = (), headers: list[Line] = ()
) -> Path:
    """Write the lines of a day and of the next one, and what was refused of the first."""
    rows: list[dict[str, Any]] = []
    for span, of_day in ((DAY, lines), (NEXT, later)):
        for number, (topic, file, line, *load) in enumerate(of_day, 1):
            rows.append(_row(span.start, topic, file, line, seq=number, kind="flow"))
            rows[-1]["incarnation"] = load[0] if load else 0
            rows[-1]["t_us"] = micros(span.start) + number
    rows += [_row(DAY.start, *header, seq=0, kind="header") for header in headers]
    bad = [
        {"interval_start": DAY.start, "source_file": file, "source_line": line, "raw_truncated": False}
        | {"reason": "bad"}
        for file, line in refused
    ]
    for name, content in (("consumer_events", rows), ("quarantine", bad)):
        table = pa.Table.from_pylist(content, schema=CONTRACTS[name])
        write_deltalake(str(folder / name), table, partition_by=["interval_start"])
    return folder


def _row(start: Any, topic: str, file: str, line: int, **fields: Any) -> dict[str, Any]:
    return {
        "interval_start": start,
        "cluster": "c",
        "topic": topic,
        "subscription": "s",
        "incarnation": 0,
        "source_file": file,
        "source_line": line,
    } | fields


A, B = "d/events-a.jsonl", "d/events-b.jsonl"
LINES = [("t", A, 2), ("u", A, 3), ("t", A, 4), ("u", B, 2)]


@pytest.mark.parametrize(
    ("refused", "lost"),
    [
        ([], set()),
        ([(A, 3)], set()),  # t goes on behind it, u in another file
        ([(A, 5)], {"t"}),
        ([(A, None)], {"t"}),
        ([(B, None)], {"u"}),
        ([("d/events-c.jsonl", None)], {"t", "u"}),
        ([("e/events.jsonl", None)], set()),
        ([("d/messages.jsonl", None)], set()),
    ],
)
def test_a_refused_row_concerns_the_logs_that_end_before_it(
    refused: list[Refused], lost: set[str], tmp_path: Path
) -> None:
    home = warehouse(tmp_path, LINES, refused)
    assert {dispatcher[1] for dispatcher in with_lost_ends(home, DAY)} == lost


def test_a_file_of_which_only_the_header_was_read_is_of_its_own_logs(tmp_path: Path) -> None:
    home = warehouse(tmp_path, LINES[:1], [(B, None)], headers=[("u", B, 1)])
    assert with_lost_ends(home, DAY) == {}


def test_a_log_that_goes_on_shows_what_is_missing(tmp_path: Path) -> None:
    home = warehouse(tmp_path, LINES, [(A, 5), (B, 3)], later=[("t", "d/events-c.jsonl", 2)])
    assert {dispatcher[1] for dispatcher in with_lost_ends(home, DAY)} == {"t", "u"}
    assert {dispatcher[1] for dispatcher in with_lost_ends(home, NEXT)} == {"u"}


@pytest.mark.parametrize(
    ("refused", "lost"),
    [
        ([], {}),
        ([(A, 3)], {("c", "t", "s"): [(None, 1)]}),  # the second load of t begins behind it
        ([(A, 9)], {("c", "t", "s"): [(None, 2)]}),
        ([(A, 3), (A, 9)], {("c", "t", "s"): [(None, 1), (None, 2)]}),
    ],
)
def test_each_load_has_an_end_of_its_own(
    refused: list[Refused], lost: dict[Any, Any], tmp_path: Path
) -> None:
    home = warehouse(tmp_path, [("t", A, 2, 1), ("t", A, 4, 2)], refused)
    assert with_lost_ends(home, DAY) == lost


def test_the_end_of_a_load_stays_lost_when_the_next_one_goes_on(tmp_path: Path) -> None:
    home = warehouse(tmp_path, [("t", A, 2, 1)], [(A, 5)], later=[("t", B, 2, 2)])
    assert with_lost_ends(home, NEXT) == {("c", "t", "s"): [(None, 1)]}


def test_a_row_that_was_refused_behind_a_line_of_the_next_day_is_of_that_day(tmp_path: Path) -> None:
    home = warehouse(tmp_path, LINES, [(A, 9)], later=[("t", A, 8)])
    assert with_lost_ends(home, DAY) == {}
    assert NEXT.start - DAY.start == timedelta(days=1)
