"""One recording cut into intervals, run in any order: what the tables hold at the end, and whether the cut means anything.

Used on a small recording here and on a large one in ``tests/conformance``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatch_core.cli.main import main
from dispatch_core.recording.files import find_recordings
from dispatch_core.recording.reader import read_recording
from spark_jobs.aggregates import aggregate
from spark_jobs.contracts import CONTRACTS
from spark_jobs.history import ingest_with_history, stale_intervals
from spark_jobs.intervals import Interval, interval
from spark_jobs.pull import pull
from spark_jobs.replay import replay
from spark_jobs.warehouse import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_DAY = interval("2026-11-01")
#: All tables that are a function of the logs and were written here.
TABLES = sorted(set(CONTRACTS) - {"run_metadata", "verdicts"})


def day(number: int) -> Interval:
    """The interval of this number, from 1."""
    start = FIRST_DAY.start + timedelta(days=number - 1)
    return Interval(start, start + timedelta(days=1))


def cut(recordings: Sequence[Path], out: Path, intervals: int, *, late: int | None = None) -> None:
    """Cut the recordings into so many days below ``out / "log"``; a late segment (two a day) goes below ``out / "late"``."""
    held = [] if late is None else ["--late", str(late), "--late-out", str(out / "late")]
    arguments = ["--intervals", str(intervals), "--segments-per-interval", "2", "--start", "2026-11-01"]
    paths = [str(one) for one in recordings]
    assert main(["cut", *paths, "--out", str(out / "log"), *arguments, *held]) == 0


@dataclass
class Home:
    """Landing and warehouse of one order of runs."""

    root: Path
    source: Path
    aggregated: bool = True
    history: list[str] = field(default_factory=list)

    @property
    def landing(self) -> Path:
        return self.root / "landing"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    def run(self, spark: SparkSession, numbers: Iterable[int]) -> None:
        """Run the intervals in this order."""
        for number in numbers:
            span = day(number)
            pull(self.source, self.landing, span.start)
            self.history += ingest_with_history(spark, self.landing, self.warehouse, span)["history"]
            self.judge(spark, span)

    def recompute(self, spark: SparkSession) -> list[str]:
        """What the next scheduled run does about stale intervals, of which none are left afterwards; says which."""
        found = stale_intervals(self.landing, self.warehouse)
        for span in found:
            ingest_with_history(spark, self.landing, self.warehouse, span)
            self.judge(spark, span)
        assert stale_intervals(self.landing, self.warehouse) == []
        return [one.name for one in found]

    def judge(self, spark: SparkSession, span: Interval) -> None:
        """What is made of the interval's rows; aggregates take most of the time."""
        replay(spark, self.warehouse, span)
        if self.aggregated:
            aggregate(spark, self.warehouse, span)

    def rows(self) -> dict[str, list[str]]:
        """All tables, row by row, in an order of their own."""
        return {name: sorted(map(repr, read_table(self.warehouse, name).to_pylist())) for name in TABLES}


def assert_same(one: Home, other: Home) -> None:
    """Both hold the same tables, row by row."""
    left, right = one.rows(), other.rows()
    for name in TABLES:
        gone, come = Counter(left[name]) - Counter(right[name]), Counter(right[name]) - Counter(left[name])
        assert (list(gone)[:2], list(come)[:2]) == ([], []), name


def crossings(source: Path, intervals: int) -> dict[str, set[int]]:
    """What goes on across which cuts (1 = between the first and the second interval), by brute force over the lines."""
    cuts = {number: day(number).end_us for number in range(1, intervals)}
    found: dict[str, set[int]] = {"unacked": set(), "draining": set()}
    for recording in find_recordings([source]):
        for log in read_recording(recording).logs:
            rows = log.events.select(["t_us", "kind", "consumer", "positions", "hash"]).to_pylist()
            for number, at_us in cuts.items():
                unacked: set[tuple[Any, ...]] = set()
                draining: set[int] = set()
                for row in rows:
                    if row["t_us"] is None or row["t_us"] >= at_us:
                        continue
                    places = {(one["ledger_id"], one["entry_id"]) for one in row["positions"] or ()}
                    if row["kind"] == "sent":
                        unacked |= places
                    elif row["kind"] == "ack":
                        unacked -= places
                    elif row["kind"] == "draining_add":
                        draining.add(row["hash"])
                    elif row["kind"] == "draining_release":
                        draining.discard(row["hash"])
                    elif row["kind"] == "draining_clear":
                        draining.clear()
                found["unacked"] |= {number} if unacked else set()
                found["draining"] |= {number} if draining else set()
    return found


def anomalies_across(warehouse: Path, intervals: int) -> set[int]:
    """The cuts across which an anomaly reaches: proven after the cut by a line that stands before it."""
    times: dict[tuple[Any, ...], int] = {}
    log = ("cluster", "topic", "subscription", "incarnation")
    for row in read_table(warehouse, "consumer_events").select([*log, "seq", "t_us"]).to_pylist():
        if row["t_us"] is not None:
            times[*(row[name] for name in log), row["seq"]] = row["t_us"]
    across = set()
    for row in read_table(warehouse, "anomalies").to_pylist():
        seen = [times.get((*(row[name] for name in log), seq)) for seq in row["seqs"]]
        known = [one for one in seen if one is not None]
        for number in range(1, intervals):
            if known and min(known) < day(number).end_us <= max(known):
                across.add(number)
    return across


def runs(warehouse: Path, stage: str) -> list[dict[str, Any]]:
    """The summaries of all runs of a stage, in the order in which they ended."""
    rows = read_table(warehouse, "run_metadata").sort_by("finished_at").to_pylist()
    return [json.loads(row["summary_json"]) for row in rows if row["stage"] == stage]
