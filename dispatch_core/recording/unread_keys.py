"""Entries whose key the message log gives in a form that cannot be read, such as text that is no base64.

Their rows have no key, no ordering key and no hash, but the flag ``key_b64`` (``schema.MESSAGES``). The broker dispatched
them by a key that is not known here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import valid


def unread_keys(messages: pa.Table) -> npt.NDArray[np.bool_]:
    """Mask of the rows of a ``MESSAGES`` table with a key that could not be read."""
    flags = messages["key_b64"]
    if flags.null_count == len(flags):
        return np.zeros(len(flags), dtype=np.bool_)
    flagged: npt.NDArray[np.bool_] = np.asarray(pc.fill_null(flags, False))
    for name in ("key", "ordering_key_b64", "key_h31"):
        flagged = flagged & ~valid(messages[name])
    return flagged


def with_readable_keys(messages: pa.Table) -> pa.Table:
    """The rows without those of ``unread_keys``: no rule can be compared for them."""
    unread = unread_keys(messages)
    return messages.filter(pa.array(~unread)) if unread.any() else messages
