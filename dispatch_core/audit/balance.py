"""Is the work spread as it should be? Findings about consumers and keys that carry too much, and about Failover's topics.

A consumer's fair part is what it would have got if every message sent had been spread over the hash space (or over the
consumers) as it was owned at that moment. So neither who came late nor who stayed short is blamed for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.columns import ints
from dispatch_core.audit.findings import Finding, shown
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.totals import names_in

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_NAMED_AT_MOST: Final = 5


def not_judged(balance: pa.Table, limits: Limits) -> str | None:
    """Why there is too little in a ``balance`` table to judge it by; ``None`` = there is enough."""
    messages = int(pc.sum(balance["messages"]).as_py() or 0)
    keys = int(pc.sum(balance["keys"]).as_py() or 0)
    if messages < limits.min_messages:
        return f"{messages:,} messages were sent; below {limits.min_messages:,} balance is not judged"
    if keys < limits.min_keys_per_consumer * balance.num_rows:
        return (
            f"{keys:,} keys at {balance.num_rows} consumers; below {limits.min_keys_per_consumer} for each "
            "balance is not judged"
        )
    return None


def imbalances(deliveries: pa.Table, ownership: pa.Table, balance: pa.Table, limits: Limits) -> list[Finding]:
    """``imbalance``, ``hot_key`` and ``hot_consumer`` of a Key_Shared log; nothing where it is not judged.

    The proving line is the last sending to the consumer, or of the key.
    """
    if not_judged(balance, limits) is not None or not ownership.num_rows:
        return []
    spread = _Spread(deliveries, ownership)
    return [
        *spread.consumers("imbalance", spread.by_hashes(), limits.share_ratio),
        *spread.consumers("hot_consumer", spread.by_number(), limits.share_ratio),
        *spread.keys(limits.hot_key_share),
    ]


class _Spread:
    """The messages of one log by consumer and by key, in the order of sending."""

    def __init__(self, deliveries: pa.Table, ownership: pa.Table) -> None:
        self._deliveries = deliveries
        self._ownership = ownership
        self._seq = ints(deliveries["seq"])
        self._messages = ints(deliveries["num_messages"], 1).astype(np.float64)
        self._total = float(self._messages.sum())
        both = pa.concat_arrays([names_in(table).combine_chunks() for table in (deliveries, ownership)])
        codes = both.dictionary_encode()
        self._names: list[str] = codes.dictionary.to_pylist()
        at = np.asarray(codes.indices)
        self._to, self._owner = at[: len(deliveries)], at[len(deliveries) :]
        keyed = pc.binary_join_element_wise(deliveries["key_b64"].cast(pa.string()), deliveries["key"], " ")
        keys = keyed.combine_chunks().dictionary_encode(null_encoding="encode")
        self._key = np.asarray(keys.indices)
        self._key_is_none = np.append(np.asarray(keys.dictionary.is_null()), False)

    def by_hashes(self) -> Floats:
        """Each consumer's fair messages, by the part of the hash space it owned when they were sent."""
        width = ints(self._ownership["range_end"]) - ints(self._ownership["range_start"]) + 1
        sent = np.concatenate([[0.0], np.cumsum(self._messages)])
        first, last = self._spans()
        fair = np.bincount(self._owner, width * (sent[last] - sent[first]), len(self._names))
        return self._scaled(fair.astype(np.float64))

    def by_number(self) -> Floats:
        """Each consumer's fair messages, if all that owned anything when they were sent had got the same."""
        first, last = self._spans()
        connections, at = np.unique(np.asarray(self._ownership["consumer"]), return_inverse=True)
        came = np.full(len(connections), len(self._seq))
        left = np.zeros(len(connections), np.int64)
        np.minimum.at(came, at, first)
        np.maximum.at(left, at, last)
        change = np.zeros(len(self._seq) + 1)
        np.add.at(change, came, 1)
        np.add.at(change, np.maximum(left, came), -1)
        present = np.maximum(np.cumsum(change)[:-1], 1)
        part = np.concatenate([[0.0], np.cumsum(self._messages / present)])
        name_of = np.zeros(len(connections), np.int64)
        name_of[at] = self._owner
        fair = np.bincount(name_of, part[np.maximum(left, came)] - part[came], len(self._names))
        return self._scaled(fair.astype(np.float64))

    def _spans(self) -> tuple[Ints, Ints]:
        """Which sendings, by their place in the log, fall into each span of ownership."""
        until = ints(self._ownership["until_seq"], np.iinfo(np.int64).max)
        first = np.searchsorted(self._seq, ints(self._ownership["from_seq"]))
        return first, np.searchsorted(self._seq, until)

    def _scaled(self, fair: Floats) -> Floats:
        return fair * (self._total / fair.sum()) if fair.sum() else fair

    def consumers(self, kind: str, fair: Floats, ratio: float) -> list[Finding]:
        """One finding for every consumer that got more than ``ratio`` times its fair part."""
        got = np.bincount(self._to, self._messages, len(self._names))
        found = []
        for at in np.flatnonzero((got > ratio * fair) & (fair > 0)).tolist():
            rows = np.flatnonzero(self._to == at)
            key, share = self._hottest(rows)
            means = "its part of the hash space" if kind == "imbalance" else "an equal part"
            text = (
                f"{shown(self._names[at])} got {_percent(got[at], self._total)} of {self._total:,.0f} messages, "
                f"{got[at] / fair[at]:.1f} times {means} ({_percent(fair[at], self._total)})"
            )
            if share >= 0.5:
                text += f"; key {shown(key)} alone is {share:.0%} of what it got"
            elif kind == "hot_consumer":
                hashes = self.by_hashes()[at]
                text += f"; it owned {_percent(hashes, self._total)} of the hash space"
            found.append(self._finding(kind, rows, text, None))
        return found

    def keys(self, most: float) -> list[Finding]:
        """One finding for every key that carries more than the share ``most`` of all messages."""
        carried = np.bincount(self._key, self._messages)
        found = []
        for at in np.flatnonzero(carried > most * self._total).tolist():
            if self._key_is_none[at]:
                continue
            rows = np.flatnonzero(self._key == at)
            row = self._deliveries.slice(int(rows[0]), 1).to_pylist()[0]
            text = (
                f"key {shown(row['key'])} carries {_percent(carried[at], self._total)} of {self._total:,.0f} messages: "
                "whoever owns its hash gets at least as much, however the ranges are cut; split the key, or give its "
                "consumer room"
            )
            found.append(self._finding("hot_key", rows, text, row))
        return found

    def _hottest(self, rows: Ints) -> tuple[str, float]:
        """The key that carries most of what these sendings carry, and its part of it."""
        carried = np.bincount(self._key[rows], self._messages[rows])
        carried[self._key_is_none[: len(carried)]] = 0
        key = int(carried.argmax())
        at = int(rows[np.flatnonzero(self._key[rows] == key)[0]])
        return self._deliveries["key"][at].as_py() or "", float(carried[key] / self._messages[rows].sum())

    def _finding(self, kind: str, rows: Ints, text: str, row: Mapping[str, Any] | None) -> Finding:
        ends = self._deliveries.take(pa.array([rows[0], rows[-1]])).to_pylist()
        numbers = pc.unique(self._deliveries["consumer"].take(pa.array(rows)))
        return Finding(
            kind=kind,
            severity=KINDS[kind].severity,
            key=None if row is None else row["key"],
            key_b64=False if row is None else row["key_b64"],
            hash=None if row is None else row["hash"],
            positions=list(dict.fromkeys(f"{end['ledger_id']}:{end['entry_id']}" for end in ends)),
            consumers=sorted(numbers.to_pylist()),
            seqs=sorted({end["seq"] for end in ends}),
            t_us=ends[1]["t_us"],
            cause=None,
            reason=None,
            uncertain=False,
            explanation=text,
            place=len(self._seq),
        )


