"""Turn the checkpoint that a log begins with into operations in front of the log's own.

These operations are no lines of the log: they prove no finding and make no delivery. They set the state from which the rules
of the audit go on: the connected consumers, the acknowledged entries, and the entries pending on each consumer. What
happened before the checkpoint beyond that is unknown, and a finding that depends on it is uncertain (``findings``).

Example: a checkpoint names consumers 1 and 2, the mark-delete position 3:7, and 3:9 pending on consumer 2. Its operations
are ``ADDED`` 1 and 2, ``FLOW`` 1 and 2, ``ACK`` of all entries up to 3:7, and ``SENT`` of 3:9 to consumer 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.columns import Ints
from dispatch_core.arrays.positions import locate
from dispatch_core.audit.deliveries.operations import ACK, ADDED, FLOW, SENT, Connections, Operations
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.checkpoint import Checkpoint, Connected, Position, leading, upto
from dispatch_core.recording.queued import as_of_its_line, queued

#: Permits of a consumer whose permits the checkpoint does not give: never too few.
UNKNOWN_PERMITS: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The checkpoint that a log begins with, and its line.

    ``t_us``: time at which the state was read, microseconds since the epoch. It may be later than the lines behind the
    checkpoint: a recorder asks the broker when it writes the checkpoint, and writes what it has queued by then after it.
    """

    checkpoint: Checkpoint
    seq: int
    t_us: int

    @classmethod
    def of(cls, events: pa.Table, *, streaming: bool = False) -> CheckpointState | None:
        """Read the checkpoint of a log that begins with ``events``; ``None`` if it does not begin with one of its consumers.

        Raises ``NotStreamableError`` when streaming and the checkpoint's state may hold lines that are not among ``events``.
        """
        checkpoint = leading(events)
        if checkpoint is None:
            return None
        if checkpoint.state_t_us is not None:
            lines = queued(events, checkpoint.state_t_us)
            if streaming and lines.num_rows == events.num_rows - 1:
                raise NotStreamableError("the state of the checkpoint is of later than the first lines")
            checkpoint = as_of_its_line(checkpoint, lines)
        t_us = max(int(events["t_us"][0].as_py() or 0), checkpoint.state_t_us or 0)
        return cls(checkpoint, int(events["seq"][0].as_py()), t_us)

    @property
    def named(self) -> tuple[Ints, Ints]:
        """Ledgers and entries of the positions that the checkpoint lists."""
        return _columns(self.checkpoint.named)

    @property
    def of_a_new_dispatcher(self) -> bool:
        """True if the dispatcher was new: the checkpoint is the log's first line, no consumer, nothing pending.

        Such a dispatcher remembers only its cursor, so the rules go on as at the beginning of any log.
        """
        return self.seq == 1 and not self.checkpoint.consumers and not any(self.checkpoint.pending.values())

    def may_have_been_sent(self, position: Position) -> bool:
        """Check whether an entry may have been sent before the log begins."""
        unsent = self.checkpoint.read_position
        return unsent is None or position < unsent

    def acknowledged(self, position: Position) -> bool:
        """Check whether the checkpoint names an entry as acknowledged."""
        checkpoint = self.checkpoint
        below = checkpoint.is_below(position) and position not in checkpoint.not_yet_acked
        return below or position in checkpoint.ack_holes


def operations(
    checkpoint_state: CheckpointState,
    ledger: Ints,
    entry: Ints,
    messages: npt.NDArray[np.int32],
    connections: Connections,
    *,
    streaming: bool,
) -> Operations:
    """Make the operations that leave the state of the checkpoint: joins, flows, one ack, one delivery per consumer.

    An inferred one ends with a flow of nothing to nobody.

    Args:
        checkpoint_state: the checkpoint and its line; all operations have the ``seq`` and time of that line.
        ledger: ledger of each entry of the window.
        entry: entry id of each entry of the window.
        messages: number of messages in each entry of the window.
        connections: indexes of the connections.
        streaming: the window must hold every position that the checkpoint names.

    Raises:
        NotStreamableError: when streaming and the window does not hold such a position.
    """
    checkpoint = checkpoint_state.checkpoint
    runs: list[tuple[int, int, npt.NDArray[np.int32]]] = []
    nothing = np.empty(0, np.int32)
    index = connections.index_of
    joined = checkpoint.consumers or ()
    runs += [(ADDED, index(consumer.number), nothing) for consumer in joined]
    runs += [(FLOW, index(consumer.number), nothing) for consumer in joined]
    acked = _ordinals(ledger, entry, checkpoint.ack_holes)
    if checkpoint.mark_delete is not None:
        below = upto(ledger, entry, checkpoint.mark_delete)
        if (
            streaming
            and below == len(ledger)
            and (not below or _last(ledger, entry) < checkpoint.mark_delete)
        ):
            raise NotStreamableError("the checkpoint's mark-delete position lies behind the window")
        below_it = np.arange(below, dtype=np.int32)
        if checkpoint.not_yet_acked:
            below_it = np.setdiff1d(below_it, _ordinals(ledger, entry, checkpoint.not_yet_acked))
        acked = np.union1d(below_it, acked) if len(acked) else below_it
    runs.append((ACK, -1, acked.astype(np.int32)))
    for number, positions in checkpoint.pending.items():
        if positions:
            runs.append((SENT, index(number), _ordinals(ledger, entry, positions)))
    if checkpoint.inferred:
        runs.append((FLOW, -1, nothing))  # behind the ack: ``Scan.take`` doubts what is before it
    if streaming and any(len(ordinals) and int(ordinals.min()) < 0 for _, _, ordinals in runs):
        raise NotStreamableError("the checkpoint names a position that is not in the message log")
    count = len(runs)
    granted = [_granted(checkpoint_state, consumer, ledger, entry, messages) for consumer in joined]
    return Operations(
        code=np.array([code for code, _, _ in runs], np.int8),
        consumer=np.array([consumer for _, consumer, _ in runs], np.int32),
        seq=np.full(count, checkpoint_state.seq, np.int64),
        t_us=np.full(count, checkpoint_state.t_us, np.int64),
        value=np.array([0] * len(joined) + granted + [0] * (count - 2 * len(joined))),
        start=np.cumsum([0, *(len(ordinals) for _, _, ordinals in runs)]).astype(np.int64),
        ordinals=np.concatenate([ordinals for _, _, ordinals in runs]),
    )


def _granted(
    checkpoint_state: CheckpointState,
    consumer: Connected,
    ledger: Ints,
    entry: Ints,
    messages: npt.NDArray[np.int32],
) -> int:
    """Return a consumer's permits before its pending entries are sent; ``UNKNOWN_PERMITS`` if the checkpoint gives none."""
    pending = checkpoint_state.checkpoint.pending.get(consumer.number)
    if consumer.permits is None or (pending is None and consumer.unacked != 0):
        return UNKNOWN_PERMITS
    ordinals = _ordinals(ledger, entry, pending or ())
    # An entry that no message log holds counts as one message.
    sent = int(np.maximum(messages[ordinals], 1).sum()) if len(messages) else 0
    return max(consumer.permits + sent, 1)


def _columns(positions: list[Position]) -> tuple[Ints, Ints]:
    both = np.array(positions, np.int64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


def _ordinals(ledger: Ints, entry: Ints, positions: tuple[Position, ...]) -> npt.NDArray[np.int32]:
    return locate(ledger, entry, *_columns(list(positions))).astype(np.int32)


def _last(ledger: Ints, entry: Ints) -> Position:
    return int(ledger[-1]), int(entry[-1])
