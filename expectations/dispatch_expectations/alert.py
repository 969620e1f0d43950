"""Alerts: what a person is told of a judged interval, each finding once. Pure, but for the tables and the file sink.

A finding is told when it is new, when it has changed and when it is clear (``alert_state``). The news of one subscription
and interval travel in one message, so that a bad hour does not send thousands; in it each finding has its own state,
identity and ``idempotency_key``. What was told stands in the table ``alerts_sent``, channel by channel
(``alert_ledger``). Where nothing is news there is no message, also while a subscription still FAILs as it did.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from dispatch_core.report.names import file_name
from dispatch_expectations import alert_text as text
from dispatch_expectations import data_docs as docs
from dispatch_expectations.alert_ledger import keep, read_histories
from dispatch_expectations.alert_standing import AlertFinding, Standing, severity_rank
from dispatch_expectations.alert_state import CLEAR, History, Told, digest, idempotency_key
from dispatch_expectations.frames import Dispatcher
from dispatch_expectations.promise import ALL, FAIL, PASS

#: Findings that the JSON of an alert lists; the table has all.
MAX_PAYLOAD_FINDINGS: Final = 200


@dataclass(frozen=True, slots=True)
class Places:
    """Where a reader of an alert may look.

    ``reports``: folder of the interval's reports. ``run``: the Airflow run. ``of`` says how a page is written: as a URL, or
    as its path.
    """

    warehouse: Path
    data_docs: Path
    reports: Path | None = None
    run: str | None = None
    of: Callable[[Path], str] = str

    def report(self, dispatcher: Dispatcher) -> str | None:
        """The dispatcher's report, if it was written."""
        path = self.reports / file_name(*dispatcher) if self.reports is not None else None
        return self.of(path) if path is not None and path.exists() else None


@dataclass(frozen=True, slots=True)
class Alert:
    """The news about one dispatcher of one interval.

    ``interval``: its name for people. ``promises``: name, verdict and reason of those that were not kept. ``counts``:
    findings by kind, told before or not. ``news``: worst first, what is clear last. ``where``: names and targets of the
    pages to look at.
    """

    idempotency_key: str
    cluster: str
    topic: str
    subscription: str
    interval: str
    interval_start: str
    verdict: str
    severity: str
    promises: tuple[tuple[str, str, str], ...]
    counts: Mapping[str, int]
    news: tuple[AlertFinding, ...]
    where: tuple[tuple[str, str], ...]

    @property
    def subject(self) -> str:
        """One line for a list of mails."""
        return text.subject(self)

    @property
    def body(self) -> str:
        """Plain text; at most ``alert_text.MAX_QUOTED`` findings are told one by one."""
        return text.body(self, self.quoted(text.MAX_QUOTED))

    @property
    def dispatcher(self) -> Dispatcher:
        """(cluster, topic, subscription)"""
        return self.cluster, self.topic, self.subscription

    def quoted(self, number: int) -> list[AlertFinding]:
        """At most so many of the news, the worst of each kind before the second of any, in the order of the news."""
        kinds: set[tuple[bool, str]] = set()
        ranked = []
        for order, one in enumerate(self.news):
            kind = one.state == CLEAR, one.kind
            ranked.append((kind in kinds, order))
            kinds.add(kind)
        return [self.news[order] for order in sorted(order for _repeat, order in sorted(ranked)[:number])]

    def as_json(self) -> dict[str, Any]:
        """Payload for a webhook or a file: JSON types only, at most ``MAX_PAYLOAD_FINDINGS`` findings."""
        listed = self.quoted(MAX_PAYLOAD_FINDINGS)
        plain = (
            "idempotency_key",
            "cluster",
            "topic",
            "subscription",
            "interval_start",
            "verdict",
            "severity",
        )
        payload = {
            **{name: getattr(self, name) for name in (*plain, "subject", "body")},
            "links": dict(self.where),
            "counts": dict(self.counts),
            "findings": [asdict(one) for one in listed],
            "findings_left_out": len(self.news) - len(listed),
        }
        return json.loads(json.dumps(payload))  # type: ignore[no-any-return]


def build_alerts(
    standings: Iterable[Standing], histories: Mapping[Dispatcher, Mapping[str, History]], places: Places
) -> list[Alert]:
    """The news of an interval beside what was told before: one alert per dispatcher that has any, worst first."""
    alerts = []
    for standing in standings:
        news = _news(standing, histories.get(standing.overall.dispatcher, {}))
        if news:
            alerts.append(_alert(standing, news, places))
    return sorted(
        alerts,
        key=lambda one: (
            one.verdict != FAIL,
            one.verdict == PASS,
            severity_rank(one.severity),
            one.dispatcher,
        ),
    )


