"""Metrics of the newest judged interval: read from real tables, written for node_exporter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dispatch_expectations.alert_ledger import record_sent
from dispatch_expectations.alert_outbox import Entry, Outbox, announced
from dispatch_expectations.alert_state import Notification
from dispatch_expectations.interval_state import newest_state
from dispatch_expectations.metrics import METRICS, NAMED_AT_MOST, IntervalState, samples
from dispatch_expectations.prometheus_file import PrometheusFileError, write_newest, write_samples
from dispatch_expectations.validate import validate_interval
from spark_jobs.location import Location
from tests.expectations.make import DAY, NEXT_DAY, Day

WHO = ("standalone", "t", "s")


def state(**more) -> IntervalState:
    return IntervalState(
        DAY, NEXT_DAY, NEXT_DAY + timedelta(minutes=12), **({"verdicts": {WHO: "PASS"}} | more)
    )


def values(found) -> dict[tuple[str, ...], float]:
    return {(sample.metric.name, *sample.labels): sample.value for sample in found}


def in_file(path: Path) -> dict[tuple[str, ...], float]:
    """Read a file of metrics: values by name and labels, these in the order of the metric."""
    labels = {metric.prometheus_name: metric.labels for metric in METRICS}
    return {
        (
            sample.name.removeprefix("dispatch_audit_"),
            *(sample.labels[label] for label in labels[sample.name]),
        ): sample.value
        for family in text_string_to_metric_families(path.read_text("utf-8"))
        for sample in family.samples
    }


@pytest.fixture
def warehouse(tmp_path) -> Path:
    """A day with a PASS and a FAIL, judged."""
    day = Day()
    day.dispatcher("persistent://public/default/healthy", entries=4)
    broken = day.dispatcher("persistent://public/default/broken")
    day.anomaly(broken, "out_of_order")
    day.anomaly(broken, "out_of_order", seqs=[4, 5])
    day.anomaly(broken, "stuck_key", uncertain=True)
    day.write(tmp_path / "warehouse")
    validate_interval(tmp_path / "warehouse", DAY, tmp_path / "docs")
    return tmp_path / "warehouse"


@pytest.mark.slow
def test_the_state_of_the_newest_interval_is_read_from_the_tables(warehouse):
    notification = Notification("i", "out_of_order", "key k", DAY, 0, "new", "critical", "e")
    record_sent(warehouse, "mail", [(WHO, notification, "k1"), (WHO, notification, "k2")])
    record_sent(warehouse, "mail", [(WHO, notification, "k3")])
    found = values(samples(newest_state(warehouse)))
    assert [found["verdicts", name] for name in ("PASS", "UNKNOWN", "FAIL")] == [1, 0, 1]
    assert found["findings", "out_of_order", "certain"] == 2
    assert found["findings", "stuck_key", "uncertain"] == 1
    assert found["findings", "split_key", "certain"] == 0
    assert found["messages",] == 7
    assert found["alerts_sent", "mail"] == 2, "messages, not the findings in them"
    assert found["not_pass", "standalone", "persistent://public/default/broken", "audit", "FAIL"] == 1
    assert found["interval_end_timestamp_seconds",] == NEXT_DAY.timestamp()
    judged_at = datetime.fromtimestamp(found["judged_timestamp_seconds",], UTC)
    assert abs((datetime.now(UTC) - judged_at).total_seconds()) < 300
    assert found["lag_seconds",] == pytest.approx((judged_at - NEXT_DAY).total_seconds(), abs=0.01)


@pytest.mark.slow
def test_an_earlier_interval_that_is_judged_later_does_not_replace_the_newest(warehouse, tmp_path):
    before = newest_state(warehouse)
    earlier = Day(interval_start=DAY - timedelta(days=1))
    earlier.dispatcher(entries=1)
    earlier.write(warehouse)
    validate_interval(warehouse, earlier.interval_start, tmp_path / "docs")
    assert newest_state(warehouse) == before


def test_nothing_is_written_before_anything_was_judged(tmp_path):
    assert newest_state(tmp_path / "warehouse") is None
    write_newest(str(tmp_path / "a.prom"), tmp_path / "warehouse", Location.of(tmp_path / "outbox"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_file_has_all_samples_and_can_be_read_at_any_time(warehouse, tmp_path):
    folder, outbox = tmp_path / "textfile", Location.of(tmp_path / "outbox")
    folder.mkdir()
    notification = Notification("i", "out_of_order", "key k", DAY, 0, "new", "critical", "e")
    record_sent(warehouse, "mail", [(WHO, notification, "k1")])
    waiting = [Entry("hook", "interval", f"2026-11-2{day}", NEXT_DAY) for day in (0, 1)]
    Outbox(outbox).put([*waiting, announced(DAY.isoformat(), NEXT_DAY.isoformat(), None, NEXT_DAY)])
    for _ in range(2):
        write_newest(str(folder / "dispatch_audit.prom"), warehouse, outbox)
    assert [path.name for path in folder.iterdir()] == ["dispatch_audit.prom"], "no half file stays"
    found = in_file(folder / "dispatch_audit.prom")
    assert found == values(samples(newest_state(warehouse, outbox)))
    assert (found["alerts_waiting", "mail"], found["alerts_waiting", "hook"]) == (0, 2)


def test_the_file_names_at_most_a_hundred_subscriptions_the_worst_first(tmp_path):
    verdicts = {("c", f"t{number:03}", "s"): "UNKNOWN" for number in range(150)}
    verdicts |= {("c", "z", "s"): "FAIL", ("c", "fine", "s"): "PASS"}
    write_samples(tmp_path / "a.prom", samples(state(verdicts=verdicts)))
    found = in_file(tmp_path / "a.prom")
    named = [key for key in found if key[0] == "not_pass"]
    assert len(named) == NAMED_AT_MOST
    assert ("not_pass", "c", "z", "s", "FAIL") in named
    assert not [key for key in named if "fine" in key]
    assert found["not_pass_left_out",] == 51


def test_hostile_names_stay_inside_their_label(tmp_path):
    name = 'a"} 7\nevil{x="\\'
    write_samples(tmp_path / "a.prom", samples(state(verdicts={("c", name, "s"): "FAIL"})))
    assert in_file(tmp_path / "a.prom")["not_pass", "c", name, "s", "FAIL"] == 1


def test_every_metric_has_samples():
    full = state(
        verdicts={WHO: "FAIL"},
        findings={("split_key", True): 1},
        stage_seconds={"ingest": 1.5},
        alerts_sent={"file": 1},
        alerts_waiting={"mail": 2},
    )
    assert {sample.metric for sample in samples(full)} == set(METRICS)


@pytest.mark.parametrize(
    ("name", "says"), [("a.txt", "must end in .prom"), ("no/folder/a.prom", "No such file")]
)
def test_a_file_that_cannot_be_used_is_named_with_the_next_step(warehouse, tmp_path, name, says):
    with pytest.raises(PrometheusFileError, match=says):
        write_newest(str(tmp_path / name), warehouse, Location.of(tmp_path / "outbox"))
