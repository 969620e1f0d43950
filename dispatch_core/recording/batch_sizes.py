"""Numbers of messages in entries. An entry whose number cannot be read counts as one message.

Such a row of a ``MESSAGES`` table has ``num_messages`` 0, which no line can have.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import Ints, Mask, ints

#: ``num_messages`` of a row whose number cannot be read.
UNREAD: Final = 0


def batch_sizes(messages: pa.Table) -> Ints:
    """Return the number of messages in each entry of a ``MESSAGES`` table, 1 where it cannot be read."""
    return np.maximum(ints(messages["num_messages"]), 1)


def unread_sizes(messages: pa.Table) -> Mask:
    """Mask the rows of a ``MESSAGES`` table whose number of messages cannot be read."""
    mask: Mask = ints(messages["num_messages"]) == UNREAD
    return mask
