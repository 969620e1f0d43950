"""Selectors against vectors recorded from the broker's own classes (only where ``../shared`` is present)."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.selectors import failover
from dispatch_core.selectors.assignments import Assignments
from dispatch_core.selectors.consistent_hashing import ConsistentHashingSelector

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="no golden vectors beside the repository")


def histories(version: str, kind: str) -> Iterator[dict[str, Any]]:
    with gzip.open(GOLDEN / version / f"{kind}.jsonl.gz", "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            yield json.loads(line)


def digest(assignments: Assignments) -> str:
    return hashlib.sha256("".join(f"{s},{e},{c};" for s, e, c in assignments.ranges).encode()).hexdigest()


def agrees(side: dict[int, tuple[tuple[int, int], ...]], vector: list[dict[str, Any]]) -> bool:
    """Whether impacted ranges equal the vector's, which gives long lists by count and digest only."""
    if sorted(side) != [item["inst"] for item in vector]:
        return False
    for item in vector:
        inst, ranges = item["inst"], [list(r) for r in side[item["inst"]]]
        if "ranges" in item:
            if ranges != item["ranges"]:
                return False
        else:
            text = "".join(f"{s},{e},{inst};" for s, e in ranges)
            if (len(ranges), hashlib.sha256(text.encode()).hexdigest()) != (item["n_ranges"], item["sha256"]):
                return False
    return True


def test_consistent_hashing_of_4_x() -> None:
    steps = 0
    for history in histories("4.2.4", "consistent"):
        selector = ConsistentHashingSelector(history["replica_points"])
        for number, step in enumerate(history["steps"]):
            where = f"seed {history['seed']} step {number}"
            if step["op"] == "join":
                selector.add(step["inst"], step["name"])
            else:
                selector.remove(step["inst"])
            assignments = selector.assignments()
            assert len(assignments.ranges) == step["n_ranges"], where
            assert digest(assignments) == step["sha256"], where
            assert [selector.select(p) for p in history["probes"]] == step["own"], where
            steps += 1
    assert steps > 1000


def test_impacted_ranges_of_consistent_hashing() -> None:
    steps = 0
    for history in histories("4.2.4", "impacted"):
        if "replica_points" not in history:
            continue
        equal: dict[int, tuple[int, str]] = {}
        selector = ConsistentHashingSelector(
            history["replica_points"], same=lambda one, other, equal=equal: equal[one] == equal[other]
        )
        for number, step in enumerate(history["steps"]):
            if step["op"] == "join":
                equal[step["inst"]] = (step["cid"], step["addr"])
                moved = selector.add(step["inst"], step["name"])
            else:
                moved = selector.remove(step["inst"])
            expected = step["impacted"]
            where = f"seed {history['seed']} step {number}"
            if expected is None:
                assert (moved.removed, moved.added) == ({}, {}), where
            else:
                assert agrees(moved.removed, expected["removed"]), where
                assert agrees(moved.added, expected["added"]), where
            steps += 1
    assert steps > 500


@pytest.mark.parametrize("version", ["3.0.7", "4.2.4"])
def test_active_consumer(version: str) -> None:
    steps = 0
    for history in histories(version, "failover"):
        members: list[failover.Candidate] = []
        identity: dict[int, tuple[int, str]] = {}
        partition = history["partition_index"]
        ring = partition < 0 or bool(history["consistent_hashing_flag"])
        for number, step in enumerate(history["steps"]):
            where = f"{version} seed {history['seed']} config {history['config']} step {number}"
            if step["op"] == "join":
                members.append(failover.Candidate(step["inst"], step["name"], step["prio"]))
                identity[step["inst"]] = (step["cid"], step["addr"])
            else:  # the dispatcher finds who leaves with equals: consumer id and address
                leaving = next(m for m in members if identity[m.consumer] == identity[step["inst"]])
                members.remove(leaving)
            if not members:
                assert (step["active"], step["sorted"]) == (None, []), where
                continue
            choice = failover.pick(members, partition_index=partition, topic=history["topic"], ring=ring)
            members.sort(key=lambda m, order=choice.order: order.index(m.consumer))
            assert (list(choice.order), choice.active) == (step["sorted"], step["active"]), where
            steps += 1
    assert steps > 1000
