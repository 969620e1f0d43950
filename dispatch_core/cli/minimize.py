"""``dispatch-audit minimize``: make the smallest log that still has a finding, and what a maintainer needs to reproduce
it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE
from dispatch_core.cli.policy_file import add_limit_argument, add_policy_argument, policy_given
from dispatch_core.cli.recordings import (
    DAY_S,
    add_as_of_arguments,
    add_recording_arguments,
    as_of_given,
    check_unoccupied,
    overrides_given,
    progress,
    read_all,
    seconds,
    set_aside,
)
from dispatch_core.cli.selection import Selection, add_dispatcher_arguments, add_refused_arguments
from dispatch_core.errors import DispatchAuditError

if TYPE_CHECKING:
    from dispatch_core.audit.limits import Limits
    from dispatch_core.minimize.same_finding import Finding, Wanted
    from dispatch_core.minimize.search import Smallest
    from dispatch_core.recording.log import DispatcherLog
    from dispatch_core.replay.whole_log import WholeAudit

_BUDGET_S: Final = 60.0
#: Options of other commands that mean nothing here.
_REFUSED: Final = {
    "--from": "what came before a finding is part of what causes it, so all earlier lines are searched"
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``minimize``."""
    add_recording_arguments(parser, ": one object about what was written")
    add_as_of_arguments(parser, "--to")
    add_dispatcher_arguments(parser)
    add_refused_arguments(parser, _REFUSED)
    add_policy_argument(parser)
    add_limit_argument(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="write into this folder, which is made"
    )
    parser.add_argument(
        "--finding",
        metavar="KIND",
        help="the kind of finding to keep, such as stuck_key (default: the gravest)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--key", metavar="K", help="the finding about this key: its text, or base64:… of its bytes"
    )
    which.add_argument("--position", metavar="L:E", help="the finding about this entry")
    which.add_argument(
        "--consumer", metavar="N", help="the finding about this consumer, by its number in the log"
    )
    parser.add_argument(
        "--disguise",
        action="store_true",
        help="replace keys by others with the same hashes, and the names of consumers, producers and the topic by new ones",
    )
    parser.add_argument(
        "--budget",
        type=seconds(DAY_S),
        default=_BUDGET_S,
        metavar="SECONDS",
        help="stop the search after so long, with the smallest log by then (default: 60)",
    )


def run(options: argparse.Namespace) -> int:
    """Minimize one finding; returns 0 written, 2 there is no such finding, or rows could not be read."""
    check_unoccupied(options.out)
    selection = Selection.given(options)
    policy = policy_given(options)
    best: _Chosen | None = None
    code = CLEAN
    for recording in read_all(options.paths, follow_links=options.follow_links):
        problem = set_aside(recording)
        if problem is not None:
            print(f"{problem}; they are missing in the smaller log", file=sys.stderr)
            code = COULD_NOT_JUDGE
        for logs in selection.dispatchers(recording, overrides_given(options), as_of_given(options)):
            for log in logs:
                progress(f"auditing {recording.name}")
                limits = policy.rule_for(log.topic, log.subscription).finding_limits
                best = _better(best, _choose(log, options, limits))
    progress("")
    if best is None:
        if not selection.complain("minimize"):
            print(f"dispatch-audit minimize: {_nothing_found(options)}; nothing was written", file=sys.stderr)
        return COULD_NOT_JUDGE
    _report(best, _minimize(best, options), options)
    return code


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The finding to keep, the log that has it, and the log's audit."""

    finding: Finding
    log: DispatcherLog
    audit: WholeAudit
    lines: int  # of the log as it was given; a trace has more than ``log``
    limits: Limits


@dataclass(frozen=True, slots=True)
class _Made:
    """The smallest log and the files that were written. ``kept_names``: what ``--disguise`` had to leave."""

    smallest: Smallest
    files: tuple[tuple[str, str], ...]
    kept_names: str | None
    seconds: float


def _choose(log: DispatcherLog, options: argparse.Namespace, limits: Limits) -> _Chosen | None:
    """Return the finding that is asked for in a log, or in the log of level E within a trace."""
    from dispatch_core.minimize.same_finding import choose, findings_of
    from dispatch_core.recording.rewrite import without_trace
    from dispatch_core.replay.whole_log import audit_whole
    from dispatch_core.verify.trace.runner import is_trace

    if not log.events.num_rows:
        return None
    forms = [log]
    if is_trace(log):
        forms.insert(0, replace(log, events=without_trace(log.events)[0]))
    about = {"key": _key_asked(options.key), "position": options.position, "consumer": options.consumer}
    for form in forms:
        audit = audit_whole(form, closed=options.complete, limits=limits)
        finding = choose(findings_of(audit), options.finding, about)
        if finding is not None:
            return _Chosen(finding, form, audit, log.events.num_rows, limits)
    return None


