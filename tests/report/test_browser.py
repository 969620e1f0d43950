"""Reports in a real browser, headless and without a network: `make browser`.

The browser is the machine's own Chromium; ``DISPATCH_AUDIT_BROWSER`` names another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
SAMPLES = Path(__file__).resolve().parents[1] / "data" / "recordings" / "4.2.4"
SAMPLE = SAMPLES / "designed-drain-one-by-one-ch"
#: With findings of several causes; with hashes that drain; with one active consumer.
BROKEN, DRAINING, FAILOVER = (
    "designed-rolling-restart-classic-ch",
    "designed-rolling-restart-ch",
    "designed-failover-modulo-p1",
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

    def __init__(
        self,
        browser: Browser,
        path: Path,
        width: int = 1280,
        scheme: Literal["light", "dark"] = "light",
    ) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        window: ViewportSize = {"width": width, "height": 720}
        self.page: Page = browser.new_context(offline=True, viewport=window, color_scheme=scheme).new_page()
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
    assert any(HOSTILE in text for text in hostile.texts("#findings .sentence"))
    assert HOSTILE in hostile.texts("#findings dd")
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


def test_a_cause_opens_its_finding(hostile: Shown) -> None:
    """The worst cause is open, the others are not; a cause of one finding has the finding itself."""
    causes = hostile.page.locator("#findings > li")
    assert causes.count() == 2
    text = causes.first.locator("summary").text_content() or ""
    assert text.startswith("critical out_of_order ")
    assert f"key {HOSTILE} went backwards at {HOSTILE_CONSUMER}" in text
    facts = hostile.page.locator("#findings dl")
    assert facts.count() == 1
    assert "5:31, 5:28" in (facts.text_content() or "")
    causes.nth(1).locator("summary").click()
    facts.nth(1).wait_for()
    assert facts.count() == 2
    assert "uncertain" in (causes.nth(1).locator("summary").text_content() or "")


def test_search_leaves_what_matches(hostile: Shown) -> None:
    causes = hostile.page.locator("#findings > li")
    assert hostile.texts("#shown") == ["2 findings, 2 causes"]
    hostile.page.fill("#search", "<SCRIPT>alert")
    assert hostile.texts("#shown") == ["1 of 2 findings, 1 cause"]
    hostile.page.fill("#search", "")
    hostile.page.select_option("#kind", "split_key")
    assert causes.count() == 1
    assert "uncertain" in (causes.first.text_content() or "")
    hostile.page.fill("#search", "nothing of the kind")
    assert (causes.count(), hostile.texts("#shown")) == (0, ["0 of 2 findings, 0 causes"])
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
    assert HOSTILE in shown.texts("#findings dd")
    assert shown.complaints == []
    script.unlink()
    alone = Shown(browser, path)
    for picture in PICTURES:
        alone.page.wait_for_function(f"document.getElementById('plot-{picture}').textContent.length > 0")
        assert "dispatch-audit report --self-contained makes a page" in alone.texts(f"#plot-{picture}")[0]
    assert HOSTILE in alone.texts("#findings dd"), "the findings need no picture"


#: Texts that have too little contrast to what is behind them, with the contrast; WCAG 2.2 AA wants 4.5.
FAINT = """() => {
  const parts = colour => { const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number); return {rgb: [r, g, b], a}; };
  const luminance = rgb => rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const {rgb, a} = parts(getComputedStyle(at).backgroundColor);
      if (a === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || element.closest('script, style, noscript')) continue;
    if (!element.getClientRects().length || getComputedStyle(element).visibility === 'hidden') continue;
    seen += 1;
    const style = getComputedStyle(element);
    const ink = luminance(parts(element.closest('svg') ? style.fill : style.color).rgb);
    const [low, high] = [ink, luminance(ground(element))].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) found.push(`${walk.currentNode.textContent.trim().slice(0, 30)} ${contrast.toFixed(2)}`);
  }
  return [seen, found];
}"""
#: What Tab leads to, one press each; without a visible outline it has a "!" in front.
VISITED = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 ? '' : '!';
  const name = at.id || at.dataset?.time || at.dataset?.hash || at.classList[0] || at.localName;
  return seen + (at.closest('.plot') && !at.classList.contains('plot') ? at.closest('.plot').id + ' ' : '') + name;
}"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pages of three recordings, which share the script, and of their index."""
    folder = tmp_path_factory.mktemp("written")
    assert (
        main(
            ["report", *(str(SAMPLES / name) for name in (BROKEN, DRAINING, FAILOVER)), "--out", str(folder)]
        )
        == 1
    )
    return folder


