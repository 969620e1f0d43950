"""Deliver what waits in the outbox: each pass over it sends what is due, keeps what failed, and says what is left.

Until a channel has taken it, what it waits for is in the home's outbox (``dispatch_expectations.alert_outbox``), so every
pass sends what earlier ones could not. A pass first writes the files of announced intervals and lets the channels wait for
them. Then it tries each channel that may be tried, oldest first. ``channels`` sends by the type of the connection. The
table ``alerts_sent`` has what each channel was sent.

A channel that fails hides nothing from the others, and fails no task: it is tried again later. A task fails if somebody must
act, because a channel is set up wrongly, or has failed for a day.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
TURN_TIMEOUT_S: Final = 600.0
#: Failures in a row after which a channel is left until its next attempt.
_GIVE_UP_AFTER: Final = 3
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
    """The outcome of one pass. ``sent``: messages by channel; ``alerts``: those of the file."""

    sent: dict[str, int] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    must_look: list[str] = field(default_factory=list)

    def conclude(self) -> dict[str, Any]:
        """Log what was sent and what waits; return the messages by channel, and ``waiting`` if something waits.

        Raises ``ChannelsError`` if somebody must look at a channel.
        """
        for name, number in self.sent.items():
            progress.info("%d alerts sent by %s", number, name)
            metrics.alerted(name, sent=number, waiting=self.waiting.get(name, {}).get("waiting", 0))
        for name, waits in self.waiting.items():
            progress.warning(
                "%s: %d intervals or messages wait; next attempt %s: %s",
                name,
                waits["waiting"],
                waits["next_attempt"],
                waits["reason"],
            )
        if self.must_look:
            raise ChannelsError(
                "channels that somebody must look at; the verdicts stand, and what was not sent is kept and tried again:\n"
                + "\n".join(self.must_look)
            )
        return self.sent | ({"waiting": self.waiting} if self.waiting else {})


def deliver(
    home: Home,
    now: datetime,
    *,
    own: str | None = None,
    at_once: bool = False,
    turn_timeout_s: float | None = None,
) -> Delivery:
    """Make one pass over the outbox when no other run makes one.

    ``own``: start of the interval whose task this is. ``at_once``: also try channels whose next attempt is later. Raises
    ``BusyError`` if another run sends for longer than ``turn_timeout_s``, by default ``TURN_TIMEOUT_S``.
    """
    with alert_turn(home, TURN_TIMEOUT_S if turn_timeout_s is None else turn_timeout_s):
        return _Pass(home, now).run(own, at_once=at_once)


def deliver_due(home: Home, *, at_once: bool = False, now: datetime | None = None) -> dict[str, Any]:
    """Send what channels wait for and what is due; return the number of messages per channel, and ``waiting``.

    ``at_once``: also of channels whose next attempt is later. Cheap if nothing waits. Raises as ``notify.alert`` does.
    """
    if not outbox_of(home).entries():
        progress.info("alerts: nothing waits to be sent")
        return {}
    delivery = deliver(home, now or datetime.now(UTC), at_once=at_once)
    metrics.write_file(home)
    return delivery.conclude()


def discard(home: Home, channel: str) -> None:
    """Take out what waits for a channel, such as one that there is no more, and name it in the log."""
    outbox = outbox_of(home)
    entries = [entry for entry in outbox.entries() if entry.channel == channel and not entry.announced]
    for entry in entries:
        progress.warning("alerts: discarded for %s: %s %s", channel, entry.kind, entry.subject or entry.key)
    outbox.remove(entries)
    outbox.note(channel, None)
    metrics.write_file(home)
    progress.warning("alerts: %d intervals or messages for %s were discarded", len(entries), channel)


def outbox_of(home: Home) -> Outbox:
    """Return the outbox of a home."""
    from dispatch_expectations.alert_outbox import Outbox

    return Outbox(home.outbox)


def read_rules() -> tuple[AlertRules, str]:
    """Read the policy's channels and routes. If they cannot be read, the usual channels are used, and a note says so."""
    from dispatch_core.audit.policy.reader import PolicyError
    from dispatch_expectations.alert_routes import DEFAULT_RULES
    from dispatch_expectations.policy import current_alert_rules

    try:
        return current_alert_rules(), ""
    except PolicyError as error:
        progress.warning("alerts: %s\nThe channels mail and webhook are used.", error)
        return DEFAULT_RULES, f"\n\nThe channels of the policy could not be read:\n{error}"


def targets_of(rules: AlertRules) -> list[Target]:
    """List the channels that are used, with their connections."""
    found = [Target(channel, connection(channel.connection)) for channel in rules.channels]
    return [target for target in found if target.found is not None or target.channel.required]


def why(error: Exception) -> str:
    """Say why a channel did not take a message."""
    return str(error) if isinstance(error, ChannelError) else f"{type(error).__name__}: {error}"


@contextmanager
def alert_turn(home: Home, wait_s: float) -> Iterator[None]:
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


