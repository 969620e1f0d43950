"""Send messages through Airflow connections: each type of connection by the notifier or hook of its Airflow provider.

| connection type | sent by | the connection has |
|---|---|---|
| `smtp` | `SmtpNotifier` | server, login; extra `from_email`, `to_email` |
| `http` | `dispatch_airflow.webhook` | the URL as host; extra `format`, `timeout`, `verify` |
| `slackwebhook` | `SlackWebhookHook` | the token as password |
| `pagerduty_events` | `PagerdutyNotifier` | the integration key as password |
| `opsgenie` | `OpsgenieNotifier`, `OpsgenieAlertHook` | the API key as password |
| `apprise` | `AppriseHook` | the services in extra `config` |

What a URL or a key of these would show is a secret, so errors have at most the error's name, its status and the system's own
words. A notifier is used unless it writes the secret to the log (Slack's does, at debug level) or hides that a message was
not delivered (Apprise's ignores the answer): then its hook is. All providers but SMTP's and HTTP's are optional.
"""

from __future__ import annotations

import html
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dispatch_airflow.webhook import ChannelError, ChannelSetupError, post, reason, silent

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from dispatch_expectations.alert_message import Message

#: Shapes of a webhook's body, by the connection's extra field ``format``.
FORMATS: Final = ("json", "slack")
#: Types of connections whose service keeps one incident per subscription, opened and resolved by its messages. A digest of
#: many subscriptions would resolve nothing.
KEEP_INCIDENTS: Final = ("pagerduty_events", "opsgenie")
_KEY_HEADER: Final = "X-Dispatch-Audit-Idempotency-Key"
_LONGEST_SUMMARY: Final = 1024
_LONGEST_TITLE: Final = 130
_LONGEST_DESCRIPTION: Final = 15_000
_PAGERDUTY_SEVERITIES: Final = {"critical": "critical", "major": "error", "minor": "warning", "info": "info"}
_OPSGENIE_PRIORITIES: Final = {"critical": "P1", "major": "P2", "minor": "P3", "info": "P5"}

Answer = TypeVar("Answer")


