"""Reduce ``blocked`` to the hashes that were held back: marks on the hash space, and their number over time.

What holds back a consumer as a whole, such as missing permits, is not of single hashes and left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.sentences.names import consumer_name
from dispatch_core.report.ring import I64

#: Rules that hold back all hashes of a consumer, or of the subscription.
_OF_CONSUMERS: Final = (
    "no_permits",
    "unacked_limit_consumer",
    "unacked_limit_subscription",
    "no_consumer",
    "no_read",
    "failover_delay",
)
#: Holds that are marked individually; all are counted.
MAX_MARKED: Final = 1_500
#: Times at which the number of blocked hashes is shown.
MAX_TIMES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Hold:
    """A rule held back a hash: entries of it waited for ``waiting`` behind those that ``holder`` had."""

    hash: int
    reason: str
    from_us: int
    until_us: int
    waiting: str
    holder: str


@dataclass(frozen=True, slots=True)
class BlockedHashes:
    """Hashes that rules held back.

    Attributes:
        holds: at most ``MAX_MARKED`` of ``total``, those with the most message-seconds; by time.
        reasons: rules, by name.
        t_us, counts: number of hashes that ``reasons[i]`` held from ``t_us[k]`` on: ``counts[i, k]``.
    """

    holds: tuple[Hold, ...]
    total: int
    reasons: tuple[str, ...]
    t_us: I64
    counts: I64


def blocked_hashes(blocked: pa.Table, span_us: tuple[int, int]) -> BlockedHashes:
    """Reduce the rows of ``blocked`` that name a hash, within [start, end)."""
    start_us, end_us = span_us
    of_consumers = pc.is_in(blocked["reason"].cast(pa.string()), value_set=pa.array(_OF_CONSUMERS))
    rows = blocked.filter(pc.and_(pc.is_valid(blocked["hash"]), pc.invert(of_consumers)))
    from_us = np.maximum(np.asarray(rows["from_t_us"], dtype=np.int64), start_us)
    until_us = np.minimum(np.asarray(rows["until_t_us"].fill_null(end_us), dtype=np.int64), end_us)
    inside = np.flatnonzero(until_us > from_us)
    from_us, until_us = from_us[inside], until_us[inside]
    rows = rows.take(pa.array(inside))
    reason_of = rows["reason"].to_pylist()
    reasons = tuple(sorted(set(reason_of)))
    code = np.array([reasons.index(reason) for reason in reason_of], np.int64)
    times, at = np.unique(np.concatenate([from_us, until_us]), return_inverse=True)
    counts = np.zeros((len(reasons), times.size), np.int64)
    np.add.at(counts, (code, at[: code.size]), 1)
    np.add.at(counts, (code, at[code.size :]), -1)
    counts = np.cumsum(counts, axis=1)
    if times.size > MAX_TIMES:  # the most of each run, so that no peak is lost
        starts = np.linspace(0, times.size, MAX_TIMES, endpoint=False).astype(np.int64)
        times, counts = times[starts], np.maximum.reduceat(counts, starts, axis=1)
    message_ms = np.asarray(rows["message_ms"], dtype=np.int64)
    longest = np.argsort(-message_ms, kind="stable")[:MAX_MARKED]
    kept = longest[np.argsort(from_us[longest], kind="stable")]
    marked = rows.take(pa.array(kept)).to_pylist()
    holds = tuple(
        Hold(
            row["hash"],
            row["reason"],
            since,
            until,
            consumer_name(row["consumer"], row["consumer_name"]),
            consumer_name(row["holder"], row["holder_name"]),
        )
        for row, since, until in zip(marked, from_us[kept].tolist(), until_us[kept].tolist(), strict=True)
    )
    return BlockedHashes(holds, int(code.size), reasons, times, counts)
