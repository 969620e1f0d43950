"""Read the verdicts and findings of a judged interval, dispatcher by dispatcher, for the alerts.

A finding of an alert stands for the anomalies of one identity (cluster, topic, subscription, kind, key or consumer) that the
policy does not tolerate. If a promise is broken without an anomaly, the kind of the finding is the promise.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from dispatch_core.audit.catalogue import INPUT_QUALITY, KINDS, SEVERITIES
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.every import PROMISE_OF_KIND, PROMISES, counts
from dispatch_core.audit.promises.promise import FAIL, PASS, UNKNOWN, Check
from dispatch_expectations.alert_ledger import reported_dispatchers
from dispatch_expectations.alert_state import NEW, digest, lasting_evidence
from dispatch_expectations.balance_window import without_window
from dispatch_expectations.deleted_subscriptions import deleted_subscriptions
from dispatch_expectations.findings import LASTING, MAX_IDENTITIES, Finding, first_lines, read_findings
from dispatch_expectations.frames import Dispatcher
from dispatch_expectations.moment import NAMED_BY, without_moment
from dispatch_expectations.policy import Policy, current_policy
from dispatch_expectations.promise import ALL, NO_DISPATCHER
from dispatch_expectations.suites import BY_NAME
from dispatch_expectations.validate import read_verdicts
from dispatch_expectations.verdict import Verdict
from spark_jobs.warehouse.delta_tables import Place

NOBODY: Final = (NO_DISPATCHER, NO_DISPATCHER, NO_DISPATCHER)
#: Redeliveries are judged by their causes, so the alert names the promise and not each key.
_NOT_BY_KEY: Final = ("redelivered",)
#: Kinds of findings over all topics of a subscription: their topic is what the names of these begin with, and ``*``.
OVER_TOPICS: Final = ("failover_imbalance",)
_NUMBER: Final = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True, slots=True)
class AlertFinding:
    """A finding of an alert: kind and subject, number of anomalies, and the first evidence in one sentence.

    ``root_cause``: a sentence about all anomalies of the interval that have its cause in common; empty if it is alone.
    ``identity``: digest that is the same in every interval. ``state``: new, changed or clear. ``evidence``: digest of the
    first evidence. ``goes_on``: it began before the interval. ``idempotency_key``: of its notification; empty until the
    finding is compared with earlier ones.
    """

    state: str
    kind: str
    subject: str
    severity: str
    uncertain: bool
    count: int
    positions: tuple[str, ...]
    explanation: str
    identity: str
    evidence: str
    goes_on: bool = False
    idempotency_key: str = ""
    root_cause: str = ""

    @property
    def rank(self) -> tuple[int, bool, str, str]:
        """Sort key: worst first, certain before uncertain."""
        return severity_rank(self.severity), self.uncertain, self.kind, self.subject


@dataclass(frozen=True, slots=True)
class DispatcherResult:
    """One dispatcher of an interval: the verdict on each promise, and the findings of promises that were not kept.

    ``findings``: worst first. ``complete``: no identity was left out, so that a finding that is not listed is gone.
    ``gone``: why the subscription has nothing to judge any more, if so.
    """

    verdicts: Mapping[str, Verdict]
    findings: tuple[AlertFinding, ...] = ()
    complete: bool = True
    gone: str = ""

    @property
    def overall(self) -> Verdict:
        """The verdict over all promises."""
        return self.verdicts[ALL]

    def judged(self, kind: str) -> bool:
        """True if the promise that a finding of this kind belongs to was judged without doubt, up to the interval's end.

        What is only not finished yet clears nothing.
        """
        promise = kind if kind in BY_NAME else PROMISE_OF_KIND.get(kind, INPUT_QUALITY)
        verdict = self.verdicts.get(promise)
        if verdict is None:
            return self.overall.verdict == PASS
        return self.complete and not verdict.in_doubt and not (promise in NAMED_BY and verdict.before_the_end)


def severity_rank(name: str) -> int:
    """Return the rank of a severity, 0 for the worst; unknown names come last."""
    return SEVERITIES.index(name) if name in SEVERITIES else len(SEVERITIES)


def read_results(
    warehouse: Place, interval_start: datetime, policy: Policy | None = None
) -> list[DispatcherResult]:
    """Read the result of each dispatcher in an interval; empty if it was not judged. Raises ``PolicyError``."""
    verdicts = read_verdicts(warehouse, interval_start)
    by_dispatcher: defaultdict[Dispatcher, dict[str, Verdict]] = defaultdict(dict)
    for verdict in verdicts:
        by_dispatcher[verdict.dispatcher][verdict.promise] = verdict
    findings: defaultdict[Dispatcher, list[Finding]] = defaultdict(list)
    results = []
    if any(verdict.verdict != PASS for verdict in verdicts):
        policy = policy or current_policy()
        for finding in read_findings(warehouse, interval_start, _alerting_kinds(policy)):
            findings[finding.dispatcher].append(finding)
    lasting = {finding.topic for listed in findings.values() for finding in listed if finding.kind in LASTING}
    first = first_lines(warehouse, interval_start, lasting)
    for dispatcher, promises in sorted(by_dispatcher.items()):
        behind: list[AlertFinding] = []
        if policy is not None and promises[ALL].verdict != PASS:
            rule = policy.rule_for(dispatcher[1], dispatcher[2])
            behind = _findings(promises, findings[dispatcher], rule, first)
        results.append(
            DispatcherResult(promises, tuple(behind), complete=len(findings[dispatcher]) < MAX_IDENTITIES)
        )
    results += [
        DispatcherResult({ALL: gone}, gone=gone.reason)
        for gone in (deleted_subscriptions(warehouse, interval_start, by_dispatcher) if verdicts else ())
    ]
    for topics in sorted(reported_dispatchers(warehouse, OVER_TOPICS) if verdicts else ()):
        over_topics = _over_topics(topics, by_dispatcher)
        if over_topics is not None:
            results.append(DispatcherResult({ALL: over_topics, over_topics.promise: over_topics}))
    if verdicts and NOBODY not in by_dispatcher:
        # Findings without a dispatcher have verdicts only while there are any; this one clears earlier alerts.
        results.append(DispatcherResult({ALL: _nobody(verdicts[0])}))
    return results


def _findings(
    verdicts: Mapping[str, Verdict],
    findings: Sequence[Finding],
    rule: Rule,
    first: Mapping[tuple[Dispatcher, int], int],
) -> list[AlertFinding]:
    """List the findings that broke a dispatcher's promises, worst first: anomalies, else the promise itself.

    ``first``: the first lines of the interval (``first_lines``).
    """
    found: dict[str, AlertFinding] = {}
    for name, verdict in verdicts.items():
        if name != ALL and verdict.verdict != PASS:
            checks = BY_NAME[name].checks
            behind = [_finding(finding, first) for finding in _behind(checks, findings, rule)]
            if not behind or any(_is_in_reason(check, verdict.reason) for check in checks if not check.kinds):
                behind.append(_promise_finding(verdict))
            found.update((finding.identity, finding) for finding in behind)
    return sorted(found.values(), key=lambda finding: finding.rank)


def _behind(checks: Iterable[Check], findings: Sequence[Finding], rule: Rule) -> list[Finding]:
    """List the findings of a broken promise whose numbers exceed the policy's limits."""
    behind: dict[tuple[str, ...], Finding] = {}
    for check in checks:
        limit = rule.tolerated(check.limit)
        if not check.kinds or limit is None:
            continue
        counted = [finding for finding in findings if counts(check, finding.kind, finding.uncertain)]
        if sum(finding.count for finding in counted) > limit:
            behind.update((finding.identity, finding) for finding in counted)
    return list(behind.values())


