"""Ownership of hash ranges over time, made from what each membership change moved: arrays, for selectors of any size.

A *span* is a closed range of hashes that a consumer owned from one event to another. A change closes the spans that it cuts,
and opens new ones for their remains and for the ranges won. All spans that a change opens have its *epoch*.

Consumer 7 owns all 100 hashes; then consumer 8 wins hashes 40 to 59, which cuts the span of 7 in two:

>>> spans = OwnershipSpans()
>>> spans.reported(1, 100, [(0, 99, 7)])
>>> spans.reported(2, 200, [(0, 39, 7), (40, 59, 8), (60, 99, 7)])
>>> [tuple(row) for row in zip(*(spans.columns()[name].tolist() for name in ("owner", "start", "end", "until_seq")))]
[(7, 0, 99, 2), (7, 0, 39, -1), (8, 40, 59, -1), (7, 60, 99, -1)]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inline as inline
from dispatch_core.broker.selectors.assignments import ANY_HASH, Assignments, OwnedRanges, impacted

Ints = npt.NDArray[np.int64]

#: The range that stands for a whole topic: Failover and Exclusive.
WHOLE_TOPIC: Final = (0, 65535)
#: Of a span that is still open.
OPEN: Final = -1

_START, _END, _OWNER, _EPOCH, _UNTIL = range(5)


class OwnershipSpans:
    """The spans of a dispatcher, which takes its membership changes in order."""

    def __init__(self) -> None:
        self._open: Ints = np.empty((4, 0), np.int64)  # by start; with room behind the last
        self._spare: Ints = np.empty((4, 0), np.int64)  # where the next change puts what is open from then on
        self._spans = 0  # that are open
        self._closed: list[Ints] = []  # with the epoch that ended each
        # Epoch, seq and time of each change that is known; epochs count from 1.
        self._changes: list[tuple[int, int, int]] = [(0, OPEN, OPEN)]
        self._report = Assignments()

    @property
    def epoch(self) -> int:
        """The epoch of the last change; 0 = there was none."""
        return self._changes[-1][0]

    @property
    def changes(self) -> Ints:
        """The ``seq`` of every change that is known, ascending."""
        return np.array([seq for _epoch, seq, _t_us in self._changes[1:]], np.int64)

    @contextmanager
    def since(self, t_us: int) -> Iterator[None]:
        """Leave out what ended before a time, until the block ends: for a copy that goes on from a later one.

        >>> spans = OwnershipSpans()
        >>> for number, owner in enumerate((7, 8, 9), 1):
        ...     spans.reported(number, 100 * number, [(0, 99, owner)])
        >>> with spans.since(201):
        ...     [tuple(row) for row in zip(*(spans.columns()[name].tolist() for name in ("epoch", "owner", "until_t_us")))]
        [(2, 8, 300), (3, 9, -1)]
        >>> len(spans.columns()["owner"])
        3
        """
        closed, changes = self._closed, self._changes
        time_of = {epoch: at_us for epoch, _seq, at_us in changes}
        ended: Ints = np.concatenate([np.empty((5, 0), np.int64), *closed], axis=1)
        times_us = np.array([time_of[epoch] for epoch in ended[_UNTIL].tolist()], np.int64)
        ended = ended[:, times_us >= t_us]
        # The number of the last change counts on, and the others are those that a span began or ended with.
        epochs = {0, self.epoch, *self._open[_EPOCH, : self._spans].tolist()}
        epochs.update(ended[_EPOCH].tolist(), ended[_UNTIL].tolist())
        self._closed, self._changes = [ended], [change for change in changes if change[0] in epochs]
        try:
            yield
        finally:
            self._closed, self._changes = closed, changes

    def reported(self, seq: int, t_us: int, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Take the whole range report (start, end, owner) after an event; for one dispatcher either this or ``changed``."""
        before, self._report = self._report, Assignments(tuple(sorted(ranges)))
        moved = impacted(before, self._report)
        self.changed(seq, t_us, moved.lost, moved.won)

    def changed(self, seq: int, t_us: int, lost: OwnedRanges, won: OwnedRanges) -> None:
        """Take the ranges that consumers lost and won by the event ``seq`` at ``t_us``."""
        if not len(lost) and not len(won):
            return
        self._changes.append((self.epoch + 1, seq, t_us))
        most = self._spans + len(lost) + len(won)
        if self._spare.shape[1] < most:
            self._spare = np.empty((4, 2 * most), np.int64)
        closed = np.empty((5, self._spans), np.int64)
        counts = np.zeros(2, np.int64)
        gone = np.concatenate([lost.starts, lost.ends]).reshape(2, -1)
        new = np.concatenate([won.starts, won.ends, won.owners]).reshape(3, -1)
        _apply_change(self._open, self._spans, gone, new, self.epoch, self._spare, closed, counts)
        self._open, self._spare, self._spans = self._spare, self._open, int(counts[0])
        self._closed.append(closed[:, : counts[1]].copy())

    def columns(self) -> dict[str, Ints]:
        """Return all spans, by epoch and start; ``until_seq`` and ``until_t_us`` are ``OPEN`` for those without an end."""
        still = np.zeros((1, self._spans), np.int64)
        spans = np.concatenate([*self._closed, np.concatenate([self._open[:, : self._spans], still])], axis=1)
        spans = spans[:, np.lexsort((spans[_START], spans[_EPOCH]))]
        epochs, seqs, times_us = np.array(self._changes, np.int64).T
        begun, ended = (np.searchsorted(epochs, spans[row]) for row in (_EPOCH, _UNTIL))
        return {
            "start": spans[_START],
            "end": spans[_END],
            "owner": spans[_OWNER],
            "epoch": spans[_EPOCH],
            "from_seq": seqs[begun],
            "from_t_us": times_us[begun],
            "until_seq": seqs[ended],
            "until_t_us": times_us[ended],
        }


