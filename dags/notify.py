"""Alerts of an audited interval: to the file always, to mail and webhook where their Airflow connections exist.

The file is written first and never depends on a network. Each channel keeps a file of what it has sent, so that a run
that is repeated sends nothing twice; only a process that dies between sending and keeping does (the payload carries an
``idempotency_key`` for that). A channel that fails does not keep the others from sending, and the verdict stands in the
tables before any of this begins.

``dispatch_audit_smtp`` (type SMTP): server and login; extra ``from_email``, ``to_email`` (one or several, by comma).
``dispatch_audit_webhook`` (type HTTP): ``host`` is the URL; login and extra headers as Airflow's HTTP hook takes them;
extra ``timeout`` in seconds, at most 60, and ``verify`` for a certificate file.
"""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dags.steps import Home, StepError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from expectations.alert import Alert

SMTP_CONNECTION: Final = "dispatch_audit_smtp"
WEBHOOK_CONNECTION: Final = "dispatch_audit_webhook"
_TIMEOUT_S: Final = 10.0
_MAX_TIMEOUT_S: Final = 60.0

progress = logging.getLogger("dispatch_audit.progress")

Send = Callable[["Alert"], None]


def alert(chosen: Mapping[str, str], home: Home) -> dict[str, Any]:
    """Send the alerts of an interval through every channel there is; returns how many went where.

    Raises ``StepError`` naming every channel that failed, after all channels were tried.
    """
    from expectations.alert import FileAlertSink, alerts_for_interval
    from spark_jobs.intervals import interval
    from spark_jobs.reports import folder_of

    span = interval(chosen["interval_start"], chosen.get("interval_end"))
    alerts = alerts_for_interval(home.warehouse, span.start, home.data_docs, folder_of(home.reports, span))
    sent = {"alerts": len(alerts), "file": FileAlertSink(home.alerts).send(alerts)}
    for one in alerts:
        progress.info("alert: %s", one.subject)
    progress.info("%d alerts, %d of them new in %s", len(alerts), sent["file"], home.alerts)
    failures = []
    for channel, send in channels().items():
        sent[channel], reasons = _send_new(channel, send, alerts, home)
        progress.info("%d alerts sent by %s", sent[channel], channel)
        failures += reasons
    if failures:
        raise StepError(
            f"{len(failures)} alerts could not be sent; the verdict stands, and every alert is in {home.alerts}:\n"
            + "\n".join(failures)
        )
    return sent


def _send_new(channel: str, send: Send, alerts: list[Alert], home: Home) -> tuple[int, list[str]]:
    """Send what this channel has not sent yet; returns the number sent, and why others were not."""
    from expectations.alert import FileAlertSink, read_alerts

    kept = home.alerts.with_name(f"sent-by-{channel}.jsonl")
    known = {record.get("idempotency_key") for record in read_alerts(kept)}
    sent, failures = 0, []
    for one in alerts:
        if one.idempotency_key in known:
            continue
        try:
            send(one)
        except Exception as error:  # noqa: BLE001 - whatever a mail server or an endpoint does must not stop the others
            failures.append(f"{channel}: {one.subject}: {type(error).__name__}: {error}")
            continue
        FileAlertSink(kept).send([one])
        sent += 1
    return sent, failures


def channels() -> dict[str, Send]:
    """The channels whose connections exist, by name."""
    found: dict[str, Send] = {}
    smtp, webhook = connection(SMTP_CONNECTION), connection(WEBHOOK_CONNECTION)
    if smtp is not None:
        found["mail"] = lambda one: send_mail(one, smtp)
    if webhook is not None:
        found["webhook"] = lambda one: send_webhook(one, webhook)
    return found


def connection(connection_id: str) -> Connection | None:
    """An Airflow connection, or None if there is none of this name."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        return None


def send_mail(alert: Alert, smtp: Connection) -> None:
    """Send one alert as a mail through Airflow's SMTP notifier."""
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    recipients = smtp.extra_dejson.get("to_email")
    if not recipients:
        raise ValueError(f"connection {SMTP_CONNECTION} names no recipient; set to_email in its extra field")
    # `notify` and not a call of the notifier: that would render names from the logs as templates.
    SmtpNotifier(
        smtp_conn_id=SMTP_CONNECTION,
        to=recipients,
        subject=alert.subject,
        html_content=f"<pre>{html.escape(alert.body)}</pre>",
        custom_headers={"X-Dispatch-Audit-Idempotency-Key": alert.idempotency_key},
    ).notify({})


def send_webhook(alert: Alert, webhook: Connection) -> None:
    """Post one alert as JSON; ``text`` is its body, so that Slack-compatible receivers show it."""
    from airflow.providers.http.hooks.http import HttpHook

    extra = webhook.extra_dejson
    timeout_s = min(float(extra.get("timeout") or _TIMEOUT_S), _MAX_TIMEOUT_S)
    # A certificate file may be named; switching verification off is not taken over.
    verify = extra.get("verify") if isinstance(extra.get("verify"), str) else True
    HttpHook(method="POST", http_conn_id=WEBHOOK_CONNECTION).run(
        data=json.dumps({"text": f"{alert.subject}\n{alert.body}", "alert": alert.as_json()}),
        headers={"Content-Type": "application/json", "Idempotency-Key": alert.idempotency_key},
        extra_options={"timeout": timeout_s, "verify": verify, "allow_redirects": False},
    )