def _is_in_reason(check: Check, reason: str) -> bool:
    """True if a verdict's reason contains a check's sentence."""
    sentences = (check.sentence.partition("{")[0], check.missing)
    return any(sentence and sentence in reason for sentence in sentences)


def _alerting_kinds(policy: Policy) -> list[str]:
    """List the kinds for which some rule of the policy has a limit; alerts name each of their findings."""
    kinds = {
        kind
        for promise in PROMISES
        for check in promise.checks
        if any(rule.tolerated(check.limit) is not None for rule in policy.rules)
        for kind in check.kinds
    }
    return [kind for kind in KINDS if kind in kinds and kind not in _NOT_BY_KEY]


def _finding(finding: Finding, first: Mapping[tuple[Dispatcher, int], int]) -> AlertFinding:
    lasting = finding.kind in LASTING
    line = first.get((finding.dispatcher, finding.incarnation))
    return AlertFinding(
        state=NEW,
        kind=finding.kind,
        subject=finding.subject,
        severity=finding.severity,
        uncertain=finding.uncertain,
        count=finding.count,
        positions=finding.positions,
        explanation=finding.explanation,
        identity=digest(*finding.identity),
        evidence=_lasting_evidence(finding)
        if lasting
        else digest(str(finding.uncertain), str(finding.first_seq), *finding.positions),
        goes_on=lasting and (line is None or finding.began_seq < line),
        root_cause=_root_cause(finding),
    )


