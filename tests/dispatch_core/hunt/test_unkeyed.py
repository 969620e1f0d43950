"""Failover and Shared: what is hunted, and that the dispatchers of the core do the same."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dispatch_core.broker.profiles import Profile, resolve
from dispatch_core.broker.state import MARK_DELETE, READ_POSITION
from dispatch_core.cli.main import main
from dispatch_core.errors import UnsupportedRuleError
from dispatch_core.hunt import promises
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt import world as w_
from dispatch_core.hunt.failover_steps import FailoverRules
from dispatch_core.hunt.search import Hunter
from dispatch_core.hunt.unkeyed import FailoverPlayer, SharedPlayer, UnkeyedHunter, player_of
from dispatch_core.hunt.written_log import TOPIC

#: The first hunt of an installation compiles for more than a minute.
pytestmark = pytest.mark.slow


def profile(version: str, kind: str) -> Profile:
    return resolve(version, {}, subscription_type=kind, partition_index=0)


def steps(*texts: str) -> list[int]:
    return [s_.parse(text) for text in texts]


LIMITS = {"maxUnackedMessagesPerConsumer": 2, "maxUnackedMessagesPerSubscription": 4}
PARTS = {"acknowledgmentAtBatchIndexLevelEnabled": True}
RULES = [
    *(
        resolve(version, PARTS, subscription_type="Shared")
        for version in ("3.0.17", "4.0.0", "4.2.1", "4.2.4")
    ),
    resolve("4.2.4", {**LIMITS, "dispatcherMaxRoundRobinBatchSize": 1}, subscription_type="Shared"),
    resolve(
        "4.2.4", {"subscriptionSharedUseClassicPersistentImplementation": True}, subscription_type="Shared"
    ),
    *(resolve(version, PARTS, subscription_type="Failover") for version in ("3.0.17", "4.2.3", "4.2.4")),
    resolve("4.2.4", {"activeConsumerFailoverDelayTimeMillis": 0}, subscription_type="Failover"),
    resolve(
        "4.0.0",
        {"preciseDispatcherFlowControl": True, "maxConsumersPerSubscription": 2},
        subscription_type="Failover",
    ),
]


def counters_of(player: FailoverPlayer | SharedPlayer) -> dict[str, int]:
    """Return what the hunt says of the end of a schedule, of the dispatcher that a player has."""
    if isinstance(player, SharedPlayer):
        return w_.counters(player.core.state)
    core, s = player.core, player.core.state.s
    return {
        "mark_delete": int(s[MARK_DELETE]),
        "read_position": int(s[READ_POSITION]),
        "active": core.active or 0,
        "pending_read": int(core.pending),
        "reads": core.reads_in_flight,
        "delay_runs": int(core.delay_running),
        **{f"permits_{number}": core.permits[number] for number in sorted(core.members)},
    }


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.name)
def test_compiled_steps_and_the_dispatcher_of_the_core_come_to_the_same(rules: Profile) -> None:
    """Positions, reads and permits after the steps of 300 schedules of all kinds, and what is left in the end."""
    kind = "Shared" if rules.is_shared else "Failover"
    hunter = Hunter(rules, ["key-0"] * 3) if rules.is_shared else FailoverRules(rules, TOPIC)
    rng = random.Random(5)
    choices = s_.all_steps(groups=s_.GROUPS_OF[kind])
    compared = 0
    for _ in range(300):
        schedule = [rng.choice(choices) for _ in range(rng.randint(5, 30))]
        described = [s_.describe(step) for step in schedule]
        player = player_of(rules, schedule)
        find = hunter.play(schedule, settles=False)
        assert player.broken == (find is not None), described
        if find is not None:
            continue  # it ends where the promise is broken
        assert hunter.counters() == counters_of(player), described
        player.settle()
        find = hunter.play(schedule)
        hangs = any(s_.kind_of(step) == s_.HANG for step in schedule)  # then the hunt ends sooner
        if not hangs and (find is None or find.promise == promises.STUCK):
            assert hunter.entries_left() == player.entries_left(), described
            compared += 1
    assert compared > 100


CHANGE = steps(
    "an entry of key k1 is stored",
    "c2 joins with 1 permit",
    "the broker's timer ends",
    "the normal read completes",
    "c1 joins with 1 permit",
    "the broker's timer ends",
)


def test_a_change_of_the_active_consumer_delivers_twice_unless_the_first_acknowledges() -> None:
    hunter = UnkeyedHunter(profile("4.2.4", "Failover"))
    find = hunter.play(CHANGE)
    assert find is None  # clients acknowledge before the last read completes
    find = hunter.play([*CHANGE, s_.READ_STEP])
    assert find is not None
    assert (find.name, hunter.cause_of(find)) == ("double_outstanding", "active_change")
    assert hunter.play([*CHANGE[:4], s_.step(s_.ACK_FIRST, 1), *CHANGE[4:], s_.READ_STEP]) is None


def test_a_change_away_and_back_delivers_twice_to_the_same_consumer() -> None:
    hunter = UnkeyedHunter(profile("4.2.4", "Failover"))
    away_and_back = steps(
        "c1 joins with 1 permit", "c1 leaves", "the broker's timer ends", "the normal read completes"
    )
    joins = s_.parse("c2 joins with 2 permits")
    find = hunter.play([CHANGE[0], joins, *CHANGE[2:4], *away_and_back])
    assert find is not None
    assert (find.name, hunter.cause_of(find)) == ("double_outstanding", "active_change")


@pytest.mark.parametrize("kind", ["Failover", "Shared"])
@pytest.mark.parametrize("version", ["3.0.17", "4.0.0", "4.2.4"])
def test_seeded_schedules_are_the_same_and_clean_but_for_known_causes(version: str, kind: str) -> None:
    """The causes that are left out are those of the zoo."""
    known = ["rewind_waits", "read_again", "replayed_again", "read_of_before", "active_change"]
    first, second = (UnkeyedHunter(profile(version, kind), seed=1, pass_over=known) for _ in range(2))
    assert [first.random(), first.random()] == [second.random(), second.random()] == [None, None]
    assert (first.played, first.steps) == (second.played, second.steps)
    assert first.played == 1000


def test_a_client_cannot_acknowledge_what_was_read_before_its_request() -> None:
    """It discards that (PIP-84), so it comes again; since #26174 the broker drops it."""
    schedule = steps(
        "an entry of key k1 is stored",
        "c1 joins with 2 permits",
        "the broker's timer ends",
        "c1 requests everything again",
        "the normal read completes",
    )
    acknowledges = [*schedule, s_.parse("c1 acknowledges the first entry that it holds")]
    for version, sent_twice in (("4.0.0", True), ("4.2.4", False)):
        for tried in (schedule, acknowledges):
            find = UnkeyedHunter(profile(version, "Failover")).play(tried)
            assert (find is not None) == sent_twice
        assert player_of(profile(version, "Failover"), acknowledges).entries_left() == [0]


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
    schedule = steps(
        "an entry of key k1 with 3 messages is stored",
        "c1 joins with 10 permits",
        "the broker's timer ends",
        "the normal read completes",
        part,
        part,
    )
    player = player_of(rules, schedule)
    assert player.entries_left() == [0]
    player.settle()
    assert player.entries_left() == []
    assert UnkeyedHunter(rules).play(schedule) is None


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


