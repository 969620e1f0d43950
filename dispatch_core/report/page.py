"""Write the report as one HTML file that needs no network.

The page has plotly's script within itself, so that it can be mailed, or it shares a file beside it with other pages.

Texts from a log may be hostile. They are part of the page as escaped text, or as JSON that a script inserts as text. A
content security policy allows only the scripts of this page and the one that they load, and no other requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from dispatch_core import CORE_VERSION
from dispatch_core.audit.catalogue import KIND_ORDER, KINDS
from dispatch_core.audit.sentences.names import printable
from dispatch_core.report.aggregate import Anomalies, ReportData
from dispatch_core.report.markup import MAX_SENTENCE, asset, badge, digest, head, text
from dispatch_core.report.pictures import Picture, pictures
from dispatch_core.report.statistics import StatisticsShown
from dispatch_core.times import date_and_clock

_LOADS: Final = "'strict-dynamic'"
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
        f'<header class="top"><h1>{name}</h1><p class="dim">{text(data.interval)}</p></header><main>',
        *_verdicts(data.verdicts),
        *_facts(data),
        *(line for picture in drawn for line in _picture(picture)),
        *_statistics(data.statistics),
        *_findings(data.anomalies),
        "<footer>Times are UTC. Positions are ledger:entry, hashes sticky key hashes of the recorded release. "
        f"Made by dispatch-audit, rules {text(CORE_VERSION)}.</footer>",
        "<noscript><p>The pictures and the table of findings need JavaScript; the page makes no requests.</p></noscript>",
        "</main>",
        f'<script type="application/json" id="report-data">{_data(drawn, data.anomalies, library)}</script>',
        *([] if within is None else [f"<script>{within}</script>"]),
        f"<script>{script}</script>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _verdicts(verdicts: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    rows = list(verdicts)
    yield '<section class="overall" id="verdict">'
    for verdict in rows:
        if verdict["promise"] == "all":
            yield f"<p>{badge(verdict['verdict'])}{text(verdict['reason'], MAX_SENTENCE)}</p>"
    promises = [verdict for verdict in rows if verdict["promise"] != "all"]
    if promises:
        yield '<table><thead><tr><th>promise</th><th>verdict</th><th class="number">findings</th>'
        yield '<th class="number">tolerated</th><th>why</th></tr></thead><tbody>'
        for verdict in promises:
            yield f"<tr><td>{text(verdict['promise'])}</td><td>{badge(verdict['verdict'])}</td>"
            yield f'<td class="number">{verdict["findings"]:,}</td><td class="number">{verdict["tolerated"]:,}</td>'
            yield f"<td>{text(verdict['reason'], MAX_SENTENCE)}"
            yield from (f"<p>• {text(finding, MAX_SENTENCE)}</p>" for finding in verdict["top_findings"])
            yield "</td></tr>"
        yield "</tbody></table>"
    if not rows:
        yield "<p>This interval was not judged.</p>"
    yield "</section>"


def _facts(data: ReportData) -> Iterable[str]:
    yield '<section><dl class="facts">'
    yield from (f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in data.facts)
    yield "</dl>"
    yield from (f"<p>{text(note, MAX_SENTENCE)}</p>" for note in data.notes)
    yield "</section>"


def _picture(picture: Picture) -> Iterable[str]:
    yield f'<section id="{picture.name}"><h2>{text(picture.title)}</h2>'
    if picture.figure is not None:
        yield f'<div class="plot" id="plot-{picture.name}"></div>'
    yield f'<p class="caption">{text(picture.caption, MAX_SENTENCE)}</p></section>'


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
            yield f'<div class="wide"><table id="statistics-{table.name}"><thead><tr>'
            yield from (f"<th>{text(column)}</th>" for column in table.head)
            yield "</tr></thead><tbody>"
            for row in table.rows:
                yield f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>"
            yield "</tbody></table></div>"
        if table.remark:
            yield f'<p class="caption">{text(table.remark, MAX_SENTENCE)}</p>'
    yield "</section>"


def _findings(anomalies: Anomalies) -> Iterable[str]:
    yield f'<section id="anomalies"><h2>Findings ({anomalies.total:,})</h2>'
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
    yield '</select><span id="shown" class="dim"></span></div>'
    yield "<table><thead><tr><th>severity</th><th>kind</th><th>key</th><th>when</th><th>what happened</th></tr></thead>"
    yield '<tbody id="findings"></tbody></table>'
    yield '<p><button type="button" id="more">Show more</button></p></section>'


def _data(drawn: Iterable[Picture], anomalies: Anomalies, library: str | None) -> str:
    """The data of the page's script, as JSON without characters that HTML would interpret."""
    figures = ", ".join(
        f'"{picture.name}": {picture.figure}' for picture in drawn if picture.figure is not None
    )
    findings = json.dumps([_finding(row) for row in anomalies.rows], ensure_ascii=False, sort_keys=True)
    meanings = json.dumps(
        {kind: KINDS[kind].definition for kind in sorted(anomalies.counts) if kind in KINDS}
    )
    address = json.dumps(library)
    content = (
        f'{{"library": {address}, "pictures": {{{figures}}}, "meanings": {meanings}, "findings": {findings}}}'
    )
    return content.translate(_UNSAFE)


def _finding(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _clean(value) for name, value in row.items() if name != "t_us"} | {
        "at": "" if row["t_us"] is None else date_and_clock(row["t_us"])
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
