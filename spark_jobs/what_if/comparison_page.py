"""Make the HTML page of a what-if comparison, without scripts. Pure: predictions in, text out.

Names come from logs. They are escaped and shown on one line, without characters that change the direction of writing.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dispatch_core.audit.sentences.names import printable
from dispatch_core.what_if.tell import LEGEND, SURE_WITHOUT_REASON, sure_cell

#: Dispatchers that the page shows, at most; ``comparison.json`` has all.
MOST_SHOWN: Final = 200
_MAX_SENTENCE: Final = 2000
_RANK: Final = {"FAIL": 0, "UNKNOWN": 1, "PASS": 2}

_COLUMNS: Final = (
    "rules", "verdict", "order (keys)", "again", "twice", "late", "wait ms 50 / 99 / 100 %", "of keys",
    "blocked s (needless)", "share", "msg/s", "unsent", "same", "sure",
)  # fmt: skip

_STYLE: Final = """
body { font: 15px/1.55 system-ui, sans-serif; margin: 24px; color: #1b1f24; background: #fff }
table { border-collapse: collapse; margin: 6px 0 4px } th, td { text-align: right; padding: 3px 12px 3px 0 }
th { font-weight: 600; border-bottom: 1px solid #bbb } td:first-child, th:first-child { text-align: left }
h2 { font-size: 17px; margin: 28px 0 2px; overflow-wrap: anywhere } .recorded td { color: #555; font-style: italic }
.FAIL { color: #b00020; font-weight: 700 } .UNKNOWN { color: #8a5a00; font-weight: 700 } .PASS { color: #1a6e2e }
.scroll { overflow-x: auto } .note { margin: 2px 0; color: #444; overflow-wrap: anywhere } dt { font-weight: 600 }
@media (prefers-color-scheme: dark) { body { background: #14171a; color: #e6e6e6 } .note, .recorded td { color: #aaa }
.FAIL { color: #ff8a80 } .UNKNOWN { color: #ffcc80 } .PASS { color: #8bd49c } th { border-color: #555 } }
"""


def comparison_page(asked: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Make the page: the request, the verdicts by rules, then each dispatcher with its rules, those that fail first.

    ``rows``: of ``spark_jobs.what_if.comparison.PREDICTIONS``, with ``prediction`` as text.
    """
    groups = _groups(rows)
    shown = groups[:MOST_SHOWN]
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>What if: {_text(asked['interval_start'])}</title><style>{_STYLE}</style></head><body>",
        "<h1>What if</h1>",
        *_asked(asked),
        *_outcome(groups),
        *(part for group in shown for part in _dispatcher(group)),
    ]
    if len(shown) < len(groups):
        parts.append(
            f'<p class="note">{len(groups) - len(shown)} more are in comparison.json; none of them is worse.</p>'
        )
    parts += [*_assumed(rows), *_legend(), "</body></html>\n"]
    return "\n".join(parts)


def _groups(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Group rows by the incarnation of a dispatcher (or by subscription, for all its topics), worst group first."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("cluster", "topic", "subscription", "incarnation"))
        found.setdefault(key, []).append(row)
    return sorted(found.values(), key=lambda some: min(_RANK.get(row["verdict"], 1) for row in some))


def _asked(asked: Mapping[str, Any]) -> Iterable[str]:
    settings = ", ".join(f"{name}={value}" for name, value in asked["settings"].items()) or "as recorded"
    facts = {
        "interval": asked["interval_start"],
        "topics": asked["topics"],
        "subscriptions": asked["subscriptions"],
        "rules": ", ".join(asked["rules"]),
        "broker version": asked["broker_version"] or "as recorded",
        "settings": settings,
        "simulations per rules": asked["seeds"],
    }
    yield "<dl>"
    yield from (f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
    yield "</dl>"


def _outcome(groups: Sequence[Sequence[Mapping[str, Any]]]) -> Iterable[str]:
    """Write a table with the number of dispatchers by rules and predicted verdict."""
    counts: dict[str, dict[str, int]] = {}
    for row in (row for group in groups for row in group if row["topic"] is not None):
        verdicts = counts.setdefault(row["rules"], dict.fromkeys(("PASS", "FAIL", "UNKNOWN"), 0))
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    yield "<h2>Order violations predicted (FAIL) or not (PASS), by rules</h2>"
    yield "<table><tr><th>rules</th><th>PASS</th><th>FAIL</th><th>UNKNOWN</th></tr>"
    for rules, verdicts in counts.items():
        cells = "".join(
            f"<td{f' class={name}' if verdicts[name] and name != 'PASS' else ''}>{verdicts[name]:,}</td>"
            for name in ("PASS", "FAIL", "UNKNOWN")
        )
        yield f"<tr><td>{_text(rules)}</td>{cells}</tr>"
    yield "</table>"


def _dispatcher(group: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    first = group[0]
    what = f"{_text(first['topic'])} / " if first["topic"] is not None else "all topics of "
    incarnation = f", incarnation {first['incarnation']}" if first["incarnation"] else ""
    yield f"<h2>{what}{_text(first['subscription'])}{incarnation}</h2>"
    yield f'<p class="note">cluster {_text(first["cluster"])}</p>'
    predictions = [(row, json.loads(row["prediction"]) if row["prediction"] else {}) for row in group]
    yield '<div class="scroll"><table><tr>' + "".join(f"<th>{name}</th>" for name in _COLUMNS) + "</tr>"
    recorded = next(
        (prediction["recorded"] for _row, prediction in predictions if prediction.get("recorded")), None
    )
    if recorded is not None:
        yield f'<tr class="recorded">{_cells(["recorded", "", *_measured(recorded), "", ""])}</tr>'
    for row, prediction in predictions:
        verdict = row["verdict"] if row["verdict"] in _RANK else "UNKNOWN"
        measured = (
            _measured(prediction["simulated"]) if prediction.get("simulated") else ["-"] * (len(_COLUMNS) - 4)
        )
        same = prediction.get("same_first_consumer")
        sure = sure_cell(prediction.get("confidence") or {})
        cells = _cells([*measured, "-" if same is None else f"{same:.1%}", sure])
        yield f'<tr><td>{_text(row["rules"])}</td><td class="{verdict}">{verdict}</td>{cells}</tr>'
    yield "</table></div>"
    for row, prediction in predictions:
        confidence = prediction.get("confidence") or {}
        doubtful = confidence.get("probability", 1.0) < SURE_WITHOUT_REASON
        said = prediction.get("sentence")
        # The sentence has the reason why a prediction is not measured, which may be a warning, too.
        warnings = [text for text in prediction.get("warnings") or () if text not in (said or "")]
        notes = [row["problem"], said, *warnings, confidence.get("reason") if doubtful else None]
        for note in filter(None, notes):
            yield f'<p class="note">{_text(row["rules"])}: {_text(note, _MAX_SENTENCE)}</p>'


def _measured(measured: Mapping[str, Any]) -> list[str]:
    ratio, speed = measured["balance"]["max_share_ratio"], measured["throughput_per_s"]
    blocked, needless = measured["blocked_message_s"], measured["needless_message_s"]
    return [
        f"{measured['out_of_order'] + measured['split_key']:,} ({measured['keys_out_of_order']:,})",
        f"{measured['redelivered']:,}",
        f"{measured['double_outstanding']:,}",
        f"{measured['duplicates']:,}",
        _spread(measured["wait_ms"]),
        _spread(measured["key_wait_ms_max"]),
        "-" if blocked is None else f"{blocked:.1f} ({needless:.1f})",
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if speed is None else f"{speed:,.0f}",
        f"{measured['never_sent']:,}",
    ]


def _spread(spread: Mapping[str, float | None]) -> str:
    values = (spread["p50"], spread["p99"], spread["max"])
    return " / ".join("-" if value is None else f"{value:,.0f}" for value in values)


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"<td>{_text(text)}</td>" for text in texts)


def _assumed(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    found = (
        text for row in rows if row["prediction"] for text in json.loads(row["prediction"])["assumptions"]
    )
    assumptions = list(dict.fromkeys(found))
    if assumptions:
        yield "<h2>Assumed</h2><ul>"
        yield from (f"<li>{_text(text, _MAX_SENTENCE)}</li>" for text in assumptions)
        yield "</ul>"


def _legend() -> Iterable[str]:
    yield "<h2>Columns</h2><ul>"
    yield from (f"<li>{_text(line, _MAX_SENTENCE)}</li>" for line in LEGEND.splitlines())
    yield "</ul>"


def _text(value: Any, limit: int = 200) -> str:
    return html.escape(printable(str(value), limit))
