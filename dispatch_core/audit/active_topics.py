"""Balance of Failover: for how many topics of a subscription each consumer is the active one (``failover_imbalance``).

Pulsar spreads the topics of a Failover subscription over the consumers with the highest priority level. Topics of one
partition all pick the same place in the list of consumers: PIP-392 describes 100 such topics that are all active at one
of ten consumers. This module compares what each consumer got with an equal part of the topics that it was connected to, for
as long as it was connected. So consumers of other topics, ones that came late or only stood by, and topics with one consumer
change nothing.

Example: a and b are connected to 40 topics, b for half of the time. An equal part is 27 topics for a and 13 for b.

Source: documentation of Pulsar, page "Messaging", "Failover"; PIP-392.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import log
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.sentences.lists import listed, plural
from dispatch_core.audit.sentences.names import shown

_NAMED_AT_MOST: Final = 5
_TOPIC: Final = ("cluster", "topic", "subscription")
#: A consumer whose active time is less than this part of its equal part counts as idle.
_IDLE_PART: Final = 0.1
#: Chance that equal parts look as uneven; a finding must be less likely.
_BY_CHANCE: Final = 1e-4

#: One row per topic and consumer name of Failover subscriptions: for how long it was active, and for how long connected.
#: ``priority_level``: the smallest (best) of its connections.
ACTIVE_TIMES: Final = pa.schema(
    [
        *((name, pa.string()) for name in (*_TOPIC, "consumer_name")),
        *((name, pa.int64()) for name in ("active_us", "connected_us", "priority_level")),
    ]
)
#: One row per connection; ``until_t_us`` null = it did not end.
CONNECTED: Final = pa.schema(
    [
        *((name, pa.string()) for name in (*_TOPIC, "consumer_name")),
        *((name, pa.int64()) for name in ("from_t_us", "until_t_us", "priority_level")),
    ]
)


def active_times(
    ownership: pa.Table, connected: pa.Table, last_t_us: pa.Table, start_us: int, end_us: int
) -> pa.Table:
    """Compute for how long each consumer of each Failover topic was active and connected in [``start_us``, ``end_us``).

    Args:
        ownership: rows of ``tables.OWNERSHIP`` of any number of topics; topics that ``last_t_us`` lacks are left out.
        connected: rows of ``CONNECTED``: consumers that were connected in the interval.
        last_t_us: by topic the time of its last line, ``last_t_us``: what has no end lasts until then.
        start_us: start of the interval, in microseconds since the epoch.
        end_us: its end.

    Returns:
        Rows of ``ACTIVE_TIMES``, sorted. Connections of one name are one consumer.
    """
    parts = [
        _times(ownership, "active_us", last_t_us, start_us, end_us),
        _times(connected, "connected_us", last_t_us, start_us, end_us),
    ]
    by = [*_TOPIC, "consumer_name"]
    sums = [("active_us", "sum"), ("connected_us", "sum"), ("priority_level", "min")]
    summed = pa.concat_tables(parts).group_by(by, use_threads=False).aggregate(sums)
    return summed.rename_columns(ACTIVE_TIMES.names).sort_by([(name, "ascending") for name in by])


def _times(spans: pa.Table, called: str, last_t_us: pa.Table, start_us: int, end_us: int) -> pa.Table:
    """Return the length of each span inside the interval, in the column ``called``."""
    spans = spans.join(last_t_us, list(_TOPIC), join_type="inner", use_threads=False)
    until = pc.min_element_wise(pc.coalesce(spans["until_t_us"], spans["last_t_us"]), end_us)
    since = pc.max_element_wise(spans["from_t_us"], start_us)
    columns: dict[str, Any] = {name: spans[name] for name in _TOPIC}
    columns["consumer_name"] = pc.fill_null(spans["consumer_name"], "")
    columns |= {name: pa.repeat(pa.scalar(0), spans.num_rows) for name in ("active_us", "connected_us")}
    columns[called] = pc.max_element_wise(pc.subtract(until, since), pa.scalar(0, pa.int64()))
    with_level = "priority_level" in spans.column_names
    columns["priority_level"] = (
        spans["priority_level"] if with_level else pa.nulls(spans.num_rows, pa.int64())
    )
    return pa.table(columns).cast(ACTIVE_TIMES)


@dataclass(slots=True)
class _Consumer:
    """Topics of one consumer name. ``most``: it was the active one for longest; ``active``, ``fair``: by time."""

    most: int = 0
    active: float = 0.0
    fair: float = 0.0


class _Time(NamedTuple):
    """A row of ``ACTIVE_TIMES``."""

    cluster: str
    topic: str
    subscription: str
    consumer_name: str
    active_us: int
    connected_us: int
    priority_level: int | None


def uneven_topics(times: pa.Table, rules: LimitRules) -> list[dict[str, Any]]:
    """``failover_imbalances`` under the limits of each topic: topics with other limits are judged apart."""
    by_limits: dict[Limits, list[int]] = {}
    topics = zip(times["topic"].to_pylist(), times["subscription"].to_pylist(), strict=True)
    for row, topic in enumerate(topics):
        by_limits.setdefault(rules.limits_for(*topic), []).append(row)
    return [
        finding
        for limits, rows in by_limits.items()
        for finding in failover_imbalances(times.take(pa.array(rows)), limits)
    ]


def failover_imbalances(times: pa.Table, limits: Limits) -> list[dict[str, Any]]:
    """``failover_imbalance`` over all topics of each Failover subscription: who is active for how many of them.

    Only topics to which several consumers of the best priority level were connected are counted. Findings are rows of
    ``anomalies`` without ``interval_start`` and ``incarnation``; their ``topic`` is what the names of all these topics begin
    with, and ``*``.
    """
    of: defaultdict[tuple[str, str], defaultdict[str, list[_Time]]]
    of = defaultdict(lambda: defaultdict(list))
    for row in times.select(ACTIVE_TIMES.names).to_pylist():
        of[row["cluster"], row["subscription"]][row["topic"]].append(_Time(**row))
    found = []
    for (cluster, subscription), by_topic in sorted(of.items()):
        candidates = {topic: _candidates(group) for topic, group in by_topic.items()}
        shared = {
            topic: (by_topic[topic], several) for topic, several in candidates.items() if len(several) > 1
        }
        text, names = _uneven(shared, subscription, limits)
        if text:
            found.append(_finding(cluster, f"{_beginning(list(shared))}*", subscription, text, names))
    return found


def _candidates(group: list[_Time]) -> list[_Time]:
    """Return the consumers that the broker chooses from: those of the best priority level; none if nobody is active."""
    if not any(time.active_us for time in group):
        return []
    levels = [time.priority_level or 0 for time in group]
    return [time for time, level in zip(group, levels, strict=True) if level == min(levels)]


def _uneven(
    topics: dict[str, tuple[list[_Time], list[_Time]]], subscription: str, limits: Limits
) -> tuple[str, list[str]]:
    """Return a sentence about topics that are spread unevenly, and the consumers that it is about; "" = they are not.

    ``topics``: of each its consumers, and those of them that the broker chooses from.
    """
    if len(topics) < limits.min_topics:
        return "", []
    consumers: defaultdict[str, _Consumer] = defaultdict(_Consumer)
    for _topic, (group, candidates) in sorted(topics.items()):
        active_us = sum(time.active_us for time in group)
        connected_us = sum(max(time.connected_us, time.active_us) for time in candidates)
        for time in candidates:
            consumer = consumers[time.consumer_name]
            consumer.active += time.active_us / active_us
            consumer.fair += max(time.connected_us, time.active_us) / connected_us if connected_us else 0.0
        longest = max(group, key=lambda time: time.active_us)
        if longest in candidates:
            consumers[longest.consumer_name].most += 1
    busiest = max(sorted(consumers), key=lambda name: (consumers[name].active, name))
    most = consumers[busiest]
    idle = [
        name
        for name, consumer in sorted(consumers.items())
        if not consumer.most and consumer.active < _IDLE_PART * consumer.fair
    ]
    too_many = most.active > limits.share_ratio * most.fair
    if too_many:
        too_many = not _by_chance(most.active, most.fair, len(topics), len(consumers))
    if not too_many and not any(consumers[name].fair >= limits.min_topics for name in idle):
        return "", []
    text = (
        f"{shown(busiest)} is active for {most.most} of {len(topics)} topics of subscription "
        f"{shown(subscription)}, an equal part would be {most.fair:.1f}"
    )
    if idle:
        text += f"; {listed(map(shown, idle))} {plural(len(idle), 'is', 'are')} active for none"
    text += (
        ". Failover picks by partition index, so one-partition topics all pick the same place in the list (PIP-392); "
        "activeConsumerFailoverConsistentHashing=true picks by the topic's name"
    )
    return text, [busiest, *idle[:_NAMED_AT_MOST]]


def _by_chance(active: float, fair: float, topics: int, consumers: int) -> bool:
    """Check whether one of some consumers may get so many topics by chance, if each topic picks one at random.

    The bound of Chernoff: at least ``active`` of n topics with probability p each are less likely than exp(-n D), where D is
    the relative entropy of ``active / n`` and p.

    >>> _by_chance(3, 10 / 12, 10, 12), _by_chance(10, 2.5, 10, 4)
    (True, False)
    """
    part, p = min(active / topics, 1.0), fair / topics
    entropy = part * log(part / p) + ((1 - part) * log((1 - part) / (1 - p)) if part < 1 else 0.0)
    return topics * entropy < log(consumers / _BY_CHANCE)


def _beginning(names: list[str]) -> str:
    """Return the prefix that all names share."""
    first, last = min(names), max(names)
    differ = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differ, len(first))]


def _finding(cluster: str, topic: str, subscription: str, text: str, names: list[str]) -> dict[str, Any]:
    return {
        "kind": "failover_imbalance",
        "severity": KINDS["failover_imbalance"].severity,
        "cluster": cluster,
        "topic": topic,
        "subscription": subscription,
        "key": None,
        "key_b64": False,
        "hash": None,
        "positions": [],
        "consumers": [],
        "consumer_names": names,
        "seqs": [],
        "t_us": None,
        "cause": None,
        "reason": None,
        "uncertain": False,
        "explanation": text,
    }
