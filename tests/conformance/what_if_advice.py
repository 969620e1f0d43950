"""Check advice against recordings: what is advised for a recording with violations was really recorded, and is clean.

The same client scripts exist under several releases and settings. For each recording with order violations every change that
``advise`` says would have prevented them is looked up among the recordings of its script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of
from dispatch_core.what_if import calibration
from dispatch_core.what_if.advise import Advice, Tried, advice
from dispatch_core.what_if.measure import Measures
from dispatch_core.what_if.rules import SEEDS


class Recorded(Protocol):
    """A recording of a script, see ``what_if_accuracy``."""

    @property
    def script(self) -> str:
        """The script."""

    @property
    def rules(self) -> str:
        """``<release>/<variant>``."""

    @property
    def log(self) -> DispatcherLog:
        """The log."""

    @property
    def measures(self) -> Measures:
        """Its measures."""

    @property
    def violates(self) -> bool:
        """True if it has order violations."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A change that is advised for a recording. ``target``: the recording under it; ``None`` = there is none."""

    source: Recorded
    tried: Tried
    best: bool  # the smallest of those that are advised
    target: Recorded | None

    @property
    def wrong(self) -> bool:
        """True if the recording under the advised rules has order violations."""
        return self.target is not None and self.target.violates


@dataclass(frozen=True, slots=True)
class Advised:
    """The advice for one recording with violations."""

    source: Recorded
    advice: Advice
    checked: tuple[Checked, ...]


def advised(
    scripts: Iterable[Sequence[Recorded]], coefficients_of: Callable[[str], Mapping[str, float]] | None = None
) -> Iterator[Advised]:
    """The advice for all recordings with order violations.

    ``coefficients_of``: those of a script, fitted without it; ``None`` = the shipped ones.
    """
    for several in scripts:
        for source in several:
            if not source.measures.order_violations:
                continue
            with _coefficients(None if coefficients_of is None else coefficients_of(source.script)):
                found = advice(source.log, range(SEEDS))
            checked = tuple(
                Checked(source, tried, at == 0, _target(source, tried, several))
                for at, tried in enumerate(found.prevents)
            )
            yield Advised(source, found, checked)


@contextmanager
def _coefficients(wanted: Mapping[str, float] | None) -> Iterator[None]:
    usual = calibration.coefficients
    if wanted is not None:
        calibration.coefficients = lambda: wanted
    try:
        yield
    finally:
        calibration.coefficients = usual


def _target(source: Recorded, tried: Tried, several: Sequence[Recorded]) -> Recorded | None:
    wanted = tried.change.rules.profile_for(source.log)
    for target in several:
        profile = profile_of(target.log)
        if (profile.broker_version, profile.name) == (wanted.broker_version, wanted.name):
            return target
    return None


def table(found: Sequence[Advised]) -> str:
    """List the advice for each recording, and what was recorded under it, as Markdown."""
    rows = [
        "| recording | violations | advised, the smallest first | said | recorded under it |",
        "|---|---:|---|---:|---|",
    ]
    for some in found:
        name = f"`{some.source.script}` {some.source.rules}"
        if not some.checked:
            rows.append(f"| {name} | {some.source.measures.order_violations} | nothing | | |")
        for checked in some.checked:
            target = checked.target
            known = "not recorded" if target is None else f"{target.measures.order_violations} violations"
            count = str(some.source.measures.order_violations) if checked.best else ""
            rows.append(
                f"| {name if checked.best else ''} | {count} | {checked.tried.change.said} | "
                f"{checked.tried.probability:.2f} | {known} |"
            )
    return "\n".join(rows)


def summary(found: Sequence[Advised]) -> str:
    """The figures of all advice, in a sentence."""
    checked = [checked for some in found for checked in some.checked]
    there = [known for known in checked if known.target is not None]
    wrong = sum(known.wrong for known in there)
    none = sum(not some.checked for some in found)
    return (
        f"{len(found)} recordings have order violations; for {none} of them nothing is advised. Of {len(checked)} advised "
        f"changes {len(there)} were really recorded: {len(there) - wrong} of these recordings are clean, {wrong} are not."
    )
