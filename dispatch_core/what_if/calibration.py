"""The probability that a prediction comes true, from what its simulations show.

A prediction says whether a recorded load has order violations under other rules. Each simulation is one more run of the same
race between clients and broker, as the recorded run was one. So the probability is the share of the simulations that have
violations, with a few counted in advance: the fewer, the more often a load either always has violations or never has any.
``python -m tests.conformance.what_if_accuracy`` measures how often predictions come true between recordings of one client
script under many rules, fits the numbers counted in advance and writes them to ``COEFFICIENTS``; the page it writes says how
good they are on scripts that they were not fitted to.

For example, all of five simulations have violations:

>>> violates(Evidence(simulations=5, violating=5)) > 0.9
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

#: The file of this package with the coefficients: simulations counted in advance.
COEFFICIENTS: Final = "calibration.json"
VIOLATING: Final = "violating"
CLEAN: Final = "clean"
#: Nothing is said to be surer than this: a share of so many pairs cannot be measured.
_SUREST: Final = 0.99


@dataclass(frozen=True, slots=True)
class Evidence:
    """Simulations of one load under the same rules.

    ``violating``: how many of them have more order violations than are tolerated.

    Whether the simulations under the recorded rules have what was recorded was tried as well, and how many violations there
    are: they made scripts that the fit had not seen no surer.
    """

    simulations: int
    violating: int


def violates(evidence: Evidence) -> float:
    """The probability that the recorded load would have more order violations than are tolerated."""
    return share(evidence, coefficients())


def share(evidence: Evidence, in_advance: Mapping[str, float]) -> float:
    """The share of violating simulations with those counted in advance, within ``_SUREST`` and 1 - ``_SUREST``."""
    violating = evidence.violating + in_advance[VIOLATING]
    counted = evidence.simulations + in_advance[VIOLATING] + in_advance[CLEAN]
    return min(max(violating / counted, 1 - _SUREST), _SUREST)


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
