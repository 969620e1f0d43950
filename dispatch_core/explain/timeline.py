"""Shorten the moments of a subject to a timeline of at most about ``MOST_LINES`` lines.

A run of moments that are only stored, read, sent or acknowledged becomes one line for each of these. Moments that another
line already states are left out. If that is still too long, the lines of least weight go first (``_WEIGHT``).
``Explanation.moments`` holds everything.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dispatch_core.audit.catalogue import INFO
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, positions_listed
from dispatch_core.explain.explanation import Explanation
from dispatch_core.explain.moments import (
    ACKED,
    ANOMALY,
    DIVERGENCE,
    FREED,
    GRANTED,
    HELD,
    JOINS,
    LEAVES,
    LOST,
    OWNS,
    READ,
    REDELIVERED,
    SENT,
    STORED,
    Moment,
)
from dispatch_core.explain.owners import JOINED, LEFT
from dispatch_core.explain.waits import BRIEF_US, ITS_OWN
from dispatch_core.times import clock

WIDTH: Final = 120
#: Lines that a timeline has at most.
MOST_LINES: Final = 70
_ROUND_MOMENT: Final = 12  # lines before and after --at
MOST_OF_A_KIND: Final = 3  # findings of one kind that are shown in full
_SHORT_RUN: Final = 3
#: A join or leave and what it moves lie no further apart than this.
_ONE_CHANGE_US: Final = 100_000
_CALM: Final = (STORED, READ, SENT, ACKED, GRANTED)
#: Lines of a larger weight stay longer in a timeline that has too many.
_WEIGHT: Final = {ANOMALY: 5, DIVERGENCE: 5, HELD: 4, OWNS: 3, LOST: 3, FREED: 3, LEAVES: 2, JOINS: 2}


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the timeline: a moment, or a run of calm ones (``until_us``)."""

    moment: Moment
    text: str
    until_us: int | None = None


def timeline(explanation: Explanation, at_us: int | None = None) -> list[str]:
    """The moments, folded: a heading, then at most about ``MOST_LINES`` lines, long ones wrapped."""
    folded = list(_folded(_shortened(explanation)))
    keep = _kept(folded, at_us)
    rows = [f"{'time (UTC)':<14}{'seq':>8}"]
    left_out = 0
    marked = at_us is None
    for number, line in enumerate(folded):
        if not marked and at_us is not None and line.moment.t_us > at_us:
            rows.append(f"{clock(at_us):<14}{'':>8}  ──── the moment asked for")
            marked = True
        if number not in keep:
            left_out += 1
            continue
        if left_out:
            rows.append(f"{'':<22}  … {counted(left_out, 'line', 'lines')} left out: see --at TIME or --json")
            left_out = 0
        rows += _row(line)
    if left_out:
        rows.append(f"{'':<22}  … {counted(left_out, 'line', 'lines')} left out: see --at TIME or --json")
    return rows if folded else [*rows, "the log has no event of it"]


def _row(line: _Line) -> list[str]:
    moment = line.moment
    seq = str(moment.seq) if moment.has_line else ""
    mark = {ANOMALY: "! ", DIVERGENCE: "! ", HELD: "~ "}.get(moment.what, "  ")
    text = line.text
    if line.until_us is not None and line.until_us - moment.t_us >= 1000:
        text += f" (to {clock(line.until_us)})"
    wrapped = textwrap.wrap(text, WIDTH - 24, break_long_words=False, break_on_hyphens=False) or [""]
    return [
        f"{clock(moment.t_us):<14}{seq:>8}{mark}{wrapped[0]}",
        *(f"{'':<24}{rest}" for rest in wrapped[1:]),
    ]


def _shortened(explanation: Explanation) -> list[Moment]:
    """Moments in their short form, without repetitions and with few findings of each kind."""
    said = {(m.by, m.reason): m.t_us for m in explanation.moments if m.what in (OWNS, LOST)}
    freed = {m.seq for m in explanation.moments if m.what == FREED}
    next_sent = _delivery_times(explanation.moments)
    shortened: list[Moment] = []
    for moment in explanation.moments:
        if moment.kind is not None:
            continue
        if moment.what == HELD:
            shortened.append(replace(moment, text=_briefly(explanation, moment)))
        elif moment.what in (JOINS, LEAVES):
            how = JOINED if moment.what == JOINS else LEFT
            if abs(said.get((moment.consumer, how), 0) - moment.t_us) > _ONE_CHANGE_US:
                shortened.append(moment)
        elif moment.what == ACKED and moment.seq in freed:
            continue  # the line that frees other entries names it
        elif moment.what != READ or not _sent_soon(moment, next_sent):
            shortened.append(moment)
    return sorted([*shortened, *_findings(explanation)], key=lambda moment: moment.order)


