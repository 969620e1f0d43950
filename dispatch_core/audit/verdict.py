"""Judge the promises of a subscription by its counts, and say why.

* ``FAIL``: more findings of a kind than the policy tolerates, each proven by the log.
* ``UNKNOWN``: no such finding, but lines of the log are missing or findings are uncertain, so that the promise may have been
  broken; or the log has no event at all, so that there was nothing to judge.
* ``PASS``: neither. Tolerated findings are counted beside it.

Example: a log with one proven ``split_key`` gives FAIL for order by key. With a gap in the log instead of the finding, the
verdict is UNKNOWN.

A log without any event is UNKNOWN: perhaps nobody used the subscription, perhaps nobody recorded it. A log *with* events in
which nothing was sent, or an interval without traffic after intervals with events, is PASS: the recorder was at work, and
nothing breaks a promise. So a quiet day raises no alert.

What is judged are the checks of ``promises``, by the limits of the policy. The command line compares values and limits here
(``outcomes``), the pipeline by Great Expectations; both make the verdict of the outcomes by ``judge``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.catalogue import (
    DUPLICATE_DELIVERY,
    INPUT_QUALITY,
    KIND_ORDER,
    PER_KEY_ORDER,
    SEVERITIES,
)
from dispatch_core.audit.policy.reader import shipped_rules
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises import balance, conformance
from dispatch_core.audit.promises.counts import Counts, columns_of
from dispatch_core.audit.promises.every import PROMISES
from dispatch_core.audit.promises.promise import FAIL, PASS, UNKNOWN, Check, Promise, worst
from dispatch_core.audit.root_causes import NO_NAMES, by_root_cause
from dispatch_core.audit.sentences.lists import counts_by_name
from dispatch_core.audit.sentences.names import ConsumerNames

#: The promises that are decided without replaying rules.
AUDITED_PROMISES: Final = (PER_KEY_ORDER, DUPLICATE_DELIVERY, INPUT_QUALITY)
#: Part of the reason of a FAIL in which another part of the promise is UNKNOWN.
NOT_CERTAIN: Final = "; besides, not certain: "
#: Kinds of the findings about a column that does not count findings.
_SHOWN_BY: Final = {"divergent": "divergence", "max_share_ratio": "imbalance"}


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Rows of the log's files that could not be read: their number, and place and reason of the first."""

    rows: int = 0
    first: str = ""


