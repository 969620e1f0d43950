"""Who owned which hashes for how long, by what each membership change moved: arrays, for selectors of any size.

A *span* is a closed range of hashes that one consumer owned from one event to another. A change closes the spans that it
cuts and opens others for what is left of them and for what was won; all spans that one change opens have its *epoch*.

>>> spans = OwnershipSpans()
>>> spans.changed(1, 100, removed={}, added={7: ((0, 99),)})
>>> spans.changed(2, 200, removed={7: ((40, 59),)}, added={8: ((40, 59),)})
>>> [tuple(row) for row in zip(*(spans.columns()[name].tolist() for name in ("owner", "start", "end", "until_seq")))]
[(7, 0, 99, 2), (7, 0, 39, -1), (8, 40, 59, -1), (7, 60, 99, -1)]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.selectors.assignments import Assignments, Range, impacted

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
        self.changed(seq, t_us, moved.removed, moved.added)

    def changed(
        self,
        seq: int,
        t_us: int,
        removed: Mapping[int, Sequence[Range]],
        added: Mapping[int, Sequence[Range]],
    ) -> None:
        """Consumers lost and won these ranges (closed, disjoint for each) by the event ``seq`` at ``t_us``."""
        if not removed and not added:
            return
        self.epoch += 1
        opened = [self._lose(_flat(removed), seq, t_us), self._opened(_flat(added), seq, t_us)]
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

    def _lose(self, lost: Ints, seq: int, t_us: int) -> Ints:
        """Close the spans that ``lost`` cuts; returns what is left of them, as spans of this epoch."""
        first = np.searchsorted(self._open[_END], lost[_START], side="left")
        last = np.searchsorted(self._open[_START], lost[_END], side="right")
        depth = np.zeros(self._open.shape[1] + 1, np.int64)
        np.add.at(depth, first, 1)
        np.add.at(depth, last, -1)
        cut = np.cumsum(depth[:-1]) > 0
        spans = self._open[:, cut]
        self._open = self._open[:, ~cut]
        until = np.full((2, spans.shape[1]), seq, np.int64)
        until[1] = t_us
        self._closed.append(np.concatenate([spans, until]))
        edges = np.unique(np.concatenate([spans[_START], spans[_END] + 1, lost[_START], lost[_END] + 1]))
        starts, ends = edges[:-1], edges[1:] - 1
        of_span = _within(starts, spans)
        left = (of_span >= 0) & (_within(starts, lost) < 0)
        return self._opened(np.stack([starts[left], ends[left], spans[_OWNER][of_span[left]]]), seq, t_us)


def _flat(ranges: Mapping[int, Sequence[Range]]) -> Ints:
    """(start, end, owner) of all ranges, ascending, in columns."""
    rows = sorted((start, end, consumer) for consumer, own in ranges.items() for start, end in own)
    return np.asarray(rows, np.int64).reshape(-1, 3).T


def _within(points: Ints, ranges: Ints) -> Ints:
    """In which of the ascending, disjoint ranges each point lies; -1 = in none."""
    if not ranges.shape[1]:
        return np.full(len(points), -1, np.int64)
    at = np.searchsorted(ranges[_START], points, side="right") - 1
    return np.where((at >= 0) & (points <= ranges[_END][at]), at, -1)
