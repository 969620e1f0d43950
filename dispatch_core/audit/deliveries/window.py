"""A window of a dispatcher's log as arrays: the input of the audit's rules.

Each entry becomes an *ordinal* (its rank among all positions), each connection and each key a small integer, each event that
matters one *operation* with a run of ordinals. The rules compare integers only; names, keys and times are looked up when a
finding is described.

Example: the entries 3:0, 3:1, 3:4 are the ordinals 0, 1, 2. When the first two are dropped, 3:4 is ordinal 0.

Entries and operations are added at the end of the window, and dropped at its front when they no longer matter; ordinals,
operations and keys are then numbered anew. A whole log is a window that is never cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.columns import Ints, Mask, encoded, ints, valid
from dispatch_core.arrays.growing import Growing
from dispatch_core.arrays.positions import ascending, distinct, locate
from dispatch_core.audit.deliveries import cursor_moves
from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.audit.deliveries.checkpoint_state import operations as checkpoint_operations
from dispatch_core.audit.deliveries.delayed_delivery import DelayedDelivery
from dispatch_core.audit.deliveries.dropped_positions import DroppedPositions
from dispatch_core.audit.deliveries.earlier_loads import EarlierLines
from dispatch_core.audit.deliveries.keys import Keys
from dispatch_core.audit.deliveries.operations import (
    ACK,
    ACK_CUMULATIVE,
    REDELIVER,
    RELOAD,
    SENT,
    Connections,
    Consumer,
    CursorOperations,
    Lines,
    Operations,
    whole_acks,
)
from dispatch_core.audit.deliveries.transactions import NO_TRANSACTION, TransactionIds
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.batch_sizes import batch_sizes, unread_sizes
from dispatch_core.recording.checkpoint import Position
from dispatch_core.recording.unread_keys import unread_keys
from dispatch_core.times import clock

SINGLE_ACTIVE: Final = ("Failover", "Exclusive")

_ENTRY_COLUMNS: Final = (
    *("_ledger", "_entry", "_key", "_hash", "_stored", "_num_messages", "_size", "_size_known"),
    *("_published", "_published_known", "_key_unread", "_size_unread", "_producer"),
    *("_due", "_transaction"),
)
#: Operations that change nothing about an acknowledged entry that is pending on nobody.
_LATE: Final = (ACK, ACK_CUMULATIVE, REDELIVER)
_NO_DELAYS: Final = DelayedDelivery()
_NOTHING: Final = np.empty(0, np.int64)

#: Sticky key hash of each row of a batch of the message log, given its keys and their ids.
Hashing = Callable[[pa.Table, Keys, npt.NDArray[np.int32]], Ints]


class LogWindow:
    """A window of one dispatcher's log. Arrays ``op_*`` have one element per operation, the others one per ordinal."""

    def __init__(
        self,
        subscription_type: str,
        *,
        streaming: bool,
        flows: bool = False,
        cursor_ops: CursorOperations | None = None,
        delays: DelayedDelivery = _NO_DELAYS,
        non_persistent: bool = False,
    ) -> None:
        """``flows``, ``cursor_ops``: see ``Lines.of``."""
        self.subscription_type = subscription_type
        #: Of a non-persistent topic, where sending settles an entry (``Lines.of``).
        self.non_persistent = non_persistent
        self.consumers: list[Consumer] = []
        self.keys = Keys(streaming=streaming)
        #: Operations before it are of earlier loads of the topic, or of the checkpoint: no line of the last log.
        self.first_op_of_last_log = 0
        #: Consumers before it are of earlier loads, as far as these came in feeds of their own.
        self.first_consumer_of_last_log = 0
        #: The checkpoint that the last log begins with, if it does; its operations begin with the one named below.
        self.checkpoint_state: CheckpointState | None = None
        self._first_op_of_checkpoint = 0
        #: Operations of the last log that name a position the message log does not hold, and the ordinal of that.
        self.unknown_op: Ints = np.empty(0, dtype=np.int64)
        self.unknown_ordinal: Ints = np.empty(0, dtype=np.int64)
        #: Deliveries of the last log whose entry has a key that could not be read, and the ordinal of that.
        self.unread_op: Ints = np.empty(0, dtype=np.int64)
        self.unread_ordinal: Ints = np.empty(0, dtype=np.int64)
        #: Likewise, of the last lines that were added, with a number of messages that could not be read.
        self.unsized_op: Ints = np.empty(0, dtype=np.int64)
        self.unsized_ordinal: Ints = np.empty(0, dtype=np.int64)
        #: Time at which the subscription began, from an earlier incarnation (``subscription_start``); None = not known.
        self.begins_us: int | None = None
        #: By operation: what moved the cursor (``by`` of the line).
        self.moved_by: dict[int, str] = {}
        self._highest_sent = -1  # ordinal
        self._reload_due = False
        self._streaming = streaming
        self._flows, self._cursor_ops = flows, cursor_ops
        self._connections = Connections(self.consumers)
        # Entries acked in part: ordinal → messages not acked yet, as bits. The cursor stores them, so they outlive a reload.
        self._left: dict[int, int] = {}
        self._dropped = DroppedPositions()
        self._ledger = Growing(np.int64)
        self._entry = Growing(np.int64)
        self._key = Growing(np.int32)
        self._hash = Growing(np.int64)
        self._stored = Growing(np.bool_)
        self._num_messages = Growing(np.int32)
        self._key_unread = Growing(np.bool_)
        self._size_unread = Growing(np.bool_)
        self._size = Growing(np.int64)
        #: The first ack line with ``ack_sets``; None = none by now.
        self.ack_sets_from_seq: int | None = None
        self._size_known = Growing(np.bool_)
        self._published = Growing(np.int64)
        self._published_known = Growing(np.bool_)
        self._producer = Growing(np.int32)
        self._producers: dict[str | None, int] = {}
        self._delays = delays
        self._due = Growing(np.int64)
        self._transaction = Growing(np.int32)
        self._transactions = TransactionIds()
        #: Some entry was delayed by now.
        self.any_delayed = False
        #: Publish time of the first entry that was published in a transaction, microseconds; None = none was by now.
        self.transactions_from_us: int | None = None
        self._op_code = Growing(np.int8)
        self._op_consumer = Growing(np.int32)
        self._op_seq = Growing(np.int64)
        self._op_t_us = Growing(np.int64)

    # what the window holds -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._ledger)

    @property
    def single_active(self) -> bool:
        """True if one consumer at a time gets everything, and the next one what is pending (Failover, Exclusive)."""
        return self.subscription_type in SINGLE_ACTIVE and not self.non_persistent

    @property
    def ledger(self) -> Ints:
        """Ledger of each entry."""
        return self._ledger.values

    @property
    def entry(self) -> Ints:
        """Id of each entry in its ledger."""
        return self._entry.values

    @property
    def entry_key(self) -> npt.NDArray[np.int32]:
        """Id of the key of each entry, -1 = key-less or unknown."""
        return self._key.values

    @property
    def entry_hash(self) -> Ints:
        """Sticky key hash of each entry, -1 = not in the message log, or dispatch does not hash."""
        return self._hash.values

    @property
    def stored(self) -> Mask:
        """Mask of the entries that the message log holds."""
        return self._stored.values

    @property
    def num_messages(self) -> npt.NDArray[np.int32]:
        """Number of messages in each entry; 0 = not in the message log."""
        return self._num_messages.values

    @property
    def size_bytes(self) -> tuple[Ints, Mask]:
        """Sizes of the entries in bytes, and the mask of known ones."""
        return self._size.values, self._size_known.values

    @property
    def publish_time_ms(self) -> tuple[Ints, Mask]:
        """Publish times of the entries in milliseconds since the epoch, and the mask of known ones."""
        return self._published.values, self._published_known.values

    @property
    def producer(self) -> npt.NDArray[np.int32]:
        """Number of the producer of each entry, -1 = not in the message log. They are numbered as they come."""
        return self._producer.values

    @property
    def producers(self) -> int:
        """Number of producers so far."""
        return len(self._producers)

    def is_named(self, producer: int) -> bool:
        """Check whether the message log names the producer with this number."""
        return self._producers.get(None) != producer

    @property
    def due_us(self) -> Ints:
        """Time until which each entry may be delayed, microseconds since the epoch; 0 = it is not (``delayed_delivery``)."""
        return self._due.values

    @property
    def transaction(self) -> npt.NDArray[np.int32]:
        """Number of the transaction of each entry, ``NO_TRANSACTION`` = none."""
        return self._transaction.values

    @property
    def any_transactions(self) -> bool:
        """True if an entry was published in a transaction."""
        return len(self._transactions) > 0

    @property
    def op_code(self) -> npt.NDArray[np.int8]:
        """Code of each operation (``operations``)."""
        return self._op_code.values

    @property
    def op_consumer(self) -> npt.NDArray[np.int32]:
        """Index of the connection of each operation, -1 = none."""
        return self._op_consumer.values

    @property
    def op_seq(self) -> Ints:
        """``seq`` of the line of each operation."""
        return self._op_seq.values

    @property
    def op_t_us(self) -> Ints:
        """Time of each operation, microseconds since the epoch."""
        return self._op_t_us.values

    def position(self, ordinal: int) -> str:
        """Return the position of an ordinal as text, ``"L:E"``."""
        return f"{self.ledger[ordinal]}:{self.entry[ordinal]}"

    @property
    def first_op_of_state(self) -> int:
        """The first operation that makes the state of the last log: of its checkpoint, if it begins with one."""
        return self.first_op_of_last_log if self.checkpoint_state is None else self._first_op_of_checkpoint

    def is_of_checkpoint(self, op: int) -> bool:
        """Check whether an operation comes from the checkpoint that the last log begins with."""
        return (
            self.checkpoint_state is not None
            and self._first_op_of_checkpoint <= op < self.first_op_of_last_log
        )

    def is_of_last_log(self, op: int) -> bool:
        """Check whether the line of an operation is one of the last log, its checkpoint included."""
        return op >= self.first_op_of_last_log or self.is_of_checkpoint(op)

    def when(self, op: int) -> str:
        """Return the time of an operation as text, to stand behind "at"."""
        at = clock(int(self.op_t_us[op]))
        return f"or before {at} (checkpoint)" if self.is_of_checkpoint(op) else at

    def may_have_been_sent(self, ordinal: int) -> bool:
        """Check whether an entry may have been sent before the checkpoint that the last log begins with, if it does."""
        if self.checkpoint_state is None:
            return False
        return self.checkpoint_state.may_have_been_sent((int(self.ledger[ordinal]), int(self.entry[ordinal])))

    def was_acknowledged(self, ordinal: int) -> bool:
        """Check whether the checkpoint that the last log begins with names an entry as acknowledged."""
        return self.checkpoint_state is not None and self.checkpoint_state.acknowledged(
            (int(self.ledger[ordinal]), int(self.entry[ordinal]))
        )

    @property
    def dropped_to(self) -> Position | None:
        """The last entry that was dropped at the front; ``None`` = none was by now."""
        return self._dropped.last

    @property
    def room(self) -> int:
        """Rows of entries and operations in memory, used or not."""
        return self._ledger.room + self._op_seq.room

    # what begins -----------------------------------------------------------------------------------------------------

    def begin_next_log(self, *, flows: bool, cursor_ops: CursorOperations | None) -> None:
        """Begin the log of the next incarnation: its operations follow a ``RELOAD``, its connections are new."""
        self._flows, self._cursor_ops = flows, cursor_ops
        self._connections = Connections(self.consumers)
        self.first_consumer_of_last_log = len(self.consumers)
        self.checkpoint_state = None
        self._reload_due = True

    def with_entries_alone(self) -> LogWindow:
        """Return a window of the same entries without any operation; this one is not to be used any more."""
        window = LogWindow(
            self.subscription_type,
            streaming=self._streaming,
            flows=self._flows,
            cursor_ops=self._cursor_ops,
            delays=self._delays,
            non_persistent=self.non_persistent,
        )
        window.keys = self.keys
        window._dropped = self._dropped
        window._producers = self._producers
        window._transactions, window.any_delayed = self._transactions, self.any_delayed
        window.transactions_from_us = self.transactions_from_us
        for name in _ENTRY_COLUMNS:
            setattr(window, name, getattr(self, name))
        return window

    # what is added ---------------------------------------------------------------------------------------------------

    def meet(self, events: pa.Table) -> None:
        """Note the connections that the lines ``events`` of the last log add, before any of them becomes an operation."""
        self._connections.meet(events)
        self._connections.number_all()

    def add_messages(self, messages: pa.Table, hashing: Hashing | None) -> None:
        """Add entries. If a position stands twice, its first row counts.

        Raises ``NotStreamableError`` when streaming and they are not all later than each other and the window.
        """
        if not messages.num_rows:
            return
        ledger, entry = ints(messages["ledger_id"]), ints(messages["entry_id"])
        self._check_order(ledger, entry)
        row_key = self.keys.encode(messages)
        hashes = hashing(messages, self.keys, row_key) if hashing is not None else None
        unread = unread_keys(messages)
        if unread.any():
            if self._streaming:
                raise NotStreamableError("keys of the message log cannot be read")
            if hashes is not None:
                hashes = np.where(unread, -1, hashes)
        rows: Any = slice(None) if ascending(ledger, entry) else distinct(ledger, entry)
        self._ledger.append(ledger[rows])
        self._entry.append(entry[rows])
        self._key.append(row_key[rows])
        count = len(self._key) - len(self._stored)
        self._hash.more(count)[...] = -1 if hashes is None else hashes[rows]
        self._stored.more(count)[...] = True
        self._num_messages.append(batch_sizes(messages)[rows].astype(np.int32))
        self._size_unread.append(unread_sizes(messages)[rows])
        self._key_unread.append(unread[rows])
        for name, values, known in (
            ("size_bytes", self._size, self._size_known),
            ("publish_time_ms", self._published, self._published_known),
        ):
            values.append(ints(messages[name])[rows])
            known.append(valid(messages[name])[rows])
        codes, names = encoded(messages["producer"])
        numbers = [self._producers.setdefault(name, len(self._producers)) for name in names.to_pylist()]
        self._producer.append(np.array([*numbers, -1], np.int32)[codes][rows])
        due_us = self._delays.due_us(messages)[rows]
        self.any_delayed = self.any_delayed or bool(due_us.any())
        self._due.append(due_us)
        transaction = self._transactions.encode(messages)[rows]
        of_one = np.flatnonzero(transaction >= 0)
        if len(of_one) and self.transactions_from_us is None:
            self.transactions_from_us = 1000 * int(ints(messages["publish_time_ms"])[rows][of_one[0]])
        self._transaction.append(transaction)

    def add_log(
        self, events: pa.Table, checkpoint_state: CheckpointState | None = None
    ) -> tuple[slice, Operations]:
        """Add the operations of a checkpoint and of the next lines; returns their place in the window, and themselves.

        Raises ``NotStreamableError`` when streaming and they name a position that the window does not hold.
        """
        lines = self._read(events)
        ordinals = locate(self.ledger, self.entry, lines.ledger, lines.entry)
        if self._streaming and len(ordinals) and int(ordinals.min()) < 0:
            self._check_not_held(lines, ordinals)
        first = len(self._op_seq)
        parts: list[Operations] = []
        if self._reload_due:
            parts.append(_reload())
            self._append(parts[-1])
            self.first_op_of_last_log = len(self._op_seq)
            self._reload_due = False
        if checkpoint_state is not None:
            parts.append(self._add_checkpoint(checkpoint_state))
        self._note_unsized(lines, ordinals)
        added, operations = self._add(lines, ordinals, self._connections.of(lines))
        return slice(first, added.stop), _joined([*parts, operations])

    def add_whole(
        self, earlier: EarlierLines, events: pa.Table, checkpoint_state: CheckpointState | None = None
    ) -> tuple[slice, Operations]:
        """Add the lines of all incarnations at once, oldest first, with positions that no message log holds.

        ``checkpoint_state``: the checkpoint that the last one begins with.
        """
        lines = self._read(events)
        before = [earlier.lines()] if len(earlier) else []
        named = [] if checkpoint_state is None else [checkpoint_state.named]
        self._admit([(run.ledger, run.entry) for run in (*before, lines)] + named)
        parts: list[Operations] = []
        for run in before:
            ordinals = locate(self.ledger, self.entry, run.ledger, run.entry)
            parts.append(self._add(run, ordinals, earlier.connections(self.consumers))[1])
            parts.append(_reload())
            self._append(parts[-1])
        if checkpoint_state is not None:
            parts.append(self._add_checkpoint(checkpoint_state))
        self.first_op_of_last_log = len(self._op_seq)
        ordinals = locate(self.ledger, self.entry, lines.ledger, lines.entry)
        owner = np.repeat(np.arange(len(lines.lengths)), lines.lengths)
        stray = np.flatnonzero(~self.stored[ordinals] & (lines.entry >= 0))
        self.unknown_op = owner[stray] + self.first_op_of_last_log
        self.unknown_ordinal = ordinals[stray].astype(np.int64)
        unread = np.flatnonzero(self._key_unread.values[ordinals] & (lines.entry >= 0))
        unread = unread[lines.code[owner[unread]] == SENT]
        self.unread_op = owner[unread] + self.first_op_of_last_log
        self.unread_ordinal = ordinals[unread].astype(np.int64)
        self._note_unsized(lines, ordinals)
        parts.append(self._add(lines, ordinals, self._connections.of(lines))[1])
        return slice(0, len(self._op_seq)), _joined(parts)

    def _note_unsized(self, lines: Lines, ordinals: npt.NDArray[np.int32]) -> None:
        """Note the deliveries among the next lines whose entry has a number of messages that could not be read."""
        found = (
            np.flatnonzero(self._size_unread.values[ordinals] & (ordinals >= 0)) if len(self) else _NOTHING
        )
        owner = np.repeat(np.arange(len(lines.lengths)), lines.lengths)
        found = found[lines.code[owner[found]] == SENT]
        self.unsized_op = owner[found] + len(self._op_seq)
        self.unsized_ordinal = ordinals[found].astype(np.int64)

    # what is dropped -------------------------------------------------------------------------------------------------

    def drop(self, entries: int, operations: Mask) -> None:
        """Drop the first ``entries`` entries, and all operations but those marked."""
        self._dropped.add(self.ledger[:entries], self.entry[:entries])
        for column in self._entry_columns():
            column.drop(entries)
        self._first_op_of_checkpoint = int(operations[: self._first_op_of_checkpoint].sum())
        self.first_op_of_last_log = int(operations[: self.first_op_of_last_log].sum())
        kept = np.flatnonzero(operations)
        self._highest_sent = max(self._highest_sent - entries, -1)
        place = np.cumsum(operations) - 1
        self.moved_by = {int(place[op]): by for op, by in self.moved_by.items() if operations[op]}
        for column in (self._op_code, self._op_consumer, self._op_seq, self._op_t_us):
            column.keep(kept)
        self._left = {o - entries: left for o, left in self._left.items() if o >= entries}

    def forget_keys(self, *, at_once: bool) -> npt.NDArray[np.int32] | None:
        """Forget keys that no entry of the window has, if there are many; returns the new ids, -1 = forgotten."""
        in_use = np.zeros(len(self.keys) + 1, dtype=np.bool_)
        in_use[self.entry_key] = True
        new = self.keys.forget(in_use[:-1], at_once=at_once)
        if new is not None:
            # the last is for -1, key-less
            self._key.values[...] = np.append(new, np.int32(-1))[self.entry_key]
        return new

    # -----------------------------------------------------------------------------------------------------------------

    def _read(self, events: pa.Table) -> Lines:
        return Lines.of(
            events, flows=self._flows, cursor_ops=self._cursor_ops, non_persistent=self.non_persistent
        )

    def _check_order(self, ledger: Ints, entry: Ints) -> None:
        if not self._streaming:
            return
        after = not len(self) or (int(ledger[0]), int(entry[0])) > (int(self.ledger[-1]), int(self.entry[-1]))
        if not (after and ascending(ledger, entry)):
            raise NotStreamableError("the message log is not in order of position, or holds a position twice")

    def _check_not_held(self, lines: Lines, ordinals: npt.NDArray[np.int32]) -> None:
        """Refuse positions outside the window, but for late acknowledgements and requests about dropped entries.

        What was dropped is acknowledged and pending on nobody: such a line changes nothing.
        """
        outside = np.flatnonzero(ordinals < 0)
        code = np.repeat(lines.code, lines.lengths)[outside]
        late = np.isin(code, _LATE) & self._dropped.hold(lines.ledger[outside], lines.entry[outside])
        if late.all():
            return
        at = int(outside[np.argmin(late)])
        ledger, entry = int(lines.ledger[at]), int(lines.entry[at])
        line = int(np.searchsorted(np.cumsum(lines.lengths), at, side="right"))
        early = self.dropped_to is not None and (ledger, entry) <= self.dropped_to
        why = "lies before the window that is kept" if early else "is not in the message log"
        raise NotStreamableError(
            f"the line at seq {int(lines.seq[line])} names {ledger}:{entry}, which {why}"
        )

    def _add_checkpoint(self, checkpoint_state: CheckpointState) -> Operations:
        """Add the operations of a checkpoint in front of the last log's."""
        added = checkpoint_operations(
            checkpoint_state,
            self.ledger,
            self.entry,
            self.num_messages,
            self._connections,
            streaming=self._streaming,
        )
        self.checkpoint_state, self._first_op_of_checkpoint = checkpoint_state, len(self._op_seq)
        self._append(added)
        self.first_op_of_last_log = len(self._op_seq)
        return added

    def _admit(self, runs: list[tuple[Ints, Ints]]) -> None:
        """Give ordinals to positions that no message log holds."""
        ledger = np.concatenate([ledgers for ledgers, _ in runs])
        entry = np.concatenate([entries for _, entries in runs])
        missing = locate(self.ledger, self.entry, ledger, entry) < 0
        if not missing.any():
            return
        ledger, entry = ledger[missing], entry[missing]
        new = distinct(ledger, entry)
        self._ledger.append(ledger[new])
        self._entry.append(entry[new])
        for column, absent in (
            (self._key, -1),
            (self._hash, -1),
            (self._stored, 0),
            (self._num_messages, 0),
            (self._key_unread, 0),
            (self._size_unread, 0),
            (self._size, 0),
            (self._size_known, 0),
            (self._published, 0),
            (self._published_known, 0),
            (self._producer, -1),
            (self._due, 0),
            (self._transaction, NO_TRANSACTION),
        ):
            column.more(len(new))[...] = absent
        order = np.lexsort((self.entry, self.ledger))
        for column in self._entry_columns():
            column.keep(order)

    def _add(
        self, lines: Lines, ordinals: npt.NDArray[np.int32], connections: npt.NDArray[np.int32]
    ) -> tuple[slice, Operations]:
        lengths = lines.lengths
        if lines.ack_sets is not None and self.ack_sets_from_seq is None:
            having = np.flatnonzero(valid(lines.ack_sets))
            if len(having):  # none: they stood in lines of other kinds
                self.ack_sets_from_seq = int(lines.seq[int(having[0])])
        cursor_moves.resolve(
            lines,
            ordinals,
            self.ledger,
            self.entry,
            self.publish_time_ms,
            highest_sent=self._highest_sent,
            streaming=self._streaming,
            dropped=self.dropped_to is not None,
        )
        of_sent = ordinals[np.repeat(lines.code == SENT, lengths)]
        self._highest_sent = max(self._highest_sent, int(of_sent.max(initial=-1)))
        first = len(self._op_seq)
        self.moved_by |= {first + op: by for op, by in lines.by.items()}
        keep, ordinals = whole_acks(lines, ordinals, self._left)
        keep &= ordinals >= 0
        if not keep.all():
            owner = np.repeat(np.arange(len(lengths)), lengths)
            lengths = np.bincount(owner[keep], minlength=len(lengths)).astype(np.int64)
            ordinals = ordinals[keep]
        start = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=start[1:])
        added = Operations(lines.code, connections, lines.seq, lines.t_us, lines.value, start, ordinals)
        before = len(self._op_seq)
        self._append(added)
        return slice(before, len(self._op_seq)), added

    def _append(self, added: Operations) -> None:
        self._op_code.append(added.code)
        self._op_consumer.append(added.consumer)
        self._op_seq.append(added.seq)
        self._op_t_us.append(added.t_us)

    def _entry_columns(self) -> tuple[Growing, ...]:
        return tuple(getattr(self, name) for name in _ENTRY_COLUMNS)


def _reload() -> Operations:
    nothing = np.zeros(1, dtype=np.int64)
    return Operations(
        code=np.array([RELOAD], dtype=np.int8),
        consumer=np.array([-1], dtype=np.int32),
        seq=nothing,
        t_us=nothing,
        value=nothing,
        start=np.zeros(2, dtype=np.int64),
        ordinals=np.empty(0, dtype=np.int32),
    )


def _joined(parts: list[Operations]) -> Operations:
    """Join several runs of operations."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.start) for part in parts])
    return Operations(
        code=np.concatenate([part.code for part in parts]),
        consumer=np.concatenate([part.consumer for part in parts]),
        seq=np.concatenate([part.seq for part in parts]),
        t_us=np.concatenate([part.t_us for part in parts]),
        value=np.concatenate([part.value for part in parts]),
        start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        ordinals=np.concatenate([part.ordinals for part in parts]),
    )
