"""Who owned a hash when, and which join or leave moved it; who was active, on Failover and Exclusive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.operations import ADDED, REMOVED
from dispatch_core.explain.record import Record

JOINED: Final = "joined"
LEFT: Final = "left"
#: A hash that stands for the whole topic.
_ANY: Final = 0


@dataclass(frozen=True, slots=True)
class Owner:
    """``consumer`` (its number) owned the hash from one line to another; ``until_*`` None = still so at the end.

    ``moved_by``: the connection whose coming or going (``moved_how``) brought this about, None where the log does not say.
    """

    consumer: int
    from_seq: int
    from_t_us: int
    until_seq: int | None
    until_t_us: int | None
    moved_by: int | None
    moved_how: str | None


@dataclass(frozen=True, slots=True)
class Share:
    """From a line on, ``consumer`` owned this part of the hash space; ``moved_by``, ``moved_how`` as in ``Owner``."""

    consumer: int
    seq: int
    t_us: int
    part: float
    moved_by: int | None
    moved_how: str | None


def owners_of(record: Record, ownership: pa.Table, hash_value: int | None) -> list[Owner]:
    """Owners of a hash in order (``None``: of the whole topic), as the table ``ownership`` has them."""
    wanted = _ANY if hash_value is None else hash_value
    inside = pc.and_(
        pc.less_equal(ownership["range_start"], wanted), pc.greater_equal(ownership["range_end"], wanted)
    )
    spans = ownership.filter(inside).sort_by([("from_seq", "ascending"), ("epoch", "ascending")])
    names = ["consumer", "from_seq", "from_t_us", "until_seq", "until_t_us"]
    owners: list[Owner] = []
    for consumer, from_seq, from_t_us, until_seq, until_t_us in zip(
        *(spans[name].to_pylist() for name in names), strict=True
    ):
        last = owners[-1] if owners else None
        if last is not None and last.consumer == consumer and last.until_seq == from_seq:
            # a change of somebody else's ranges cut this one and left the hash where it was
            owners[-1] = Owner(
                consumer, last.from_seq, last.from_t_us, until_seq, until_t_us, last.moved_by, last.moved_how
            )
            continue
        by, how = moved_by(record, from_seq)
        owners.append(Owner(consumer, from_seq, from_t_us, until_seq, until_t_us, by, how))
    return owners


def shares_of(record: Record, ownership: pa.Table, consumers: frozenset[int]) -> list[Share]:
    """How much of the hash space each of ``consumers`` owned, whenever that changed."""
    columns = {name: np.asarray(ownership[name]) for name in ("from_seq", "from_t_us", "consumer")}
    until = np.asarray(pc.fill_null(ownership["until_seq"], -1))
    width = np.asarray(ownership["range_end"]) - np.asarray(ownership["range_start"]) + 1
    seqs, first = np.unique(columns["from_seq"], return_index=True)
    ends = np.unique(until[until >= 0])
    times = dict(zip(seqs.tolist(), columns["from_t_us"][first].tolist(), strict=True))
    closed = np.asarray(pc.fill_null(ownership["until_t_us"], 0))
    times |= {int(seq): int(closed[until == seq][0]) for seq in ends.tolist() if seq not in times}
    shares: list[Share] = []
    for consumer in sorted(consumers):
        last = 0.0
        for seq in sorted(times):
            is_open = (columns["from_seq"] <= seq) & ((until > seq) | (until < 0))
            whole = int(width[is_open].sum())
            own = int(width[is_open & (columns["consumer"] == consumer)].sum())
            part = own / whole if whole else 0.0
            if abs(part - last) > 0.0005:
                shares.append(Share(consumer, seq, times[seq], part, *moved_by(record, seq)))
                last = part
    return sorted(shares, key=lambda share: share.seq)


def moved_by(record: Record, seq: int) -> tuple[int | None, str | None]:
    """Whose coming or going took effect with the line ``seq``, and which of the two it was.

    A trace shows a selector's change apart from the line that adds or removes the consumer; the removal's line comes after.
    """
    events = record.log.events
    row = events.filter(pc.equal(events["seq"], seq)).slice(0, 1).select(["kind", "consumer"]).to_pylist()
    if row and row[0]["consumer"] is not None:
        kind = row[0]["kind"]
        if kind in ("consumer_added", "selector_added"):
            return row[0]["consumer"], JOINED
        if kind in ("consumer_removing", "consumer_removed", "selector_removed"):
            return row[0]["consumer"], LEFT
    codes = record.history.op_code[record.first_op :]
    changes = record.first_op + np.flatnonzero((codes == ADDED) | (codes == REMOVED))
    if not len(changes):
        return None, None
    # the choice of the active consumer is logged before the line of the consumer that it was made for
    away = np.abs(record.history.op_t_us[changes] - _time_of(record, seq))
    nearest = int(changes[len(changes) - 1 - int(np.argmin(away[::-1]))])
    number = record.number_of(int(record.history.op_consumer[nearest]))
    return number, JOINED if record.history.op_code[nearest] == ADDED else LEFT


def _time_of(record: Record, seq: int) -> int:
    events = record.log.events
    at = min(int(np.searchsorted(np.asarray(events["seq"]), seq)), events.num_rows - 1)
    return int(events["t_us"][at].as_py() or 0)
