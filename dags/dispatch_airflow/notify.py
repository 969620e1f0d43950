"""Say what is alerted, and when: the news of an interval, and messages about runs.

An interval is announced before it is judged, and its news are sent when it was judged. A message about a run, such as a
failed or late one, is sent at once. Both go through the outbox, from which ``outbox_delivery`` sends them by the channels of
the policy's section ``alerts`` (``dispatch_expectations.alert_routes``), again until each channel has taken them.

Nothing is sent twice, except when a process is killed between sending and recording; for that case each message has an
``idempotency_key``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dispatch_airflow.home import Home, StepError, progress
from dispatch_airflow.observability import metrics
from dispatch_airflow.outbox_delivery import (
    BusyError,
    Target,
    deliver,
    outbox_of,
    read_rules,
    targets_of,
    why,
)

if TYPE_CHECKING:
    from dispatch_expectations.alert_message import Alert
    from dispatch_expectations.alert_routes import AlertRules

#: Time to wait for another run that is sending, for a message about a run, which any later run sends as well.
_NOTICE_TIMEOUT_S: Final = 60.0


def announce(
    chosen: Mapping[str, str], home: Home, run: str | None = None, now: datetime | None = None
) -> None:
    """Note that an interval is about to be judged: if its own run cannot send its alerts, another one does.

    ``run``: link to the Airflow run, by default that of the calling task.
    """
    from dispatch_expectations.alert_outbox import announced

    run = run or _this_run()
    outbox_of(home).put([announced(chosen["interval_start"], chosen["interval_end"], run, _now(now))])


def alert(
    chosen: Mapping[str, str], home: Home, run: str | None = None, now: datetime | None = None
) -> dict[str, Any]:
    """Send the news of an interval, and all that channels still wait for; return the number of messages per channel.

    ``waiting`` of the result says by channel how many intervals and messages it still waits for, why, and when it is tried
    next. Raises ``ChannelsError`` if somebody must look at a channel, ``StepError`` if another run sends for too long.
    """
    now = _now(now)
    announce(chosen, home, run, now)
    delivery = deliver(home, now, own=chosen["interval_start"])
    metrics.write_file(home)
    return delivery.conclude() | _counts(delivery.alerts)


def send_notice(
    subject: str,
    body: str,
    key: str,
    now: datetime | None = None,
    *,
    to: Callable[[AlertRules], Sequence[str]] | None = None,
) -> tuple[str, ...]:
    """Send a message without findings, such as one about a late run, once; return the channels that it is for.

    ``key``: its idempotency key. ``to``: gives the channels that the policy names for it; by default those of operational
    messages: somebody is to read these, so that it is logged if there are none. What cannot be sent waits in the outbox.
    If the home cannot be reached, which may be what the message is about, it is sent without the outbox, and ``StepError``
    names what was not sent.
    """
    from dispatch_expectations.alert_outbox import NOTICE, Entry

    rules, doubt = read_rules()
    body += doubt
    now = _now(now)
    wanted = rules.of_operations() if to is None else to(rules)
    targets = [target for target in targets_of(rules) if target.channel.name in wanted]
    names = tuple(target.channel.name for target in targets)
    if not targets:
        if to is None:
            progress.warning("alerts: no channel takes operational messages; not sent: %s", subject)
        return names
    try:
        home = Home.current()
        outbox_of(home).put(
            [Entry(target.channel.name, NOTICE, key, now, subject=subject, body=body) for target in targets]
        )
    except Exception as error:
        failures = _send_directly(targets, subject, body, key)
        raise StepError(
            f"{subject!r} could not be put into the outbox ({type(error).__name__}: {error}); it was sent without it"
            + ("" if not failures else ", except by:\n" + "\n".join(failures))
        ) from error
    try:
        deliver(home, now, turn_timeout_s=_NOTICE_TIMEOUT_S)
    except BusyError:
        progress.warning("alerts: another run is sending; it or the next one sends %r", subject)
    return names


def _send_directly(targets: list[Target], subject: str, body: str, key: str) -> list[str]:
    """Send a message without the outbox; return the channels that failed, with the reasons."""
    from dispatch_expectations.alert_message import notice

    failures = []
    for target in targets:
        try:
            target.send(notice(subject, body, key))
        except Exception as error:  # noqa: BLE001 - an error of one channel must not stop the other
            failures.append(f"{target.channel.name}: {why(error)}")
    return failures


def _this_run() -> str | None:
    """Return the link to the run of the present task, if there is one."""
    from airflow.sdk import get_current_context

    from dispatch_airflow.pages.links import base_url, run_link

    try:
        run = get_current_context()["dag_run"]
    except (RuntimeError, KeyError):
        return None
    return run_link(base_url(), run.dag_id, run.run_id)


def _counts(alerts: list[Alert]) -> dict[str, int]:
    from dispatch_expectations.alert_state import STATES

    states = [finding.state for alert in alerts for finding in alert.news]
    return {state: states.count(state) for state in STATES}


def _now(now: datetime | None) -> datetime:
    return now or datetime.now(UTC)
