"""The pre-filter of a replay read frees recently joined consumers as it goes from one owner to the next.

In ``4.2.4/soak-80210-classic-range-quiet`` (tests/data/races) consumers 6 and 9 are held to position 22:54, that of the
first recently joined consumer, when the attempt of line 580 begins. Consumer 1 acknowledges all before it while the attempt
runs. The pre-filter looks at consumer 6 before that and leaves 22:102 out, and at consumer 9 behind it: 22:86 and 22:112 are
read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.multiple_consumers import Read
from dispatch_core.broker.selectors import factory
from tests.dispatch_core.broker.test_key_shared_classic import profile_of
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-80210-classic-range-quiet"
)
FREES, PRUNE, READ = 609, 641, 642
OF_CONSUMER_1: Final = [f"22:{entry}" for entry in range(68, 74)]


def found(trace: t.Trace, where: Path) -> set[int]:
    return {finding.seq for finding in t.divergent(RECORDING, trace, where)}


def test_the_ack_that_frees_names_the_race() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    assert [finding.racing_seq for finding in tally.findings if finding.seq == READ] == [FREES]


@pytest.mark.parametrize(
    "others",
    [["22:86", "22:102"], ["22:102", "22:112"], ["22:86"], ["22:112"]],
    ids=["half of each", "the later half", "the first of two", "the second of two"],
)
def test_an_owner_gets_all_or_nothing(others: list[str], tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, READ)["positions"] = [*OF_CONSUMER_1, *others]
    assert READ in found(trace, tmp_path)


def test_without_a_prune_nobody_is_freed(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    trace.remove(t.line_of(trace, PRUNE))
    assert READ in found(trace, tmp_path)


def test_acks_behind_the_read_free_nobody(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    for _ in range(3):  # the ack, its removal and the line of mark-delete
        t.moved(trace, FREES, READ + 1)
    assert READ - 3 in found(trace, tmp_path)


# --- the core --------------------------------------------------------------------------------------------------------


def waiting(version: str = "4.2.4") -> tuple[ClassicKeySharedDispatcher, int, int]:
    """Make a dispatcher with entries of consumers 2 and 3 in the replay set, held to position 4: entries 0 to 3 are pending.

    Returns it with the first entry of either.
    """
    profile = profile_of(version, subscriptionKeySharedUseConsistentHashing=False)
    selector = factory.build(profile)
    for consumer in (1, 2, 3):
        selector.add(consumer, f"c{consumer}")
    of = {selector.select(value): value for value in range(1, 1 << 16, 97)}
    hashes = np.array([of[1]] * 4 + [of[2], of[3]] * 3, np.int64)
    core = ClassicKeySharedDispatcher(profile, hashes, np.ones(10, np.int64), 3)

    def read(entries: list[int]) -> None:
        assert core.attempt_read().kind == "Normal"
        core.read_done("Normal", entries)
        core.finish_round(core.round("Normal", entries), has_more=True)

    core.join(1, "c1")
    core.join_selector(1)
    core.flow(1, 4)
    core.flow_applied(1, 4)
    read([0, 1, 2, 3])
    core.flow(1, 1)
    core.flow_applied(1, 1)
    core.join(2, "c2")
    core.join_selector(2)
    core.join(3, "c3")
    read([4, 5, 6, 7, 8, 9])
    core.join_selector(3)
    for consumer in (2, 3):
        core.flow(consumer, 9)
        core.flow_applied(consumer, 9)
    return core, 4, 5


def attempted(pauses: list[int], ack_before: int) -> Read:
    """Attempt a read, in which all before position 4 is acknowledged before a step."""
    core, _, _ = waiting()
    steps: list[int] = []

    def between(step: int) -> None:
        steps.append(step)
        if step == ack_before:
            for entry in range(4):
                core.ack(entry)

    read = core.attempt_read(between, pauses=pauses)
    assert steps == list(range(3 + len(pauses)))
    return read


@pytest.mark.parametrize("pauses", [[], [4], [5], [4, 5], [5, 4]])
def test_a_pre_filter_in_parts_is_that_of_one_piece(pauses: list[int]) -> None:
    assert attempted(pauses, ack_before=0).entries == (4, 5, 6, 7, 8, 9)
    assert attempted(pauses, ack_before=2 + len(pauses)).kind != "Replay"


def test_owners_that_are_looked_at_last_are_free() -> None:
    assert attempted([4], ack_before=2).entries == (4, 6, 8)
    assert attempted([5, 4], ack_before=3).entries == (4, 6, 8)
    assert attempted([5], ack_before=2).entries == (5, 7, 9)


def test_each_owner_has_a_first_entry_that_is_held_back() -> None:
    core, second, third = waiting()
    assert core.first_held_back(range(4, 10)) == [second, third]
    for entry in range(4):
        core.ack(entry)
    assert core.first_held_back(range(4, 10)) == []