def connection(connection_id: str) -> Connection | None:
    """Return an Airflow connection, or None if there is none of this name."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        return None


def send(found: Connection, message: Message) -> None:
    """Send a message by the type of the connection.

    Raises:
        ChannelSetupError: the connection lacks something, has a type that is not known, or its provider is not installed.
        ChannelError: the message was not delivered. Has nothing secret.
    """
    sender = _SENDERS.get(found.conn_type)
    if sender is None:
        raise ChannelSetupError(
            f"connection {found.conn_id} has the type {found.conn_type!r}, by which no alert can be sent; "
            f"use one of {', '.join(_SENDERS)}"
        )
    sender(found, message)


def _mail(smtp: Connection, message: Message) -> None:
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    extra = smtp.extra_dejson
    recipients = extra.get("to_email")
    if not recipients:
        raise ChannelSetupError(
            f"connection {smtp.conn_id} names no recipient; set to_email in its extra field"
        )
    if extra.get("ssl_context") == "none":
        raise ChannelSetupError(
            f"connection {smtp.conn_id} turns the verification of certificates off (ssl_context none); remove it "
            "from its extra field, and set SSL_CERT_FILE in the environment to use an authority of your own"
        )
    links = [
        f'<a href="{html.escape(target)}">{html.escape(name)}</a>'
        for name, target in message.links
        if target.startswith(("http://", "https://"))
    ]
    text = f"<pre>{html.escape(message.body)}</pre>" + (f"<p>{' · '.join(links)}</p>" if links else "")
    # Calling the notifier itself would render names from the logs as templates; `notify` does not.
    SmtpNotifier(
        smtp_conn_id=smtp.conn_id,
        to=recipients,
        subject=message.subject,
        html_content=text,
        custom_headers={_KEY_HEADER: message.key},
    ).notify({})


def _webhook(webhook: Connection, message: Message) -> None:
    """Post JSON with the text as ``text`` and all fields as ``alert``, or in the format of a chat."""
    named = webhook.extra_dejson.get("format", FORMATS[0])
    if named not in FORMATS:
        raise ChannelSetupError(
            f"connection {webhook.conn_id} has the unknown format {named!r} in its extra field; "
            f"use one of {', '.join(FORMATS)}"
        )
    if named == "slack":
        body: dict[str, Any] = {"text": message.chat}
    else:
        body = {"text": f"{message.subject}\n{message.body}", "alert": dict(message.payload)}
    post(webhook, body, message.key)


def _slack(slack: Connection, message: Message) -> None:
    with _provider(slack, "slack"):
        from airflow.providers.slack.hooks.slack_webhook import SlackWebhookHook

    def deliver() -> int:
        quiet = logging.Logger("slack", level=logging.CRITICAL + 1)  # the client logs the URL
        hook = SlackWebhookHook(slack_webhook_conn_id=slack.conn_id, logger=quiet)
        return int(hook.client.send(text=message.chat, unfurl_links=False, unfurl_media=False).status_code)

    _expect_ok(slack, _guarded(slack, deliver))


def _pagerduty(pagerduty: Connection, message: Message) -> None:
    with _provider(pagerduty, "pagerduty"):
        from airflow.providers.pagerduty.notifications.pagerduty import PagerdutyNotifier

    notifier = PagerdutyNotifier(
        summary=message.subject[:_LONGEST_SUMMARY],
        severity=_PAGERDUTY_SEVERITIES.get(message.severity, "error"),
        source="dispatch-audit",
        action="resolve" if message.resolves else "trigger",
        dedup_key=message.incident,
        custom_details={"text": message.body[:_LONGEST_DESCRIPTION], "idempotency_key": message.key},
        links=[{"href": target, "text": name} for name, target in message.links if target.startswith("http")],
        pagerduty_events_conn_id=pagerduty.conn_id,
    )
    _guarded(pagerduty, lambda: notifier.notify({}))


def _opsgenie(opsgenie: Connection, message: Message) -> None:
    with _provider(opsgenie, "opsgenie"):
        from airflow.providers.opsgenie.hooks.opsgenie import OpsgenieAlertHook
        from airflow.providers.opsgenie.notifications.opsgenie import OpsgenieNotifier

    text = message.body[:_LONGEST_DESCRIPTION]
    if message.resolves:
        _guarded(
            opsgenie,
            lambda: OpsgenieAlertHook(opsgenie.conn_id).close_alert(
                message.incident, "alias", {"note": text, "source": "dispatch-audit"}
            ),
        )
        return
    payload = {
        "message": message.subject[:_LONGEST_TITLE],
        "alias": message.incident,
        "description": text,
        "priority": _OPSGENIE_PRIORITIES.get(message.severity, "P2"),
        "source": "dispatch-audit",
        "details": {"idempotency_key": message.key, **dict(message.links)},
    }
    _guarded(
        opsgenie, lambda: OpsgenieNotifier(payload=payload, opsgenie_conn_id=opsgenie.conn_id).notify({})
    )


def _apprise(services: Connection, message: Message) -> None:
    with _provider(services, "apprise"):
        import apprise
        from airflow.providers.apprise.hooks.apprise import AppriseHook

    def deliver() -> bool:
        with silent(("apprise",), all_threads=True):
            target = apprise.Apprise()
            AppriseHook(services.conn_id).set_config_from_conn(services, target)
            return bool(target.notify(body=message.body, title=message.subject, tag="all"))

    if not _guarded(services, deliver):
        raise ChannelError(
            f"connection {services.conn_id}: Apprise has no service in it, or one that did not take the message"
        )


_SENDERS: Final[dict[str, Callable[[Connection, Message], None]]] = {
    "smtp": _mail,
    "http": _webhook,
    "slackwebhook": _slack,
    "pagerduty_events": _pagerduty,
    "opsgenie": _opsgenie,
    "apprise": _apprise,
}
#: Loggers of the services' libraries that write URLs or keys.
_LOGGERS: Final = ("pagerduty", "urllib3.connectionpool", "urllib3.util.retry", "requests")


def _expect_ok(found: Connection, status: int) -> None:
    if not 200 <= status < 300:
        raise ChannelError(
            f"connection {found.conn_id}: the service answered with status {status}", status=status
        )


def _guarded(found: Connection, deliver: Callable[[], Answer]) -> Answer:
    """Call a provider and return its answer; what it raises or logs may have a URL or a key in it, and is left out."""
    failed: ChannelError | None = None
    try:
        with silent(_LOGGERS):
            return deliver()
    except Exception as error:  # noqa: BLE001 - whatever the provider raises
        status = getattr(error, "status", None) or getattr(
            getattr(error, "response", None), "status_code", None
        )
        answer = f", status {status}" if status else ""
        failed = ChannelError(f"connection {found.conn_id}: {reason(error)}{answer}", status=status)
    # Raised outside of ``except``: the provider's error must not come along as its context.
    raise failed


@contextmanager
def _provider(found: Connection, name: str) -> Iterator[None]:
    """Turn a failed import of an optional provider into an error that says what to install."""
    try:
        yield
    except ImportError as error:
        raise ChannelSetupError(
            f"connection {found.conn_id} has the type {found.conn_type!r}, whose provider cannot be imported "
            f"({error}); install apache-airflow-providers-{name} where Airflow's tasks run"
        ) from None
