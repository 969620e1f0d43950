"""Data Docs in a real browser, headless and without a network: `make browser`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch_expectations.validate import validate_interval
from tests.expectations.make import DAY, Day
from tests.report.test_browser import PATIENCE_MS, browser  # noqa: F401

pytestmark = pytest.mark.browser
#: A wide window, and a narrow one.
WIDTHS = (1400, 700)


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a day with a broken, an unknown and two healthy dispatchers."""
    folder = tmp_path_factory.mktemp("docs")
    day = Day()
    for name in ("healthy", "broken", "unknown", "healthy-too"):
        who = day.dispatcher(f"persistent://public/default/orders-of-a-customer-{name}")
        if name == "broken":
            for number in range(3):
                explanation = f"key order-{number} went backwards at worker-2: it got 5:2 and then 5:1"
                day.anomaly(who, "out_of_order", key=f"order-{number}", explanation=explanation)
        if name == "unknown":
            day.anomaly(who, "log_gap", key=None, severity="major")
    validate_interval(day.write(folder / "warehouse"), DAY, folder / "docs")
    return folder / "docs" / "2026-11-21"


@pytest.fixture(params=WIDTHS)
def shown(request, browser) -> Iterator:  # noqa: F811
    """An empty window of one width."""
    context = browser.new_context(viewport={"width": request.param, "height": 1000}, offline=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.complaints = []
    page.on("console", lambda said: page.complaints.append(f"{said.type}: {said.text}"))
    yield page
    context.close()


def result_page(docs: Path, suite: str) -> str:
    return next((docs / "validations" / suite).rglob("*.html")).as_uri()


def squeezed(shown) -> list[str]:
    """Words of ten letters at most that take more than one line."""
    return shown.evaluate("""() => {
      const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walk.nextNode()) {
        for (const word of walk.currentNode.textContent.matchAll(/[A-Za-z]{2,10}/g)) {
          const range = document.createRange();
          range.setStart(walk.currentNode, word.index);
          range.setEnd(walk.currentNode, word.index + word[0].length);
          const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
          if (tops.size > 1 && !walk.currentNode.parentElement.closest('.name, .unexpected')) found.push(word[0]);
        }
      }
      return found;
    }""")


def test_no_word_is_vertical_and_nothing_is_wider_than_the_window(shown, docs):
    for page in (
        (docs / "index.html").as_uri(),
        result_page(docs, "per_key_order"),
        result_page(docs, "rows_anomalies"),
        (docs / "expectations" / "per_key_order.html").as_uri(),
    ):
        shown.goto(page)
        assert squeezed(shown) == [], page
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
        assert shown.complaints == [], page


def test_the_filter_of_the_verdicts_works(shown, docs):
    shown.goto((docs / "index.html").as_uri())
    groups = shown.locator("tbody.verdicts")
    assert [group.is_visible() for group in groups.all()] == [True] * 4
    shown.get_by_label("FAIL (1)").check()
    visible = [group for group in groups.all() if group.is_visible()]
    assert len(visible) == 1
    assert "customer-broken" in visible[0].text_content()
    assert "key order-0 went backwards" in visible[0].text_content()
    shown.get_by_label("UNKNOWN (1)").check()
    assert [group.is_visible() for group in groups.all()].count(True) == 1
    shown.get_by_label("all (4)").check()
    assert [group.is_visible() for group in groups.all()] == [True] * 4


def test_the_status_is_a_word_and_failed_only_hides_what_is_met(shown, docs):
    shown.goto(result_page(docs, "rows_anomalies"))
    status = shown.locator("td.status")
    words = [cell.inner_text().strip() for cell in status.all()]
    not_met = ["not met (critical)"] * 2  # out_of_order and log_gap
    assert words[:2] == not_met
    assert set(words[2:]) == {"met"}
    shown.get_by_label("Failed Only").check()
    assert [cell.inner_text().strip() for cell in status.all() if cell.is_visible()] == not_met
    assert shown.locator(".unexpected").first.locator("tbody tr").count() == 3
    assert shown.locator(".unexpected").get_by_text("order-2", exact=True).is_visible()
    shown.get_by_label("Show All").check()
    assert all(cell.is_visible() for cell in status.all())


def test_one_gets_from_the_verdicts_to_the_rows(shown, docs):
    shown.goto((docs / "index.html").as_uri())
    shown.get_by_role("link", name="Findings").click()
    assert "went backwards" in shown.locator(".unexpected").first.inner_text()
