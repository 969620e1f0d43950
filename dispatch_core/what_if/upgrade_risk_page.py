"""Write the comparison of two releases as one HTML page that needs no network. Pure: JSON values in, text out.

The counts come first, then the worst subscriptions; all others are in closed parts, one for each outcome. The search opens
what it finds, and is hidden where scripts do not run. What could not be judged is listed once; rows refer to it by number.

Names come from logs and may be hostile: they are escaped (``report.markup``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from dispatch_core.audit.sentences.lists import counted
from dispatch_core.report.markup import MAX_SENTENCE, digest, head, text
from dispatch_core.what_if.upgrade_risk import (
    INTRODUCES,
    NOT_BETTER,
    NOT_JUDGED,
    OUTCOMES,
    PREVENTS,
    SAME,
    SLOWER,
    STRANDS,
    WORSE,
    counts,
)
from dispatch_core.what_if.upgrade_risk_groups import parts_called
from dispatch_core.what_if.upgrade_risk_text import FIGURES, pair_of, part_said

#: Subscriptions that are shown at once.
WORST_SHOWN: Final = 25
#: Reasons that the page lists; rows with others say so, and the JSON has all.
REASONS_SHOWN: Final = 100
_COLOUR: Final = {
    INTRODUCES: "FAIL", STRANDS: "FAIL", SLOWER: "FAIL", NOT_JUDGED: "UNKNOWN", NOT_BETTER: "UNKNOWN", SAME: "PASS",
    PREVENTS: "PASS",
}  # fmt: skip
_MEANING: Final = {
    INTRODUCES: "A has no more order violations than are tolerated, B has",
    STRANDS: "every simulation of B leaves more entries unsent, or more keys stuck, than A ever does",
    NOT_JUDGED: "nothing could be predicted; the reason is in the row",
    SLOWER: "in every simulation of B 99 of 100 messages wait longer than under A, by more than a quarter and 20 ms",
    NOT_BETTER: "order violations, stuck keys or unsent entries under B, not surely more than under A",
    SAME: "no order violations, no stuck keys, nothing unsent",
    PREVENTS: "A has order violations that B has not",
}
_LEGEND: Final = (
    "Pairs are A → B, and one figure stands for two equal ones. n of 100: of so many such predictions come true, as "
    "measured on client scripts that were recorded under several rules.",
    "Stuck keys: the log proves that their entries wait although nothing legal holds them back. Unsent: nobody got them by "
    "the end of the log. Share: the load of the most loaded consumer, in multiples of its share of the hash space.",
    "Moving keys: keys that go to another consumer than before when consumers join and leave. Moved: entries that go first "
    "to another consumer than was recorded.",
    "Partitions and incarnations of a subscription are one row: the worst decides its outcome and place, counts are sums, "
    "and waits, share and moved the largest.",
)


def risk_page(
    asked: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any] | None = None
) -> str:
    """Make the page; the same values give the same text.

    Args:
        asked: of ``upgrade_risk.Upgrade.as_json``.
        rows: of ``upgrade_risk_groups.folded``, the worst first.
        facts: what else was asked for, by name.
    """
    before, after = asked["called"]
    script = files(__package__).joinpath("upgrade_risk.js").read_text("utf-8")
    reasons = _reasons(rows)
    worst = [row for row in rows if row["outcome"] not in (SAME, PREVENTS)][:WORST_SHOWN]
    rest = rows if not worst else [row for row in rows if all(row is not shown for shown in worst)]
    return "\n".join(
        [
            *head(f"Upgrade risk: {before} to {after}", [digest(script)]),
            '<body class="risks">',
            f'<header class="top"><h1>Upgrade risk <small>A: {text(before)} → B: {text(after)}</small></h1>',
            *(f'<p class="dim">{text(name)}: {text(value)}</p>' for name, value in (facts or {}).items()),
            "</header><main>",
            *_counts(rows),
            '<section><div class="tools" id="search-tools" hidden><input type="search" id="search" '
            'aria-label="search subscriptions" placeholder="topic, subscription, outcome …">'
            '<span id="shown" class="dim" role="status"></span></div>',
            *_worst(worst, rows, reasons),
            "</section>",
            *(part for outcome in OUTCOMES for part in _closed(outcome, rest, reasons)),
            *_not_judged(rows, reasons),
            "<footer>",
            *(f"<p>{text(line, MAX_SENTENCE)}</p>" for line in _LEGEND),
            "</footer>",
            f"</main><script>{script}</script></body></html>\n",
        ]
    )


def front_page(asked: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], page: str) -> str:
    """Make a page without scripts that has the counts and leads to the file ``page``."""
    before, after = asked["called"]
    return "\n".join(
        [
            *head(f"Upgrade risk: {before} to {after}", ["'none'"]),
            f'<body><header class="top"><h1>Upgrade risk <small>A: {text(before)} → B: {text(after)}</small></h1>',
            "</header><main>",
            *_counts(rows),
            f'<section><p><a href="{text(page)}">All subscriptions, the worst first</a></p></section>',
            "</main></body></html>\n",
        ]
    )


def _reasons(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Number what could not be judged, the most frequent first."""
    found = Counter(reason for row in rows for reason in row["not_judged"])
    return {reason: number for number, (reason, _) in enumerate(found.most_common(REASONS_SHOWN), 1)}


