"""Hours of a log: balance over the 24 hours that end with each, in any order of runs, and changes between days and hours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dispatch_core.cli.main import main
from dispatch_expectations.policy import Policy, load_policy
from dispatch_expectations.validate import read_verdicts, validate_interval
from spark_jobs import stale_intervals as command
from spark_jobs.aggregates.aggregate_interval import aggregate
from spark_jobs.ingest.with_history import ingest_with_history
from spark_jobs.intervals import Interval, parse_moment
from spark_jobs.location import Location
from spark_jobs.pull.pull_logs import PullError, pull, rest_of
from spark_jobs.replay.replay_interval import replay
from spark_jobs.stale_intervals import all_stale
from spark_jobs.warehouse.delta_tables import read_table
from tests.spark_jobs import orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
#: Two hours before midnight and three behind it.
FIRST = parse_moment("2026-11-01T22:00")
MIDNIGHT = parse_moment("2026-11-02")
HOURS = [Interval(FIRST + number * HOUR, FIRST + (number + 1) * HOUR) for number in range(5)]
#: An hour has some 1,600 messages. One consumer gets about twice its share, one key more than a tenth.
POLICY = """
version: 1
defaults:
  balance: {min_messages: 4000, min_keys_per_consumer: 20, max_share_ratio: 1.5, hot_key_share: 0.05}
