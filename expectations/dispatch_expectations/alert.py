"""Send the alerts of a judged interval, each finding once.

A finding is reported when it is new, when it has changed and when it is clear (``alert_state``). One message has all news of
one subscription and interval, so that a bad hour does not send thousands of messages; in it each finding has its own state,
identity and ``idempotency_key``. The table ``alerts_sent`` has the notifications of each channel (``alert_ledger``). Without
news no message is sent, even while a subscription still FAILs as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from dispatch_core.report.names import file_name
from dispatch_expectations import data_docs as docs
from dispatch_expectations.alert_ledger import read_histories, record_sent
from dispatch_expectations.alert_message import Alert
from dispatch_expectations.alert_state import CLEAR, History, Notification, digest, idempotency_key
from dispatch_expectations.dispatcher_results import AlertFinding, DispatcherResult, severity_rank
from dispatch_expectations.frames import Dispatcher
from dispatch_expectations.promise import ALL, FAIL, PASS
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.warehouse.delta_tables import Place


@dataclass(frozen=True, slots=True)
class Places:
    """Pages and tables that an alert links to.

    ``reports``: folder of the interval's reports. ``run``: link to the Airflow run. ``of``: converts the path of a page to a
    link.
    """

    warehouse: Location
    data_docs: Location
    reports: Location | None = None
    run: str | None = None
    of: Callable[[Location], str] = str

    def report(self, dispatcher: Dispatcher) -> str | None:
        """The dispatcher's report, if it was written."""
        path = self.reports / file_name(*dispatcher) if self.reports is not None else None
        return self.of(path) if path is not None and path.exists() else None


def build_alerts(
    results: Iterable[DispatcherResult], histories: Mapping[Dispatcher, Mapping[str, History]], places: Places
) -> list[Alert]:
    """Compare an interval with the notifications sent before; return one alert per dispatcher with news, worst first."""
    alerts = []
    for result in results:
        news = _news(result, histories.get(result.overall.dispatcher, {}))
        if news:
            alerts.append(_alert(result, news, places))
    return sorted(
        alerts,
        key=lambda alert: (
            alert.verdict != FAIL,
            alert.verdict == PASS,
            severity_rank(alert.severity),
            alert.dispatcher,
        ),
    )


def send_news(
    channel: str,
    send: Callable[[Alert], object],
    results: Sequence[DispatcherResult],
    places: Places,
    *,
    give_up_after: int = 3,
) -> tuple[list[Alert], list[tuple[Alert, Exception | None]]]:
    """Send the news to a channel and record them; return the alerts sent, and those not sent with their errors.

    After ``give_up_after`` failures in a row the remaining alerts are not tried (their error is None), so that a server that
    is down is not waited for once per message.
    """
    topics = {result.overall.topic for result in results}
    histories = read_histories(places.warehouse, channel, topics)
    sent: list[Alert] = []
    failed: list[tuple[Alert, Exception | None]] = []
    failures_in_a_row = 0
    for alert in build_alerts(results, histories, places):
        if failures_in_a_row >= give_up_after:
            failed.append((alert, None))
            continue
        try:
            send(alert)
        except Exception as error:  # noqa: BLE001 - whatever a server does must not stop the other alerts
            failed.append((alert, error))
            failures_in_a_row += 1
            continue
        failures_in_a_row = 0
        known = histories.get(alert.dispatcher, {})
        record_sent(
            places.warehouse,
            channel,
            alert.dispatcher,
            [_notification(alert, finding, known) for finding in alert.news],
        )
        sent.append(alert)
    return sent, failed


def _news(result: DispatcherResult, histories: Mapping[str, History]) -> list[AlertFinding]:
    """List the findings that are new, changed or clear: worst first, clear ones last."""
    start = result.overall.interval_start
    news = []
    for finding in result.findings:
        history = histories.get(finding.identity, History())
        state = history.news(start, finding.severity, finding.evidence, goes_on=finding.goes_on)
        if state is not None:
            news.append(_as_news(finding, state, start, history))
    present = {finding.identity for finding in result.findings}
    cleared = []
    for identity, history in histories.items():
        last = history.last_open
        if last is None or identity in present or not history.cleared_by(start):
            continue
        if result.judged(last.kind):
            cleared.append(_as_news(_cleared(last), CLEAR, start, history))
    return [*news, *sorted(cleared, key=lambda finding: finding.rank)]


