"""``dispatch-audit explain``: show all that a log records about a key, an entry or a consumer, with the reasons of waits."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.policy_file import add_policy_argument, policy_given
from dispatch_core.cli.recordings import (
    add_as_of_arguments,
    add_recording_arguments,
    as_of_given,
    overrides_given,
    progress,
    read_all,
    set_aside,
)
from dispatch_core.cli.selection import Selection, add_selection_arguments, add_time_arguments, check_times
from dispatch_core.times import TIME_FORMS

if TYPE_CHECKING:
    from dispatch_core.audit.policy.rules import PolicyRules
    from dispatch_core.explain.explanation import Explanation
    from dispatch_core.explain.worst import Worst
    from dispatch_core.recording.log import DispatcherLog
    from dispatch_core.recording.log_profile import Overrides
    from dispatch_core.recording.reader import Recording
    from dispatch_core.replay.whole_log import WholeAudit

#: Dispatchers that are listed without a subject.
_MOST_LISTED: Final = 10
_WIDTH: Final = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``explain``."""
    parser.description = (
        "Show all that a log records about a key, an entry or a consumer, with the reasons of its waits. Without --key, "
        "--position and --consumer it lists what is worst, and explains the first of it."
    )
    add_recording_arguments(parser, ": one object per moment, then one per recording")
    add_as_of_arguments(parser)
    add_time_arguments(parser)
    add_selection_arguments(parser, "only what a fault concerns")
    add_policy_argument(parser)
    whom = parser.add_mutually_exclusive_group()
    whom.add_argument(
        "--key", metavar="K", help="a key: its text, base64:… of its bytes, or h31:… (its murmur hash)"
    )
    whom.add_argument("--position", metavar="L:E", help="an entry")
    whom.add_argument("--consumer", metavar="NAME", help="a consumer, by name or by its number in the log")
    parser.add_argument(
        "--at",
        metavar="TIME",
        help=f"show the state at this time: {TIME_FORMS}; UTC",
    )


def run(options: argparse.Namespace) -> int:
    """Explain in all recordings; returns 0 explained, 1 a fault concerns it, 2 nothing matched or a log is incomplete."""
    overrides = overrides_given(options)
    check_times(options.from_us, as_of_given(options))
    asked = _Asked(options, overrides, Selection.given(options), policy_given(options))
    if options.key is options.position is options.consumer is None:
        return _run_worst(asked)
    explained = found = 0
    incomplete = False
    near: dict[str, None] = {}
    complaint = ""
    for recording in _recordings(asked):
        here = here_found = moments = 0
        for result in _explanations(recording, asked):
            if isinstance(result, _Missed):
                complaint = complaint or result.why
                near.update(dict.fromkeys(result.near))
                continue
            if options.failed_only and not result.found:
                continue
            here += 1
            here_found += result.found
            moments += len(result.moments)
            incomplete |= any(row["kind"] == "log_gap" for row in result.anomalies)
            _print(recording.name, result, options)
        if options.json and here:
            print(json.dumps({"explained": recording.name, "entries": moments, "anomalies": here_found}))
        explained += here
        found += here_found
        sys.stdout.flush()
    if not explained and not asked.selection.complain("explain"):
        which = f"; near it: {', '.join(list(near)[:5])}" if near else ""
        print(f"dispatch-audit explain: {complaint or 'no dispatcher was found'}{which}", file=sys.stderr)
    if not explained:
        return COULD_NOT_JUDGE
    return FINDINGS if found else COULD_NOT_JUDGE if incomplete or asked.set_aside else CLEAN


@dataclass(slots=True)
class _Asked:
    """The options of a call; ``set_aside`` becomes true if rows of a log could not be read."""

    options: argparse.Namespace
    overrides: Overrides
    selection: Selection
    policy: PolicyRules
    set_aside: bool = False


def _recordings(asked: _Asked) -> Iterator[Recording]:
    for recording in read_all(asked.options.paths, follow_links=asked.options.follow_links):
        progress("")
        problem = set_aside(recording)
        if problem is not None:
            print(f"{problem}; the explanation is made without them", file=sys.stderr)
            asked.set_aside = True
        yield recording


def _run_worst(asked: _Asked) -> int:
    """List the worst of each dispatcher, and explain the worst of all of them."""
    from dispatch_core.explain.explanation import explanation_of
    from dispatch_core.explain.record import Record
    from dispatch_core.explain.subject import subject_of
    from dispatch_core.explain.worst import worst_of

    listed: list[_Listed] = []
    worst: tuple[_Listed, Record, WholeAudit] | None = None
    met = 0
    for recording in _recordings(asked):
        for log, earlier, audit in _audited(recording, asked):
            met += 1
            of_log = worst_of(log, audit)
            if of_log is None or (asked.options.failed_only and of_log.kind is None):
                continue
            listed.append(_Listed(recording.name, log.topic, log.subscription, log.incarnation, of_log))
            if worst is None or of_log.order < worst[0].worst.order:
                worst = listed[-1], Record.of(log, earlier), audit
    if not met:
        if not asked.selection.complain("explain"):
            print("dispatch-audit explain: no dispatcher was found", file=sys.stderr)
        return COULD_NOT_JUDGE
    listed.sort(key=lambda entry: entry.worst.order)
    if worst is None:
        if not asked.options.json:
            print(
                f"{met} incarnations of dispatchers: no finding, and nothing waited longer than a delivery takes"
            )
        return COULD_NOT_JUDGE if asked.set_aside else CLEAN
    _print_listed(listed, met, asked.options)
    entry, record, audit = worst
    explanation = explanation_of(
        record, subject_of(record, **entry.worst.subject), audit, asked.options.from_us
    )
    _print(entry.recording, explanation, asked.options)
    return FINDINGS if explanation.found else COULD_NOT_JUDGE if asked.set_aside else CLEAN


