"""Text output of ``dispatch-audit stats`` for one dispatcher: what matters on the first screen, then the lists.

A module of its own so that ``stats --help`` does not load the core.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.names import ConsumerNames, shown
from dispatch_core.replay.moment_statistics import MomentStatistics
from dispatch_core.replay.statistics_tables import Table, facts_of, tables_of
from dispatch_core.times import clock

#: Rows of each table; ``--json`` has all.
MAX_ROWS: Final = 20
_WIDTH: Final = 120
_BARS: Final = " ▁▂▃▄▅▆▇█"


def for_people(statistics: MomentStatistics) -> Iterator[str]:
    """Yield the lines of one dispatcher."""
    log = statistics.log
    yield f"{shown(log.recording)}  {shown(log.topic)}  {shown(log.subscription)}  incarnation {log.incarnation}"
    for label, text in facts_of(statistics):
        first, *more = textwrap.wrap(text, _WIDTH - 13) or [""]
        yield f"  {label:<11}{first}"
        yield from (f"{'':13}{line}" for line in more)
    for table in [*tables_of(statistics), *_rates(statistics)]:
        yield ""
        yield f"  {table.title}"
        yield from _laid_out(table)


def _rates(statistics: MomentStatistics) -> Iterator[Table]:
    """Draw the messages of each consumer over time with characters."""
    rates, names = statistics.rates, ConsumerNames(statistics.names)
    if not rates.consumers:
        return
    highest = max(int(rates.messages.max()), 1)
    yield Table(
        "rates",
        f"Messages delivered over time from {clock(rates.from_us)}, a column per {duration(rates.step_us)}",
        ("consumer", "most per second", ""),
        [
            (
                names.of(number),
                f"{counts.max() / (rates.step_us / 1e6):,.1f}",
                "".join(_BARS[-(-count * (len(_BARS) - 1) // highest)] for count in counts.tolist()),
            )
            for number, counts in zip(rates.consumers, rates.messages, strict=True)
        ],
    )


def _laid_out(table: Table) -> Iterator[str]:
    """Lay out the first ``MAX_ROWS`` rows of a table; numbers stand to the right."""
    if table.remark:
        yield f"    {table.remark}"
    if not table.rows:
        return
    kept = [table.head, *table.rows[:MAX_ROWS]]
    widths = [max(len(row[at]) for row in kept) for at in range(len(table.head))]
    right = [all(_is_number(row[at]) for row in kept[1:]) for at in range(len(table.head))]
    for row in kept:
        yield f"    {_line(row, widths, right)}".rstrip()
    if len(table.rows) > MAX_ROWS:
        yield f"    … and {len(table.rows) - MAX_ROWS:,} more: --json lists them"


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    return "  ".join(
        cell.rjust(width) if at_right else cell.ljust(width)
        for cell, width, at_right in zip(row, widths, right, strict=True)
    )


def _is_number(text: str) -> bool:
    digits = text.removeprefix("≥ ").replace(",", "").replace(".", "").lstrip("-")
    return text in ("", "?") or digits.isdigit()
