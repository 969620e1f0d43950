"""Measure a log: order, redelivery, waits, blocking, balance, throughput.

Recorded and simulated logs are measured in the same way, from the tables of the audit, so that a difference between them
comes from the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.catalogue import DOCUMENTED, HANDOVER
from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.audit.deliveries.window import SINGLE_ACTIVE
from dispatch_core.audit.entry_waits import percentiles, waits_us
from dispatch_core.audit.unsent_entries import UnsentEntries, positions_of, positions_sent, published_us
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.replay.whole_log import WholeAudit, active_times_of
from dispatch_core.what_if.key_affinity import KeyAffinity

Ints = npt.NDArray[np.int64]

#: Findings that break the promise of order per key.
ORDER_KINDS: Final = ("out_of_order", "split_key")
#: Buckets in which waits of many topics are added up: each is wider than the last by this part.
_BUCKET: Final = 1 / 256


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 99th percentile and maximum in milliseconds; ``None`` without values."""

    p50: float | None = None
    p99: float | None = None
    max: float | None = None

    def as_json(self) -> dict[str, float | None]:
        """As an object."""
        return {"p50": self.p50, "p99": self.p99, "max": self.max}


def _no_ints() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Waits of messages or keys: the distinct waits in microseconds, ascending, and the number of each."""

    us: Ints = field(default_factory=_no_ints)
    count: Ints = field(default_factory=_no_ints)

    @classmethod
    def of(cls, us: Ints, count: Ints) -> Waits:
        """Count single waits, given in any order."""
        values, at = np.unique(us, return_inverse=True)
        return cls(values, np.bincount(at, weights=count, minlength=len(values)).astype(np.int64))

    @classmethod
    def sum(cls, waits: Iterable[Waits]) -> Waits:
        """Add up the waits of several dispatchers."""
        some = [cls(), *waits]
        return cls.of(
            np.concatenate([part.us for part in some]), np.concatenate([part.count for part in some])
        )

    def spread(self) -> Spread:
        """Percentiles, interpolated between the two nearest ranks, and the longest."""
        if not len(self.us):
            return Spread()
        upto = np.cumsum(self.count)
        p50, p99 = (
            None if us is None else round(us / 1000, 3)
            for us in percentiles(
                int(upto[-1]),
                (0.5, 0.99),
                lambda ranks: self.us[np.searchsorted(upto, ranks, "right")].tolist(),
            )
        )
        return Spread(p50, p99, int(self.us[-1]) / 1000)

    def coarse(self) -> Waits:
        """The same in buckets of 1/256 of a wait, with the exact maximum: small enough to add up many topics."""
        if len(self.us) <= 1 / _BUCKET:
            return self
        bucket = np.floor(np.log1p(self.us) / np.log1p(_BUCKET))
        middle = np.expm1((bucket + 0.5) * np.log1p(_BUCKET)).astype(np.int64)
        middle[-1] = self.us[-1]
        return Waits.of(np.minimum(middle, self.us[-1]), self.count)


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of one dispatcher, or of many together (``together``).

    Attributes:
        entries, messages: sent at least once.
        out_of_order, split_key: proven findings where order was promised.
        handed_over: deliveries of a key that a change of Failover's active consumer sent beside pending ones: documented.
        order_uncertain: findings against the order that the log cannot prove.
        keys_out_of_order: keys of the proven findings.
        duplicates: entries sent after their ack was applied.
        redelivered: entries sent again for an allowed cause, overtaken redeliveries included.
        never_sent: entries never sent, counted from the first that the subscription got.
        stuck_keys: keys of which the log proves that entries wait although nothing legal holds them back.
        wait_ms: from publishing (by the producer's clock) to the first delivery; ``key_wait_ms_max``: the longest wait of
            each key.
        blocked_message_s: message-seconds that rules held back; ``needless_message_s``: those while no consumer had an entry
            of the hash pending.
        messages_of, keys_of: by consumer name; ``fair_of``: messages in proportion to the share of the hash space.
        judged: the rules of a release say what was held back, and who owns which part of the hash space.
        active_topics: by consumer name, the topics for which it was active longest.
        affinity: keys that changed their consumer.
        from_us, until_us: time of the first line of the log or of the beginning of what is measured, and of the last first
            delivery.
    """

    topics: int = 0
    entries: int = 0
    messages: int = 0
    out_of_order: int = 0
    split_key: int = 0
    handed_over: int = 0
    order_uncertain: int = 0
    keys_out_of_order: int = 0
    double_outstanding: int = 0
    duplicates: int = 0
    redelivered: int = 0
    never_sent: int = 0
    stuck_keys: int = 0
    wait_ms: Spread = field(default_factory=Spread)
    key_wait_ms_max: Spread = field(default_factory=Spread)
    blocked_message_s: float = 0.0
    needless_message_s: float = 0.0
    messages_of: Mapping[str, int] = field(default_factory=dict)
    keys_of: Mapping[str, int] = field(default_factory=dict)
    fair_of: Mapping[str, float] = field(default_factory=dict)
    active_topics: Mapping[str, int] = field(default_factory=dict)
    affinity: KeyAffinity = field(default_factory=KeyAffinity)
    from_us: int | None = None
    until_us: int | None = None
    judged: bool = True
    waits: Waits = field(default_factory=Waits, repr=False, compare=False)
    key_waits: Waits = field(default_factory=Waits, repr=False, compare=False)

    @property
    def order_violations(self) -> int:
        """Proven findings against the order per key."""
        return self.out_of_order + self.split_key

    @property
    def throughput_per_s(self) -> float | None:
        """Messages sent for the first time per second, from ``from_us`` to the last of them."""
        if self.from_us is None or self.until_us is None or self.until_us <= self.from_us:
            return None
        return round(self.messages * 1_000_000 / (self.until_us - self.from_us), 3)

    @property
    def max_share_ratio(self) -> float | None:
        """The load of the most loaded consumer, relative to its share.

        Key_Shared: messages relative to the share of the hash space. Failover over several topics: active topics relative to
        an equal part of them. None: a single Failover topic, or nothing was sent.
        """
        ratios = [self.messages_of.get(name, 0) / fair for name, fair in self.fair_of.items() if fair]
        if self.active_topics and self.topics > 1:
            ratios = [max(self.active_topics.values()) * len(self.active_topics) / self.topics]
        return round(max(ratios), 3) if ratios else None

    def as_json(self) -> dict[str, Any]:
        """The shape of ``what-if --json``."""
        return {
            "topics": self.topics,
            "messages": self.messages,
            "out_of_order": self.out_of_order,
            "split_key": self.split_key,
            "handed_over": self.handed_over,
            "order_uncertain": self.order_uncertain,
            "keys_out_of_order": self.keys_out_of_order,
            "double_outstanding": self.double_outstanding,
            "duplicates": self.duplicates,
            "redelivered": self.redelivered,
            "wait_ms": self.wait_ms.as_json(),
            "key_wait_ms_max": self.key_wait_ms_max.as_json(),
            "blocked_message_s": self.blocked_message_s if self.judged else None,
            "needless_message_s": self.needless_message_s if self.judged else None,
            "balance": {
                "max_share_ratio": self.max_share_ratio,
                "messages": dict(self.messages_of),
                "keys": dict(self.keys_of),
            },
            "active_topics": dict(self.active_topics),
            "key_changes": self.affinity.as_json(),
            "throughput_per_s": self.throughput_per_s,
            "never_sent": self.never_sent,
            "stuck_keys": self.stuck_keys,
        }


