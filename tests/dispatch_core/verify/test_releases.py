"""The version matrix: which release of which line has which change, at the boundaries of every row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker import old_releases, profiles, replay_set
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.profiles import FailoverRule, RingVariant, resolve
from dispatch_core.broker.selectors import factory
from dispatch_core.broker.selectors.failover import Candidate, pick
from dispatch_core.broker.state import SKIP_NEXT_REPLAY
from dispatch_core.broker.versions import parse_version, reached, suffix
from dispatch_core.broker.walk import Walk
from dispatch_core.errors import ProfileError

ROOT = Path(__file__).resolve().parents[3]
PREVIEW = "4.0.0-preview.1"
NEWEST = {"3.0": 17, "3.1": 3, "3.2": 4, "3.3": 9, "4.0": 13, "4.1": 3, "4.2": 4, "5.0": 1}
RELEASES = [f"{line}.{patch}" for line, newest in NEWEST.items() for patch in range(newest + 1)]

#: Change → releases that have it, as ranges ``first..last`` of a line, ``line`` for all of it, as the release notes say.
MATRIX = {
    "no_stuck_consumers": "3.0.1..17 3.1 3.2 3.3 preview 4.0 4.1 4.2 5.0",  # 20335
    "dead_exclusive_replaced": "3.0.2..17 3.2 3.3 preview 4.0 4.1 4.2 5.0",  # 21183
    "ring_point_separator": "3.0.3..17 3.1.3 3.2.1..4 3.3 preview 4.0 4.1 4.2 5.0",  # 22053
    "replay_pre_filter": "3.0.5..17 3.2.3..4 3.3 preview 4.0 4.1 4.2 5.0",  # 22245, 22533
    "last_sent_position": "preview",  # 21953
    "replay_set_stat": "3.0.7..17 3.3.2..9 preview 4.0 4.1 4.2 5.0",  # 23224
    "retry_backoff": "preview 4.0 4.1 4.2 5.0",  # 23226
    "look_ahead_limit": "preview 4.0 4.1 4.2 5.0",  # 23231
    "sticky_never_recently_joined": "preview 4.0 4.1 4.2 5.0",  # 23275
    "fallback_key": "4.0 4.1 4.2 5.0",  # 23219
    "ring_name_index": "3.0.7..17 3.3.2..9 4.0 4.1 4.2 5.0",  # 23327
    "draining_hashes": "4.0 4.1 4.2 5.0",  # 23352, 23423, 23429
    "classic_dispatchers": "4.0 4.1 4.2",  # 23424; gone in 5.0
    "ring_keeps_owner": "4.0 4.1 4.2 5.0",  # 23441, 23447
    "failover_ring_flag": "3.0.8..17 3.3.3..9 4.0.1..13 4.1 4.2 5.0",  # 23584
    "recently_joined_sorted": "3.0.9..17 3.3.4..9 4.0.2..13 4.1 4.2 5.0",  # 23795, 23802
    "blocked_hash_memory": "4.0.3..13 4.1 4.2 5.0",  # 23874
    "byte_limit_on_replay": "4.0.3..13 4.1 4.2 5.0",  # 23894
    "shared_batch_size": "4.0.4..13 4.1 4.2 5.0",  # 24092, 24117
    "batch_index_ack_default": "4.1 4.2 5.0",  # 24203
    "recently_joined_sorted_if_needed": "3.0.14..17 3.3.9 4.0.7..13 4.1.1..3 4.2 5.0",  # 24634
    "sticky_ranges_exact": "3.0.14..17 3.3.9 4.0.7..13 4.1.1..3 4.2 5.0",  # 24730
    "added_ranges": "4.0.7..13 4.1.1..3 4.2 5.0",  # 24736
    "waiting_read_gets_entries": "3.0.15..17 4.0.8..13 4.1.2..3 4.2 5.0",  # 24898
    "trim_only_on_expiry": "4.0.11..13 4.2.2..4 5.0",  # 25581
    "redeliver_in_one_batch": "4.0.11..13 4.2.2..4 5.0",  # 25589
    "remaining_unacked_count": "4.0.11..13 4.2.2..4 5.0",  # 25592
    "failover_read_epoch": "4.0.13 4.2.4 5.0",  # 26174
    "look_ahead_needs_more": "4.0.13 4.2.4 5.0",  # 26236
    "out_of_order_by_permits": "5.0",  # 26268: on 4.0 and 4.2 behind the newest release
    "larger_look_ahead": "5.0",  # 25992
    "sticky_removes_by_identity": "5.0",
    # changed more than once
    "cancel_clears_replay_read": "3.0.7..9 3.3.2..4 4.0.0..2",  # 23384, taken back by 23855
    "unblock_before_lowering": "3.0.2..17 3.1.1..3 3.2 3.3 preview 4.0.0..10 4.1 4.2.0..1",  # 21126, ended by 25592
    "unblock_again_after_lowering": "3.0.10..17 3.3.5..9 4.0.3..13 4.1 4.2 5.0",  # 23796
}


def releases_of(cell: str) -> set[str]:
    found: set[str] = set()
    for word in cell.split():
        if word == "preview":
            found.add(PREVIEW)
            continue
        line, first, last = word, "0", ""
        if word.count(".") > 1:
            line, _, patches = word.rpartition(".") if ".." not in word else rpartition_range(word)
            first, _, last = patches.partition("..")
            last = last or first
        found |= {f"{line}.{patch}" for patch in range(int(first), int(last or NEWEST[line]) + 1)}
    return found


def rpartition_range(word: str) -> tuple[str, str, str]:
    before, _, last = word.partition("..")
    line, dot, first = before.rpartition(".")
    return line, dot, f"{first}..{last}"


@pytest.mark.parametrize("change", sorted(MATRIX))
def test_a_row_of_the_matrix_holds_in_every_release(change: str) -> None:
    have = {release for release in [*RELEASES, PREVIEW] if change in resolve(release).changes}
    assert have == releases_of(MATRIX[change])


def test_the_matrix_and_the_profiles_name_the_same_changes() -> None:
    assert set(MATRIX) <= set(profiles._CHANGES)
    assert set(profiles._GONE) <= set(profiles._CHANGES)
    assert profiles._IN_PREVIEW.issubset(profiles._CHANGES)
    assert set(profiles._CHANGES) & set(old_releases.CHANGES) == old_releases.ALSO_LATER


@pytest.mark.parametrize(
    ("variant", "first", "last"),
    [
        (RingVariant.A, "3.0.0", "3.0.2"),
        (RingVariant.A, "3.1.0", "3.1.2"),
        (RingVariant.A, "3.2.0", "3.2.0"),
        (RingVariant.A0, "3.0.3", "3.0.6"),
        (RingVariant.A0, "3.1.3", "3.1.3"),
        (RingVariant.A0, "3.2.1", "3.2.4"),
        (RingVariant.A0, "3.3.0", "3.3.1"),
        (RingVariant.A0, PREVIEW, PREVIEW),
        (RingVariant.B, "3.0.7", "3.0.17"),
        (RingVariant.B, "3.3.2", "3.3.9"),
        (RingVariant.C, "4.0.0", "5.0.1"),
    ],
)
def test_the_ring_of_each_release(variant: RingVariant, first: str, last: str) -> None:
    for release in (first, last):
        assert resolve(release).ring_variant is variant
    classic = {"subscriptionKeySharedUseClassicPersistentImplementation": True}
    if variant is RingVariant.C:
        assert resolve(first, classic).ring_variant is RingVariant.C_CLASSIC


@pytest.mark.parametrize(
    ("version", "used", "said"),
    [
        ("7.1.0", (5, 0, 1), "newer than 5.0.1, the newest known"),
        ("5.0.2", (5, 0, 1), "newer than 5.0.1"),
        ("4.2.5", (4, 2, 5), "newer than 4.2.4, the newest known of its line"),
        ("4.5.0", (4, 2, 4), "belongs to no known line"),
        ("3.4.1", (3, 3, 9), "belongs to no known line"),
        ("4.1.0-SNAPSHOT", (4, 1, 0), "is no release"),
    ],
)
def test_a_release_that_is_not_known_takes_the_nearest_known_and_says_so(
    version: str, used: tuple[int, int, int], said: str
) -> None:
    profile = resolve(version)
    assert profile.version == used
    assert len(profile.warnings) == 1
    assert said in profile.warnings[0]
    assert profile.broker_version == version
    assert profile.name.startswith(version)


def test_the_name_of_a_profile_says_whose_rules_were_used() -> None:
    assert resolve("7.1.0").name.startswith("7.1.0 by the rules of 5.0.1 sticky key")
    assert resolve("v4.2.4").name.startswith("v4.2.4 sticky key")
    assert resolve(PREVIEW).name.startswith("4.0.0-preview.1 sticky key")


@pytest.mark.parametrize("version", [*RELEASES, PREVIEW])
def test_a_known_release_needs_no_warning(version: str) -> None:
    assert resolve(version).warnings == ()


def test_the_settings_page_names_the_newest_release_of_each_line() -> None:
    text = " ".join((ROOT / "docs" / "settings.md").read_text(encoding="utf-8").split())
    assert [line for line, patch in NEWEST.items() if f" {line}.{patch}" not in text] == []


def test_the_tip_of_a_line_holds_what_came_behind_its_newest_release() -> None:
    assert "out_of_order_by_permits" in resolve("4.0.14").changes
    assert "out_of_order_by_permits" in resolve("4.2.5").changes
    assert "out_of_order_by_permits" not in resolve("4.1.4").changes


# --- releases below 3.0, of which there are no recordings ---------------------------------------------------------------

OLD_NEWEST = {"2.4": 2, "2.5": 2, "2.6": 4, "2.7": 5, "2.8": 4, "2.9": 5, "2.10": 6, "2.11": 4}
OLD_RELEASES = [f"{line}.{patch}" for line, newest in OLD_NEWEST.items() for patch in range(newest + 1)]
#: Change → the first releases that have it, as the labels of its pull request and the release notes say.
OLD_MATRIX = {
    "sticky_mode": ["2.5.0"],  # 5388
    "consistent_hashing": ["2.6.0"],  # 6791
    "read_position": ["2.6.0"],  # 7106
    "looks_past_stuck": ["2.6.0"],  # 7105
    "stuck_consumers": ["2.6.2", "2.7.0"],  # 7553
    "ring_points_shared": ["2.7.0"],  # 8396
    "replay_order": ["2.7.3", "2.8.1", "2.9.0"],  # 10762
    "min_replay": ["2.8.3", "2.9.1", "2.10.0"],  # 12890
    "no_stuck_consumers": ["2.10.5", "2.11.2"],  # 20335
    "failover_ring": [],  # 19502: 3.0.0
}


@pytest.mark.parametrize("change", sorted(OLD_MATRIX))
def test_a_change_below_3_0_holds_from_its_first_releases_on(change: str) -> None:
    have = [release for release in OLD_RELEASES if change in resolve(release).changes]
    starts = [tuple(map(int, first.split("."))) for first in OLD_MATRIX[change]]
    expected = [
        release
        for release in OLD_RELEASES
        if any(
            ((version := tuple(map(int, release.split("."))))[:2] == first[:2] and version >= first)
            or (first == max(starts) and version[:2] > first[:2])
            for first in starts
        )
    ]
    assert have == expected
    lasting = set(RELEASES) - ({"3.0.0"} if change == "no_stuck_consumers" else set())
    assert all(change in resolve(release).changes for release in lasting)
    assert change in resolve(PREVIEW).changes


def test_no_row_is_missing_below_3_0() -> None:
    assert set(OLD_MATRIX) == set(old_releases.CHANGES)


@pytest.mark.parametrize("version", OLD_RELEASES)
def test_a_release_without_recordings_says_so(version: str) -> None:
    profile = resolve(version)
    assert profile.version == parse_version(version)
    assert [f"the rules of {version} are read from its source" in text for text in profile.warnings] == [True]


@pytest.mark.parametrize(
    ("version", "used"), [("2.4.9", "2.4.2"), ("2.12.0", "2.11.4"), ("2.8.1-SNAPSHOT", "2.8.1")]
)
def test_an_unknown_release_below_3_0_takes_the_nearest_below(version: str, used: str) -> None:
    profile = resolve(version)
    assert profile.version == parse_version(used)
    assert len(profile.warnings) == 2


def test_the_rules_of_the_lines_below_3_0() -> None:
    found = {
        version: resolve(version) for version in ("2.4.2", "2.6.0", "2.7.0", "2.9.0", "2.10.0", "2.11.4")
    }
    assert [profile.ordering.value for profile in found.values()] == ["none", *["read position"] * 5]
    assert [profile.consistent_hashing for profile in found.values()] == [False] * 4 + [True] * 2
    ring = {"subscriptionKeySharedUseConsistentHashing": True}
    assert not resolve("2.5.2", ring).consistent_hashing  # the setting came with 2.6.0
    assert resolve("2.6.4", ring).ring_variant is RingVariant.A_REPLACING
    assert resolve("2.7.0", ring).ring_variant is RingVariant.A
    with pytest.raises(ProfileError, match=r"came with 2\.5\.0"):
        resolve("2.4.0", key_shared_mode="STICKY")
    assert resolve("2.5.0", key_shared_mode="STICKY").key_shared_mode == "STICKY"
    failover = {"subscription_type": "Failover"}
    assert resolve("2.11.4", **failover).failover is FailoverRule.MODULO
    assert resolve("3.0.0", **failover).failover is FailoverRule.RING


def test_without_the_ring_a_topic_that_is_not_partitioned_keeps_its_first_consumer() -> None:
    joined = [Candidate(1, "b", 5), Candidate(2, "a", 0)]
    assert pick(joined, partition_index=-1, topic="t", ring=False).active == 1


@pytest.mark.parametrize(("version", "overtakes"), [("2.8.0", True), ("2.8.1", False)])
def test_before_10762_a_normal_read_overtakes_the_replay_set(version: str, *, overtakes: bool) -> None:
    """R0: entry 0 waits in the replay set, entry 1 of its hash comes with a normal read."""
    dispatcher = connected(version)
    replay_set.add_to_replay(dispatcher.state, 0, int(dispatcher.state.hash_id[0]))
    found = dispatcher.round("Normal", [1])
    assert found.sent == ({1: [1]} if overtakes else {})


@pytest.mark.parametrize(("version", "drops"), [("2.9.0", False), ("2.9.1", True)])
def test_before_12890_a_read_result_is_sent_although_an_earlier_entry_is_to_be_replayed(
    version: str, *, drops: bool
) -> None:
    """R1: entry 1 is in the replay set when a replay read is issued for it; entry 0 joins it meanwhile."""
    dispatcher = connected(version)
    replay_set.add_to_replay(dispatcher.state, 1, int(dispatcher.state.hash_id[1]))
    assert dispatcher.attempt_read().entries == (1,)
    replay_set.add_to_replay(dispatcher.state, 0, int(dispatcher.state.hash_id[0]))
    assert dispatcher.read_done("Replay", [1])
    assert dispatcher.round("Replay", [1]).sent == ({} if drops else {1: [1]})


@pytest.mark.parametrize(("version", "reads_on"), [("2.5.2", False), ("2.6.0", True)])
def test_before_7105_a_round_that_sends_nothing_is_followed_by_the_same_replay(
    version: str, *, reads_on: bool
) -> None:
    dispatcher = connected(version)
    dispatcher.state.permits[0] = 0
    found = dispatcher.round("Normal", [0])
    assert found.sent == {}
    dispatcher.finish_round(found, has_more=True)
    assert bool(dispatcher.state.s[SKIP_NEXT_REPLAY]) is reads_on


def connected(version: str) -> ClassicKeySharedDispatcher:
    """A dispatcher with two entries of one hash and a consumer with permits."""
    dispatcher = ClassicKeySharedDispatcher(resolve(version), np.array([7, 7]), np.ones(2, np.int64), 1)
    dispatcher.join(1, "c1")
    dispatcher.join_selector(1)
    dispatcher.flow(1, 10)
    dispatcher.flow_applied(1, 10)
    return dispatcher


def test_before_7106_a_joining_consumer_gets_a_key_at_once() -> None:
    for version, held_back in (("2.5.2", False), ("2.6.0", True)):
        walk = Walk(resolve(version), ["key-1", "key-1", "key-1", "key-1"], stored=2)
        walk.join("c1", permits=100)
        walk.run()
        walk.join("c2", permits=100)
        walk.store(2)
        assert walk.owner("key-1") in ("c1", "c2")
        assert bool(walk.recently_joined()) is held_back, version
        walk.core.check_invariants()


def test_before_8396_consumers_of_one_name_share_no_point() -> None:
    ring = {"subscriptionKeySharedUseConsistentHashing": True}
    hashes = np.arange(0, 1 << 31, (1 << 21) + 1, dtype=np.int64)
    for version, owners in (("2.6.0", {2}), ("2.7.0", {1, 2})):
        selector = factory.build(resolve(version, ring))
        for number in (1, 2):
            selector.add(number, "worker")
        assert set(selector.select_array(hashes).tolist()) == owners


def test_a_suffix_is_distinguished_from_a_release() -> None:
    assert (suffix("4.2.4"), suffix(PREVIEW)) == ("", "preview.1")


@pytest.mark.parametrize(
    "version", ["", "four", "4.2", "2.3.2", "4.2.4.4.4x!", "99999999999.0.0", None, 4, "4.2.4\n5"]
)
def test_a_version_that_makes_no_sense_is_an_error(version: object) -> None:
    with pytest.raises(ProfileError, match="--broker-version"):
        parse_version(version)  # type: ignore[arg-type]


@given(st.text(max_size=30))
def test_any_text_is_a_version_or_a_named_error(text: str) -> None:
    try:
        version = parse_version(text)
    except ProfileError:
        return
    assert version >= (2, 4, 0)


VERSIONS = st.tuples(st.integers(3, 5), st.integers(0, 5), st.integers(0, 20))
TABLES = st.dictionaries(st.tuples(st.integers(3, 5), st.integers(0, 5)), st.integers(0, 20), max_size=4)


@given(VERSIONS, TABLES)
def test_what_a_patch_release_has_its_successors_have(
    version: tuple[int, int, int], lines: dict[tuple[int, int], int]
) -> None:
    major, minor, patch = version
    if reached(version, lines):
        assert reached((major, minor, patch + 1), lines)
