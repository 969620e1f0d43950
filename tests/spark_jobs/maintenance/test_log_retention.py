"""Old logs are removed, and later intervals are computed as if they were there; earlier ones are refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dispatch_core.audit.limit_rules import LimitRules
from spark_jobs.ingest.landing_changes import stale_intervals
from spark_jobs.ingest.with_history import ingest_with_history
from spark_jobs.location import Location
from spark_jobs.maintenance import log_retention, maintain
from spark_jobs.maintenance.retention import Retention
from spark_jobs.replay import snapshot_files
from spark_jobs.replay.replay_interval import replay
from spark_jobs.stale_intervals import recompute
from spark_jobs.warehouse.delta_tables import read_table
from spark_jobs.warehouse.run_ledger import Ledger, LogsRemovedError
from tests.spark_jobs.orders import TABLES, Home, assert_same, span
from tests.spark_jobs.replay.test_late_dispatcher import HEADER, POLICY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

#: The first 4,096 lines behind the first delivery of a log are not cut.
ENTRIES, FEW = 2_500, 4
LARGE, SMALL, GONE = "large", "small", "gone"
HOURS = 4
REPLAYED = sorted(set(TABLES) - {"rolling_balance"})
KEEP_TWO_DAYS = Retention(logs=2, snapshots=None, pages=None, what_if=None, unreachable=None)


def write_hour(source: Path, topic: str, hour: int, entries: int) -> None:
    """Write the lines of an hour: each entry is acknowledged at once, but for the last ones, in the next hour.

    In the last hour an entry is sent again behind its acknowledgement.
    """
    names = {"topic": f"persistent://public/default/{topic}", "subscription": "s"}
    begin_us = span(hour).start_us + 1_000_000
    lines: list[tuple[int, dict[str, Any]]] = []
    if hour == 1:
        lines += [(0, {"kind": "consumer_added", "consumer": 1, "name": "w", "key_shared": POLICY})]
        lines += [(1, {"kind": "flow", "consumer": 1, "permits": 1_000_000})]
    else:
        first = entries * hour
        lines += [(2, _line("ack", first - 2, first - 1))]
    messages = []
    for number in range(entries):
        entry, at_us = entries * hour + number, 10 + 1_000_000 * number
        messages.append(
            {
                "topic": names["topic"],
                "position": f"5:{entry}",
                "key": f"k{entry % 5}",
                "producer": "p",
                "sequence_id": entry,
                "publish_time_ms": (begin_us + at_us) // 1000,
                "num_messages": 1,
                "size_bytes": 10,
            }
        )
        lines.append((at_us + 2000, _line("sent", entry)))
        if number < entries - 2:
            lines.append((at_us + 5000, _line("ack", entry)))
    if hour == HOURS:
        lines.append((1_000_000 * entries, _line("sent", entries * hour)))
    if topic == GONE and hour == 2:
        lines.append((1_000_000 * entries, {"kind": "subscription_deleted"}))
    first_seq = 1 + sum(_lines_of(entries, earlier) for earlier in range(1, hour))
    assert len(lines) >= _lines_of(entries, hour)
    events = [
        {"seq": first_seq + number, "t_us": begin_us + after_us} | names | line
        for number, (after_us, line) in enumerate(lines)
    ]
    for content, rows in (("messages", messages), ("events", [HEADER, *events])):
        path = source / topic / f"{content}-{hour}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _line(kind: str, *entries: int) -> dict[str, Any]:
    line: dict[str, Any] = {"kind": kind, "consumer": 1, "positions": [f"5:{entry}" for entry in entries]}
    return line | ({"batch_sizes": [1] * len(entries)} if kind == "sent" else {"ack_type": "Individual"})


def _lines_of(entries: int, hour: int) -> int:
    return 2 * entries - 2 + (2 if hour == 1 else 1)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("all") / "logs"
    for hour in range(1, HOURS + 1):
        write_hour(source, LARGE, hour, ENTRIES)
        write_hour(source, SMALL, hour, FEW)
        if hour <= 2:
            write_hour(source, GONE, hour, ENTRIES)
    return source


@pytest.fixture(scope="module")
def whole(spark: SparkSession, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home in which nothing was removed."""
    home = Home(tmp_path_factory.mktemp("whole"), logs, to_the_end=False)
    home.run(spark, range(1, HOURS + 1))
    return home


