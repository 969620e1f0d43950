"""Send alerts and operational messages through every channel, and again until each channel has taken them.

The channels are those of the policy's section ``alerts`` (``dispatch_expectations.alert_routes``); ``channels`` sends by the
type of their connection. Every alert is written to a file first. What a channel waits for is in the home's outbox
(``alert_outbox``) until it was sent, so every run, and the DAG ``dispatch_audit_alerts``, sends what earlier ones could not.
The table ``alerts_sent`` has what each channel was sent, so that nothing is sent twice, except when a process is killed
between sending and recording; for that case each message has an ``idempotency_key``.

A channel that fails hides nothing from the others, and fails no task: it is tried again later. A task fails if somebody must
act, because a channel is set up wrongly, or has failed for a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dispatch_airflow.channels import KEEP_INCIDENTS, connection
from dispatch_airflow.channels import send as send_message
from dispatch_airflow.home import Home, StepError, progress
from dispatch_airflow.observability import metrics
from dispatch_airflow.webhook import ChannelError, ChannelSetupError
from dispatch_core.errors import DispatchAuditError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from dispatch_expectations.alert import Places
    from dispatch_expectations.alert_message import Alert, Message
    from dispatch_expectations.alert_outbox import Entry, Outage, Outbox
    from dispatch_expectations.alert_routes import AlertRules, Channel
    from dispatch_expectations.dispatcher_results import DispatcherResult
    from dispatch_expectations.frames import Dispatcher

FILE: Final = "file"
#: Time to wait for another run that is sending its alerts.
_TURN_TIMEOUT_S: Final = 600.0
#: Likewise of a message about a run, which any later run sends as well.
_NOTICE_TIMEOUT_S: Final = 60.0
_MOST_FAILURES_SHOWN: Final = 20


class ChannelsError(DispatchAuditError):
    """Channels that somebody must look at. Nothing is lost, and another attempt is made anyway."""


class BusyError(StepError):
    """Another run has been sending alerts for too long."""


@dataclass(frozen=True, slots=True)
class Target:
    """A channel of the policy and its connection; ``found`` is None if Airflow has none of this name."""

    channel: Channel
    found: Connection | None

    def send(self, message: Message) -> None:
        """Send a message. Raises ``ChannelError``, or what the mail library raises."""
        if self.found is None:
            raise ChannelSetupError(
                f"Airflow has no connection {self.channel.connection!r}; create it, or take the channel out of the policy"
            )
        send_message(self.found, message)


@dataclass
class Delivery:
    """The outcome of one pass over the outbox. ``sent``: messages by channel; ``alerts``: those of the file."""

    sent: dict[str, int] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    must_look: list[str] = field(default_factory=list)


def announce(
    chosen: Mapping[str, str], home: Home, run: str | None = None, now: datetime | None = None
) -> None:
    """Note that an interval is about to be judged: if its own run cannot send its alerts, another one does.

    ``run``: link to the Airflow run, by default that of the calling task.
    """
    from dispatch_expectations.alert_outbox import announced

    run = run or _this_run()
    _outbox(home).put([announced(chosen["interval_start"], chosen["interval_end"], run, _now(now))])


def alert(
    chosen: Mapping[str, str], home: Home, run: str | None = None, now: datetime | None = None
) -> dict[str, Any]:
    """Send the news of an interval, and all that channels still wait for; return the number of messages per channel.

    ``waiting`` of the result says by channel how many intervals and messages it still waits for, why, and when it is tried
    next. Raises ``ChannelsError`` if somebody must look at a channel, ``StepError`` if another run sends for too long.
    """
    now = _now(now)
    announce(chosen, home, run, now)
    with _alert_turn(home, _TURN_TIMEOUT_S):
        delivery = _deliver(home, now, own=chosen["interval_start"])
    summary: dict[str, Any] = {**delivery.sent, **_counts(delivery.alerts)}
    metrics.write_file(home)
    return _concluded(delivery, summary)


def deliver_due(home: Home, *, at_once: bool = False, now: datetime | None = None) -> dict[str, Any]:
    """Send what channels wait for and what is due; return the number of messages per channel, and ``waiting``.

    ``at_once``: also of channels whose next attempt is later. Cheap if nothing waits. Raises as ``alert`` does.
    """
    outbox = _outbox(home)
    if not outbox.entries():
        progress.info("alerts: nothing waits to be sent")
        return {}
    with _alert_turn(home, _TURN_TIMEOUT_S):
        delivery = _deliver(home, _now(now), at_once=at_once)
    return _concluded(delivery, dict(delivery.sent))


def send_notice(subject: str, body: str, key: str, now: datetime | None = None) -> None:
    """Send a message without findings, such as one about a late run, to the channels of operational messages, once.

    ``key``: its idempotency key. What cannot be sent waits in the outbox. If the home cannot be reached, which may be what
    the message is about, it is sent without the outbox, and ``StepError`` names what was not sent.
    """
    from dispatch_expectations.alert_outbox import NOTICE, Entry

    rules, doubt = _rules()
    body += doubt
    now = _now(now)
    names = [
        target.channel.name for target in _targets(rules) if target.channel.name in rules.of_operations()
    ]
    if not names:
        progress.warning("alerts: no channel takes operational messages; not sent: %s", subject)
        return
    try:
        home = Home.current()
        _outbox(home).put([Entry(name, NOTICE, key, now, subject=subject, body=body) for name in names])
    except Exception as error:
        failures = _send_directly(subject, body, key, rules)
        raise StepError(
            f"{subject!r} could not be put into the outbox ({type(error).__name__}: {error}); it was sent without it"
            + ("" if not failures else ", except by:\n" + "\n".join(failures))
        ) from error
    try:
        with _alert_turn(home, _NOTICE_TIMEOUT_S):
            _deliver(home, now)
    except BusyError:
        progress.warning("alerts: another run is sending; it or the next one sends %r", subject)


def _deliver(home: Home, now: datetime, *, own: str | None = None, at_once: bool = False) -> Delivery:
    """Make one pass over the outbox: announced intervals to the file, then each channel that may be tried.

    ``own``: start of the interval whose task this is.
    """
    from dispatch_expectations.alert_outbox import NOTICE
    from dispatch_expectations.policy import PolicyError, current_policy

    rules, _doubt = _rules()
    targets = _targets(rules)
    outbox, delivery, results = _outbox(home), Delivery(), _Results(home)
    try:
        current_policy()
    except PolicyError as error:
        # Which findings the policy tolerates is not known, but messages about runs can be sent.
        delivery.must_look.append(f"alerts of intervals wait: {error}")
    else:
        _fan_out(home, outbox, targets, results, delivery, now, own)
    _report_outages(home, outbox, targets, rules, now)
    entries, outages = outbox.entries(), outbox.outages()
    if delivery.must_look:
        entries = [entry for entry in entries if entry.kind == NOTICE]
    for target in targets:
        name = target.channel.name
        own_entries = [entry for entry in entries if entry.channel == name]
        outage = outages.get(name)
        delivery.sent.setdefault(name, 0)
        if not own_entries:
            continue
        if outage is None or at_once or outage.allows(now, [entry.since for entry in own_entries]):
            _deliver_to(target, own_entries, outage, home, rules, results, delivery, now)
        else:
            _note_waiting(delivery, name, own_entries, outage)
    _warn_of_channels_that_are_gone(entries, targets)
    return delivery


def _fan_out(
    home: Home,
    outbox: Outbox,
    targets: Sequence[Target],
    results: _Results,
    delivery: Delivery,
    now: datetime,
    own: str | None,
) -> None:
    """Write the files of announced intervals, and let the channels wait for them."""
    from dispatch_expectations.alert import FileAlertSink, send_news
    from dispatch_expectations.alert_outbox import OVERDUE_AFTER

    sink = FileAlertSink(home.alerts)
    names = [target.channel.name for target in targets]
    for entry in outbox.entries():
        if not entry.announced or (entry.key != own and now - entry.since < OVERDUE_AFTER):
            continue
        if entry.key != own:
            progress.warning(
                "alerts: the run of interval %s has not sent its alerts; this one does", entry.key
            )
        written, failed = send_news(
            FILE, lambda message: sink.send(message.alerts), results.of(entry.key), _places(entry, home)
        )
        for _alert, error in failed:
            raise StepError(
                f"the alerts of {entry.key} could not be written to {home.alerts}: {error}"
            ) from error
        delivery.alerts += written
        delivery.sent[FILE] = delivery.sent.get(FILE, 0) + len(written)
        outbox.fan_out(entry, names, now)
    delivery.sent.setdefault(FILE, 0)


def _deliver_to(
    target: Target,
    entries: Sequence[Entry],
    outage: Outage | None,
    home: Home,
    rules: AlertRules,
    results: _Results,
    delivery: Delivery,
    now: datetime,
) -> None:
    """Send a channel what it waits for, oldest first, and note what is left.

    An alert of a subscription waits while an older one of it does; the others go on, also behind a message that the service
    refuses. After three failures in a row the channel is left until its next attempt.
    """
    from dispatch_expectations.alert_outbox import NOTICE, failure

    name, outbox = target.channel.name, _outbox(home)
    behind: set[Dispatcher] = set()
    done: list[Entry] = []
    failures: list[tuple[str, Exception]] = []
    in_a_row = 0
    for entry in entries:
        if in_a_row >= _GIVE_UP_AFTER:
            break
        if entry.kind == NOTICE:
            error = _send_entry(target, entry, home)
            delivery.sent[name] += error is None
            failed = [] if error is None else [(entry.subject, error)]
        else:
            failed, some_sent, complete = _send_interval(
                target, entry, home, rules, results, behind, delivery
            )
            in_a_row = 0 if some_sent else in_a_row
            if not failed and not complete:
                continue
        if not failed:
            done.append(entry)
            outbox.remove([entry])
            in_a_row = 0
            continue
        failures += failed
        in_a_row += sum(not getattr(error, "refused", False) for _subject, error in failed)
    left = [entry for entry in entries if entry not in done]
    if not left:
        outbox.note(name, None)
        return
    if not failures:
        return
    reason = _why(failures[-1][1])
    outage = failure(outage, name, now, reason)
    outbox.note(name, outage)
    for subject, error in failures[:_MOST_FAILURES_SHOWN]:
        progress.warning("%s: not sent: %s: %s", name, subject, _why(error))
    _note_waiting(delivery, name, left, outage)
    if isinstance(failures[-1][1], ChannelSetupError) or outage.is_loud(now):
        delivery.must_look.append(
            f"{name}: failing since {_minute(outage.since)}, {outage.attempts} attempts; {len(left)} intervals or messages "
            f"wait, next attempt {_minute(outage.retry_at)}: {reason}"
        )


#: Failures in a row after which a channel is left until its next attempt.
_GIVE_UP_AFTER: Final = 3


def _send_entry(target: Target, entry: Entry, home: Home) -> Exception | None:
    """Send a message without findings, unless the channel was sent it; return why it was not delivered, or None."""
    from dispatch_expectations.alert_ledger import notices_sent, record_notice
    from dispatch_expectations.alert_message import notice

    name = target.channel.name
    if notices_sent(home.warehouse, name, [entry.key]):
        return None
    try:
        target.send(notice(entry.subject, entry.body, entry.key))
    except Exception as error:  # noqa: BLE001 - whatever a server does must not stop the other channels
        return error
    record_notice(home.warehouse, name, entry.key, entry.subject)
    progress.info("%s: %s", name, entry.subject)
    return None


def _send_interval(
    target: Target,
    entry: Entry,
    home: Home,
    rules: AlertRules,
    results: _Results,
    behind: set[Dispatcher],
    delivery: Delivery,
) -> tuple[list[tuple[str, Exception]], bool, bool]:
    """Send a channel the news of an interval; return failures with their subjects, if any was sent, and if all were.

    ``behind``: subscriptions of which something older waits; those of the failures are added.
    """
    from dispatch_expectations.alert import send_news

    name, found = target.channel.name, results.of(entry.key)
    channel = target.channel
    if target.found is not None and target.found.conn_type in KEEP_INCIDENTS:
        channel = replace(channel, digest_above=None)
    waits = {result.overall.dispatcher for result in found} & behind
    sent, failed = send_news(
        channel,
        lambda message: target.send(message.message()),
        found,
        _places(entry, home),
        rules=rules,
        behind=behind,
        give_up_after=_GIVE_UP_AFTER,
    )
    for alert_sent in sent:
        progress.info("%s: %s", name, alert_sent.subject)
    delivery.sent[name] += len(sent)
    behind |= {alert_failed.dispatcher for alert_failed, _error in failed}
    errors = [(alert_failed.subject, error) for alert_failed, error in failed if error is not None]
    return errors, bool(sent), not failed and not waits


def discard(home: Home, channel: str) -> None:
    """Take out what waits for a channel, such as one that there is no more, and name it in the log."""
    outbox = _outbox(home)
    entries = [entry for entry in outbox.entries() if entry.channel == channel and not entry.announced]
    for entry in entries:
        progress.warning("alerts: discarded for %s: %s %s", channel, entry.kind, entry.subject or entry.key)
    outbox.remove(entries)
    outbox.note(channel, None)
    progress.warning("alerts: %d intervals or messages for %s were discarded", len(entries), channel)


def _report_outages(
    home: Home, outbox: Outbox, targets: Sequence[Target], rules: AlertRules, now: datetime
) -> None:
    """Let the other channels wait for a message about each channel that has failed for long, once per outage."""
    from dispatch_expectations.alert_outbox import NOTICE, Entry

    for name, outage in outbox.outages().items():
        if outage.reported or not outage.is_loud(now):
            continue
        others = [
            target.channel.name
            for target in targets
            if target.channel.name in rules.of_operations() and target.channel.name != name
        ]
        subject = f"[dispatch-audit] The channel {name} has not taken alerts since {_minute(outage.since)}"
        body = (
            f"{outage.attempts} attempts failed, the last one at {_minute(outage.failed_at)}: {outage.reason}\n"
            f"What it was to be sent is kept, and in {home.alerts}. Correct the connection or the service; the channel is "
            f"tried again at {_minute(outage.retry_at)} or, at once, by the DAG dispatch_audit_alerts with try_at_once."
        )
        key = f"outage:{name}:{outage.since.isoformat()}"
        outbox.put(Entry(other, NOTICE, key, now, subject=subject, body=body) for other in others)
        outbox.note(name, replace(outage, reported=True))
        progress.warning("alerts: %s", subject)


def _warn_of_channels_that_are_gone(entries: Sequence[Entry], targets: Sequence[Target]) -> None:
    """Say what waits for channels that neither the policy nor a connection has any more; it is kept."""
    known = {target.channel.name for target in targets}
    gone = [entry.channel for entry in entries if not entry.announced and entry.channel not in known]
    for name in dict.fromkeys(gone):
        progress.warning(
            "alerts: %d intervals or messages wait for the channel %s, which there is no more; they are kept, and sent when "
            "it is back. To drop them, trigger dispatch_audit_alerts with discard %s",
            gone.count(name),
            name,
            name,
        )


def _send_directly(subject: str, body: str, key: str, rules: AlertRules) -> list[str]:
    """Send a message without the outbox; return the channels that failed, with the reasons."""
    from dispatch_expectations.alert_message import notice

    failures = []
    for target in _targets(rules):
        if target.channel.name in rules.of_operations():
            try:
                target.send(notice(subject, body, key))
            except Exception as error:  # noqa: BLE001 - an error of one channel must not stop the other
                failures.append(f"{target.channel.name}: {_why(error)}")
    return failures


def _rules() -> tuple[AlertRules, str]:
    """Read the policy's channels and routes. If they cannot be read, the usual channels are used, and a note says so."""
    from dispatch_expectations.alert_routes import DEFAULT_RULES
    from dispatch_expectations.policy import PolicyError, current_alert_rules

    try:
        return current_alert_rules(), ""
    except PolicyError as error:
        progress.warning("alerts: %s\nThe channels mail and webhook are used.", error)
        return DEFAULT_RULES, f"\n\nThe channels of the policy could not be read:\n{error}"


