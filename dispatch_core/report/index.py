"""Write the index of several reports: one row per dispatcher, worst first, with its reason, its counts and a link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatch_core.audit.verdict import FAIL, PASS, UNKNOWN
from dispatch_core.report.markup import asset, badge, digest, head, text, verdict_class

#: Longest sentence of a row, in characters; the page has all of it.
_LONGEST_REASON: Final = 240
_WORST_FIRST: Final = (FAIL, UNKNOWN, PASS)


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A dispatcher in the index.

    Attributes:
        topic, subscription: its names.
        origin: where it comes from: a cluster or a recording.
        address: of its page, relative to the index; ``None`` = it has none.
        verdicts: of its promises and the overall one (``all``), as ``ReportData`` has them.
    """

    topic: str
    subscription: str
    origin: str
    address: str | None
    verdicts: Sequence[Mapping[str, Any]]

    @property
    def verdict(self) -> str:
        """The overall verdict; UNKNOWN where nobody judged."""
        return next((row["verdict"] for row in self.verdicts if row["promise"] == "all"), UNKNOWN)

    @property
    def promises(self) -> list[Mapping[str, Any]]:
        """The verdicts on single promises, worst first."""
        promises = [row for row in self.verdicts if row["promise"] != "all"]
        return sorted(promises, key=lambda row: (_grade(row["verdict"]), -row["findings"]))

    def reasons(self) -> list[str]:
        """Return why the verdict is not PASS: its reason, and the worst root cause of each promise that is not kept."""
        if self.verdict == PASS:
            return []
        overall = [row["reason"] for row in self.verdicts if row["promise"] == "all"]
        worst = [
            row["top_findings"][0]
            for row in self.promises
            if row["verdict"] == self.verdict and row["top_findings"]
        ]
        return [*overall, *worst]


def worst_first(rows: Iterable[IndexRow]) -> list[IndexRow]:
    """Order by verdict, then by the number of broken promises and of findings."""

    def rank(row: IndexRow) -> tuple[Any, ...]:
        broken = [promise for promise in row.promises if promise["verdict"] == row.verdict]
        findings = sum(promise["findings"] for promise in broken)
        return (
            _grade(row.verdict), -len(broken), -findings, row.topic, row.subscription, row.origin, row.address or "",
        )  # fmt: skip

    return sorted(rows, key=rank)


def _grade(verdict: str) -> int:
    return _WORST_FIRST.index(verdict_class(verdict))


def index(rows: Sequence[IndexRow], *, title: str, origin: str, remarks: Sequence[str] = ()) -> str:
    """Make the index of some reports; the same rows give the same text.

    The filter by verdict needs no script. The search does, and is hidden where scripts do not run.

    Args:
        rows: of all dispatchers, in any order.
        title: the headline.
        origin: what the rows' ``origin`` is called.
        remarks: sentences below the headline.
    """
    script = asset("index.js")
    rows = worst_first(rows)
    counts = Counter(verdict_class(row.verdict) for row in rows)
    filters = "".join(
        f'<label><input type="radio" name="verdict" id="only-{name}"{" checked" if name == "all" else ""}> '
        f"{name} ({count:,})</label>"
        for name, count in (("all", len(rows)), *((name, counts[name]) for name in _WORST_FIRST))
        if count
    )
    return "\n".join(
        [
            *head(title, [digest(script)]),
            '<body class="index">',
            f'<header class="top"><h1>{text(title)}</h1>',
            *(f'<p class="dim">{text(remark)}</p>' for remark in remarks),
            "</header><main><section>",
            '<div class="tools" id="search-tools" hidden><input type="search" id="search" '
            'aria-label="search dispatchers" placeholder="topic, subscription, word of the reason …">'
            '<span id="shown" class="dim" role="status"></span></div>',
            f'<fieldset class="filter"><legend>verdict</legend>{filters}</fieldset>',
            '<table class="stacks" role="table" aria-label="dispatchers, worst first">',
            '<thead role="rowgroup"><tr role="row">',
            *(
                f'<th role="columnheader" scope="col">{name}</th>'
                for name in (
                    "verdict",
                    f"topic, subscription and {text(origin)}",
                    "reason",
                    "promises: findings",
                )
            ),
            '</tr></thead><tbody role="rowgroup" id="rows">',
            *(_row(row) for row in rows),
            "</tbody></table>",
            f"</section></main><script>{script}</script></body></html>\n",
        ]
    )


def _row(row: IndexRow) -> str:
    topic = text(row.topic)
    linked = topic if row.address is None else f'<a href="{text(row.address)}">{topic}</a>'
    reasons = "".join(f"<p>{text(reason, _LONGEST_REASON)}</p>" for reason in row.reasons())
    subject = f'{linked}<div>{text(row.subscription)}</div><div class="dim">{text(row.origin)}</div>'
    cells = (
        ("verdicts", badge(row.verdict)),
        ("subject", subject),
        ("reason", reasons),
        ("counts", "".join(_count(promise) for promise in row.promises)),
    )
    return (
        f'<tr role="row" class="is-{verdict_class(row.verdict)}">'
        + "".join(f'<td role="cell" class="{name}">{cell}</td>' for name, cell in cells)
        + "</tr>"
    )


def _count(promise: Mapping[str, Any]) -> str:
    """Return the counts of a promise; a kept one without findings has none."""
    findings, tolerated = promise["findings"], promise["tolerated"]
    if promise["verdict"] == PASS and not findings and not tolerated:
        return ""
    also = f" (+{tolerated:,} tolerated)" if tolerated else ""
    return (
        f'<div class="count"><span class="word {verdict_class(promise["verdict"])}">{text(promise["verdict"])}</span> '
        f"{text(promise['promise'])}: {findings:,}{also}</div>"
    )
