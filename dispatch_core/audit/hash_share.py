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

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import Ints, ints
from dispatch_core.audit.sentences.names import names_in

Floats = npt.NDArray[np.float64]

_NO_END: Final = np.iinfo(np.int64).max


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


def fair_parts(ownership: pa.Table, seq: Ints, messages: Ints) -> dict[str, FairPart]:
    """Share the messages of one log out to the consumer names that owned hashes.

    Args:
        ownership: rows of ``tables.OWNERSHIP`` of one incarnation.
        seq: lines at which messages were sent, in any order. A line may stand for all between two changes of ownership.
        messages: messages sent there.

    Returns:
        By name. Each part adds up to the messages of the log, or to 0 where nothing was sent while anything was owned.
        Every name that ever owned anything has an entry.
    """
    if not ownership.num_rows:
        return {}
    names = names_in(ownership).combine_chunks().dictionary_encode()
    name = np.asarray(names.indices, np.int64)
    hashes = ints(ownership["range_end"]) - ints(ownership["range_start"]) + 1
    start, until, line = _ranked(ints(ownership["from_seq"]), ints(ownership["until_seq"], _NO_END), seq)
    order = np.argsort(line, kind="stable")
    sent = messages.astype(np.float64)[order]
    first, last = np.searchsorted(line[order], start), np.searchsorted(line[order], until)
    before = np.concatenate([[0.0], np.cumsum(sent)])
    count = len(names.dictionary)
    by_hashes = np.bincount(name, hashes * (before[last] - before[first]), count).astype(np.float64)
    by_number = _by_number(ints(ownership["consumer"]), name, count, first, last, sent)
    total = float(messages.sum())
    parts = zip(_scaled(by_hashes, total).tolist(), _scaled(by_number, total).tolist(), strict=True)
    return dict(zip(names.dictionary.to_pylist(), map(FairPart._make, parts), strict=True))


def _by_number(consumer: Ints, name: Ints, names: int, first: Ints, last: Ints, sent: Floats) -> Floats:
    """Fair messages of each name, if all connections that had joined and not left had got the same of each delivery."""
    # A connection has one name, but a log may give its number twice.
    numbers, place = np.unique(consumer, return_inverse=True)
    connections, span_of = np.unique(name * len(numbers) + place, return_inverse=True)
    joined = np.full(len(connections), len(sent))
    left = np.zeros(len(connections), np.int64)
    np.minimum.at(joined, span_of, first)
    np.maximum.at(left, span_of, last)
    left = np.maximum(left, joined)
    change = np.zeros(len(sent) + 1)
    np.add.at(change, joined, 1)
    np.add.at(change, left, -1)
    present = np.maximum(np.cumsum(change)[:-1], 1)
    before = np.concatenate([[0.0], np.cumsum(sent / present)])
    of_name = connections // max(len(numbers), 1)
    return np.bincount(of_name, before[left] - before[joined], names).astype(np.float64)


def _scaled(fair: Floats, total: float) -> Floats:
    """Make the parts add up to ``total``: what was sent while nobody owned anything is spread as the rest."""
    whole = float(fair.sum())
    return fair * (total / whole if whole > 0 else 0.0)


def _ranked(*seqs: Ints) -> list[Ints]:
    """Line numbers as ranks among all of them: they may be as large as 64 bits hold."""
    ranks = np.unique(np.concatenate(seqs), return_inverse=True)[1].astype(np.int64)
    return np.split(ranks, np.cumsum([len(part) for part in seqs])[:-1])


def messages_of(deliveries: pa.Table) -> Ints:
    """Number of messages of each row; an entry that does not say counts as one."""
    return ints(pc.fill_null(deliveries["num_messages"].cast(pa.int64()), 1))
