"""Write the comparison of two releases for people: the counts, then the worst subscriptions with their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatch_core.audit.sentences.names import printable, shown
from dispatch_core.what_if.upgrade_risk import PREVENTS, SAME
from dispatch_core.what_if.upgrade_risk_groups import part_called, parts_called

#: Figures of both sides: their name, what people call them, and digits behind the point.
FIGURES: Final = (
    ("order_violations", "order violations", 0),
    ("stuck_keys", "stuck keys", 0),
    ("never_sent", "unsent", 0),
    ("wait_ms_p50", "wait p50 ms", 0),
    ("wait_ms_p99", "wait p99 ms", 0),
    ("max_share_ratio", "share", 2),
    ("moving_keys", "moving keys", 0),
)
#: Partitions and incarnations of a subscription that people are shown.
_MOST_PARTS: Final = 5


def for_people(rows: Sequence[Mapping[str, Any]], counts: str, *, most: int) -> str:
    """Write the counts and at most ``most`` subscriptions, without those that nothing changes for.

    ``rows``: of ``upgrade_risk_groups.folded``.
    """
    telling = [row for row in rows if row["outcome"] != SAME]
    lines = [printable(counts)]
    for row in telling[:most]:
        incarnation = f"  incarnation {row['incarnation']}" if row["incarnation"] else ""
        parts = f"  {parts_called(row)}" if row["parts"] else ""
        lines.append(f"{_said(row)}: {shown(row['topic'])}  {shown(row['subscription'])}{incarnation}{parts}")
        if figures := figures_of(row):
            lines.append(f"  {figures}")
        differing = [part for part in row["parts"] if part["outcome"] != SAME]
        lines += [f"  {part_said(part)}" for part in differing[:_MOST_PARTS]]
        if len(differing) > _MOST_PARTS:
            lines.append(f"  and {len(differing) - _MOST_PARTS:,} more parts")
        lines += [f"  not judged: {printable(reason)}" for reason in row["not_judged"]]
    left = len(telling) - most
    if left > 0:
        better = sum(row["outcome"] == PREVENTS for row in telling[most:])
        lines.append(f"and {left:,} more, {better:,} of them better, which --json and the page list")
    return "\n".join(lines) + "\n"


def _said(row: Mapping[str, Any]) -> str:
    """Write the outcome and how sure it is."""
    sure = "" if row["probability"] is None else f" ({row['probability'] * 100:.0f} of 100)"
    return f"{row['outcome']}{sure}"


def part_said(part: Mapping[str, Any]) -> str:
    """Write a partition or incarnation in one line: its name, outcome and figures."""
    figures = figures_of(part)
    return f"{part_called(part)}: {_said(part)}{'; ' if figures else ''}{figures}"


def figures_of(row: Mapping[str, Any]) -> str:
    """Write the figures of both sides in one line: ``order violations 63 → 0; unsent 0``."""
    parts = []
    for name, label, digits in FIGURES:
        if row[name] is not None and any(row[name]):
            parts.append(f"{label} {pair_of(row[name], digits)}")
    if row["moved"]:
        parts.append(f"{row['moved']:.0%} of the entries go first to another consumer")
    return "; ".join(parts)


def pair_of(pair: Sequence[Any], digits: int) -> str:
    """Write a figure of both sides; once if it is the same.

    >>> pair_of((63, 0), 0), pair_of((1.4, 1.4), 2), pair_of((None, 3), 0)
    ('63 → 0', '1.40', '- → 3')
    """
    before, after = ("-" if value is None else f"{value:,.{digits}f}" for value in pair)
    return before if before == after else f"{before} → {after}"
