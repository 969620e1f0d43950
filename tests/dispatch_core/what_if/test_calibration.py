"""Probabilities of predictions: what makes them surer, and that the shipped coefficients are of the recordings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dispatch_core.what_if import calibration
from dispatch_core.what_if.calibration import Evidence, coefficients, logistic, measured_releases, violates

CLEAN = Evidence(simulations=5, violating=0, control_same=1.0)


def test_more_simulations_with_violations_are_surer() -> None:
    said = [violates(replace(CLEAN, violating=count)) for count in range(6)]
    assert said == sorted(said)
    assert said[0] < 0.2 < 0.8 < said[-1]


def test_one_simulation_is_less_sure_than_five() -> None:
    alone = replace(CLEAN, simulations=1)
    assert violates(CLEAN) < violates(alone) < 0.5


def test_a_control_that_goes_elsewhere_makes_less_sure() -> None:
    good, bad = (violates(replace(CLEAN, violating=5, control_same=same)) for same in (1.0, 0.1))
    assert 0.5 < bad < good


@pytest.mark.parametrize(("odds", "said"), [(0.0, 0.5), (1e9, 0.99), (-1e9, 0.01), (math.log(3), 0.75)])
def test_nothing_is_surer_than_can_be_measured(odds: float, said: float) -> None:
    assert logistic(odds) == pytest.approx(said)


def test_every_figure_has_a_coefficient() -> None:
    assert set(coefficients()) == set(CLEAN.figures())
    assert calibration.COEFFICIENTS == "calibration.json"
    assert "4.2.4" in measured_releases()
