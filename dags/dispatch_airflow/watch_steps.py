"""Step of the DAG ``dispatch_audit_watch``, callable without Airflow: alert what began and ended to hold messages.

It reads what ``dispatch-audit watch-stats --out`` keeps, and rests on nothing else: a run of the same hour finds the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch_airflow import notify
from dispatch_airflow.home import ParameterError, progress
from dispatch_airflow.schedule import HOURLY, last_interval
from dispatch_core.errors import DispatchAuditError

if TYPE_CHECKING:
    from dispatch_core.diagnose.watch import Change

#: Moments of so long before the interval say what was held at its start.
HISTORY: Final = timedelta(hours=3)
#: Subscriptions with news above which one message tells of all.
_MOST_MESSAGES: Final = 20
_MOST_LINES: Final = 200
_MOST_PROBLEMS: Final = 5


class NoStatisticsError(DispatchAuditError):
    """No statistics were kept in an interval."""


def span(
    start: datetime | None, end: datetime | None, now: datetime | None = None
) -> tuple[datetime, datetime]:
    """Return the interval of a run: its data interval, or the last full hour where it has none, as without a schedule."""
    if start is not None and end is not None and start < end:
        return start, end
    return last_interval(HOURLY, now or datetime.now(UTC))


def watch(params: Mapping[str, Any], start: datetime, end: datetime) -> dict[str, Any]:
    """Alert the changes between ``start`` and ``end``; return their numbers, and how many subscriptions are held at the end.

    Raises ``NoStatisticsError`` if nothing was kept then, ``ParameterError`` for parameters that name no folder.
    """
    folder = Path(str(params.get("statistics") or ""))
    if not params.get("statistics") or not folder.is_dir():
        raise ParameterError(
            f"statistics is {str(folder)!r}, which is no folder; nothing was judged. Give the folder of "
            "`dispatch-audit watch-stats --out`, in DISPATCH_AUDIT_STATISTICS or in the form"
        )
    changes, still_held = changes_between(folder, start, end, params.get("settings_file"))
    for subject, body, key in messages(changes, start):
        notify.send_notice(subject, body, key)
    began = sum(change.answer is not None for change in changes)
    return {"began": began, "ended": len(changes) - began, "held": still_held}


def changes_between(
    folder: Path, start: datetime, end: datetime, settings_file: str | None = None
) -> tuple[list[Change], int]:
    """Return what began and ended to hold messages in an interval, and the number of subscriptions held at its end.

    ``settings_file``: of the broker, as ``import-broker-conf`` writes it. Raises ``NoStatisticsError``.
    """
    from dispatch_core.cli.polling import numbers
    from dispatch_core.cli.settings_file import settings_of
    from dispatch_core.diagnose.documents import documents_in, moments_of
    from dispatch_core.diagnose.watch import Watch
    from dispatch_core.times import micros

    start_us, end_us = micros(start), micros(end)
    files = _files(folder, start - HISTORY, end)
    found = [documents_in(file.name, _text(file)) for file in files]
    moments = [moment for documents in found for moment in moments_of(documents.documents)]
    moments = [moment for moment in moments if moment.taken_us is not None and moment.taken_us < end_us]
    if not any(moment.taken_us is not None and moment.taken_us >= start_us for moment in moments):
        raise NoStatisticsError(
            f"{folder}: no statistics of {start:%Y-%m-%d %H:%M} to {end:%H:%M} UTC; nothing was judged. See that "
            "`dispatch-audit watch-stats --out` is running and writes to this folder"
        )
    settings = numbers(settings_of([Path(settings_file)])) if settings_file else {}
    version = next((moment.broker_version for moment in reversed(moments) if moment.broker_version), None)
    watch = Watch(version, settings)
    problems = [problem for documents in found for problem in documents.problems]
    changes = [change for moment in moments for change in watch.take_moment(moment, problems)]
    for problem in problems[:_MOST_PROBLEMS]:
        progress.warning("statistics: %s", problem)
    if len(problems) > _MOST_PROBLEMS:
        progress.warning("statistics: ... and %d more that could not be used", len(problems) - _MOST_PROBLEMS)
    news = [change for change in changes if start_us <= change.t_us < end_us]
    for change in news:
        progress.info("%s", change)
    return news, len(watch.held_now())


def messages(changes: Sequence[Change], start: datetime) -> list[tuple[str, str, str]]:
    """Write subject, text and idempotency key of the messages about an interval: one per subscription, or one for many."""
    by_subscription: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        by_subscription.setdefault((change.topic or "", change.subscription), []).append(change)
    hour = f"{start.astimezone(UTC):%Y-%m-%dT%H:%MZ}"
    if len(by_subscription) > _MOST_MESSAGES:
        subject = f"[dispatch-audit] {len(by_subscription)} subscriptions: messages are held, or no longer"
        return [(subject, _body(changes), f"watch:{hour}")]
    return [
        (_subject(name, news), _body(news), f"watch:{hour}:{name[0]}:{name[1]}")
        for name, news in by_subscription.items()
    ]


def _subject(name: tuple[str, str], news: Sequence[Change]) -> str:
    from dispatch_core.audit.sentences.names import shown

    last = news[-1].answer
    state = "nothing is held any more" if last is None else f"messages are held ({last.rule})"
    return f"[dispatch-audit] {shown(name[0])} / {shown(name[1])}: {state}"


def _body(changes: Sequence[Change]) -> str:
    lines: list[str] = []
    for change in changes[:_MOST_LINES]:
        lines.append(str(change))
        if change.answer is not None:
            lines.append(f"    {change.answer.said}")
            lines += [f"    next: {command}" for command in change.answer.commands]
    if len(changes) > _MOST_LINES:
        lines.append(f"... and {len(changes) - _MOST_LINES} more; the log of the task has them")
    return "\n".join(lines)


def _files(folder: Path, start: datetime, end: datetime) -> list[Path]:
    """Return the files of the hours of an interval that are there, oldest first."""
    from dispatch_core.diagnose.watch import kept_file

    hour = start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    found = []
    while hour < end:
        found.append(folder / kept_file(hour))
        hour += timedelta(hours=1)
    return [file for file in found if file.is_file()]


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        raise DispatchAuditError(f"{file}: {error.strerror or error}; nothing was judged") from None
