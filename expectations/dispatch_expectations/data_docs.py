"""Write Data Docs as a self-contained static site, one folder per interval, that is safe to open and to serve.

The pages of Great Expectations contain unescaped values, and load scripts, style sheets and a picture from other hosts. Here
scripts and foreign links are removed from every page, and a small style sheet and a content security policy are added, under
which no script runs and nothing is loaded. A table of the verdicts with links to the pages replaces the index page, which
needs scripts.

The pages are built in a private folder of this machine. Then those of ``<data_docs>/<interval>`` are replaced one by one,
the index last, and those that are no longer linked are removed. ``<data_docs>/index.html`` lists the intervals.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from dispatch_expectations.promise import ALL
from dispatch_expectations.suites import BY_NAME, PROMISES
from dispatch_expectations.verdict import Verdict
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.warehouse.delta_tables import Place

_POLICY: Final = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'\">"
)
_STYLE: Final = """<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1a1d21; }
table { border-collapse: collapse; margin: .6rem 0; } th { text-align: left; }
td, th { border: 1px solid #ccd2d8; padding: .3rem .55rem; vertical-align: top; overflow-wrap: anywhere; }
.PASS, .text-success { color: #0a6b32; } .FAIL, .text-danger { color: #b3121d; } .UNKNOWN { color: #8a5a00; }
.PASS, .FAIL, .UNKNOWN { font-weight: 600; } .ge-failed-icon::before { content: "not met "; color: #b3121d; }
.ge-success-icon::before { content: "met "; color: #0a6b32; } .d-none, .modal, footer, .cooltip .top { display: none; }
</style>"""
_SCRIPT: Final = re.compile(r"<script\b.*?</script\s*>|<script\b[^>]*/?>", re.DOTALL | re.IGNORECASE)
_STYLES: Final = re.compile(r"<style\b.*?</style\s*>", re.DOTALL | re.IGNORECASE)
_FOREIGN: Final = re.compile(r"<(?:link|img)\b[^>]*>", re.DOTALL | re.IGNORECASE)
_ADVERT: Final = re.compile(r"""<a\b[^>]*href=["']https?://[^>]*>.*?</a\s*>""", re.DOTALL | re.IGNORECASE)
_HEAD: Final = re.compile(r"<head\b[^>]*>", re.IGNORECASE)
_SUMMARY: Final = "verdict.json"


class Site:
    """One interval's pages while they are built."""

    def __init__(self, folder: Path, interval_start: datetime) -> None:
        self.folder = folder
        self._interval_start = interval_start

    def finish(self, verdicts: Sequence[Verdict]) -> None:
        """Make the pages of Great Expectations safe and write the index over them."""
        pages: dict[str, str] = {}
        for page in sorted(self.folder.rglob("*.html")):
            page.write_text(_safe_page(page.read_text(encoding="utf-8")), encoding="utf-8")
            relative = page.relative_to(self.folder)
            if relative.parts[0] == "validations":
                pages[relative.parts[1]] = relative.as_posix()
        shutil.rmtree(
            self.folder / "static", ignore_errors=True
        )  # style sheets and fonts that no page uses now
        title = f"Dispatch audit, interval {interval(self._interval_start).name}"
        (self.folder / "index.html").write_text(
            _page(title, _verdict_table(verdicts, pages)), encoding="utf-8"
        )
        totals = [verdict.verdict for verdict in verdicts if verdict.promise == ALL]
        counts = {name: totals.count(name) for name in sorted(set(totals))}
        (self.folder / _SUMMARY).write_text(json.dumps(counts), encoding="utf-8")


def index_of(data_docs: Place, interval_start: datetime) -> Location:
    """Return the place of an interval's index page."""
    return Location.of(data_docs) / interval(interval_start).name / "index.html"


@contextmanager
def staged_site(data_docs: Place, interval_start: datetime) -> Iterator[Site]:
    """Yield a folder for an interval's pages; they replace the earlier ones when the block ends without an error."""
    with tempfile.TemporaryDirectory(prefix="data-docs-") as staging:
        yield Site(Path(staging), interval_start)
        _publish(Path(staging), Location.of(data_docs) / interval(interval_start).name)
    write_list(data_docs)


def _publish(staging: Path, target: Location) -> None:
    """Write the pages of a folder to their place, the index last, and remove other pages there."""
    pages = [page.relative_to(staging).as_posix() for page in staging.rglob("*") if page.is_file()]
    for page in sorted(pages, key=lambda page: (page == "index.html", page)):
        (target / page).put(staging / page)
    for stored in target.files():
        if stored.location.below(target) not in pages:
            stored.location.delete()


def write_list(data_docs: Place) -> None:
    """Write the page that lists the intervals which have pages."""
    place = Location.of(data_docs)
    lines = []
    for folder in sorted(place.folders(), reverse=True):
        try:
            counts = json.loads((folder / _SUMMARY).read_text())
        except FileNotFoundError:
            continue
        name = html.escape(folder.name)
        cells = ", ".join(
            f'<span class="{_word(word)}">{int(count)} {_word(word)}</span>' for word, count in counts.items()
        )
        lines.append(f'<tr><td><a href="{name}/index.html">{name}</a></td><td>{cells}</td></tr>')
    table = f"<table><tr><th>Interval (UTC)</th><th>Subscriptions</th></tr>{''.join(lines)}</table>"
    (place / "index.html").write_text(_page("Dispatch audit", table))


def _word(text: str) -> str:
    return html.escape(text, quote=True)


def _safe_page(text: str) -> str:
    for unwanted in (_SCRIPT, _STYLES, _FOREIGN, _ADVERT):
        text = unwanted.sub("", text)
    safe, found = _HEAD.subn(
        lambda head: f'{head.group()}<meta charset="utf-8">{_POLICY}{_STYLE}', text, count=1
    )
    return safe if found else f"{_POLICY}{_STYLE}{text}"


def _page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8">{_POLICY}{_STYLE}<title>{html.escape(title)}</title>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{html.escape(title)}</h1>{body}</body></html>\n'


def _verdict_table(verdicts: Sequence[Verdict], pages: dict[str, str]) -> str:
    """Write the table of verdicts: a row per dispatcher with a column per promise, and a row with its top findings."""
    heads = []
    for promise in PROMISES:
        page, title = pages.get(promise.name), html.escape(promise.title)
        heads.append(f'<th><a href="{html.escape(page)}">{title}</a></th>' if page else f"<th>{title}</th>")
    rows = [f"<tr><th>Topic, subscription</th><th>All</th>{''.join(heads)}</tr>"]
    by_dispatcher: dict[tuple[str, str, str], dict[str, Verdict]] = {}
    for verdict in verdicts:
        by_dispatcher.setdefault(verdict.dispatcher, {})[verdict.promise] = verdict
    for (cluster, topic, subscription), promises in by_dispatcher.items():
        names = f"{html.escape(topic)}<br>{html.escape(subscription)} ({html.escape(cluster)})"
        cells = "".join(_cell(promises[name]) for name in (ALL, *BY_NAME))
        rows.append(f"<tr><td>{names}</td>{cells}</tr>")
        overall = promises[ALL]
        if overall.top_findings:
            items = "".join(f"<li>{html.escape(text)}</li>" for text in overall.top_findings)
            rows.append(f'<tr><td></td><td colspan="{len(PROMISES) + 1}"><ul>{items}</ul></td></tr>')
    return f"<table>{''.join(rows)}</table>"


def _cell(verdict: Verdict) -> str:
    word = _word(verdict.verdict)
    reason = "" if verdict.promise == ALL else f"<br>{html.escape(verdict.reason)}"
    return f'<td><span class="{word}">{word}</span>{reason}</td>'
