"""Every schedule of up to so many steps: none is left out, and known faults are found."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.broker.profiles import Dispatcher, Profile, resolve
from dispatch_core.cli.main import main
from dispatch_core.cli.zoo import exhibits_in
from dispatch_core.hunt import bounded, zoo
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt.hunts import Aim, Every, Hunt, hunter_for, play_every
from dispatch_core.hunt.search import AnyHunter, Hunter
from dispatch_core.hunt.unkeyed import UnkeyedHunter

#: The first hunt of an installation compiles for more than a minute.
pytestmark = pytest.mark.slow

KEYS: Final = ("key-197", "key-215", "key-132")
RANGE: Final = {"subscriptionKeySharedUseConsistentHashing": False}
CLASSIC: Final = {"subscriptionKeySharedUseClassicPersistentImplementation": True}
RING: Final = {"subscriptionKeySharedUseConsistentHashing": True}
FOLDER: Final = Path(__file__).resolve().parents[3] / "docs" / "zoo"
#: Longer schedules take a test too long.
LONGEST: Final = 6
SHORT: Final = [
    exhibit
    for exhibit in exhibits_in(FOLDER)
    if len(exhibit.steps) <= LONGEST
    and not any(s_.kind_of(step) in itertools.chain(*s_.GROUPS.values()) for step in exhibit.steps)
]


def searched(hunter: AnyHunter, longest: int, aim: Aim | None = None) -> Hunt:
    hunt = Hunt()
    play_every(hunt, hunter, aim or Aim(), longest)
    return hunt


def hunter_of(profile: Profile, aim: Aim | None = None) -> AnyHunter:
    pass_over = () if aim is None else aim.pass_over
    if profile.is_shared or profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        return UnkeyedHunter(profile, pass_over=pass_over)
    return Hunter(profile, KEYS, pass_over=pass_over)


def shortest(hunt: Hunt) -> dict[tuple[int, str], int]:
    return {group: len(known.find.steps) for group, known in hunt.groups.items()}


@pytest.mark.parametrize(
    ("profile", "longest"),
    [
        (resolve("4.2.4", RING), 3),
        (resolve("4.2.4", RING, subscription_type="Shared"), 3),
        (resolve("4.2.4", subscription_type="Failover", partition_index=0), 3),
    ],
    ids=lambda value: value.name if isinstance(value, Profile) else None,
)
def test_it_comes_to_each_state_that_schedules_lead_to(profile: Profile, longest: int) -> None:
    """Schedules of three steps, each played from the beginning."""
    hunter: Any = hunter_of(profile)
    hunter = getattr(hunter, "_rules", hunter)
    choices = hunter_of(profile)._choices  # type: ignore[attr-defined]
    arena = hunter._arena
    states = set()
    for steps in itertools.product([int(choice) for choice in choices], repeat=longest):
        if hunter.play(steps, settles=False) is None:
            states.add((arena.words & arena.matters).tobytes())
    every = searched(hunter_of(profile), longest).every
    assert every is not None
    by_order = 6 if profile.is_shared else 1  # three names, in any order
    assert len(states) / by_order <= every.states + 1 <= len(states)
    if by_order == 1:
        assert every.states == len(states) - 1  # but the one that all begin with


def test_names_in_any_order_break_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without consistent hashing, names make no difference to Key_Shared."""
    hunter = Hunter(resolve("3.0.17", RANGE), KEYS)
    in_order, search = searched(hunter, 5), hunter.bounded_search()
    search._at[bounded.BY_ORDER] = 0
    monkeypatch.setattr(hunter, "bounded_search", lambda: search)
    in_any_order = searched(hunter, 5)
    assert in_order.groups
    assert shortest(in_any_order) == shortest(in_order)
    assert in_any_order.every is not None
    assert in_order.every is not None
    assert in_any_order.every.states > 2 * in_order.every.states


