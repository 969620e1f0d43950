"""Notes on a long wait: the entries that wait, their keys, and the pending entries that keep them waiting.

Asked while the state still shows it; ``sampling`` keeps only numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.waits import sampling as at_
from dispatch_core.broker.gates import (
    DRAINING_HASH,
    FAILOVER_DELAY,
    LAST_SENT_POSITION,
    LOOK_AHEAD_LIMIT,
    NO_PERMITS,
    RECENTLY_JOINED,
    UNACKED_LIMIT_CONSUMER,
    UNACKED_LIMIT_SUBSCRIPTION,
)
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.state import I32, I64, MARK_DELETE, NOBODY, READ_POSITION, State

#: A key as text, or base64 where it is none (second: which).
Key = tuple[str, bool]
Core = KeySharedDispatcher | SingleActiveDispatcher

#: Positions that one hold lists at most.
MOST_POSITIONS: Final = 20


class Window(Protocol):
    """The entries that a fold numbers: what they are called, and when they were stored."""

    ledger_ids: I64
    entry_ids: I64

    def position(self, ordinal: int) -> str:
        """``"L:E"``."""
        ...

    def key(self, ordinal: int) -> Key | None:
        """Its key; None = key-less, or not in the message log."""
        ...

    def same_key(self, ordinal: int) -> npt.NDArray[np.intp]:
        """Ordinals of all entries of its key, ascending; of key-less ones only itself."""
        ...

    def times_sent(self) -> npt.NDArray[np.int32]:
        """The number of deliveries of each entry."""
        ...


@dataclass(frozen=True, slots=True)
class Note:
    """The parts of a wait that a row cannot hold."""

    holder: int | None
    holder_positions: tuple[str, ...]
    holder_pending: int
    positions: tuple[str, ...]
    keys: tuple[Key | None, ...]


class Notes:
    """Describes waits; ``now``: the numbers of the last sample."""

    def __init__(self, now: I64) -> None:
        self.now = now
        self.window: Window
        self.stored_us: I64 = np.empty(0, np.int64)
        self.outstanding: tuple[I32, I64] = np.empty(0, np.int32), np.empty(0, np.int64)

    def of_row(self, core: Core, row: Any) -> Note:
        """All that is listed of the wait in a row."""
        waiting = self.waiting(core.state, int(row[at_.HASH])).tolist()
        held = held_by_reason(
            core, int(row[at_.LEADING]), int(row[at_.SLOT]), int(row[at_.HOLDER]), int(row[at_.HASH])
        )
        holder = number_of(core, int(row[at_.HOLDER]))
        if len(held) and not isinstance(core, SingleActiveDispatcher):
            st = core.state
            slots = (
                st.hash_owner[st.hash_id[held]] if row[at_.LEADING] == LOOK_AHEAD_LIMIT else st.holder[held]
            )
            if row[at_.LEADING] in (LOOK_AHEAD_LIMIT, UNACKED_LIMIT_SUBSCRIPTION):
                counts = np.bincount(slots[slots >= 0], minlength=1)
                holder = number_of(core, int(np.argmax(counts))) if counts.any() else None
            elif row[at_.LEADING] in (RECENTLY_JOINED, LAST_SENT_POSITION):
                holder = number_of(core, int(slots[0]))
        return Note(
            holder,
            tuple(self.window.position(entry) for entry in held[:MOST_POSITIONS].tolist()),
            len(held),
            **self.called(waiting),
        )

    def called(self, entries: list[int]) -> dict[str, Any]:
        """The waiting entries by position and key, as far as they are listed."""
        entries = entries[:MOST_POSITIONS]
        return {
            "positions": tuple(self.window.position(entry) for entry in entries),
            "keys": tuple(self.window.key(entry) for entry in entries),
        }

    def waiting(self, st: State, hash_id: int) -> I64:
        """Entries of a hash that wait, as of the last sample."""
        now = self.now
        listed = np.empty(int(now[at_.END] - now[at_.FIRST]), np.int64)
        now[at_.WANTED] = hash_id
        at_.survey(st, self.stored_us, now, *self.outstanding, listed)
        now[at_.WANTED] = -1
        return listed[: now[at_.LISTED]]

    def never_sent(self, st: State, hash_id: int) -> list[int]:
        """Waiting entries of a hash that were never sent."""
        sent = self.window.times_sent()
        return [entry for entry in self.waiting(st, hash_id).tolist() if not sent[entry]]

    def not_passed(self, never: list[int]) -> int:
        """The number of them that lie behind all of their key that was sent."""
        sent = self.window.times_sent()
        highest: dict[Key | None, int] = {}
        count = 0
        for entry in never:
            key = self.window.key(entry)
            if key not in highest:
                same = self.window.same_key(entry)
                same = same[sent[same] > 0]
                highest[key] = int(same[-1]) if len(same) else -1
            count += entry > highest[key]
        return count


def number_of(core: Core, slot: int) -> int | None:
    """The log's number of a consumer; a dispatcher with one active consumer has no slots."""
    if slot < 0:
        return None
    return slot if isinstance(core, SingleActiveDispatcher) else core.number_of(slot)


def held_by_reason(core: Core, leading: int, slot: int, holder: int, hash_id: int) -> npt.NDArray[np.intp]:
    """Entries whose being held, or waiting, is what a reason comes from."""
    st = core.state
    low, high = int(st.s[MARK_DELETE]) + 1, len(st.holder)
    if isinstance(core, SingleActiveDispatcher):
        if leading not in (NO_PERMITS, FAILOVER_DELAY):
            return np.empty(0, np.intp)
        return low + np.flatnonzero(st.deleted[low : int(st.s[READ_POSITION])] == 0)
    held = st.holder[low:high]
    if leading == DRAINING_HASH:
        return low + np.flatnonzero((held == holder) & (st.pending_hash[low:high] == hash_id))
    if leading in (RECENTLY_JOINED, LAST_SENT_POSITION):
        limit = int(st.joined_at[slot]) + (leading == LAST_SENT_POSITION)
        return low + np.flatnonzero(held[: max(limit - low, 0)] != NOBODY)
    if leading in (NO_PERMITS, UNACKED_LIMIT_CONSUMER):
        return low + np.flatnonzero(held == slot)
    if leading == UNACKED_LIMIT_SUBSCRIPTION:
        return low + np.flatnonzero(held != NOBODY)
    if leading == LOOK_AHEAD_LIMIT:
        return np.flatnonzero(st.in_replay)
    return np.empty(0, np.intp)
