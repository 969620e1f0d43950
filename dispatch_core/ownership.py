"""Who owned which hashes for how long, by what each membership change moved: arrays, for selectors of any size.

A *span* is a closed range of hashes that one consumer owned from one event to another. A change closes the spans that it
cuts and opens others for what is left of them and for what was won; all spans that one change opens have its *epoch*.

>>> spans = OwnershipSpans()
>>> spans.reported(1, 100, [(0, 99, 7)])
>>> spans.reported(2, 200, [(0, 39, 7), (40, 59, 8), (60, 99, 7)])
>>> [tuple(row) for row in zip(*(spans.columns()[name].tolist() for name in ("owner", "start", "end", "until_seq")))]
[(7, 0, 99, 2), (7, 0, 39, -1), (8, 40, 59, -1), (7, 60, 99, -1)]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.jit import compiled_in_place as compiled
from dispatch_core.selectors.assignments import Assignments, OwnedRanges, impacted

Ints = npt.NDArray[np.int64]

#: Of a span that is still open.
OPEN: Final = -1

_START, _END, _OWNER, _EPOCH, _SEQ, _T_US = range(6)
_NAMES: Final = ("start", "end", "owner", "epoch", "from_seq", "from_t_us", "until_seq", "until_t_us")


class OwnershipSpans:
    """The spans of one dispatcher, fed with its membership changes in order."""

    def __init__(self) -> None:
        self.epoch = 0
        self._open: Ints = np.empty((6, 0), np.int64)  # by start
        self._closed: list[Ints] = []
        self._report = Assignments()

    def reported(self, seq: int, t_us: int, ranges: Iterable[tuple[int, int, int]]) -> None:
        """The whole report (start, end, owner) after an event. One dispatcher is told this way, or by what moved."""
        before, self._report = self._report, Assignments(tuple(sorted(ranges)))
        moved = impacted(before, self._report)
        self.changed(seq, t_us, moved.lost, moved.won)

    def changed(self, seq: int, t_us: int, lost: OwnedRanges, won: OwnedRanges) -> None:
        """Consumers lost and won these ranges by the event ``seq`` at ``t_us``."""
        if not len(lost) and not len(won):
            return
        self.epoch += 1
        opened = [
            self._lose(lost, seq, t_us),
            self._opened(np.stack([won.starts, won.ends, won.owners]), seq, t_us),
        ]
        spans = np.concatenate([self._open, *opened], axis=1)
        self._open = spans[:, np.argsort(spans[_START], kind="stable")]

    def columns(self) -> dict[str, Ints]:
        """All spans, by epoch and start; ``until_seq`` and ``until_t_us`` are ``OPEN`` where they have no end yet."""
        still = np.full((2, self._open.shape[1]), OPEN, np.int64)
        spans = np.concatenate([*self._closed, np.concatenate([self._open, still])], axis=1)
        spans = spans[:, np.lexsort((spans[_START], spans[_EPOCH]))]
        return dict(zip(_NAMES, spans, strict=True))

    def _opened(self, ranges: Ints, seq: int, t_us: int) -> Ints:
        """New spans of this epoch from (start, end, owner)."""
        count = ranges.shape[1]
        since = [np.full(count, value, np.int64) for value in (self.epoch, seq, t_us)]
        return np.concatenate([ranges, np.asarray(since, np.int64).reshape(3, count)])

    def _lose(self, lost: OwnedRanges, seq: int, t_us: int) -> Ints:
        """Close the spans that ``lost`` cuts; returns what is left of them, as spans of this epoch."""
        spans = self._open
        is_cut = np.zeros(spans.shape[1], np.bool_)
        left = np.empty((3, spans.shape[1] + len(lost)), np.int64)
        count = _cut(spans, lost.starts, lost.ends, is_cut, left)
        cut = spans[:, is_cut]
        self._open = spans[:, ~is_cut]
        until = np.full((2, cut.shape[1]), seq, np.int64)
        until[1] = t_us
        self._closed.append(np.concatenate([cut, until]))
        return self._opened(left[:, :count], seq, t_us)


@compiled
def _cut(spans: Ints, starts: Ints, ends: Ints, is_cut: npt.NDArray[np.bool_], left: Ints) -> int:
    """Mark the ``spans`` that the ranges ``starts`` to ``ends`` cut, both ascending and disjoint.

    ``left`` gets start, end and owner of what the ranges leave of these, ascending; returns how many pieces that are.
    """
    count = first = 0
    for i in range(spans.shape[1]):
        start, end = spans[_START, i], spans[_END, i]
        while first < len(starts) and ends[first] < start:
            first += 1
        at = first
        while at < len(starts) and starts[at] <= end:
            is_cut[i] = True
            if start < starts[at]:
                left[_START, count], left[_END, count] = start, starts[at] - 1
                left[_OWNER, count] = spans[_OWNER, i]
                count += 1
            start = ends[at] + 1
            at += 1
        if is_cut[i] and start <= end:
            left[_START, count], left[_END, count], left[_OWNER, count] = start, end, spans[_OWNER, i]
            count += 1
    return count
