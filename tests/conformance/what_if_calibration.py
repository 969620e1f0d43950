"""Fit how sure predictions of ``what-if`` are, and say how good the fit is on scripts that it has not seen.

Each pair of recordings of one client script is a trial: what the simulations of the source show (``calibration.Evidence``),
and whether the target has order violations. The simulations counted in advance are those of all trials. What the page says
of them is cross-validated: the probability of a trial comes from the trials of all other scripts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.what_if.calibration import CLEAN, VIOLATING, Evidence, coefficients, share

Floats = npt.NDArray[np.float64]

_STEPS: Final = 2000
_BINS: Final = 10
#: A bin with fewer trials says nothing about 0.05.
LEAST_TRIALS: Final = 30


@dataclass(frozen=True, slots=True)
class Trial:
    """A prediction of one target from one source, and what was recorded. ``group``: a script; it judges itself never."""

    group: str
    evidence: Evidence
    came_true: bool  # the target has order violations


@dataclass(frozen=True, slots=True)
class Judged:
    """A trial with the probability of order violations that the trials of the other scripts give it."""

    trial: Trial
    probability: float

    @property
    def right(self) -> bool:
        """True if what is more likely than not was recorded."""
        return (self.probability >= 0.5) == self.trial.came_true


def fitted(trials: Sequence[Trial]) -> dict[str, float]:
    """The simulations counted in advance under which these trials are likeliest (each step makes them likelier).

    Of each load so many runs violate the order, and the shares of all loads have a beta distribution. Added are two trials
    that come out against all of their simulations, as the next ones might.
    """
    known = Counter(
        (trial.evidence.violating, trial.evidence.simulations, trial.came_true) for trial in trials
    )
    most = max(trial.evidence.simulations for trial in trials)
    known.update([(0, most, True), (most, most, False)])
    of, simulations, true = (np.array(column) for column in zip(*known, strict=True))
    times = np.array(list(known.values()), float)
    violating, clean = 1.0, 1.0
    for _ in range(_STEPS):
        all_of_them = (times / (simulations + violating + clean)).sum()
        violating *= (times / (of + violating))[true].sum() / all_of_them
        clean *= (times / (simulations - of + clean))[~true].sum() / all_of_them
    return {VIOLATING: round(float(violating), 4), CLEAN: round(float(clean), 4)}


def cross_validated(trials: Sequence[Trial]) -> list[Judged]:
    """All trials, each with the probability that the trials of the other scripts give it; of one script the shipped ones."""
    found: list[Judged] = []
    for group in dict.fromkeys(trial.group for trial in trials):
        rest = [trial for trial in trials if trial.group != group]
        others = fitted(rest) if rest else dict(coefficients())
        found += [Judged(trial, share(trial.evidence, others)) for trial in trials if trial.group == group]
    return found


@dataclass(frozen=True, slots=True)
class Bin:
    """Trials to which a probability between two bounds was given: the mean of it, and the share that came true."""

    low: float
    trials: int
    said: float
    true: float

    @property
    def apart(self) -> float:
        """Return the distance of both."""
        return abs(self.said - self.true)


def bins(found: Sequence[Judged]) -> list[Bin]:
    """The trials by tenths of what was said; tenths without trials are left out."""
    said = np.array([judged.probability for judged in found])
    true = np.array([judged.trial.came_true for judged in found])
    tenth = np.minimum((said * _BINS).astype(int), _BINS - 1)
    return [
        Bin(
            at / _BINS,
            int((tenth == at).sum()),
            float(said[tenth == at].mean()),
            float(true[tenth == at].mean()),
        )
        for at in range(_BINS)
        if (tenth == at).any()
    ]


def brier(found: Sequence[Judged]) -> float:
    """The mean square of what was said and what was: 0 is best; always saying the share of violations gives its variance."""
    return float(np.mean([(judged.probability - judged.trial.came_true) ** 2 for judged in found]))


def document(trials: Sequence[Trial], releases: Sequence[str]) -> str:
    """The text of ``calibration.json``."""
    found = {
        "written_by": "make accuracy",
        "pairs": len(trials),
        "scripts": len({trial.group for trial in trials}),
        "releases": list(releases),
        "coefficients": fitted(trials),
    }
    return json.dumps(found, indent=1) + "\n"


def table(found: Sequence[Judged]) -> str:
    """Compare what was said with what came true, as Markdown."""
    rows = ["| said | predictions | mean said | came true | apart |", "|---|---:|---:|---:|---:|"]
    for part in bins(found):
        few = "" if part.trials >= LEAST_TRIALS else " (few)"
        rows.append(
            f"| {part.low:.1f} to {part.low + 1 / _BINS:.1f} | {part.trials}{few} | {part.said:.3f} | {part.true:.3f} | "
            f"{part.apart:.3f} |"
        )
    return "\n".join(rows)


_SIDE: Final = 320
_EDGE: Final = 40


def plot(found: Sequence[Judged]) -> str:
    """Draw what was said and what came true (SVG): a circle per tenth, its area by the number of trials."""
    most = max(part.trials for part in bins(found))
    circles = []
    for part in bins(found):
        x, y = _EDGE + part.said * _SIDE, _EDGE + (1 - part.true) * _SIDE
        radius = 3 + 12 * (part.trials / most) ** 0.5
        text = f"said {part.said:.2f}, came true {part.true:.2f}, {part.trials} predictions"
        circles.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#1f77b4" fill-opacity="0.6">'
            f"<title>{text}</title></circle>"
        )
    end = _EDGE + _SIDE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{end + _EDGE}" height="{end + _EDGE}" font-family="sans-serif" '
            'font-size="11">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<rect x="{_EDGE}" y="{_EDGE}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#888"/>',
            f'<line x1="{_EDGE}" y1="{end}" x2="{end}" y2="{_EDGE}" stroke="#888" stroke-dasharray="4"/>',
            *circles,
            f'<text x="{_EDGE}" y="{_EDGE - 12}">share that came true</text>',
            f'<text x="{end}" y="{end + 28}" text-anchor="end">probability of order violations that was said</text>',
            *(
                f'<text x="{_EDGE + _SIDE * part / 4:.0f}" y="{end + 14}" text-anchor="middle">{part / 4:.2f}</text>'
                f'<text x="{_EDGE - 6}" y="{end - _SIDE * part / 4 + 4:.0f}" text-anchor="end">{part / 4:.2f}</text>'
                for part in range(5)
            ),
            "</svg>\n",
        ]
    )


def write(trials: Sequence[Trial], releases: Sequence[str], path: Path) -> None:
    """Write the coefficients."""
    path.write_text(document(trials, releases), encoding="utf-8")
