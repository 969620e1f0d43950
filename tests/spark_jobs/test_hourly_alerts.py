"""Alerts of hours: a wait that goes on over several hours is reported once, in any order of runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dispatch_expectations.alert import FileAlertSink, Places, send_news
from dispatch_expectations.dispatcher_results import read_results
from dispatch_expectations.validate import validate_interval
from spark_jobs.aggregates.aggregate_interval import aggregate
from spark_jobs.ingest.with_history import ingest_with_history
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.pull.pull_logs import pull
from spark_jobs.replay.replay_interval import replay
from spark_jobs.warehouse.delta_tables import read_table
from tests.dispatch_core.audit.small_logs import (
    MIDNIGHT,
    T0_US,
    Event,
    ack,
    added,
    flow,
    message,
    removed,
    sent,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOURS = [Interval(MIDNIGHT + timedelta(hours=at), MIDNIGHT + timedelta(hours=at + 1)) for at in range(5)]
MINUTE_US = 60_000_000
#: Half an hour longer than the audited hours, so each is judged as of its end.
MINUTES = 330
#: Minutes of the log: 00:50 is 50, 01:20 is 80.
LATE_FROM, LATE_UNTIL = 50, 210
AWAY_FROM, AWAY_UNTIL = 80, 190
SKIPPED = 30

Line = tuple[float, Event]


def lines(minutes: Iterable[Line]) -> list[Event]:
    """Events in the order of their times, which are minutes."""
    in_order = sorted(minutes, key=lambda line: line[0])
    return [
        {"seq": seq, "t_us": T0_US + round(minute * MINUTE_US)} | event
        for seq, (minute, event) in enumerate(in_order, start=1)
    ]


def late_ack(minute: int) -> list[Line]:
    """One entry is acknowledged 160 minutes late."""
    acked = LATE_UNTIL if minute == LATE_FROM else minute
    return [(minute + 0.1, sent(1, minute)), (acked + 0.2, ack(1, minute))]


def nobody(minute: int) -> list[Line]:
    """Nobody is connected for 110 minutes; then a consumer gets all that has waited."""
    if minute < AWAY_FROM:
        return [(minute + 0.1, sent(1, minute)), (minute + 0.2, ack(1, minute))]
    at = max(minute, AWAY_UNTIL + minute / 1000)
    return [(at + 0.1, sent(2, minute)), (at + 0.2, ack(2, minute))]


def skipped(minute: int) -> list[Line]:
    """One entry is never sent."""
    if minute == SKIPPED:
        return []
    return [(minute + 0.1, sent(1, minute)), (minute + 0.2, ack(1, minute))]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("logs")
    changes = {
        "nobody": [(AWAY_FROM - 0.5, removed(1)), (AWAY_UNTIL, added(2)), (AWAY_UNTIL + 0.01, flow(2, 1000))]
    }
    for topic, of_minute in {"late": late_ack, "nobody": nobody, "skipped": skipped}.items():
        stored = [
            message(at, f"k{at % 7}", topic=topic, publish_time_ms=(T0_US + at * MINUTE_US) // 1000)
            for at in range(MINUTES)
        ]
        events = [(-0.02, added(1)), (-0.01, flow(1, 1000)), *changes.get(topic, [])]
        events += [line for at in range(MINUTES) for line in of_minute(at)]
        first = [(0.0, event) for _minute, event in events[:2]]
        write(
            out / topic / "log",
            stored,
            lines([*first, *events[2:]]),
            topic=topic,
            format="pulsar-consumer-events",
        )
    return out


class Home:
    def __init__(self, root: Path, source: Path) -> None:
        self.root, self.source = root, source

    def run(self, spark: SparkSession, hours: Iterable[int]) -> None:
        """All stages but the alerts."""
        for hour in hours:
            span, landing, warehouse = HOURS[hour], self.root / "landing", self.root / "warehouse"
            pull(self.source, landing, span.start, interval_end=span.end)
            ingest_with_history(spark, landing, warehouse, span)
            replay(spark, warehouse, span)
            aggregate(warehouse, span)
            validate_interval(warehouse, span.start, self.root / "docs")

    def alert(self, hour: int) -> list[tuple[str, str, str]]:
        """Send the alerts of an hour; return topic, state and kind of each."""
        places = Places(Location.of(self.root / "warehouse"), Location.of(self.root / "docs"))
        sink = FileAlertSink(self.root / "alerts")
        results = read_results(self.root / "warehouse", HOURS[hour].start)
        delivered, failed = send_news("file", lambda alert: sink.send([alert]), results, places)
        assert failed == []
        return sorted((alert.topic, news.state, news.kind) for alert in delivered for news in alert.news)

    def messages(self) -> set[str]:
        """The names of all messages, which are their idempotency keys."""
        return {path.name for path in (self.root / "alerts").rglob("*.json")}


@pytest.fixture(scope="module")
def judged(spark: SparkSession, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("judged"), source)
    home.run(spark, range(5))
    return home


#: By hour: what is reported when the hours are judged in order.
IN_ORDER = [
    [("late", "new", "ack_hole"), ("skipped", "new", "conformance"), ("skipped", "new", "never_delivered")],
    [("nobody", "new", "stuck_subscription")],
    [],
    [],
    # Found in the hour of the line that ended it, for the last time.
    [("late", "clear", "ack_hole"), ("nobody", "clear", "stuck_subscription")],
]


@pytest.fixture
def home(judged: Home, tmp_path: Path) -> Home:
    """A judged home of which nothing was alerted."""
    shutil.copytree(judged.root, tmp_path / "home")
    return Home(tmp_path / "home", judged.source)


def found(home: Home, hour: int) -> set[tuple[str, str]]:
    rows = read_table(home.root / "warehouse", "anomalies", HOURS[hour]).to_pylist()
    return {(row["topic"], row["kind"]) for row in rows}


def test_a_wait_of_several_hours_is_in_the_tables_of_each(judged: Home) -> None:
    late, nobody, skipped = (
        ("late", "ack_hole"),
        ("nobody", "stuck_subscription"),
        ("skipped", "never_delivered"),
    )
    expected = [
        {late, skipped},
        {late, nobody, skipped},
        {late, nobody, skipped},
        {late, nobody, skipped},
        {skipped},
    ]
    assert [found(judged, hour) for hour in range(5)] == expected


def test_a_wait_of_several_hours_is_reported_once_and_again_when_it_is_over(home: Home) -> None:
    assert [home.alert(hour) for hour in range(5)] == IN_ORDER


def test_hours_that_are_alerted_again_report_nothing_again(home: Home) -> None:
    for hour in range(5):
        home.alert(hour)
    assert [home.alert(hour) for hour in (0, 1, 2, 3, 4, 2, 0)] == [[]] * 7


def test_an_hour_whose_alerts_were_lost_reports_what_it_would_have_reported(home: Home) -> None:
    home.alert(0)
    before = home.messages()
    home.alert(1)
    first = home.messages() - before
    assert len(first) == 1
    shutil.rmtree(home.root / "warehouse" / "alerts_sent")
    for hour in (0, 1):
        home.alert(hour)
    assert home.messages() == before | first, "the same messages, under the same keys"


def test_hours_backwards_report_each_wait_once(home: Home) -> None:
    assert [home.alert(hour) for hour in (4, 3, 2, 1, 0)] == [
        [("skipped", "new", "conformance"), ("skipped", "new", "never_delivered")],
        [("late", "new", "ack_hole"), ("nobody", "new", "stuck_subscription")],
        [],
        [],
        [],
    ]
    assert home.alert(4) == IN_ORDER[4]
