"""Write Data Docs as a self-contained static site, one folder per interval, that is safe to open and to serve.

The pages of Great Expectations load scripts, style sheets and a picture from other hosts. Here scripts and foreign links are
removed from every page, and a small style sheet (``data_docs.css``) and a content security policy are added, under which no
script runs and nothing is loaded. Filters are styles. The index page is a table of the verdicts with links to the pages.

The pages are built in a private folder of this machine. Then those of ``<data_docs>/<interval>`` are replaced one by one,
the index last, and those that are no longer linked are removed. ``<data_docs>/index.html`` lists the intervals.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from dispatch_core.audit.promises.promise import SEVERITY
from dispatch_expectations.promise import ALL
from dispatch_expectations.row_suites import ROW_SUITE, TITLES
from dispatch_expectations.run_suites import OWN_SUITE
from dispatch_expectations.suites import BY_NAME
from dispatch_expectations.verdict import Verdict
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.warehouse.delta_tables import Place

_POLICY: Final = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'\">"
)
_STYLE: Final = f"<style>{Path(__file__).with_name('data_docs.css').read_text(encoding='utf-8')}</style>"
_SCRIPT: Final = re.compile(r"<script\b.*?</script\s*>|<script\b[^>]*/?>", re.DOTALL | re.IGNORECASE)
_STYLES: Final = re.compile(r"<style\b.*?</style\s*>", re.DOTALL | re.IGNORECASE)
_HANDLER: Final = re.compile(r'\son\w+="[^"]*"', re.IGNORECASE)
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
    for unwanted in (_SCRIPT, _STYLES, _FOREIGN, _ADVERT, _HANDLER):
        text = unwanted.sub("", text)
    safe, found = _HEAD.subn(
        lambda head: f'{head.group()}<meta charset="utf-8">{_POLICY}{_STYLE}', text, count=1
    )
    return safe if found else f"{_POLICY}{_STYLE}{text}"


def _page(title: str, body: str) -> str:
    head = f"{_POLICY}{_STYLE}<title>{html.escape(title)}</title>"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{head}'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><h1>{html.escape(title)}</h1>{body}</body></html>\n'


def _verdict_table(verdicts: Sequence[Verdict], pages: dict[str, str]) -> str:
    """Write the table of verdicts: a row per dispatcher with a column per promise, and a row with its top findings.

    Above it are the links to the result tables' pages and the filter, which is a style: no script runs on these pages.
    """
    names = [name for name in (ALL, *BY_NAME) if any(verdict.promise == name for verdict in verdicts)]
    titles = {ALL: "All", **{name: promise.title for name, promise in BY_NAME.items()}}
    heads = "".join(f"<th>{_link(pages.get(name), titles[name])}</th>" for name in names)
    by_dispatcher: dict[tuple[str, str, str], dict[str, Verdict]] = {}
    for verdict in verdicts:
        by_dispatcher.setdefault(verdict.dispatcher, {})[verdict.promise] = verdict
    groups = []
    for (cluster, topic, subscription), promises in by_dispatcher.items():
        shown = f"{html.escape(topic)}<br>{html.escape(subscription)} ({html.escape(cluster)})"
        cells = "".join(_cell(promises.get(name), titles[name]) for name in names)
        rows = [f'<tr><td class="name">{shown}</td>{cells}</tr>']
        overall = promises[ALL]
        if overall.top_findings:
            items = "".join(f"<li>{html.escape(text)}</li>" for text in overall.top_findings)
            rows.append(f'<tr><td></td><td colspan="{len(names)}"><ul>{items}</ul></td></tr>')
        groups.append(f'<tbody class="verdicts of-{_word(overall.verdict)}">{"".join(rows)}</tbody>')
    head = f"<thead><tr><th>Topic, subscription</th>{heads}</tr></thead>"
    return f'{_row_pages(pages)}{_filter(verdicts)}<table class="overview">{head}{"".join(groups)}</table>'


def _link(page: str | None, title: str) -> str:
    return f'<a href="{html.escape(page)}">{html.escape(title)}</a>' if page else html.escape(title)


def _row_pages(pages: dict[str, str]) -> str:
    """Write the links to the pages about single rows."""
    links = [
        _link(pages[f"{ROW_SUITE}{table}"], title)
        for table, title in TITLES.items()
        if f"{ROW_SUITE}{table}" in pages
    ]
    links += [
        _link(page, f"Own expectations on {name.removeprefix(OWN_SUITE)}")
        for name, page in pages.items()
        if name.startswith(OWN_SUITE)
    ]
    return f"<p>Row by row: {', '.join(links)}</p>" if links else ""


def _filter(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.verdict for verdict in verdicts if verdict.promise == ALL)
    choices = [("all", sum(counts.values()))]
    choices += [(word, counts[word]) for word in reversed(SEVERITY) if counts[word]]
    labels = "".join(
        f'<label><input type="radio" name="show" id="show-{word}"{" checked" if word == "all" else ""}> '
        f'<span class="{word}">{word} ({number})</span></label>'
        for word, number in choices
    )
    return f"<p>Show {labels}</p>"


def _cell(verdict: Verdict | None, title: str) -> str:
    if verdict is None:
        return "<td></td>"
    word = _word(verdict.verdict)
    reason = "" if verdict.promise == ALL else f"<br>{html.escape(verdict.reason)}"
    return f'<td data-promise="{html.escape(title)}"><span class="{word}">{word}</span>{reason}</td>'
