"""The rings of Key_Shared and Failover by release: worked tables, collisions of points, name indexes, wrong rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker import hashing
from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.selectors import factory
from dispatch_core.broker.selectors.consistent_hashing import ConsistentHashingSelector
from dispatch_core.broker.selectors.consistent_hashing_replacing import ReplacingPointsSelector
from dispatch_core.broker.selectors.consistent_hashing_shared import SharedPointsSelector
from dispatch_core.broker.selectors.failover import Candidate, pick
from dispatch_core.broker.selectors.names import NameIndexes

Ring = SharedPointsSelector | ReplacingPointsSelector | ConsistentHashingSelector
KEYS = ("key-1", "key-2", "key-3", "key-a", "key-b", "")
CLASSIC = {"subscriptionKeySharedUseClassicPersistentImplementation": True}


@pytest.mark.parametrize(
    ("version", "config", "owners"),
    [
        ("3.0.0", {}, "113222"),  # A
        ("3.0.3", {}, "131133"),  # A0
        ("4.0.0-preview.1", {}, "131133"),
        ("3.0.7", {}, "112111"),  # B
        ("4.2.4", CLASSIC, "112111"),
        ("4.0.0", {}, "232221"),  # C
        ("5.0.1", {}, "232221"),
        ("3.3.9", {"subscriptionKeySharedUseConsistentHashing": False}, "322113"),  # range split
        ("4.2.4", {"subscriptionKeySharedUseConsistentHashing": False}, "322113"),
    ],
)
def test_owners_of_sample_keys(version: str, config: dict[str, bool], owners: str) -> None:
    """c1, c2, c3 joined in this order; from key to consumer by the release's own hash and selector."""
    profile = resolve(version, config)
    selector = factory.build(profile)
    for number in (1, 2, 3):
        selector.add(number, f"c{number}")
    hashes = [profile.hash_space.sticky(hashing.h31(key.encode())) for key in KEYS]
    assert "".join(str(selector.select(value)) for value in hashes) == owners
    assert "".join(map(str, selector.select_array(np.asarray(hashes)).tolist())) == owners


#: First points of c1 by variant; a second c1 (index 1) has the points 50223, 35253, 6275 in 4.x.
@pytest.mark.parametrize(
    ("selector", "points"),
    [
        (SharedPointsSelector(3), (737611896, 204092741, 540181892)),
        (SharedPointsSelector(3, "\0"), (2074522874, 578172178, 998721985)),
        (ReplacingPointsSelector(3), (1186414766, 1255842942, 1210389448)),
        (ConsistentHashingSelector(3, hashing.CONSISTENT_CLASSIC), (1186414767, 1255842943, 1210389449)),
        (ConsistentHashingSelector(3), (34662, 61273, 23534)),
    ],
)
def test_points(selector: Ring, points: tuple[int, ...]) -> None:
    selector.add(1, "c1")
    if isinstance(selector, SharedPointsSelector):
        assert [end for _, end in selector.assignments().of(1)] == sorted(points)
    else:
        assert selector.points() == [(point, 1) for point in sorted(points)]


def test_the_second_consumer_of_a_name_has_points_of_its_own() -> None:
    selector = ConsistentHashingSelector(3)
    selector.add(1, "c1")
    selector.add(2, "c1")
    assert [point for point, owner in selector.points() if owner == 2] == [6275, 35253, 50223]


def test_small_ring_of_the_projects_own_unit_tests() -> None:
    replacing, shared = ReplacingPointsSelector(3), SharedPointsSelector(3)
    for number in (1, 2, 3):
        replacing.add(number, f"consumer{number}")
        shared.add(number, f"consumer{number}")
    assert replacing.points() == [
        (95615212, 3),
        (440020355, 1),
        (455987436, 1),
        (939655187, 3),
        (1189794592, 2),
        (1264144431, 1),
        (1314727624, 3),
        (1977451233, 2),
        (2016237253, 2),
    ]
    assert {end for _, end in shared.assignments().of(1)} == {330121749, 618146114, 1976098885}


