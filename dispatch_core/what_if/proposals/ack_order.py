"""Count the entries that an application has processed behind a later one of their key: what PIP-493 is about.

A log shows when entries were sent and acknowledged. An entry that was sent again after a later one of its key may have been
processed before it or behind it; its acknowledgement tells.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def acknowledged_behind(entries: Ints, keys: Ints) -> int:
    """Count the entries whose first acknowledgement comes after that of a later entry of their key.

    ``entries``: in the order of their acknowledgements, ``keys``: of each entry of the log, by its number.

    >>> acknowledged_behind(np.array([0, 3, 2, 1, 1]), np.array([7, 7, 7, 8]))
    1
    """
    _, first = np.unique(entries, return_index=True)
    entries = entries[np.sort(first)]
    order = np.argsort(keys[entries], kind="stable")  # key by key, each in the order of acknowledgements
    entries, of_key = entries[order], keys[entries][order]
    new = np.ones(len(entries), bool)
    new[1:] = np.diff(of_key) != 0
    # Each key's entries lie above those of the keys before it, so one running maximum serves all.
    lifted = entries + (np.cumsum(new) - 1) * (len(keys) + 1)
    return int((np.maximum.accumulate(lifted) > lifted).sum()) if len(lifted) else 0
