"""Is the work spread as it should be? Findings about consumers and keys that carry too much, and about Failover's topics.

A consumer's fair part is what it would have got if every message sent had been spread over the hash space (or over the
consumers) as it was owned at that moment (``fair``). So neither who came late nor who stayed short is blamed for it. Here
is judged, from sums: those of a log in memory, or those that Spark brings (``spark_jobs.aggregates.load_findings``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.hash_share import fair_of, messages_of
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.sentences.lists import listed, plural
from dispatch_core.audit.sentences.names import names_in, shown

_NAMED_AT_MOST: Final = 5


def not_judged(balance: pa.Table, limits: Limits) -> str | None:
    """The reason why a ``balance`` table holds too little to be judged; ``None`` = it holds enough."""
    messages = int(pc.sum(balance["messages"]).as_py() or 0)
    keys = int(pc.sum(balance["keys"]).as_py() or 0)
    if messages < limits.min_messages:
        return f"{messages:,} messages were sent; below {limits.min_messages:,} balance is not judged"
    if keys < limits.min_keys_per_consumer * balance.num_rows:
        return (
            f"{keys:,} keys at {balance.num_rows} consumers; below {limits.min_keys_per_consumer} for each "
            "balance is not judged"
        )
    if balance["hash_share"].null_count == balance.num_rows:
        return "no consumer has a share of the hash space"
    return None


@dataclass(frozen=True, slots=True)
class Load:
    """The messages of one consumer name, and its fair part (``hash_share.fair_parts``).

    ``hottest`` is the key that makes up at least half of it, ``None`` if no key does.
    """

    consumer_name: str
    messages: int
    by_hashes: float
    by_number: float
    hottest: str | None = None
    hottest_messages: int = 0


@dataclass(frozen=True, slots=True)
class KeyLoad:
    """The messages that one key carries, whoever got them."""

    key: str
    key_b64: bool
    messages: int


@dataclass(frozen=True, slots=True)
class Uneven:
    """A finding about a consumer name, or about a key."""

    kind: str
    consumer_name: str | None
    key: str | None
    key_b64: bool
    explanation: str


def uneven(loads: Iterable[Load], keys: Iterable[KeyLoad], limits: Limits) -> list[Uneven]:
    """``imbalance``, ``hot_consumer`` and ``hot_key`` of one Key_Shared log, for the command line and the pipeline alike.

    ``loads``: all consumer names that got or owned anything. ``keys``: at least those with more than ``hot_key_share``.
    Whether there is enough to judge at all is ``not_judged``'s to say.
    """
    loads = sorted(loads, key=lambda one: one.consumer_name)
    total = sum(one.messages for one in loads)
    found = []
    for kind, means in (("imbalance", "its part of the hash space"), ("hot_consumer", "an equal part")):
        for one in loads:
            fair = one.by_hashes if kind == "imbalance" else one.by_number
            if fair <= 0 or one.messages <= limits.share_ratio * fair:
                continue
            text = (
                f"{shown(one.consumer_name)} got {_percent(one.messages, total)} of {total:,} messages, "
                f"{one.messages / fair:.1f} times {means} ({_percent(fair, total)})"
            )
            if one.hottest is not None and 2 * one.hottest_messages >= one.messages:
                part = one.hottest_messages / one.messages
                text += f"; key {shown(one.hottest)} alone is {part:.0%} of what it got"
            elif kind == "hot_consumer":
                text += f"; it owned {_percent(one.by_hashes, total)} of the hash space"
            found.append(Uneven(kind, one.consumer_name, None, False, text))
    for key in sorted(keys, key=lambda one: (-one.messages, one.key, one.key_b64)):
        if key.messages > limits.hot_key_share * total:
            text = (
                f"key {shown(key.key)} carries {_percent(key.messages, total)} of {total:,} messages: "
                "whoever owns its hash gets at least as much, however the ranges are cut; split the key, or give its "
                "consumer room"
            )
            found.append(Uneven("hot_key", None, key.key, key.key_b64, text))
    return found


def imbalances(deliveries: pa.Table, ownership: pa.Table, balance: pa.Table, limits: Limits) -> list[Finding]:
    """``uneven`` of a whole log in memory; nothing where it is not judged.

    The proving lines are the first and the last sending to the consumer, or of the key.
    """
    if not_judged(balance, limits) is not None:
        return []
    fair = fair_of(deliveries, ownership)
    sent = pa.table(
        {
            "name": names_in(deliveries),
            "key": deliveries["key"],
            "key_b64": deliveries["key_b64"],
            "messages": messages_of(deliveries),
        }
    )
    by_key = sent.filter(pc.is_valid(sent["key"])).group_by(["name", "key", "key_b64"])
    carried = by_key.aggregate([("messages", "sum")]).rename_columns(["name", "key", "key_b64", "messages"])
    ranked = carried.sort_by([("messages", "descending"), ("key", "ascending"), ("key_b64", "ascending")])
    hottest: dict[str, dict[str, Any]] = {}
    for row in ranked.to_pylist():
        hottest.setdefault(row["name"], row)
    loads = []
    for row in balance.to_pylist():
        parts = fair.get(row["consumer_name"], (0.0, 0.0))
        key = hottest.get(row["consumer_name"], {"key": None, "messages": 0})
        loads.append(Load(row["consumer_name"], row["messages"], *parts, key["key"], key["messages"]))
    totals = carried.group_by(["key", "key_b64"]).aggregate([("messages", "sum")]).to_pylist()
    keys = [KeyLoad(row["key"], row["key_b64"], row["messages_sum"]) for row in totals]
    return [_finding(one, deliveries, sent) for one in uneven(loads, keys, limits)]


def _finding(one: Uneven, deliveries: pa.Table, sent: pa.Table) -> Finding:
    """With its evidence; ``sent`` is of ``deliveries``, row by row."""
    if one.key is None:
        mine = pc.equal(sent["name"], one.consumer_name)
    else:
        mine = pc.and_(pc.equal(sent["key"], one.key), pc.equal(sent["key_b64"], one.key_b64))
    rows = deliveries.filter(pc.fill_null(mine, False))
    ends = [rows.slice(at, 1).to_pylist()[0] for at in (0, rows.num_rows - 1)]
    return Finding(
        kind=one.kind,
        severity=KINDS[one.kind].severity,
        key=one.key,
        key_b64=one.key_b64,
        hash=None if one.key is None else ends[1]["hash"],
        positions=list(dict.fromkeys(f"{end['ledger_id']}:{end['entry_id']}" for end in ends)),
        consumers=sorted(pc.unique(rows["consumer"]).to_pylist()),
        seqs=sorted({end["seq"] for end in ends}),
        t_us=ends[1]["t_us"],
        cause=None,
        reason=None,
        uncertain=False,
        explanation=one.explanation,
        place=deliveries.num_rows,
    )


def _beginning(names: list[str]) -> str:
    """The beginning that all names share."""
    first, last = min(names), max(names)
    differ = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differ, len(first))]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"


@dataclass(frozen=True, slots=True)
class ActiveTime:
    """The time that a consumer of one topic was its active one. ``active_us`` 0: never."""

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
            text += f"; {listed(map(shown, idle))} {plural(len(idle), 'is', 'are')} active for none"
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