def _findings(explanation: Explanation) -> Iterator[Moment]:
    """Findings more severe than ``info``: one for each line and kind, at most ``MOST_OF_A_KIND`` of a kind."""
    lines: dict[tuple[str, int], list[Moment]] = {}
    for moment in explanation.moments:
        if moment.kind is not None and moment.severity != INFO:
            lines.setdefault((moment.kind, moment.seq), []).append(moment)
    met: Counter[str] = Counter()
    total = Counter(kind for kind, _ in lines)
    for (kind, _), found in lines.items():
        met[kind] += 1
        if met[kind] > MOST_OF_A_KIND:
            continue
        text = found[0].text
        if len(found) > 1:
            text += f" (and {len(found) - 1} more in this line)"
        if met[kind] == MOST_OF_A_KIND < total[kind]:
            text += f" … and in {total[kind] - MOST_OF_A_KIND} more lines"
        yield replace(found[0], text=text)


def _delivery_times(moments: list[Moment]) -> dict[str, list[int]]:
    """Times at which each position was sent, ascending."""
    times: dict[str, list[int]] = {}
    for moment in moments:
        if moment.what in (SENT, REDELIVERED):
            for position in moment.positions:
                times.setdefault(position, []).append(moment.t_us)
    return times


def _sent_soon(read: Moment, times_of: dict[str, list[int]]) -> bool:
    """Check that all entries of a read were sent within ``BRIEF_US``: the line of the delivery then suffices."""
    soon = (times_of.get(position, []) for position in read.positions)
    return all(any(0 <= t_us - read.t_us <= BRIEF_US for t_us in times) for times in soon)


def _briefly(explanation: Explanation, moment: Moment) -> str:
    """Name the entries that were held back and the rule; the headline explains the rule."""
    is_behind = bool(moment.held_by) and moment.reason not in ITS_OWN
    behind = f", behind {positions_listed(moment.held_by)}" if is_behind else ""
    holder = f" at {explanation.record.who(moment.holder)}" if is_behind and moment.holder is not None else ""
    lasted = duration(moment.for_us or 0)
    return f"{positions_listed(moment.positions)} held back for {lasted}: {moment.reason or 'by no rule'}{behind}{holder}"


def _folded(moments: list[Moment]) -> Iterator[_Line]:
    run: list[Moment] = []
    for moment in moments:
        if moment.what in _CALM:
            run.append(moment)
            continue
        yield from _run(run)
        run = []
        yield _Line(moment, moment.text)
    yield from _run(run)


def _run(run: list[Moment]) -> Iterator[_Line]:
    """Lines of a calm run: the moments themselves if they are few, else one line for each kind of moment and consumer."""
    if len(run) <= _SHORT_RUN:
        yield from (_Line(moment, moment.text) for moment in run)
        return
    groups: dict[tuple[str, int | None], list[Moment]] = {}
    for moment in run:
        groups.setdefault((moment.what, moment.consumer), []).append(moment)
    for group in groups.values():
        if len(group) == 1:
            yield _Line(group[0], group[0].text)
        else:
            yield _Line(group[0], _summary(group), group[-1].t_us)


def _summary(group: list[Moment]) -> str:
    first = group[0]
    positions = list(dict.fromkeys(p for moment in group for p in moment.positions))
    some = (
        positions_listed(positions)
        if len(positions) < 7
        else f"{len(positions)} entries, {positions[0]} to {positions[-1]}"
    )
    times = len(group)
    if first.what == STORED:
        return f"stored {some}"
    if first.what == READ:
        return f"read {some}, in {times} reads"
    if first.what == GRANTED:
        total = sum(moment.amount for moment in group)
        return f"{first.text.split(' asks ')[0]} asks for {counted(total, 'message', 'messages')}, in {times} requests"
    if first.what == ACKED:
        return f"{first.text.split(' acknowledges ')[0]} acknowledges {some}, in {times} requests"
    longest = max((m.for_us for m in group if m.for_us is not None), default=0)
    late = f" (waited {duration(longest)} at most)" if longest > BRIEF_US else ""
    return f"{first.text.split(': ')[0]}: {some}, in {times} deliveries{late}"


def _kept(lines: list[_Line], at_us: int | None) -> set[int]:
    """Choose the lines that are shown: all, those around ``at_us``, or those with the largest weights."""
    if at_us is not None:
        middle = sum(line.moment.t_us <= at_us for line in lines)
        return set(range(max(middle - _ROUND_MOMENT, 0), min(middle + _ROUND_MOMENT, len(lines))))
    if len(lines) <= MOST_LINES:
        return set(range(len(lines)))
    weights = np.array([_WEIGHT.get(line.moment.what, 0) for line in lines], np.int64)
    near = weights.astype(np.float64)
    for step in (1, 2):  # neighbours of an important line are its context
        near[step:] = np.maximum(near[step:], weights[:-step] - step)
        near[:-step] = np.maximum(near[:-step], weights[step:] - step)
    near[[0, 1, 2, -1, -2, -3]] = 9
    order = np.lexsort((np.arange(len(lines)), -near))
    return set(order[:MOST_LINES].tolist())
