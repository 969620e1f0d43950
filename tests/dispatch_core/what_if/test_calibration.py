"""Probabilities of predictions: what makes them surer, and that the shipped coefficients are of the recordings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_core.what_if import calibration
from dispatch_core.what_if.calibration import Evidence, coefficients, measured_releases, share, violates

CLEAN = Evidence(simulations=5, violating=0)


def test_more_simulations_with_violations_are_surer() -> None:
    said = [violates(replace(CLEAN, violating=count)) for count in range(6)]
    assert said == sorted(said)
    assert said[0] < 0.2 < 0.8 < said[-1]


def test_one_simulation_is_less_sure_than_five() -> None:
    alone = replace(CLEAN, simulations=1)
    assert violates(CLEAN) < violates(alone) < 0.5


def test_a_race_that_some_simulations_lose_is_as_likely_as_they_say() -> None:
    for count in (1, 2, 3, 4):
        assert violates(replace(CLEAN, violating=count)) == pytest.approx(count / 5, abs=0.1)


@pytest.mark.parametrize(("violating", "said"), [(0, 0.01), (2, 0.5), (4, 0.99)])
def test_nothing_is_surer_than_can_be_measured(violating: int, said: float) -> None:
    assert share(Evidence(4, violating), {"violating": 1e-9, "clean": 1e-9}) == pytest.approx(said)


def test_both_kinds_of_simulations_are_counted_in_advance() -> None:
    assert set(coefficients()) == {"violating", "clean"}
    assert calibration.COEFFICIENTS == "calibration.json"
    assert "4.2.4" in measured_releases()
