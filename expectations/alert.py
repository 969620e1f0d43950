"""Alerts: what a person is told when a verdict is not PASS. Pure, but for reading tables and the file sink.

One alert per dispatcher and interval; inside, one finding per identity (cluster, topic, subscription, kind, key or
consumer). Sending is at least once: ``idempotency_key`` is the same for the same news, so that a receiver may drop a
repeat, and another one when severity or first evidence changed. Mail and webhook send the same ``body``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from dispatch_core.audit.catalogue import KINDS, SEVERITIES
from dispatch_core.report.names import file_name
from expectations import data_docs as docs
from expectations.findings import Finding, read_findings, top
from expectations.promise import ALL, FAIL, PASS
from expectations.suites import BY_NAME, TOLERATED_KINDS
from expectations.validate import Verdict, read_verdicts

#: Findings that the text names one by one, and identities that the payload lists.
MAX_TEXT_FINDINGS: Final = 10
MAX_PAYLOAD_FINDINGS: Final = 200
_MAX_NAME: Final = 300
_MAX_SENTENCE: Final = 1000


@dataclass(frozen=True, slots=True)
class AlertFinding:
    """One identity within an alert: what broke, how often, the first evidence in one sentence."""

    kind: str
    subject: str
    severity: str
    count: int
    positions: tuple[str, ...]
    explanation: str
    identity: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class Alert:
    """What is sent about one dispatcher and interval. ``subject`` is one line; ``body`` is plain text.

    ``report``: the page to look at, if there is one.
    """

    idempotency_key: str
    cluster: str
    topic: str
    subscription: str
    interval_start: str
    verdict: str
    severity: str
    subject: str
    body: str
    report: str | None
    findings: tuple[AlertFinding, ...]

    def as_json(self) -> dict[str, Any]:
        """Payload for a webhook or a file: JSON types only."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]


def alerts_for_interval(
    warehouse: Path, interval_start: datetime, data_docs: Path, reports: Path | None = None
) -> list[Alert]:
    """Alerts of a judged interval from its published verdicts and anomalies; none if every dispatcher passed.

    ``reports``: the folder of the interval's reports, to which alerts point where there is one.
    """
    verdicts = read_verdicts(warehouse, interval_start)
    if all(verdict.verdict == PASS for verdict in verdicts):
        return []
    findings = read_findings(warehouse, interval_start, _alerting_kinds())
    return build_alerts(verdicts, findings, docs.index_of(data_docs, interval_start), warehouse, reports)


def build_alerts(
    verdicts: Sequence[Verdict],
    findings: Iterable[Finding],
    pages: Path,
    warehouse: Path,
    reports: Path | None = None,
) -> list[Alert]:
    """One alert for each dispatcher whose overall verdict is FAIL or UNKNOWN, FAIL first, then by name."""
    by_dispatcher: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        by_dispatcher.setdefault(finding.dispatcher, []).append(finding)
    alerts = []
    for overall in verdicts:
        if overall.promise == ALL and overall.verdict != PASS:
            broken = [
                one
                for one in verdicts
                if one.dispatcher == overall.dispatcher and one.promise != ALL and one.verdict != PASS
            ]
            kinds = {kind for one in broken for kind in _kinds(one.promise)}
            mine = [one for one in by_dispatcher.get(overall.dispatcher, []) if one.kind in kinds]
            alerts.append(_alert(overall, broken, mine, pages, warehouse, _report_of(overall, reports)))
    return sorted(alerts, key=lambda one: (one.verdict != FAIL, one.cluster, one.topic, one.subscription))


def _report_of(overall: Verdict, reports: Path | None) -> Path | None:
    """The dispatcher's report, if it was written."""
    path = reports / file_name(*overall.dispatcher) if reports is not None else None
    return path if path is not None and path.exists() else None


def _alerting_kinds() -> list[str]:
    """Kinds that an alert names one by one: not those that Pulsar's at-least-once delivery makes every day."""
    return [kind for kind in KINDS if kind not in (*TOLERATED_KINDS, "redelivered")]


def _kinds(promise: str) -> set[str]:
    return {kind for check in BY_NAME[promise].checks for kind in check.kinds}


def _alert(
    overall: Verdict,
    promises: list[Verdict],
    findings: list[Finding],
    pages: Path,
    warehouse: Path,
    report: Path | None,
) -> Alert:
    """The alert of one dispatcher from the promises it did not keep and the findings of their kinds."""
    interval = docs.interval_name(overall.interval_start)
    evident = top(findings, MAX_PAYLOAD_FINDINGS)
    listed = [_finding(one, interval) for one in evident]
    # What breaks a promise without an anomaly (quarantined rows, a missing replay) is a finding of the promise itself.
    for promise in promises:
        if not any(one.kind in _kinds(promise.promise) for one in evident):
            listed.append(_promise_finding(promise, interval))
    severity = min((one.severity for one in listed), key=SEVERITIES.index, default="major")
    names = f"{_line(overall.topic)} {_line(overall.subscription)}"
    subject = f"[dispatch-audit] {overall.verdict} {names}, {interval}"
    return Alert(
        idempotency_key=_digest(overall.verdict, *(one.idempotency_key for one in listed)),
        cluster=overall.cluster,
        topic=overall.topic,
        subscription=overall.subscription,
        interval_start=overall.interval_start.isoformat(),
        verdict=overall.verdict,
        severity=severity,
        subject=_line(subject),
        report=None if report is None else str(report),
        body=_body(overall, promises, findings, interval, pages, warehouse, report),
        findings=tuple(listed),
    )


