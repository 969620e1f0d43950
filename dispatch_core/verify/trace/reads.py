"""Reads that were issued and have not completed yet: a result belongs to one of them.

>>> from dispatch_core.broker.multiple_consumers import Read
>>> reads = ReadsUnderWay()
>>> reads.attempted(Read("Normal", max_entries=5))
>>> reads.completes("Normal"), reads.completes("Normal")
(True, False)
"""

from __future__ import annotations

from dispatch_core.broker.multiple_consumers import Read


class ReadsUnderWay:
    """How many reads of each type the core has issued, as far as the log says nothing of their end."""

    def __init__(self) -> None:
        self._issued = {"Normal": 0, "Replay": 0}

    def attempted(self, read: Read) -> None:
        """An attempt's outcome. A replay read of what is all acknowledged does not go to the storage."""
        if read.kind == "Normal" or (read.kind == "Replay" and len(read.already_deleted) < len(read.entries)):
            self._issued[read.kind] += 1

    def cancelled(self) -> None:
        """The waiting normal read was cancelled; its result will not come."""
        self._issued["Normal"] = max(self._issued["Normal"] - 1, 0)

    def completes(self, kind: str) -> bool:
        """A result comes; returns whether a read of its type was under way."""
        self._issued[kind] -= 1
        if self._issued[kind] >= 0:
            return True
        self._issued[kind] = 0
        return False