@pytest.fixture(scope="module")
def before(spark: SparkSession, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home of the first three hours."""
    home = Home(tmp_path_factory.mktemp("before"), logs, to_the_end=False)
    home.run(spark, range(1, HOURS))
    return home


@pytest.fixture
def home(before: Home, tmp_path: Path) -> Home:
    shutil.copytree(before.root, tmp_path / "home")
    return Home(tmp_path / "home", before.source, to_the_end=False)


def retain(home: Home, hour: int, *, dry_run: bool = False) -> dict[str, Any]:
    """Remove the logs up to the end of an hour."""
    now = span(hour).end + timedelta(days=2)
    return maintain.retain(home.root, KEEP_TWO_DAYS, dry_run=dry_run, now=now)["removed"]


def lines_of(home: Home, hour: int) -> Counter[tuple[str, str]]:
    rows = read_table(home.warehouse, "consumer_events", span(hour)).to_pylist()
    return Counter((row["topic"].rpartition("/")[2], row["kind"]) for row in rows)


def landed(home: Home) -> set[str]:
    return {f"{path.parent.parent.name}/{path.name}" for path in home.landing.rglob("*.jsonl")}


def test_later_intervals_have_the_results_that_they_would_have(
    spark: SparkSession, home: Home, whole: Home
) -> None:
    removed = retain(home, 2)
    assert {"rows of consumer_events", "rows of messages", "landed files"} <= set(removed)
    assert read_table(home.warehouse, "consumer_events", span(1)).num_rows == 0
    left = lines_of(home, 2)
    # The beginning of the small log is too young to be cut; of the deleted subscription nothing is needed.
    assert {topic for topic, _kind in left} == {LARGE, SMALL}
    assert left[LARGE, "checkpoint"] == 1
    assert sum(count for (topic, _kind), count in left.items() if topic == LARGE) < 20
    messages = read_table(home.warehouse, "messages", span(2)).to_pylist()
    kept = Counter(row["topic"].rpartition("/")[2] for row in messages)
    assert kept[SMALL] == 2 * FEW
    assert kept[GONE] == 0
    assert 0 < kept[LARGE] <= 2 * ENTRIES
    assert {name.rpartition("-")[2] for name in landed(home)} == {"3.jsonl", "4.jsonl"}
    home.run(spark, [HOURS])
    assert stale_intervals(home.landing, home.warehouse) == []
    assert_same(
        home, whole, sorted(set(REPLAYED) - {"consumer_events", "messages", "messages_ahead", "quarantine"})
    )
    assert maintain.verify(home.landing, logs_from=span(2).end)["files"] > 0


def test_another_version_goes_on_from_the_checkpoint(
    spark: SparkSession, home: Home, whole: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    retain(home, 2)
    monkeypatch.setenv(snapshot_files.WITHOUT, "1")
    home.run(spark, [HOURS])
    names = ("topic", "kind", "reason", "key", "seq", "uncertain")

    def findings(of: Home) -> Counter[tuple[Any, ...]]:
        rows = read_table(of.warehouse, "anomalies", span(HOURS)).to_pylist()
        return Counter(tuple(row.get(name) for name in names) for row in rows)

    assert findings(home) == findings(whole)
    assert any(kind == "duplicate_after_ack" for _topic, kind, *_rest in findings(home))
    for of in (home, whole):
        assert read_table(of.warehouse, "deliveries", span(HOURS)).num_rows == ENTRIES + FEW + 2


def test_earlier_intervals_are_refused_with_the_first_one_that_can_be_computed(
    spark: SparkSession, home: Home
) -> None:
    retain(home, 2)
    before = home.rows()
    for refused in (
        lambda: replay(spark, home.warehouse, span(2)),
        lambda: ingest_with_history(spark, home.landing, home.warehouse, span(1)),
    ):
        with pytest.raises(LogsRemovedError, match="The first one that can begins at 2026-11-01T02:00:00"):
            refused()
    assert home.rows() == before
    recompute(spark, Location.of(home.landing), Location.of(home.warehouse), [span(3)], limits=LimitRules())


@pytest.mark.slow
def test_rows_that_come_late_are_not_used_and_named(
    spark: SparkSession, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path / "home", tmp_path / "logs", to_the_end=False)
    shutil.copytree(logs / SMALL, home.source / SMALL)
    home.run(spark, range(1, HOURS))
    retain(home, 2)
    write_hour(home.source, "late", 1, FEW)
    write_hour(home.source, "late", 3, FEW)
    home.run(spark, [HOURS])
    assert "rows of 2026-11-01 came late" in capsys.readouterr().err
    assert stale_intervals(home.landing, home.warehouse) == [span(3)]


def test_what_was_removed_stays_removed_and_more_goes_later(home: Home) -> None:
    retain(home, 2)
    rows = home.rows()
    assert "rows of consumer_events" not in retain(home, 2)
    assert home.rows() == rows
    assert retain(home, 3)
    assert Ledger(home.warehouse).logs_from() == span(3).end
    assert lines_of(home, 2) == Counter()
    assert lines_of(home, 3)[LARGE, "checkpoint"] == 1


def test_a_removal_is_no_run_that_keeps_results_longer(home: Home) -> None:
    worked = maintain.last_worked(home.warehouse)
    retain(home, 2)
    assert maintain.last_worked(home.warehouse) == worked


def test_a_dry_run_changes_nothing(home: Home) -> None:
    rows, files = home.rows(), landed(home)
    assert retain(home, 2, dry_run=True)["rows of consumer_events"]
    assert (home.rows(), landed(home)) == (rows, files)
    assert Ledger(home.warehouse).logs_from() is None


@pytest.mark.sampled(5)
@pytest.mark.parametrize("commits", range(5))
def test_a_removal_that_died_goes_on(
    spark: SparkSession, home: Home, whole: Home, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    done: list[str] = []
    real: Callable[..., list[str]] = log_retention.replace_until

    def dies(warehouse: Location, name: str, *rest: Any) -> list[str]:
        if len(done) == commits:
            raise KeyboardInterrupt
        done.append(name)
        return real(warehouse, name, *rest)

    monkeypatch.setattr(log_retention, "replace_until", dies)
    with pytest.raises(KeyboardInterrupt):
        retain(home, 2)
    monkeypatch.undo()
    retain(home, 2)
    assert lines_of(home, 2)[LARGE, "checkpoint"] == 1
    assert lines_of(home, 1) == Counter()
    home.run(spark, [HOURS])
    assert_same(
        home, whole, sorted(set(REPLAYED) - {"consumer_events", "messages", "messages_ahead", "quarantine"})
    )


@pytest.mark.slow
def test_without_a_usable_snapshot_everything_stays(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = home.rows()
    monkeypatch.setattr("spark_jobs.replay.earlier_snapshots.core_digest", lambda: "another version")
    said: list[str] = []
    now = span(2).end + timedelta(days=2)
    maintain.retain(home.root, KEEP_TWO_DAYS, now=now, report=said.append)
    assert home.rows() == rows
    assert any("no snapshot" in line for line in said)
    assert Ledger(home.warehouse).logs_from() is None


def test_nothing_is_expired_before_an_interval_ended_long_enough_ago(home: Home) -> None:
    ledger = Ledger(home.warehouse)
    moment: datetime = span(1).end + timedelta(days=2)
    found = log_retention.expired_logs(ledger, moment, 2)
    assert found is not None
    assert found.end == span(1).end
    assert log_retention.expired_logs(ledger, moment - timedelta(seconds=1), 2) is None
    assert log_retention.expired_logs(ledger, moment, None) is None
