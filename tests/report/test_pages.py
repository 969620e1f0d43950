"""Pages of a judged interval, from the warehouse's tables, and links to them in alerts."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pyarrow as pa
import pytest

from dispatch_core.errors import DispatchAuditError
from dispatch_core.report.names import file_name
from dispatch_core.report.page import library_name, library_script, page
from dispatch_expectations.alert import Places, build_alerts
from dispatch_expectations.dispatcher_results import read_results
from dispatch_expectations.validate import validate_interval
from spark_jobs.intervals import interval
from spark_jobs.reports import report_pages
from spark_jobs.reports.report_pages import LIMIT_VARIABLE, by_key, folder_of, write_reports
from spark_jobs.warehouse import file_rows
from tests.expectations.make import DAY, TOPIC, Day
from tests.report.tables import hostile_report

SPAN = interval(DAY)
HOSTILE = "persistent://public/default/<script>alert(1)</script>"
QUIET = "persistent://public/default/quiet"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A judged day: one subscription with findings, one with hostile names, one that passed."""
    folder = tmp_path_factory.mktemp("pages")
    day = Day()
    day.dispatcher(QUIET)
    who = day.dispatcher()
    for kind in ("stuck_key", "ack_hole"):
        day.anomaly(
            who,
            kind,
            explanation=f"{kind}: 4 messages wait behind 5:1 at worker-2 for 12 s",
            reason="draining_hash",
        )
    day.add(
        "blocked",
        **who,
        hash=7,
        reason="draining_hash",
        consumer=0,
        consumer_name="worker-1",
        holder=1,
        holder_name="worker-2",
        from_seq=1,
        from_t_us=SPAN.start_us + 5,
        blocked_attempts=3,
        entries=4,
        messages=4,
        message_ms=48_000,
        needless_ms=0,
        uncertain=False,
    )
    day.anomaly(day.dispatcher(HOSTILE), "out_of_order", key="<b>k</b>")
    for row in day.rows["deliveries"]:
        row["t_us"] = SPAN.start_us + 1_000_000 * row["seq"]
    for row in day.rows["messages"]:
        row["publish_time_ms"] = SPAN.start_us // 1000
    for row in day.rows["dispatcher_state"]:
        row["last_t_us"] = SPAN.start_us + 60_000_000
    day.write(folder / "warehouse")
    validate_interval(folder / "warehouse", DAY, folder / "docs")
    write_reports(folder / "warehouse", SPAN, folder / "reports")
    return folder


def pages_in(reports: Path) -> Path:
    """The folder of the interval's pages."""
    folder = folder_of(reports, SPAN).local
    assert folder is not None
    return folder


def page_of(home: Path, topic: str) -> str:
    return (pages_in(home / "reports") / file_name("standalone", topic, "audit")).read_text("utf-8")


def data_of(text: str) -> dict[str, dict[str, object]]:
    return json.loads(text.split('id="report-data">', 1)[1].split("</script>", 1)[0])  # type: ignore[no-any-return]


def test_every_subscription_has_a_page_with_its_own_verdict_and_findings(home: Path) -> None:
    text = page_of(home, TOPIC)
    verdict = text.split('id="verdict"', 1)[1].split("</section>", 1)[0]
    assert verdict.index("FAIL") < verdict.index("completeness") < verdict.index("</table>")
    assert "4 messages wait behind 5:1 at worker-2" in verdict
    data = data_of(text)
    assert {finding["kind"] for finding in data["findings"]} == {"stuck_key", "ack_hole"}  # type: ignore[index]
    assert set(data["pictures"]) == {"blocked", "flow", "balance"}
    assert "48.0 message-seconds altogether" in text
    assert "3 deliveries, 0 of them repeated" in text
    assert "PASS" in page_of(home, QUIET).split("</p>", 2)[1]
    assert data_of(page_of(home, QUIET))["findings"] == []


def test_the_index_lists_the_worst_first_and_hostile_names_as_text(home: Path) -> None:
    index = (pages_in(home / "reports") / "index.html").read_text("utf-8")
    assert index.index('class="is-FAIL"') < index.index('class="is-PASS"')
    rows = {
        re.findall(r'href="([^"]*)"', row)[0]: row
        for row in index.split("<tbody", 1)[1].split("</tbody>", 1)[0].split("<tr ")[1:]
    }
    broken = rows[file_name("standalone", TOPIC, "audit")]
    assert "completeness: " in broken.split('class="reason"', 1)[1]
    assert "4 messages wait behind 5:1 at worker-2" in broken, "the worst root cause is quoted"
    assert "FAIL</span> completeness: 2<" in broken
    assert '<td role="cell" class="reason"></td>' in rows[file_name("standalone", QUIET, "audit")]
    for topic in (TOPIC, HOSTILE, QUIET):
        assert f'href="{file_name("standalone", topic, "audit")}"' in index
    assert index.count("<script>") == 1, "its own, which searches"
    assert "&lt;script&gt;alert(1)" in index