"""
LOAD_KINDS = {"imbalance", "hot_consumer", "hot_key"}


@dataclass
class Home:
    """Landing, tables and pages."""

    root: Path | Location
    source: Path
    policy: Policy

    @property
    def landing(self) -> Any:
        return self.root / "landing"

    @property
    def warehouse(self) -> Any:
        return self.root / "warehouse"

    def run(self, spark: SparkSession, spans: Iterable[Interval]) -> None:
        """Run all stages for some intervals, in this order."""
        limits = self.policy.limit_rules()
        for span in spans:
            pull(self.source, self.landing, span.start, interval_end=span.end)
            ingest_with_history(spark, self.landing, self.warehouse, span)
            replay(spark, self.warehouse, span, limits=limits)
            aggregate(self.warehouse, span, limits=limits)
            self.judge(span)

    def recompute(self) -> list[Interval]:
        """Recompute and judge what is stale, as the next scheduled run does."""
        found = all_stale(Location.of(self.landing), Location.of(self.warehouse))
        places = ["--landing", str(self.landing), "--warehouse", str(self.warehouse)]
        assert command.main(["recompute", *places, "--limits", self.policy.limit_rules().json()]) == 0
        for span in found:
            self.judge(span)
        return found

    def judge(self, span: Interval) -> None:
        validate_interval(self.warehouse, span.start, self.root / "data-docs", self.policy)

    def balance(self, span: Interval) -> tuple[str, str]:
        """The verdict on balance, and its reason."""
        (found,) = [row for row in read_verdicts(self.warehouse, span.start) if row.promise == "balance"]
        return found.verdict, found.reason

    def load_findings(self, span: Interval) -> list[dict[str, Any]]:
        rows = read_table(self.warehouse, "anomalies", span).to_pylist()
        found = [row for row in rows if row["kind"] in LOAD_KINDS]
        return sorted(found, key=lambda row: (row["kind"], row["explanation"]))

    def rows(self, table: str) -> list[str]:
        return sorted(map(repr, read_table(self.warehouse, table).to_pylist()))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hours_of_logs(tmp_path_factory.mktemp("logs"))


def hours_of_logs(out: Path) -> Path:
    """Generate a log below ``out`` and spread it over the hours."""
    made = ["--dispatchers", "1", "--messages", "8000", "--keys", "400", "--consumers", "5"]
    assert main(["generate", str(out / "made"), *made, "--churn", "rolling-restart"]) == 0
    (recording,) = (out / "made").iterdir()
    arguments = ["--intervals", str(len(HOURS)), "--interval-length", "1h", "--start", FIRST.isoformat()]
    assert main(["cut", str(recording), "--out", str(out / "log"), *arguments]) == 0
    return out / "log"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(POLICY)
    return load_policy(path)


@pytest.fixture(scope="module")
def in_order(
    spark: SparkSession, source: Path, policy: Policy, tmp_path_factory: pytest.TempPathFactory
) -> Home:
    home = Home(tmp_path_factory.mktemp("in order"), source, policy)
    home.run(spark, HOURS)
    assert all_stale(home.landing, home.warehouse) == []
    return home


@pytest.fixture(scope="module")
def one_interval(
    spark: SparkSession, source: Path, policy: Policy, tmp_path_factory: pytest.TempPathFactory
) -> Home:
    """A home in which the 24 hours that end with the last hour are one interval."""
    home = Home(tmp_path_factory.mktemp("one interval"), source, policy)
    home.run(spark, [Interval(HOURS[-1].end - DAY, HOURS[-1].end)])
    return home


def test_the_sums_of_the_hours_are_those_of_one_interval_of_24_hours(
    in_order: Home, one_interval: Home
) -> None:
    columns = ["consumer_name", "entries", "messages", "size_bytes", "keys"]
    rolling = read_table(in_order.warehouse, "rolling_balance", HOURS[-1])
    whole = read_table(one_interval.warehouse, "balance")
    assert rolling.select(columns).to_pylist() == whole.select(columns).to_pylist()
    for share in ("message_share", "hash_share", "equal_share"):
        assert rolling[share].to_pylist() == pytest.approx(whole[share].to_pylist())
    connections = sum(whole["connections"].to_pylist())
    assert connections > whole.num_rows, (
        "consumers came back under their names: a name has several connections"
    )


def test_the_findings_over_24_hours_are_those_of_one_interval(in_order: Home, one_interval: Home) -> None:
    hours = in_order.load_findings(HOURS[-1])
    (whole,) = {row["interval_start"] for row in read_table(one_interval.warehouse, "balance").to_pylist()}
    day = one_interval.load_findings(Interval(whole, whole + DAY))
    assert {"imbalance", "hot_key"} <= {row["kind"] for row in day}
    suffix = "; over the 24 h to 2026-11-02 03:00 UTC"
    expected = [
        row | {"interval_start": HOURS[-1].start, "explanation": row["explanation"] + suffix} for row in day
    ]
    assert hours == expected


def test_each_hour_is_judged_over_24_hours_and_names_them(in_order: Home, one_interval: Home) -> None:
    verdicts = [in_order.balance(span) for span in HOURS]
    assert [verdict for verdict, _reason in verdicts] == ["PASS", "PASS", "FAIL", "FAIL", "FAIL"]
    few, enough = verdicts[0][1], verdicts[-1][1]
    assert few.startswith("too few messages to judge: ")
    assert few.endswith("; over the 24 h to 2026-11-01 23:00 UTC")
    alone = one_interval.balance(Interval(HOURS[-1].end - DAY, HOURS[-1].end))
    assert alone[0] == "FAIL"
    assert " times its share of the hash space" in alone[1]
    assert "24 h" not in alone[1]
    assert enough == f"{alone[1]}; over the 24 h to 2026-11-02 03:00 UTC"


def test_an_interval_of_24_hours_has_no_sums_of_its_own(one_interval: Home) -> None:
    assert read_table(one_interval.warehouse, "key_totals").num_rows == 0
    assert read_table(one_interval.warehouse, "rolling_balance").num_rows == 0


def test_hours_run_backwards_are_judged_again_without_a_replay_and_are_then_the_same(
    spark: SparkSession, source: Path, policy: Policy, in_order: Home, tmp_path: Path
) -> None:
    home = Home(tmp_path, source, policy)
    home.run(spark, reversed(HOURS))
    verdict, reason = home.balance(HOURS[-1])
    assert verdict == "PASS"
    assert reason.endswith("without 4 h that were not audited in intervals within them"), reason
    replays = len(orders.runs(home.warehouse, "replay"))
    assert home.recompute() == HOURS[1:]
    assert len(orders.runs(home.warehouse, "replay")) == replays
    assert all_stale(home.landing, home.warehouse) == []
    for table in ("rolling_balance", "anomalies", "balance", "key_totals", "verdicts"):
        assert home.rows(table) == in_order.rows(table), table


def test_an_interval_that_is_aggregated_again_has_the_same_rows(policy: Policy, in_order: Home) -> None:
    before = {table: in_order.rows(table) for table in ("rolling_balance", "anomalies")}
    aggregate(in_order.warehouse, HOURS[-1], limits=policy.limit_rules())
    assert {table: in_order.rows(table) for table in before} == before


def test_days_then_hours_then_days(
    spark: SparkSession, source: Path, policy: Policy, in_order: Home, tmp_path: Path
) -> None:
    home = Home(tmp_path, source, policy)
    yesterday, today = Interval(MIDNIGHT - DAY, MIDNIGHT), Interval(MIDNIGHT, MIDNIGHT + DAY)
    assert rest_of(home.landing, yesterday) == yesterday, "nothing was landed yet"
    home.run(spark, [yesterday, HOURS[2], HOURS[3]])
    _verdict, reason = home.balance(HOURS[3])
    assert reason.endswith(
        "; over the 24 h to 2026-11-02 02:00 UTC, without 22 h that were not audited in intervals within them"
    )

    with pytest.raises(PullError, match="overlaps"):
        pull(source, home.landing, today.start, interval_end=today.end)
    rest = rest_of(home.landing, today)
    assert rest == Interval(HOURS[3].end, today.end)
    home.run(spark, [rest])
    assert rest_of(home.landing, today) == rest, "the same run, repeated"
    tomorrow = Interval(MIDNIGHT + DAY, MIDNIGHT + 2 * DAY)
    assert rest_of(home.landing, tomorrow) == tomorrow
    assert rest_of(home.landing, HOURS[0]) == HOURS[0], "part of a day that was audited: pull refuses it"

    for table, key in (("deliveries", "seq"), ("consumer_events", "seq"), ("messages", "entry_id")):
        once = read_table(in_order.warehouse, table).sort_by(key)[key].to_pylist()
        assert read_table(home.warehouse, table).sort_by(key)[key].to_pylist() == once, table
    changing = {row["kind"] for row in read_table(home.warehouse, "anomalies").to_pylist()} & LOAD_KINDS
    assert changing, "the hours are judged, too"
    assert sum(read_table(home.warehouse, "balance")["messages"].to_pylist()) == sum(
        read_table(in_order.warehouse, "balance")["messages"].to_pylist()
    )
    assert all_stale(home.landing, home.warehouse) == []
