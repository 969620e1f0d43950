"""Reduce the statistics of a dispatcher at the end of an interval to what its page shows, of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.sentences.names import consumer_name
from dispatch_core.replay.moment_statistics import MomentStatistics
from dispatch_core.replay.statistics_tables import Table, facts_of, tables_of

#: Consumers with a line of their own; the others share one.
MAX_LINES: Final = 8
#: Rows of a table, and points of a line.
MAX_ROWS: Final = 40
MAX_POINTS: Final = 1_000
#: Facts that the page shows elsewhere.
_ELSEWHERE: Final = ("rules",)


@dataclass(frozen=True, slots=True)
class DispatchOverTime:
    """Data of the picture.

    Attributes:
        from_us, step_us: the steps of ``per_second``.
        consumers: names, most messages first, with all connections of a name as one; the last may stand for the others.
        per_second: messages per second of each consumer, a row each, per step.
        size_us, in_replay, draining: sizes from each time on; empty where the log does not show them.
        has_draining: the rule has draining hashes.
        until_us: the moment.
        look_ahead_limit: positions in the replay set at which normal reads stop; ``None`` = no limit.
        moved_us, moved_keys: joins and leaves, and the keys that went to another consumer after each.
    """

    from_us: int
    step_us: int
    consumers: tuple[str, ...]
    per_second: npt.NDArray[np.float64]
    size_us: npt.NDArray[np.int64]
    in_replay: npt.NDArray[np.int64]
    draining: npt.NDArray[np.int64]
    has_draining: bool
    until_us: int
    look_ahead_limit: int | None
    moved_us: tuple[int, ...]
    moved_keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StatisticsShown:
    """The part of a page about statistics: facts, tables and the picture's data."""

    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    over_time: DispatchOverTime


def statistics_shown(statistics: MomentStatistics) -> StatisticsShown:
    """Take what the page shows of the statistics of a dispatcher."""
    return StatisticsShown(
        tuple((label, text) for label, text in facts_of(statistics) if label not in _ELSEWHERE),
        tuple(_bounded(statistics)),
        _over_time(statistics),
    )


def _bounded(statistics: MomentStatistics) -> Iterator[Table]:
    for table in tables_of(statistics):
        if len(table.rows) <= MAX_ROWS:
            yield table
            continue
        remark = f"{table.remark} The first {MAX_ROWS} of {len(table.rows):,}; `dispatch-audit stats --json` has all."
        yield replace(table, rows=table.rows[:MAX_ROWS], remark=remark.strip())


def _over_time(statistics: MomentStatistics) -> DispatchOverTime:
    rates = statistics.rates
    # A consumer that came back is a new connection of its name: one line.
    named = [consumer_name(number, statistics.names.get(number)) for number in rates.consumers]
    index = {name: at for at, name in enumerate(dict.fromkeys(named))}
    by_name = np.zeros((len(index), rates.messages.shape[1]), np.int64)
    np.add.at(by_name, [index[name] for name in named], rates.messages)
    order = np.argsort(-by_name.sum(axis=1), kind="stable")
    consumers = [list(index)[at] for at in order.tolist()]
    counts = by_name[order]
    if len(consumers) > MAX_LINES:
        others = len(consumers) - MAX_LINES + 1
        consumers = [*consumers[: MAX_LINES - 1], f"{others:,} others"]
        counts = np.vstack([counts[: MAX_LINES - 1], counts[MAX_LINES - 1 :].sum(axis=0, keepdims=True)])
    tracker = statistics.tracker
    sizes = np.array(
        [(size.t_us, size.in_replay, size.draining) for size in tracker.sizes], np.int64
    ).reshape(-1, 3)
    if len(sizes) > MAX_POINTS:
        sizes = _thinned(sizes)
    moved = [change for change in statistics.changes.by_change if change.keys] if statistics.changes else []
    moved = sorted(
        sorted(moved, key=lambda change: -change.keys)[:MAX_POINTS], key=lambda change: change.t_us
    )
    return DispatchOverTime(
        from_us=rates.from_us,
        step_us=rates.step_us,
        consumers=tuple(consumers),
        per_second=counts / (rates.step_us / 1e6),
        size_us=np.maximum(sizes[:, 0], statistics.from_us),
        in_replay=sizes[:, 1],
        draining=sizes[:, 2],
        has_draining=tracker.has_draining_hashes,
        until_us=statistics.t_us,
        look_ahead_limit=tracker.look_ahead_limit,
        moved_us=tuple(change.t_us for change in moved),
        moved_keys=tuple(change.keys for change in moved),
    )


def _thinned(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Keep the largest replay set of each of ``MAX_POINTS - 1`` runs of sizes, with the most draining hashes of the run.

    So no peak is lost. The last size stays.
    """
    starts = np.linspace(0, len(sizes) - 1, MAX_POINTS - 1, endpoint=False).astype(np.int64)
    kept = np.column_stack(
        [
            sizes[starts, 0],
            np.maximum.reduceat(sizes[:-1, 1], starts),
            np.maximum.reduceat(sizes[:-1, 2], starts),
        ]
    )
    return np.vstack([kept, sizes[-1:]])
