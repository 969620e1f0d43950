"""Send the alerts of an audited interval: to a file always, by mail and webhook if their Airflow connections exist.

The file is written first. The table ``alerts_sent`` has each channel's notifications, so
that none is sent twice, except when a process is killed between sending and recording; for that case each alert has an
``idempotency_key``. If a channel fails, the others are still used. The verdicts are published before alerts are sent.

``dispatch_audit_smtp`` (type SMTP): server and login; extra ``from_email``, ``to_email`` (one or several, by comma).
``dispatch_audit_webhook`` (type HTTP): ``host`` is the URL; login and extra headers as for Airflow's HTTP hook; extra
``format`` (``json``, or ``slack`` for Slack, Mattermost and similar chats), ``timeout`` in seconds, at most 60, and
``verify`` for a certificate file. Certificates are always verified. The URL is a secret (``webhook``).
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dispatch_airflow.home import Home, StepError, progress
from dispatch_airflow.observability import metrics
from dispatch_airflow.webhook import WebhookError, post

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from dispatch_expectations.alert import Places
    from dispatch_expectations.alert_message import Alert

SMTP_CONNECTION: Final = "dispatch_audit_smtp"
WEBHOOK_CONNECTION: Final = "dispatch_audit_webhook"
#: Shapes of a webhook's body, by the connection's extra field ``format``.
FORMATS: Final = ("json", "slack")
_KEY_HEADER: Final = "X-Dispatch-Audit-Idempotency-Key"
#: Time to wait for another run that is sending its alerts.
_TURN_TIMEOUT_S: Final = 600.0

Send = Callable[["Alert"], object]


def alert(chosen: Mapping[str, str], home: Home, run: str | None = None) -> dict[str, Any]:
    """Send the news of an interval through every channel; return the number of messages per channel.

    ``run``: link to the Airflow run, by default that of the calling task. Raises ``StepError`` naming every alert that
    was not sent and the reason, after all channels were tried.
    """
    from dispatch_expectations.alert import FileAlertSink, send_news
    from dispatch_expectations.dispatcher_results import read_results
    from spark_jobs.intervals import parse_moment

    sent: dict[str, Any] = {}
    failures = []
    with _alert_turn(home):
        results = read_results(home.warehouse, parse_moment(chosen["interval_start"]))
        places = _places(chosen, home, run)
        sink = FileAlertSink(home.alerts)
        for channel, send in {"file": lambda alert: sink.send([alert]), **channels()}.items():
            delivered, failed = send_news(channel, send, results, places)
            sent[channel] = len(delivered)
            metrics.alerted(channel, sent=len(delivered), waiting=len(failed))
            for message in delivered:
                progress.info("%s: %s", channel, message.subject)
            progress.info("%d alerts sent by %s, %d not", len(delivered), channel, len(failed))
            failures += [f"{channel}: {message.subject}: {_why(error)}" for message, error in failed]
            if channel == "file":
                sent |= _counts(delivered)
    metrics.write_file(home)
    if failures:
        raise StepError(
            f"{len(failures)} alerts could not be sent; the verdict stands, and every alert is in {home.alerts}:\n"
            + "\n".join(failures)
        )
    return sent


def send_notice(subject: str, body: str, key: str) -> None:
    """Send a message without findings, such as one about a late run, by mail and webhook.

    ``key``: its idempotency key. Raises ``StepError`` naming the channels that failed, after all were tried.
    """
    failures = []
    smtp, webhook = connection(SMTP_CONNECTION), connection(WEBHOOK_CONNECTION)
    for channel, found, send in (
        ("mail", smtp, lambda: _mail(smtp, subject, _pre(body), key)),
        ("webhook", webhook, lambda: _post(webhook, _plain_body(webhook, subject, body, key), key)),
    ):
        if found is None:
            continue
        try:
            send()
        except Exception as error:  # noqa: BLE001 - an error of one channel must not stop the other
            failures.append(f"{channel}: {_why(error)}")
    if failures:
        raise StepError(f"{subject!r} could not be sent:\n" + "\n".join(failures))


def channels() -> dict[str, Send]:
    """Return the channels whose connections exist, by name."""
    found: dict[str, Send] = {}
    smtp, webhook = connection(SMTP_CONNECTION), connection(WEBHOOK_CONNECTION)
    if smtp is not None:
        found["mail"] = lambda alert: send_mail(alert, smtp)
    if webhook is not None:
        found["webhook"] = lambda alert: send_webhook(alert, webhook)
    return found


def connection(connection_id: str) -> Connection | None:
    """Return an Airflow connection, or None if there is none of this name."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        return None