def _key_asked(text: str | None) -> str | None:
    """Return a key as the tables hold it."""
    return text.removeprefix("base64:") if text is not None else None


def _better(best: _Chosen | None, other: _Chosen | None) -> _Chosen | None:
    from dispatch_core.minimize.same_finding import order_of

    if best is None or other is None:
        return best or other
    return min(best, other, key=lambda chosen: order_of(chosen.finding))


def _nothing_found(options: argparse.Namespace) -> str:
    asked = [f"of kind {options.finding}"] if options.finding else []
    asked += [
        f"about {name} {value}"
        for name in ("key", "position", "consumer")
        if (value := getattr(options, name))
    ]
    return (
        f"no load of a topic has a finding {' '.join(asked)}".rstrip()
        + " by itself (dispatch-audit audit lists them)"
    )


def _minimize(chosen: _Chosen, options: argparse.Namespace) -> _Made:
    from dispatch_core.cli.finding_files import write_files
    from dispatch_core.minimize.same_finding import Wanted
    from dispatch_core.minimize.search import Search

    began = time.monotonic()
    log = chosen.log
    wanted = Wanted(chosen.finding, log, closed=options.complete, limits=chosen.limits, audit=chosen.audit)
    smallest = Search(
        log,
        wanted,
        budget_s=options.budget,
        say=lambda lines, entries: progress(f"{lines} lines and {entries} entries are left"),
    ).run()
    progress("")
    kept_names = None
    if options.disguise:
        smallest, kept_names = _disguised(smallest, wanted)
    files, problem = write_files(smallest.log, smallest.finding, options.out)
    if problem is not None:
        print(f"dispatch-audit minimize: {problem}", file=sys.stderr)
    return _Made(smallest, files, kept_names, time.monotonic() - began)


def _disguised(smallest: Smallest, wanted: Wanted) -> tuple[Smallest, str | None]:
    """Take the names out as far as the finding stays; also return what had to stay."""
    from dispatch_core.minimize.disguise import disguised

    for consumers, topic in ((True, True), (False, True), (True, False), (False, False)):
        log = disguised(smallest.log, consumers=consumers, topic=topic)
        found = wanted.found_in(log, smallest.line_of)
        if found is not None:
            kept = [] if consumers else ["the names of the consumers"]
            kept += [] if topic else ["the name of the topic"]
            return replace(smallest, log=log, finding=found), " and ".join(kept) or None
    raise DispatchAuditError(
        "without its names the log has not the same finding; nothing was written. Run it without --disguise"
    )


def _report(chosen: _Chosen, made: _Made, options: argparse.Namespace) -> None:
    from dispatch_core.audit.sentences.names import shown

    log, smallest = chosen.log, made.smallest
    left = smallest.log
    if options.json:
        found: dict[str, Any] = {
            name: getattr(smallest.finding, name) for name in ("kind", "key", "explanation")
        }
        print(
            json.dumps(
                {
                    "recording": log.recording,
                    "topic": log.topic,
                    "subscription": log.subscription,
                    **found,
                    "positions": [*smallest.finding.positions],
                    "lines_before": chosen.lines,
                    "entries_before": log.messages.num_rows,
                    "lines": left.events.num_rows,
                    "entries": left.messages.num_rows,
                    "minimal": smallest.minimal,
                    "logs_tried": smallest.audits,
                    "seconds": round(made.seconds, 1),
                    "names_kept": made.kept_names,
                    "files": {name: str(options.out / name) for name, _ in made.files},
                }
            )
        )
        return
    print(f"{shown(log.recording)}  {shown(log.topic)}  {shown(log.subscription)}")
    print(f"  {smallest.finding.kind}: {smallest.finding.explanation}")
    end = (
        "nothing more can be left out"
        if smallest.minimal
        else f"stopped after {options.budget:g} s (--budget)"
    )
    print(
        f"  {chosen.lines:,} lines and {log.messages.num_rows:,} entries became {left.events.num_rows:,} and "
        f"{left.messages.num_rows:,} in {made.seconds:.1f} s, {smallest.audits} logs tried; {end}"
    )
    if made.kept_names is not None:
        print(f"  kept, because the finding depends on it: {made.kept_names}")
    for name, what in made.files:
        print(f"  {options.out / name}  {what}")
