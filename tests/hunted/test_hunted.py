"""Hunt alone kills mutants of the newest core; a sample of ``make mutants``."""

from __future__ import annotations

import pytest

from tests.hunted.__main__ import hunted
from tests.hunted.campaigns import NONE
from tests.hunted.mutants import MUTANTS


def test_there_are_thirty_and_each_is_a_rule_of_its_own() -> None:
    assert len(MUTANTS) == 30
    assert len({rule.switches for rule in MUTANTS.values()}) == 30


@pytest.mark.parametrize(
    ("name", "promise"),
    [("draining_off", "split_key"), ("rewinds_too_far", "stuck"), ("leaving_permits_stay", "leak")],
)
def test_a_mutant_is_killed(name: str, promise: str) -> None:
    result = hunted(name, interpreted_s=60.0, compiled_s=0.0)
    assert result.killed
    assert result.answer.find.startswith(promise)
    assert len(result.answer.steps) <= 10


def test_the_right_core_lives() -> None:
    result = hunted(NONE, interpreted_s=3.0, compiled_s=0.0)
    assert not result.killed
    assert result.schedules > 500
