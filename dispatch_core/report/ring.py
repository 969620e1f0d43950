"""Reduce the owners of the hash space over time to rectangles that a picture can show.

Up to ``EXACT_ROWS`` ownership rows are drawn exactly. More rows are sampled on a grid: at some times, each part of the hash
space is assigned to the owner of most of it. The grid is made coarser until its rectangles are few enough to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.sentences.names import consumer_name

I64 = npt.NDArray[np.int64]

#: Rectangles that are drawn exactly, and at most. Scattered ranges are drawn where the reader looks, so there may be more.
EXACT_ROWS: Final = 1_500
EXACT_SCATTERED: Final = 20_000
MAX_RECTANGLES: Final = 6_000
_GRIDS: Final = ((400, 256), (300, 128), (200, 64), (100, 48), (60, 32))  # times, parts of the hash space
#: Joins and leaves that are marked individually; the others are counted.
MAX_CHANGES: Final = 1_000
#: Ranges of a consumer at one time from which on its ranges are scattered.
_MANY_RANGES: Final = 8
_NOBODY: Final = -1
_MEMBERSHIP: Final = pa.array(["consumer_added", "consumer_removed"])


@dataclass(frozen=True, slots=True)
class Change:
    """A consumer joined or left. ``incarnation``: the load of the topic in which it did."""

    t_us: int
    joined: bool
    name: str
    seq: int
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Ring:
    """Rectangles: ``owners[owner[i]]`` owned the hashes [``low[i]``, ``high[i]``) from ``from_us[i]`` to ``until_us[i]``.

    ``exact``: false if the rectangles are a grid. ``scattered``: consumers own many ranges each, as with consistent hashing,
    so that their shares say more than the ranges. ``changes``: joins and leaves, at most ``MAX_CHANGES`` of
    ``total_changes``.
    """

    owners: tuple[str, ...]
    owner: I64
    from_us: I64
    until_us: I64
    low: I64
    high: I64
    exact: bool
    scattered: bool
    changes: tuple[Change, ...]
    total_changes: int


def changes_of(events: pa.Table, incarnation: int = 0) -> list[Change]:
    """Joins and leaves among some events of one log (columns ``kind, t_us, seq, consumer, name``), in their order."""
    members = events.filter(pc.is_in(events["kind"].cast(pa.string()), value_set=_MEMBERSHIP))
    columns = ("kind", "t_us", "seq", "consumer", "name")
    names: dict[int, str] = {}
    found = []
    for kind, t_us, seq, consumer, name in zip(
        *(members[column].to_pylist() for column in columns), strict=True
    ):
        joined = kind == "consumer_added"
        if joined and name is not None:
            names[consumer] = name
        if t_us is not None:
            found.append(Change(t_us, joined, consumer_name(consumer, names.get(consumer)), seq, incarnation))
    return found


def owned_ranges(ownership: pa.Table, span_us: tuple[int, int]) -> tuple[tuple[str, ...], I64]:
    """Return the owners' names, and rows ``owner, from_us, until_us, low, high`` of the ranges that overlap [start, end)."""
    start_us, end_us = span_us
    from_us = np.maximum(np.asarray(ownership["from_t_us"], dtype=np.int64), start_us)
    until = ownership["until_t_us"].fill_null(end_us)
    until_us = np.minimum(np.asarray(until, dtype=np.int64), end_us)
    names = [
        consumer_name(number, name)
        for number, name in zip(
            ownership["consumer"].to_pylist(), ownership["consumer_name"].to_pylist(), strict=True
        )
    ]
    owners = sorted(set(names))
    place = {name: at for at, name in enumerate(owners)}
    rows = np.stack(
        [
            np.array([place[name] for name in names], np.int64),
            from_us,
            until_us,
            np.asarray(ownership["range_start"], dtype=np.int64),
            np.asarray(ownership["range_end"], dtype=np.int64) + 1,
        ]
    )
    return tuple(owners), rows[:, until_us > from_us]


