"""Schedules that break a promise: found, shrunk, confirmed by the dispatcher of the core."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

import pytest

from dispatch_core.broker.profiles import Profile, resolve
from dispatch_core.errors import DispatchAuditError, UnsupportedRuleError
from dispatch_core.hunt import promises
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt import world as w_
from dispatch_core.hunt.causes import table
from dispatch_core.hunt.replayed import Replay
from dispatch_core.hunt.search import Find, Hunter

#: The first hunt of an installation compiles for more than a minute.
pytestmark = pytest.mark.slow

KEYS = ("key-197", "key-215", "key-132")
RANGE = {"subscriptionKeySharedUseConsistentHashing": False}
RING = {"subscriptionKeySharedUseConsistentHashing": True}
CLASSIC = {"subscriptionKeySharedUseClassicPersistentImplementation": True, **RANGE}
ROOT: Final = Path(__file__).resolve().parents[3]
#: Finds, and chunks without one, after which a test has seen enough.
ENOUGH: Final = 60


@lru_cache
def profile(version: str, consistent_hashing: bool = False, classic: bool = False) -> Profile:
    return resolve(version, {**(CLASSIC if classic else {}), **(RING if consistent_hashing else RANGE)})


@lru_cache
def finds(version: str, promise: str, classic: bool = False) -> tuple[Find, ...]:
    """The shrunk finds of a promise in a release, with the same seed for all releases."""
    hunter = Hunter(profile(version, classic=classic), KEYS, seed=3, wanted=promise.split())
    found = (hunter.random() for _ in range(ENOUGH if promise == "stuck" else ENOUGH // 4))
    return tuple(hunter.shrink(find) for find in found if find is not None)


def causes(found: Iterable[Find]) -> set[tuple[str, str]]:
    return {(find.name, find.cause) for find in found}


# --- the steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    [
        profile("4.2.4"),
        profile("4.0.0", consistent_hashing=True),
        profile("3.0.17"),
        profile("4.2.4", classic=True),
        profile("4.0.0-preview.1"),
        resolve("4.0.2", {**RANGE, "acknowledgmentAtBatchIndexLevelEnabled": True}),
        resolve(
            "4.2.4", {**RANGE, "maxUnackedMessagesPerConsumer": 2, "maxUnackedMessagesPerSubscription": 3}
        ),
        resolve("4.2.4", RANGE, allow_out_of_order=True),
        resolve("4.2.4", RANGE, key_shared_mode="STICKY"),
    ],
    ids=lambda rules: rules.name,
)
def test_compiled_steps_and_the_dispatcher_of_the_core_come_to_the_same(rules: Profile) -> None:
    """Positions, counters and what is left when a schedule is over, of 400 random schedules of all kinds of steps."""
    rng, hunter = random.Random(5), Hunter(rules, KEYS)
    choices = s_.all_steps(groups=s_.GROUPS_OF["Key_Shared"])
    compared, kinds = 0, set()
    for _ in range(400):
        steps = [rng.choice(choices) for _ in range(rng.randint(5, 30))]
        described = [s_.describe(step) for step in steps]
        if hunter.play(steps, settles=False) is not None:
            continue  # it ends where the promise is broken
        replay = Replay(rules, KEYS, steps)
        assert hunter.counters() == w_.counters(replay.core.state), described
        replay.settle()
        find = hunter.play(steps)
        hangs = any(s_.kind_of(step) == s_.HANG for step in steps)  # what it holds back is left, too
        if not hangs and (find is None or find.promise == promises.STUCK):
            assert hunter.entries_left() == replay.entries_left(), described
        compared += 1
        kinds |= {s_.kind_of(step) for step in steps}
    assert compared > 100
    assert kinds == {s_.kind_of(step) for step in choices}


def test_the_same_seed_plays_the_same_schedules() -> None:
    first, second, other = (Hunter(profile("4.0.0"), KEYS, seed=seed) for seed in (1, 1, 2))
    found = [[hunter.random() for _ in range(3)] for hunter in (first, second, other)]
    assert found[0] == found[1] != found[2]
    assert (first.played, first.steps) == (second.played, second.steps)


def test_what_is_passed_over_counts_among_the_schedules_at_once() -> None:
    """Else one set of keys is kept for as long as its known causes are met."""
    known = ["rewind_waits", "read_again", "leave_without_read"]
    hunter = Hunter(profile("4.2.4"), KEYS, pass_over=known, at_once=5_000)
    for calls in (1, 2):
        assert hunter.random() is None
        assert hunter.played == calls * 5_000
    assert sum(hunter.passed_over.values()) > 10


def test_only_key_shared_is_hunted() -> None:
    with pytest.raises(UnsupportedRuleError, match="neither Key_Shared nor Shared"):
        Hunter(resolve("4.2.4", subscription_type="Failover"), KEYS)


# --- known faults ----------------------------------------------------------------------------------------------------

ORDER = "split_key out_of_order"
HASH_NEVER_FREE = ("stuck", "draining_hash")
REWIND_WAITS = ("stuck", "rewind_waits")


def test_a_hash_that_comes_back_and_goes_again_is_stuck_in_4_0_0_and_not_since_4_0_7() -> None:
    """#24736, in at most 7 steps."""
    assert HASH_NEVER_FREE in causes(finds("4.0.0", "stuck"))
    assert HASH_NEVER_FREE not in causes(finds("4.0.7", "stuck"))
    shortest = min(
        (find for find in finds("4.0.0", "stuck") if (find.name, find.cause) == HASH_NEVER_FREE),
        key=lambda find: len(find.steps),
    )
    assert len(shortest.steps) <= 7


