"""Count the keys that changed their consumer: how well a selector keeps a key with its consumer.

A client that caches or aggregates by key loses what it has when the key goes elsewhere. The client is known by its *name*:
what reconnects under its name has kept its keys. (``stats`` counts connections instead, see ``replay.delivery_history``.)

Example: key k was sent to c1 five times, then c2 joined, and k was sent to c2: one key has changed, once, after the join of
c2. If c2 leaves and k is sent to c1 again, it is still one key, and it has changed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.checkpoint import joins

Ints = npt.NDArray[np.int64]
_MEMBERSHIP = ("consumer_added", "consumer_removed")


@dataclass(frozen=True, slots=True)
class KeysMoved:
    """A join or leave, and the keys whose next delivery, before the following change, went to another consumer name."""

    t_us: int
    joined: bool
    consumer_name: str
    keys: int

    def as_json(self) -> dict[str, Any]:
        """As an object."""
        what = "joined" if self.joined else "left"
        return {"t_us": self.t_us, "what": what, "consumer_name": self.consumer_name, "keys": self.keys}


@dataclass(frozen=True, slots=True)
class KeyAffinity:
    """Keys that changed their consumer: ``keys`` did, ``changes`` times altogether; ``delivered``: keys that were sent.

    ``by_change``: in the order of the log; empty for several dispatchers together.
    """

    delivered: int = 0
    keys: int = 0
    changes: int = 0
    by_change: tuple[KeysMoved, ...] = ()

    @classmethod
    def of(cls, events: pa.Table, deliveries: pa.Table) -> KeyAffinity:
        """Count them in the lines of a log and the table ``deliveries`` of its audit."""
        names = {row["consumer"]: row["name"] or "" for row in joins(events, ("consumer", "name"))}
        sent = deliveries.filter(pc.is_valid(deliveries["key"]))
        sent = sent.sort_by([("seq", "ascending"), ("index_in_send", "ascending")])
        if not sent.num_rows:
            return cls()
        key, who = _encoded(sent, "key", "key_b64"), _encoded(sent, "consumer_name")
        order = np.argsort(key, kind="stable")
        same_key = np.diff(key[order], prepend=-1) == 0
        moved = np.sort(order[same_key & (np.diff(who[order], prepend=-1) != 0)])
        counts = np.bincount(key[moved], minlength=1)
        return cls(
            len(np.unique(key)),
            int((counts > 0).sum()),
            len(moved),
            tuple(_by_change(events, names, _ints(sent["seq"])[moved], key[moved])),
        )

    @classmethod
    def together(cls, parts: Iterable[KeyAffinity]) -> KeyAffinity:
        """Add up several dispatchers."""
        some = list(parts)
        return cls(
            sum(part.delivered for part in some),
            sum(part.keys for part in some),
            sum(part.changes for part in some),
        )

    def as_json(self) -> dict[str, Any]:
        """As an object."""
        return {
            "keys": self.keys,
            "of": self.delivered,
            "changes": self.changes,
            "by_membership_change": [change.as_json() for change in self.by_change],
        }


def _by_change(events: pa.Table, names: Mapping[int, str], seq: Ints, key: Ints) -> Iterable[KeysMoved]:
    """Attribute deliveries, given by the ``seq`` of their lines, to the joins and leaves before them."""
    kind = events["kind"].cast(pa.string())
    lines = events.filter(pc.is_in(kind, value_set=pa.array(_MEMBERSHIP)))
    lines = lines.filter(pc.is_valid(lines["consumer"]))
    place = np.searchsorted(_ints(lines["seq"]), seq) - 1
    for at, row in enumerate(lines.select(["t_us", "kind", "consumer"]).to_pylist()):
        keys = len(np.unique(key[place == at]))
        yield KeysMoved(
            row["t_us"] or 0, row["kind"] == "consumer_added", names.get(row["consumer"], ""), keys
        )


def _encoded(table: pa.Table, *names: str) -> Ints:
    """Return a number for each row; rows that are equal in these columns have the same."""
    codes = np.zeros(table.num_rows, np.int64)
    for name in names:
        column = table[name].combine_chunks().dictionary_encode()
        codes = codes * (len(column.dictionary) + 1) + np.asarray(column.indices.fill_null(-1), np.int64) + 1
    found: Ints = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    return found


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.combine_chunks(), dtype=np.int64)