def _finding(finding: Finding, interval: str) -> AlertFinding:
    identity = _digest(*finding.identity)
    evidence = (finding.severity, str(finding.uncertain), str(finding.first_seq), *finding.positions)
    return AlertFinding(
        kind=finding.kind,
        subject=finding.subject,
        severity=finding.severity,
        count=finding.count,
        positions=finding.positions,
        explanation=finding.explanation,
        identity=identity,
        idempotency_key=_digest(identity, interval, *evidence),
    )


def _promise_finding(promise: Verdict, interval: str) -> AlertFinding:
    identity = _digest(*promise.dispatcher, promise.promise, promise.verdict)
    return AlertFinding(
        kind=promise.promise,
        subject="subscription",
        severity="major" if promise.verdict == FAIL else "minor",
        count=max(1, promise.findings),
        positions=(),
        explanation=promise.reason,
        identity=identity,
        idempotency_key=_digest(identity, interval, promise.reason),
    )


def _body(
    overall: Verdict,
    promises: list[Verdict],
    findings: list[Finding],
    interval: str,
    pages: Path,
    warehouse: Path,
    report: Path | None,
) -> str:
    """Plain text for a person at night: what broke, how often, the telling cases, where to look."""
    lines = [
        f"Verdict: {overall.verdict}",
        f"Topic: {_line(overall.topic)}",
        f"Subscription: {_line(overall.subscription)} (cluster {_line(overall.cluster)})",
        f"Interval: {interval} (UTC, from {overall.interval_start.isoformat()})",
        "",
        "What broke" if overall.verdict == FAIL else "What could not be judged",
    ]
    lines += [f"- {one.promise}: {one.verdict}: {_line(one.reason, _MAX_SENTENCE)}" for one in promises]
    if findings:
        counts: dict[str, int] = {}
        for finding in findings:
            counts[finding.kind] = counts.get(finding.kind, 0) + finding.count
        lines += ["", "How often", *(f"- {kind}: {count:,}" for kind, count in counts.items())]
        shown = top(findings, MAX_TEXT_FINDINGS)
        lines += ["", f"Top findings ({len(shown)} of {len(findings)} keys and consumers concerned)"]
        for finding in shown:
            doubt = ", uncertain" if finding.uncertain else ""
            head = f"{finding.kind} ({finding.severity}{doubt}), {_line(finding.subject)}, {finding.count:,} times"
            lines += [f"- {head}", f"  {_line(finding.explanation, _MAX_SENTENCE)}"]
            if finding.positions:
                lines.append(f"  positions: {', '.join(_line(one) for one in finding.positions[:10])}")
    lines += ["", "Where to look"]
    lines += [] if report is None else [f"- report: {report}"]
    lines += [f"- Data Docs: {pages}", f"- tables: {warehouse} (verdicts, anomalies)"]
    return "\n".join(lines) + "\n"


def _line(text: str, limit: int = _MAX_NAME) -> str:
    """``text`` on one line without control characters: names come from logs and may try to forge mail headers."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def _digest(*parts: str) -> str:
    """Stable identity of some texts; their lengths go in, so that no two lists share one."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class FileAlertSink:
    """Alerts as JSON Lines in one file, each ``idempotency_key`` once, whoever else appends at the same time."""

    def __init__(self, path: Path) -> None:
        """``path`` is created with its folder at the first alert."""
        self.path = path

    def send(self, alerts: Sequence[Alert]) -> int:
        """Append the alerts that the file does not hold yet; returns how many. The file is on disk on return.

        A line that a killed writer left half written is ended first, so that it spoils nothing but itself.
        """
        if not alerts:
            return 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            content = file.read()
            known = {record.get("idempotency_key") for record in _records(content)}
            fresh = [alert for alert in alerts if alert.idempotency_key not in known]
            lines = "".join(json.dumps(alert.as_json(), ensure_ascii=False) + "\n" for alert in fresh)
            if content and not content.endswith(b"\n") and lines:
                lines = "\n" + lines
            file.write(lines.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        return len(fresh)


def read_alerts(path: Path) -> list[dict[str, Any]]:
    """Alerts of a sink's file, oldest first; none if there is no file."""
    return list(_records(path.read_bytes())) if path.exists() else []


def _records(content: bytes) -> Iterable[dict[str, Any]]:
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # half a line of a writer that was killed: its alert is sent again
        if isinstance(record, dict):
            yield record
