"""The output of ``diagnose`` for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, listed
from dispatch_core.audit.sentences.names import shown
from dispatch_core.diagnose.answers import Answer, Evidence
from dispatch_core.diagnose.facts import Consumer
from dispatch_core.diagnose.history import History
from dispatch_core.diagnose.known_issues import issue_of
from dispatch_core.times import date_and_clock

if TYPE_CHECKING:
    from dispatch_core.diagnose.recorded import Blocked, Blocker

_LONGEST_VALUE: Final = 120


def of_statistics(history: History, answers: Sequence[Answer], log: Blocked | None) -> list[str]:
    """The lines of one subscription."""
    now = history.now
    head = [shown(now.topic or "(topic not named)"), shown(now.name), now.kind or "no subscription type"]
    head.append(history.broker_version or "release not known")
    elapsed = history.elapsed_us
    moments = counted(len(history.moments), "moment", "moments")
    head.append(moments if elapsed is None else f"{moments} over {duration(elapsed)}")
    lines = ["  ".join(head)]
    for number, answer in enumerate(answers, start=1):
        lines += _answer(number, answer, now.taken_us)
    if log is not None:
        lines.append(f"  log       {_log_says(log, answers[0])}")
    return lines


def _answer(number: int, answer: Answer, taken_us: int | None) -> Iterator[str]:
    waiting = "" if not answer.waiting else f": {counted(answer.waiting, 'entry waits', 'entries wait')}"
    yield f"  {number}. {answer.rule}, {answer.certainty}{waiting}"
    yield f"     {answer.said}"
    if answer.holders:
        yield f"     holder   {'; '.join(map(_holder, answer.holders))}"
    if answer.held_for and list(answer.held_for) != [holder.name for holder in answer.holders]:
        yield f"     for      {listed(answer.held_for)}"
    if answer.since_us is not None:
        ago = (
            ""
            if taken_us is None or taken_us < answer.since_us
            else f", {duration(taken_us - answer.since_us)} before"
        )
        yield f"     since    {date_and_clock(answer.since_us)} UTC{ago}: {answer.since_what}"
    if answer.evidence:
        yield f"     shown by {'; '.join(map(_evidence, answer.evidence))}"
    if answer.decided_by:
        yield f"     decided by {answer.decided_by}"
    yield from _issues(answer.issues)
    for command in answer.commands:
        yield f"     next     {command}"


def _issues(identifiers: Sequence[str]) -> Iterator[str]:
    for identifier in identifiers:
        issue = issue_of(identifier)
        mended = "" if issue.kind == "limit" else f" (mended in: {issue.mended_text})"
        yield f"     known    {identifier} {issue.title}{mended}: {issue.links[0]}"
        yield f"              {issue.cure}"


def _holder(consumer: Consumer) -> str:
    parts = [shown(consumer.name) if consumer.name else "(no name)"]
    if consumer.address:
        parts.append(shown(consumer.address))
    if consumer.unacked is not None:
        parts.append(f"unackedMessages {consumer.unacked:,}")
    if consumer.permits is not None:
        parts.append(f"availablePermits {consumer.permits:,}")
    return ", ".join(parts)


def _evidence(item: Evidence) -> str:
    at = f" (at {item.moments} moments)" if item.moments > 1 else ""
    return f"{item.field} {_value(item.value)}{at}"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return shown(text) if len(text) <= _LONGEST_VALUE else shown(text[: _LONGEST_VALUE - 1] + "…")


def _log_says(log: Blocked, answer: Answer) -> str:
    same = [blocker for blocker in log.blockers if blocker.rule == answer.rule]
    at = date_and_clock(log.at_us)
    if same:
        since = date_and_clock(same[0].since_us)
        return f"the recorded log, which ends at {at} UTC, shows the same: {answer.rule} since {since} UTC"
    rules = (
        listed(dict.fromkeys(blocker.rule for blocker in log.blockers))
        if log.blockers
        else "nothing that waits"
    )
    return f"the recorded log, which ends at {at} UTC, shows {rules}"


def of_log(name: str, blocked: Blocked, most: int) -> list[str]:
    """The lines of one recorded dispatcher: its blockers, the worst first."""
    log = blocked.log
    lines = [
        f"{shown(name)}  {shown(log.topic)}  {shown(log.subscription)}  at {date_and_clock(blocked.at_us)} UTC, level "
        f"{blocked.level or '?'}"
    ]
    if not blocked.blockers:
        return [*lines, "  nothing waits"]
    for number, blocker in enumerate(blocked.blockers[:most], start=1):
        lines += _blocker(number, blocker, blocked.at_us)
    if len(blocked.blockers) > most:
        lines.append(f"  {len(blocked.blockers) - most} more")
    return lines


def _blocker(number: int, blocker: Blocker, at_us: int) -> Iterator[str]:
    messages = counted(blocker.messages, "message", "messages")
    hashes = counted(blocker.hashes, "hash", "hashes")
    certainty = "certain" if blocker.certain else "possible"
    yield f"  {number}. {blocker.rule}, {certainty}: {messages} of {hashes} wait, {blocker.message_s:,.1f} message-seconds"
    yield f"     {blocker.said}"
    if blocker.holder:
        yield f"     holder   {blocker.holder}"
    if blocker.held_for and list(blocker.held_for) != [blocker.holder]:
        yield f"     for      {listed(blocker.held_for)}"
    yield f"     since    {date_and_clock(blocker.since_us)} UTC, {duration(max(at_us - blocker.since_us, 0))} before"
    yield from _issues(blocker.issues)
    if blocker.positions:
        yield f"     oldest   {', '.join(blocker.positions)}"
        yield f"     next     dispatch-audit explain PATH --position {blocker.positions[0]}"