class _Pass:
    """One pass over the outbox, which it reads once: each change of the entries returns what they are then."""

    def __init__(self, home: Home, now: datetime) -> None:
        self._home = home
        self._now = now
        self._outbox = outbox_of(home)
        self._entries = self._outbox.entries()
        self._outages = self._outbox.outages()
        self._rules, _note = read_rules()
        self._targets = targets_of(self._rules)
        self._results: dict[str, list[DispatcherResult]] = {}
        self._delivery = Delivery()

    def run(self, own: str | None, *, at_once: bool) -> Delivery:
        """Write announced intervals to the file, then try each channel that may be tried."""
        from dispatch_core.audit.policy.reader import PolicyError
        from dispatch_expectations.alert_outbox import NOTICE
        from dispatch_expectations.policy import current_policy

        delivery = self._delivery
        try:
            current_policy()
        except PolicyError as error:
            # Which findings the policy tolerates is not known, but messages about runs can be sent.
            delivery.must_look.append(f"alerts of intervals wait: {error}")
        else:
            self._fan_out(own)
        self._report_outages()
        if delivery.must_look:
            self._entries = [entry for entry in self._entries if entry.kind == NOTICE]
        for target in self._targets:
            name = target.channel.name
            entries = [entry for entry in self._entries if entry.channel == name]
            outage = self._outages.get(name)
            delivery.sent.setdefault(name, 0)
            if not entries:
                continue
            if outage is None or at_once or outage.allows(self._now, [entry.since for entry in entries]):
                self._deliver_to(target, entries, outage)
            else:
                self._note_waiting(name, entries, outage)
        self._warn_of_channels_that_are_gone()
        return delivery

    def _fan_out(self, own: str | None) -> None:
        """Write the files of announced intervals, and let the channels wait for them."""
        from dispatch_expectations.alert import FileAlertSink, send_news
        from dispatch_expectations.alert_outbox import OVERDUE_AFTER

        sink, delivery = FileAlertSink(self._home.alerts), self._delivery
        names = [target.channel.name for target in self._targets]
        delivery.sent[FILE] = 0
        for entry in [entry for entry in self._entries if entry.announced]:
            if entry.key != own:
                if self._now - entry.since < OVERDUE_AFTER:
                    continue
                progress.warning(
                    "alerts: the run of interval %s has not sent its alerts; this one does", entry.key
                )
            written, failed = send_news(
                FILE,
                lambda message: sink.send(message.alerts),
                self._results_of(entry.key),
                self._places(entry),
            )
            for _alert, error in failed:
                raise StepError(
                    f"the alerts of {entry.key} could not be written to {self._home.alerts}: {error}"
                ) from error
            delivery.alerts += written
            delivery.sent[FILE] += len(written)
            self._entries = self._outbox.fan_out(entry, names, self._now)

    def _report_outages(self) -> None:
        """Let the other channels wait for a message about each channel that has failed for long, once per outage."""
        from dispatch_expectations.alert_outbox import NOTICE, Entry

        for name, outage in list(self._outages.items()):
            if outage.reported or not outage.is_loud(self._now):
                continue
            others = [
                target.channel.name
                for target in self._targets
                if target.channel.name in self._rules.of_operations() and target.channel.name != name
            ]
            subject = (
                f"[dispatch-audit] The channel {name} has not taken alerts since {_minute(outage.since)}"
            )
            body = (
                f"{outage.attempts} attempts failed, the last one at {_minute(outage.failed_at)}: {outage.reason}\n"
                f"What it was to be sent is kept, and in {self._home.alerts}. Correct the connection or the service; the "
                f"channel is tried again at {_minute(outage.retry_at)} or, at once, by the DAG dispatch_audit_alerts with "
                "try_at_once."
            )
            key = f"outage:{name}:{outage.since.isoformat()}"
            self._entries = self._outbox.put(
                Entry(other, NOTICE, key, self._now, subject=subject, body=body) for other in others
            )
            self._outages[name] = replace(outage, reported=True)
            self._outbox.note(name, self._outages[name])
            progress.warning("alerts: %s", subject)

    def _deliver_to(self, target: Target, entries: Sequence[Entry], outage: Outage | None) -> None:
        """Send a channel what it waits for, oldest first, and note what is left.

        An alert of a subscription waits while an older one of it does; the others go on, also behind a message that the
        service refuses. After three failures in a row the channel is left until its next attempt.
        """
        from dispatch_expectations.alert_outbox import NOTICE, failure

        name, delivery = target.channel.name, self._delivery
        behind: set[Dispatcher] = set()
        done: list[Entry] = []
        failures: list[tuple[str, Exception]] = []
        in_a_row = 0
        for entry in entries:
            if in_a_row >= _GIVE_UP_AFTER:
                break
            if entry.kind == NOTICE:
                error = self._send_notice(target, entry)
                delivery.sent[name] += error is None
                failed = [] if error is None else [(entry.subject, error)]
            else:
                failed, some_sent, complete = self._send_interval(target, entry, behind)
                in_a_row = 0 if some_sent else in_a_row
                if not failed and not complete:
                    continue
            if not failed:
                done.append(entry)
                self._outbox.remove([entry])
                in_a_row = 0
                continue
            failures += failed
            in_a_row += sum(not getattr(error, "refused", False) for _subject, error in failed)
        left = [entry for entry in entries if entry not in done]
        if not left:
            self._outbox.note(name, None)
            return
        if not failures:
            return
        reason = why(failures[-1][1])
        outage = failure(outage, name, self._now, reason)
        self._outbox.note(name, outage)
        for subject, error in failures[:_MOST_FAILURES_SHOWN]:
            progress.warning("%s: not sent: %s: %s", name, subject, why(error))
        self._note_waiting(name, left, outage)
        if isinstance(failures[-1][1], ChannelSetupError) or outage.is_loud(self._now):
            delivery.must_look.append(
                f"{name}: failing since {_minute(outage.since)}, {outage.attempts} attempts; {len(left)} intervals or "
                f"messages wait, next attempt {_minute(outage.retry_at)}: {reason}"
            )

    def _send_notice(self, target: Target, entry: Entry) -> Exception | None:
        """Send a message without findings, unless the channel was sent it; return why it was not delivered, or None."""
        from dispatch_expectations.alert_ledger import notices_sent, record_notice
        from dispatch_expectations.alert_message import notice

        name, warehouse = target.channel.name, self._home.warehouse
        if notices_sent(warehouse, name, [entry.key]):
            return None
        try:
            target.send(notice(entry.subject, entry.body, entry.key))
        except Exception as error:  # noqa: BLE001 - whatever a server does must not stop the other channels
            return error
        record_notice(warehouse, name, entry.key, entry.subject)
        progress.info("%s: %s", name, entry.subject)
        return None

    def _send_interval(
        self, target: Target, entry: Entry, behind: set[Dispatcher]
    ) -> tuple[list[tuple[str, Exception]], bool, bool]:
        """Send a channel the news of an interval; return failures with their subjects, if any was sent, and if all were.

        ``behind``: subscriptions of which something older waits; those of the failures are added.
        """
        from dispatch_expectations.alert import send_news

        name, found = target.channel.name, self._results_of(entry.key)
        channel = target.channel
        if target.found is not None and target.found.conn_type in KEEP_INCIDENTS:
            channel = replace(channel, digest_above=None)
        waits = {result.overall.dispatcher for result in found} & behind
        sent, failed = send_news(
            channel,
            lambda message: target.send(message.message()),
            found,
            self._places(entry),
            rules=self._rules,
            behind=behind,
            give_up_after=_GIVE_UP_AFTER,
        )
        for alert_sent in sent:
            progress.info("%s: %s", name, alert_sent.subject)
        self._delivery.sent[name] += len(sent)
        behind |= {alert_failed.dispatcher for alert_failed, _error in failed}
        errors = [(alert_failed.subject, error) for alert_failed, error in failed if error is not None]
        return errors, bool(sent), not failed and not waits

    def _note_waiting(self, name: str, left: Sequence[Entry], outage: Outage) -> None:
        self._delivery.waiting[name] = {
            "waiting": len(left),
            "next_attempt": _minute(outage.retry_at),
            "reason": outage.reason,
        }

    def _warn_of_channels_that_are_gone(self) -> None:
        """Say what waits for channels that neither the policy nor a connection has any more; it is kept."""
        known = {target.channel.name for target in self._targets}
        gone = [e.channel for e in self._entries if not e.announced and e.channel not in known]
        for name in dict.fromkeys(gone):
            progress.warning(
                "alerts: %d intervals or messages wait for the channel %s, which there is no more; they are kept, and sent "
                "when it is back. To drop them, trigger dispatch_audit_alerts with discard %s",
                gone.count(name),
                name,
                name,
            )

    def _results_of(self, interval_start: str) -> list[DispatcherResult]:
        """Return the results of the interval that starts then; each is read once in a pass."""
        from dispatch_expectations import dispatcher_results
        from spark_jobs.intervals import parse_moment

        if interval_start not in self._results:
            self._results[interval_start] = dispatcher_results.read_results(
                self._home.warehouse, parse_moment(interval_start)
            )
        return self._results[interval_start]

    def _places(self, entry: Entry) -> Places:
        """List pages and tables to link to: URLs of Airflow's web server if its address is known, else paths."""
        from dispatch_airflow.pages.links import base_url, page_link
        from dispatch_expectations.alert import Places
        from spark_jobs.intervals import interval
        from spark_jobs.reports.report_pages import folder_of
        from spark_jobs.warehouse.advice_file import read_advice

        home, base = self._home, base_url()
        span = interval(entry.key, entry.interval_end)
        reports = folder_of(home.reports, span)
        return Places(
            warehouse=home.warehouse,
            data_docs=home.data_docs,
            reports=reports,
            run=entry.run,
            of=lambda path: page_link(home, path, base),
            span=span,
            advised=read_advice(reports),
        )


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