@dataclass(frozen=True, slots=True)
class _Listed:
    """The worst of an incarnation of a dispatcher."""

    recording: str
    topic: str
    subscription: str
    incarnation: int
    worst: Worst


def _print_listed(listed: list[_Listed], met: int, options: argparse.Namespace) -> None:
    from dispatch_core.audit.sentences.names import shown

    if options.json:
        for entry in listed:
            of_entry = {
                name: getattr(entry, name) for name in ("recording", "topic", "subscription", "incarnation")
            }
            print(
                json.dumps(
                    {
                        **of_entry,
                        "kind": entry.worst.kind,
                        "subject": entry.worst.subject,
                        "text": entry.worst.text,
                    }
                )
            )
        return
    if met == 1:
        return
    print(f"{len(listed)} of {met} incarnations of dispatchers have a finding or a wait, the worst first:")
    for entry in listed[:_MOST_LISTED]:
        ((what, name),) = entry.worst.subject.items()
        print(f"  {entry.recording}  {shown(entry.topic)}  {shown(entry.subscription)}")
        print(f"    {textwrap.shorten(entry.worst.text, _WIDTH, placeholder=' …')}")
        print(f"    --topic {shlex.quote(entry.topic)} --{what} {shlex.quote(name)}")
    if len(listed) > _MOST_LISTED:
        print(f"  … and {len(listed) - _MOST_LISTED} more: --json lists all")
    print("\nthe first of them:\n")


class _Missed:
    """A log that does not hold what was asked for."""

    def __init__(self, why: str, near: tuple[str, ...]) -> None:
        self.why = why
        self.near = near


def _explanations(recording: Recording, asked: _Asked) -> Iterator[Explanation | _Missed]:
    """The explanations of the subject in every log of a recording that holds it."""
    from dispatch_core.explain.explanation import explanation_of
    from dispatch_core.explain.record import Record
    from dispatch_core.explain.subject import NothingMatchedError, subject_of

    options = asked.options
    for logs in asked.selection.dispatchers(recording, asked.overrides, as_of_given(options)):
        for number, log in enumerate(logs):
            record = Record.of(log, logs[:number])
            try:
                subject = subject_of(
                    record, key=options.key, position=options.position, consumer=options.consumer
                )
            except NothingMatchedError as error:
                yield _Missed(str(error), error.near)
            else:
                yield explanation_of(record, subject, _audit(logs, number, asked), options.from_us)


def _audited(
    recording: Recording, asked: _Asked
) -> Iterator[tuple[DispatcherLog, list[DispatcherLog], WholeAudit]]:
    """Yield each log of the chosen dispatchers, the incarnations before it, and its audit."""
    for logs in asked.selection.dispatchers(recording, asked.overrides, as_of_given(asked.options)):
        for number, log in enumerate(logs):
            yield log, logs[:number], _audit(logs, number, asked)


def _audit(logs: list[DispatcherLog], number: int, asked: _Asked) -> WholeAudit:
    from dispatch_core.explain.explanation import tick_for
    from dispatch_core.replay.whole_log import audit_whole

    log = logs[number]
    options = asked.options
    return audit_whole(
        log,
        earlier=logs[:number],
        limits=asked.policy.rule_for(log.topic, log.subscription).finding_limits,
        from_us=options.from_us,
        closed=options.complete and log is logs[-1],
        tick_us=tick_for(log),
    )


def _print(name: str, explanation: Explanation, options: argparse.Namespace) -> None:
    from dispatch_core.audit.sentences.names import shown
    from dispatch_core.explain.subject import moment_of
    from dispatch_core.explain.tell import tell

    at_us = None if options.at is None else moment_of(options.at, explanation.record.span_us)
    if options.json:
        for line in _json_lines(name, explanation):
            print(json.dumps(line))
        return
    log = explanation.record.log
    print(f"{shown(name)}  {shown(log.topic)}  {shown(log.subscription)}  incarnation {log.incarnation}")
    print("\n".join(tell(explanation, at_us)) + "\n")


def _json_lines(name: str, explanation: Explanation) -> Iterator[dict[str, Any]]:
    log = explanation.record.log
    names = {consumer.number: consumer.name for consumer in explanation.record.history.consumers}
    for moment in explanation.moments:
        yield {
            "recording": name,
            "topic": log.topic,
            "subscription": log.subscription,
            "incarnation": log.incarnation,
            "seq": moment.seq if moment.has_line else None,
            "t_us": moment.t_us,
            "what": moment.what,
            "kind": moment.kind,
            "consumer": moment.consumer,
            "consumer_name": names.get(moment.consumer) if moment.consumer is not None else None,
            "positions": list(moment.positions),
            "hash": moment.hash,
            "reason": moment.reason,
            "holder": moment.holder,
            "held_by_positions": list(moment.held_by),
            "for_ms": None if moment.for_us is None else moment.for_us / 1000,
            "text": moment.text,
        }
