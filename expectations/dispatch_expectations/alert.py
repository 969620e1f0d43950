"""Send the alerts of a judged interval, each finding once.

A finding is reported when it is new, when it has changed and when it is clear (``alert_state``). One message has all news of
one subscription and interval, so that a bad hour does not send thousands of messages; in it each finding has its own state,
identity and ``idempotency_key``. If one channel would get more messages of an interval than its limit, it gets one digest.
The table ``alerts_sent`` has the notifications of each channel (``alert_ledger``). Without news no message is sent, even
while a subscription still FAILs as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from dispatch_core.audit.catalogue import PER_KEY_ORDER
from dispatch_core.audit.promises.every import PROMISE_OF_KIND
from dispatch_core.audit.promises.promise import FAIL, PASS
from dispatch_core.report.advice import AdviceShown
from dispatch_core.report.names import file_name
from dispatch_expectations import data_docs as docs
from dispatch_expectations.alert_ledger import read_histories, record_sent
from dispatch_expectations.alert_message import Alert, Digest
from dispatch_expectations.alert_routes import DEFAULT_RULES, AlertRules, Channel
from dispatch_expectations.alert_state import CLEAR, NEW, History, Notification, digest, idempotency_key
from dispatch_expectations.clear_reasons import with_reasons
from dispatch_expectations.dispatcher_results import AlertFinding, DispatcherResult, severity_rank
from dispatch_expectations.frames import Dispatcher
from dispatch_expectations.policy import Policy
from dispatch_expectations.promise import ALL
from spark_jobs.intervals import Interval, interval
from spark_jobs.location import Location
from spark_jobs.warehouse.advice_file import missing
from spark_jobs.warehouse.delta_tables import Place


@dataclass(frozen=True, slots=True)
class Places:
    """Pages and tables that an alert links to.

    ``reports``: folder of the interval's reports. ``run``: link to the Airflow run. ``of``: converts the path of a page to a
    link. ``span``: the interval, by default a day. ``advised``: what would have prevented order violations.
    """

    warehouse: Location
    data_docs: Location
    reports: Location | None = None
    run: str | None = None
    of: Callable[[Location], str] = str
    span: Interval | None = None
    advised: Mapping[Dispatcher, AdviceShown] = field(default_factory=dict)

    def advice(self, dispatcher: Dispatcher, interval_start: datetime) -> AdviceShown:
        """The advice for a dispatcher that breaks the order per key; if nothing was computed, how to compute it."""
        known = self.advised.get(dispatcher)
        return known or missing(self.warehouse, self.span or interval(interval_start), dispatcher)

    def report(self, dispatcher: Dispatcher) -> str | None:
        """The dispatcher's report, if it was written."""
        path = self.reports / file_name(*dispatcher) if self.reports is not None else None
        return self.of(path) if path is not None and path.exists() else None


#: A channel that is told everything, one message per subscription.
EVERYTHING: Final = Channel("", "", digest_above=None)


def build_alerts(
    results: Iterable[DispatcherResult],
    histories: Mapping[Dispatcher, Mapping[str, History]],
    places: Places,
    channel: Channel = EVERYTHING,
    rules: AlertRules = DEFAULT_RULES,
) -> list[Alert]:
    """Compare an interval with the notifications sent before; return one alert per dispatcher with news, worst first.

    ``rules``: of all channels. What they do not give to ``channel`` is left out, unless the channel has reported it before.
    """
    alerts = []
    for result in results:
        overall = result.overall
        routed = not channel.name or rules.takes(channel.name, overall.topic, overall.subscription)
        known = histories.get(overall.dispatcher, {})
        news = [
            finding
            for finding in _news(result, known)
            if finding.state != NEW or (routed and channel.is_severe(finding.severity))
        ]
        if news:
            team = rules.team(overall.topic, overall.subscription)
            alerts.append(_alert(result, news, places, team, resolves=_resolves(news, known)))
    return sorted(
        alerts,
        key=lambda alert: (
            alert.verdict != FAIL,
            alert.verdict == PASS,
            severity_rank(alert.severity),
            alert.dispatcher,
        ),
    )


def _resolves(news: Sequence[AlertFinding], known: Mapping[str, History]) -> bool:
    """True if the news clear all that is open."""
    cleared = {finding.identity for finding in news if finding.state == CLEAR}
    still_open = {identity for identity, history in known.items() if history.last_open is not None}
    return len(cleared) == len(news) and still_open <= cleared


def send_news(
    channel: Channel | str,
    send: Callable[[Alert | Digest], object],
    results: Sequence[DispatcherResult],
    places: Places,
    *,
    rules: AlertRules = DEFAULT_RULES,
    behind: Collection[Dispatcher] = (),
    give_up_after: int = 3,
    policy: Policy | None = None,
) -> tuple[list[Alert], list[tuple[Alert, Exception | None]]]:
    """Send the news to a channel and record them; return the alerts sent, and those not sent with their errors.

    After ``give_up_after`` failures in a row the remaining alerts are not tried (their error is None), so that a server that
    is down is not waited for once per message. An error with a true ``refused`` is about its message alone, and does not
    count. Alerts of the dispatchers ``behind`` are not tried either: something older of them waits. ``policy``: by which the
    interval was judged, by default the present one.
    """
    if isinstance(channel, str):
        channel = replace(EVERYTHING, name=channel)
        rules = DEFAULT_RULES
    topics = {result.overall.topic for result in results}
    histories = read_histories(places.warehouse, channel.name, topics)
    alerts = with_reasons(
        build_alerts(results, histories, places, channel, rules), results, places.warehouse, policy
    )
    failed: list[tuple[Alert, Exception | None]] = [
        (alert, None) for alert in alerts if alert.dispatcher in behind
    ]
    sent: list[Alert] = []
    failures_in_a_row = 0
    for message in _messages([alert for alert in alerts if alert.dispatcher not in behind], channel):
        if failures_in_a_row >= give_up_after:
            failed += [(alert, None) for alert in message.alerts]
            continue
        try:
            send(message)
        except Exception as error:  # noqa: BLE001 - whatever a server does must not stop the other alerts
            failed += [(alert, error) for alert in message.alerts]
            failures_in_a_row += not getattr(error, "refused", False)
            continue
        failures_in_a_row = 0
        record_sent(
            places.warehouse,
            channel.name,
            [
                (alert.dispatcher, *_notification(alert, finding, histories.get(alert.dispatcher, {})))
                for alert in message.alerts
                for finding in alert.news
            ],
        )
        sent += message.alerts
    return sent, failed


def _messages(alerts: list[Alert], channel: Channel) -> list[Alert | Digest]:
    """Make one digest of the alerts if they are more than the channel takes one by one."""
    if channel.digest_above is None or len(alerts) <= channel.digest_above:
        return list(alerts)
    return [Digest(tuple(alerts))]


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
        explanation=f"last reported for interval {interval(last.interval_start).name}",
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


def _alert(
    result: DispatcherResult, news: list[AlertFinding], places: Places, team: str | None, *, resolves: bool
) -> Alert:
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
        team=team,
        resolves=resolves,
        advice=places.advice(overall.dispatcher, overall.interval_start)
        if _breaks_order(result, news)
        else None,
    )


def _breaks_order(result: DispatcherResult, news: Sequence[AlertFinding]) -> bool:
    """True if the order per key is broken, and the news are about that."""
    verdict = result.verdicts.get(PER_KEY_ORDER)
    return (
        verdict is not None
        and verdict.verdict == FAIL
        and any(
            finding.state != CLEAR and PROMISE_OF_KIND.get(finding.kind) == PER_KEY_ORDER for finding in news
        )
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
