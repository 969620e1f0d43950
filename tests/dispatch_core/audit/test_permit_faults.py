"""Permits that are off from some line on are found at that line, for every type of subscription, and nothing else is.

The ledger is asked itself for most faults: it takes seconds instead of minutes. Some go through the command.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.permits.choose_ledger import choose_ledger
from dispatch_core.audit.permits.findings import Moment, permit_findings
from dispatch_core.recording.log_profile import profile_of, subscription_type
from dispatch_core.replay.result_rows import names_of
from tests.dispatch_core.audit.small_logs import read
from tests.mutation.judging import findings
from tests.mutation.permit_faults import (
    PermitFault,
    lost_by_churn,
    lost_by_consumer,
    lost_by_total,
    places_for_consumer,
    places_for_total,
)
from tests.mutation.recording import Recording

SAMPLES = Path(__file__).resolve().parents[2] / "data"
#: Type and rule → recordings of real brokers.
RECORDINGS = {
    "Key_Shared": ("verify/4.2.4/random-0000-range-quiet", "recordings/4.2.4/designed-rolling-restart-ch"),
    "Key_Shared, classic": (
        "verify/4.2.4/random-0008-classic-ch-quiet",
        "recordings/4.2.4/designed-rolling-restart-classic-ch",
    ),
    "Key_Shared, preview": ("verify/4.0.0-preview.1/random-0024-range-quiet",),
    "Shared": ("operations/4.2.4/shared-0005-racing", "operations/4.0.0/shared-0014-quiet"),
    "Shared, classic": ("operations/4.2.4/shared-0012-classic-quiet",),
    "Failover": (
        "races/4.2.4/failover-batches-0001-modulo-racing",
        "recordings/4.2.4/designed-failover-modulo-p1",
    ),
    "Exclusive": ("operations/4.2.4/legal-0004-compacted-exclusive",),
}
WITH_TOTAL = [name for name in RECORDINGS if name.split(",")[0] in ("Shared", "Key_Shared")]
#: Lines that must be left to show the fault: as few as prove it, and some in which commands are under way.
LEFT = 8
EACH = 6


@functools.cache
def recording(name: str) -> Recording:
    return Recording.read(SAMPLES / name)


def found_by_the_ledger(recording: Recording, folder: Path) -> list[dict[str, Any]]:
    """Return the findings about permits as objects, of a recording that is written and read again."""
    log = read(recording.write(folder))
    single_active = subscription_type(log) in ("Failover", "Exclusive")
    ledger = choose_ledger(log, profile_of(log), single_active=single_active, is_trace=True, is_first=True)
    assert ledger is not None
    ledger.take(log.events)
    last_us = log.events["t_us"][-1].as_py()
    made: list[Finding] = permit_findings(ledger.off_for_good(), names_of(log.events), Moment(last_us, None))
    return [finding._asdict() for finding in made]


def check(fault: PermitFault, folder: Path) -> None:
    found = found_by_the_ledger(fault.recording, folder)
    hits = [finding for finding in found if fault.is_found_by(finding)]
    assert hits, (fault.recording.name, fault.kind, fault.consumer, fault.seq, fault.by, found)
    assert hits[0]["seqs"][0] == fault.seq or hits[0]["reason"] is not None
    many = f"{abs(fault.by)} permit{'' if abs(fault.by) == 1 else 's'}"
    lost = ("below", "too few")[fault.consumer is not None], ("above", "too many")[fault.consumer is not None]
    assert f"{many} {lost[fault.by > 0]}" in hits[0]["explanation"]
    others = [finding for finding in found if finding not in hits and not fault.explains(finding)]
    assert others == []


@pytest.mark.parametrize("name", [name for names in RECORDINGS.values() for name in names])
def test_the_recordings_themselves_have_no_finding(name: str, tmp_path: Path) -> None:
    assert found_by_the_ledger(recording(name), tmp_path / "a" / "b") == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("kind", RECORDINGS)
def test_permits_that_a_consumer_loses_or_gets_are_found(kind: str, by: int, tmp_path: Path) -> None:
    rng = random.Random(f"{kind} {by}")
    made = 0
    for name in RECORDINGS[kind]:
        places = places_for_consumer(recording(name), rng, LEFT)
        for number, (consumer, first) in zip(range(EACH), places, strict=False):
            fault = lost_by_consumer(recording(name), consumer, first, by)
            check(fault, tmp_path / name.replace("/", "-") / str(number))
            made += 1
    assert made == EACH * len(RECORDINGS[kind])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("kind", WITH_TOTAL)
def test_a_total_that_is_off_is_found(kind: str, by: int, tmp_path: Path) -> None:
    rng = random.Random(f"{kind} {by}")
    made = 0
    for name in RECORDINGS[kind]:
        for number, first in zip(range(EACH), places_for_total(recording(name), rng, LEFT), strict=False):
            fault = lost_by_total(recording(name), first, by)
            check(fault, tmp_path / name.replace("/", "-") / str(number))
            made += 1
    assert made == EACH * len(RECORDINGS[kind])


@pytest.mark.parametrize(
    "name", ["operations/4.2.4/shared-0005-racing", "recordings/4.2.4/designed-rolling-restart-ch"]
)
def test_a_total_that_every_leave_lowers_is_told_by_name(name: str, tmp_path: Path) -> None:
    fault, removals = lost_by_churn(recording(name), each=10)
    assert len(removals) > 1
    (finding,) = found_by_the_ledger(fault.recording, tmp_path / "a" / "b")
    assert fault.is_found_by(finding)
    assert finding["reason"] == "consumer_removed"
    assert finding["seqs"].index(removals[0]) <= 1  # the line at which the removal begins may stand before
    left = next(line["consumer"] for line in fault.recording.events if line["seq"] == removals[0])
    assert finding["consumers"] == [left]
    assert f" {-fault.by:,} permits below the sum" in finding["explanation"]
    assert "#26416" in finding["explanation"]
    grew = f"it changed {len(removals)} times, {len(removals)} of them when a consumer left: -10 from seq"
    assert grew in finding["explanation"]


@pytest.mark.parametrize(
    "name",
    [
        "verify/4.2.4/random-0008-classic-ch-quiet",
        "operations/4.0.0/shared-0014-quiet",
        "recordings/4.2.4/designed-failover-modulo-p1",
    ],
)
def test_the_command_reports_a_lost_permit(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    consumer, first = next(iter(places_for_consumer(recording(name), rng, LEFT)))
    fault = lost_by_consumer(recording(name), consumer, first, -1)
    before = {finding["kind"] for finding in findings(recording(name), tmp_path / "before" / "log")}
    now = findings(fault.recording, tmp_path / "now" / "log")
    assert any(fault.is_found_by(finding) for finding in now)
    assert {finding["kind"] for finding in now} - before <= {"permit_leak", "permit_drift", "divergence"}
