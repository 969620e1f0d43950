"""Cut waits where their reason changes, for explanations.

``sampling`` keeps one row for the oldest waiting entry of a hash, with the time of each reason. Here a *part* begins where
the reason, or the consumer that waits, differs from the sample before. It notes who held the entry up when it began. The
parts of a wait follow one another without a break. Those of one reason are together as long as its share.

Example: 3:47 waits 2.7 s because its hash drains for c1, and then 4 s because c2, which owns the hash, has no permits. That
is one wait with the leading reason ``no_permits``, in two parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.waits import sampling as at_
from dispatch_core.audit.waits.notes import Core, Notes, number_of
from dispatch_core.audit.waits.reasons import REASONS
from dispatch_core.broker.gates import DRAINING_HASH, NO_CONSUMER
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.state import NOBODY

#: The last value of a hash of which nothing waits.
_NONE: Final = -9
#: What a part is cut by: the reason, the consumer that waits, the one that the hash drains for.
_CUT_BY: Final = 3


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a wait in which one rule held it. Times: microseconds; ``until_t_us`` ``None`` = it goes on at the end.

    ``reason`` ``None`` means that no rule held it. ``waiting``: the consumer that should get it; ``holder``: the one that
    holds it up, with its pending entries when the part began: ``holder_positions`` are the first of ``holder_pending``.
    """

    reason: str | None
    waiting: int | None
    holder: int | None
    holder_positions: tuple[str, ...]
    holder_pending: int
    from_t_us: int
    until_t_us: int | None


class Parts:
    """The parts of the waits that are open, by hash id. ``notes`` describes what holds a wait."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._last = np.empty((0, _CUT_BY), np.int64)
        self._of: dict[int, list[Part]] = {}

    def note(self, core: Core, rows: at_.Rows, slots: npt.NDArray[np.int64]) -> None:
        """Begin a part for each row whose reason or consumer is another one than in the sample before.

        Call it after each sample. ``rows``: all waits that are open; ``slots``: the consumers that should get their entries.
        """
        if not len(rows):
            return
        hashes = rows[:, at_.HASH]
        slots = np.where(rows[:, at_.REASON] == NO_CONSUMER, NOBODY, slots)
        self._make_room(int(hashes.max()) + 1)
        drains = rows[:, at_.REASON] == DRAINING_HASH
        drains_for = np.full(len(rows), -1, np.int64)
        if not isinstance(core, SingleActiveDispatcher):
            drains_for[drains] = core.state.drain_owner[hashes[drains]]
        now = np.stack([rows[:, at_.REASON], slots, drains_for], axis=1)
        changed = np.flatnonzero((self._last[hashes] != now).any(axis=1))
        self._last[hashes[changed]] = now[changed]
        for at in changed.tolist():
            self._begin(core, rows[at], *now[at, :2].tolist())

    def _begin(self, core: Core, row: Any, reason: int, slot: int) -> None:
        parts = self._of.setdefault(int(row[at_.HASH]), [])
        from_us = int(row[at_.FROM_US])
        if parts:
            from_us = max(from_us, int(self._notes.now[at_.BEFORE_US]))
            parts[-1] = _until(parts[-1], from_us)
        holder = at_.holder_of(core.state, self._notes.now, reason, slot, int(row[at_.HASH]))
        behind = self._notes.held_by(core, reason, slot, int(holder), int(row[at_.HASH]))
        parts.append(Part(REASONS[reason], number_of(core, slot), *behind, from_us, None))

    def of(self, hash_id: int, until_us: int | None) -> tuple[Part, ...]:
        """Return the parts of the open wait of a hash; ``until_us``: when it ended, ``None`` = it goes on."""
        parts = self._of.get(hash_id, [])
        if not parts or until_us is None:
            return tuple(parts)
        return (*parts[:-1], _until(parts[-1], until_us))

    def end(self, hashes: npt.NDArray[np.int64]) -> None:
        """Forget the waits of some hashes, which have ended."""
        self._last[hashes[hashes < len(self._last)]] = _NONE
        for hash_id in hashes.tolist():
            self._of.pop(hash_id, None)

    def _make_room(self, hashes: int) -> None:
        if hashes > len(self._last):
            last = np.full((max(hashes, 2 * len(self._last)), _CUT_BY), _NONE, np.int64)
            last[: len(self._last)] = self._last
            self._last = last


def _until(part: Part, until_us: int) -> Part:
    return replace(part, until_t_us=until_us)
