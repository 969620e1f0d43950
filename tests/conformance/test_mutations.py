"""Ten faults of every kind in recordings beside the repository: every one is found, and nothing that does not follow."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.mutation.faults import Mutation
from tests.mutation.judging import Finding, findings, judge
from tests.mutation.lives import Life
from tests.mutation.mutators import MUTATORS, mutations

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]
EACH = 12
#: Kinds whose fault one line of a trace holds, without making the other lines of the trace impossible.
IN_A_TRACE = (
    "out_of_order",
    "double_outstanding",
    "divergence",
    "log_gap",
    "clock_step",
    "unknown_consumer",
)
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
def recordings() -> tuple[Life, ...]:
    """The named ones, and quiet random ones up to forty."""
    quiet = sorted(
        f"{folder.parent.name}/{folder.name}"
        for folder in RECORDINGS.glob("*/random-*-quiet")
        if folder.is_dir()
    )
    names = [name for name in dict.fromkeys([*NAMED, *quiet]) if (RECORDINGS / name).is_dir()]
    found = [Life.read(RECORDINGS / name) for name in names]
    ours = [life for life in found if life.header["subscription_type"] == "Key_Shared"][:40]
    assert len(ours) >= 30
    return tuple(ours)


@functools.cache
def lives(level: str) -> tuple[Life, ...]:
    return recordings() if level == "T" else tuple(life.user_level() for life in recordings())


@functools.cache
def told_before(level: str, name: str, folder: Path) -> tuple[Finding, ...]:
    life = next(life for life in lives(level) if life.name == name)
    return tuple(findings(life, folder / f"before-{level}" / name))


@pytest.mark.parametrize(
    ("kind", "level"), [*((kind, "E") for kind in MUTATORS), *((kind, "T") for kind in IN_A_TRACE)]
)
def test_every_fault_is_found_and_nothing_else(
    kind: str, level: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutations"
    missed: list[tuple[str, str | None, str | None]] = []
    false_alarms: list[tuple[str, Finding]] = []
    faults: list[Mutation] = list(mutations(kind, lives(level), EACH, seed=1))
    for number, fault in enumerate(faults):
        before = told_before(level, fault.life.name, folder)
        place = folder / f"{kind}-{level}-{number}" / fault.life.name
        found, alarms = judge(fault, list(before), place)
        if not found:
            missed.append((fault.life.name, fault.key, fault.position))
        false_alarms += [(fault.life.name, alarm) for alarm in alarms]
    assert len(faults) >= 10
    assert missed == []
    assert false_alarms == []
