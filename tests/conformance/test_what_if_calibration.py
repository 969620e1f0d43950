"""The fit of how sure predictions are: it finds what made the trials, and no script judges itself."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from dispatch_core.what_if.calibration import Evidence, violates
from tests.conformance.what_if_accuracy import Repeats
from tests.conformance.what_if_calibration import Trial, bins, brier, cross_validated, fitted, plot, table


def trials(count: int = 2000, violating: float = 0.5, clean: float = 0.5) -> list[Trial]:
    """Make trials of ten scripts: each load has a share of violating runs of its own, five simulations and one recording."""
    random = np.random.default_rng(1)
    found = []
    for at in range(count):
        share = random.beta(violating, clean)
        evidence = Evidence(5, int(random.binomial(5, share)))
        found.append(Trial(f"script-{at % 10}", evidence, bool(random.random() < share)))
    return found


@pytest.mark.parametrize(("violating", "clean"), [(0.5, 0.5), (0.1, 0.9), (2.0, 1.0)])
def test_a_fit_finds_what_made_the_trials(violating: float, clean: float) -> None:
    found = fitted(trials(20_000, violating, clean))
    assert found["violating"] == pytest.approx(violating, rel=0.25)
    assert found["clean"] == pytest.approx(clean, rel=0.25)


def test_a_fit_to_trials_that_all_are_as_simulated_leaves_some_doubt() -> None:
    found = fitted([Trial("a", Evidence(5, 5), True), Trial("a", Evidence(5, 0), False)] * 100)
    assert 0 < found["violating"] < 0.1
    assert 0 < found["clean"] < 0.1


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


def test_the_page_of_repeats_says_which_violations_are_chance_events() -> None:
    text = (
        "| | pairs | wait p50 near | wait p99 near | violating | found | true alarms |\n"
        "|---|---:|---:|---:|---:|---:|---:|\n"
        "| **all** | 40 | 75.0% | 84.1% | 20 | 96.2% | 95.5% |\n\n"
        "| `designed-a` 4.0.0/ch | 1 of 5 |\n| `designed-b` 4.0.0/range | 3 of 5 |\n"
    )
    found = Repeats.read(text)
    assert (found.p50, found.p99, found.precision) == pytest.approx((0.75, 0.841, 0.955))
    assert found.by_chance == {("designed-a", "4.0.0/ch")}
