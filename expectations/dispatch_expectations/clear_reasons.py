"""Say why findings are clear: the subscription is gone, the policy tolerates them, or the interval has none of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.every import PROMISES, counts
from dispatch_core.audit.promises.promise import PASS, plain
from dispatch_expectations.alert_message import Alert
from dispatch_expectations.alert_state import CLEAR, digest
from dispatch_expectations.dispatcher_results import (
    AlertFinding,
    DispatcherResult,
)
from dispatch_expectations.findings import Finding, read_findings
from dispatch_expectations.frames import Dispatcher
from dispatch_expectations.policy import Policy, current_policy
from dispatch_expectations.suites import BY_NAME
from spark_jobs.intervals import interval
from spark_jobs.warehouse.delta_tables import Place


def with_reasons(
    alerts: Sequence[Alert],
    results: Sequence[DispatcherResult],
    warehouse: Place,
    policy: Policy | None = None,
) -> list[Alert]:
    """Return the alerts of one interval with the reason in the explanation of each finding that is clear."""
    cleared = {
        finding.kind for alert in alerts for finding in alert.news if finding.state == CLEAR
    } - BY_NAME.keys()
    of = {result.overall.dispatcher: result for result in results}
    tolerated: dict[str, str] = {}
    if cleared:
        policy = policy or current_policy()
        start = results[0].overall.interval_start
        tolerated = _tolerated(read_findings(warehouse, start, cleared), policy)
    return [
        replace(
            alert,
            news=tuple(
                finding if finding.state != CLEAR else _explained(finding, of[alert.dispatcher], tolerated)
                for finding in alert.news
            ),
        )
        for alert in alerts
    ]


def _explained(finding: AlertFinding, result: DispatcherResult, tolerated: Mapping[str, str]) -> AlertFinding:
    """Put the reason before what the explanation says of the last report."""
    name = interval(result.overall.interval_start).name
    if result.gone:
        why = result.gone
    elif finding.identity in tolerated:
        why = f"tolerated in interval {name}: {tolerated[finding.identity]}"
    elif finding.kind in result.verdicts and result.verdicts[finding.kind].verdict == PASS:
        why = f"interval {name} was judged PASS: {result.verdicts[finding.kind].reason}"
    else:
        why = f"no longer found: interval {name} was judged without it"
    return replace(finding, explanation=f"{why}; {finding.explanation}")


def _tolerated(findings: Iterable[Finding], policy: Policy) -> dict[str, str]:
    """Return by identity which setting of the policy tolerates a finding, of those that an interval still has."""
    by_dispatcher: dict[Dispatcher, list[Finding]] = {}
    for finding in findings:
        by_dispatcher.setdefault(finding.dispatcher, []).append(finding)
    found = {}
    for dispatcher, its_findings in by_dispatcher.items():
        rule = policy.rule_for(dispatcher[1], dispatcher[2])
        for finding in its_findings:
            settings = _settings(finding, its_findings, rule)
            if settings:
                found[digest(*finding.identity)] = f"{settings} (rule {rule.name} of {policy.source})"
    return found


def _settings(finding: Finding, findings: Sequence[Finding], rule: Rule) -> str:
    """Write the limits that a finding is counted against, and how many there are."""
    texts = []
    for promise in PROMISES:
        for check in promise.checks:
            if check.limit is None or not counts(check, finding.kind, finding.uncertain):
                continue
            limit = rule.tolerated(check.limit)
            number = sum(other.count for other in findings if counts(check, other.kind, other.uncertain))
            allowed = "any number" if limit is None else plain(limit)
            texts.append(f"{number:,} found, {check.limit} allows {allowed}")
    return "; ".join(dict.fromkeys(texts))
