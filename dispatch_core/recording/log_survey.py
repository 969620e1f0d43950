"""Survey one dispatcher's log in the files of the tables: its incarnations, its rare lines, and whether it is a trace.

Of most rows the kind alone is read. Dispatchers that share a row group share its survey.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.batches import no_rows
from dispatch_core.arrays.columns import has, marked
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.schema import EVENTS, KINDS
from dispatch_core.recording.shared_groups import Runs, run_starts, whole_group
from dispatch_core.recording.table_rows import (
    INCARNATION,
    columns_of_events,
    in_columns,
    opened,
    rows_of_files,
    without_headers,
)

#: Surveys of row groups kept: of the one that a dispatcher begins in, and of the one that it ends in.
_KEPT_SURVEYS: Final = 2
_IDENTITY: Final = ("cluster", "topic", "subscription", *INCARNATION, "seq", "t_us", "kind")
_TRACE_KINDS: Final = frozenset(kind.name for kind in KINDS.values() if kind.level == "T")


@dataclass(frozen=True, slots=True)
class Incarnation:
    """Lines of one incarnation in the files of a log: their number without headers, and where and when they begin and end.

    Times are in microseconds since the epoch; ``None`` where no line has one.
    """

    broker: str | None
    number: int
    lines: int
    first_seq: int
    first_t_us: int | None
    last_t_us: int | None

    @classmethod
    def of(cls, broker: str | None, number: int, events: pa.Table, before: Incarnation | None) -> Incarnation:
        """Take further lines, behind those of ``before``."""
        ends = pc.min_max(events["t_us"]).as_py()
        lines = cls(broker, number, events.num_rows, events["seq"][0].as_py(), ends["min"], ends["max"])
        return lines if before is None else before.joined(lines)

    def joined(self, later: Incarnation) -> Incarnation:
        """Join the lines of the same incarnation behind these."""
        firsts, lasts = (
            [t_us for t_us in pair if t_us is not None]
            for pair in ((self.first_t_us, later.first_t_us), (self.last_t_us, later.last_t_us))
        )
        return replace(
            self,
            lines=self.lines + later.lines,
            first_t_us=min(firsts, default=None),
            last_t_us=max(lasts, default=None),
        )


@dataclass(frozen=True, slots=True)
class Survey:
    """Facts about a log that the kinds of its lines show.

    ``rare``: all columns (``EVENTS``) of the headers and of the lines of the requested kinds. ``incarnations``: broker and
    number of each, in the order of the files. ``traced``: true if the log has lines that only a dispatcher trace holds.
    """

    rare: pa.Table
    incarnations: tuple[tuple[str | None, int | None], ...]
    traced: bool


def survey(event_files: Sequence[str], dispatcher: Mapping[str, str], kinds: Sequence[str]) -> Survey:
    """Find the lines of ``kinds`` in a log. Of all other rows only the kind is read."""
    wanted = frozenset({*kinds, "header"})
    columns = _columns_of(wanted)
    rare: list[pa.Table] = []
    seen: dict[tuple[str | None, int | None], None] = {}
    traced = False
    for path in event_files:
        with opened(path) as file:
            for group in file.groups(dispatcher):
                if not file.holds_only(group, dispatcher):
                    of_group = _survey_of_group(file.path, group, tuple(dispatcher), file.texts, wanted)
                    rare += of_group.rare_of(dispatcher)
                    traced = traced or of_group.traced(dispatcher)
                    seen.update(dict.fromkeys(of_group.incarnations_of(dispatcher)))
                    continue
                here: set[str] = set()
                for table in file.rows(group, ("kind", *INCARNATION)):
                    here |= {kind for chunk in table["kind"].chunks for kind in chunk.unique().to_pylist()}
                    first_rows = pa.array(np.flatnonzero(_incarnation_changes(table)))
                    seen.update(dict.fromkeys(_incarnations(table.take(first_rows))))
                traced = traced or not here.isdisjoint(_TRACE_KINDS)
                if not here.isdisjoint(wanted):
                    rare += _lines(file.rows(group, columns), wanted)
    # As one chunk: each of many small chunks would cost every later step as much as a large one.
    one_chunk = len(rare) == 1 and rare[0]["kind"].num_chunks == 1
    whole = rare[0] if one_chunk else pa.concat_tables([no_rows(EVENTS), *rare]).combine_chunks()
    return Survey(whole, tuple(seen), traced)


def incarnations(event_files: Sequence[str], dispatcher: Mapping[str, str]) -> list[Incarnation]:
    """Find the incarnations of a log, in the order in which they began.

    Raises ``NotStreamableError`` where the files hold their lines in another order.
    """
    found: dict[tuple[str | None, int], Incarnation] = {}
    last: tuple[str | None, int] | None = None
    for log, run in lines_by_incarnation(event_files, dispatcher, ("kind", "seq", "t_us")):
        before = found.get(log)
        if before is not None and log != last:
            raise NotStreamableError(f"lines of incarnation {log[1]} stand behind lines of the one after it")
        found[log] = Incarnation.of(*log, run, before)
        last = log
    starts = [
        (log.first_t_us is None, log.first_t_us or 0, log.broker or "", log.number) for log in found.values()
    ]
    if starts != sorted(starts):
        raise NotStreamableError("the incarnations do not stand in the order in which they began")
    return list(found.values())


def lines_by_incarnation(
    event_files: Sequence[str], dispatcher: Mapping[str, str], columns: Sequence[str]
) -> Iterator[tuple[tuple[str | None, int], pa.Table]]:
    """Yield the lines of a log without headers, in the order of the files, each run with its broker and incarnation.

    ``columns``: those of ``EVENTS`` to read; ``kind`` is one of them.
    """
    wanted = columns_of_events((*INCARNATION, *columns))
    for table in rows_of_files(event_files, wanted, dispatcher):
        for run in runs_of_incarnations(without_headers(table)):
            yield (run["broker"][0].as_py(), run["incarnation"][0].as_py() or 0), run


def runs_of_incarnations(events: pa.Table) -> Iterator[pa.Table]:
    """Cut lines where the incarnation changes."""
    changed = np.zeros(max(events.num_rows - 1, 0), dtype=np.bool_)
    for name in INCARNATION:
        codes = np.asarray(
            events[name].cast(EVENTS.field(name).type).combine_chunks().dictionary_encode("encode").indices
        )
        changed |= codes[1:] != codes[:-1]
    edges = [0, *(np.flatnonzero(changed) + 1).tolist(), events.num_rows]
    for start, end in pairwise(edges):
        if end > start:
            yield events.slice(start, end - start)


class _GroupSurvey:
    """A survey of a row group that dispatchers share, made for all of them at once."""

    def __init__(self, table: pa.Table, runs: Mapping[tuple[str, ...], Runs], kinds: Set[str]) -> None:
        """Survey ``table``, of which ``runs`` tells the rows of each dispatcher; ``kinds``: of the rare lines."""
        self._runs = runs
        rare = marked(table["kind"], *kinds)
        there = [name for name in _columns_of(frozenset(kinds)) if has(table, name)]
        self._rare = in_columns(table.select(there).filter(pa.array(rare)).combine_chunks(), EVENTS)
        #: Rare lines, lines of a trace, and changes of the incarnation before each row.
        self._rare_before = _counted_before(rare)
        self._traced_before = _counted_before(marked(table["kind"], *_TRACE_KINDS))
        changes = _incarnation_changes(table)
        self._changes_before = _counted_before(changes)
        #: The incarnation from each change on.
        self._incarnations = _incarnations(table.take(pa.array(np.flatnonzero(changes))))

    def rare_of(self, dispatcher: Mapping[str, str]) -> list[pa.Table]:
        """The rare lines of a dispatcher: one table for each run of its rows that has some."""
        at = self._rare_before
        runs = [(at[start], at[stop]) for start, stop in self._runs_of(dispatcher)]
        return [self._rare.slice(start, stop - start) for start, stop in runs if stop > start]

    def traced(self, dispatcher: Mapping[str, str]) -> bool:
        """True if the dispatcher has lines that only a trace holds."""
        at = self._traced_before
        return any(at[stop] > at[start] for start, stop in self._runs_of(dispatcher))

    def incarnations_of(self, dispatcher: Mapping[str, str]) -> set[tuple[str | None, int | None]]:
        """The incarnations of the dispatcher."""
        at = self._changes_before
        runs = self._runs_of(dispatcher)
        return {key for start, stop in runs for key in self._incarnations[at[start + 1] - 1 : at[stop]]}

    def _runs_of(self, dispatcher: Mapping[str, str]) -> Runs:
        return self._runs.get(tuple(dispatcher.values()), ())


def _counted_before(rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Count the marked rows before each row, and before the end."""
    return np.append(0, np.cumsum(rows))


