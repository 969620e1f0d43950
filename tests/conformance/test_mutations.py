"""Ten faults of every kind in recordings beside the repository: every one is found, and nothing that does not follow."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.conformance.sample import WHOLE
from tests.mutation.judging import Finding, findings, judge
from tests.mutation.lives import Life
from tests.mutation.more_mutators import MORE
from tests.mutation.mutators import MUTATORS, mutations

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]
EACH = 12
EACH_IN_A_TRACE = 10
#: A trace is compared decision by decision, which takes long: where not all is looked at, fewer of them.
EACH_OF_SOME = 3
#: Where one consumer gets everything, too few recordings leave another one connected that could have got it instead; and
#: without a trace its permits are not compared: one read may be larger than what is left of them.
NOT_OF_ONE_CONSUMER = ("stuck_consumer", "sent_unasked")
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
def of_one_consumer() -> tuple[Life, ...]:
    """Failover and Exclusive."""
    folders = sorted(file.parent for file in RECORDINGS.glob("*/*failover*/trace.jsonl.gz"))
    assert len(folders) >= 30
    return tuple(Life.read(folder) for folder in folders)


@functools.cache
def lives(level: str, subscription: str) -> tuple[Life, ...]:
    found = recordings() if subscription == "Key_Shared" else of_one_consumer()
    return found if level == "T" else tuple(life.user_level() for life in found)


@functools.cache
def told_before(level: str, subscription: str, name: str, folder: Path) -> tuple[Finding, ...]:
    life = next(life for life in lives(level, subscription) if life.name == name)
    return tuple(findings(life, folder / f"before-{level}" / name))


CASES = [
    (kind, level, subscription)
    for kind in (*MUTATORS, *MORE)
    for level in ("E", "T")
    for subscription in ("Key_Shared", "Failover")
    if subscription == "Key_Shared" or kind not in NOT_OF_ONE_CONSUMER
]


@pytest.mark.parametrize(("kind", "level", "subscription"), CASES)
def test_every_fault_is_found_and_nothing_else(
    kind: str, level: str, subscription: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutations"
    missed: list[tuple[str, str | None, str | None]] = []
    false_alarms: list[tuple[str, Finding]] = []
    usual = level == "E" and subscription == "Key_Shared" and kind in MUTATORS
    wanted = EACH if usual else EACH_IN_A_TRACE if WHOLE else EACH_OF_SOME
    ours, mutator = lives(level, subscription), (MUTATORS | MORE)[kind]
    judged = 0
    for number, fault in enumerate(mutations(kind, ours, 2 * wanted, seed=1, mutator=mutator)):
        before = list(told_before(level, subscription, fault.life.name, folder))
        if judged == wanted:
            break
        if fault.position is not None and any(map(fault.is_found_by, before)):
            continue  # the recording has it already
        judged += 1
        found, alarms = judge(fault, before, folder / f"{kind}-{level}-{number}" / fault.life.name)
        if not found:
            missed.append((fault.life.name, fault.key, fault.position))
        false_alarms += [(fault.life.name, alarm) for alarm in alarms]
    assert judged >= min(wanted, 10)
    assert missed == []
    assert false_alarms == []
