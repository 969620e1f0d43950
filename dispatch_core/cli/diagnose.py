"""``dispatch-audit diagnose``: say what holds messages, from the broker's statistics, a recorded log, or both."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.broker.versions import parse_version
from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.polling import Polled, add_broker_arguments, numbers
from dispatch_core.cli.recordings import (
    DAY_S,
    add_link_argument,
    add_override_arguments,
    overrides_given,
    progress,
    read_all,
    seconds,
    set_aside,
)
from dispatch_core.cli.selection import Selection, add_refused_arguments
from dispatch_core.diagnose.answers import QUIET, Answer, as_json
from dispatch_core.diagnose.documents import Statistics, documents_in, moments_of
from dispatch_core.diagnose.facts import Subscription, subscriptions_of
from dispatch_core.diagnose.history import History, histories_of
from dispatch_core.diagnose.rules import answers_of
from dispatch_core.errors import DispatchAuditError
from dispatch_core.times import TIME_FORMS

if TYPE_CHECKING:
    from dispatch_core.diagnose.recorded import Blocked
    from dispatch_core.recording.log import DispatcherLog

#: Bytes of a file at most.
_MOST_BYTES: Final = 256 << 20
_RECORDED: Final = ("messages", "events", "trace")
_TEXTS: Final = (".json", ".jsonl", ".txt", ".log", ".out", "")
_BETWEEN_S: Final = 1.2
#: Options of other commands that mean nothing here.
_REFUSED: Final = {
    "--from": "the answer is about a moment, and says since when it is so",
    "--complete": "whatever waits at the moment is named, however short it waits",
    "--policy": "whatever waits is named, tolerated or not; audit takes a policy",
}


class DiagnoseError(DispatchAuditError):
    """Raised when options contradict each other, or a file cannot be written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``diagnose``."""
    parser.description = (
        "Say what holds the messages of each subscription, who, since when, and what to run next: from `pulsar-admin topics "
        "stats` and `stats-internal` (files, - for standard input, or polled), from a recorded log, or from both "
        "(docs/diagnose.md). Exit codes: 0 nothing is held, 1 something is, 2 could not judge, or not all of the input."
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files or folders with statistics of one or several moments, - for standard input, or recordings",
    )
    add_link_argument(parser)
    parser.add_argument("--topic", metavar="TOPIC", help="only this topic; the one to poll")
    parser.add_argument("--subscription", metavar="NAME", help="only this subscription")
    parser.add_argument("--json", action="store_true", help="JSON Lines on stdout (docs/diagnose.md)")
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show subscriptions that nothing holds, and all answers of each",
    )
    add_override_arguments(parser)
    add_refused_arguments(parser, _REFUSED)
    polled = parser.add_argument_group("polling a broker")
    add_broker_arguments(polled, needed=False)
    polled.add_argument(
        "--every",
        type=seconds(DAY_S),
        default=_BETWEEN_S,
        metavar="SECONDS",
        help="between two moments (default: %(default)s)",
    )
    polled.add_argument(
        "--times", type=int, default=2, metavar="N", help="number of moments (default: %(default)s)"
    )
    polled.add_argument(
        "--save", type=Path, metavar="FILE", help="append the moments to a file, for later and for others"
    )
    recorded = parser.add_argument_group("recorded logs")
    recorded.add_argument(
        "--at",
        "--as-of",
        "--to",
        dest="at",
        metavar="TIME",
        help=f"the blockers after the lines up to this time: {TIME_FORMS}; UTC (default: the last line)",
    )
    recorded.add_argument(
        "--top",
        type=int,
        default=5,
        metavar="N",
        help="blockers to show of each dispatcher (default: %(default)s)",
    )


@dataclass(slots=True)
class _Input:
    """The input: documents, recordings, and what could not be used, one line each."""

    documents: list[Statistics] = field(default_factory=list)
    recordings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    broker_version: str | None = None
    settings: dict[str, int | bool] = field(default_factory=dict)


def run(options: argparse.Namespace) -> int:
    """Diagnose; returns 0 if nothing is held, 1 if something is, 2 if nothing or not all could be judged."""
    _check(options)
    overrides = overrides_given(options)
    given = _Input(broker_version=options.broker_version, settings=numbers(overrides.settings))
    _read_paths(options, given)
    if options.admin_url is not None:
        _poll(options, given)
    histories = _histories(options, given)
    logs = list(_logs(options, given)) if given.recordings else []
    for problem in given.problems:
        print(f"dispatch-audit diagnose: {problem}", file=sys.stderr)
    answered = [(history, answers_of(history)) for history in histories]
    answered.sort(key=lambda pair: (-pair[1][0].rank, -(pair[1][0].waiting or 0)))
    _print(options, answered, logs, given.problems)
    if not answered and not logs:
        print(f"dispatch-audit diagnose: {_nothing(options)}", file=sys.stderr)
        return COULD_NOT_JUDGE
    found = any(_is_held(answer) for _, answers in answered for answer in answers[:1])
    found |= any(blocker.rule != "nothing" for _, blocked in logs for blocker in blocked.blockers)
    return FINDINGS if found else COULD_NOT_JUDGE if given.problems else CLEAN


def _check(options: argparse.Namespace) -> None:
    if not options.paths and options.admin_url is None:
        raise DiagnoseError("nothing to read: give a PATH, - for standard input, or --admin-url with --topic")
    if options.admin_url is not None and not options.topic:
        raise DiagnoseError("--admin-url needs --topic; nothing was asked")
    if not 1 <= options.times <= 1000:
        raise DiagnoseError(f"--times {options.times}: give a number from 1 to 1000")
    if options.top < 1:
        raise DiagnoseError(f"--top {options.top}: give a number from 1 on")
    if options.broker_version is not None:
        parse_version(options.broker_version)
    if options.save is not None and options.admin_url is None:
        raise DiagnoseError("--save keeps what is polled: it needs --admin-url")


def _nothing(options: argparse.Namespace) -> str:
    asked = " and ".join(
        f"--{name} {getattr(options, name)}" for name in ("topic", "subscription") if getattr(options, name)
    )
    return (
        f"no subscription matches {asked}"
        if asked
        else "no subscription in what could be read; nothing was answered"
    )


# files --------------------------------------------------------------------------------------------------------------


def _read_paths(options: argparse.Namespace, given: _Input) -> None:
    for path in options.paths:
        if path == "-":
            given.documents += _of_text(given, "standard input", sys.stdin.buffer.read(_MOST_BYTES + 1))
            continue
        files = list(_files(Path(path), given))
        for file in files:
            try:
                with file.open("rb") as opened:
                    data = opened.read(_MOST_BYTES + 1)
            except OSError as error:
                given.problems.append(f"{file}: cannot be read: {error.strerror or error}")
                continue
            given.documents += _of_text(given, str(file), data)


def _files(path: Path, given: _Input) -> Iterator[Path]:
    """Yield the files with statistics at a path; recordings are noted."""
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        if any(_is_recorded(file) for file in inside):
            given.recordings.append(str(path))
        found = [file for file in inside if not _is_recorded(file) and file.suffix.lower() in _TEXTS]
        yield from found
        if not found and not any(map(_is_recorded, inside)):
            given.problems.append(f"{path}: no statistics and no recording in this folder")
    elif path.exists() and not _is_recorded(path):
        yield path
    elif any(character in str(path) for character in "*?["):
        given.recordings.append(str(path))
    elif path.exists():
        given.problems.append(f"{path}: a file of a recording; give its folder")
    else:
        given.problems.append(f"{path}: there is no such file or folder")


def _is_recorded(file: Path) -> bool:
    name = file.name.lower()
    return name.startswith(_RECORDED) and any(form in name for form in (".jsonl", ".parquet"))


def _of_text(given: _Input, name: str, data: bytes) -> list[Statistics]:
    if len(data) > _MOST_BYTES:
        given.problems.append(
            f"{name}: larger than {_MOST_BYTES >> 20} MiB, no output of pulsar-admin; it was left out"
        )
        return []
    found = documents_in(name, data.decode("utf-8-sig", "replace"))
    given.problems += found.problems
    return found.documents


# polling ------------------------------------------------------------------------------------------------------------


def _poll(options: argparse.Namespace, given: _Input) -> None:
    """Ask the broker. What it refuses is a problem; what was read before is answered all the same."""
    from dispatch_core.cli.broker_admin import AdminError

    polled = Polled.of(options, given.broker_version, given.settings)
    text = ""
    try:
        polled.ask([options.topic])
        for number in range(options.times):
            if number:
                progress(f"moment {number + 1} of {options.times}")
                time.sleep(options.every)
            text += polled.moment()
    except AdminError as error:
        polled.problems.append(str(error))
    progress("")
    given.broker_version, given.settings = polled.broker_version, polled.settings
    given.problems += polled.problems
    if text:
        given.documents += documents_in("polled", text).documents
    if options.save is not None and text:
        try:
            with options.save.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            given.problems.append(
                f"--save {options.save}: {error.strerror or error}; the moments were not kept"
            )


# answers ------------------------------------------------------------------------------------------------------------


def _histories(options: argparse.Namespace, given: _Input) -> list[History]:
    moments = moments_of(given.documents)
    read: list[list[Subscription]] = []
    for moment in moments:
        subscriptions = subscriptions_of(moment, given.problems)
        read.append(
            [
                subscription
                for subscription in subscriptions
                if options.subscription in (None, subscription.name)
                and (
                    options.topic is None
                    or subscription.topic is None
                    or _same_topic(options.topic, subscription.topic)
                )
            ]
        )
    version = given.broker_version or next(
        (m.broker_version for m in reversed(moments) if m.broker_version), None
    )
    if len(moments) > 1 and any(moment.taken_us is None for moment in moments):
        given.problems.append(
            "several moments, and the time of some is not known: name the files by time, as "
            "stats-$(date -u +%FT%TZ).json, so that durations can be told"
        )
    return histories_of(read, version, given.settings)


def _same_topic(asked: str, topic: str) -> bool:
    return asked in (topic, topic.rpartition("/")[2]) or topic.startswith(f"{asked}-partition-")


def _is_held(answer: Answer) -> bool:
    return answer.rule not in QUIET


def _logs(options: argparse.Namespace, given: _Input) -> Iterator[tuple[str, Blocked]]:
    """Yield name and blockers of each dispatcher that was recorded."""
    from dispatch_core.diagnose.recorded import blocked_at
    from dispatch_core.explain.subject import moment_of

    overrides = overrides_given(options)
    topics, subscriptions = ([] if name is None else [name] for name in (options.topic, options.subscription))
    selection = Selection(topics, subscriptions)
    for recording in read_all(given.recordings, follow_links=options.follow_links):
        progress("")
        problem = set_aside(recording)
        if problem is not None:
            given.problems.append(f"{problem}; the blockers are found without them")
        for logs in selection.dispatchers(recording, overrides):
            cut = logs
            if options.at is not None:
                starts = [log.start_t_us for log in logs if log.start_t_us is not None]
                at_us = moment_of(options.at, (min(starts, default=0), max(starts, default=0)), "--at")
                cut = _until(logs, at_us)
            blocked = blocked_at(cut)
            if blocked is None:
                given.problems.append(f"{recording.name}: {logs[0].subscription}: no line by then")
            else:
                yield recording.name, blocked


def _until(logs: Sequence[DispatcherLog], at_us: int) -> list[DispatcherLog]:
    from dispatch_core.recording.known_until import logs_until

    return logs_until(list(logs), at_us)


# output -------------------------------------------------------------------------------------------------------------


def _print(
    options: argparse.Namespace,
    answered: Sequence[tuple[History, list[Answer]]],
    logs: Sequence[tuple[str, Blocked]],
    problems: Sequence[str],
) -> None:
    from dispatch_core.cli.diagnose_text import of_log, of_statistics

    recorded = {(blocked.log.topic, blocked.log.subscription): blocked for _, blocked in logs}
    if options.json:
        for history, answers in answered:
            for answer in answers:
                print(json.dumps(as_json(answer) | {"log_agrees": _agrees(history, answer, recorded)}))
        for name, blocked in logs:
            for line in _log_lines(name, blocked, options.top):
                print(json.dumps(line))
        print(
            json.dumps(
                {"kind": "end", "subscriptions": len(answered), "logs": len(logs), "problems": list(problems)}
            )
        )
        return
    quiet = 0
    for history, answers in answered:
        if not options.all and not _is_held(answers[0]) and len(answered) > 1:
            quiet += 1
            continue
        print(
            "\n".join(
                of_statistics(history, answers if options.all else answers[:3], _log_of(history, recorded))
            )
            + "\n"
        )
    if quiet:
        print(f"{quiet} more subscriptions: nothing is held there (--all shows them)\n")
    for name, blocked in logs:
        print("\n".join(of_log(name, blocked, options.top)) + "\n")


def _log_lines(name: str, blocked: Blocked, most: int) -> Iterator[dict[str, Any]]:
    from dispatch_core.diagnose.recorded import as_json as blocker_json

    for blocker in blocked.blockers[:most]:
        yield blocker_json(name, blocked, blocker)


def _log_of(history: History, recorded: Mapping[tuple[str, str], Blocked]) -> Blocked | None:
    """The log of the subscription; statistics without a topic's name go with the only log of the subscription's name."""
    fits = [
        blocked
        for (topic, subscription), blocked in recorded.items()
        if subscription == history.now.name and history.now.topic in (None, topic)
    ]
    return fits[0] if len(fits) == 1 else None


def _agrees(history: History, answer: Answer, recorded: Mapping[tuple[str, str], Blocked]) -> bool | None:
    """True if the log's blockers have the answer's rule; ``None`` = there is no log of the subscription."""
    blocked = _log_of(history, recorded)
    return None if blocked is None else any(blocker.rule == answer.rule for blocker in blocked.blockers)
