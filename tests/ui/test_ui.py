"""Airflow's pages in a browser: a backfill over three days, its verdicts, reports and Data Docs, a what-if, maintenance.

The tests build on each other and go in this order.
"""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.ui.conftest import BACKFILLED, BAD, Pages

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.slow]

AUDIT, WHAT_IF, MAINTENANCE = "dispatch_audit", "dispatch_what_if", "dispatch_audit_maintenance"
#: Runs of a backfill come one after the other, with the schedule's run between them.
RUNS_MS = 1_800_000


def trigger_dialog(pages: Pages, dag_id: str) -> tuple[Page, Locator]:
    """Open the form of *Trigger* on the page of a DAG."""
    page = pages.open(f"/dags/{dag_id}")
    page.get_by_role("button", name="Trigger Dag").first.click()
    dialog = page.get_by_role("dialog").filter(has_text="Single Run")
    dialog.wait_for()
    return page, dialog


def choose_time(page: Page, field: Locator, day: date) -> None:
    """Enter the beginning of a day into a date field."""
    field.get_by_test_id("datetime-input").click()
    page.get_by_placeholder("YYYY/MM/DD").fill(f"{day:%Y/%m/%d}")
    page.get_by_placeholder("HH:mm").fill("00:00")
    page.keyboard.press("Tab")
    field.locator("label").first.click()
    page.get_by_placeholder("YYYY/MM/DD").wait_for(state="hidden")


def field_of(dialog: Locator, label: str) -> Locator:
    """Return the field with a label."""
    return dialog.locator("[data-scope=field][data-part=root]").filter(
        has=dialog.page.get_by_text(label, exact=False)
    )


def backfilled(pages: Pages) -> list[dict[str, Any]]:
    """Return the runs of backfills, oldest interval first."""
    found = pages.api(f"dags/{AUDIT}/dagRuns?limit=50")["dag_runs"]
    return sorted(
        (run for run in found if run["run_type"] == "backfill"), key=lambda run: run["data_interval_start"]
    )


def state_of(pages: Pages, dag_id: str, run_id: str) -> str:
    """Stay on the page of a run until it shows the end of the run."""
    page = pages.open(f"/dags/{dag_id}/runs/{quote(run_id)}")
    beside = page.get_by_role("heading", name=run_id).locator("xpath=..")
    badge = beside.get_by_test_id("state-badge").filter(has_text=re.compile("Success|Failed"))
    badge.wait_for(timeout=RUNS_MS)
    return badge.inner_text().strip()


def published(pages: Pages, dag_id: str, run_id: str) -> Locator:
    """Return the frame of the tab *Dispatch audit* of a run."""
    page = pages.open(f"/dags/{dag_id}/runs/{quote(run_id)}")
    # By its address: the DAG in the path above the tabs has the same name, and is there earlier.
    page.locator("a[href*='plugin/dispatch-audit-run']").first.click()
    return page.frame_locator("iframe").locator("body")


def test_a_backfill_over_three_days_is_started_from_the_form(pages: Pages) -> None:
    page, dialog = trigger_dialog(pages, AUDIT)
    dialog.locator("label").filter(has_text="Backfill").first.click()
    first, last = pages.up.day(0), pages.up.day(BACKFILLED - 1)
    choose_time(page, field_of(dialog, "From").first, first)
    choose_time(page, field_of(dialog, "To").first, last)
    page.get_by_text(f"{BACKFILLED} runs will be triggered").wait_for()
    pages.picture("backfill")
    page.get_by_role("button", name="Run Backfill").click()
    page.get_by_text("Backfill generated").first.wait_for()
    days = [run["data_interval_start"][:10] for run in backfilled(pages)]
    assert days == [pages.up.day(number).isoformat() for number in range(BACKFILLED)]


def test_all_days_are_green_but_the_one_with_the_order_violation(pages: Pages) -> None:
    states = []
    for number, run in enumerate(backfilled(pages)):
        states.append(state_of(pages, AUDIT, run["dag_run_id"]))
        pages.picture(f"run-{number}")
    assert states == ["Failed" if number == BAD else "Success" for number in range(BACKFILLED)]
    bad = backfilled(pages)[BAD]["dag_run_id"]
    tasks = pages.api(f"dags/{AUDIT}/dagRuns/{quote(bad)}/taskInstances")["task_instances"]
    red = {task["task_id"] for task in tasks if task["state"] in ("failed", "upstream_failed")}
    assert red == {"validate", "conclude"}