@compiled
def _apply_change(
    spans: Ints, number: int, lost: Ints, won: Ints, epoch: int, after: Ints, closed: Ints, counts: Ints
) -> None:
    """Take ``lost`` (start, end) from the first ``number`` spans and add ``won`` (start, end, owner); all are ascending
    and disjoint.

    ``after``: the open spans from now on, by start. ``closed``: those that were cut, with ``epoch`` as their end.
    ``counts`` gets how many there are of each.
    """
    first = taken = 0
    for i in range(number + 1):
        is_span = i < number
        # What is won lies in front of a span, or in a gap that it has from now on; behind the last one comes the rest.
        start = spans[_START, i] if is_span else ANY_HASH
        end = spans[_END, i] if is_span else ANY_HASH
        while first < lost.shape[1] and lost[_END, first] < start:
            first += 1
        at = first
        is_cut = False
        while is_span and at < lost.shape[1] and lost[_START, at] <= end:
            is_cut = True
            if start < lost[_START, at]:
                taken = _add_won(won, taken, start, epoch, after, counts)
                _add(after, counts, start, lost[_START, at] - 1, spans[_OWNER, i], epoch)
            start = lost[_END, at] + 1
            at += 1
        taken = _add_won(won, taken, start, epoch, after, counts)
        if is_cut:
            for row in range(4):
                closed[row, counts[1]] = spans[row, i]
            closed[_UNTIL, counts[1]] = epoch
            counts[1] += 1
        if is_span and start <= end:
            _add(after, counts, start, end, spans[_OWNER, i], epoch if is_cut else spans[_EPOCH, i])


@inline
def _add_won(won: Ints, taken: int, before: int, epoch: int, after: Ints, counts: Ints) -> int:
    """Add the won ranges that begin ``before`` a hash; returns how many were added by now."""
    while taken < won.shape[1] and won[_START, taken] < before:
        _add(after, counts, won[_START, taken], won[_END, taken], won[_OWNER, taken], epoch)
        taken += 1
    return taken


@inline
def _add(after: Ints, counts: Ints, start: int, end: int, owner: int, epoch: int) -> None:
    at = counts[0]
    after[_START, at], after[_END, at], after[_OWNER, at], after[_EPOCH, at] = start, end, owner, epoch
    counts[0] += 1
