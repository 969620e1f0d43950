"""A promise and the checks that decide it: the vocabulary of the suite modules, without Great Expectations.

A check is one column of counts with an upper limit. Great Expectations judges every dispatcher's row against it;
what it finds unexpected is FAIL or UNKNOWN, as the check says (``decides``). Nothing else decides a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from dispatch_core.audit.verdict import NOTHING_RECORDED

PASS: Final = "PASS"  # noqa: S105  # a verdict, not a password
FAIL: Final = "FAIL"
UNKNOWN: Final = "UNKNOWN"
#: From best to worst; the verdict over all promises is the worst of them.
SEVERITY: Final = (PASS, UNKNOWN, FAIL)

#: Promise name of the verdict over all promises of a dispatcher.
ALL: Final = "all"
#: Stands for cluster, topic and subscription of what belongs to no dispatcher.
NO_DISPATCHER: Final = "*"


def worst(verdicts: list[str]) -> str:
    """The worst of some verdicts; PASS of none."""
    return max(verdicts, key=SEVERITY.index, default=PASS)


@dataclass(frozen=True, slots=True)
class Check:
    """One upper limit on one column.

    ``limit`` names the threshold as ``section.name`` of the policy; None is the constant 0. ``sentence`` says what
    a value above it means, with ``{value}``, ``{limit}`` and any column or note of the dispatcher's row.
    ``kinds`` are the anomaly kinds that are its evidence. ``gates`` are columns with the policy threshold
    (``section.name``) that the row must reach for the check to apply at all. ``missing`` says what it means that
    the column holds no value (then UNKNOWN); without it a missing value means that there is nothing to judge.
    """

    column: str
    decides: Literal["FAIL", "UNKNOWN"]
    sentence: str
    limit: str | None = None
    kinds: tuple[str, ...] = ()
    gates: tuple[tuple[str, str], ...] = ()
    counts_findings: bool = True
    missing: str = ""

    def explain(self, value: Any, limit: float, row: Mapping[str, Any]) -> str:
        """The sentence for one unexpected row."""
        return self.sentence.format_map({**row, "value": plain(value), "limit": plain(limit)})


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise: its suite's checks, the kinds that it tolerates and counts, and what PASS means in words."""

    name: str
    title: str
    kept: str
    checks: tuple[Check, ...]
    tolerated: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the suite's batch holds besides the dispatcher's identity, each once."""
        gates = [gate for check in self.checks for gate, _ in check.gates]
        return tuple(dict.fromkeys([*(check.column for check in self.checks), *self.tolerated, *gates]))


def plain(value: Any) -> str:
    """A number for people: no trailing ``.0``, at most two decimals, thousands separated."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


#: No event up to the interval's end. An interval without one, after others with events, is a quiet one and no alert.
NEVER_RECORDED: Final = Check("never_recorded", UNKNOWN, NOTHING_RECORDED, counts_findings=False)
#: What keeps a log from reaching the audit at all.
REPLAY_CHECKS: Final = (
    NEVER_RECORDED,
    Check(
        "replay_missing",
        UNKNOWN,
        "the log of this interval was ingested but no replay of it was published",
        counts_findings=False,
    ),
    Check(
        "sent_unaudited",
        UNKNOWN,
        "entries that the log says were sent and that did not reach the audit: {value} of {sent_in_log}{because}",
        counts_findings=False,
    ),
)
_LOG_SENTENCES: Final = {
    "log_gap": "gaps in the log: {value}",
    "unknown_consumer": "events of consumers that were not connected as far as the log says: {value}",
    "unknown_position": "events about entries that the message log does not hold: {value}",
    "overlapping_incarnations": "overlaps of two brokers' logs of one subscription: {value}",
    "clock_step": "times that the log's clock went back: {value}",
}


def log_checks(decides: Literal["FAIL", "UNKNOWN"], *kinds: str) -> tuple[Check, ...]:
    """Checks on findings about the log itself: what makes it too incomplete to prove a promise from it."""
    return tuple(
        Check(kind, decides, _LOG_SENTENCES[kind], limit=f"log.{kind}", kinds=(kind,)) for kind in kinds
    )