@pytest.mark.parametrize("number", range(BACKFILLED))
def test_report_and_data_docs_open_from_the_run(pages: Pages, number: int) -> None:
    run, injected = backfilled(pages)[number]["dag_run_id"], pages.up.injected
    verdict = "FAIL" if number == BAD else "PASS"
    for link, picture in (("Report", "report"), ("Data Docs", "data-docs")):
        body = published(pages, AUDIT, run)
        body.get_by_role("link", name=re.compile(link, re.I)).first.click()
        row = body.locator("tr, li").filter(has_text=injected.topic).first
        row.wait_for()
        pages.picture(f"{picture}-{number}")
        assert verdict in row.inner_text()
        assert ("FAIL" in body.inner_text()) is (number == BAD)


def test_the_report_of_the_bad_day_names_the_key_that_went_backwards(pages: Pages) -> None:
    run, injected = backfilled(pages)[BAD]["dag_run_id"], pages.up.injected
    body = published(pages, AUDIT, run)
    body.get_by_role("link", name=re.compile("Report", re.I)).first.click()
    row = body.locator("tr, li").filter(has_text=injected.topic).first
    row.get_by_role("link").first.click()
    body.get_by_text("went backwards").first.wait_for()
    pages.picture("report-of-the-bad-day")
    said = body.inner_text()
    assert injected.key in said
    assert all(position in said for position in injected.positions)


def test_the_cause_of_a_red_run_is_two_clicks_away(pages: Pages) -> None:
    run, injected = backfilled(pages)[BAD]["dag_run_id"], pages.up.injected
    tab = published(pages, AUDIT, run)
    verdicts = tab.frame_locator("iframe[title='Verdicts']")
    row = verdicts.locator("tr, li").filter(has_text=injected.topic).first
    row.wait_for()
    pages.picture("tab-of-the-bad-day")
    assert "FAIL" in row.inner_text()
    assert tab.get_by_role("link", name="validate", exact=True).count() == 1
    row.get_by_role("link").first.click()
    verdicts.get_by_text("went backwards").first.wait_for()
    assert injected.key in verdicts.locator("body").inner_text()


def test_nobody_reads_them_without_a_login(pages: Pages) -> None:
    anonymous = pages.page.context.browser.new_context()
    for path in (
        "/dispatch-audit/",
        "/dispatch-audit/reports/",
        f"/dispatch-audit/reports/{pages.up.day(BAD)}/index.html",
    ):
        assert anonymous.request.get(pages.up.base + path).status == 401
    assert (
        pages.page.request.get(
            f"{pages.up.base}/dispatch-audit/reports/{pages.up.day(BAD)}/index.html"
        ).status
        == 200
    )
    anonymous.close()


def test_a_what_if_is_filled_in_and_its_comparison_opens(pages: Pages) -> None:
    page, dialog = trigger_dialog(pages, WHAT_IF)
    dialog.get_by_role("button", name="Recorded load").click()
    choose_time(page, field_of(dialog, "Interval (its start)").first, pages.up.day(1))
    dialog.locator("[name=element_topics]").fill("*rolling-restart*")
    dialog.get_by_role("button", name="Other rules").click()
    dialog.locator("[name=element_settings]").fill("subscriptionKeySharedConsistentHashingReplicaPoints=50")
    dialog.get_by_role("button", name="Simulation").click()
    dialog.locator("[name=element_seeds]").fill("1")
    pages.picture("what-if")
    dialog.get_by_role("button", name="Trigger", exact=True).click()
    dialog.wait_for(state="hidden")
    (run,) = pages.api(f"dags/{WHAT_IF}/dagRuns")["dag_runs"]
    assert run["conf"]["topics"] == "*rolling-restart*"
    assert run["conf"]["interval_start"][:10] == pages.up.day(1).isoformat()
    assert state_of(pages, WHAT_IF, run["dag_run_id"]) == "Success"
    body = published(pages, WHAT_IF, run["dag_run_id"])
    body.get_by_role("link").first.click()
    body.get_by_text("classic-ch").first.wait_for()
    pages.picture("comparison")
    assert "rolling-restart" in body.inner_text()


def test_maintenance_is_triggered_from_the_form_and_every_task_succeeds(pages: Pages) -> None:
    _page, dialog = trigger_dialog(pages, MAINTENANCE)
    dialog.get_by_role("button", name="Days to keep").click()
    pages.picture("maintenance")
    dialog.get_by_role("button", name="Trigger", exact=True).click()
    dialog.wait_for(state="hidden")
    # Switched on, the DAG also runs for the last Sunday.
    found = pages.api(f"dags/{MAINTENANCE}/dagRuns")["dag_runs"]
    (run,) = (run for run in found if run["run_type"] == "manual")
    assert state_of(pages, MAINTENANCE, run["dag_run_id"]) == "Success"
    pages.picture("maintained")
    tasks = pages.api(f"dags/{MAINTENANCE}/dagRuns/{run['dag_run_id']}/taskInstances")["task_instances"]
    assert {task["state"] for task in tasks} == {"success"}
    assert {"verify", "retain", "compact"} <= {task["task_id"] for task in tasks}