def _targets(rules: AlertRules) -> list[Target]:
    """List the channels that are used, with their connections."""
    found = [Target(channel, connection(channel.connection)) for channel in rules.channels]
    return [target for target in found if target.found is not None or target.channel.required]


class _Results:
    """The results of intervals, each read once in a pass."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._read: dict[str, list[DispatcherResult]] = {}

    def of(self, interval_start: str) -> list[DispatcherResult]:
        """Return the results of the interval that starts then."""
        from dispatch_expectations import dispatcher_results
        from spark_jobs.intervals import parse_moment

        if interval_start not in self._read:
            self._read[interval_start] = dispatcher_results.read_results(
                self._home.warehouse, parse_moment(interval_start)
            )
        return self._read[interval_start]


def _concluded(delivery: Delivery, summary: dict[str, Any]) -> dict[str, Any]:
    """Log what a pass did and return its summary; raise ``ChannelsError`` if somebody must look at a channel."""
    for name, number in delivery.sent.items():
        progress.info("%d alerts sent by %s", number, name)
        metrics.alerted(name, sent=number, waiting=delivery.waiting.get(name, {}).get("waiting", 0))
    for name, waits in delivery.waiting.items():
        progress.warning(
            "%s: %d intervals or messages wait; next attempt %s: %s",
            name,
            waits["waiting"],
            waits["next_attempt"],
            waits["reason"],
        )
    if delivery.must_look:
        raise ChannelsError(
            "channels that somebody must look at; the verdicts stand, and what was not sent is kept and tried again:\n"
            + "\n".join(delivery.must_look)
        )
    return summary | ({"waiting": delivery.waiting} if delivery.waiting else {})


def _note_waiting(delivery: Delivery, name: str, left: Sequence[Entry], outage: Outage) -> None:
    delivery.waiting[name] = {
        "waiting": len(left),
        "next_attempt": _minute(outage.retry_at),
        "reason": outage.reason,
    }


def _outbox(home: Home) -> Outbox:
    from dispatch_expectations.alert_outbox import Outbox

    return Outbox(home.outbox)


def _now(now: datetime | None) -> datetime:
    return now or datetime.now(UTC)


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _places(entry: Entry, home: Home) -> Places:
    """List pages and tables to link to: URLs of Airflow's web server if its address is known, else paths."""
    from dispatch_airflow.pages.links import base_url, page_link
    from dispatch_expectations.alert import Places
    from spark_jobs.intervals import interval
    from spark_jobs.reports.report_pages import folder_of

    base = base_url()
    span = interval(entry.key, entry.interval_end)
    return Places(
        warehouse=home.warehouse,
        data_docs=home.data_docs,
        reports=folder_of(home.reports, span),
        run=entry.run,
        of=lambda path: page_link(home, path, base),
    )


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


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, ChannelError) else f"{type(error).__name__}: {error}"


@contextmanager
def _alert_turn(home: Home, wait_s: float) -> Iterator[None]:
    """Let one run at a time compare and record notifications, because a mail cannot be taken back."""
    from spark_jobs.warehouse.records import TurnError, turn

    try:
        with turn(home.turns, "alerts", wait_s=wait_s):
            yield
    except TurnError:
        raise BusyError(
            f"another run has been sending alerts for {wait_s:.0f} s; what this one has to send is kept in the outbox. "
            "The task will be retried; if this happens again, check the mail server and the webhook"
        ) from None