def measures(
    log: DispatcherLog,
    audit: WholeAudit,
    *,
    begin: tuple[int, int] | None = None,
    from_us: int | None = None,
    judged: bool = True,
) -> Measures:
    """Measure one dispatcher's log of any level.

    Args:
        log: the log.
        audit: the result of ``audit_whole`` for it.
        begin: the first position (ledger, entry) that the subscription has to get; default: the lowest that was sent.
        from_us: the beginning of what was audited, microseconds since the epoch; ``None`` = the log's.
        judged: False: the audit was made without the rules of a release.
    """
    sent = audit.deliveries
    first = sent.filter(pc.equal(sent["delivery_number"], 1))
    counts, keys, unproven = _findings(audit.anomalies)
    waits, key_waits = _waits(first)
    single = subscription_type(log) in SINGLE_ACTIVE
    balance = audit.balance.select(["consumer_name", "messages", "keys", "hash_share"]).to_pylist()
    total = sum(row["messages"] for row in balance)
    return Measures(
        topics=1,
        entries=first.num_rows,
        messages=int(_weights(first).sum()),
        out_of_order=counts["out_of_order"],
        split_key=counts["split_key"],
        handed_over=counts[HANDOVER],
        order_uncertain=unproven,
        keys_out_of_order=keys,
        double_outstanding=counts["double_outstanding"],
        duplicates=counts["duplicate_after_ack"],
        redelivered=counts["redelivered"] + counts["overtaken_redelivery"],
        never_sent=_never_sent(log, begin),
        stuck_keys=_stuck_keys(audit.anomalies),
        wait_ms=waits.spread(),
        key_wait_ms_max=key_waits.spread(),
        blocked_message_s=_seconds(audit.blocked, "message_ms"),
        needless_message_s=_seconds(audit.blocked, "needless_ms"),
        messages_of={row["consumer_name"]: row["messages"] for row in balance}
        if judged
        else _messages_of(first),
        judged=judged,
        keys_of={row["consumer_name"]: row["keys"] for row in balance},
        fair_of={
            row["consumer_name"]: row["hash_share"] * total
            for row in balance
            if row["hash_share"] is not None
        },
        active_topics=_active(log, audit.ownership) if single else {},
        affinity=KeyAffinity.of(log.events, audit.deliveries),
        from_us=log.start_t_us if from_us is None else max(from_us, log.start_t_us or from_us),
        until_us=pc.max(first["t_us"]).as_py() if first.num_rows else None,
        waits=waits.coarse(),
        key_waits=key_waits.coarse(),
    )