def tell(
    channel: str,
    send: Callable[[Alert], object],
    standings: Sequence[Standing],
    places: Places,
    *,
    give_up_after: int = 3,
) -> tuple[list[Alert], list[tuple[Alert, Exception | None]]]:
    """Send what is news to a channel and keep what was sent; returns what was sent, and what was not and why.

    After ``give_up_after`` failures on end the rest is not tried (and has no reason): a server that is down would
    otherwise be waited for once per message.
    """
    topics = {standing.overall.topic for standing in standings}
    histories = read_histories(places.warehouse, channel, topics)
    sent: list[Alert] = []
    failed: list[tuple[Alert, Exception | None]] = []
    on_end = 0
    for alert in build_alerts(standings, histories, places):
        if on_end >= give_up_after:
            failed.append((alert, None))
            continue
        try:
            send(alert)
        except Exception as error:  # noqa: BLE001 - whatever a server does must not stop the other alerts
            failed.append((alert, error))
            on_end += 1
            continue
        on_end = 0
        known = histories.get(alert.dispatcher, {})
        keep(places.warehouse, channel, alert.dispatcher, [_told(alert, one, known) for one in alert.news])
        sent.append(alert)
    return sent, failed


def _news(standing: Standing, histories: Mapping[str, History]) -> list[AlertFinding]:
    """What is new, changed or clear, worst first and what is clear last."""
    start = standing.overall.interval_start
    news = []
    for one in standing.findings:
        history = histories.get(one.identity, History())
        state = history.news(start, one.severity, one.evidence)
        if state is not None:
            news.append(_as_news(one, state, start, history))
    found = {one.identity for one in standing.findings}
    gone = []
    for identity, history in histories.items():
        last = history.standing
        if last is None or identity in found or not history.cleared_by(start):
            continue
        if standing.judged(last.kind):
            gone.append(_as_news(_gone(last), CLEAR, start, history))
    return [*news, *sorted(gone, key=lambda one: one.rank)]


def _gone(last: Told) -> AlertFinding:
    return AlertFinding(
        state=CLEAR,
        kind=last.kind,
        subject=last.subject,
        severity=last.severity,
        uncertain=False,
        count=0,
        positions=(),
        explanation=f"no longer found; last told of interval {docs.interval_name(last.interval_start)}",
        identity=last.identity,
        evidence="",
    )


def _as_news(one: AlertFinding, state: str, start: datetime, history: History) -> AlertFinding:
    key = idempotency_key(one.identity, start, state, history.number, (one.severity, one.evidence))
    return replace(one, state=state, idempotency_key=key)


def _told(alert: Alert, one: AlertFinding, histories: Mapping[str, History]) -> tuple[Told, str]:
    told = Told(
        identity=one.identity,
        kind=one.kind,
        subject=one.subject,
        interval_start=datetime.fromisoformat(alert.interval_start),
        number=histories.get(one.identity, History()).number,
        state=one.state,
        severity=one.severity,
        evidence=one.evidence,
    )
    return told, one.idempotency_key


def _alert(standing: Standing, news: list[AlertFinding], places: Places) -> Alert:
    overall = standing.overall
    counts: dict[str, int] = {}
    for one in standing.findings:
        counts[one.kind] = counts.get(one.kind, 0) + one.count
    where = [
        ("Airflow run", places.run),
        ("report", places.report(overall.dispatcher)),
        ("Data Docs", places.of(docs.index_of(places.data_docs, overall.interval_start))),
        ("tables", f"{places.warehouse} (verdicts, anomalies, alerts_sent)"),
    ]
    return Alert(
        idempotency_key=digest(*(one.idempotency_key for one in news)),
        cluster=overall.cluster,
        topic=overall.topic,
        subscription=overall.subscription,
        interval=docs.interval_name(overall.interval_start),
        interval_start=overall.interval_start.isoformat(),
        verdict=overall.verdict,
        severity=min((one.severity for one in news if one.state != CLEAR), key=severity_rank, default="info"),
        promises=tuple(
            (one.promise, one.verdict, one.reason)
            for one in standing.verdicts.values()
            if one.promise != ALL and one.verdict != PASS
        ),
        counts=counts,
        news=tuple(news),
        where=tuple((name, target) for name, target in where if target is not None),
    )


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