NOTHING_QUARANTINED: Final = Quarantined()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A value of a dispatcher's row that a check of a promise does not allow; ``limit`` None: the value is missing."""

    promise: str
    check: Check
    value: Any
    limit: float | None

    @property
    def decides(self) -> str:
        """FAIL or UNKNOWN."""
        return UNKNOWN if self.limit is None else self.check.decides

    def sentence(self, row: Mapping[str, Any]) -> str:
        """Write what the value means."""
        return self.check.missing if self.limit is None else self.check.explain(self.value, self.limit, row)

    def is_shown_by(self, finding: Mapping[str, Any]) -> bool:
        """Check whether a row of ``anomalies`` is one of those that the value counts, or is about it."""
        kind, uncertain = finding["kind"], bool(finding["uncertain"])
        if self.check.column in columns_of(kind, finding["cause"], finding["reason"], uncertain):
            return True
        return not uncertain and kind == _SHOWN_BY.get(self.check.column)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one promise and its reason.

    ``findings``: number of findings that decided it; ``tolerated``: of those that the policy allows. ``assumes``: behaviours
    that the policy rules out, and that would explain what breaks the promise.
    """

    verdict: str
    findings: int
    tolerated: int
    reason: str
    assumes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromiseVerdict:
    """The verdict on one promise. ``findings`` break it or leave it open, ``tolerated`` ones do not.

    ``top_findings``: a sentence for each of the worst root causes (``root_causes``). ``more``: number of findings that break
    it or leave it open, and that none of these sentences is about. ``assumes``: as in ``Judgement``.
    """

    promise: str
    verdict: str
    findings: int
    tolerated: int
    reason: str
    top_findings: tuple[str, ...]
    more: int = 0
    assumes: tuple[str, ...] = ()


def outcomes(promise: Promise, row: Mapping[str, Any], rule: Rule) -> list[Outcome]:
    """Compare a row of counts (``Counts.row``) with the limits of a promise; return what is not allowed.

    A missing value is not allowed if its check says so, else it is not judged. A check applies where its gates are reached.
    """
    return list(_outcomes(promise, row, rule))


def _outcomes(promise: Promise, row: Mapping[str, Any], rule: Rule) -> Iterator[Outcome]:
    for check in promise.checks:
        value = row[check.column]
        if _is_missing(value):
            if check.missing:
                yield Outcome(promise.name, check, value, None)
            continue
        limit = rule.tolerated(check.limit)
        if limit is None or value <= limit:
            continue
        if all(_reaches(row[column], rule.tolerated(least)) for column, least in check.gates):
            yield Outcome(promise.name, check, value, limit)


def _is_missing(value: float | None) -> bool:
    return value is None or isnan(value)


def _reaches(value: float | None, least: float | None) -> bool:
    return value is not None and value >= (least or 0.0)


def judge(
    promise: Promise,
    row: Mapping[str, Any],
    found: Sequence[Outcome],
    assumptions: Assumptions,
    evidence: Iterable[Mapping[str, Any]] | None = None,
) -> Judgement:
    """Make the verdict on a promise: the worst of what was found in the dispatcher's row.

    Args:
        promise: the promise.
        row: the dispatcher's counts.
        found: its values that the policy does not allow.
        assumptions: what is ruled out for the log.
        evidence: rows of ``anomalies`` that prove the verdict; by default the kinds of the checks stand for them.
    """
    verdict = worst([outcome.decides for outcome in found])
    deciding = [outcome for outcome in found if outcome.decides == verdict]
    broken = {outcome.check.column for outcome in deciding}
    assumes: list[str] = []
    if verdict == PASS:
        reason = _kept(promise, row)
    else:
        reason = "; ".join(outcome.sentence(row) for outcome in deciding)
        proofs = list(evidence or ()) or [
            {"kind": kind, "reason": None, "uncertain": verdict != FAIL}
            for kind in sorted({kind for outcome in deciding for kind in outcome.check.kinds})
        ]
        assumes = assumptions.rests_on(proofs)
        if assumes:
            reason += f"; assumed absent: {', '.join(assumes)}"
        others = [outcome for outcome in found if outcome.decides != verdict]
        if others:
            reason += NOT_CERTAIN + "; ".join(outcome.sentence(row) for outcome in others)
    counted = (
        outcome.value for outcome in deciding if outcome.check.counts_findings and outcome.limit is not None
    )
    return Judgement(
        verdict,
        findings=sum(max(1, int(value)) for value in counted),
        tolerated=sum(int(row[column]) for column in promise.tolerated if column not in broken),
        reason=reason,
        assumes=tuple(assumes),
    )


def _kept(promise: Promise, row: Mapping[str, Any]) -> str:
    """Write the reason of a PASS: what was kept, not judged and tolerated."""
    reason = promise.kept
    if promise.name == balance.PROMISE.name:
        reason = balance.kept(row, promise.kept)
    elif row["unordered"] and promise.name == PER_KEY_ORDER:
        reason = f"not judged: a {row['subscription_type']} subscription promises no order"
    elif row["unordered"] and promise.name == conformance.PROMISE.name and not row["decisions"]:
        reason = f"not judged: without a trace the rules of a {row['subscription_type']} subscription are not replayed"
    elif promise.name == conformance.PROMISE.name:
        reason = conformance.kept(row, promise.kept)
    counts = [(column, int(row[column])) for column in promise.tolerated if row[column]]
    if counts:
        reason += f"; tolerated: {counts_by_name(dict(counts))}"
    return reason


_COLUMNS: Final = (
    *("incarnation", "kind", "severity", "key", "positions", "consumers", "t_us"),
    *("cause", "reason", "uncertain", "explanation"),
)


def verdicts(
    anomalies: pa.Table | Iterable[Mapping[str, Any]],
    counts: Counts,
    *,
    rule: Rule | None = None,
    assumptions: Assumptions | None = None,
    names: ConsumerNames = NO_NAMES,
    top: int = 5,
) -> list[PromiseVerdict]:
    """Judge the promises of one dispatcher: all of them, or ``AUDITED_PROMISES`` if the rules were not replayed.

    Args:
        anomalies: the dispatcher's findings, for sentences.
        counts: the counts that are judged; its findings are ``anomalies``.
        rule: of the policy, for the dispatcher; by default the shipped one.
        assumptions: what is ruled out for this log; by default that of a log that does not say what it records.
        names: of consumers, for sentences.
        top: number of sentences about each promise.
    """
    rule = shipped_rules().rules[-1] if rule is None else rule
    row = counts.row(rule)
    known = Assumptions(row["subscription_type"] or "Key_Shared") if assumptions is None else assumptions
    judged = [promise for promise in PROMISES if counts.rules or promise.name in AUDITED_PROMISES]
    found = {promise.name: outcomes(promise, row, rule) for promise in judged}
    shown = _shown(anomalies, [outcome for of_promise in found.values() for outcome in of_promise])
    return [_verdict(promise, row, found[promise.name], shown, known, names, top) for promise in judged]


def overall(promises: Iterable[PromiseVerdict]) -> str:
    """Return FAIL if a promise failed, else UNKNOWN if one is unknown, else PASS."""
    return worst([promise.verdict for promise in promises])


def _shown(
    anomalies: pa.Table | Iterable[Mapping[str, Any]], found: Sequence[Outcome]
) -> list[Mapping[str, Any]]:
    """Return the findings that are behind some outcome. The others may be many: of these no objects are made."""
    if not isinstance(anomalies, pa.Table):
        return [row for row in anomalies if any(outcome.is_shown_by(row) for outcome in found)]
    what = ["kind", "cause", "reason", "uncertain"]
    groups = anomalies.select(what).group_by(what, use_threads=False).aggregate([]).to_pylist()
    kinds = {group["kind"] for group in groups if any(outcome.is_shown_by(group) for outcome in found)}
    rows = anomalies.select(_COLUMNS).filter(
        pc.is_in(anomalies["kind"], value_set=pa.array(kinds, pa.string()))
    )
    return [row for row in rows.to_pylist() if any(outcome.is_shown_by(row) for outcome in found)]


def _verdict(
    promise: Promise,
    row: Mapping[str, Any],
    found: Sequence[Outcome],
    shown: Sequence[Mapping[str, Any]],
    assumptions: Assumptions,
    names: ConsumerNames,
    top: int,
) -> PromiseVerdict:
    verdict = worst([outcome.decides for outcome in found])
    deciding = [outcome for outcome in found if outcome.decides == verdict]
    proofs = [finding for finding in shown if any(outcome.is_shown_by(finding) for outcome in deciding)]
    judgement = judge(promise, row, found, assumptions, proofs)
    behind = [finding for finding in shown if any(outcome.is_shown_by(finding) for outcome in found)]
    causes = by_root_cause(_most_telling_first(behind))[:top]
    return PromiseVerdict(
        promise=promise.name,
        verdict=judgement.verdict,
        findings=judgement.findings,
        tolerated=judgement.tolerated,
        reason=judgement.reason,
        top_findings=tuple(cause.sentence(names) for cause in causes),
        more=len(behind) - sum(cause.count for cause in causes),
        assumes=judgement.assumes,
    )


def _most_telling_first(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort findings: certain ones first, then one of each (kind, key) before the second of any, then the worst."""
    seen: Counter[tuple[str, str | None]] = Counter()
    ranked = []
    for row in rows:
        turn = seen[row["kind"], row["key"]]
        seen[row["kind"], row["key"]] += 1
        rank = (bool(row["uncertain"]), turn, SEVERITIES.index(row["severity"]), KIND_ORDER[row["kind"]])
        ranked.append((rank, row))
    ranked.sort(key=lambda item: item[0])
    return [row for _, row in ranked]
