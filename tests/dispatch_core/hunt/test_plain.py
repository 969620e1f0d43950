"""Failover and Shared, hunted on the dispatchers themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatch_core.broker.profiles import Profile, resolve
from dispatch_core.cli.main import main
from dispatch_core.errors import UnsupportedRuleError
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt.plain import FailoverPlayer, PlainHunter, SharedPlayer, player_of


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


def test_a_cumulative_acknowledgement_is_of_all_before_it() -> None:
    start = steps(
        *["an entry of key k1 is stored"] * 3,
        "c1 joins with 10 permits",
        "the broker's timer ends",
        "the normal read completes",
    )
    left = {
        text: player_of(profile("4.2.4", "Failover"), [*start, s_.parse(text)]).entries_left()
        for text in (
            "c1 acknowledges the last entry that it holds",
            "c1 acknowledges cumulatively up to the last entry that it holds",
        )
    }
    assert [*left.values()] == [[0, 1], []]


def test_the_active_consumer_is_one_of_the_highest_priority() -> None:
    joins = steps("c1 joins with 10 permits and a lower priority", "c2 joins with 1 permit")
    player = player_of(profile("4.2.4", "Failover"), joins)
    assert isinstance(player, FailoverPlayer)
    assert player.core.active == 2
    shared = player_of(
        profile("4.2.4", "Shared"), [*joins, s_.parse("an entry of key k1 is stored"), s_.READ_STEP]
    )
    assert isinstance(shared, SharedPlayer)
    assert shared.sent == [(2, [0])]


@pytest.mark.parametrize("kind", ["Failover", "Shared"])
def test_a_batch_in_part_acknowledged_comes_again_until_the_rest_is(kind: str) -> None:
    rules = resolve(
        "4.2.4",
        {"acknowledgmentAtBatchIndexLevelEnabled": True},
        subscription_type=kind,
        partition_index=0,
    )
    part = "c1 acknowledges a message of the first entry that it holds"
    player = player_of(
        rules,
        steps(
            "an entry of key k1 with 3 messages is stored",
            "c1 joins with 10 permits",
            "the broker's timer ends",
            "the normal read completes",
            part,
            part,
        ),
    )
    assert player.entries_left() == [0]
    player.settle()
    player.check()
    assert player.entries_left() == []
    assert player.broken is None


@pytest.mark.parametrize(("kind", "left"), [("Failover", [1]), ("Shared", [1])])
def test_a_skip_passes_the_first_entry_alone(kind: str, left: list[int]) -> None:
    stored = ["an entry of key k1 is stored"] * 2
    player = player_of(profile("4.2.4", kind), steps(*stored, "the first entry of the backlog is skipped"))
    assert player.entries_left() == left
    cleared = player_of(profile("4.2.4", kind), steps(*stored, "the backlog is cleared"))
    assert cleared.entries_left() == []


def test_a_reset_of_failover_leaves_nobody_active_until_a_consumer_joins() -> None:
    """AbstractDispatcherSingleActiveConsumer.disconnectActiveConsumers: while it disconnects, nobody is chosen."""
    until_reset = steps(
        *["an entry of key k1 is stored"] * 2,
        "c1 joins with 10 permits",
        "c2 joins with 10 permits",
        "the broker's timer ends",
        "the normal read completes",
        "the cursor is reset to the first entry: all consumers that it disconnects are gone",
    )
    served = steps("the broker's timer ends", "the normal read completes")
    rules = profile("4.2.4", "Failover")
    alone = FailoverPlayer(rules, [*until_reset, *served])
    sent = [line.fields["consumer"] for line in alone.lines if line.kind == "sent"]
    assert sent == [1]  # before the reset
    joined = FailoverPlayer(rules, [*until_reset, *steps("c3 joins with 10 permits"), *served])
    sent = [line.fields["consumer"] for line in joined.lines if line.kind == "sent"]
    assert sent == [1, 2]  # c2 is active now
    alone.settle()
    assert not alone.entries_left()  # the client of c1 has connected again


def test_a_reset_while_a_replay_read_is_in_flight_sends_twice() -> None:
    """All consumers are gone, as in ``docs/zoo/10662-shared-read-twice.toml``; brokers 4.0.0 and 4.2.4 do the same."""
    hunter = PlainHunter(profile("4.2.4", "Shared"))
    find = hunter.play(
        steps(
            "an entry of key k1 is stored",
            "c1 joins with 1 permit",
            "c2 joins with 1 permit",
            "the normal read completes",
            "the cursor is reset to the first entry: all consumers that it disconnects are gone",
            "c2 joins with 10 permits and a lower priority",
            "c2 hangs: it sends no command any more",
        )
    )
    assert find is not None
    assert (find.name, hunter.cause_of(find)) == ("double_outstanding", "read_again")


def test_nothing_is_expected_of_consumers_that_hang_alone() -> None:
    alone = steps(
        *["an entry of key k1 is stored"] * 2,
        "c1 joins with 1 permit",
        "c1 hangs: it sends no command any more",
        "the normal read completes",
    )
    player = player_of(profile("4.2.4", "Shared"), alone)
    player.settle()
    player.check()
    assert player.broken is None
    both = player_of(profile("4.2.4", "Shared"), [*alone, s_.parse("c2 joins with 1 permit")])
    both.settle()
    both.check()
    assert both.broken is None
    assert both.entries_left() == []  # c1 holds the other one


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


@pytest.mark.parametrize(
    ("kind", "version", "files"),
    [("Failover", "4.2.3", {"log", "report.md"}), ("Shared", "4.2.4", {"log", "report.md", "walk.py"})],
)
def test_a_find_has_its_files_and_its_schedule_can_be_played(
    kind: str, version: str, files: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Failover subscription has no walk."""
    arguments = ["hunt", "--broker-version", version, "--subscription-type", kind]
    out = tmp_path / "finds"
    assert main([*arguments, "--schedules", "20000", "--seed", "3", "--out", str(out)]) == 1
    (folder, *_) = sorted(out.glob("double_outstanding-*"))
    names = {path.name for path in folder.iterdir()}
    assert names >= {*files, "schedule.toml"}
    assert any(name.endswith("Test.java") for name in names)
    capsys.readouterr()
    assert main([*arguments, "--play", str(folder / "schedule.toml")]) == 1
    assert "double_outstanding" in capsys.readouterr().out
    assert main(["audit", str(folder / "log"), "--json"]) != 2
