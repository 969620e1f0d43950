"""Advice on a judged interval: for whom it is computed, what is left out with its reason, and where it is shown."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dispatch_core.report.names import file_name
from dispatch_expectations.alert import Places, build_alerts
from dispatch_expectations.dispatcher_results import read_results
from dispatch_expectations.validate import validate_interval
from spark_jobs.location import Location
from spark_jobs.reports.report_pages import folder_of, write_reports
from spark_jobs.warehouse.advice_file import command_for, read_advice
from spark_jobs.what_if import advice
from spark_jobs.what_if.advice import advise_interval, failed_dispatchers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark_jobs.conftest import Home

pytestmark = pytest.mark.spark

CLASSIC = ("standalone", "persistent://public/default/rec-designed-rolling-restart-classic-ch-10", "audit")
SAID = (
    "Advice: set subscriptionKeySharedUseClassicPersistentImplementation=false. "
    "subscriptionKeySharedUseClassicPersistentImplementation=false "
    "would have prevented these 63 order violations (99 of 100)."
)


@pytest.fixture(scope="module")
def judged(sample: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose day was judged; one subscription breaks the order per key."""
    folder = tmp_path_factory.mktemp("judged")
    shutil.copytree(sample.warehouse, folder / "warehouse")
    validate_interval(folder / "warehouse", sample.span.start, folder / "data-docs")
    return folder


@pytest.mark.slow
def test_reports_and_alerts_show_the_advice_and_the_command(
    spark: SparkSession, sample: Home, judged: Path
) -> None:
    warehouse, out = judged / "warehouse", folder_of(judged / "reports", sample.span)
    assert failed_dispatchers(warehouse, sample.span) == [CLASSIC]
    summary = advise_interval(spark, warehouse, sample.span, out)
    assert (summary["failed"], summary["simulated"], summary["advised"]) == (1, 1, 1)
    advised = read_advice(out)
    assert advised[CLASSIC].sentence == SAID
    assert re.match(r"waits of half of the messages \d+ → \d+ ms", advised[CLASSIC].effects)
    write_reports(warehouse, sample.span, judged / "reports")
    assert read_advice(out) == advised, "it is kept beside the pages"
    page = (out / file_name(*CLASSIC)).read_text()
    assert SAID in page
    assert "python -m spark_jobs.what_if.advice" in page
    others = [stored.location for stored in out.children() if stored.location.name.endswith(".html")]
    assert sum('id="advice"' in path.read_text() for path in others) == 1
    places = Places(
        Location.of(warehouse), Location.of(judged / "docs"), out, span=sample.span, advised=advised
    )
    alerts = {
        alert.topic: alert for alert in build_alerts(read_results(warehouse, sample.span.start), {}, places)
    }
    alert = alerts[CLASSIC[1]]
    assert f"- {SAID} (waits of half" in alert.body
    assert f"  {advised[CLASSIC].command}\n" in alert.body
    assert alert.as_json()["advice"]["sentence"] == SAID
    assert SAID in alert.message().chat
    assert [topic for topic, other in alerts.items() if other.advice is not None] == [CLASSIC[1]]


@pytest.mark.slow
def test_the_command_of_an_advice_proves_it(
    sample: Home, judged: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPATCH_AUDIT_SPARK_MASTER", raising=False)
    command = shlex.split(command_for(judged / "warehouse", sample.span, CLASSIC))
    assert command[:3] == ["python", "-m", "spark_jobs.what_if.advice"]
    assert advice.main(command[3:]) == 0
    said = capsys.readouterr().out
    assert "set subscriptionKeySharedUseClassicPersistentImplementation=false\n" in said
    assert "would have prevented these 63 order violations (99 of 100)" in said
    assert advice.main([*command[3:], "--subscription=nobody"]) == 2
    assert "has no lines in the interval" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"most_events": 100}, r"the log has [\d,]+ lines, more than 100\. This command computes it:"),
        ({"most_subscriptions": 0}, r"0 subscriptions with more findings were simulated before\. This"),
    ],
)
def test_what_is_left_out_says_why_and_how_to_get_it(
    bounds: dict[str, int], reason: str, spark: SparkSession, sample: Home, judged: Path, tmp_path: Path
) -> None:
    warehouse = judged / "warehouse"
    summary = advise_interval(spark, warehouse, sample.span, tmp_path, **bounds)
    assert (summary["failed"], summary["simulated"]) == (1, 0)
    shown = read_advice(tmp_path)[CLASSIC]
    assert re.search(f"^Advice was not computed: {reason}", shown.sentence)
    assert (shown.effects, shown.command) == ("", command_for(warehouse, sample.span, CLASSIC))


def test_without_advice_pages_and_alerts_say_how_to_compute_it(
    sample: Home, judged: Path, tmp_path: Path
) -> None:
    warehouse = judged / "warehouse"
    write_reports(warehouse, sample.span, tmp_path / "reports")
    page = (folder_of(tmp_path / "reports", sample.span) / file_name(*CLASSIC)).read_text()
    assert "Advice was not computed: the run that judged the interval did not get to it." in page
    places = Places(Location.of(warehouse), Location.of(judged / "docs"), span=sample.span)
    alerts = build_alerts(read_results(warehouse, sample.span.start), {}, places)
    body = next(alert.body for alert in alerts if alert.topic == CLASSIC[1])
    assert "Advice was not computed" in body
    assert command_for(warehouse, sample.span, CLASSIC) in body


def test_a_dispatcher_whose_log_is_gone_and_an_interval_without_failures(
    spark: SparkSession, sample: Home, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "dispatchers", lambda *_: [])
    advise_interval(spark, judged / "warehouse", sample.span, tmp_path)
    assert "its log is no more in the tables" in read_advice(tmp_path)[CLASSIC].sentence
    monkeypatch.setattr(advice, "failed_dispatchers", lambda *_: [])
    assert advise_interval(spark, judged / "warehouse", sample.span, tmp_path)["failed"] == 0
    assert read_advice(tmp_path) == {}, "that of an earlier judgement is removed"
