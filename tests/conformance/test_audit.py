"""The audit over all recordings beside the repository: the counts of the contracts, and a second opinion on each.

What the recordings say under the definitions (in-order AUTO_SPLIT, without ``large-300000-*``) is stated here as
numbers: a difference is a finding about the audit or about the recordings.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch_core.recording.log import DispatcherLog
from tests.dispatch_core.audit.small_logs import audited, kinds, read, user_level
from tests.dispatch_core.audit.test_second_opinion import findings, second_opinion

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]
VERSIONS = ("4.2.4", "4.0.0", "4.0.0-preview.1")
#: The checker looks at every earlier sending of a key: minutes on these.
TOO_LARGE = ("large-300000-ch", "large-300000-classic-ch")


@functools.cache
def folders() -> tuple[Path, ...]:
    found = tuple(
        folder
        for version in VERSIONS
        for folder in sorted((RECORDINGS / version).iterdir())
        if folder.is_dir()
    )
    assert len(found) > 300
    return found


def in_order_auto_split(log: DispatcherLog) -> bool:
    modes = set(
        zip(
            log.events["key_shared_mode"].drop_null().to_pylist(),
            log.events["key_shared_allow_out_of_order"].drop_null().to_pylist(),
            strict=True,
        )
    )
    return log.header["subscription_type"] == "Key_Shared" and modes == {("AUTO_SPLIT", False)}


def rule(log: DispatcherLog) -> tuple[str, str]:
    config = log.header["config"]
    classic = config.get("subscriptionKeySharedUseClassicPersistentImplementation", False)
    return log.header["broker_version"], "classic" if classic else "own"


def names(version: str) -> Iterator[Path]:
    return (folder for folder in folders() if folder.parent.name == version)


@pytest.mark.parametrize("version", VERSIONS)
def test_recordings_say_what_the_contracts_state(version: str) -> None:
    recordings: Counter[str] = Counter()
    having: Counter[tuple[str, str]] = Counter()
    disagreements, refuted = [], []
    named: dict[tuple[str, str], list[str]] = {}
    for folder in names(version):
        if folder.name in TOO_LARGE:
            continue
        log = read(folder)
        audit = audited(log)
        if findings(audit) != second_opinion(folder):
            disagreements.append(folder.name)
        if kinds(audited(user_level(log))) != kinds(audit):
            refuted.append(folder.name)
        if in_order_auto_split(log):
            which = rule(log)[1]
            recordings[which] += 1
            for kind in kinds(audit):
                having[which, kind] += 1
                named.setdefault((which, kind), []).append(folder.name)
    assert disagreements == []
    assert refuted == [], "the user-level log says something that the trace does not"
    order = {
        which: (recordings[which], having[which, "out_of_order"], having[which, "split_key"])
        for which in recordings
    }
    assert (
        order
        == {
            "4.2.4": {"own": (52, 0, 0), "classic": (56, 14, 18)},
            "4.0.0": {"own": (43, 2, 0), "classic": (45, 11, 14)},
            "4.0.0-preview.1": {"own": (63, 3, 10)},
        }[version]
    )
    if version == "4.0.0":
        assert named["own", "out_of_order"] == [
            "designed-same-name-batches-ch",
            "designed-same-name-batches-range",
        ]


@pytest.mark.parametrize("name", TOO_LARGE)
def test_the_large_recordings(name: str) -> None:
    """300,000 entries with consumers scaling up and down: draining hashes keep order, the 3.x rule does not."""
    audit = audited(read(RECORDINGS / "4.2.4" / name))
    assert audit.deliveries.num_rows >= 300_000
    found = set(kinds(audit))
    assert found <= (
        {"redelivered", "overtaken_redelivery"}
        | ({"out_of_order", "split_key"} if "classic" in name else set())
    )