_ADDED: Final = (
    *("topics", "entries", "messages", "out_of_order", "split_key", "handed_over"),
    *("order_uncertain", "keys_out_of_order"),
    *("double_outstanding", "duplicates", "redelivered", "never_sent", "stuck_keys"),
)
_SECONDS: Final = ("blocked_message_s", "needless_message_s")
_BY_NAME: Final = ("messages_of", "keys_of", "fair_of", "active_topics")


def together(measured: Sequence[Measures]) -> Measures:
    """Add up the measures of many dispatchers: sums, all waits, and the active topics of each consumer."""
    waits = Waits.sum(part.waits for part in measured)
    key_waits = Waits.sum(part.key_waits for part in measured)
    starts = [part.from_us for part in measured if part.from_us is not None]
    ends = [part.until_us for part in measured if part.until_us is not None]
    added: dict[str, Any] = {name: sum(getattr(part, name) for part in measured) for name in _ADDED}
    for name in _SECONDS:
        added[name] = round(sum(getattr(part, name) for part in measured), 3)
    for name in _BY_NAME:
        added[name] = _by_name(getattr(part, name) for part in measured)
    return Measures(
        **added,
        wait_ms=waits.spread(),
        key_wait_ms_max=key_waits.spread(),
        affinity=KeyAffinity.together(part.affinity for part in measured),
        from_us=min(starts, default=None),
        until_us=max(ends, default=None),
        judged=all(part.judged for part in measured),
        waits=waits,
        key_waits=key_waits,
    )


def _messages_of(first: pa.Table) -> dict[str, int]:
    """Return the messages that were sent for the first time, by consumer name."""
    counts = pa.table({"name": first["consumer_name"], "messages": _weights(first)})
    rows = counts.group_by("name").aggregate([("messages", "sum")]).to_pylist()
    return dict(sorted((row["name"], row["messages_sum"]) for row in rows))


