"""Fold the comparisons of the partitions and incarnations of a subscription into one row. Pure: JSON values in and out.

The worst part that differs from ``SAME`` decides the outcome and the place of the row. Counts are sums over the parts;
waits, share and what moved are the largest of a part, because they cannot be added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatch_core.broker.profiles import partition_index
from dispatch_core.what_if.upgrade_risk import PAIRS, SAME

_LARGEST: Final = ("wait_ms_p50", "wait_ms_p99", "max_share_ratio")


def folded(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fold rows of ``upgrade_risk.Risk.as_json``, the worst first, into one for each subscription, the worst first.

    ``parts`` of a row are the rows behind it, the worst first; of a subscription with one row there are none.
    """
    parts: dict[tuple[str, str, str, bool], list[tuple[int, Mapping[str, Any]]]] = {}
    for place, row in enumerate(rows):
        topic = partitioned_topic(row["topic"])
        group = row["cluster"], topic, row["subscription"], topic == row["topic"]
        parts.setdefault(group, []).append((place, row))
    found = []
    for (_, topic, _, _), some in parts.items():
        place, worst = next((part for part in some if part[1]["outcome"] != SAME), some[0])
        found.append((place, _sum(topic, worst, [row for _, row in some])))
    return [row for _, row in sorted(found, key=lambda item: item[0])]


def partitioned_topic(topic: str) -> str:
    """Return the name of the topic that a partition belongs to; of a topic without partitions its own.

    >>> partitioned_topic("persistent://public/default/orders-partition-3"), partitioned_topic("orders-partition-03")
    ('persistent://public/default/orders', 'orders-partition-03')
    """
    index = partition_index({}, topic)
    return topic if index < 0 else topic.removesuffix(f"-partition-{index}")


def _sum(topic: str, worst: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if len(parts) == 1:
        return {**worst, "parts": []}
    topics = {row["topic"] for row in parts}
    moved = [row["moved"] for row in parts if row["moved"] is not None]
    chances = [row["violates"] for row in parts if row["violates"] is not None]
    return {
        **worst,
        "topic": topic if len(topics) > 1 else worst["topic"],
        "incarnation": None,
        "violates": max(chances, default=None),
        **{name: _pair(name, parts) for name in PAIRS},
        "moved": max(moved, default=None),
        "not_judged": list(dict.fromkeys(reason for row in parts for reason in row["not_judged"])),
        "parts": list(parts),
    }


def _pair(name: str, parts: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    """Return a figure of both sides over all parts that have it."""
    pairs = [row[name] for row in parts if row[name] is not None]
    if not pairs:
        return None
    sides = [[value for value in side if value is not None] for side in zip(*pairs, strict=True)]
    total = max if name in _LARGEST else sum
    return [total(values) if values else None for values in sides]


def parts_called(row: Mapping[str, Any]) -> str:
    """Count the parts of a row: ``12 partitions``, ``2 incarnations``.

    >>> parts_called({"parts": [{"topic": "t", "incarnation": 1}, {"topic": "t", "incarnation": 2}]})
    '2 incarnations'
    """
    topics = len({part["topic"] for part in row["parts"]})
    if topics == 1:
        return f"{len(row['parts']):,} incarnations"
    more = "" if len(row["parts"]) == topics else f", {len(row['parts']):,} incarnations"
    return f"{topics:,} partitions{more}"


def part_called(part: Mapping[str, Any]) -> str:
    """Name a part: its partition, and its incarnation where the log has one.

    >>> part_called({"topic": "orders-partition-3", "incarnation": 17}), part_called({"topic": "t", "incarnation": 2})
    ('partition 3, incarnation 17', 'incarnation 2')
    """
    index = partition_index({}, part["topic"])
    names = [f"partition {index}"] if index >= 0 else []
    names += [f"incarnation {part['incarnation']}"] if part["incarnation"] or not names else []
    return ", ".join(names)
