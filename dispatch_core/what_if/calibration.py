"""The probability that a prediction comes true, from what its simulations show.

A prediction says whether a recorded load has order violations under other rules. Its probability is a logistic function of
a few figures of the simulations. ``python -m tests.conformance.what_if_accuracy`` measures how often predictions come true
between recordings of one client script under many rules, fits the coefficients and writes them to ``COEFFICIENTS``; the page
it writes says how good they are on scripts that they were not fitted to.

For example, all of five simulations have violations, and those under the recorded rules send every entry where it went:

>>> evidence = Evidence(simulations=5, violating=5, control_same=1.0)
>>> violates(evidence) > 0.9
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp, log
from typing import Any, Final

#: The file of this package with the coefficients, by the names of ``figures``.
COEFFICIENTS: Final = "calibration.json"
#: Nothing is said to be surer than this: a share of so many pairs cannot be measured.
_SUREST: Final = 0.99


@dataclass(frozen=True, slots=True)
class Evidence:
    """The figures of some simulations of one load under the same rules.

    Attributes:
        simulations: how many there are.
        violating: how many of them have more order violations than are tolerated.
        control_same: share of positions that the simulations under the recorded rules send first to the recorded connection;
            0 = there are none.
    """

    simulations: int
    violating: int
    control_same: float

    def figures(self) -> dict[str, float]:
        """The terms of the logistic function.

        Numbers of violations, and whether the control has violations as the recording has, were tried as well: they made
        scripts that the fit had not seen no surer.
        """
        clean = self.simulations - self.violating
        odds = log((self.violating + 0.5) / (clean + 0.5))
        return {
            "one": 1.0,
            "log_odds_of_simulations": odds,
            "log_odds_if_control_elsewhere": odds * (1.0 - self.control_same),
        }


def violates(evidence: Evidence) -> float:
    """The probability that the recorded load would have more order violations than are tolerated."""
    return logistic(sum(coefficients()[name] * value for name, value in evidence.figures().items()))


def logistic(odds: float) -> float:
    """The probability of log odds, neither surer than ``_SUREST`` nor than 1 - ``_SUREST``."""
    return min(max(1 / (1 + exp(-max(min(odds, 50.0), -50.0))), 1 - _SUREST), _SUREST)


@cache
def _document() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(
        files(__package__).joinpath(COEFFICIENTS).read_text(encoding="utf-8")
    )
    return found


def coefficients() -> Mapping[str, float]:
    """The fitted coefficients."""
    found: Mapping[str, float] = _document()["coefficients"]
    return found


def measured_releases() -> tuple[str, ...]:
    """The releases whose recordings the coefficients were fitted to."""
    return tuple(_document()["releases"])