def send_mail(alert: Alert, smtp: Connection) -> None:
    """Send one alert as a mail."""
    links = [
        f'<a href="{html.escape(target)}">{html.escape(name)}</a>'
        for name, target in alert.where
        if target.startswith(("http://", "https://"))
    ]
    text = _pre(alert.body) + (f"<p>{' · '.join(links)}</p>" if links else "")
    _mail(smtp, alert.subject, text, alert.idempotency_key)


def send_webhook(alert: Alert, webhook: Connection) -> None:
    """Post one alert: as JSON with its text as ``text`` and all fields as ``alert``, or in the format of a chat."""
    from dispatch_expectations.alert_message import chat

    if _format(webhook) == "slack":
        body: dict[str, Any] = {"text": chat(alert)}
    else:
        body = {"text": f"{alert.subject}\n{alert.body}", "alert": alert.as_json()}
    _post(webhook, body, alert.idempotency_key)


def _pre(text: str) -> str:
    """Write ``text`` as HTML that keeps its lines."""
    return f"<pre>{html.escape(text)}</pre>"


def _mail(smtp: Connection | None, subject: str, text: str, key: str) -> None:
    """Send a mail through Airflow's SMTP notifier. ``text`` is HTML."""
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    assert smtp is not None
    extra = smtp.extra_dejson
    recipients = extra.get("to_email")
    if not recipients:
        raise ValueError(f"connection {SMTP_CONNECTION} names no recipient; set to_email in its extra field")
    if extra.get("ssl_context") == "none":
        raise ValueError(
            f"connection {SMTP_CONNECTION} turns the verification of certificates off (ssl_context none); remove it "
            "from its extra field, and set SSL_CERT_FILE in the environment to use an authority of your own"
        )
    # Calling the notifier itself would render names from the logs as templates; `notify` does not.
    SmtpNotifier(
        smtp_conn_id=SMTP_CONNECTION,
        to=recipients,
        subject=subject,
        html_content=text,
        custom_headers={_KEY_HEADER: key},
    ).notify({})


def _post(webhook: Connection | None, body: Mapping[str, Any], key: str) -> None:
    """Post a body to the webhook. Raises ``WebhookError``."""
    assert webhook is not None
    post(webhook, body, key)


def _format(webhook: Connection) -> str:
    named = webhook.extra_dejson.get("format", FORMATS[0])
    if named not in FORMATS:
        raise ValueError(
            f"connection {WEBHOOK_CONNECTION} has the unknown format {named!r} in its extra field; "
            f"use one of {', '.join(FORMATS)}"
        )
    return str(named)


def _plain_body(webhook: Connection | None, subject: str, body: str, key: str) -> dict[str, Any]:
    from dispatch_expectations.alert_message import block

    assert webhook is not None
    text = f"{subject}\n{body}"
    if _format(webhook) == "slack":
        return {"text": block(text)}
    return {"text": text, "alert": {"subject": subject, "body": body, "idempotency_key": key}}


def _places(chosen: Mapping[str, str], home: Home, run: str | None) -> Places:
    """List pages and tables to link to: URLs of Airflow's web server if its address is known, else paths."""
    from dispatch_airflow.pages.links import base_url, page_link
    from dispatch_expectations.alert import Places
    from spark_jobs.intervals import interval
    from spark_jobs.reports.report_pages import folder_of

    base = base_url()
    span = interval(chosen["interval_start"], chosen.get("interval_end"))
    return Places(
        warehouse=home.warehouse,
        data_docs=home.data_docs,
        reports=folder_of(home.reports, span),
        run=run or _this_run(base),
        of=lambda path: page_link(home, path, base),
    )


def _this_run(base: str | None) -> str | None:
    """Return the link to the run of the present task, if there is one."""
    from airflow.sdk import get_current_context

    from dispatch_airflow.pages.links import run_link

    try:
        run = get_current_context()["dag_run"]
    except (RuntimeError, KeyError):
        return None
    return run_link(base, run.dag_id, run.run_id)


def _counts(alerts: list[Alert]) -> dict[str, int]:
    from dispatch_expectations.alert_state import STATES

    states = [finding.state for alert in alerts for finding in alert.news]
    return {state: states.count(state) for state in STATES}


def _why(error: Exception | None) -> str:
    if error is None:
        return "not tried because the alerts before it failed"
    return str(error) if isinstance(error, WebhookError) else f"{type(error).__name__}: {error}"


@contextmanager
def _alert_turn(home: Home) -> Iterator[None]:
    """Let one run at a time compare and record notifications, because a mail cannot be taken back."""
    from spark_jobs.warehouse.records import TurnError, turn

    try:
        with turn(home.turns, "alerts", wait_s=_TURN_TIMEOUT_S):
            yield
    except TurnError:
        raise StepError(
            f"another run has been sending alerts for {_TURN_TIMEOUT_S:.0f} s; no alert of this interval was "
            "sent. The task will be retried; if this happens again, check the mail server and the webhook"
        ) from None