def _beginning(names: list[str]) -> str:
    """What all names begin with."""
    first, last = min(names), max(names)
    differ = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differ, len(first))]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"


@dataclass(frozen=True, slots=True)
class ActiveTime:
    """How long a consumer that was connected to one topic was its active one. ``active_us`` 0: never."""

    cluster: str
    topic: str
    subscription: str
    consumer_name: str
    active_us: int


def failover_imbalances(times: Iterable[ActiveTime], limits: Limits) -> list[dict[str, Any]]:
    """``failover_imbalance`` over all topics of each Failover subscription: who is active for how many of them.

    A topic counts for the consumer that was active for longest. Findings are rows of ``anomalies`` without
    ``interval_start`` and ``incarnation``; their ``topic`` is what the names of all topics begin with, and ``*``.
    """
    of: defaultdict[tuple[str, str], list[ActiveTime]] = defaultdict(list)
    for time in times:
        of[time.cluster, time.subscription].append(time)
    found = []
    for (cluster, subscription), group in sorted(of.items()):
        topics = sorted({time.topic for time in group})
        active = dict.fromkeys(sorted({time.consumer_name for time in group}), 0)
        longest: dict[str, ActiveTime] = {}
        for time in group:
            if time.active_us > (longest[time.topic].active_us if time.topic in longest else 0):
                longest[time.topic] = time
        for time in longest.values():
            active[time.consumer_name] += 1
        if len(longest) < limits.min_topics or len(active) < 2:
            continue
        fair = len(longest) / len(active)
        busiest = max(active, key=lambda name: (active[name], name))
        idle = [name for name, count in active.items() if not count]
        if active[busiest] <= limits.share_ratio * fair and not (idle and fair >= limits.min_topics):
            continue
        text = (
            f"{shown(busiest)} is active for {active[busiest]} of {len(longest)} topics of subscription "
            f"{shown(subscription)}, an equal part would be {fair:.1f}"
        )
        if idle:
            named = ", ".join(map(shown, idle[:_NAMED_AT_MOST]))
            more = f" and {len(idle) - _NAMED_AT_MOST} more" if len(idle) > _NAMED_AT_MOST else ""
            text += f"; {named}{more} {'is' if len(idle) == 1 else 'are'} active for none"
        text += (
            ". Failover picks by partition index, so one-partition topics all pick the same place in the list (PIP-392); "
            "activeConsumerFailoverConsistentHashing=true picks by the topic's name"
        )
        found.append(
            {
                "kind": "failover_imbalance",
                "severity": KINDS["failover_imbalance"].severity,
                "cluster": cluster,
                "topic": f"{_beginning(topics)}*",
                "subscription": subscription,
                "key": None,
                "key_b64": False,
                "hash": None,
                "positions": [],
                "consumers": [],
                "consumer_names": [busiest, *idle[:_NAMED_AT_MOST]],
                "seqs": [],
                "t_us": None,
                "cause": None,
                "reason": None,
                "uncertain": False,
                "explanation": text,
            }
        )
    return found
