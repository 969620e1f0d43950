"""Reports in a real browser, headless and without a network: `make browser`.

The browser is the machine's own Chromium; ``DISPATCH_AUDIT_BROWSER`` names another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dispatch_core.cli.main import main
from dispatch_core.report.page import library_name, library_script, page
from tests.report.tables import HOSTILE, HOSTILE_CONSUMER, HOSTILE_TOPIC, hostile_report, large_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SAMPLE = (
    Path(__file__).resolve().parents[1] / "data" / "recordings" / "4.2.4" / "designed-drain-one-by-one-ch"
)
PICTURES = ("ring", "blocked", "flow", "balance")
#: Time limit for a busy machine; no figure of the page's speed depends on it.
PATIENCE_MS = 180_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("DISPATCH_AUDIT_BROWSER", "/usr/bin/chromium")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=path, headless=True, args=FLAGS, timeout=PATIENCE_MS)
        yield started
        started.close()


class Shown:
    """An open report, with the browser's complaints and its network requests."""

    def __init__(self, browser: Browser, path: Path, width: int = 1280) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        window: ViewportSize = {"width": width, "height": 720}
        self.page: Page = browser.new_context(offline=True, viewport=window).new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        began = time.monotonic()
        self.page.goto(path.as_uri())
        self.seconds = time.monotonic() - began

    def marks(self, picture: str) -> int:
        return self.page.locator(f"#plot-{picture} .trace path").count()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_text_contents()