# --- consumers that meet on a point ----------------------------------------------------------------------------------


def test_c1_and_c11_meet_without_a_separator() -> None:
    point = hashing.h31(b"c110")
    assert point == 236967003
    for separator, shared in (("", True), ("\0", False)):
        selector = SharedPointsSelector(100, separator)
        selector.add(1, "c1")
        selector.add(2, "c11")
        on_point = [owner for _, end, owner in selector.assignments().ranges if end == point]
        assert on_point == ([1, 2] if shared else [])
    # The two consumers of a shared point alternate by hash.
    selector = SharedPointsSelector(100)
    selector.add(2, "c11")
    selector.add(1, "c1")
    assert [selector.select(point - step) for step in (0, 1)] == [2, 1]


def test_equal_names_take_turns_by_hash_before_there_were_indexes() -> None:
    selector = SharedPointsSelector(100, "\0")
    selector.add(1, "same")
    selector.add(2, "same")
    assert [selector.select(value) for value in (7, 8, 9, 10)] == [2, 1, 2, 1]
    selector.add(3, "same")
    assert [selector.select(value) for value in (6, 7, 8)] == [1, 2, 3]
    selector.remove(1)
    assert [selector.select(value) for value in (6, 7)] == [2, 3]


#: Two names of the vectors whose first point, name NUL 0 NUL 0, is one.
MEETING = ("w140097", "w23754")


def test_names_of_the_vectors_meet() -> None:
    assert {hashing.h31(f"{name}\0000\0000".encode()) for name in MEETING} == {513935901}


def test_the_later_joiner_replaces_and_the_point_is_not_given_back() -> None:
    selector = ReplacingPointsSelector(1)
    selector.add(1, MEETING[0])
    selector.add(2, MEETING[1])
    assert selector.points() == [(513935901, 2)]
    selector.remove(2)
    assert (selector.points(), selector.select(5)) == ([], None)


def test_a_name_index_is_free_with_the_last_point() -> None:
    """A connected consumer whose points were all replaced has no index, so the next of its name gets index 0 again."""
    selector = ReplacingPointsSelector(1)
    selector.add(1, MEETING[0])
    selector.add(2, MEETING[1])
    selector.add(3, MEETING[0])
    assert selector.points() == [(513935901, 3)]
    selector.remove(1)  # has nothing on the ring, and takes nothing with it
    assert selector.points() == [(513935901, 3)]


def test_from_4_0_the_first_joiner_keeps_and_others_inherit_in_order() -> None:
    selector = ConsistentHashingSelector(1, hashing.CONSISTENT_CLASSIC)
    selector.add(1, MEETING[0])
    selector.add(2, MEETING[1])
    assert [selector.select(5), selector.assignments().slots()] == [1, {1: 2147483646}]
    moved = selector.remove(1)
    assert (selector.select(5), set(moved.added)) == (2, {2})


def test_a_name_index_is_held_until_the_consumer_leaves() -> None:
    names = NameIndexes()
    assert [names.allocate(number, "c") for number in (1, 2, 3)] == [0, 1, 2]
    assert [names.release(1), names.release(1), names.get(1)] == [0, None, None]
    assert [names.allocate(4, "other"), names.allocate(5, "c"), names.allocate(6, "c")] == [0, 0, 3]


def test_equal_consumers_are_on_a_point_once() -> None:
    selector = SharedPointsSelector(1, same=lambda owner_now, other: True)
    selector.add(1, "same")
    selector.add(2, "same")
    assert [owner for _, _, owner in selector.assignments().ranges] == [1]
    selector.remove(2)  # takes its twin along
    assert selector.select(5) is None


# --- wrong rules show ------------------------------------------------------------------------------------------------


