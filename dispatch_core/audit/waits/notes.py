"""Note the details of a long wait: the entries that wait, their keys, and the pending entries that keep them waiting.

Notes are made while the state still shows these; ``sampling`` keeps only numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
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
from dispatch_core.broker.ordering import last_sent_position, read_position
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.state import I32, I64, MARK_DELETE, NOBODY, READ_POSITION, State

#: A key as text, or as base64 if it is no text; the second value is True for base64.
Key = tuple[str, bool]
Core = KeySharedDispatcher | SharedDispatcher | SingleActiveDispatcher

#: Most positions that one wait lists.
MOST_POSITIONS: Final = 20


class Window(Protocol):
    """Positions, keys and deliveries of the entries that a fold numbers."""

    ledger_ids: I64
    entry_ids: I64

    def position(self, ordinal: int) -> str:
        """Return the position of an entry, ``"L:E"``."""
        ...

    def key(self, ordinal: int) -> Key | None:
        """Return the key of an entry; None = key-less, or not in the message log."""
        ...

    def producer(self, ordinal: int) -> int:
        """Return the number of the producer of an entry; -1 = not in the message log."""
        ...

    def key_ids(self) -> npt.NDArray[np.int32]:
        """Return a number for the key of each entry; -1 = key-less, or not in the message log."""
        ...

    def times_sent(self) -> npt.NDArray[np.int32]:
        """Return the number of deliveries of each entry."""
        ...


@dataclass(frozen=True, slots=True)
class Note:
    """The parts of a wait that a row of ``sampling`` cannot hold.

    ``holder_positions``: entries pending on ``holder``, at most ``MOST_POSITIONS`` of ``holder_pending``. ``positions``:
    waiting entries, with their ``keys``, and with the numbers of their producers and the times since when they are owed
    (``published``).
    """

    holder: int | None
    holder_positions: tuple[str, ...]
    holder_pending: int
    positions: tuple[str, ...]
    keys: tuple[Key | None, ...]
    published: tuple[tuple[int, int], ...] = ()


class Notes:
    """Describe waits; ``now``: the numbers of the last sample (``sampling``)."""

    def __init__(self, now: I64) -> None:
        self.now = now
        self.window: Window
        self.stored_us: I64 = np.empty(0, np.int64)
        self.owed_us: I64 = np.empty(0, np.int64)
        self.outstanding: tuple[I32, I64] = np.empty(0, np.int32), np.empty(0, np.int64)

    def of_row(self, core: Core, row: Any) -> Note:
        """Describe the wait in a row of ``sampling``."""
        waiting = self.waiting(core.state, int(row[at_.HASH])).tolist()
        leading, slot, holder, hash_id = (
            int(row[column]) for column in (at_.LEADING, at_.SLOT, at_.HOLDER, at_.HASH)
        )
        return Note(*self.held_by(core, leading, slot, holder, hash_id), **self.called(waiting))

    def held_by(
        self, core: Core, reason: int, slot: int, holder: int, hash_id: int
    ) -> tuple[int | None, tuple[str, ...], int]:
        """Return the number of the consumer that holds a wait up, the first of its entries that do, and their count.

        ``reason``: the gate; the other arguments are those of ``entries_behind``.
        """
        entries = entries_behind(core, reason, slot, holder, hash_id)
        number = number_of(core, holder)
        if len(entries) and not isinstance(core, SingleActiveDispatcher):
            st = core.state
            slots = st.hash_owner[st.hash_id[entries]] if reason == LOOK_AHEAD_LIMIT else st.holder[entries]
            if reason in (LOOK_AHEAD_LIMIT, UNACKED_LIMIT_SUBSCRIPTION):
                counts = np.bincount(slots[slots >= 0], minlength=1)
                number = number_of(core, int(np.argmax(counts))) if counts.any() else None
            elif reason in (RECENTLY_JOINED, LAST_SENT_POSITION):
                number = number_of(core, int(slots[0]))
        positions = tuple(self.window.position(entry) for entry in entries[:MOST_POSITIONS].tolist())
        return number, positions, len(entries)

    def called(self, entries: list[int]) -> dict[str, Any]:
        """Return position, key and publication of the first waiting entries, as many as are listed."""
        entries = entries[:MOST_POSITIONS]
        return {
            "positions": tuple(self.window.position(entry) for entry in entries),
            "keys": tuple(self.window.key(entry) for entry in entries),
            "published": tuple((self.window.producer(entry), int(self.owed_us[entry])) for entry in entries),
        }

    def waiting(self, st: State, hash_id: int) -> I64:
        """Return the waiting entries of a hash, as of the last sample."""
        now = self.now
        listed = np.empty(int(now[at_.END] - now[at_.FIRST]), np.int64)
        now[at_.WANTED] = hash_id
        at_.survey(st, self.stored_us, self.owed_us, now, *self.outstanding, listed)
        now[at_.WANTED] = -1
        return listed[: now[at_.LISTED]]

    def never_sent(self, st: State, hash_id: int) -> list[int]:
        """Return the waiting entries of a hash that were never sent."""
        waiting = self.waiting(st, hash_id)
        never: list[int] = waiting[self.window.times_sent()[waiting] == 0].tolist()
        return never

    def by_key(self, entries: list[int]) -> Counter[Key | None]:
        """Count entries by key; None = no key."""
        found: Counter[Key | None] = Counter()
        if entries:
            ids = self.window.key_ids()[entries]
            for first, count in zip(*np.unique(ids, return_index=True, return_counts=True)[1:], strict=True):
                found[self.window.key(entries[first])] += int(count)
        return found

    def not_passed(self, never: list[int]) -> int:
        """Count the entries that lie behind all entries of their key that were sent."""
        if not never:
            return 0
        keys = self.window.key_ids()
        sent = np.flatnonzero((self.window.times_sent() > 0) & (keys >= 0))
        highest = np.full(int(keys.max()) + 2, -1)  # the last: of entries without a key
        np.maximum.at(highest, keys[sent], sent)
        return int(np.count_nonzero(np.array(never) > highest[keys[never]]))


def number_of(core: Core, slot: int) -> int | None:
    """Return the log's number of a consumer; a dispatcher with one active consumer has no slots."""
    if slot < 0:
        return None
    return slot if isinstance(core, SingleActiveDispatcher) else core.number_of(slot)