@pytest.mark.parametrize("version", ["4.0.0", "4.0.7", "4.2.4"])
def test_draining_hashes_never_split_a_key(version: str) -> None:
    """PIP-379."""
    assert finds(version, ORDER) == ()


@pytest.mark.parametrize(
    ("version", "classic"), [("3.0.17", False), ("4.2.4", True), ("4.0.0-preview.1", False)]
)
def test_earlier_rules_split_a_key(version: str, classic: bool) -> None:
    """The motives that PIP-282 and PIP-379 name: a key moves while entries of it are pending."""
    assert "split_key" in {find.name for find in finds(version, ORDER, classic)}


@pytest.mark.parametrize(("version", "classic"), [("3.0.17", False), ("4.2.4", True)])
def test_a_normal_read_waits_while_the_replay_set_has_work(version: str, classic: bool) -> None:
    """As a real classic broker did after a rolling restart: nothing looks at the replay set until something is stored."""
    assert ("stuck", "normal_read_waits") in causes(finds(version, "stuck", classic))


def test_a_look_ahead_needs_more_to_read_since_26236() -> None:
    assert ("stuck", "normal_read_waits") not in causes(finds("4.2.4", "stuck"))


def test_a_schedule_keeps_the_names_that_consistent_hashing_goes_by() -> None:
    hunter = Hunter(profile("4.0.0", consistent_hashing=True), KEYS, seed=4)
    for _ in range(20):
        find = hunter.random()
        if find is not None:
            shrunk = hunter.shrink(find)
            again = hunter.play(shrunk.steps)
            assert again is not None
            assert again.promise == find.promise


def test_the_rewind_that_waits_for_a_normal_read() -> None:
    """All consumers leave while a replay read is in flight: the next one waits until something is stored."""
    hunter = Hunter(profile("4.2.4"), KEYS)
    steps = [
        s_.step(s_.JOIN, 0, 2),
        s_.step(s_.STORE),
        s_.step(s_.STORE),
        s_.READ_STEP,
        s_.step(s_.NACK_FIRST, 0),
        s_.step(s_.LEAVE, 0),
        s_.step(s_.JOIN, 1, 0),
    ]
    find = hunter.play(steps)
    assert find is not None
    shrunk = hunter.shrink(find)
    assert (shrunk.name, shrunk.cause, shrunk.entry) == (*REWIND_WAITS, 1)
    assert len(shrunk.steps) == len(steps)
    assert hunter.play([*steps[:-1], s_.REPLAY_STEP, steps[-1]]) is None  # the read ends before anybody comes


# --- causes that are known -----------------------------------------------------------------------------------------


def test_a_cause_that_is_passed_over_does_not_hide_longer_ones() -> None:
    """Schedules that end by the rewind that waits are counted; the others of the same promise are found."""
    wanted, known = ["stuck"], ["normal_read_waits", "rewind_waits"]
    rules = profile("3.0.8")
    found, passed = set(), 0
    for seed in range(3):
        hunter = Hunter(rules, KEYS, seed=seed, wanted=wanted, groups=["races"], pass_over=known)
        finds_now = (hunter.random() for _ in range(20))
        found |= causes(hunter.shrink(find) for find in finds_now if find is not None)
        passed += hunter.passed_over["normal_read_waits"]
    assert passed > 100
    assert {cause for _, cause in found} & {"nobody_reads", "no_read"}
    assert not {cause for _, cause in found} & set(known)


def test_the_page_lists_the_causes() -> None:
    text = (ROOT / "docs" / "hunt.md").read_text(encoding="utf-8")
    _, _, after = text.partition("<!-- causes -->\n")
    assert after.partition("<!-- end -->")[0] == table()


# --- further kinds of steps ------------------------------------------------------------------------------------------


def shortest(rules: Profile, promise: str, cause: str, *groups: str, chunks: int = 40) -> Find | None:
    """Search a promise with further kinds of steps; the shortest find of a cause."""
    hunter = Hunter(rules, KEYS, seed=3, wanted=[promise], groups=groups)
    found = [hunter.shrink(find) for find in (hunter.random() for _ in range(chunks)) if find is not None]
    return min(
        (find for find in found if find.cause == cause), key=lambda find: len(find.steps), default=None
    )


def test_an_acknowledgement_within_a_scan_lets_a_later_entry_pass_until_23874() -> None:
    """#23870: the draining hash is free behind an entry that was refused."""
    find = shortest(profile("4.0.2"), "out_of_order", "free_within_scan", "races", chunks=120)
    assert find is not None
    assert len(find.steps) <= 10
    assert shortest(profile("4.0.3"), "out_of_order", "free_within_scan", "races", chunks=10) is None
    assert Hunter(profile("4.0.3"), KEYS).play(find.steps) is None


