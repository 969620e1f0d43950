"""Fair share of each consumer: what it would have got, had every message been spread over the hash space.

The hash space counts as it was owned at the moment of each message. The share is weighted by the messages sent, not by
time: a consumer that was alone while there was nothing to send owned much of the space and is owed nothing for it, and one
that joined late or left early is measured by what was sent while it was there.

Example: ``a`` owns all 100 hashes while 10 messages are sent, then ``a`` and ``b`` own 50 each while 20 are sent. The fair
share of ``a`` is 10 + 20 x 50/100 = 20 messages, that of ``b`` 10.

This is the one definition of a consumer's share of the hash space. A log comes batch by batch: ``MessagesByOwnership`` sums
up the messages between changes of ownership, ``fair_parts`` shares the sums out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.columns import Ints, ints, valid
from dispatch_core.audit.sentences.names import Connections

Floats = npt.NDArray[np.float64]


class FairPart(NamedTuple):
    """Fair messages of a consumer name, each counted by its hashes, or by equal parts of the connections that were there."""

    by_hashes: float
    by_number: float


class MessagesByOwnership:
    """Messages sent between one change of ownership and the next, of a log that comes batch by batch.

    >>> sums = MessagesByOwnership()
    >>> sums.add(np.array([2, 4, 6]), np.array([1, 1, 1]), changes=np.array([1]))
    >>> sums.add(np.array([8, 9]), np.array([5, 5]), changes=np.array([1, 9]))
    >>> [part.tolist() for part in sums.columns()]
    [[1, 9], [8, 5]]
    """

    def __init__(self) -> None:
        self._changes: Ints = np.empty(0, np.int64)
        self._messages: Ints = np.zeros(1, np.int64)  # before the first change, and from each one on

    def add(self, seq: Ints, messages: Ints, changes: Ints) -> None:
        """Count deliveries: the ``seq`` of each and its number of messages, and the lines that changed ownership by now.

        ``changes`` are ascending. Every call brings those of the calls before, and others behind them. A change holds from
        its own line on.
        """
        before = len(self._changes)
        if not np.array_equal(changes[:before], self._changes):
            raise ValueError("a change of ownership was added in front of deliveries that were counted")
        self._changes = changes
        self._messages = np.append(self._messages, np.zeros(len(changes) - before, np.int64))
        np.add.at(self._messages, np.searchsorted(changes, seq, "right"), messages)

    def columns(self) -> tuple[Ints, Ints]:
        """Return a line of each span between changes, and the messages sent in it; spans without messages are left out."""
        first = self._changes[:1] - 1 if len(self._changes) else np.zeros(1, np.int64)
        some = self._messages > 0
        return np.concatenate([first, self._changes])[some], self._messages[some]


def fair_parts(
    ownership: pa.Table, connections: Connections, seq: Ints, messages: Ints
) -> dict[str, FairPart]:
    """Share the messages of one log out to the consumer names that owned hashes.

    Args:
        ownership: rows of ``tables.OWNERSHIP`` of one incarnation.
        connections: those of its rows (``connections_in``).
        seq: lines at which messages were sent, in any order. A line may stand for all between two changes of ownership.
        messages: messages sent there.

    Returns:
        By name. Each part adds up to the messages of the log, or to 0 where nothing was sent while anything was owned.
        Every name that ever owned anything has an entry.
    """
    if not ownership.num_rows:
        return {}
    names, name_of = connections.by_name()
    order = np.argsort(seq, kind="stable")
    line, sent = seq[order], messages.astype(np.float64)[order]
    first = np.searchsorted(line, ints(ownership["from_seq"]))
    last = np.searchsorted(line, ints(ownership["until_seq"]))
    last[~valid(ownership["until_seq"])] = len(line)
    before = np.concatenate([[0.0], np.cumsum(sent)])
    hashes = ints(ownership["range_end"]) - ints(ownership["range_start"]) + 1
    by_hashes = _by_name(name_of[connections.of_row], hashes * (before[last] - before[first]), len(names))
    joined = np.full(len(name_of), len(sent))
    left = np.zeros(len(name_of), np.int64)
    np.minimum.at(joined, connections.of_row, first)
    np.maximum.at(left, connections.of_row, last)
    by_number = _by_name(name_of, _equal_parts(joined, np.maximum(left, joined), sent), len(names))
    total = float(messages.sum())
    parts = zip(_scaled(by_hashes, total).tolist(), _scaled(by_number, total).tolist(), strict=True)
    return dict(zip(names, map(FairPart._make, parts), strict=True))


def _by_name(name: Ints, parts: Floats, names: int) -> Floats:
    return np.bincount(name, parts, names).astype(np.float64)


def _equal_parts(joined: Ints, left: Ints, sent: Floats) -> Floats:
    """Share out each delivery in equal parts to the connections that had joined and not left; returns their sums."""
    change = np.zeros(len(sent) + 1)
    np.add.at(change, joined, 1)
    np.add.at(change, left, -1)
    present = np.maximum(np.cumsum(change)[:-1], 1)
    before = np.concatenate([[0.0], np.cumsum(sent / present)])
    return before[left] - before[joined]  # type: ignore[no-any-return]


def _scaled(fair: Floats, total: float) -> Floats:
    """Make the parts add up to ``total``: what was sent while nobody owned anything is spread as the rest."""
    whole = float(fair.sum())
    return fair * (total / whole if whole > 0 else 0.0)


def messages_of(deliveries: pa.Table) -> Ints:
    """Number of messages of each row; an entry that does not say counts as one."""
    return ints(deliveries["num_messages"], absent=1)
