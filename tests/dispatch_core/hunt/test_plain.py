"""Failover and Shared, hunted on the dispatchers themselves."""

from __future__ import annotations

import json

import pytest

from dispatch_core.broker.profiles import Profile, resolve
from dispatch_core.cli.main import main
from dispatch_core.errors import UnsupportedRuleError
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt.plain import PlainHunter, player_of


def profile(version: str, kind: str) -> Profile:
    return resolve(version, {}, subscription_type=kind, partition_index=0)


def steps(*texts: str) -> list[int]:
    return [s_.parse(text) for text in texts]


CHANGE = steps(
    "an entry of key k1 is stored",
    "c2 joins with 1 permit",
    "the broker's timer ends",
    "the normal read completes",
    "c1 joins with 1 permit",
    "the broker's timer ends",
)


def test_a_change_of_the_active_consumer_delivers_twice_unless_the_first_acknowledges() -> None:
    hunter = PlainHunter(profile("4.2.4", "Failover"))
    find = hunter.play(CHANGE)
    assert find is None  # clients acknowledge before the last read completes
    find = hunter.play([*CHANGE, s_.READ_STEP])
    assert find is not None
    assert (find.name, hunter.cause_of(find)) == ("double_outstanding", "active_change")
    assert hunter.play([*CHANGE[:4], s_.step(s_.ACK_FIRST, 1), *CHANGE[4:], s_.READ_STEP]) is None


@pytest.mark.parametrize("kind", ["Failover", "Shared"])
@pytest.mark.parametrize("version", ["3.0.17", "4.0.0", "4.2.4"])
def test_seeded_schedules_are_the_same_and_clean_but_for_known_causes(version: str, kind: str) -> None:
    """The causes that are left out are those of the zoo."""
    known = ["rewind_waits", "read_again", "replayed_again", "active_change"]
    first, second = (PlainHunter(profile(version, kind), seed=1, pass_over=known) for _ in range(2))
    assert [first.random(), first.random()] == [second.random(), second.random()] == [None, None]
    assert (first.played, first.steps) == (second.played, second.steps)
    assert first.played == 1000


def test_other_dispatchers_are_refused() -> None:
    with pytest.raises(UnsupportedRuleError, match="neither Failover nor Shared"):
        player_of(resolve("4.2.4"), [])


def test_the_command_hunts_failover(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["hunt", "--broker-version", "4.2.3", "--subscription-type", "Failover", "--json"]
    assert main([*arguments, "--schedules", "20000", "--seed", "3"]) == 1
    *finds, totals = map(json.loads, capsys.readouterr().out.splitlines())
    assert {find["cause"] for find in finds} <= {"replayed_again", "active_change"}
    assert totals["schedules"] >= 20_000
    assert main([*arguments, "--also", "races"]) == 2
