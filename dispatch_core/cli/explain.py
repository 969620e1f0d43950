"""``dispatch-audit explain``: show all that a log records about a key, an entry or a consumer, with the reasons of waits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.recordings import (
    add_as_of_arguments,
    add_recording_arguments,
    as_of_given,
    dispatchers,
    overrides_given,
    progress,
    read_all,
    set_aside,
)
from dispatch_core.times import TIME_FORMS

if TYPE_CHECKING:
    from dispatch_core.explain.explanation import Explanation
    from dispatch_core.recording.log_profile import Overrides
    from dispatch_core.recording.reader import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``explain``."""
    add_recording_arguments(parser, ": one object per moment, then one per recording")
    add_as_of_arguments(parser)
    whom = parser.add_mutually_exclusive_group(required=True)
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
    explained = found = 0
    incomplete = False
    near: dict[str, None] = {}
    complaint = ""
    for recording in read_all(options.paths, follow_links=options.follow_links):
        progress("")
        problem = set_aside(recording)
        if problem is not None:
            print(f"{problem}; the explanation is made without them", file=sys.stderr)
            incomplete = True
        here = here_found = moments = 0
        for result in _explanations(recording, options, overrides):
            if isinstance(result, _Missed):
                complaint = complaint or result.why
                near.update(dict.fromkeys(result.near))
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
    if not explained:
        which = f"; near it: {', '.join(list(near)[:5])}" if near else ""
        print(f"dispatch-audit explain: {complaint or 'no dispatcher was found'}{which}", file=sys.stderr)
        return COULD_NOT_JUDGE
    return FINDINGS if found else COULD_NOT_JUDGE if incomplete else CLEAN


class _Missed:
    """A log that does not hold what was asked for."""

    def __init__(self, why: str, near: tuple[str, ...]) -> None:
        self.why = why
        self.near = near


def _explanations(
    recording: Recording, options: argparse.Namespace, overrides: Overrides
) -> Iterator[Explanation | _Missed]:
    """The explanations of the subject in every log of a recording that holds it."""
    from dispatch_core.explain.explanation import explanation_of, tick_for
    from dispatch_core.explain.record import Record
    from dispatch_core.explain.subject import NothingMatchedError, subject_of
    from dispatch_core.replay.whole_log import audit_whole

    as_of = as_of_given(options)
    for logs in dispatchers(recording, overrides, as_of):
        for number, log in enumerate(logs):
            record = Record.of(log, logs[:number])
            try:
                subject = subject_of(
                    record, key=options.key, position=options.position, consumer=options.consumer
                )
            except NothingMatchedError as error:
                yield _Missed(str(error), error.near)
            else:
                audit = audit_whole(
                    log,
                    earlier=logs[:number],
                    closed=as_of.complete and log is logs[-1],
                    tick_us=tick_for(log),
                )
                yield explanation_of(record, subject, audit)


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