def _root_cause(finding: Finding) -> str:
    """Say what the largest root cause of a finding's anomalies has done; empty if it has caused nothing else."""
    causes = finding.root_causes.values()
    largest = max(causes, key=lambda cause: cause.count, default=None)
    return "" if largest is None or largest.count <= finding.count else largest.sentence()


def _lasting_evidence(finding: Finding) -> str:
    """Return what does not change while a finding goes on: its first entry, else the line at which it began."""
    return lasting_evidence(finding.uncertain, *(finding.positions[:1] or (str(finding.began_seq),)))


def _promise_finding(promise: Verdict) -> AlertFinding:
    return AlertFinding(
        state=NEW,
        kind=promise.promise,
        subject="subscription",
        severity="major" if promise.verdict == FAIL else "minor",
        uncertain=promise.verdict != FAIL,
        count=max(1, promise.findings),
        positions=(),
        explanation=promise.reason,
        identity=digest(*promise.dispatcher, promise.promise, "subscription"),
        # Numbers in the reason are no evidence; otherwise the finding would have changed every day.
        evidence=digest(promise.verdict, _NUMBER.sub("#", without_window(without_moment(promise.reason)))),
    )


def _over_topics(
    topics: Dispatcher, by_dispatcher: Mapping[Dispatcher, Mapping[str, Verdict]]
) -> Verdict | None:
    """Make the verdict that clears a finding over topics: on the promise of its kind, over those that were judged.

    ``topics``: the dispatcher of the finding, whose topic ends with ``*``. ``None`` if none of its topics was judged, or if
    the subscription has such a finding still, about more or fewer topics.
    """
    cluster, pattern, subscription = topics
    promise = PROMISE_OF_KIND[OVER_TOPICS[0]]
    of_subscription = {
        topic: verdicts
        for (of_cluster, topic, name), verdicts in by_dispatcher.items()
        if (of_cluster, name) == (cluster, subscription)
    }
    prefix = pattern.removesuffix("*")
    found = [topic.removesuffix("*") for topic in of_subscription if topic.endswith("*")]
    if any(other.startswith(prefix) or prefix.startswith(other) for other in found):
        return None
    judged = [
        verdicts[promise]
        for topic, verdicts in of_subscription.items()
        if topic.startswith(prefix) and promise in verdicts
    ]
    if not judged:
        return None
    doubtful = [verdict for verdict in judged if verdict.in_doubt]
    return replace(
        (doubtful or judged)[0],
        topic=pattern,
        incarnation=0,
        verdict=UNKNOWN if doubtful else PASS,
        findings=0,
        tolerated=0,
        reason=f"topics that were judged: {len(judged)}, in doubt: {len(doubtful)}",
        top_findings=(),
    )


def _nobody(judged: Verdict) -> Verdict:
    """Make the verdict on findings without a dispatcher, for an interval that has none."""
    cluster, topic, subscription = NOBODY
    return replace(
        judged,
        cluster=cluster,
        topic=topic,
        subscription=subscription,
        incarnation=0,
        promise=ALL,
        verdict=PASS,
        findings=0,
        tolerated=0,
        reason="everything in this interval belongs to a subscription",
        top_findings=(),
    )