def ring_of(owners: tuple[str, ...], rows: I64, changes: Sequence[Change], span_us: tuple[int, int]) -> Ring:
    """The rectangles of the ranges of ``owned_ranges``."""
    start_us, end_us = span_us
    scattered = _are_scattered(rows)
    exact = rows.shape[1] <= (EXACT_SCATTERED if scattered else EXACT_ROWS)
    if not exact:
        for moments, parts in _GRIDS:
            gridded = _gridded(rows, moments, parts)
            if gridded.shape[1] <= MAX_RECTANGLES:
                break
        rows = gridded
    inside = [change for change in changes if start_us <= change.t_us < end_us]
    return Ring(
        owners=owners,
        owner=rows[0],
        from_us=rows[1],
        until_us=rows[2],
        low=rows[3],
        high=rows[4],
        exact=exact,
        scattered=scattered,
        changes=tuple(inside[:MAX_CHANGES]),
        total_changes=len(inside),
    )


def _are_scattered(rows: I64) -> bool:
    """Check whether a consumer owned many ranges at one time."""
    owner, from_us, until_us, _low, _high = rows
    if not owner.size:
        return False
    times, at = np.unique(np.concatenate([from_us, until_us]), return_inverse=True)
    # One consumer after another along one axis of time: a running sum counts its ranges.
    steps = np.zeros((int(owner.max()) + 1) * times.size, np.int64)
    np.add.at(steps, owner * times.size + at[: owner.size], 1)
    np.add.at(steps, owner * times.size + at[owner.size :], -1)
    return int(np.cumsum(steps).max()) >= _MANY_RANGES


def _gridded(rows: I64, moments: int, parts: int) -> I64:
    """Rectangles of equal owners, sampled in the middle of equal steps of time for equal parts of the hash space."""
    _owner, from_us, until_us, low, high = rows
    times = np.unique(np.linspace(from_us.min(), until_us.max(), moments + 1).astype(np.int64))
    edges = np.unique(np.linspace(low.min(), high.max(), parts + 1).astype(np.int64))
    seen = np.full((times.size - 1, edges.size - 1), _NOBODY, np.int64)
    before: I64 | None = None
    for step in range(times.size - 1):
        middle = (times[step] + times[step + 1]) // 2
        now = np.flatnonzero((from_us <= middle) & (until_us > middle))
        if before is not None and np.array_equal(now, before):
            seen[step] = seen[step - 1]
        else:
            seen[step] = _largest_owners(rows[:, now], edges)
        before = now
    return _joined(seen, times, edges)


def _largest_owners(rows: I64, edges: I64) -> I64:
    """The owner of most of each part between two ``edges``."""
    owner, _from, _until, low, high = rows
    found = np.full(edges.size - 1, _NOBODY, np.int64)
    if not owner.size:
        return found
    # Cut every range at the edges, and add up the widths by part and owner.
    first = np.searchsorted(edges, low, "right") - 1
    last = np.searchsorted(edges, high, "left") - 1
    counts = last - first + 1
    range_of = np.repeat(np.arange(owner.size), counts)
    part = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + first[range_of]
    width = np.minimum(high[range_of], edges[part + 1]) - np.maximum(low[range_of], edges[part])
    who = part * (int(owner.max()) + 1) + owner[range_of]
    pairs, at = np.unique(who, return_inverse=True)
    widths = np.zeros(pairs.size, np.int64)
    np.add.at(widths, at, width)
    order = np.lexsort((widths, pairs // (int(owner.max()) + 1)))  # the widest of a part comes last
    found[(pairs // (int(owner.max()) + 1))[order]] = (pairs % (int(owner.max()) + 1))[order]
    return found


def _joined(seen: I64, times: I64, edges: I64) -> I64:
    """Runs of one owner along the hash space, and of the same runs along time, as rectangles."""
    open_: dict[tuple[int, int, int], int] = {}  # (owner, first part, end part) → first step
    found: list[tuple[int, int, int, int, int]] = []

    def close(run: tuple[int, int, int], first: int, step: int) -> None:
        owner, low, high = run
        found.append((owner, int(times[first]), int(times[step]), int(edges[low]), int(edges[high])))

    for step, column in enumerate(seen):
        if step and np.array_equal(column, seen[step - 1]):
            continue
        borders = np.flatnonzero(np.diff(column)) + 1
        lows, highs = np.r_[0, borders], np.r_[borders, column.size]
        runs = {(int(column[low]), int(low), int(high)) for low, high in zip(lows, highs, strict=True)}
        for run in open_.keys() - runs:
            close(run, open_.pop(run), step)
        for run in runs - open_.keys():
            if run[0] != _NOBODY:
                open_[run] = step
    for run, first in open_.items():
        close(run, first, seen.shape[0])
    return np.array(sorted(found), np.int64).reshape(-1, 5).T