def test_writing_again_changes_nothing_and_removes_what_is_nobodys(home: Path, tmp_path: Path) -> None:
    folder = pages_in(tmp_path / "reports")
    folder.mkdir(parents=True)
    (folder / "0123.html").write_text("of a subscription that is gone")
    write_reports(home / "warehouse", SPAN, tmp_path / "reports")
    first = {path.name: path.read_bytes() for path in pages_in(home / "reports").iterdir()}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_pages_of_all_intervals_share_one_script(home: Path, tmp_path: Path) -> None:
    """It is written again a day later, so that maintenance sees that it is needed."""
    pages = [path for path in pages_in(home / "reports").iterdir() if path.name != "index.html"]
    script = home / "reports" / "scripts" / library_name()
    assert script.read_text("utf-8") == library_script()
    assert sum(path.stat().st_size for path in pages) < 300_000
    for path in pages:
        assert f'"library": "../scripts/{library_name()}"' in path.read_text("utf-8")
    assert library_script() in page(hostile_report()), "a page of the command line is whole by itself"

    write_reports(home / "warehouse", SPAN, tmp_path)
    (script,) = (tmp_path / "scripts").iterdir()
    for age_days, is_written in ((0.9, False), (1.1, True)):
        written = time.time() - age_days * 86_400
        os.utime(script, (written, written))
        write_reports(home / "warehouse", SPAN, tmp_path)
        assert (script.stat().st_mtime > written + 1) == is_written


@pytest.mark.parametrize("most", ["_SUBJECTS_AT_ONCE", "_SPANS_AT_ONCE"])
def test_pages_do_not_depend_on_how_many_subscriptions_fit_into_memory(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    monkeypatch.setattr(report_pages, most, 1)
    write_reports(home / "warehouse", SPAN, tmp_path)
    first = {path.name: path.read_bytes() for path in pages_in(home / "reports").iterdir()}
    assert {path.name: path.read_bytes() for path in pages_in(tmp_path).iterdir()} == first


@pytest.mark.parametrize("rows", [1, 1000])
def test_who_leaves_has_its_name_wherever_its_rows_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    day = Day()
    who = day.dispatcher()
    for row in day.rows["consumer_events"]:
        row["t_us"] = SPAN.start_us + row["seq"]
    day.rows["consumer_events"][0]["name"] = "worker-1"
    gone = {"seq": 9, "kind": "consumer_removed", "consumer": 0, "t_us": SPAN.start_us + 9}
    day.add("consumer_events", **who, **gone, source_file=day.rows["consumer_events"][0]["source_file"])
    day.write(tmp_path)
    monkeypatch.setattr(file_rows, "_ROWS_AT_ONCE", rows)
    subjects = report_pages._read(tmp_path, SPAN, report_pages._judged(tmp_path, SPAN))
    ((_, subject),) = subjects.items()
    assert [(change.joined, change.name) for change in subject.changes] == [
        (True, "worker-1"),
        (False, "worker-1"),
    ]


def test_above_the_limit_those_that_passed_have_no_page(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "2")
    summary = write_reports(home / "warehouse", SPAN, tmp_path)
    assert (summary["reports"], summary["dispatchers"]) == (2, 3)
    assert not (pages_in(tmp_path) / file_name("standalone", QUIET, "audit")).exists()
    assert QUIET in (pages_in(tmp_path) / "index.html").read_text("utf-8")
    monkeypatch.setenv(LIMIT_VARIABLE, "many")
    with pytest.raises(DispatchAuditError, match="must be a number of pages"):
        write_reports(home / "warehouse", SPAN, tmp_path)


def test_an_alert_quotes_the_finding_and_leads_to_the_page(home: Path) -> None:
    folder = pages_in(home / "reports")
    results = read_results(home / "warehouse", DAY)
    places = Places(home / "warehouse", home / "docs", folder)
    alerts = {alert.topic: alert for alert in build_alerts(results, {}, places)}
    assert set(alerts) == {TOPIC, HOSTILE}
    alert = alerts[TOPIC]
    written = folder / file_name("standalone", TOPIC, "audit")
    assert dict(alert.where)["report"] == str(written)
    assert f"- report: {written}\n" in alert.body
    assert "stuck_key: 4 messages wait behind 5:1 at worker-2 for 12 s" in alert.body
    assert {finding.kind for finding in alert.news} == {"stuck_key", "ack_hole"}
    # Without a page the alert has no link.
    without = build_alerts(results, {}, Places(home / "warehouse", home / "docs", home / "nowhere"))
    assert not any("report" in dict(alert.where) for alert in without)
    assert {alert.idempotency_key for alert in without} == {
        alert.idempotency_key for alert in alerts.values()
    }


def test_an_interval_that_nobody_judged_has_pages_that_say_so(home: Path, tmp_path: Path) -> None:
    day = Day()
    day.dispatcher()
    day.write(tmp_path / "warehouse")
    write_reports(tmp_path / "warehouse", SPAN, tmp_path / "reports")
    assert "This interval was not judged." in page_of(tmp_path, TOPIC)


def test_rows_of_many_dispatchers_are_separated_however_they_lie() -> None:
    rows = pa.table({"a": ["x", "y", "x", "x", "z", "y"], "b": ["1", "1", "2", "1", "1", "1"], "n": range(6)})
    found = {key: part["n"].to_pylist() for key, part in by_key(rows, ("a", "b"))}
    assert found == {("x", "1"): [0, 3], ("x", "2"): [2], ("y", "1"): [1, 5], ("z", "1"): [4]}
