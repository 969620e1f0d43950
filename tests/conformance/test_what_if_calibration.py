"""The fit of how sure predictions are: it finds what made the trials, and no script judges itself."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from dispatch_core.what_if.calibration import Evidence, violates
from tests.conformance.what_if_calibration import Trial, bins, brier, cross_validated, fitted, plot, table


def trials(count: int = 2000, slope: float = 1.0) -> list[Trial]:
    """Make trials of ten scripts, in which violations follow the share of simulations that have some."""
    random = np.random.default_rng(1)
    found = []
    for at in range(count):
        violating = int(random.integers(0, 6))
        odds = slope * np.log((violating + 0.5) / (5.5 - violating))
        evidence = Evidence(5, violating, 1.0)
        found.append(Trial(f"script-{at % 10}", evidence, bool(random.random() < 1 / (1 + np.exp(-odds)))))
    return found


@pytest.mark.parametrize("slope", [0.5, 2.0])
def test_a_fit_finds_what_made_the_trials(slope: float) -> None:
    found = fitted(trials(slope=slope))
    assert found["log_odds_of_simulations"] == pytest.approx(slope, rel=0.25)
    assert found["one"] == pytest.approx(0.0, abs=0.4)


def test_what_is_said_comes_true() -> None:
    found = cross_validated(trials())
    assert len(found) == 2000
    assert max(part.apart for part in bins(found) if part.trials >= 200) < 0.08
    share = np.mean([known.trial.came_true for known in found])
    assert brier(found) < share * (1 - share) - 0.02


def test_a_script_is_judged_by_the_others_only() -> None:
    """A script whose trials all turn out the other way round does not change what is said of it."""
    usual = trials()
    odd = [
        Trial(
            trial.group, trial.evidence, not trial.came_true if trial.group == "script-3" else trial.came_true
        )
        for trial in usual
    ]
    said, said_of_odd = (
        [known.probability for known in cross_validated(some) if known.trial.group == "script-3"]
        for some in (usual, odd)
    )
    assert said == said_of_odd


def test_a_single_script_is_judged_by_the_shipped_coefficients() -> None:
    some = [trial for trial in trials() if trial.group == "script-3"]
    assert [known.probability for known in cross_validated(some)] == [
        violates(trial.evidence) for trial in some
    ]


def test_table_and_picture_show_every_tenth() -> None:
    found = cross_validated(trials())
    assert table(found).count("\n") == 1 + len(bins(found))
    root = ElementTree.fromstring(plot(found))
    assert len([part for part in root.iter() if part.tag.endswith("circle")]) == len(bins(found))
