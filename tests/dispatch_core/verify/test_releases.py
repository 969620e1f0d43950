"""The version matrix: which release of which line has which change, at the boundaries of every row."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker import profiles
from dispatch_core.broker.profiles import RingVariant, resolve
from dispatch_core.broker.versions import parse_version, reached, suffix
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


def test_a_suffix_is_distinguished_from_a_release() -> None:
    assert (suffix("4.2.4"), suffix(PREVIEW)) == ("", "preview.1")


@pytest.mark.parametrize(
    "version", ["", "four", "4.2", "2.10.4", "4.2.4.4.4x!", "99999999999.0.0", None, 4, "4.2.4\n5"]
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
    assert version >= (3, 0, 0)


VERSIONS = st.tuples(st.integers(3, 5), st.integers(0, 5), st.integers(0, 20))
TABLES = st.dictionaries(st.tuples(st.integers(3, 5), st.integers(0, 5)), st.integers(0, 20), max_size=4)


@given(VERSIONS, TABLES)
def test_what_a_patch_release_has_its_successors_have(
    version: tuple[int, int, int], lines: dict[tuple[int, int], int]
) -> None:
    major, minor, patch = version
    if reached(version, lines):
        assert reached((major, minor, patch + 1), lines)
