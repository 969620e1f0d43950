"""Data Docs: whatever a topic, a key or a broker calls itself, it stays text, and no page fetches anything."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dispatch_expectations.validate import validate_interval
from tests.expectations.make import DAY, TOPIC, Day

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'${x} $name {{7*7}}\u202e\n"


class Tags(HTMLParser):
    """Collects what a browser would act upon."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[str] = []
        self.policies: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"script", "img", "iframe", "object", "embed", "link", "base", "form"}:
            self.active.append(tag)
        self.active += [name for name in given if name == "onerror"]
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(given["content"] or "")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: Path) -> Tags:
    tags = Tags()
    tags.feed(page.read_text(encoding="utf-8"))
    return tags


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a day on which everything has a hostile name, published twice; another run lies between the two."""
    folder = tmp_path_factory.mktemp("hostile")
    day = Day()
    who = day.dispatcher(TOPIC + HOSTILE, "sub" + HOSTILE)
    day.anomaly(who, "out_of_order", key=HOSTILE, explanation="key " + HOSTILE)
    day.rows["dispatcher_state"][0]["not_judged_reason"] = HOSTILE
    day.add("quarantine", source_file=HOSTILE, reason=HOSTILE, raw_truncated=False)
    warehouse = day.write(folder / "warehouse")
    validate_interval(warehouse, DAY, folder / "docs")
    (folder / "docs/2026-11-21/validations/of-another-run.html").write_text("not linked any more")
    validate_interval(warehouse, DAY, folder / "docs")
    return folder / "docs"


def test_hostile_names_stay_text_on_every_page(docs: Path) -> None:
    pages = sorted(docs.rglob("*.html"))
    # The list, the interval's index, and for each promise and each table with an expectation its suite and its result.
    assert len(pages) == 2 + 2 * (6 + 4)
    for page in pages:
        tags = parsed(page)
        assert tags.active == [], page
        assert any("default-src 'none'" in policy for policy in tags.policies), page
    index = parsed(docs / "2026-11-21/index.html")
    assert "<script>alert(1)</script>" in index.text
    for name in ("per_key_order", "rows_anomalies", "rows_quarantine"):
        result = next(page for page in pages if page.name == f"warehouse-{name}.html")
        assert "<script>alert(1)</script>" in parsed(result).text, name


def test_pages_fetch_nothing_and_link_only_to_each_other(docs: Path) -> None:
    for page in docs.rglob("*.html"):
        assert not re.search(
            r"""(?:src|href|url\()\s*=?\s*["']?(?:https?:)?//""", page.read_text(encoding="utf-8")
        ), page
        if page.name == "index.html":
            for link in parsed(page).links:
                assert (page.parent / link).is_file(), link


def test_pages_that_are_not_linked_any_more_are_removed(docs: Path) -> None:
    assert sorted(path.name for path in docs.iterdir()) == ["2026-11-21", "index.html"]
    assert not list(docs.rglob("of-another-run.html"))
    assert len(list((docs / "2026-11-21" / "validations").rglob("*.html"))) == 6 + 4