def entries_behind(core: Core, leading: int, slot: int, holder: int, hash_id: int) -> npt.NDArray[np.intp]:
    """Return the pending or waiting entries that close a gate.

    Args:
        core: the dispatcher.
        leading: the gate, a code of ``broker.gates``.
        slot: the consumer that waits.
        holder: the consumer for which the hash drains.
        hash_id: the hash of the waiting entries.

    Returns:
        Their ordinals, ascending; empty for a gate that no entry closes.
    """
    st = core.state
    low, high = int(st.s[MARK_DELETE]) + 1, len(st.holder)
    if isinstance(core, SingleActiveDispatcher):
        if leading not in (NO_PERMITS, FAILOVER_DELAY):
            return np.empty(0, np.intp)
        return low + np.flatnonzero(st.deleted[low : int(st.s[READ_POSITION])] == 0)
    holders = st.holder[low:high]
    if leading == DRAINING_HASH:
        return low + np.flatnonzero((holders == holder) & (st.pending_hash[low:high] == hash_id))
    if leading in (RECENTLY_JOINED, LAST_SENT_POSITION):
        rule = read_position if leading == RECENTLY_JOINED else last_sent_position
        limit = int(st.joined_at[slot])
        within = bisect_left(range(low, high), True, key=lambda entry: not rule.within(entry, limit))
        return low + np.flatnonzero(holders[:within] != NOBODY)
    if leading in (NO_PERMITS, UNACKED_LIMIT_CONSUMER):
        return low + np.flatnonzero(holders == slot if slot != NOBODY else holders != NOBODY)
    if leading == UNACKED_LIMIT_SUBSCRIPTION:
        return low + np.flatnonzero(holders != NOBODY)
    if leading == LOOK_AHEAD_LIMIT:
        return np.flatnonzero(st.in_replay)
    return np.empty(0, np.intp)
