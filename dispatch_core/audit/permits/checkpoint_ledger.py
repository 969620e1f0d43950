"""The permit ledger of a log without a trace: compared with the permits that later checkpoints name.

Without a trace the broker's counts are unseen, except where a ``checkpoint`` line in the middle of a log gives ``permits``
of consumers, as the broker's statistics do (``availablePermits``). The ledger says which numbers are possible there:

* flows and deliveries within ``UNDER_WAY_US`` of the moment at which the broker was asked may count or not;
* a flow that may have been parked may not count (``flow.blocked`` true or not recorded), until a later one is not parked;
* messages of a batch may have been acknowledged before it was sent again, and then cost no permit.

A number outside of these is off. The permits of a consumer that joined before the log, or behind missing lines, are taken
from the first checkpoints. What its client grants is not judged: a client may grant what it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import ints, rows_at
from dispatch_core.arrays.line_kinds import of_kinds, rows_of_kind
from dispatch_core.audit.permits.accounts import MOST_VALUES, Account
from dispatch_core.audit.permits.ledger import OffForGood
from dispatch_core.audit.permits.offsets import Offsets
from dispatch_core.recording import checkpoint

#: Without a trace a flow or a delivery may count so long before or after its line, microseconds.
UNDER_WAY_US: Final = 1_000_000
_KINDS: Final = ("consumer_added", "consumer_removed", "flow", "sent", "checkpoint", "gap")
_COLUMNS: Final = ("seq", "t_us", "kind", "consumer", "permits", "blocked", "batch_sizes", "checkpoint_json")


def shows_permits(events: pa.Table) -> bool:
    """Check whether a checkpoint behind the first line gives permits of consumers."""
    if not events.num_rows:
        return False
    rows = rows_of_kind(events, "checkpoint")
    texts = events["checkpoint_json"].take(pa.array(rows[rows > 0])).to_pylist() if len(rows) else []
    said = [checkpoint.read(text) for text in texts if text]
    return any(
        consumer.permits is not None
        for state in said
        if state is not None
        for consumer in state.consumers or ()
    )


@dataclass(slots=True)
class _Connection:
    """A connection: its account, and by how much its permits may lie below or above it.

    ``parked``: permits of flows that may be parked; ``acked``: messages that may have been acknowledged before they were
    sent; ``recent``: time and number of the last flows and deliveries.
    """

    account: Account
    parked: int = 0
    acked: int = 0
    recent: list[tuple[int, int]] = field(default_factory=list)

    def move(self, t_us: int, permits: int) -> None:
        self.account.settled += permits
        self.recent = [(at, by) for at, by in self.recent if t_us - at <= 2 * UNDER_WAY_US]
        self.recent.append((t_us, permits))

    def range_at(self, t_us: int) -> tuple[int, int]:
        """Return the lowest and the highest number of permits that the broker may have counted at a moment."""
        near = [by for at, by in self.recent if abs(at - t_us) <= UNDER_WAY_US]
        beyond = sum(by for at, by in self.recent if at - t_us > UNDER_WAY_US)
        plain = self.account.settled - sum(near) - beyond
        low = plain + sum(by for by in near if by < 0) - self.parked
        return low, plain + sum(by for by in near if by > 0) + self.acked


@dataclass(slots=True)
class _Asked:
    """A checkpoint that waits for the lines that were under way: its line, its moment and the permits by consumer."""

    seq: int
    t_us: int
    permits: dict[int, int]


class CheckpointLedger:
    """The ledger of one incarnation of a dispatcher without a trace. Feed it the batches of its log in order."""

    def __init__(self, *, has_parking: bool, keeps_indexes: bool | None) -> None:
        """Begin before the first line.

        Args:
            has_parking: flows are parked while their consumer is blocked (Shared, Key_Shared).
            keeps_indexes: the broker keeps which messages of a batch are acknowledged; ``None`` = not known.
        """
        self._has_parking = has_parking
        self._may_be_acked = keeps_indexes is not False
        self._connections: dict[int, _Connection] = {}
        self._waiting: list[_Asked] = []
        self._ended: list[OffForGood] = []
        self._last_seq = -1
        self._is_complete = True

    def take(self, events: pa.Table) -> None:
        """Take the next lines."""
        if not events.num_rows:
            return
        seqs = ints(events["seq"])
        before = self._last_seq if self._last_seq >= 0 else min(int(seqs[0]) - 1, 0)
        holes = (np.diff(seqs, prepend=before) > 1) | of_kinds(events, "gap")
        table = rows_at(events.select(_COLUMNS), np.flatnonzero(of_kinds(events, *_KINDS) | holes))
        lost = set(seqs[holes].tolist())
        for line in table.to_pylist():
            if line["seq"] in lost:
                self._lose()
            self._compare(line["t_us"] or 0)
            self._line(line)
        self._last_seq = int(seqs[-1])

    def off_for_good(self) -> Iterator[OffForGood]:
        """Yield the counts that are off: those that have ended since ``forget_ended``, and those that go on."""
        yield from self._ended
        for connection in self._connections.values():
            if connection.account.shown.excess:
                yield OffForGood(connection.account.shown, connection.account, None)

    def forget_ended(self) -> None:
        """Forget what has ended: it was reported."""
        self._ended.clear()

    def finish(self) -> None:
        """End the log: no line follows that was under way at a checkpoint."""
        self._compare(None)

    # -----------------------------------------------------------------------------------------------------------------

    def _line(self, line: dict[str, Any]) -> None:
        kind, consumer, t_us = line["kind"], line["consumer"], line["t_us"] or 0
        if kind == "checkpoint":
            self._ask(line)
        elif consumer is None:
            return
        elif kind == "consumer_removed":
            connection = self._connections.pop(consumer, None)
            if connection is not None and connection.account.shown.excess:
                self._ended.append(OffForGood(connection.account.shown, connection.account, t_us))
        elif kind == "flow":
            self._flow(self._find(consumer), t_us, line["permits"] or 0, line["blocked"])
        elif kind == "sent":
            self._sent(self._find(consumer), t_us, line["batch_sizes"])
        else:
            self._find(consumer, added=True)

    def _find(self, consumer: int, *, added: bool = False) -> _Connection:
        connection = self._connections.get(consumer)
        if connection is None:
            connection = self._connections[consumer] = _Connection(Account(consumer))
            if not (added or self._is_complete):
                connection.account.shown = Offsets(None)
        return connection

    def _flow(self, connection: _Connection, t_us: int, permits: int, blocked: bool | None) -> None:
        account = connection.account
        account.first_grant = account.first_grant or permits
        account.granted += permits
        if not self._has_parking or blocked is False:
            connection.parked = 0
        else:
            connection.parked += permits
        connection.move(t_us, permits)

    def _sent(self, connection: _Connection, t_us: int, sizes: Iterable[int] | None) -> None:
        messages = [size or 0 for size in sizes or ()]
        connection.account.messages += sum(messages)
        if self._may_be_acked:
            connection.acked += sum(size - 1 for size in messages if size > 1)
        connection.move(t_us, -sum(messages))

    def _ask(self, line: dict[str, Any]) -> None:
        state = checkpoint.read(line["checkpoint_json"] or "")
        if state is None:
            return
        permits = {c.number: c.permits for c in state.consumers or () if c.permits is not None}
        moment = state.state_t_us if state.state_t_us is not None else line["t_us"] or 0
        if self._last_seq < 0 and not self._connections and state.consumers != ():
            self._is_complete = False  # the log begins while consumers are connected
        if permits:
            self._waiting.append(_Asked(line["seq"], moment, permits))

    def _compare(self, t_us: int | None) -> None:
        """Compare the checkpoints at which nothing is under way any more; ``t_us``: the next line, ``None`` = the end."""
        while self._waiting and (t_us is None or t_us - self._waiting[0].t_us > UNDER_WAY_US):
            asked = self._waiting.pop(0)
            for number, permits in asked.permits.items():
                connection = self._find(number)
                low, high = connection.range_at(asked.t_us)
                if high - low < MOST_VALUES:
                    differences = frozenset(range(permits - high, permits - low + 1))
                    connection.account.shown.show(asked.seq, asked.t_us, differences)

    def _lose(self) -> None:
        """Take note that lines are missing before now."""
        self._is_complete = False
        self._waiting.clear()
        for number, connection in self._connections.items():
            account = connection.account
            if account.shown.excess:
                self._ended.append(
                    OffForGood(
                        account.shown,
                        account,
                        connection.recent[-1][0] if connection.recent else 0,
                        lost=True,
                    )
                )
            self._connections[number] = _Connection(Account(number, shown=Offsets(None)))