def _incarnation_changes(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Mark the first row, and the rows of another incarnation than the row before."""
    keys = [table[name].combine_chunks() for name in INCARNATION if has(table, name)]
    changed = np.zeros(table.num_rows, dtype=np.bool_)
    changed[run_starts(keys) if keys else slice(1)] = True
    return changed


@lru_cache(maxsize=_KEPT_SURVEYS)
def _survey_of_group(
    path: str, group: int, whose: tuple[str, ...], texts: tuple[str, ...], kinds: frozenset[str]
) -> _GroupSurvey:
    return _GroupSurvey(*whole_group(path, group, whose, texts), kinds)


@lru_cache(maxsize=8)
def _columns_of(kinds: frozenset[str]) -> list[str]:
    """The columns of lines of these kinds, but for the lists of positions: most of a log, and in no rare line."""
    known = [KINDS[kind] for kind in sorted(kinds)]
    named = dict.fromkeys(name for kind in known for name in (*kind.required, *kind.optional))
    return [*_IDENTITY, *named]


def _lines(tables: Iterable[pa.Table], kinds: Set[str]) -> Iterator[pa.Table]:
    for table in tables:
        found = np.flatnonzero(marked(table["kind"], *kinds))
        if len(found):
            yield in_columns(table.take(pa.array(found)), EVENTS)


def _incarnations(table: pa.Table) -> list[tuple[str | None, int | None]]:
    """Return the incarnation of each row."""
    columns = (
        table[name].to_pylist() if has(table, name) else [None] * table.num_rows for name in INCARNATION
    )
    return list(zip(*columns, strict=True))