def _counts(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    found = counts(row["outcome"] for row in rows)
    parts = sum(max(len(row["parts"]), 1) for row in rows)
    of_parts = "" if parts == len(rows) else f" ({parts:,} with each partition and incarnation)"
    worse = sum(found[name] for name in WORSE)
    said = counted(len(rows), "subscription", "subscriptions")
    yield (
        f'<section class="overall"><p>{said}{of_parts}: worse {worse:,}, not judged {found[NOT_JUDGED]:,}, '
        f"better {found[PREVENTS]:,}</p>"
    )
    yield '<table class="stacks" role="table" aria-label="outcomes"><tbody role="rowgroup">'
    for name, count in found.items():
        word = f'<span class="word {_COLOUR[name]}">{text(name)}</span>'
        yield (
            f'<tr role="row"><td role="cell" class="number" data-label="subscriptions">{count:,}</td>'
            f'<td role="cell">{word}</td><td role="cell">{text(_MEANING[name])}</td></tr>'
        )
    yield "</tbody></table></section>"


def _worst(
    worst: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], reasons: Mapping[str, int]
) -> Iterator[str]:
    if not worst:
        yield "<h2>Nothing gets worse, and nothing remains broken</h2>"
        return
    left = len(rows) - len(worst)
    yield f"<h2>The greatest risks ({len(worst):,})</h2>"
    yield from _table(worst, reasons, "the greatest risks")
    if left:
        yield f'<p class="caption">{left:,} more are below, by outcome.</p>'


def _closed(outcome: str, rest: Sequence[Mapping[str, Any]], reasons: Mapping[str, int]) -> Iterator[str]:
    some = [row for row in rest if row["outcome"] == outcome]
    if not some:
        return
    yield f"<section><details><summary><h2>{text(outcome)}: {len(some):,}</h2></summary>"
    yield from _table(some, reasons, outcome)
    yield "</details></section>"


def _table(rows: Iterable[Mapping[str, Any]], reasons: Mapping[str, int], label: str) -> Iterator[str]:
    yield f'<table class="stacks" role="table" aria-label="{text(label)}"><thead role="rowgroup"><tr role="row">'
    yield '<th role="columnheader" scope="col">outcome of B</th><th role="columnheader" scope="col">topic, subscription</th>'
    for _, name, _ in FIGURES:
        yield f'<th role="columnheader" scope="col" class="number">{name}</th>'
    yield '<th role="columnheader" scope="col" class="number">moved</th><th role="columnheader" scope="col">not judged</th>'
    yield '</tr></thead><tbody role="rowgroup">'
    yield from (_row(row, reasons) for row in rows)
    yield "</tbody></table>"


def _row(row: Mapping[str, Any], reasons: Mapping[str, int]) -> str:
    outcome, probability = row["outcome"], row["probability"]
    sure = "" if probability is None else f'<div class="dim">{probability * 100:.0f} of 100</div>'
    incarnation = f", incarnation {row['incarnation']}" if row["incarnation"] else ""
    moved = "" if row["moved"] is None else f"{row['moved']:.0%}"
    figures = [
        (label, "" if row[name] is None else pair_of(row[name], digits)) for name, label, digits in FIGURES
    ]
    cells = [
        f'<td role="cell"><span class="word {_COLOUR[outcome]}">{text(outcome)}</span>{sure}</td>',
        f'<td role="cell">{text(row["topic"])}<div>{text(row["subscription"])}</div>'
        f'<div class="dim">{text(row["cluster"])}{incarnation}</div></td>',
        *(_cell(label, shown) for label, shown in (*figures, ("moved", moved))),
        f'<td role="cell" data-label="not judged">{_numbers(row["not_judged"], reasons)}</td>',
    ]
    return f'<tr role="row">{"".join(cells)}</tr>{_parts(row, reasons)}'


def _parts(row: Mapping[str, Any], reasons: Mapping[str, int]) -> str:
    """Write the partitions and incarnations of a subscription as a closed part beneath its row."""
    if not row["parts"]:
        return ""
    items = []
    for part in row["parts"]:
        numbers = _numbers(part["not_judged"], reasons)
        items.append(
            f"<li>{text(part_said(part), MAX_SENTENCE)}{'; not judged: ' if numbers else ''}{numbers}</li>"
        )
    columns = len(FIGURES) + 4
    return (
        f'<tr role="row" class="parts"><td role="cell" colspan="{columns}"><details><summary>{parts_called(row)}</summary>'
        f"<ul>{''.join(items)}</ul></details></td></tr>"
    )


def _cell(label: str, shown: str) -> str:
    return f'<td role="cell" class="number" data-label="{label}">{shown}</td>'


def _numbers(found: Iterable[str], reasons: Mapping[str, int]) -> str:
    numbers = sorted(reasons[reason] for reason in found if reason in reasons)
    others = any(reason not in reasons for reason in found)
    links = [f'<a href="#why-{number}">{number}</a>' for number in numbers]
    return ", ".join([*links, *(["others"] if others else [])])


def _not_judged(rows: Sequence[Mapping[str, Any]], reasons: Mapping[str, int]) -> Iterator[str]:
    if not reasons:
        return
    found = Counter(reason for row in rows for reason in row["not_judged"])
    yield "<section><h2>What was not judged, and why</h2><ol>"
    yield from (
        f'<li id="why-{number}">{text(reason, MAX_SENTENCE)} <span class="dim">({found[reason]:,})</span></li>'
        for reason, number in reasons.items()
    )
    yield "</ol>"
    if len(found) > len(reasons):
        yield f'<p class="caption">{len(found) - len(reasons):,} other reasons are in the JSON.</p>'
    yield "</section>"