def page_of(written: Path, recording: str) -> Path:
    return written / "4.2.4" / f"{recording}.html"


def wait_for_pictures(shown: Shown) -> None:
    shown.page.wait_for_selector("#plot-balance .trace path", state="attached")
    shown.page.wait_for_selector("#plot-flow .x2y9 .point", state="attached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_pages_can_be_read_at_any_width_on_any_ground(
    browser: Browser, written: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    """Nothing is wider than the page, which is of bounded height; all texts have contrast, also those of pictures."""
    for name, height in ((BROKEN, 10_000), ("index", 3_000)):
        path = written / "index.html" if name == "index" else page_of(written, name)
        shown = Shown(browser, path, width, scheme)
        if name != "index":
            wait_for_pictures(shown)
            shown.page.locator("#findings > li").nth(1).locator("summary").first.click()
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert shown.page.evaluate("document.documentElement.scrollHeight") < height, name
        seen, faint = shown.page.evaluate(FAINT)
        assert seen > (30 if name == "index" else 200)
        assert faint == [], name
        ground = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(244, 246, 248)" if scheme == "light" else "rgb(16, 21, 27)")
        assert shown.complaints == []
        shown.page.context.close()


@pytest.fixture(params=[1280, 400])
def broken(browser: Browser, written: Path, request: pytest.FixtureRequest) -> Iterator[Shown]:
    """A page with findings of several causes, at two widths."""
    shown = Shown(browser, page_of(written, BROKEN), request.param)
    wait_for_pictures(shown)
    yield shown
    assert shown.complaints == []
    shown.page.context.close()


def test_findings_are_grouped_by_cause_and_all_can_be_reached(broken: Shown) -> None:
    page = broken.page
    listed = page.evaluate("JSON.parse(document.getElementById('report-data').textContent).findings.length")
    assert broken.texts("#shown")[0].startswith(f"{listed} findings, ")
    while page.locator("#more").is_visible():
        page.click("#more")
    page.evaluate(
        "document.querySelectorAll('#findings > li > details:not([open]) > summary').forEach(e => e.click())"
    )
    while page.locator(".next:visible").count():
        page.locator(".next:visible").first.click()
    assert page.locator("[id^=finding-]").count() == listed


def test_marks_on_the_time_axis_lead_to_findings_and_back(broken: Shown) -> None:
    page = broken.page
    for picture in ("shares", "flow", "dispatch"):
        assert page.locator(f"#plot-{picture} [role=button].point").count() >= 1, picture
    marks = page.locator("#plot-flow .x2y9 .point")
    box = marks.first.bounding_box()
    assert box is not None
    page.locator("#flow").scroll_into_view_if_needed()
    box = marks.first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("#any-time").wait_for()
    first = page.evaluate("document.activeElement.closest('[id^=finding-]').id")
    assert broken.texts("#shown")[0].split(" of ")[0].isdecimal()

    # Back: a line in every picture at the time of the finding.
    page.locator(".locate:visible").first.click()
    assert page.evaluate("document.activeElement.classList.contains('plot')")
    t_ms = page.evaluate(
        "at => JSON.parse(document.getElementById('report-data').textContent).findings[at].t_ms",
        int(first.removeprefix("finding-")),
    )
    for picture in ("shares", "flow", "dispatch"):
        lines = page.evaluate(
            f"document.getElementById('plot-{picture}').layout.shapes.filter(s => s.yref === 'paper').map(s => s.x0)"
        )
        assert lines == [t_ms], picture

    # With keys: to the first mark, to the next one, and to its findings.
    page.click("#any-time")
    marks.first.focus()
    page.keyboard.press("ArrowRight")
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert "list them" in label
    page.keyboard.press("Enter")
    assert page.locator("#any-time").is_visible()
    assert page.evaluate("document.activeElement.localName") == "summary"


def test_a_finding_has_an_address(browser: Browser, written: Path) -> None:
    shown = Shown(browser, page_of(written, BROKEN), 400)
    shown.page.goto(page_of(written, BROKEN).as_uri() + "#finding-30")
    shown.page.reload()
    shown.page.locator("#finding-30 .explanation").wait_for()
    shown.page.wait_for_function("document.activeElement.closest('#finding-30') !== null")
    shown.page.context.close()


def test_pictures_zoom_together_and_ranges_become_exact(browser: Browser, written: Path) -> None:
    shown = Shown(browser, page_of(written, DRAINING))
    page = shown.page
    wait_for_pictures(shown)
    page.click("#ring summary")
    page.wait_for_selector("#plot-ring .heatmaplayer image", state="attached")

    def window(picture: str) -> list[Any]:
        found: list[Any] = page.evaluate(f"document.getElementById('plot-{picture}').layout.xaxis.range")
        return found

    whole = window("flow")
    page.locator("#plot-flow").press("+")
    page.click("[data-time=later]")
    pictures = ("shares", "ring", "flow", "dispatch")
    assert len({str(window(picture)) for picture in pictures}) == 1
    assert window("flow") != whole
    for _ in range(3):
        page.click("[data-hash=in]")
    page.click("[data-hash=later]")
    # Each cell has the color of the range that the table has there, and no range lies between two cells.
    wrong = page.evaluate("""() => {
      const {ranges} = JSON.parse(document.getElementById('report-data').textContent);
      const {x, y, z} = document.getElementById('plot-ring').data[0];
      let wrong = 0;
      for (let i = 0; i + 1 < x.length; i++) for (let j = 0; j + 1 < y.length; j++) {
        const owners = new Set(ranges.owner.filter((_, at) =>
          ranges.times[ranges.from[at]] < x[i + 1] && ranges.times[ranges.until[at]] > x[i] &&
          ranges.low[at] < y[j + 1] && ranges.high[at] > y[j]));
        const [owner] = owners;
        if (owners.size > 1 || (owner ?? null) !== (z[j][i] === null ? null : z[j][i] - 0.5)) wrong += 1;
      }
      return [wrong, (x.length - 1) * (y.length - 1)];
    }""")
    assert wrong[0] == 0
    assert wrong[1] > 50
    page.click("[data-time=all]")
    assert window("flow") == whole
    assert shown.complaints == []
    page.context.close()


def test_shares_are_stacked_and_what_moved_is_named(browser: Browser, written: Path) -> None:
    shown = Shown(browser, page_of(written, DRAINING), 400)
    wait_for_pictures(shown)
    traces = shown.page.evaluate(
        "document.getElementById('plot-shares')._fullData.map("
        "t => [t.name, t.stackgroup ?? '', [...t.y], t.customdata])"
    )
    owners = {name: y for name, stack, y, _texts in traces if stack}
    assert set(owners) == {"w0", "w1", "w2"}
    assert max(map(sum, zip(*owners.values(), strict=True))) == pytest.approx(100, abs=0.1)
    moved = next(texts for name, _stack, _y, texts in traces if name == "moved")
    assert any("w0 to w1" in pairs for _what, pairs in moved)
    assert {"draining_hash", "joined", "left"} <= {name for name, *_rest in traces}
    shown.page.context.close()


def test_failover_shows_who_was_active(browser: Browser, written: Path) -> None:
    shown = Shown(browser, page_of(written, FAILOVER), 400)
    wait_for_pictures(shown)
    assert shown.texts("#active h2") == ["Who was active"]
    assert "was active longest" in shown.texts("#caption-active")[0]
    assert shown.page.locator("#plot-active .barlayer .point").count() > 3
    shown.page.context.close()


def test_everything_can_be_reached_with_keys(browser: Browser, written: Path) -> None:
    shown = Shown(browser, page_of(written, BROKEN))
    page = shown.page
    wait_for_pictures(shown)
    visited: list[str] = []
    for _ in range(120):
        page.keyboard.press("Tab")
        visited.append(page.evaluate(VISITED))
        if visited[-1].endswith("body"):
            break
    assert [name for name in visited if name.startswith("!") and name != "!body"] == []
    wanted = {
        "in",
        "out",
        "earlier",
        "later",
        "all",
        "plot-shares",
        "plot-flow",
        "plot-dispatch",
    }
    wanted |= {"search", "kind", "save", "summary", "plot-flow point", "plot-flow traces", "wide"}
    assert wanted <= set(visited)
    # The legend, too.
    legend = page.locator("#plot-flow .legend .traces").first
    legend.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.getElementById('plot-flow').data[0].visible") == "legendonly"
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
    assert shown.complaints == []
    page.context.close()


def test_on_paper_the_page_is_light_and_without_controls(browser: Browser, written: Path) -> None:
    shown = Shown(browser, page_of(written, FAILOVER), scheme="dark")
    page = shown.page
    wait_for_pictures(shown)
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    layout = "document.getElementById('plot-flow').layout"
    assert page.evaluate(f"[{layout}.width, {layout}.paper_bgcolor]") == [640, "#ffffff"]
    assert not page.locator("#time-tools, #search, .save, nav").filter(visible=True).count()
    assert page.evaluate(FAINT)[1] == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(f"[{layout}.width ?? null, {layout}.paper_bgcolor]") == [None, "#1a2129"]
    page.context.close()


def test_the_index_searches_and_filters(browser: Browser, written: Path) -> None:
    shown = Shown(browser, written / "index.html", 400)
    rows = shown.page.locator("#rows tr")
    assert rows.count() == 3
    assert "FAIL" in (rows.first.text_content() or "")
    shown.page.fill("#search", "failover audit")
    assert rows.filter(visible=True).count() == 1
    assert shown.texts("#shown") == ["1 of 3 match"]
    shown.page.fill("#search", "")
    shown.page.check("#only-FAIL")
    assert rows.filter(visible=True).count() == 1
    shown.page.check("#only-all")
    rows.first.locator("a").click()
    shown.page.wait_for_selector("#plot-balance .trace path", state="attached")
    assert "designed-rolling-restart-classic-ch" in shown.texts("h1")[0]
    assert shown.complaints == []
    shown.page.context.close()


@pytest.mark.parametrize("width", [1200, 400])
def test_statistics_can_be_read_on_a_desk_and_on_a_phone(browser: Browser, written: Path, width: int) -> None:
    """The picture keeps its room beside the legend, nothing but a wide table is wider than the page."""
    shown = Shown(browser, page_of(written, DRAINING), width=width)
    shown.page.wait_for_selector("#plot-dispatch .scatterlayer .trace path", state="attached")
    assert shown.complaints == []
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    plots = shown.page.evaluate(
        "[...document.querySelectorAll('#plot-dispatch .bglayer .bg')].map(e => e.getBoundingClientRect().height)"
    )
    assert len(plots) == 2
    assert min(plots) > 80
    legend = shown.texts("#plot-dispatch .legendtext")
    assert {"replay set", "draining hashes", "w1"} <= set(legend)
    assert "No consumer is connected." in shown.texts("#statistics p")
    shown.page.context.close()


def test_a_million_deliveries_can_be_looked_at(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(page(large_report()), "utf-8")
    assert path.stat().st_size < 10_000_000
    shown = Shown(browser, path)
    for picture in ("shares", "blocked", "flow", "balance"):
        assert 2 <= shown.marks(picture) <= 10_000, picture
    shown.page.click("#ring summary")
    shown.page.wait_for_selector("#plot-ring .heatmaplayer image", state="attached")
    assert shown.texts("#shown") == ["10000 findings, 2 causes"]
    rows = shown.page.locator("#findings .rows > li")
    assert rows.count() == 10
    shown.page.click("#findings .next")
    assert rows.count() == 20
    shown.page.fill("#search", "redelivered")
    assert shown.texts("#shown") == ["1 of 10000 findings, 1 cause"]
    assert shown.complaints == []
