"""Rows that come late: only the dispatchers that they belong to are replayed again, with the tables of one ingest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from dispatch_core.audit.limit_rules import LimitRule, LimitRules
from dispatch_core.audit.limits import Limits
from dispatch_core.recording.log_profile import RECORDED
from dispatch_core.tables import ANOMALIES
from spark_jobs.aggregates import aggregate_interval
from spark_jobs.ingest.landing_changes import stale_intervals
from spark_jobs.ingest.with_history import ingest_with_history
from spark_jobs.location import Location
from spark_jobs.pull.pull_logs import pull
from spark_jobs.replay.earlier_snapshots import earlier_snapshots, settings_digest
from spark_jobs.replay.replay_interval import replay, what_to_replay
from spark_jobs.replay.snapshot_files import Saved
from spark_jobs.stale_intervals import recompute
from spark_jobs.warehouse.delta_tables import Publication, all_files, data_files, read_table, replace_interval
from spark_jobs.warehouse.run_ledger import Ledger
from tests.dispatch_core.audit.table_rows import empty_row
from tests.spark_jobs.orders import TABLES, Home, runs, span
from tests.spark_jobs.orders import assert_same as assert_same_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

#: The bar is 1,000 (DISPATCH_AUDIT_DISPATCHERS=1000).
DISPATCHERS = int(os.environ.get("DISPATCH_AUDIT_DISPATCHERS", "40"))
INTERVALS = 3
ENTRIES = 4
LATE, TWICE, OLD = "late", "twice", f"t{DISPATCHERS - 1}"
#: The tables of the replay: not all of these homes are aggregated.
REPLAYED = sorted(set(TABLES) - {"rolling_balance"})
HEADER = {
    "format": "pulsar-consumer-events",
    "format_version": 1,
    "broker_version": "4.2.4",
    "subscription_type": "Key_Shared",
    "partition_index": -1,
    "config": {},
}
POLICY = {"mode": "AUTO_SPLIT", "allow_out_of_order": False, "ranges": []}


def assert_same(home: Home, other: Home) -> None:
    assert_same_tables(home, other, REPLAYED)


def log(topic: str, hour: int, *, entries: Iterable[int] = range(ENTRIES)) -> tuple[list[Any], list[Any]]:
    """Lines of a dispatcher in an hour: what is sent in one is acknowledged in the next, the last entry is sent again."""
    names = {"topic": f"persistent://public/default/{topic}", "subscription": "s"}
    begin_us = span(hour).start_us + 60_000_000
    seq = 100 * hour
    messages, events = [], []

    def event(after_us: int, **fields: Any) -> None:
        events.append(
            {"seq": seq + len(events), "t_us": begin_us + after_us} | names | {"consumer": 1} | fields
        )

    if hour == 1:
        event(0, kind="consumer_added", name="w", key_shared=POLICY)
        event(1, kind="flow", permits=1000)
    for entry in entries:
        number = ENTRIES * hour + entry
        at_us = 1_000_000 * (entry + 1)
        messages.append(
            {
                "topic": names["topic"],
                "position": f"5:{number}",
                "key": f"k{entry % 2}",
                "producer": "p",
                "sequence_id": number,
                "publish_time_ms": (begin_us + at_us) // 1000,
                "num_messages": 1,
                "size_bytes": 10,
            }
        )
        event(at_us + 2000, kind="sent", positions=[f"5:{number}"], batch_sizes=[1])
        if hour > 1:
            event(at_us + 9000, kind="ack", positions=[f"5:{number - ENTRIES}"], ack_type="Individual")
    return messages, events


def write(source: Path, name: str, hour: int, topics: Sequence[str]) -> None:
    """Write the logs of these topics in an hour into a file of messages and one of events."""
    logs = [log(topic, hour) for topic in topics]
    for content, header in (("messages", []), ("events", [HEADER])):
        lines = header + [line for of_log in logs for line in of_log[content == "events"]]
        path = source / name / f"{content}-{hour}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All logs: most dispatchers in common files, the others, the late one and one of two logs in files of their own."""
    source = tmp_path_factory.mktemp("all") / "logs"  # names of files begin with the folder's
    topics = [f"t{number}" for number in range(DISPATCHERS)]
    for hour in range(1, INTERVALS + 1):
        write(source, "common", hour, topics[:-2])
        for topic in topics[-2:]:
            write(source, topic, hour, [topic])
        write(source, TWICE, hour, [TWICE])
    events = source / TWICE / "events-1.jsonl"
    again = events.read_text(encoding="utf-8").replace('"name": "w"', '"name": "v"')
    events.with_name("events-again-1.jsonl").write_text(again, encoding="utf-8")
    for hour in (1, 2):
        write(source, LATE, hour, [LATE])
    return source


