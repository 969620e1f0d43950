"""Write the report as one HTML file that needs no network.

The page has plotly's script within itself, so that it can be mailed, or it shares a file beside it with other pages. It can
be read at a width of 400 pixels, on a light and a dark ground, on paper, and without a pointer.

Texts from a log may be hostile. They are part of the page as escaped text, or as JSON that a script inserts as text. A
content security policy allows only the scripts of this page and the one that they load, and no other requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

from dispatch_core import CORE_VERSION
from dispatch_core.audit.catalogue import KIND_ORDER, KINDS
from dispatch_core.audit.sentences.lists import counted
from dispatch_core.audit.sentences.names import printable
from dispatch_core.report.advice import AdviceShown
from dispatch_core.report.aggregate import Anomalies, ReportData
from dispatch_core.report.markup import MAX_SENTENCE, asset, badge, digest, head, text
from dispatch_core.report.pictures import Picture, pictures
from dispatch_core.report.statistics import StatisticsShown
from dispatch_core.times import date_and_clock

_LOADS: Final = "'strict-dynamic'"
_SHORT_TITLES: Final = {
    "ring": "Owners of hashes",
    "shares": "Shares of hashes",
    "active": "Who was active",
    "flow": "Deliveries and backlog",
    "dispatch": "Dispatch rate",
    "blocked": "Held back",
    "balance": "Balance",
}
#: Buttons that move and zoom all pictures along the time, and what they show.
_TIME_TOOLS: Final = (
    '<div class="tools time" id="time-tools" role="group" aria-label="time that the pictures show" hidden>Time',
    *(
        f'<button type="button" data-time="{action}" title="{key}" aria-label="{words}">{sign}</button>'
        for action, sign, words, key in (
            ("in", "+", "zoom in", "key +"),
            ("out", "\u2212", "zoom out", "key -"),
            ("earlier", "\u25c0", "earlier", "key left"),
            ("later", "\u25b6", "later", "key right"),
            ("all", "All", "whole time", "key 0"),
        )
    ),
    '<span id="window" class="dim" role="status"></span></div>',
)
#: Characters that a script's data must not contain in HTML, even within quotes.
_UNSAFE: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def page(data: ReportData, *, library: str | None = None) -> str:
    """The report's HTML; the same data gives the same text.

    ``library``: address of plotly's script relative to the page (``library_name``), for pages that share it; None: the
    page has the script within itself.
    """
    drawn = pictures(data)
    within, script = None if library else library_script(), asset("page.js")
    # Only a script whose digest is named may load another one. A digest of the other one would not do: browsers check it
    # only for scripts of the page's own origin, and a page in a sandbox or on a disk has none.
    scripts = digest(script), digest(within) if within is not None else _LOADS
    overall = next((verdict for verdict in data.verdicts if verdict["promise"] == "all"), None)
    name = f"{text(data.title)} <small>{text(data.subscription)}</small>"
    title = f"{overall['verdict'] if overall else 'Report'} {data.title} {data.subscription}"
    parts = [
        *head(title, scripts),
        "<body>",
        f'<header class="top"><h1>{name}</h1><p class="dim">{text(data.interval)}</p></header>',
        *_navigation(data, drawn),
        "<main>",
        *_verdicts(data.verdicts),
        *_advice(data.advice),
        *_facts(data),
        '<div id="timed">',
        *(_TIME_TOOLS if any(_is_drawn(picture) for picture in drawn if picture.timed) else ()),
        *(line for picture in drawn if picture.timed for line in _picture(picture)),
        "</div>",
        *(line for picture in drawn if not picture.timed for line in _picture(picture)),
        *_statistics(data.statistics),
        *_findings(data.anomalies),
        "<footer>Times are UTC. Positions are ledger:entry, hashes sticky key hashes of the recorded release. "
        f"Made by dispatch-audit, rules {text(CORE_VERSION)}.</footer>",
        "<noscript><p>The pictures and the list of findings need JavaScript; the page makes no requests.</p></noscript>",
        "</main>",
        f'<script type="application/json" id="report-data">{_data(drawn, data, library)}</script>',
        *([] if within is None else [f"<script>{within}</script>"]),
        f"<script>{script}</script>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _navigation(data: ReportData, drawn: Iterable[Picture]) -> Iterable[str]:
    yield '<nav aria-label="parts of the page"><ul>'
    yield f'<li><a href="#anomalies">Findings ({data.anomalies.total:,})</a></li>'
    for picture in drawn:
        yield f'<li><a href="#{picture.name}">{_SHORT_TITLES[picture.name]}</a></li>'
    if data.statistics is not None:
        yield '<li><a href="#statistics">Statistics</a></li>'
    yield "</ul></nav>"


def _verdicts(verdicts: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    rows = list(verdicts)
    yield '<section class="overall" id="verdict">'
    for verdict in rows:
        if verdict["promise"] == "all":
            yield f"<p>{badge(verdict['verdict'])}{text(verdict['reason'], MAX_SENTENCE)}</p>"
    promises = [verdict for verdict in rows if verdict["promise"] != "all"]
    if promises:
        # Narrow pages show rows as blocks; the roles keep them a table.
        yield '<table class="stacks" role="table" aria-label="promises"><thead role="rowgroup"><tr role="row">'
        for column in ("promise", "verdict", "findings", "tolerated", "why"):
            number = ' class="number"' if column in {"findings", "tolerated"} else ""
            yield f'<th role="columnheader" scope="col"{number}>{column}</th>'
        yield '</tr></thead><tbody role="rowgroup">'
        for verdict in promises:
            yield f'<tr role="row"><td role="cell">{text(verdict["promise"])}</td>'
            yield f'<td role="cell">{badge(verdict["verdict"])}</td>'
            for column in ("findings", "tolerated"):
                yield f'<td role="cell" class="number" data-label="{column}">{verdict[column]:,}</td>'
            yield f'<td role="cell"><p>{text(verdict["reason"], MAX_SENTENCE)}</p>'
            yield from _root_causes(verdict["top_findings"])
            yield "</td></tr>"
        yield "</tbody></table>"
    if not rows:
        yield "<p>This interval was not judged.</p>"
    yield "</section>"


def _root_causes(sentences: Sequence[str]) -> Iterable[str]:
    """The worst root cause; the others open with a click."""
    shown = [f"<p>• {text(sentence, MAX_SENTENCE)}</p>" for sentence in sentences]
    yield from shown[:1]
    if len(shown) > 1:
        more = counted(len(shown) - 1, "further cause", "further causes")
        yield f"<details><summary>{more}</summary>"
        yield from shown[1:]
        yield "</details>"


def _advice(advice: AdviceShown | None) -> Iterable[str]:
    if advice is None:
        return
    yield '<section id="advice"><h2>What would have prevented the order violations</h2>'
    yield f"<p>{text(advice.sentence, MAX_SENTENCE)}</p>"
    command = f"<p><code>{text(advice.command, MAX_SENTENCE)}</code></p>"
    if advice.effects:
        effects = f'<p class="dim">{text(advice.effects, MAX_SENTENCE)}</p>'
        command = f"<details><summary>Side effects, and the command that proves it</summary>{effects}{command}</details>"
    yield f"{command}</section>"


def _facts(data: ReportData) -> Iterable[str]:
    yield '<section><dl class="facts">'
    yield from (f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in data.facts)
    yield "</dl>"
    yield from (f"<p>{text(note, MAX_SENTENCE)}</p>" for note in data.notes)
    yield "</section>"


def _is_drawn(picture: Picture) -> bool:
    return picture.figure is not None or picture.ranges is not None


def _picture(picture: Picture) -> Iterable[str]:
    title, name = text(picture.title), picture.name
    caption = f'<p class="caption" id="caption-{name}">{text(picture.caption, MAX_SENTENCE)}</p>'
    # The script makes it a control that keys move and zoom.
    plot = f'<div class="plot" id="plot-{name}" role="group" aria-label="{title}" aria-describedby="caption-{name}"></div>'
    save = f'<button type="button" class="save" data-picture="{name}" aria-label="Save as PNG: {title}">Save as PNG</button>'
    yield f'<section id="{name}">'
    if picture.ranges is not None:
        yield f"<details><summary><h2>{title}</h2></summary>"
        yield '<div class="tools hash" role="group" aria-label="hashes that the picture shows">Hashes'
        for action, sign, words in (
            ("in", "+", "zoom in"),
            ("out", "\u2212", "zoom out"),
            ("later", "\u25b2", "higher"),
            ("earlier", "\u25bc", "lower"),
            ("all", "All", "all"),
        ):
            yield f'<button type="button" data-hash="{action}" aria-label="{words} hashes">{sign}</button>'
        yield "</div>"
        yield f"{plot}{caption}{save}</details></section>"
    elif picture.figure is not None:
        yield f"<h2>{title}</h2>{plot}{caption}{save}</section>"
    else:
        yield f"<h2>{title}</h2>{caption}</section>"


def _statistics(statistics: StatisticsShown | None) -> Iterable[str]:
    if statistics is None:
        return
    yield '<section id="statistics"><h2>Statistics at the end</h2><dl class="lines">'
    yield from (
        f"<dt>{text(label)}</dt><dd>{text(value, MAX_SENTENCE)}</dd>" for label, value in statistics.facts
    )
    yield "</dl>"
    for table in statistics.tables:
        yield f"<h3>{text(table.title)}</h3>"
        if table.rows:
            # What scrolls can have the focus, so that keys scroll it.
            yield f'<div class="wide" tabindex="0" role="region" aria-label="{text(table.title)}">'
            yield f'<table id="statistics-{table.name}"><thead><tr>'
            yield from (f'<th scope="col">{text(column)}</th>' for column in table.head)
            yield "</tr></thead><tbody>"
            for row in table.rows:
                yield f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>"
            yield "</tbody></table></div>"
        if table.remark:
            yield f'<p class="caption">{text(table.remark, MAX_SENTENCE)}</p>'
    yield "</section>"


def _findings(anomalies: Anomalies) -> Iterable[str]:
    yield f'<section id="anomalies"><h2 tabindex="-1">Findings ({anomalies.total:,})</h2>'
    if not anomalies.rows:
        yield "<p>None.</p></section>"
        return
    if anomalies.total > len(anomalies.rows):
        yield (
            f"<p>The {len(anomalies.rows):,} most important findings are listed, with some of every kind; "
            "<code>dispatch-audit audit --json</code> and the table <code>anomalies</code> have all.</p>"
        )
    yield '<div class="tools"><input type="search" id="search" aria-label="search findings" '
    yield 'placeholder="key, position, consumer, word …">'
    yield '<select id="kind" aria-label="kind"><option value="">all kinds</option>'
    for kind, count in sorted(
        anomalies.counts.items(), key=lambda item: (KIND_ORDER.get(item[0], len(KIND_ORDER)), item[0])
    ):
        yield f'<option value="{text(kind)}">{text(kind)} ({count:,})</option>'
    yield "</select>"
    yield '<button type="button" id="any-time" hidden></button>'
    yield '<span id="shown" class="dim" role="status"></span></div>'
    yield '<ol id="findings" class="plain"></ol>'
    yield '<p><button type="button" id="more" hidden>Show more causes</button></p></section>'


def _data(drawn: Iterable[Picture], data: ReportData, library: str | None) -> str:
    """The data of the page's script, as JSON without characters that HTML would interpret."""
    figures = ", ".join(
        f'"{picture.name}": {picture.figure}' for picture in drawn if picture.figure is not None
    )
    ranges = next((picture.ranges for picture in drawn if picture.ranges is not None), "null")
    anomalies = data.anomalies
    rest = {
        "library": library,
        "view": [t_us / 1000 for t_us in data.view_us],
        "meanings": {kind: KINDS[kind].definition for kind in sorted(anomalies.counts) if kind in KINDS},
        "causes": [
            {name: _clean(value) for name, value in asdict(cause).items()} for cause in anomalies.causes
        ],
        "findings": [_finding(row) for row in anomalies.rows],
    }
    others = json.dumps(rest, ensure_ascii=False, sort_keys=True)
    return f'{{"pictures": {{{figures}}}, "ranges": {ranges}, {others[1:]}'.translate(_UNSAFE)


def _finding(row: Mapping[str, Any]) -> dict[str, Any]:
    t_us = row["t_us"]
    return {name: _clean(value) for name, value in row.items() if name != "t_us"} | {
        "at": "" if t_us is None else date_and_clock(t_us),
        "t_ms": None if t_us is None else t_us / 1000,
    }


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value, MAX_SENTENCE)
    return [_clean(item) for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=1)
def library_name() -> str:
    """Name plotly's script by its contents, so that pages of another version have another file."""
    return f"plotly-{hashlib.sha256(library_script().encode()).hexdigest()[:20]}.js"


@lru_cache(maxsize=1)
def library_script() -> str:
    """Plotly's script, with the line ends of an HTML page."""
    from plotly.offline import get_plotlyjs

    # A browser reads every line end as a line feed, and checks the digest of that.
    script: str = get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in script.lower():
        raise ValueError("plotly's script would end its own element")
    return script
