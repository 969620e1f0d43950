"""Faults put into recordings of real brokers are found, with the right kind, position and key, and nothing else is."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.mutation.judging import Finding, findings, judge
from tests.mutation.lives import Life
from tests.mutation.more_mutators import MORE
from tests.mutation.mutators import MUTATORS, mutations

SAMPLES = Path(__file__).resolve().parents[1] / "data"
EACH = 3


@functools.cache
def lives() -> tuple[Life, ...]:
    """The Key_Shared samples as users could have recorded them."""
    folders = sorted(file.parent for file in SAMPLES.glob("*/*/*/trace.jsonl.gz"))
    found = [Life.read(folder) for folder in folders]
    return tuple(life.user_level() for life in found if life.header["subscription_type"] == "Key_Shared")


@functools.cache
def told_before(name: str, folder: Path) -> tuple[Finding, ...]:
    life = next(life for life in lives() if life.name == name)
    return tuple(findings(life, folder / "before" / name))


@pytest.mark.parametrize("kind", [*MUTATORS, *MORE])
def test_a_fault_is_found_and_nothing_else(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutations"
    faults = list(mutations(kind, lives(), EACH, seed=7, mutator=(MUTATORS | MORE)[kind]))
    assert len(faults) == EACH
    assert len({fault.life.name for fault in faults}) == EACH
    for number, fault in enumerate(faults):
        before = told_before(fault.life.name, folder)
        place = folder / f"{kind}-{number}" / fault.life.name
        found, false_alarms = judge(fault, list(before), place)
        assert found, (kind, fault.life.name, fault.key, fault.position, fault.consumer)
        assert false_alarms == [], (kind, fault.life.name, fault.key, fault.position)


def test_needless_waiting_in_a_log_with_missing_lines_is_uncertain(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutations"
    seen = 0
    for life in lives():
        before = told_before(life.name, folder)
        if not any(row["kind"] == "unnecessary_blocking" and not row["uncertain"] for row in before):
            continue
        cut = life.copied().numbered()
        del cut.events[len(cut.events) // 2]
        told = findings(cut, folder / "cut" / life.name)
        needless = [row["uncertain"] for row in told if row["kind"] == "unnecessary_blocking"]
        assert all(needless)
        seen += bool(needless)
    assert seen
