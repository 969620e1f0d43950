"""Reduce the owners of the hash space to the share of each consumer over time, and to what moved at each change.

With consistent hashing a consumer owns a hundred ranges, and a picture of the ranges shows stripes. Its share of the hash
space, and how much of it went to whom at a join or leave, can be read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.report.ring import I64

F64 = npt.NDArray[np.float64]

#: Owners with an area of their own; the others share one.
MAX_OWNERS: Final = 20
#: Times at which the shares are shown, and changes that are marked.
MAX_TIMES: Final = 1_000
#: Pairs of consumers that a change names.
MAX_PAIRS: Final = 3


@dataclass(frozen=True, slots=True)
class Move:
    """Hashes changed owner at a time.

    ``share``: part of the hash space, 0 to 1; ``pairs``: largest parts of it, with the owners before and after.
    """

    t_us: int
    share: float
    pairs: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, slots=True)
class HashShares:
    """Shares of the hash space: ``owners[i]`` had ``share[i, k]`` (0 to 1) from ``t_us[k]`` to ``t_us[k + 1]``.

    ``owners``: those with the largest shares first; the last may stand for the others. Nobody owns anything from the last
    time on. ``moves``: the largest ``MAX_TIMES`` of ``total_moves``, by time.
    """

    owners: tuple[str, ...]
    t_us: I64
    share: F64
    moves: tuple[Move, ...]
    total_moves: int


def hash_shares(owners: tuple[str, ...], rows: I64) -> HashShares:
    """Compute shares and moves from the ranges of ``ring.owned_ranges``."""
    owner, from_us, until_us, low, high = rows
    if not owner.size:
        return HashShares((), np.zeros(0, np.int64), np.zeros((0, 0)), (), 0)
    space = int(high.max() - low.min())
    times, change = np.unique(np.concatenate([from_us, until_us]), return_inverse=True)
    begins, ends = change[: owner.size], change[owner.size :]
    width = high - low
    extent = np.zeros(len(owners))
    np.add.at(extent, owner, width.astype(np.float64) * (until_us - from_us))
    order = np.argsort(-extent, kind="stable")
    place = np.empty(len(owners), np.int64)
    place[order] = np.minimum(np.arange(len(owners)), MAX_OWNERS - 1)
    names = [owners[at] for at in order.tolist()]
    if len(names) > MAX_OWNERS:
        names = [*names[: MAX_OWNERS - 1], f"{len(names) - MAX_OWNERS + 1:,} others"]
    share = np.zeros((len(names), times.size))
    np.add.at(share, (place[owner], begins), width / space)
    np.add.at(share, (place[owner], ends), -width / space)
    share = np.clip(np.cumsum(share, axis=1), 0.0, 1.0)
    moves = _moves(owners, rows, times, begins, ends)
    kept = sorted(sorted(moves, key=lambda move: -move.share)[:MAX_TIMES], key=lambda move: move.t_us)
    if times.size > MAX_TIMES:
        at = np.unique(np.linspace(0, times.size - 1, MAX_TIMES).astype(np.int64))
        times, share = times[at], share[:, at]
    return HashShares(tuple(names), times, share, tuple(kept), len(moves))


def _moves(owners: tuple[str, ...], rows: I64, times: I64, begins: I64, ends: I64) -> list[Move]:
    """Compare the ranges that end at a time with those that begin at it: overlaps with another owner have moved."""
    owner, _from_us, _until_us, low, high = rows
    base = int(low.min())
    space = int(high.max()) - base
    # Time and hash as one number, so that all times are compared at once; the gap keeps them apart.
    stride = space + 1

    def ranges(at: I64) -> tuple[I64, I64, I64]:
        starts = at * stride + (low - base)
        order = np.argsort(starts, kind="stable")
        return starts[order], (starts + (high - low))[order], owner[order]

    before, after = ranges(ends), ranges(begins)
    edges = np.unique(np.concatenate([before[0], before[1], after[0], after[1]]))
    segments, widths = edges[:-1], np.diff(edges)

    def owner_of(given: tuple[I64, I64, I64]) -> I64:
        starts, stops, who = given
        at = np.searchsorted(starts, segments, "right") - 1
        inside = (at >= 0) & (segments < stops[at])
        return np.where(inside, who[at], -1)

    old, new = owner_of(before), owner_of(after)
    moved = np.flatnonzero((old >= 0) & (new >= 0) & (old != new))
    pairs: defaultdict[int, defaultdict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
    for time, old_owner, new_owner, width in zip(
        (segments[moved] // stride).tolist(), old[moved].tolist(), new[moved].tolist(), widths[moved].tolist(),
        strict=True,
    ):  # fmt: skip
        pairs[time][old_owner, new_owner] += width
    found = []
    for time, widths_of in sorted(pairs.items()):
        largest = sorted(widths_of.items(), key=lambda item: (-item[1], item[0]))[:MAX_PAIRS]
        found.append(
            Move(
                int(times[time]),
                sum(widths_of.values()) / space,
                tuple((owners[a], owners[b], width / space) for (a, b), width in largest),
            )
        )
    return found
