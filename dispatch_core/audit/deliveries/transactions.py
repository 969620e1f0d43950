"""Find the entries that a transaction may hold back, by the ids of the transactions they were published in.

The broker reads no further than the first entry of a transaction that is open. When the transaction has ended, its entries
are delivered in their place if it was committed, and left out if it was aborted. No line says how it ended, but a delivery
of any of its entries shows that it was committed. Example: 3:4 and 3:6 are of transaction (1,7), and 3:5 is of none. While
nothing from 3:4 on is sent, the transaction may be open. When 3:5 and 3:6 are sent, it was committed, and 3:4 is missing;
if 3:5 and 3:7 are sent, it was aborted.

Source: TopicTransactionBuffer.getMaxReadPosition, isTxnAborted (PIP-31).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.columns import Ints, Mask, codes_with_null

#: Of an entry that was published in no transaction.
NO_TRANSACTION = -1


class TransactionIds:
    """Numbers of transactions, in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def encode(self, messages: pa.Table) -> npt.NDArray[np.int32]:
        """Return the number of each entry's transaction, ``NO_TRANSACTION`` = none."""
        if "txn" not in messages.column_names or messages["txn"].null_count == messages.num_rows:
            return np.full(messages.num_rows, NO_TRANSACTION, np.int32)
        codes, names = codes_with_null(messages["txn"])
        numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in names[:-1]]
        return np.array([*numbers, NO_TRANSACTION], np.int32)[codes]


class Committed:
    """Transactions of which an entry was sent, so that they were committed."""

    def __init__(self) -> None:
        self._committed: Mask = np.zeros(0, np.bool_)

    def note(self, transactions: npt.NDArray[Any]) -> None:
        """Note the transactions of entries that were sent; entries without one may be among them."""
        transactions = transactions[transactions >= 0]
        if not len(transactions):
            return
        more = int(transactions.max()) + 1 - len(self._committed)
        if more > 0:
            self._committed = np.append(self._committed, np.zeros(more, np.bool_))
        self._committed[transactions] = True

    def open_or_aborted(self, transactions: npt.NDArray[Any]) -> Mask:
        """Mask the entries whose transaction was not committed, as far as it is known."""
        of_one = transactions >= 0
        if not of_one.any():
            return of_one
        known = np.zeros(int(transactions.max()) + 2, np.bool_)
        known[: len(self._committed)] = self._committed[: len(known)]
        known[-1] = True  # of an entry without a transaction
        mask: Mask = of_one & ~known[transactions]
        return mask

    def not_owed(self, transactions: npt.NDArray[Any], next_unread: int) -> Mask:
        """Mask the entries that a transaction holds back, or left out.

        ``next_unread``: the first entry that nothing at or behind was sent of; from the first entry of an open transaction
        there on, nothing is read.
        """
        mask = self.open_or_aborted(transactions)
        first_open = np.flatnonzero(mask[next_unread:])
        if len(first_open):
            mask[next_unread + int(first_open[0]) :] = True
        return mask


def any_transaction(transactions: Ints | npt.NDArray[np.int32]) -> bool:
    """Check whether any entry was published in a transaction."""
    return bool((transactions >= 0).any())
