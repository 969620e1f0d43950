"""The deliveries of one dispatcher's log and how each ended, in the arrays of the audit.

Entries are *ordinals* (rank among all positions), connections are places in ``names``, lines are *operations*
(``audit.deliveries.window``). The scan of the audit says which entries a connection held at a given operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.columns import Ints, encode, ints
from dispatch_core.arrays.positions import locate
from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.audit.deliveries.earlier_loads import EarlierLines
from dispatch_core.audit.deliveries.keys import Keys
from dispatch_core.audit.deliveries.missing_lines import without_repeated_rows
from dispatch_core.audit.deliveries.operations import Operations
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.window import Hashing, LogWindow
from dispatch_core.audit.sentences.names import consumer_name, display_names, shown
from dispatch_core.broker import hashing
from dispatch_core.broker.profiles import Profile
from dispatch_core.errors import ProfileError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, subscription_type

#: Ends after which an entry waits to be sent again.
TAKEN_BACK: Final = (at.NACKED, at.NACKED_ALL, at.DISCONNECTED, at.ALL_LEFT, at.RELOADED)
NONE: Final = -1


@dataclass(frozen=True, slots=True)
class Record:
    """A log, read once. ``deliveries`` has the columns of ``audit.deliveries.layout``; ``ended_before`` holds for each
    delivery how the previous delivery of the same entry ended (-1 = there was none).

    ``first_op``: the first operation of a line of this incarnation. Earlier ones belong to earlier incarnations or to the
    checkpoint.
    """

    log: DispatcherLog
    profile: Profile | None
    history: LogWindow = field(repr=False)
    operations: Operations = field(repr=False)
    deliveries: npt.NDArray[np.int32] = field(repr=False)
    ended_before: npt.NDArray[np.int8] = field(repr=False)
    names: list[str]
    places: dict[int, int] = field(repr=False)
    first_op: int

    @classmethod
    def of(cls, log: DispatcherLog, earlier: Sequence[DispatcherLog] = ()) -> Record:
        """Read ``log``; ``earlier`` are the incarnations before it, oldest first."""
        try:
            profile = profile_of(log)
        except ProfileError:
            profile = None
        kind = subscription_type(log)
        history = LogWindow(kind, streaming=False, flows=True)
        history.meet(log.events)
        hashed = profile is not None and kind == "Key_Shared"
        history.add_messages(log.messages, _hashing(profile) if hashed and profile is not None else None)
        events = [
            without_repeated_rows(encode(incarnation.events, "kind"))[0] for incarnation in (*earlier, log)
        ]
        before = EarlierLines(events[:-1], flows=True)
        _, operations = history.add_whole(before, events[-1], CheckpointState.of(events[-1]))
        scan = Scan(single_active=history.single_active, ordered=kind != "Shared")
        scanned = scan.take(history, 0, operations)
        return cls(
            log,
            profile,
            history,
            operations,
            scan.deliveries,
            scanned.ended,
            display_names(history.consumers),
            # two incarnations may use the same number: the later place, of this incarnation, wins
            {connection.number: place for place, connection in enumerate(history.consumers)},
            history.first_op_of_last_log,
        )

    @property
    def first_consumer(self) -> int:
        """The first place of a connection of this incarnation; those before belong to earlier ones."""
        before = self.operations.consumer[: self.history.first_op_of_state]
        return int(before.max(initial=-1)) + 1

    # connections -----------------------------------------------------------------------------------------------------

    def place_of(self, number: int | None) -> int:
        """The place in ``names`` of a connection of this incarnation, by its number in the log; -1 = none."""
        return NONE if number is None else self.places.get(number, NONE)

    def who(self, number: int | None) -> str:
        """The display name of a connection, by its number in the log (``None`` or -1: nobody)."""
        place = self.place_of(number)
        if place >= 0:
            return self.names[place]
        return consumer_name(None if number is None or number < 0 else number, None)

    def number_of(self, place: int) -> int | None:
        """The number in the log of a connection by its place."""
        return None if place < 0 else self.history.consumers[place].number

    # entries ---------------------------------------------------------------------------------------------------------

    def ordinal(self, ledger: int, entry: int) -> int:
        """The ordinal of a position, -1 = neither stored nor named by any line."""
        found = locate(
            self.history.ledger, self.history.entry, np.array([ledger], np.int64), np.array([entry], np.int64)
        )
        return int(found[0])

    def position(self, ordinal: int) -> str:
        """``"L:E"`` of an ordinal."""
        return self.history.position(ordinal)

    def positions(self, ordinals: Iterable[int]) -> tuple[str, ...]:
        """``"L:E"`` of several."""
        return tuple(map(self.history.position, ordinals))

    def key(self, ordinal: int) -> str | None:
        """The key of an entry as it may be shown, None = key-less or not stored."""
        key = int(self.history.entry_key[ordinal])
        return None if key < 0 else shown(self.history.keys.text(key))

    def stored_us(self, ordinal: int) -> int | None:
        """The time an entry was stored, by its producer's clock (milliseconds)."""
        values, known = self.history.publish_time_ms
        return int(values[ordinal]) * 1000 if known[ordinal] else None

    # time ------------------------------------------------------------------------------------------------------------

    @property
    def span_us(self) -> tuple[int, int]:
        """Time of the first and of the last line; (0, 0) without lines."""
        times = ints(self.log.events["t_us"])
        return (int(times.min()), int(times.max())) if len(times) else (0, 0)

    def seq(self, op: int) -> int:
        """The line of an operation; of an earlier incarnation's, 0: its lines are numbered by themselves."""
        return int(self.history.op_seq[op]) if self.history.is_of_last_log(op) else 0

    def t_us(self, op: int) -> int:
        """The time of an operation."""
        return int(self.history.op_t_us[op])

    def op_at(self, seq: int) -> int:
        """The first operation of this incarnation at or after the line ``seq``."""
        return self.first_op + int(np.searchsorted(self.history.op_seq[self.first_op :], seq))

    def op_behind(self, t_us: int) -> int:
        """The first operation of this incarnation that is later than a time."""
        times = self.history.op_t_us[self.first_op :]
        return self.first_op + int(np.searchsorted(times, t_us, side="right"))

    def held_at(self, op: int, ordinals: Ints, place: int | None = None) -> npt.NDArray[np.int32]:
        """Deliveries of ``ordinals`` that were outstanding just before ``op``: at the connection ``place``, or anywhere."""
        d = self.deliveries
        is_held = (d[:, at.OPERATION] < op) & ((d[:, at.END_OPERATION] >= op) | (d[:, at.END] == at.OPEN))
        if place is not None:
            is_held &= d[:, at.CONSUMER] == place
        outstanding = np.flatnonzero(is_held)
        return outstanding[np.isin(d[outstanding, at.ENTRY], ordinals)].astype(np.int32)


def _hashing(profile: Profile) -> Hashing:
    def hashes(messages: pa.Table, keys: Keys, row_key: npt.NDArray[np.int32]) -> Ints:
        return profile.hash_space.sticky_array(keys.h31(messages, row_key, fallback=profile.fallback_key))

    return hashes


def h31_of(record: Record) -> Ints:
    """The masked murmur hash of every row of the message log."""
    fallback = record.profile is not None and record.profile.fallback_key
    return hashing.entry_h31(record.log.messages, fallback=fallback)
