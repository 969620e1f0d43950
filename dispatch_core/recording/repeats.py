"""Find lines that a log has twice, and keep the first of each.

A segment may have been copied under another name, or two recorders may have written the same entries. Lines that are equal
but for the place where they stand count once. Two lines about one stored entry that differ in nothing but ``size_bytes`` are
the same entry, too (brokers measure an entry with and without its broker metadata). All others that share a place are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Content = Literal["events", "messages"]
_PLACES: Final[dict[Content, tuple[str, ...]]] = {"events": ("seq",), "messages": ("ledger_id", "entry_id")}
_SOURCE: Final = ("source_file", "source_line")


@dataclass(frozen=True, slots=True)
class Repeat:
    """Lines of one file that repeat lines of another one, or of itself.

    Attributes:
        content: events or messages.
        file: the file with the second lines.
        lines: number of these lines.
        first_line: number of the first line of ``file`` that repeats another one, from 1.
        last_line: number of the last.
        of_file: the file with the first lines.
        of_lines: numbers of the first and the last line of ``of_file`` that are repeated.
        whole: every line of ``file`` about this topic is a repetition.
        resized: of these lines, the number of those with another ``size_bytes``.
        places: first and last ``seq``, or positions.
        t_us: time of the first line, microseconds since the epoch; for messages the time of its publication.
    """

    content: Content
    file: str
    lines: int
    first_line: int
    last_line: int
    of_file: str
    of_lines: tuple[int, int]
    whole: bool
    resized: int
    places: tuple[tuple[int, ...], tuple[int, ...]]
    t_us: int | None


def without_repeats(table: pa.Table, content: Content) -> tuple[pa.Table, tuple[Repeat, ...]]:
    """Drop rows that repeat the row before them; return the others, and what was dropped, by file.

    ``table`` is sorted by ``seq`` or by position; of rows that share one, the first read stands first.
    """
    place = _PLACES[content]
    same = np.ones(max(table.num_rows - 1, 0), dtype=np.bool_)
    for name in place:
        values = table[name].to_numpy()
        same &= values[1:] == values[:-1]
    if not same.any():
        return table, ()
    again = np.flatnonzero(same) + 1
    may_differ = ("size_bytes",) if content == "messages" else ()
    compared = table.drop_columns([*_SOURCE, *may_differ])
    equal = equal_rows(compared.take(pa.array(again - 1)), compared.take(pa.array(again)))
    again = again[equal]
    if not len(again):
        return table, ()
    keep = np.ones(table.num_rows, dtype=np.bool_)
    keep[again] = False
    return table.filter(pa.array(keep)), tuple(_repeats(table, content, keep, again))


def equal_rows(first: pa.Table, second: pa.Table) -> npt.NDArray[np.bool_]:
    """Compare two tables row by row; halves of unequal parts are compared in turn, as few rows differ."""
    equal = np.ones(first.num_rows, dtype=np.bool_)
    waiting = [(0, first.num_rows)]
    while waiting:
        start, count = waiting.pop()
        if not count or first.slice(start, count).equals(second.slice(start, count)):
            continue
        if count == 1:
            equal[start] = False
            continue
        half = count // 2
        waiting += [(start, half), (start + half, count - half)]
    return equal


def _repeats(
    table: pa.Table, content: Content, keep: npt.NDArray[np.bool_], again: npt.NDArray[np.int64]
) -> list[Repeat]:
    place = _PLACES[content]
    time, unit_us = ("t_us", 1) if content == "events" else ("publish_time_ms", 1000)
    names = [*_SOURCE, *place, time, *(["size_bytes"] if content == "messages" else [])]
    # The first line of each place: the last kept row at or before a repetition.
    kept_rows = np.flatnonzero(keep)
    firsts = kept_rows[np.searchsorted(kept_rows, again) - 1]
    seconds = table.select(names).take(pa.array(again)).to_pylist()
    origins = table.select(names).take(pa.array(firsts)).to_pylist()
    pairs: dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    repeated_of: dict[str, int] = {}
    for second, origin in zip(seconds, origins, strict=True):
        files = second["source_file"] or "", origin["source_file"] or ""
        pairs.setdefault(files, []).append((second, origin))
        repeated_of[files[0]] = repeated_of.get(files[0], 0) + 1
    rows_of = {row["values"] or "": row["counts"] for row in table["source_file"].value_counts().to_pylist()}
    found = []
    for (file, of_file), lines in pairs.items():
        numbers = _extent([second["source_line"] for second, _ in lines])
        origin_numbers = _extent([origin["source_line"] for _, origin in lines])
        times = [second[time] for second, _ in lines if second[time] is not None]
        places = [tuple(second[name] for name in place) for second, _ in lines]
        found.append(
            Repeat(
                content,
                file,
                len(lines),
                *numbers,
                of_file,
                origin_numbers,
                whole=repeated_of[file] == rows_of[file],
                resized=sum(second.get("size_bytes") != origin.get("size_bytes") for second, origin in lines),
                places=(min(places), max(places)),
                t_us=min(times) * unit_us if times else None,
            )
        )
    return found


def _extent(lines: Sequence[int | None]) -> tuple[int, int]:
    known = [line for line in lines if line is not None] or [0]
    return min(known), max(known)
