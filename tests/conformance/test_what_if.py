"""Under the recorded rules the simulation repeats the recording; exceptions are in bench/results/what-if-identity.md.

Every sixth recording is simulated here; the page covers all recordings and must agree with each result.
"""

from __future__ import annotations

import re

import pytest

from tests.conformance.what_if_identity import BARS, PAGE, RECORDINGS, Identity, folders, measured

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]


@pytest.fixture(scope="module")
def found() -> list[Identity]:
    return measured(folders()[::6])


@pytest.fixture(scope="module")
def listed() -> set[str]:
    """Return the recordings that miss the bar according to the page."""
    table = PAGE.read_text(encoding="utf-8").partition("## Recordings that miss")[2]
    return set(re.findall(r"^\| `([^`]+/[^`]+)` \|", table, re.MULTILINE))


def test_every_miss_is_listed_and_everything_listed_misses(found: list[Identity], listed: set[str]) -> None:
    assert {identity.recording for identity in found if not identity.passes} == listed & {
        identity.recording for identity in found
    }


def test_the_page_is_of_these_recordings(listed: set[str]) -> None:
    names = {f"{folder.parent.name}/{folder.name}" for folder in folders(large=True)}
    assert listed <= names
    assert len(listed) < len(names) / 8


def test_the_page_counts_what_it_lists(listed: set[str]) -> None:
    """Checks all recordings, because the misses are few scripts, unevenly spread over a sample."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| \d+ \| \d+ \| (\d+) \|", text, re.MULTILINE)
    counts = {kind: (int(count), int(reached)) for kind, count, reached in rows}
    assert set(counts) == set(BARS)
    assert sum(count - reached for count, reached in counts.values()) == len(listed)
    for kind, least in (("designed", 0.94), ("quiet", 0.83), ("racing", 0.87)):
        assert counts[kind][1] >= least * counts[kind][0], kind


def test_of_all_positions_few_go_to_another_consumer(found: list[Identity]) -> None:
    for kind, least in (("designed", 0.99), ("quiet", 0.99), ("racing", 0.95)):
        some = [identity for identity in found if identity.kind == kind]
        entries = sum(identity.entries for identity in some)
        assert sum(identity.same for identity in some) >= least * entries, kind