def _cleared(last: Notification) -> AlertFinding:
    return AlertFinding(
        state=CLEAR,
        kind=last.kind,
        subject=last.subject,
        severity=last.severity,
        uncertain=False,
        count=0,
        positions=(),
        explanation=f"no longer found; last reported for interval {interval(last.interval_start).name}",
        identity=last.identity,
        evidence="",
    )


def _as_news(finding: AlertFinding, state: str, start: datetime, history: History) -> AlertFinding:
    evidence = finding.severity, finding.evidence
    key = idempotency_key(finding.identity, start, state, history.number, evidence)
    return replace(finding, state=state, idempotency_key=key)


def _notification(
    alert: Alert, finding: AlertFinding, histories: Mapping[str, History]
) -> tuple[Notification, str]:
    notification = Notification(
        identity=finding.identity,
        kind=finding.kind,
        subject=finding.subject,
        interval_start=datetime.fromisoformat(alert.interval_start),
        number=histories.get(finding.identity, History()).number,
        state=finding.state,
        severity=finding.severity,
        evidence=finding.evidence,
    )
    return notification, finding.idempotency_key


def _alert(result: DispatcherResult, news: list[AlertFinding], places: Places) -> Alert:
    overall = result.overall
    counts: dict[str, int] = {}
    for finding in result.findings:
        counts[finding.kind] = counts.get(finding.kind, 0) + finding.count
    where = [
        ("Airflow run", places.run),
        ("report", places.report(overall.dispatcher)),
        ("Data Docs", places.of(docs.index_of(places.data_docs, overall.interval_start))),
        ("tables", f"{places.warehouse} (verdicts, anomalies, alerts_sent)"),
    ]
    return Alert(
        idempotency_key=digest(*(finding.idempotency_key for finding in news)),
        cluster=overall.cluster,
        topic=overall.topic,
        subscription=overall.subscription,
        interval=interval(overall.interval_start).name,
        interval_start=overall.interval_start.isoformat(),
        verdict=overall.verdict,
        severity=min(
            (finding.severity for finding in news if finding.state != CLEAR),
            key=severity_rank,
            default="info",
        ),
        promises=tuple(
            (verdict.promise, verdict.verdict, verdict.reason)
            for verdict in result.verdicts.values()
            if verdict.promise != ALL and verdict.verdict != PASS
        ),
        counts=counts,
        news=tuple(news),
        where=tuple((name, target) for name, target in where if target is not None),
    )


class FileAlertSink:
    """Keep alerts as files, one per alert, named after its ``idempotency_key``: an alert that is sent again is one file.

    ``<folder>/<interval>/<key>.json`` has the alert as a JSON object.
    """

    def __init__(self, folder: Place) -> None:
        """``folder``: where alerts are kept; it need not exist."""
        self.folder = Location.of(folder)

    def send(self, alerts: Sequence[Alert]) -> int:
        """Write the alerts that are not there yet, and return their number."""
        fresh = 0
        for alert in alerts:
            place = self.folder / alert.interval / f"{alert.idempotency_key}.json"
            if not place.exists():
                place.write_text(json.dumps(alert.as_json(), ensure_ascii=False) + "\n")
                fresh += 1
        return fresh


def read_alerts(folder: Place) -> list[dict[str, Any]]:
    """Read the alerts of a sink's folder: those of earlier intervals first, then in the order in which they were sent."""
    kept = [stored for stored in Location.of(folder).files() if stored.location.name.endswith(".json")]
    kept.sort(key=lambda stored: (stored.location.parent.name, stored.written))
    return [json.loads(stored.location.read_text()) for stored in kept]