def test_a_cleared_backlog_leaves_counters_until_25592() -> None:
    find = shortest(profile("4.2.1"), "leak", "after_a_move", "moves", chunks=3)
    assert find is not None
    assert Hunter(profile("4.2.2"), KEYS).play(find.steps) is None


def test_a_consumer_that_hangs_starves_others_of_the_read_position_and_not_under_draining_hashes() -> None:
    """#23307, a motive of PIP-379."""
    find = shortest(profile("3.0.17"), "starved", "recently_joined", "hangs", chunks=3)
    assert find is not None
    assert len(find.steps) <= 6
    for seed in range(3):
        known = ["rewind_waits", "normal_read_waits", "leave_without_read"]  # holes of 4.2.4
        hunter = Hunter(
            profile("4.2.4"), KEYS, seed=seed, wanted=["starved"], groups=["hangs"], pass_over=known
        )
        assert [hunter.random() for _ in range(3)] == [None] * 3


def parsed(*texts: str) -> list[int]:
    return [s_.parse(text) for text in texts]


def test_a_limit_of_one_by_a_policy_unblocks_nobody_until_23796() -> None:
    """#22657, by a change of the policy instead of the setting."""
    steps = parsed(
        *["an entry of key k1 is stored"] * 2,
        "the limit of unacknowledged messages per consumer becomes 1",
        "c1 joins with 10 permits",
    )
    find = Hunter(profile("4.0.2"), KEYS).play(steps)
    assert find is not None
    assert find.name == "stuck"
    lifted = "the limit of unacknowledged messages per consumer becomes the setting of the broker"
    assert Hunter(profile("4.0.2"), KEYS).play([*steps[:3], s_.parse(lifted), steps[3]]) is None
    assert Hunter(profile("4.0.3"), KEYS).play(steps) is None


def test_a_reset_sends_everything_again() -> None:
    steps = parsed(
        *["an entry of key k1 is stored"] * 2,
        "c1 joins with 10 permits",
        "the normal read completes",
        "c1 acknowledges the first entry that it holds",
        "the cursor is reset to the first entry: all consumers that it disconnects are gone",
        "c2 joins with 10 permits",
    )
    hunter, replay = Hunter(profile("4.2.4"), KEYS), Replay(profile("4.2.4"), KEYS, steps)
    assert hunter.play(steps, settles=False) is None
    assert hunter.entries_left() == replay.entries_left() == [0, 1]
    assert hunter.play(steps) is None
    replay.settle()
    assert hunter.entries_left() == replay.entries_left() == []
    assert replay.sent == [(1, [0, 1]), (2, [0, 1])]
    moved = [line.fields for line in replay.lines if line.kind == "cursor_moved"]
    assert moved == [{"by": "reset_cursor", "from": "1:0", "to": "1:-1"}]


def test_a_skip_passes_the_first_entry_alone() -> None:
    steps = parsed(*["an entry of key k1 is stored"] * 3, "the first entry of the backlog is skipped")
    hunter = Hunter(profile("4.2.4"), KEYS)
    hunter.play(steps)
    assert hunter.entries_left() == [1, 2]
    pending = parsed("c1 joins with 10 permits", "the normal read completes")
    hunter.play([*steps[:3], *pending, steps[3]], settles=False)
    assert hunter.counters()["unacked_0"] == 2


def test_sticky_ranges_refuse_a_consumer_until_the_others_are_gone() -> None:
    rules = resolve("4.2.4", RANGE, key_shared_mode="STICKY")
    join = parsed("c1 joins with 1 permit", "c3 joins with 1 permit")
    for steps, connected in ((join, [1]), ([join[0], s_.parse("c1 leaves"), join[1]], [2])):
        replay = Replay(rules, KEYS, steps)
        assert replay.core.connected() == connected
        hunter = Hunter(rules, KEYS)
        hunter.play(steps, settles=False)
        assert hunter.counters() == w_.counters(replay.core.state)


def test_a_step_is_read_as_it_is_said() -> None:
    steps = s_.all_steps(groups=tuple(s_.GROUPS))
    assert [s_.parse(s_.describe(step)) for step in steps] == steps
    assert len({s_.describe(step) for step in steps}) == len(steps)
    with pytest.raises(DispatchAuditError, match="'c1 sleeps' is no step"):
        s_.parse("c1 sleeps")


# --- shrinking -------------------------------------------------------------------------------------------------------


def test_no_step_of_a_shrunk_schedule_can_be_left_out() -> None:
    hunter = Hunter(profile("4.0.0"), KEYS, seed=7)
    found = hunter.random()
    assert found is not None
    shrunk = hunter.shrink(found)
    assert len(shrunk.steps) < len(found.steps)
    again = hunter.play(shrunk.steps)
    assert again is not None
    assert again.promise == found.promise
    for at in range(len(shrunk.steps)):
        shorter = hunter.play(shrunk.steps[:at] + shrunk.steps[at + 1 :])
        assert shorter is None or shorter.promise != found.promise
