"""The audit finds faults of every kind in the recordings beside the repository, and reports no other new finding."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.mutation.judging import Finding, findings, judge
from tests.mutation.mutators import MUTATORS, mutations
from tests.mutation.recording import Recording
from tests.mutation.variants import VARIANTS
from tests.sample import WHOLE

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]
EACH = 12 if WHOLE else 2
EACH_IN_A_TRACE = 10
#: Comparing a trace decision by decision takes long: fewer of them unless the whole set is asked for.
EACH_OF_SOME = 2
#: Not for Failover and Exclusive. Too few recordings have a second connection that could have got the entries instead;
#: and without a trace permits are not compared, because one read may be larger than the permits that are left.
KEY_SHARED_ONLY = ("stuck_consumer", "sent_unasked")
#: Recordings of all releases, orders and selectors; quiet ones, in which no line races with another, and busy ones.
NAMED = (
    *(
        f"{release}/designed-{script}-{selector}"
        for release in ("4.2.4", "4.0.0")
        for script in (
            "drain-one-by-one",
            "negative-acks",
            "slow-owner-newcomer",
            "all-leave",
            "rolling-restart",
        )
        for selector in ("ch", "range")
    ),
    *(f"4.2.4/designed-{script}-classic-ch" for script in ("drain-one-by-one", "negative-acks", "all-leave")),
    *(f"4.0.0/designed-{script}-classic-range" for script in ("drain-one-by-one", "negative-acks")),
    *(
        f"4.0.0-preview.1/designed-{script}-ch"
        for script in ("slow-owner-newcomer", "negative-acks", "all-leave")
    ),
    "4.2.4/designed-sticky-in-order",
    *(f"4.2.4/random-{number}" for number in ("0000-range-quiet", "0008-classic-ch-quiet")),
)


@functools.cache
def recordings() -> tuple[Recording, ...]:
    """Read the named recordings, and quiet random ones up to forty."""
    quiet = sorted(
        f"{folder.parent.name}/{folder.name}"
        for folder in RECORDINGS.glob("*/random-*-quiet")
        if folder.is_dir()
    )
    names = [name for name in dict.fromkeys([*NAMED, *quiet]) if (RECORDINGS / name).is_dir()]
    found = [Recording.read(RECORDINGS / name) for name in names]
    ours = [recording for recording in found if recording.header["subscription_type"] == "Key_Shared"][:40]
    assert len(ours) >= 30
    return tuple(ours)


@functools.cache
def single_active_recordings() -> tuple[Recording, ...]:
    """Read the recordings of Failover and Exclusive subscriptions."""
    folders = sorted(file.parent for file in RECORDINGS.glob("*/*failover*/trace.jsonl.gz"))
    assert len(folders) >= 30
    return tuple(Recording.read(folder) for folder in folders)


@functools.cache
def recordings_of(level: str, subscription: str) -> tuple[Recording, ...]:
    found = recordings() if subscription == "Key_Shared" else single_active_recordings()
    return found if level == "T" else tuple(recording.without_trace() for recording in found)


@functools.cache
def findings_before(level: str, subscription: str, name: str, folder: Path) -> tuple[Finding, ...]:
    recording = next(recording for recording in recordings_of(level, subscription) if recording.name == name)
    return tuple(findings(recording, folder / f"before-{level}" / name))


CASES = [
    (kind, level, subscription)
    for kind in (*MUTATORS, *VARIANTS)
    for level in ("E", "T")
    for subscription in ("Key_Shared", "Failover")
    if subscription == "Key_Shared" or kind not in KEY_SHARED_ONLY
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("kind", "level", "subscription"), CASES)
def test_every_fault_is_found_and_nothing_else(
    kind: str, level: str, subscription: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutations"
    missed: list[tuple[str, str | None, str | None]] = []
    false_alarms: list[tuple[str, Finding]] = []
    usual = level == "E" and subscription == "Key_Shared" and kind in MUTATORS
    wanted = EACH if usual else EACH_IN_A_TRACE if WHOLE else EACH_OF_SOME
    ours, mutator = recordings_of(level, subscription), (MUTATORS | VARIANTS)[kind]
    judged = 0
    for number, fault in enumerate(mutations(kind, ours, 2 * wanted, seed=1, mutator=mutator)):
        before = list(findings_before(level, subscription, fault.recording.name, folder))
        if judged == wanted:
            break
        if fault.position is not None and any(map(fault.is_found_by, before)):
            continue  # the recording has it already
        judged += 1
        found, alarms = judge(fault, before, folder / f"{kind}-{level}-{number}" / fault.recording.name)
        if not found:
            missed.append((fault.recording.name, fault.key, fault.position))
        false_alarms += [(fault.recording.name, alarm) for alarm in alarms]
    assert judged >= min(wanted, 10)
    assert missed == []
    assert false_alarms == []
