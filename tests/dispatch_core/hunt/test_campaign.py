"""A hunt of several releases: what it may be asked for, its chunks, and the comparison of what they found."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from dispatch_core.hunt import hunts, zoo
from dispatch_core.hunt.campaign import (
    Campaign,
    CampaignError,
    campaign,
    compare,
    exhibit_of,
    known_as,
    merged,
    new_finds,
    results,
)
from dispatch_core.hunt.coverage import Function
from dispatch_core.hunt.hunts import SHRUNK_PER_CAUSE, Aim, Group, Hunt, hunter_for, play_seed
from dispatch_core.hunt.schedule import parse
from dispatch_core.hunt.search import Find

#: The first hunt of an installation compiles for more than a minute.
pytestmark = pytest.mark.slow

RANGE = "subscriptionKeySharedUseConsistentHashing=false"


@pytest.fixture(scope="module")
def stuck() -> Campaign:
    """A hunt of two releases that finds #24736 in one of them, and a hole in the other."""
    return campaign(
        ["4.0.0", "4.2.4"], assignments=[RANGE], promises=["stuck"], schedules=120_000, seeds=3, first_seed=3,
        states=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def played(stuck: Campaign) -> dict[str, Hunt]:
    return merged(stuck, {chunk: stuck.play(chunk) for chunk in stuck.chunks()})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"releases": []}, "releases: give 1 to 16"),
        ({"releases": ["4.2.4", " 4.2.4"]}, "releases: one is named twice"),
        ({"releases": ["newest"]}, "releases: 'newest'"),
        ({"subscription_type": "Exclusive"}, "subscription_type: 'Exclusive' is not one of"),
        (
            {"assignments": ["dispatcherMaxReadBatchSiz=16"]},
            "settings: .*nearest is dispatcherMaxReadBatchSize",
        ),
        ({"promises": ["peace"]}, "promises: 'peace' is not one of duplicates"),
        ({"also": ["rain"]}, "also: 'rain' is not one of"),
        ({"also": ["races"], "subscription_type": "Shared"}, "also: .* not for Shared"),
        ({"states": True, "subscription_type": "Failover"}, "states: .* not for Failover"),
        ({"pass_over": ["rain"]}, "pass_over: 'rain' is not one of"),
        ({"schedules": 0}, "schedules: 0: give a number from 1 to"),
        ({"first_seed": -1}, "first_seed: -1: give"),
        ({"seeds": 1001}, "seeds: 1001: give a number from 1 to 1,000"),
        ({"watched": -1}, "watched: -1: give"),
    ],
)
def test_a_wrong_parameter_is_named(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(CampaignError, match=f"^{says}.*; nothing was played"):
        campaign(**{"releases": ["4.2.4"], **wrong})  # type: ignore[arg-type]


def test_chunks_have_all_schedules_of_each_release() -> None:
    few = campaign(["4.0.0", "4.2.4"], schedules=5, seeds=8, first_seed=10)
    chunks = few.chunks()
    assert [chunk.seed for chunk in chunks] == [*range(10, 15)] * 2
    assert sum(chunk.schedules for chunk in chunks) == 2 * 5
    assert len({few.digest(chunk) for chunk in chunks}) == len({chunk.name for chunk in chunks}) == 10
    assert Campaign.of_json(json.loads(json.dumps(few.as_json()))) == few


def test_watched_schedules_are_among_those_that_are_played() -> None:
    for schedules, seeds, watched in ((100, 10, 25), (100, 10, 1000), (3, 10, 1000), (100, 3, 2)):
        asked = campaign(["4.2.4"], schedules=schedules, seeds=seeds, watched=watched)
        of, each = asked.watched_seeds()
        sizes = {chunk.seed: chunk.schedules for chunk in asked.chunks()}
        assert all(1 <= each <= sizes[seed] for seed in of)


def test_a_seed_plays_as_many_schedules_as_it_is_given() -> None:
    aim = Aim()
    for release, kind, schedules in (("3.0.17", "Key_Shared", 5_001), ("4.0.0", "Failover", 300)):
        asked = campaign([release], subscription_type=kind)
        hunt = play_seed(asked.profile(release), aim, 1, schedules)
        assert (hunt.played, hunt.keys) == (schedules, 1)


def test_known_causes_that_are_passed_over_count_as_schedules() -> None:
    asked = campaign(["3.0.17"], assignments=[RANGE], pass_over=["normal_read_waits"], promises=["stuck"])
    hunt = play_seed(asked.profile("3.0.17"), asked.aim, 3, 40_000)
    assert hunt.played == 40_000
    assert hunt.passed_over["normal_read_waits"] > SHRUNK_PER_CAUSE
    assert "normal_read_waits" not in {cause for _, cause in hunt.groups}


def test_beyond_some_finds_of_a_cause_they_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = campaign(["3.0.17"], assignments=[RANGE], promises=["stuck"])
    profile = asked.profile("3.0.17")
    all_of_them = play_seed(profile, asked.aim, 3, 20_000)
    monkeypatch.setattr(hunts, "SHRUNK_PER_CAUSE", 1)
    first = play_seed(profile, asked.aim, 3, 20_000)

    def finds(hunt: Hunt) -> int:
        return sum(group.times for group in hunt.groups.values()) + hunt.not_shrunk.total()

    assert finds(first) == finds(all_of_them) > SHRUNK_PER_CAUSE
    assert first.not_shrunk.total() > all_of_them.not_shrunk.total() > 0


def test_a_hunt_is_the_same_after_its_json(stuck: Campaign, played: dict[str, Hunt]) -> None:
    for hunt in played.values():
        again = Hunt.of_json(json.loads(json.dumps(hunt.as_json())), stuck.aim)
        assert again.as_json() == hunt.as_json()
        assert again.states == hunt.states > 1000


def test_the_order_in_which_chunks_are_played_does_not_matter(
    stuck: Campaign, played: dict[str, Hunt]
) -> None:
    backwards = {chunk: stuck.play(chunk) for chunk in reversed(stuck.chunks())}
    assert {release: hunt.as_json() for release, hunt in merged(stuck, backwards).items()} == {
        release: hunt.as_json() for release, hunt in played.items()
    }
    assert [hunt.played for hunt in played.values()] == [120_000, 120_000]


def test_of_two_finds_of_a_cause_the_shorter_stays_and_both_count() -> None:
    def hunt_with(steps: int, key: str) -> Hunt:
        find = Find(4, (parse("c1 leaves"),) * steps, 0, 0, "no_read")
        return Hunt(groups={find.group: Group(find, (key,))}, played=10)

    total = Hunt()
    for steps, key in ((5, "a"), (4, "b"), (4, "c")):
        total.add(hunt_with(steps, key))
    (group,) = total.groups.values()
    assert (len(group.find.steps), group.keys, group.times, total.played) == (4, ("b",), 3, 30)


@pytest.mark.slow
def test_releases_are_compared_by_cause(stuck: Campaign, played: dict[str, Hunt]) -> None:
    """#24736 in 4.0.0 and mended in 4.2.4; the rewind that waits in both, by a longer schedule in 4.0.0."""
    rows = compare(stuck, played)
    result = json.loads(json.dumps(results(stuck, played, rows, {})))
    by_verdict = {row["verdict"]: row for row in result["finds"]}
    draining = by_verdict["stuck.draining_hash"]
    assert draining["releases"]["4.0.0"] | {"times": 0} == {
        "found": True, "steps": 7, "times": 0, "file": "finds/stuck.draining_hash-4.0.0.toml",
        "known": {
            "exhibit": "24736-hash-never-free", "title": draining["releases"]["4.0.0"]["known"]["title"],
            "links": draining["releases"]["4.0.0"]["known"]["links"],
        },
    }  # fmt: skip
    assert draining["releases"]["4.2.4"] == {
        "found": False, "schedules": 120_000, "shortest_played": zoo.KEPT,
    }  # fmt: skip
    assert draining["breaks"] == {"stuck.draining_hash": ["4.0.0 to 4.0.6", "4.1.0"]}
    assert not draining["new"]
    assert len(draining["steps"]) == 7
    assert "never comes" in draining["outcome"]
    rewinds = by_verdict["stuck.rewind_waits"]["releases"]
    assert rewinds["4.0.0"]["known"]["exhibit"] == "10662-rewind-without-read"
    assert rewinds["4.2.4"]["known"]["exhibit"] == "10662-rewind-waits"
    assert new_finds(result) == []


def test_a_find_is_a_file_that_can_be_played(stuck: Campaign, played: dict[str, Hunt]) -> None:
    for cells in compare(stuck, played).values():
        for cell in cells:
            again = zoo.parse("again", zoo.text_of_exhibit(cell.exhibit))
            assert zoo.verdict(again, cell.release) == cell.group.verdict == again.expected[cell.release]
        assert all(first.steps <= second.steps for first, second in pairwise(cells))


def test_what_no_exhibit_has_is_new_and_comes_first(
    stuck: Campaign, played: dict[str, Hunt], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [exhibit for exhibit in zoo.exhibits() if not exhibit.name.startswith("24736")]
    monkeypatch.setattr("dispatch_core.hunt.campaign.known_exhibits", lambda: others)
    result = results(stuck, played, compare(stuck, played), {})
    assert result["finds"][0]["verdict"] == "stuck.draining_hash"
    assert new_finds(result) == ["4.0.0: stuck.draining_hash in 7 steps"]


@pytest.mark.parametrize(
    ("assignments", "more", "release", "verdict", "exhibit"),
    [
        (
            [],
            {},
            "4.0.6",
            "stuck.draining_hash",
            "24736-hash-never-free",
        ),  # another selector than the exhibit's
        ([], {}, "4.0.7", "stuck.draining_hash", None),  # mended
        ([], {}, "4.2.4", "starved.rewind_waits", "10662-rewind-waits"),
        ([], {}, "4.2.4", "stuck.normal_read_waits", None),  # known with a limit only …
        (
            [],
            {"also": ["policies"]},
            "4.2.4",
            "stuck.normal_read_waits",
            "limit-lowered",
        ),  # … or one of a policy
        (
            ["maxUnackedMessagesPerConsumer=3"],
            {},
            "4.2.4",
            "stuck.normal_read_waits",
            "unblocked-above-the-limit",
        ),
        (["maxUnackedMessagesPerConsumer=0"], {}, "4.2.4", "stuck.normal_read_waits", None),
        (
            [],
            {"allow_out_of_order": True},
            "4.2.4",
            "stuck.normal_read_waits",
            "26268-read-waits-out-of-order",
        ),
        ([], {"subscription_type": "Failover"}, "4.2.4", "stuck.rewind_waits", None),
        ([], {"subscription_type": "Shared"}, "4.2.4", "stuck.rewind_waits", "10662-shared-rewind-waits"),
    ],
)
def test_known_is_what_an_exhibit_shows_under_the_same_rules(
    assignments: list[str], more: dict[str, object], release: str, verdict: str, exhibit: str | None
) -> None:
    asked = campaign([release], assignments=assignments, **more)  # type: ignore[arg-type]
    known = known_as(asked, release, verdict)
    assert (known and known.name) == exhibit


def test_an_exhibit_of_a_find_names_the_releases_that_it_breaks() -> None:
    known = next(exhibit for exhibit in zoo.exhibits() if exhibit.name == "24736-hash-never-free")
    asked = campaign(["4.0.0"], assignments=[RANGE])
    hunter = known.hunter("4.0.0")
    find = hunter.play(known.steps)
    assert find is not None
    shrunk = hunter.shrink(find)
    exhibit = exhibit_of(asked, "4.0.0", Group(shrunk, known.keys))
    assert exhibit.verdicts == known.verdicts
    assert exhibit.settings == known.settings


def test_coverage_is_summed_by_module(stuck: Campaign, played: dict[str, Hunt]) -> None:
    functions = [
        Function("gates", "no_permits", 7, 1, 2, [447]).as_json(),
        Function("gates", "other_owner", 0, 0, 4, [1]).as_json(),
    ]
    result = results(stuck, played, {}, {"4.2.4": functions})
    first, second = (release["coverage"] for release in result["releases"])
    assert first is None
    assert second["modules"] == {"gates": {"functions": 2, "called": 1, "branches": 6, "reached": 1}}
    assert second["schedules"] == 3 * 667


def test_the_same_seed_gives_the_same_hunter() -> None:
    profile = campaign(["4.2.4"]).profile("4.2.4")
    keys = [hunter_for(profile, Aim(), seed, None).keys for seed in (3, 3, 4)]
    assert keys[0] == keys[1] != keys[2]
