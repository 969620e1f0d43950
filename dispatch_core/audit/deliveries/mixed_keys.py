"""Find batches whose messages have several keys, sent under a rule that keeps order by key.

Dispatch reads the key of the first message of an entry. So all messages of the batch go to the consumer of that one key, and
messages of the other keys, which stand in other entries too, go to other consumers at the same time: their order is lost,
and nothing in the broker notices. Producers of Key_Shared subscriptions need a batcher by key
(``BatcherBuilder.KEY_BASED``), or no batches. The message log shows it where the recorder writes ``keys``.

Example: 3:7 holds a message of k1 and one of k2, and 3:8 one of k2. Consumer 1 owns k1 and gets 3:7, consumer 2 owns k2 and
gets 3:8. The two messages of k2 are at two consumers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import has
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.sentences.lists import counted, positions_listed
from dispatch_core.times import clock

_MOST_POSITIONS: Final = 20

Position = tuple[int, int]


class MixedKeys:
    """Collect batches of several keys, and who got them: call ``add`` for each batch of the log, then ``findings``."""

    def __init__(self) -> None:
        self._keys: dict[Position, int] = {}  # entries that were not sent yet
        self._sent: dict[
            int, list[tuple[int, int, str, int]]
        ] = {}  # by consumer: line, time, position, number of keys

    def add(self, messages: pa.Table, deliveries: pa.Table) -> None:
        """Take the next entries and the next deliveries: rows of ``tables.DELIVERIES``."""
        if has(messages, "keys") and messages["keys"].null_count < messages.num_rows:
            several = messages.select(["ledger_id", "entry_id", "keys"])
            several = several.filter(pc.fill_null(pc.greater(several["keys"], 1), False))
            for row in several.to_pylist():
                self._keys[row["ledger_id"], row["entry_id"]] = row["keys"]
        if not self._keys:
            return
        columns = ("ledger_id", "entry_id", "consumer", "seq", "t_us")
        for ledger, entry, consumer, seq, t_us in zip(
            *(deliveries[name].to_pylist() for name in columns), strict=True
        ):
            keys = self._keys.pop((ledger, entry), None)
            if keys is not None:
                self._sent.setdefault(consumer, []).append((seq, t_us, f"{ledger}:{entry}", keys))

    def findings(self, names: Mapping[int, str]) -> list[Finding]:
        """Return one finding for each connection that was sent such batches. ``names``: of the connections."""
        return [
            self._finding(consumer, sent, names.get(consumer))
            for consumer, sent in sorted(self._sent.items())
        ]

    def _finding(self, consumer: int, sent: list[tuple[int, int, str, int]], name: str | None) -> Finding:
        seqs, times, positions, keys = (list(column) for column in zip(*sent, strict=True))
        shown = positions[:_MOST_POSITIONS]
        who = f"connection {consumer}" if name is None else f"{name} (connection {consumer})"
        return Finding.without_key(
            "mixed_key_entry",
            shown,
            [consumer],
            sorted({seqs[0], seqs[-1]}),
            times[-1],
            (
                f"{who} got {counted(len(sent), 'batch', 'batches')} with messages of up to {max(keys)} keys each "
                f"({positions_listed(shown, len(sent))}), the first at {clock(times[0])}: dispatch looks at the first "
                "message's key only, so the order of the other keys is lost; producers need batches by key"
            ),
        )