def _by_name(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for by_name in counts:
        for name, value in by_name.items():
            found[name] = found.get(name, 0) + value
    return dict(sorted(found.items()))


def _findings(anomalies: pa.Table) -> tuple[Counter[str], int, int]:
    """Findings by kind (of order: proven ones where it was promised), keys out of order, and unproven order findings.

    Splits that a hand-over explains count as ``HANDOVER``.
    """
    counts: Counter[str] = Counter()
    keys: set[tuple[str | None, bool]] = set()
    unproven = 0
    columns = ("kind", "reason", "uncertain", "key", "key_b64")
    values = (anomalies[name].to_pylist() for name in columns)
    for kind, reason, uncertain, key, key_b64 in zip(*values, strict=True):
        if kind in ORDER_KINDS:
            if reason in DOCUMENTED:
                counts[HANDOVER] += kind == "split_key" and reason == HANDOVER
                continue
            if uncertain:
                unproven += 1
                continue
            keys.add((key, key_b64))
        counts[kind] += 1
    return counts, len(keys), unproven


def _stuck_keys(anomalies: pa.Table) -> int:
    columns = (anomalies[name].to_pylist() for name in ("kind", "uncertain", "key", "key_b64", "hash"))
    return len(
        {
            (key, key_b64, sticky_hash)
            for kind, uncertain, key, key_b64, sticky_hash in zip(*columns, strict=True)
            if kind == "stuck_key" and not uncertain
        }
    )


def _waits(first: pa.Table) -> tuple[Waits, Waits]:
    """Waits of messages, and the longest of each key."""
    known = first.filter(pc.is_valid(first["publish_time_ms"]))
    # The producer's clock may be ahead of the broker's: a wait is at least 0.
    us = np.maximum(waits_us(known)[0], 0)
    waits = Waits.of(us, _weights(known))
    by_key = known.append_column("wait_us", pa.array(us)).filter(pc.is_valid(known["key"]))
    longest = by_key.group_by(["key", "key_b64"]).aggregate([("wait_us", "max")])["wait_us_max"]
    return waits, Waits.of(_ints(longest), np.ones(len(longest), np.int64))


def _never_sent(log: DispatcherLog, begin: tuple[int, int] | None) -> int:
    """Return how many stored entries, from ``begin`` on, nobody was sent; all of them where nothing was sent at all.

    Entries that a checkpoint at the beginning of the log shows as acknowledged or read count as sent.
    """
    unsent = UnsentEntries()
    unsent.stored(*positions_of(log.messages), published_us(log.messages))
    ledger, entry = positions_sent(log.events)
    unsent.sent(ledger, entry)
    state = CheckpointState.of(log.events)
    if state is not None:
        stored = zip(*(part.tolist() for part in positions_of(log.messages)), strict=True)
        before = [
            position
            for position in stored
            if state.acknowledged(position) or state.may_have_been_sent(position)
        ]
        unsent.sent(*np.array(before, np.int64).reshape(-1, 2).T)
    return unsent.count(begin if begin is not None or len(ledger) else (-1, -1))


def _active(log: DispatcherLog, ownership: pa.Table) -> dict[str, int]:
    """1 for the consumer name that was active longest, 0 for the other names."""
    times = {row["consumer_name"]: row["active_us"] for row in active_times_of(log, ownership).to_pylist()}
    found = dict.fromkeys(sorted(times), 0)
    longest = max(times, key=lambda name: (times[name], name), default="")
    if times.get(longest):
        found[longest] = 1
    return found


def _weights(sent: pa.Table) -> Ints:
    return _ints(pc.fill_null(sent["num_messages"].cast(pa.int64()), 1))


def _seconds(blocked: pa.Table, column: str) -> float:
    return round(float(pc.sum(blocked[column]).as_py() or 0) / 1000, 3)


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.combine_chunks(), dtype=np.int64)
