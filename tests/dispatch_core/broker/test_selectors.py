"""Selectors: worked tables, and invariants of any membership history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.selectors.assignments import Assignments, contains, impacted
from dispatch_core.broker.selectors.consistent_hashing import ConsistentHashingSelector
from dispatch_core.broker.selectors.failover import Candidate, pick

SAMPLE = {"key-1": 11858, "key-2": 51461, "key-3": 55278, "key-a": 8785, "key-b": 50828}


def joined(*names: str, points: int = 100) -> ConsistentHashingSelector:
    selector = ConsistentHashingSelector(points)
    for number, name in enumerate(names, start=1):
        selector.add(number, name)
    return selector


@pytest.mark.parametrize(
    ("names", "owners", "slots", "ranges"),
    [
        (("c1",), None, (65535,), 1),
        (("c1", "c2"), (2, 1, 2, 2, 2), (30966, 34569), 103),
        (("c1", "c2", "c3"), (2, 3, 2, 2, 2), (20340, 21396, 23799), 197),
        (("c1", "c2", "c3", "c4"), (2, 3, 2, 4, 4), (14370, 15431, 19250, 16484), 292),
        (("c1", "c2", "c3", "c4", "c5"), (2, 3, 5, 4, 5), (11992, 11331, 15555, 13712, 12945), 398),
    ],
)
def test_consistent_hashing_worked(
    names: tuple[str, ...], owners: tuple[int, ...] | None, slots: tuple[int, ...], ranges: int
) -> None:
    selector = joined(*names)
    assert selector.assignments().slots() == dict(enumerate(slots, start=1))
    assert len(selector.assignments().ranges) == ranges
    if owners is not None:
        assert tuple(selector.select(value) for value in SAMPLE.values()) == owners


def test_a_queued_consumer_inherits_the_point() -> None:
    selector = joined("c1", "c2", "c3", "c4", "c5")
    selector.remove(1)  # c3 was queued behind it on point 34919
    assert selector.assignments().slots() == {2: 14339, 3: 20455, 4: 15621, 5: 15120}
    assert selector.select(34919) == 3


def test_small_ring_of_the_projects_own_unit_test() -> None:
    selector = joined("consumer1", "consumer2", "consumer3", points=3)
    report = selector.assignments()
    assert report.of(1) == ((14359, 18366), (29991, 39817), (52980, 60442))
    assert report.of(2) == ((1, 6668), (39818, 52979), (60443, 63679), (65184, 65535))
    assert report.of(3) == ((6669, 14358), (18367, 29990), (63680, 65183))


names = st.sampled_from(["c1", "c11", "c110", "c2", "ключ", ""])


@given(st.lists(st.one_of(names, st.integers(0, 30)), max_size=25), st.sampled_from([1, 3, 100]))
def test_any_history_covers_the_whole_space(history: list[str | int], points: int) -> None:
    """All hashes have an owner, ranges are disjoint and ascending, and the reported moves are exactly the difference."""
    selector = ConsistentHashingSelector(points)
    live: list[int] = []
    before = Assignments()
    for number, step in enumerate(history, start=1):
        if isinstance(step, str):
            moved = selector.add(number, step)
            live.append(number)
        elif live:
            moved = selector.remove(live.pop(step % len(live)))
        else:
            continue
        after = selector.assignments()
        assert sum(after.slots().values()) == (65535 if live else 0)
        assert all(
            left[1] + 1 == right[0] for left, right in zip(after.ranges, after.ranges[1:], strict=False)
        )
        probes = np.array([1, 2, 11858, 34919, 65535], dtype=np.int64)
        assert selector.select_array(probes).tolist() == [
            -1 if (owner := selector.select(int(p))) is None else owner for p in probes
        ]
        assert moved == impacted(before, after)
        for value in probes.tolist():
            old = next((c for s, e, c in before.ranges if s <= value <= e), None)
            new = next((c for s, e, c in after.ranges if s <= value <= e), None)
            assert contains(moved.removed.get(-1 if old is None else old, ()), value) is (
                old is not None and old != new
            )
        before = after


def test_a_consumer_that_comes_back_gets_its_ranges_back() -> None:
    selector = joined("c1", "c2", "c3")
    before = selector.assignments()
    selector.remove(2)
    selector.add(9, "c2")
    assert {(s, e) for s, e, c in selector.assignments().ranges if c == 9} == set(before.of(2))


# --- Failover ---------------------------------------------------------------------------------------------------------


def actives(members: list[Candidate], partitions: int = 4) -> list[str]:
    name = {member.consumer: member.name for member in members}
    return [name[pick(members, partition_index=p, topic="t", ring=False).active] for p in range(partitions)]


def test_modulo_worked() -> None:
    c3, c1, c2, c0 = (
        Candidate(1, "c3", 0),
        Candidate(2, "c1", 0),
        Candidate(3, "c2", 0),
        Candidate(4, "c0", 0),
    )
    assert actives([c3, c1, c2]) == ["c1", "c2", "c3", "c1"]
    assert actives([c3, c1]) == ["c1", "c3", "c1", "c3"]
    assert actives([c3, c1, c0]) == ["c0", "c1", "c3", "c0"]
    assert actives([c3, Candidate(2, "c1", 1), c0]) == ["c0", "c3", "c0", "c3"]


@pytest.mark.parametrize(
    ("topic", "alone", "two", "three", "without_c1"),
    [
        ("my-topic", "c1", "c1", "c3", "c3"),
        ("my-topic-partition-0", "c1", "c2", "c2", "c2"),
        ("my-topic-partition-1", "c1", "c2", "c2", "c2"),
        ("my-topic-partition-2", "c1", "c2", "c2", "c2"),
        ("my-topic-partition-3", "c1", "c1", "c3", "c3"),
    ],
)
def test_ring_worked(topic: str, alone: str, two: str, three: str, without_c1: str) -> None:
    full = f"persistent://public/default/{topic}"

    def active(*members: str) -> str:
        candidates = [Candidate(i, name, 0) for i, name in enumerate(members)]
        return members[pick(candidates, partition_index=0, topic=full, ring=True).active]

    assert (active("c1"), active("c1", "c2"), active("c1", "c2", "c3"), active("c2", "c3")) == (
        alone,
        two,
        three,
        without_c1,
    )


def test_pip_392_imbalance() -> None:
    """100 one-partition topics, 10 consumers: modulo gives all to one, the ring spreads them."""
    members = [Candidate(i, f"consumer-{i}", 0) for i in range(10)]
    counts = {ring: [0] * 10 for ring in (False, True)}
    for number in range(100):
        topic = f"persistent://public/default/topic-{number}-partition-0"
        for ring, count in counts.items():
            count[pick(members, partition_index=0, topic=topic, ring=ring).active] += 1
    assert counts[False] == [100, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert counts[True] == [9, 16, 8, 7, 8, 16, 8, 5, 12, 11]


def test_names_sort_by_utf_16_code_units() -> None:
    assert actives([Candidate(1, "consumer-10", 0), Candidate(2, "consumer-2", 0)], 1) == ["consumer-10"]
    # Java sorts the surrogate pair of an emoji below U+FFFD; code points would not.
    assert actives([Candidate(1, "\ufffd", 0), Candidate(2, "😀", 0)], 1) == ["😀"]


def test_equal_names_under_the_ring_go_to_the_later_one() -> None:
    twins = [Candidate(1, "same", 0), Candidate(2, "same", 0)]
    assert pick(twins, partition_index=-1, topic="any", ring=True).active == 2


def test_nobody_is_an_error() -> None:
    with pytest.raises(ValueError, match="no consumer"):
        pick([], partition_index=0, topic="t", ring=False)