@pytest.fixture(scope="module")
def at_once(spark: SparkSession, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home in which nothing came late."""
    home = Home(tmp_path_factory.mktemp("at once"), logs, to_the_end=False)
    home.run(spark, range(1, INTERVALS + 1))
    (log_of_two,) = {
        (row["topic"].rpartition("/")[2], row["not_judged_reason"] is None)
        for row in read_table(home.warehouse, "dispatcher_state", span(1)).to_pylist()
        if row["topic"].endswith(TWICE)
    }
    assert log_of_two == (TWICE, False)
    return home


@pytest.fixture(scope="module")
def before(spark: SparkSession, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home in which all intervals were run before anything came late: a new dispatcher, and the first lines of another."""
    source = tmp_path_factory.mktemp("source") / "logs"
    shutil.copytree(logs, source, ignore=shutil.ignore_patterns(LATE))
    for file in (source / OLD).glob("*-1.jsonl"):
        file.unlink()
    home = Home(tmp_path_factory.mktemp("before"), source, to_the_end=False)
    home.run(spark, range(1, INTERVALS + 1))
    return home


@pytest.fixture
def home(before: Home, tmp_path: Path) -> Home:
    """A copy of it."""
    shutil.copytree(before.source, tmp_path / "logs")
    shutil.copytree(before.root, tmp_path / "home")
    return Home(tmp_path / "home", tmp_path / "logs", to_the_end=False)


def come_late(spark: SparkSession, home: Home, logs: Path, *names: str) -> None:
    """Land files that come late, and ingest the first interval again."""
    for name in names:
        shutil.copytree(logs / name, home.source / name, dirs_exist_ok=True)
    for number in range(1, INTERVALS + 1):
        pull(home.source, home.landing, span(number).start, interval_end=span(number).end)
    ingest_with_history(spark, home.landing, home.warehouse, span(1))


def folded(home: Home) -> list[tuple[int, int, int]]:
    """Return for each replay since the first ones the dispatchers, those that were replayed, and those not judged."""
    return [
        (run["dispatchers"], run["dispatchers"] - run["dispatchers_kept"], run["dispatchers_failed"])
        for run in runs(home.warehouse, "replay")[INTERVALS:]
    ]


def topics_in(paths: Iterable[str]) -> set[str]:
    tables = [pq.read_table(path, columns=["topic"], partitioning=None) for path in paths]
    return {topic.rpartition("/")[2] for table in tables for topic in table["topic"].to_pylist()}


def test_a_late_file_of_a_new_dispatcher_recomputes_that_dispatcher_only(
    spark: SparkSession, home: Home, logs: Path, at_once: Home
) -> None:
    come_late(spark, home, logs, OLD)  # so that all but the new one is as it will be
    home.recompute(spark)
    names = ("deliveries", "balance", "snapshots")
    files = {name: set(all_files(home.warehouse, name)) for name in names}
    already = len(folded(home))
    come_late(spark, home, logs, LATE)
    assert home.recompute(spark) == [span(number).name for number in range(1, INTERVALS + 1)]
    # A dispatcher that cannot be judged is tried again each time.
    every = DISPATCHERS + 1
    assert folded(home)[already:] == [(every + 1, 2, 1), (every + 1, 2, 1), (every, 1, 1)]
    assert_same(home, at_once)
    for name in names:
        now = set(all_files(home.warehouse, name))
        assert files[name] <= now, "no file was written again"
        assert topics_in(now - files[name]) == {LATE}


@pytest.mark.slow
def test_late_lines_of_an_old_dispatcher_recompute_it_and_what_comes_later_goes_on(
    spark: SparkSession, home: Home, logs: Path, at_once: Home
) -> None:
    come_late(spark, home, logs, OLD, LATE)
    found = what_to_replay(spark, home.warehouse, span(3), LimitRules(), RECORDED).dispatchers
    events = set(data_files(home.warehouse, "consumer_events", span(3)))
    reads = {
        dispatcher["topic"].rpartition("/")[2]: (
            dispatcher["snapshot_file"] is not None,
            set(dispatcher["event_files"]) <= events,
        )
        for dispatcher in found
        if not dispatcher["idle"]
    }
    assert {topic for topic, read in reads.items() if read != (True, True)} == {OLD, TWICE}
    assert reads[OLD] == (False, False)
    ingests = len(runs(home.warehouse, "ingest"))
    stale = stale_intervals(home.landing, home.warehouse)
    assert stale == [span(number) for number in range(1, INTERVALS + 1)]
    recompute(spark, Location.of(home.landing), Location.of(home.warehouse), stale, limits=LimitRules())
    # The second interval lacks rows of the new dispatcher, the others lack nothing.
    assert len(runs(home.warehouse, "ingest")) == ingests + 1
    every = DISPATCHERS + 1
    assert folded(home) == [(every + 1, 3, 1), (every + 1, 3, 1), (every, 2, 1)]
    assert_same(home, at_once)
    # All files are those of now: what was written again is gone.
    replay(spark, home.warehouse, span(1))
    assert folded(home)[-1] == (every + 1, every + 1, 1), (
        "an interval that is not stale is replayed as a whole"
    )
    assert_same(home, at_once)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", ["removed", "unknown", "settings", "snapshots"])
def test_results_stay_only_if_they_are_there_and_would_be_the_same(
    what: str, spark: SparkSession, home: Home, logs: Path, at_once: Home
) -> None:
    come_late(spark, home, logs, OLD, LATE)
    stale = stale_intervals(home.landing, home.warehouse)
    assert stale == [span(number) for number in range(1, INTERVALS + 1)]
    limits = LimitRules()
    if what == "removed":
        replace_interval(home.warehouse, "deliveries", span(1), [])
    elif what == "unknown":
        replace_interval(home.warehouse, "inputs", span(1), [])
    elif what == "snapshots":
        replace_interval(home.warehouse, "snapshots", span(1), [])
    else:
        limits = LimitRules((LimitRule("*", "*", Limits(stuck_key_ms=500)),))
    replay(spark, home.warehouse, span(1), limits=limits)
    assert folded(home) == [(DISPATCHERS + 2, DISPATCHERS + 2, 1)]
    if what != "settings":
        home.recompute(spark)
        assert_same(home, at_once)


@pytest.mark.slow
def test_a_run_that_died_between_two_tables_is_done_again_for_all(
    spark: SparkSession, home: Home, logs: Path, at_once: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    come_late(spark, home, logs, OLD, LATE)
    replace = Publication.replace

    def dies(run: Publication, name: str, *arguments: Any) -> int:
        if name == "waits":
            raise RuntimeError("killed")
        return replace(run, name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Publication, "replace", dies)
        with pytest.raises(RuntimeError, match="killed"):
            replay(spark, home.warehouse, span(1))
    assert home.recompute(spark) == [span(number).name for number in range(1, INTERVALS + 1)]
    assert folded(home)[0] == (DISPATCHERS + 2, DISPATCHERS + 2, 1)
    assert_same(home, at_once)


@pytest.mark.slow
def test_what_a_later_stage_added_does_not_stay(
    spark: SparkSession, home: Home, logs: Path, at_once: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_finding(*_arguments: object) -> list[dict[str, Any]]:
        identity = {"cluster": "standalone", "topic": "of", "subscription": "s", "incarnation": 0}
        row = empty_row(ANOMALIES) | identity
        return [row | {"interval_start": span(1).start, "kind": "failover_imbalance", "severity": "minor"}]

    with monkeypatch.context() as patch:
        patch.setattr(aggregate_interval, "enough_topics", lambda *_arguments: True)
        patch.setattr(aggregate_interval, "uneven_topics", one_finding)
        assert aggregate_interval.aggregate(home.warehouse, span(1))["rows"]["anomalies"] >= 1
    come_late(spark, home, logs, OLD, LATE)
    home.recompute(spark)
    assert folded(home)[0] == (DISPATCHERS + 2, 3, 1)
    assert_same(home, at_once)


@pytest.mark.slow
def test_a_snapshot_that_another_interval_kept_is_found_where_it_is_now(
    spark: SparkSession, at_once: Home, tmp_path: Path
) -> None:
    shutil.copytree(at_once.root, tmp_path / "home")
    home = Home(tmp_path / "home", at_once.source, to_the_end=False)
    late = ("standalone", f"persistent://public/default/{LATE}", "s")

    def saved() -> Saved | None:
        settings = settings_digest(LimitRules(), RECORDED)
        found = earlier_snapshots(home.warehouse, Ledger(home.warehouse), span(4), settings)
        assert found is not None
        assert found.end == span(3).end
        assert sum(snapshot is not None for snapshot in found.saved.values()) >= DISPATCHERS
        return found.saved[late]

    for _ in range(2):
        snapshot = saved()
        assert snapshot is not None
        assert snapshot.path in data_files(home.warehouse, "snapshots", span(2)), (
            "it has no rows in the third"
        )
        replay(spark, home.warehouse, span(2))  # in other files
    replace_interval(home.warehouse, "snapshots", span(2), [])
    assert saved() is None
