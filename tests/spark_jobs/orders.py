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
from spark_jobs.aggregates.aggregate_interval import aggregate
from spark_jobs.ingest.landing_changes import stale_intervals
from spark_jobs.ingest.with_history import ingest_with_history
from spark_jobs.intervals import Interval, parse_moment
from spark_jobs.pull.pull_logs import pull
from spark_jobs.replay.replay_interval import replay
from spark_jobs.stale_intervals import all_stale
from spark_jobs.warehouse.balance_window import outdated_windows
from spark_jobs.warehouse.contracts import CONTRACTS, NOT_COMPARED
from spark_jobs.warehouse.delta_tables import read_table
from spark_jobs.warehouse.run_ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Longer ones would make a short recording wait longer still: all it would be is more findings of one kind.
LENGTH = timedelta(hours=1)
START = parse_moment("2026-11-01")
#: All tables that are a function of the logs and were written here.
TABLES = sorted(set(CONTRACTS) - set(NOT_COMPARED))


def span(number: int) -> Interval:
    """The interval of this number, from 1."""
    return Interval(START + (number - 1) * LENGTH, START + number * LENGTH)


def cut(
    recording: Path, out: Path, intervals: int, *, late: int | None = None, at: Sequence[int] = ()
) -> None:
    """Cut a recording into so many intervals, two segments each, below ``out / "log"``; a late one below ``out / "late"``.

    ``at``: the moments of the recording at which intervals begin.
    """
    late_arguments = [] if late is None else ["--late", str(late), "--late-out", str(out / "late")]
    late_arguments += [word for moment in at for word in ("--at", str(moment))]
    arguments = ["--intervals", str(intervals), "--segments-per-interval", "2", "--interval-length", "1h"]
    arguments += ["--start", START.isoformat()]
    assert main(["cut", str(recording), "--out", str(out / "log"), *arguments, *late_arguments]) == 0


@dataclass
class Home:
    """Landing and warehouse of one order of runs."""

    root: Path
    source: Path
    to_the_end: bool = True
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
            interval = span(number)
            pull(self.source, self.landing, interval.start, interval_end=interval.end)
            self.history += ingest_with_history(spark, self.landing, self.warehouse, interval)["history"]
            self.judge(spark, interval)

    def recompute(self, spark: SparkSession) -> list[str]:
        """Recompute all stale intervals, as the next scheduled runs do; return the names of those that were replayed."""
        found = stale_intervals(self.landing, self.warehouse)
        for interval in found:
            ingest_with_history(spark, self.landing, self.warehouse, interval)
            self.judge(spark, interval)
        for interval in outdated_windows(Ledger(self.warehouse)):
            self.finish(interval)
        assert all_stale(self.landing, self.warehouse) == []
        return [interval.name for interval in found]

    def judge(self, spark: SparkSession, interval: Interval) -> None:
        """Make the interval's results; aggregates and verdicts, which take most of the time, only if asked for."""
        replay(spark, self.warehouse, interval)
        if self.to_the_end:
            self.finish(interval)

    def finish(self, interval: Interval) -> None:
        """Make what follows the replay."""
        from dispatch_expectations.validate import validate_interval

        aggregate(self.warehouse, interval)
        validate_interval(self.warehouse, interval.start, self.root / "data-docs")

    def rows(self) -> dict[str, list[str]]:
        """All tables, row by row, in an order of their own."""
        return {name: sorted(map(repr, read_table(self.warehouse, name).to_pylist())) for name in TABLES}


def assert_same(home: Home, other: Home, tables: Iterable[str] = TABLES) -> None:
    """Both hold the same tables, row by row."""
    left, right = home.rows(), other.rows()
    for name in tables:
        gone, come = Counter(left[name]) - Counter(right[name]), Counter(right[name]) - Counter(left[name])
        assert (list(gone)[:2], list(come)[:2]) == ([], []), name


class UnderWay:
    """Follow a log line by line: entries that are not acknowledged, hashes that drain."""

    def __init__(self) -> None:
        self.unacked: set[tuple[int, int]] = set()
        self.draining: set[int] = set()

    def follow(self, row: dict[str, Any]) -> None:
        """The next line."""
        places = {(position["ledger_id"], position["entry_id"]) for position in row["positions"] or ()}
        if row["kind"] == "sent":
            self.unacked |= places
        elif row["kind"] == "ack":
            self.unacked -= places
        elif row["kind"] == "draining_add":
            self.draining.add(row["hash"])
        elif row["kind"] == "draining_release":
            self.draining.discard(row["hash"])
        elif row["kind"] == "draining_clear":
            self.draining.clear()


def lines(source: Path) -> list[dict[str, Any]]:
    """The lines of the only dispatcher below ``source``, in their order."""
    ((log,),) = (read_recording(recording).logs for recording in find_recordings([source]))
    columns = ["t_us", "kind", "consumer", "positions", "hash"]
    rows: list[dict[str, Any]] = log.events.select(columns).to_pylist()
    return [row for row in rows if row["t_us"] is not None]


def busy_moments(source: Path, count: int) -> list[int]:
    """So many moments of a recording, far from each other, before which entries are unacknowledged and hashes drain."""
    state = UnderWay()
    rows = lines(source)
    found = []
    for number, row in enumerate(rows):
        if state.unacked and state.draining and row["t_us"] > rows[number - 1]["t_us"]:
            found.append(row["t_us"])
        state.follow(row)
    assert len(found) > 100 * count, "a recording in which hashes drain for a while"
    return [found[len(found) * part // (count + 1)] for part in range(1, count + 1)]


def crossings(source: Path, intervals: int) -> dict[str, set[int]]:
    """Find by brute force what is unfinished at each cut (1 = between the first and the second interval)."""
    ends = {span(number).end_us: number for number in range(1, intervals)}
    found: dict[str, set[int]] = {"unacked": set(), "draining": set()}
    state = UnderWay()
    for row in lines(source):
        for end_us in [end for end in ends if end <= row["t_us"]]:
            number = ends.pop(end_us)
            found["unacked"] |= {number} if state.unacked else set()
            found["draining"] |= {number} if state.draining else set()
        state.follow(row)
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
        known = [value for value in seen if value is not None]
        for number in range(1, intervals):
            if known and min(known) < span(number).end_us <= max(known):
                across.add(number)
    return across


def runs(warehouse: Path, stage: str) -> list[dict[str, Any]]:
    """The summaries of all runs of a stage, in the order in which they ended."""
    rows = read_table(warehouse, "run_metadata").sort_by("finished_at").to_pylist()
    return [json.loads(row["summary_json"]) for row in rows if row["stage"] == stage]
