"""The audit finds each fault put into a recording, with its kind, position and key, and reports no other new finding."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.mutation.judging import Finding, findings, judge
from tests.mutation.mutators import MUTATORS, mutations
from tests.mutation.recording import Recording
from tests.mutation.variants import VARIANTS

SAMPLES = Path(__file__).resolve().parents[1] / "data"
EACH = 3


@functools.cache
def recordings() -> tuple[Recording, ...]:
    """Read the Key_Shared samples, without their traces. Those of cursor operations and races have tests of their own."""
    homes = ("recordings", "verify")
    folders = sorted(file.parent for home in homes for file in SAMPLES.glob(f"{home}/*/*/trace.jsonl.gz"))
    found = [Recording.read(folder) for folder in folders]
    return tuple(
        recording.without_trace()
        for recording in found
        if recording.header["subscription_type"] == "Key_Shared"
    )


@functools.cache
def findings_before(name: str, folder: Path) -> tuple[Finding, ...]:
    recording = next(recording for recording in recordings() if recording.name == name)
    return tuple(findings(recording, folder / "before" / name))


@pytest.mark.parametrize("kind", [*MUTATORS, *VARIANTS])
def test_a_fault_is_found_and_nothing_else(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutations"
    faults = list(mutations(kind, recordings(), EACH, seed=7, mutator=(MUTATORS | VARIANTS)[kind]))
    assert len(faults) == EACH
    assert len({fault.recording.name for fault in faults}) == EACH
    for number, fault in enumerate(faults):
        before = findings_before(fault.recording.name, folder)
        place = folder / f"{kind}-{number}" / fault.recording.name
        found, false_alarms = judge(fault, list(before), place)
        assert found, (kind, fault.recording.name, fault.key, fault.position, fault.consumer)
        assert false_alarms == [], (kind, fault.recording.name, fault.key, fault.position)


def test_needless_waiting_in_a_log_with_missing_lines_is_uncertain(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutations"
    seen = 0
    for recording in recordings():
        before = findings_before(recording.name, folder)
        if not any(row["kind"] == "unnecessary_blocking" and not row["uncertain"] for row in before):
            continue
        cut = recording.copied().numbered()
        del cut.events[len(cut.events) // 2]
        after = findings(cut, folder / "cut" / recording.name)
        needless = [row["uncertain"] for row in after if row["kind"] == "unnecessary_blocking"]
        assert all(needless)
        seen += bool(needless)
    assert seen
