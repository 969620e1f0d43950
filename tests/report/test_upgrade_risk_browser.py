"""The page of two releases compared over 2,000 subscriptions, in a real browser: `make browser`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.what_if.upgrade_risk import INTRODUCES, worst_first
from dispatch_core.what_if.upgrade_risk_groups import folded
from dispatch_core.what_if.upgrade_risk_page import WORST_SHOWN, front_page, risk_page
from tests.dispatch_core.what_if.upgrades import ASKED, HOSTILE, home, partitions
from tests.report.test_browser import Shown, browser  # noqa: F401 - a fixture

# ruff: noqa: F811 - arguments are named as the fixture
pytestmark = pytest.mark.browser

#: Texts of the rows that are seen, without those of the counts.
SEEN = """[...document.querySelectorAll("main table")].slice(1).flatMap((table) => [...table.tBodies[0].rows])
  .filter((row) => row.checkVisibility()).map((row) => row.textContent)"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("risks")
    rows = folded([found.as_json() for found in home(2000)])
    (place / "risk.html").write_text(risk_page(ASKED.as_json(), rows, {"time": "2026-11-21"}), "utf-8")
    (place / "index.html").write_text(front_page(ASKED.as_json(), rows, "risk.html"), "utf-8")
    some = [
        found
        for topic in range(9)
        for found in partitions(60, topic, topic=f"persistent://s/eu/orders-{topic}")
    ]
    rows = folded([found.as_json() for found in worst_first(some)])
    (place / "partitions.html").write_text(risk_page(ASKED.as_json(), rows, {"time": "2026-11-21"}), "utf-8")
    return place


@pytest.mark.parametrize("width", [400, 700, 1280])
def test_partitions_open_beneath_their_topic(browser, folder: Path, width: int) -> None:
    shown = Shown(browser, folder / "partitions.html", width=width)
    parts = shown.page.locator("tr.parts details")
    assert (parts.count(), shown.page.locator("tr.parts li:visible").count()) == (9, 0)
    parts.first.locator("summary").click()
    assert shown.page.locator("tr.parts li:visible").count() == 60
    assert shown.page.evaluate("document.documentElement.scrollWidth") == width
    shown.page.fill("#search", "orders-3 partition 59")
    assert shown.texts("#shown") == ["1 of 9 match"]
    assert shown.page.locator("tr.parts:visible").count() == 1
    assert shown.complaints == []


@pytest.mark.parametrize("width", [400, 700, 1280])
def test_nothing_scrolls_sideways_open_or_closed(browser, folder: Path, width: int) -> None:
    shown = Shown(browser, folder / "risk.html", width=width)
    sizes = "[document.documentElement.scrollWidth, innerWidth, document.documentElement.scrollHeight]"
    wide, window, closed = shown.page.evaluate(sizes)
    assert wide == window == width
    assert shown.page.locator("details").count() == 7
    assert shown.page.locator("details[open]").count() == 0
    shown.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
    wide, _window, opened = shown.page.evaluate(sizes)
    assert (wide, opened > 5 * closed) == (width, True)
    assert shown.complaints == []


def test_the_counts_and_the_worst_are_seen_at_once_and_the_search_opens_the_rest(
    browser, folder: Path
) -> None:
    shown = Shown(browser, folder / "risk.html")
    assert shown.seconds < 30
    assert "2,000 subscriptions: worse 150, not judged 50, better 50" in shown.texts("section.overall p")[0]
    visible = shown.page.evaluate(SEEN)
    assert len(visible) == WORST_SHOWN
    assert all(row.startswith(INTRODUCES) for row in visible)
    shown.page.fill("#search", "topic-00041 worker")
    assert shown.texts("#shown") == ["1 of 2000 match"]
    (match,) = shown.page.evaluate(SEEN)
    assert "topic-00041" in match
    assert shown.page.locator("details[open]").count() == 1
    assert sum(part.is_visible() for part in shown.page.locator("details").all()) == 1
    shown.page.fill("#search", HOSTILE)
    assert shown.texts("#shown") == ["1 of 2000 match"]
    assert shown.page.locator("main img").count() == 0
    shown.page.fill("#search", "")
    assert shown.page.locator("details[open]").count() == 0
    assert all(part.is_visible() for part in shown.page.locator("details").all())
    assert (shown.complaints, shown.requests) == ([], shown.requests[:1])


def test_the_front_page_leads_to_the_page(browser, folder: Path) -> None:
    shown = Shown(browser, folder / "index.html", width=400)
    assert "worse 150" in shown.texts("section.overall p")[0]
    shown.page.click("a")
    shown.page.locator("#search").wait_for()
    assert shown.complaints == []