def test_a_joining_consumer_that_wins_a_meeting_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def owner() -> int | None:
        selector = ConsistentHashingSelector(1, hashing.CONSISTENT_CLASSIC)
        selector.add(1, MEETING[0])
        selector.add(2, MEETING[1])
        return selector.select(5)

    right = owner()
    monkeypatch.setattr(
        ConsistentHashingSelector, "_meet", staticmethod(lambda queue, new: queue.insert(0, new))
    )
    assert (right, owner()) == (1, 2)


def test_a_name_index_that_is_never_used_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def report() -> tuple[tuple[int, int], ...]:
        selector = ConsistentHashingSelector(10)
        selector.add(1, "c1")
        selector.add(2, "c2")
        selector.remove(1)
        selector.add(3, "c1")
        return selector.assignments().of(3)

    right, given_out = report(), iter(range(100))
    monkeypatch.setattr(NameIndexes, "_free_index", staticmethod(lambda _name, _used: next(given_out)))
    assert report() != right


# --- invariants ------------------------------------------------------------------------------------------------------

names = st.sampled_from(["c1", "c11", "c110", *MEETING, "ключ", ""])
steps = st.lists(st.one_of(names, st.integers(0, 30)), max_size=25)


@given(steps, st.sampled_from([1, 3, 20]), st.sampled_from(["3.0.0", "3.0.3", "3.0.7", "4.0.0", "classic"]))
def test_any_history(history: list[str | int], points: int, variant: str) -> None:
    """The chosen consumer is connected, bulk and single lookups agree, and reported owners are the chosen consumers."""
    config = {"subscriptionKeySharedConsistentHashingReplicaPoints": points}
    profile = resolve(
        "4.2.4" if variant == "classic" else variant, config | (CLASSIC if variant == "classic" else {})
    )
    selector = factory.build(profile)
    live: list[int] = []
    for number, step in enumerate(history, start=1):
        if isinstance(step, str):
            selector.add(number, step)
            live.append(number)
        elif live:
            selector.remove(live.pop(step % len(live)))
        ranges = selector.assignments().ranges
        assert {owner for _, _, owner in ranges} <= set(live)
        probes = np.asarray(sorted({1, 7, profile.hash_space.last, *(end for _, end, _ in ranges)}), np.int64)
        chosen = [selector.select(value) for value in probes.tolist()]
        assert selector.select_array(probes).tolist() == [-1 if c is None else c for c in chosen]
        assert set(chosen) <= ({*live} if ranges else {None})
        reported: dict[int, set[int]] = {}
        for _, end, owner in ranges:
            reported.setdefault(end, set()).add(owner)
        for value, owner_now in zip(probes.tolist(), chosen, strict=True):
            assert value not in reported or owner_now in reported[value]


# --- Failover --------------------------------------------------------------------------------------------------------


def ring_points(*members: str) -> list[int]:
    return sorted({hashing.h31(f"{name}{j}".encode()) for name in members for j in range(100)})


def test_failover_ring_of_three() -> None:
    points = ring_points("c1", "c2", "c3")
    assert (len(points), points[:3]) == (300, [2033714, 11076693, 22491657])
    assert points[-3:] == [2125093120, 2133781881, 2147440547]


@pytest.mark.parametrize("members", [("c1", "c11"), ("c11", "c1")])
def test_failover_points_that_c1_and_c11_share_are_c11s(members: tuple[str, str]) -> None:
    points = ring_points(*members)
    assert len(points) == 190
    at = points.index(236967003)
    topic = next(
        f"persistent://public/default/t{n}"
        for n in range(100_000)
        if points[at - 1] < hashing.h31(f"persistent://public/default/t{n}".encode()) <= points[at]
    )
    candidates = [Candidate(number, name, 0) for number, name in enumerate(members)]
    active = pick(candidates, partition_index=-1, topic=topic, ring=True).active
    assert members[active] == "c11"
