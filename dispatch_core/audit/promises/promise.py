"""Define what a promise and a check are, and the checks that several promises share.

A check is one column of a dispatcher's counts (``counts``) with an upper limit. A greater value is FAIL or UNKNOWN, as the
check says (``decides``). A verdict depends on nothing else. The command line compares the values itself
(``verdict.outcomes``); the pipeline makes expectations of Great Expectations of the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from dispatch_core.audit import catalogue

PASS: Final = "PASS"  # noqa: S105  # a verdict, not a password
FAIL: Final = "FAIL"
UNKNOWN: Final = "UNKNOWN"
#: From best to worst; the verdict over all promises is the worst of them.
SEVERITY: Final = (PASS, UNKNOWN, FAIL)

#: Reason of a verdict on a log without any event.
NOTHING_RECORDED: Final = (
    "the log has a header and no event: there was nothing to judge; see that the recorder ran while the subscription was in "
    "use, and that its event files are among those given"
)


def worst(verdicts: list[str]) -> str:
    """Return the worst of some verdicts; PASS if there are none."""
    return max(verdicts, key=SEVERITY.index, default=PASS)


@dataclass(frozen=True, slots=True)
class Check:
    """One upper limit on one column.

    ``limit``: name of the threshold in the policy, as ``section.name``; None is the constant 0. ``sentence``: what a
    value above it means, with ``{value}``, ``{limit}`` and any column of the dispatcher's row. ``kinds``: the anomaly
    kinds that are its evidence. ``gates``: columns with the policy threshold (``section.name``) that the row must reach
    for the check to apply. ``missing``: what a missing value means, which is then UNKNOWN; without it, a missing value
    is not judged. ``measured``: what the column measures, in words; by default the sentence up to its first number.
    ``severity``: of the audit, for a check without kinds.
    """

    column: str
    decides: Literal["FAIL", "UNKNOWN"]
    sentence: str
    limit: str | None = None
    kinds: tuple[str, ...] = ()
    gates: tuple[tuple[str, str], ...] = ()
    counts_findings: bool = True
    missing: str = ""
    measured: str = ""
    severity: str = catalogue.CRITICAL

    def explain(self, value: Any, limit: float, row: Mapping[str, Any]) -> str:
        """Write the sentence for one unexpected row."""
        return self.sentence.format_map({**row, "value": plain(value), "limit": plain(limit)})

    def describe(self, limit: float) -> str:
        """Write the description of the expectation.

        >>> Check("log_gap", UNKNOWN, "gaps in the log: {value}").describe(0)
        'UNKNOWN above 0: gaps in the log'
        """
        if "{value}" not in self.sentence:
            return f"{self.decides} where {self.sentence.partition(': {')[0]}"
        return (
            f"{self.decides} above {plain(limit)}: {self.measured or self.sentence.partition(': {value}')[0]}"
        )


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise: its checks, the columns that are tolerated and counted, and the reason of a PASS (``kept``)."""

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
    """Write a number for people: no trailing ``.0``, at most two decimals, thousands separated."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


#: No event in this interval or before. An interval without events after others with events raises no alert.
NEVER_RECORDED: Final = Check("never_recorded", UNKNOWN, NOTHING_RECORDED, counts_findings=False)
#: Checks that a log reached the audit.
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
        "deliveries of the log that did not reach the audit: {value} of {sent_in_log}{because}",
        counts_findings=False,
    ),
)
_LOG_SENTENCES: Final = {
    "log_gap": "gaps in the log: {value}",
    "unknown_consumer": "events of consumers that the log does not show as connected: {value}",
    "unknown_position": "events about entries that the message log does not contain: {value}",
    "unknown_key": "deliveries of entries whose key cannot be read: {value}",
    "unknown_batch_size": "deliveries of entries whose number of messages cannot be read: {value}",
    "overlapping_incarnations": "overlaps of two brokers' logs of one subscription: {value}",
    "repeated_lines": "segments with lines that the log has already: {value}",
    "clock_step": "times that the log's clock went back: {value}",
}


def handover_check(promise: str) -> Check:
    """Make the check on findings that a change of Failover's active consumer explains; an alert names the promise."""
    return Check(
        f"{promise}_handover",
        FAIL,
        "entries that a change of the active consumer delivered again or overtook: {value} (the policy allows {limit})",
        limit=f"{promise}.handover",
    )


#: Of kinds whose certain findings FAIL: what uncertain ones mean.
_UNCERTAIN_LOG_SENTENCES: Final = {
    "unknown_consumer": "events of consumers that lost lines may have connected: {value}",
    "unknown_position": (
        "events about entries that the message log lacks, or has with a later publish time by a clock that is ahead: {value}"
    ),
    "overlapping_incarnations": (
        "overlaps of two brokers' logs of one subscription that a difference of clocks may explain: {value}"
    ),
}
_BY_CERTAINTY: Final[tuple[tuple[str, Literal["FAIL", "UNKNOWN"], dict[str, str]], ...]] = (
    ("certain", "FAIL", _LOG_SENTENCES),
    ("uncertain", "UNKNOWN", _UNCERTAIN_LOG_SENTENCES),
)


def proven_log_checks(*kinds: str) -> tuple[Check, ...]:
    """Make checks on findings about the log itself that break a promise if they are certain, and else leave it open."""
    return tuple(
        Check(f"{kind}_{how}", decides, sentences[kind], limit=f"log.{kind}", kinds=(kind,))
        for kind in kinds
        for how, decides, sentences in _BY_CERTAINTY
    )


def log_checks(decides: Literal["FAIL", "UNKNOWN"], *kinds: str) -> tuple[Check, ...]:
    """Make checks on findings about the log itself, such as gaps, which may hide that a promise was broken."""
    return tuple(
        Check(kind, decides, _LOG_SENTENCES[kind], limit=f"log.{kind}", kinds=(kind,)) for kind in kinds
    )
