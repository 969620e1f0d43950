"""Players of Key_Shared selector histories: the four selector kinds and ``impacted``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from dispatch_core.broker import profiles
from dispatch_core.broker.selectors import factory
from dispatch_core.broker.selectors.assignments import Range
from dispatch_core.broker.selectors.factory import SelectorRules
from dispatch_core.broker.selectors.selector import Selector
from dispatch_core.broker.selectors.sticky_ranges import EndPointRangesSelector, ExactRangesSelector
from dispatch_core.errors import SelectorRefusedError

Answer = dict[str, Any]


def auto_split_rules(version: str, line: dict[str, Any]) -> SelectorRules:
    """Range splitting over the history's number of slots."""
    return factory.auto_split(profiles.resolve(version), line["range_size"])


def ring_rules(version: str, line: dict[str, Any]) -> SelectorRules:
    """Return the release's consistent hashing with the history's number of points."""
    points = {"subscriptionKeySharedConsistentHashingReplicaPoints": line["replica_points"]}
    return factory.ring(profiles.resolve(version, points))


def classic_ring_rules(version: str, line: dict[str, Any]) -> SelectorRules | None:
    """Return the consistent hashing of the classic dispatchers; None for a release that has no such variant."""
    if "ring_keeps_owner" not in profiles.resolve(version).changes:
        return None
    return factory.classic_ring(line["replica_points"])


def sticky_rules(version: str, _line: dict[str, Any]) -> SelectorRules:
    """Return the release's fixed ranges."""
    return factory.sticky_ranges(profiles.resolve(version))


def impacted_rules(version: str, line: dict[str, Any]) -> tuple[SelectorRules, bool] | None:
    """Return the selector, and whether ranges won are reported, too (#24736); None before draining hashes."""
    changes = profiles.resolve(version).changes
    if "draining_hashes" not in changes:
        return None
    rules = auto_split_rules if "range_size" in line else ring_rules
    return rules(version, line), "added_ranges" in changes


class _Members:
    """The consumers of a history: identity is the number, ``equals`` compares consumer id and address."""

    def __init__(self) -> None:
        self.joins: dict[int, dict[str, Any]] = {}

    def same(self, consumer: int, other: int) -> bool:
        join, other_join = self.joins[consumer], self.joins[other]
        return (join["cid"], join["addr"]) == (other_join["cid"], other_join["addr"])


def play(rules: SelectorRules, line: dict[str, Any]) -> Iterator[Answer]:
    """Yield an answer per step: result, range report, owners."""
    members = _Members()
    selector = rules.new(members.same)
    for step in line["steps"]:
        answer: Answer = {}
        if step["op"] == "join":
            members.joins[step["inst"]] = step
            announced = None if step.get("ranges") is None else [(s, e) for s, e in step["ranges"]]
            try:
                if isinstance(selector, EndPointRangesSelector | ExactRangesSelector):
                    answer["probed"] = []
                    _probe(selector, members, step["inst"], announced, answer["probed"])
                selector.add(step["inst"], step["name"], announced)
                answer["result"] = "ok"
            except SelectorRefusedError as refusal:
                answer["result"] = {"error": "ConsumerAssignException", "message": refusal.reason}
        else:
            selector.remove(step["inst"])
            answer["result"] = "ok"
        yield answer | _report(selector, line["probes"], step["bown"])


def play_impacted(rules: tuple[SelectorRules, bool], line: dict[str, Any]) -> Iterator[Answer]:
    """Yield an answer per step: the ranges that moved."""
    members = _Members()
    selector, with_added = rules[0].new(members.same), rules[1]
    for step in line["steps"]:
        if step["op"] == "join":
            members.joins[step["inst"]] = step
            try:
                moved = selector.add(step["inst"], step["name"])
            except SelectorRefusedError as refusal:
                result = {"error": "ConsumerAssignException", "message": refusal.reason}
                yield {"result": result, "impacted": None}
                continue
        else:
            moved = selector.remove(step["inst"])
        sides = [("removed", moved.removed)] + ([("added", moved.added)] if with_added else [])
        recorded = step["impacted"] if isinstance(step.get("impacted"), dict) else {}
        answer = {name: _in_form_of(recorded.get(name), side) for name, side in sides}
        yield {"result": "ok", "impacted": answer}


def _probe(
    selector: EndPointRangesSelector | ExactRangesSelector,
    members: _Members,
    joining: int,
    announced: Sequence[Range] | None,
    probed: list[int],
) -> None:
    """Probe the connection of a consumer in the way; a dead one is removed before the new consumer is checked."""
    other = selector.in_the_way(joining, announced)
    if other is None:
        return
    probed.append(other)
    if members.joins[other]["liveness"] == "dead":
        selector.remove(other)


def _report(selector: Selector, probes: list[int], near: list[list[int]]) -> Answer:
    ranges = selector.assignments().ranges
    return {
        "n_ranges": len(ranges),
        "sha256": _digest(ranges),
        "ranges_after": [list(item) for item in ranges],
        "own": [selector.select(probe) for probe in probes],
        "bown": [[value, selector.select(value)] for value, _ in near],
    }


def _digest(ranges: Sequence[tuple[int, int, int]]) -> str:
    return hashlib.sha256("".join(f"{s},{e},{inst};" for s, e, inst in ranges).encode()).hexdigest()


def _in_form_of(recorded: Any, side: dict[int, tuple[Range, ...]]) -> list[Answer]:
    """Return ranges by consumer, in full or by count and digest, as the vector has them for each."""
    items = [item for item in recorded if isinstance(item, dict)] if isinstance(recorded, list) else []
    short = [item.get("inst") for item in items if "ranges" not in item and "n_ranges" in item]
    out: list[Answer] = []
    for inst in sorted(side):
        ranges = side[inst]
        if inst in short:
            digest = _digest([(start, end, inst) for start, end in ranges])
            out.append({"inst": inst, "n_ranges": len(ranges), "sha256": digest})
        else:
            out.append({"inst": inst, "ranges": [list(item) for item in ranges]})
    return out
