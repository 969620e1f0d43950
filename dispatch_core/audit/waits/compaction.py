"""Decide which entries a compacted read may have left out.

Compaction keeps the last entry of each key up to its horizon, the last position that it read. A compacted read leaves out an
entry only if a later entry of its key lies before the horizon, and it then leaves out every entry for which this is so.

Example: 5:1 and 5:6 have the key a, 5:2 and 5:4 the key b. 5:2, 5:4 and 5:6 are sent, 5:1 is not. To leave out 5:1 the
horizon must lie behind 5:6; but then 5:2 would have been left out, too. So 5:1 is lost.

Source: TwoPhaseCompactor, CompactedTopicImpl.asyncReadEntriesOrWait.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.columns import Ints, Mask
from dispatch_core.audit.deliveries.layout import CONSUMER, ENTRY
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.window import LogWindow

_NEVER: Final = np.iinfo(np.int64).max
#: More connections than this are not told apart.
_MOST_CONNECTIONS: Final = 16


def not_by_compaction(window: LogWindow, scan: Scan) -> Mask:
    """Mask the entries of the window that no compacted read left out, if they were not sent.

    It compares what the connection got that was sent the next entry. Nothing is said where the cursor was moved, and batches
    that were sent prove nothing: of some of their messages a later entry may be missing.
    """
    count = len(window)
    refuted = np.zeros(count, np.bool_)
    sent = np.flatnonzero(scan.times_sent)
    if not len(sent) or window.moved_by:
        return refuted
    of_connection = _first_connection(scan, count)
    connections = np.unique(of_connection[sent])
    if len(connections) > _MOST_CONNECTIONS:
        return refuted
    following = _next_of_key(window)
    next_sent = np.searchsorted(sent, np.arange(count), side="right")
    to = np.where(next_sent < len(sent), of_connection[sent[np.minimum(next_sent, len(sent) - 1)]], -1)
    for connection in connections.tolist():
        proof = np.full(count + 1, _NEVER, np.int64)
        single = sent[(of_connection[sent] == connection) & (window.num_messages[sent] == 1)]
        proof[single] = following[single]
        earliest = np.minimum.accumulate(proof[::-1])[::-1][1:]
        refuted |= (to == connection) & (following < _NEVER) & (earliest <= following)
    return refuted


def _next_of_key(window: LogWindow) -> Ints:
    """Return for each entry the next stored one of its key; ``_NEVER`` = none, or it has no key."""
    following = np.full(len(window), _NEVER, np.int64)
    keyed = np.flatnonzero((window.entry_key >= 0) & window.stored)
    order = keyed[np.argsort(window.entry_key[keyed], kind="stable")]
    same = window.entry_key[order[1:]] == window.entry_key[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return following


def _first_connection(scan: Scan, count: int) -> npt.NDArray[np.int32]:
    """Return the connection that each entry was sent to first, -1 = none."""
    connection = np.full(count, -1, np.int32)
    deliveries = scan.deliveries[::-1]
    connection[deliveries[:, ENTRY]] = deliveries[:, CONSUMER]
    return connection