@pytest.fixture(scope="module")
def hostile(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    path = tmp_path_factory.mktemp("reports") / "hostile.html"
    path.write_text(page(hostile_report()), "utf-8")
    return Shown(browser, path)


def test_nothing_is_fetched_and_nothing_is_complained_of(hostile: Shown) -> None:
    assert [url for url in hostile.requests if not url.startswith("data:")] == [hostile.requests[0]]
    assert hostile.requests[0].startswith("file:")
    assert hostile.complaints == []


@pytest.mark.parametrize("picture", PICTURES)
def test_pictures_have_marks(hostile: Shown, picture: str) -> None:
    assert hostile.marks(picture) >= 2


def test_names_from_logs_stay_text(hostile: Shown) -> None:
    assert HOSTILE_TOPIC in hostile.texts("h1")[0]
    assert hostile.texts("h1 small") == [HOSTILE]
    assert HOSTILE in hostile.texts("#findings td")
    assert hostile.texts("#statistics-consumers td") == [HOSTILE_CONSUMER]
    assert hostile.texts("#statistics h3") == [HOSTILE]
    # Charts shorten the names, too, and escape plotly's markup.
    start = HOSTILE_CONSUMER[:39]
    for picture, place in (
        ("ring", ".legendtext"),
        ("dispatch", ".legendtext"),
        ("blocked", ".ytick"),
        ("balance", ".ytick"),
    ):
        assert any(text.startswith(start) for text in hostile.texts(f"#plot-{picture} {place}")), picture
    assert "5" in hostile.texts("#plot-balance .ytick")
    elements = "main script, main img, .plot a[href], svg b, svg a[*|href*=javascript]"
    assert hostile.page.locator(elements).count() == 0
    assert hostile.page.evaluate("document.scripts.length") == 3
    assert hostile.complaints == []


def test_a_name_under_the_pointer_stays_text(hostile: Shown) -> None:
    box = hostile.page.locator("#plot-blocked .trace path").first
    box.scroll_into_view_if_needed()
    box.hover(force=True)
    hover = hostile.page.locator("#plot-blocked .hoverlayer text").first
    hover.wait_for()
    assert HOSTILE_CONSUMER[:20] in (hover.text_content() or "")
    assert "%{x}" in (hover.text_content() or "")
    assert hostile.complaints == []


def test_an_anomaly_opens_its_explanation(hostile: Shown) -> None:
    row = hostile.page.locator("#findings tr").first
    explanation = row.locator(".explanation")
    assert not explanation.is_visible()
    row.locator("summary").click()
    assert explanation.is_visible()
    assert explanation.text_content() == f"key {HOSTILE} went backwards at {HOSTILE_CONSUMER}"
    assert "5:31, 5:28" in (row.locator("dl").text_content() or "")
    row.locator("td").first.click()
    assert not explanation.is_visible()


def test_search_leaves_what_matches(hostile: Shown) -> None:
    rows = hostile.page.locator("#findings tr")
    assert rows.count() == 2
    hostile.page.fill("#search", "<SCRIPT>alert")
    assert rows.count() == 1
    hostile.page.fill("#search", "")
    hostile.page.select_option("#kind", "split_key")
    assert rows.count() == 1
    assert "uncertain" in (rows.first.text_content() or "")
    hostile.page.fill("#search", "nothing of the kind")
    assert (rows.count(), hostile.texts("#shown")) == (0, ["0 of 0 shown"])
    hostile.page.fill("#search", "")
    hostile.page.select_option("#kind", "")


def test_a_script_from_elsewhere_does_not_run(hostile: Shown) -> None:
    """If escaping ever fails, the page's policy refuses a script that is not its own."""
    hostile.page.evaluate(
        "() => document.body.append(Object.assign(document.createElement('script'), {text: 'window.hurt = 1'}))"
    )
    assert hostile.page.evaluate("window.hurt") is None
    hostile.complaints.clear()  # the browser reports the refusal


def test_pages_that_share_the_script_draw_and_say_so_when_it_is_gone(
    browser: Browser, tmp_path: Path
) -> None:
    script = tmp_path / "scripts" / library_name()
    script.parent.mkdir()
    script.write_text(library_script(), "utf-8")
    path = tmp_path / "2026-11-21" / "page.html"
    path.parent.mkdir()
    path.write_text(page(hostile_report(), library=f"../scripts/{script.name}"), "utf-8")
    shown = Shown(browser, path)
    for picture in PICTURES:
        shown.page.wait_for_selector(f"#plot-{picture} .trace path", state="attached")
    assert {url for url in shown.requests if not url.startswith("data:")} == {path.as_uri(), script.as_uri()}
    assert HOSTILE in shown.texts("#findings td")
    assert shown.complaints == []
    script.unlink()
    alone = Shown(browser, path)
    for picture in PICTURES:
        alone.page.wait_for_function(f"document.getElementById('plot-{picture}').textContent.length > 0")
        assert "dispatch-audit report --self-contained makes a page" in alone.texts(f"#plot-{picture}")[0]
    assert HOSTILE in alone.texts("#findings td"), "the findings need no picture"


@pytest.mark.parametrize("width", [1200, 400])
def test_statistics_can_be_read_on_a_desk_and_on_a_phone(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    """The picture keeps its room beside the legend, nothing but a wide table is wider than the page."""
    made = ["report", str(SAMPLE), "--out", str(tmp_path)]
    assert main(made) == 0
    shown = Shown(browser, next(tmp_path.rglob("*.html")), width=width)
    shown.page.wait_for_selector("#plot-dispatch .scatterlayer .trace path", state="attached")
    assert shown.complaints == []
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    plots = shown.page.evaluate(
        "[...document.querySelectorAll('#plot-dispatch .bglayer .bg')].map(e => e.getBoundingClientRect().height)"
    )
    assert len(plots) == 2
    assert min(plots) > 80
    legend = shown.texts("#plot-dispatch .legendtext")
    assert {"replay set", "draining hashes"} <= set(legend)
    assert "c1" in legend
    assert "No consumer is connected." in shown.texts("#statistics p")


def test_a_million_deliveries_can_be_looked_at(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(page(large_report()), "utf-8")
    assert path.stat().st_size < 10_000_000
    shown = Shown(browser, path)
    for picture in PICTURES:
        assert 2 <= shown.marks(picture) <= 10_000, picture
    assert shown.texts("#shown") == ["50 of 10000 shown"]
    shown.page.click("#more")
    assert shown.page.locator("#findings tr").count() == 100
    shown.page.fill("#search", "redelivered")
    assert shown.page.locator("#findings tr").count() == 1
    assert shown.complaints == []
