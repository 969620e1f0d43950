"""The owners of a hash over time and the joins and leaves that moved it; on Failover and Exclusive the active consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.deliveries.operations import ADDED, REMOVED
from dispatch_core.explain.record import Record

JOINED: Final = "joined"
LEFT: Final = "left"
#: A hash that stands for the whole topic.
_ANY: Final = 0
#: Shares that differ by less count as equal.
_SAME_SHARE: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Owner:
    """``consumer`` (its number) owned the hash from one line to another; ``until_*`` None = still so at the end.

    ``moved_by``: the connection whose join or leave (``moved_how``) caused this; None if the log does not say.
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
            # a change of another consumer's ranges cut this one, and the hash kept its owner
            owners[-1] = Owner(
                consumer, last.from_seq, last.from_t_us, until_seq, until_t_us, last.moved_by, last.moved_how
            )
            continue
        by, how = moved_by(record, from_seq)
        owners.append(Owner(consumer, from_seq, from_t_us, until_seq, until_t_us, by, how))
    return owners


def shares_of(record: Record, ownership: pa.Table, consumers: frozenset[int]) -> list[Share]:
    """The part of the hash space that each of ``consumers`` owned, whenever that changed."""
    spans = {name: np.asarray(ownership[name]) for name in ("from_seq", "from_t_us", "consumer")}
    width = np.asarray(ownership["range_end"]) - np.asarray(ownership["range_start"]) + 1
    ended = np.asarray(pc.is_valid(ownership["until_seq"]))
    until = [np.asarray(pc.fill_null(ownership[name], 0))[ended] for name in ("until_seq", "until_t_us")]
    seq, first, at = np.unique(
        np.concatenate([spans["from_seq"], until[0]]), return_index=True, return_inverse=True
    )
    t_us = np.concatenate([spans["from_t_us"], until[1]])[first]
    delta = np.concatenate([width, -width[ended]])
    owner = np.concatenate([spans["consumer"], spans["consumer"][ended]])
    whole = np.cumsum(np.bincount(at, delta, minlength=len(seq)))
    shares: list[Share] = []
    for consumer in sorted(consumers):
        own = np.cumsum(np.bincount(at, np.where(owner == consumer, delta, 0), minlength=len(seq)))
        last = 0.0
        for line, when, part in zip(
            seq.tolist(), t_us.tolist(), (own / np.maximum(whole, 1)).tolist(), strict=True
        ):
            if abs(part - last) > _SAME_SHARE:
                shares.append(Share(consumer, line, when, part, *moved_by(record, line)))
                last = part
    return sorted(shares, key=lambda share: share.seq)


def moved_by(record: Record, seq: int) -> tuple[int | None, str | None]:
    """The consumer whose join or leave took effect with the line ``seq``, and ``JOINED`` or ``LEFT``.

    A trace shows a selector's change apart from the line that adds or removes the consumer; the removal's line comes after.
    """
    events = record.log.events
    row = events.filter(pc.equal(events["seq"], seq)).slice(0, 1).select(["kind", "consumer"]).to_pylist()
    if row and row[0]["kind"] == "checkpoint":
        return None, None  # the ownership at the log's beginning: caused by no join or leave
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