@pytest.mark.parametrize("exhibit", SHORT, ids=[exhibit.name for exhibit in SHORT])
def test_it_finds_the_short_ones_of_the_zoo(exhibit: zoo.Exhibit) -> None:
    own = next(iter(exhibit.verdicts))
    release = next(release for release, verdict in exhibit.expected.items() if verdict == own)
    found = {
        group.verdict: len(group.find.steps)
        for group in searched(exhibit.hunter(release), len(exhibit.steps)).groups.values()
    }
    assert found[own] <= len(exhibit.steps)


def test_nothing_shorter_breaks_the_newest_release() -> None:
    """The shortest schedule that breaks 4.2.4 has seven steps (docs/zoo)."""
    hunt = searched(Hunter(resolve("4.2.4", RING), KEYS), 6)
    assert not hunt.groups
    assert hunt.every is not None
    assert hunt.every.steps == 6
    assert hunt.every.schedules > hunt.every.states > 300_000


def rows_of_the_page() -> list[tuple[str, dict[str, int]]]:
    """The table of docs/hunt.md: each release, and the steps of the shortest schedule by promise and cause."""
    page = (FOLDER.parent / "hunt.md").read_text(encoding="utf-8")
    table = page.partition("<!-- seven steps -->")[2].partition("<!-- end -->")[0]
    rows = [line.strip("| \n").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    return [
        (release, {verdict: int(steps) for verdict, steps in re.findall(r"`([\w.]+)` (\d+)", verdicts)})
        for releases, verdicts in rows
        for release in releases.split(", ")
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("release", "expected"), rows_of_the_page())
def test_the_page_says_all_that_seven_steps_can_break(release: str, expected: dict[str, int]) -> None:
    version, _, classic = release.partition(" ")
    profile = resolve(version, {**RANGE, **(CLASSIC if classic else {})})
    hunt = searched(hunter_for(profile, Aim(), 0, None), 7)
    assert {group.verdict: len(group.find.steps) for group in hunt.groups.values()} == expected


def test_schedules_go_on_behind_a_cause_that_is_passed_over() -> None:
    aim = Aim(pass_over=("rewind_waits", "normal_read_waits", "no_read"))
    profile = resolve("3.0.17", RANGE)
    stops, goes_on = searched(hunter_of(profile), 6), searched(hunter_of(profile, aim), 6, aim)
    assert stops.every is not None
    assert goes_on.every is not None
    assert goes_on.every.states > stops.every.states
    assert goes_on.passed_over
    assert not {cause for _, cause in goes_on.groups} & {*aim.pass_over}


def test_pauses_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hunter = Hunter(resolve("4.2.4", RANGE), KEYS)
    whole = searched(hunter, 5).every
    monkeypatch.setattr(bounded, "AT_ONCE", 97)
    pauses: list[Every] = []

    def goes_on(every: Every) -> bool:
        pauses.append(every)
        return True

    hunt = Hunt()
    play_every(hunt, hunter, Aim(), 5, goes_on)
    assert hunt.every == whole
    assert len(pauses) > 100


def test_it_stops_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "AT_ONCE", 10_000)
    hunt = Hunt()
    play_every(hunt, Hunter(resolve("4.2.4", RANGE), KEYS), Aim(), 9, lambda every: every.schedules < 30_000)
    assert hunt.every is not None
    assert hunt.every.steps < 9
    assert hunt.every.schedules < 50_000


# --- the command -----------------------------------------------------------------------------------------------------

COMMAND: Final = ["hunt", "--broker-version", "4.2.4", "--depth", "5", "--promise", "order"]


def test_the_command_plays_every_schedule_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--schedules", "2000", "--json"]) == 0
    (totals,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    every = totals["every"]
    assert every["steps"] == 5
    assert every["schedules"] > every["states"] > 50_000
    assert totals["schedules"] >= 2000
    assert main(COMMAND) == 0
    out = capsys.readouterr().out
    assert (
        f"every schedule of up to 5 steps: {every['schedules']:,}, which lead to {every['states']:,} states"
        in out
    )
    assert "sets of keys" not in out


def test_a_hunt_that_goes_on_does_not_play_them_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [*COMMAND, "--resume", str(tmp_path / "hunt.json"), "--json"]
    found = []
    for _ in range(2):
        assert main(arguments) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
