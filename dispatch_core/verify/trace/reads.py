"""Count reads that were issued and have not completed yet: a result belongs to one of them.

>>> from dispatch_core.broker.multiple_consumers import Read
>>> reads = ReadsUnderWay()
>>> reads.attempted(Read("Normal", max_entries=5))
>>> reads.completes("Normal"), reads.completes("Normal")
(True, False)
"""

from __future__ import annotations

from dispatch_core.broker.multiple_consumers import Read


class ReadsUnderWay:
    """Number of reads of each type that the core has issued and whose end is not in the log yet."""

    def __init__(self) -> None:
        self._issued = {"Normal": 0, "Replay": 0}

    def attempted(self, read: Read) -> None:
        """Take an attempt's outcome. A replay read whose entries are all acknowledged does not go to the storage."""
        if read.kind == "Normal" or (read.kind == "Replay" and len(read.already_deleted) < len(read.entries)):
            self._issued[read.kind] += 1

    def cancelled(self) -> None:
        """Forget the waiting normal read: it was cancelled."""
        self._issued["Normal"] = max(self._issued["Normal"] - 1, 0)

    def completes(self, kind: str) -> bool:
        """Take a read result; returns True if a read of its type was under way."""
        self._issued[kind] -= 1
        if self._issued[kind] >= 0:
            return True
        self._issued[kind] = 0
        return False
