"""The schedules of the zoo as the Java player reads them, and the comparison of its answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dispatch_core.cli.zoo import exhibits_in
from dispatch_core.hunt import schedule
from tests.zoo.__main__ import FOLDER, compare, schedule_of
from tests.zoo.sampled import difference, pending_after, sample

EXHIBITS = exhibits_in(FOLDER)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_every_step_has_what_the_player_needs(exhibit: Any) -> None:
    play = schedule_of(exhibit)
    assert len(play["steps"]) == len(exhibit.steps)
    for step in play["steps"]:
        if step["do"] == "store":
            assert step["key"] in exhibit.keys
            assert step["messages"] in (1, 3)
        if step["do"] == "join":
            assert step["name"] in ("c1", "c2", "c3")
            assert step["permits"] in (1, 2, 10)


def test_a_race_that_was_missed_first_says_its_try() -> None:
    answers = [
        {"name": "23870-free-within-scan", "release": "4.0.0", "verdict": "out_of_order", "tries": tries}
        for tries in (1, 2)
    ]
    lines, others = compare(answers, EXHIBITS)
    assert others == 0
    assert [line.endswith(", try 2") for line in lines[:2]] == [False, True]


def test_the_player_gets_ranges_and_priorities() -> None:
    exhibit = dataclasses.replace(
        EXHIBITS[0],
        key_shared_mode="STICKY",
        steps=tuple(
            map(schedule.parse, ("c2 joins with 1 permit", "c1 joins with 10 permits and a lower priority"))
        ),
    )
    sticky, low = schedule_of(exhibit)["steps"]
    assert sticky == {"do": "join", "name": "c2", "permits": 1, "ranges": [[32_768, 65_535]]}
    assert low == {"do": "join", "name": "c1", "permits": 10, "priority": 1}


def test_answers_are_compared_by_their_promise() -> None:
    answers = [
        {"name": "24736-hash-never-free", "release": release, "verdict": verdict}
        for release, verdict in (
            ("4.0.0", "stuck"),
            ("4.2.4", "kept"),
            ("4.2.4", "stuck"),
            ("4.0.0", "starved"),
        )
    ]
    lines, others = compare(answers, EXHIBITS)
    assert others == 2
    assert ["NOT AS EXPECTED" in line for line in lines[:4]] == [False, False, True, True]
    assert lines[-1].startswith("zoo: 2 of 4 plays as the rules say, 1 of them broke a promise")


@pytest.mark.slow  # compiles the search
@pytest.mark.parametrize("kind", ["Failover", "Key_Shared"])
def test_random_schedules_are_the_same_by_seed_and_have_a_reset_behind_a_delivery(kind: str) -> None:
    first, again, other = (sample(kind, "4.2.4", seed) for seed in (1, 1, 2))
    assert first == again != other
    (*_, reset) = (at for at, step in enumerate(first.steps) if schedule.kind_of(step) == schedule.RESET)
    assert any(pending_after(first, "4.2.4", [*first.steps[:at]]) for at in range(reset + 1))


def test_answers_are_compared_step_by_step() -> None:
    exhibit = sample("Failover", "4.2.4", 1)
    pending = [
        pending_after(exhibit, "4.2.4", [*exhibit.steps[: at + 1]]) for at in range(len(exhibit.steps))
    ]
    notes = [f"a step: {str(entries).replace(': ', '=').replace(chr(39), '')}" for entries in pending]
    answer = {"name": exhibit.name, "release": "4.2.4", "verdict": "kept", "notes": notes}
    assert not difference(exhibit, answer)
    assert difference(exhibit, {**answer, "verdict": "stuck"}) == "stuck on the broker, kept here"
    at = next(at for at, entries in enumerate(pending) if entries)
    other = [*notes[:at], "a step: {c1=[], c2=[], c3=[]}", *notes[at + 1 :]]
    assert difference(exhibit, {**answer, "notes": other}).startswith(f"step {at + 1}, ")
