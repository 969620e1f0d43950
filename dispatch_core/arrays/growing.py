"""Rows in an array that grows at its end and is cut at its front, without a copy per change."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

#: Spare room of fewer rows is not given back.
_SMALL: Final = 65_536


class Growing:
    """An array that grows at its end. ``values`` is a view of its rows, valid until the next change."""

    __slots__ = ("_room", "_used")

    def __init__(self, dtype: npt.DTypeLike, columns: int = 0) -> None:
        self._room: npt.NDArray[Any] = np.empty((0, columns) if columns else 0, dtype=dtype)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def __getstate__(self) -> npt.NDArray[Any]:
        """Return the rows alone: what lies behind them is of no use to anybody."""
        return self.values

    def __setstate__(self, rows: npt.NDArray[Any]) -> None:
        """Take the rows of a saved array."""
        self._room, self._used = rows, len(rows)

    @property
    def values(self) -> npt.NDArray[Any]:
        """The rows of the array, writable in place."""
        return self._room[: self._used]

    @property
    def room(self) -> int:
        """Rows in memory, used or not."""
        return len(self._room)

    def more(self, count: int) -> npt.NDArray[Any]:
        """Make the array ``count`` rows longer; returns the new rows, not yet written."""
        before = self._used
        if before + count > len(self._room):
            # The first time exactly the rows requested: a whole log comes as one batch. Later twice as much: a window that
            # grows while entries wait would be copied again and again, with both copies in memory meanwhile. Room that was
            # never written to takes no memory.
            self._move(before + max(count, before))
        self._used += count
        return self._room[before : self._used]

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append ``values``."""
        self.more(len(values))[...] = values

    def cut(self, used: int) -> None:
        """Keep the first ``used`` rows; gives memory back when much of it has become spare."""
        self._used = used
        if len(self._room) > 4 * used + _SMALL:
            self._move(used + _SMALL // 2)

    def drop(self, count: int) -> None:
        """Drop the first ``count`` rows."""
        kept = self._used - count
        self._room[:kept] = self._room[count : self._used]
        self.cut(kept)

    def keep(self, wanted: npt.NDArray[Any]) -> None:
        """Keep the rows that ``wanted`` (a mask, or indexes) names, in its order."""
        kept = self.values[wanted]
        self._room[: len(kept)] = kept
        self.cut(len(kept))

    def _move(self, rows: int) -> None:
        room = np.empty((rows, *self._room.shape[1:]), dtype=self._room.dtype)
        room[: self._used] = self._room[: self._used]
        self._room = room
