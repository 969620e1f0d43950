"""Clients that divide the hash space: their ranges never meet, cover all of it, and everybody stops for a new index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.selectors.node_ranges import node_ranges
from dispatch_core.broker.selectors.sticky_ranges import ExactRangesSelector
from dispatch_core.what_if.client_ranges import ClientRanges, with_client_ranges
from dispatch_core.what_if.connections import Join
from dispatch_core.what_if.recorded import NotSimulableError, RecordedLoad, Request, load_of
from dispatch_core.what_if.rules import RuleNameError, named
from tests.dispatch_core.audit.small_logs import added, message, numbered, read, sent, write

SECOND = 1_000_000
#: A load with one message, published at the end of what the tests do.
LAST_PUBLISHED = 100 * SECOND


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RecordedLoad:
    folder = tmp_path_factory.mktemp("log")
    return load_of(
        read(
            write(
                folder / "a" / "b",
                [message(0, "k")],
                numbered([added(1), sent(1, 0)]),
                broker_version="4.2.4",
            )
        )
    )


def load(plain: RecordedLoad, steps: list[tuple[int, str, str]]) -> RecordedLoad:
    """A load of joins (``+``) and leaves (``-``): time in seconds, sign, name."""
    joins: list[Join] = []
    leaves: list[tuple[int, int]] = []
    live: dict[str, int] = {}
    for at, sign, name in steps:
        if sign == "+":
            live[name] = len(joins) + 1
            joins.append(Join(at * SECOND, live[name], name, 0, None, 0, ()))
        else:
            leaves.append((at * SECOND, live.pop(name)))
    numbers = np.array([join.number for join in joins], np.int64)
    return replace(
        plain,
        joins=joins,
        leaves=leaves,
        flows=(
            np.array([join.at_us + 10 for join in joins], np.int64),
            numbers,
            np.full(len(joins), 7, np.int64),
        ),
        published_us=np.array([LAST_PUBLISHED], np.int64),
        until_us=LAST_PUBLISHED + SECOND,
    )


def connected_at(found: RecordedLoad, at_us: int) -> dict[str, tuple[tuple[int, int], ...]]:
    """The ranges of those connected at a time, by name."""
    ended = {number: end for end, number in found.leaves}
    return {
        join.name: join.ranges
        for join in found.joins
        if join.at_us <= at_us < ended.get(join.number, LAST_PUBLISHED + SECOND)
    }


def test_a_node_that_is_added_stops_all_and_gives_them_new_indexes(plain: RecordedLoad) -> None:
    found, stops = with_client_ranges(
        load(plain, [(1, "+", "a"), (1, "+", "b"), (10, "+", "c")]), ClientRanges(stop_us=2 * SECOND)
    )
    assert stops == 1
    assert connected_at(found, 9 * SECOND) == {"a": ((0, 32767),), "b": ((32768, 65535),)}
    assert connected_at(found, 11 * SECOND) == {}
    thirds = {name: tuple(node_ranges(3, at, None)) for at, name in enumerate("abc")}
    assert connected_at(found, 12 * SECOND) == thirds


def test_ranges_of_a_restarting_node_belong_to_nobody_and_nobody_else_stops(plain: RecordedLoad) -> None:
    found, stops = with_client_ranges(
        load(plain, [(1, "+", "a"), (1, "+", "b"), (10, "-", "b"), (20, "+", "b")]), ClientRanges()
    )
    assert stops == 0
    assert connected_at(found, 15 * SECOND) == {"a": ((0, 32767),)}
    assert connected_at(found, 25 * SECOND) == {"a": ((0, 32767),), "b": ((32768, 65535),)}


def test_a_node_that_leaves_for_good_is_removed_but_not_at_the_end(plain: RecordedLoad) -> None:
    steps = [(1, "+", "a"), (1, "+", "b"), (10, "-", "a"), (101, "-", "b")]
    found, stops = with_client_ranges(load(plain, steps), ClientRanges(points=3))
    assert stops == 1
    (alone,) = connected_at(found, 12 * SECOND).values()
    assert sum(end - start + 1 for start, end in alone) == 65536


def test_each_part_of_a_connection_begins_with_its_first_permits(plain: RecordedLoad) -> None:
    recorded = load(plain, [(1, "+", "a"), (10, "+", "b")])
    recorded = replace(recorded, requests=[Request(5 * SECOND, 1, None), Request(50 * SECOND, 1, None)])
    found, _ = with_client_ranges(recorded, ClientRanges())
    joined = {join.number: join.at_us for join in found.joins}
    assert len(joined) == 3
    times, numbers, permits = (column.tolist() for column in found.flows)
    assert dict(zip(numbers, times, strict=True)) == {number: at + 10 for number, at in joined.items()}
    assert permits == [7, 7, 7]
    second = max(join.number for join in found.joins if join.name == "a")
    assert [request.consumer for request in found.requests] == [1, second]


@given(data=st.data(), points=st.one_of(st.none(), st.integers(1, 5)))
def test_ranges_never_meet_and_cover_all_while_every_node_is_there(
    plain: RecordedLoad, data: st.DataObject, points: int | None
) -> None:
    steps: list[tuple[int, str, str]] = []
    live: set[str] = set()
    for at in range(1, data.draw(st.integers(2, 12))):
        name = data.draw(st.sampled_from("abcd"))
        steps.append((at, "-" if name in live else "+", name))
        live ^= {name}
    found, _ = with_client_ranges(
        load(plain, steps), ClientRanges(points, data.draw(st.integers(1, 3)) * SECOND)
    )
    assert len({join.number for join in found.joins}) == len(found.joins)
    ended = {number: end for end, number in found.leaves}
    changes = [(join.at_us, 1, join.number) for join in found.joins]
    changes += [(end, 0, number) for number, end in ended.items()]
    ranges = {join.number: join.ranges for join in found.joins}
    selector = ExactRangesSelector()
    for _, joins, number in sorted(changes):
        if joins:
            selector.add(number, str(number), ranges[number])  # refused where ranges meet
        else:
            selector.remove(number)
    # In the end all that are left have each other's numbers, or some node is away and will come back.
    slots = sum(selector.assignments().slots().values())
    assert slots == 65536 or (slots < 65536 and len(live) < len({name for _, _, name in steps}))


def test_points_that_do_not_fit_are_refused(plain: RecordedLoad) -> None:
    with pytest.raises(NotSimulableError, match="2 nodes with 50000 points"):
        with_client_ranges(load(plain, [(1, "+", "a"), (1, "+", "b")]), ClientRanges(points=50_000))


def test_names(tmp_path: Path) -> None:
    log = read(write(tmp_path / "a" / "b", [message(0, "k")], numbered([added(1), sent(1, 0)])))
    for name, points in (("node-ranges", None), ("4.0.0-node-ranges-100", 100)):
        rules = named(name, "4.2.4", stop_us=5)
        assert rules.custom.client_ranges == ClientRanges(points, 5)
        assert rules.profile_for(log).key_shared_mode == "STICKY"
    for name in ("node-ranges-0", "node-ranges-", "x-node-ranges", "node-ranges-1-ch"):
        with pytest.raises(RuleNameError):
            named(name)