@pytest.mark.parametrize(("version", "sends_twice"), [("3.0.17", True), ("4.0.0", False), ("4.2.4", False)])
def test_a_reset_issues_no_read_between_two_removals_since_4_0(version: str, sends_twice: bool) -> None:
    """Brokers 4.0.0 and 4.2.4 do the same; before, the removal itself reads, as in 10662-shared-read-twice of the zoo."""
    hunter = UnkeyedHunter(profile(version, "Shared"))
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
    assert (find is not None) == sends_twice
    assert find is None or (find.name, hunter.cause_of(find)) == ("double_outstanding", "read_again")


def test_nothing_is_expected_of_consumers_that_hang_alone() -> None:
    alone = steps(
        *["an entry of key k1 is stored"] * 2,
        "c1 joins with 1 permit",
        "c1 hangs: it sends no command any more",
        "the normal read completes",
    )
    hunter = UnkeyedHunter(profile("4.2.4", "Shared"))
    assert hunter.play(alone) is None
    both = [*alone, s_.parse("c2 joins with 1 permit")]
    assert hunter.play(both) is None
    player = player_of(profile("4.2.4", "Shared"), both)
    player.settle()
    assert player.entries_left() == [0]  # c1 holds it


def test_other_dispatchers_are_refused() -> None:
    with pytest.raises(UnsupportedRuleError, match="neither Failover nor Shared"):
        player_of(resolve("4.2.4"), [])


def test_the_command_hunts_failover(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["hunt", "--broker-version", "4.2.3", "--subscription-type", "Failover", "--json"]
    assert main([*arguments, "--schedules", "20000", "--seed", "3"]) == 1
    *finds, totals = map(json.loads, capsys.readouterr().out.splitlines())
    assert {find["cause"] for find in finds} <= {"read_of_before", "active_change", "no_read"}
    assert totals["schedules"] >= 20_000
    assert main([*arguments, "--also", "races"]) == 2


@pytest.mark.slow
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
