"""``dispatch-audit stats``: show what ``pulsar-admin topics stats`` would have shown at a moment, and what led to it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Final

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.recordings import (
    add_as_of_argument,
    add_recording_arguments,
    as_of_given,
    overrides_given,
    progress,
    read_all,
    seconds,
    set_aside,
)
from dispatch_core.cli.selection import Selection, add_dispatcher_arguments, add_refused_arguments
from dispatch_core.errors import DispatchAuditError
from dispatch_core.times import TIME_FORMS

if TYPE_CHECKING:
    from dispatch_core.recording.log import DispatcherLog

#: Thirty years: the window is all of the log.
_LONGEST_WINDOW_S = 999_999_999.0
_TIME = f"{TIME_FORMS}; UTC"
#: Options of other commands that mean nothing here.
_REFUSED: Final = {
    "--complete": "the statistics are those of a moment, and nothing that still waits then is judged",
    "--policy": "statistics are counts, and no policy judges them; audit takes a policy",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``stats``."""
    add_recording_arguments(parser, ": one object per dispatcher (docs/stats.md)")
    add_as_of_argument(parser)
    add_dispatcher_arguments(parser)
    add_refused_arguments(parser, _REFUSED)
    parser.add_argument(
        "--at",
        "--to",
        dest="at",
        metavar="TIME",
        help=f"show the state after the lines up to this time: {_TIME} (default: the last line, or --as-of)",
    )
    parser.add_argument(
        "--from",
        dest="begin",
        metavar="TIME",
        help="begin rates, reads, peaks and keys that changed consumer at this time (default: the first line)",
    )
    parser.add_argument(
        "--window",
        type=seconds(_LONGEST_WINDOW_S),
        default=60.0,
        metavar="SECONDS",
        help="msgRateOut is an average over so long before the moment (default: 60, the broker's own period)",
    )


def run(options: argparse.Namespace) -> int:
    """Show all dispatchers; returns 0 shown, 1 decisions before differ from the rules, 2 nothing or not all was shown."""
    overrides = overrides_given(options)
    selection = Selection.given(options)
    shown = different = 0
    incomplete = False
    for recording in read_all(options.paths, follow_links=options.follow_links):
        progress("")
        problem = set_aside(recording)
        if problem is not None:
            print(f"{problem}; the statistics are made without them", file=sys.stderr)
            incomplete = True
        for logs in selection.dispatchers(recording, overrides, as_of_given(options)):
            found = _show(logs, options)
            incomplete |= found is None
            shown += found is not None
            different += bool(found)
        sys.stdout.flush()
    if not shown:
        if not selection.complain("stats"):
            print(
                "dispatch-audit stats: no dispatcher has a line by then; nothing was shown", file=sys.stderr
            )
        return COULD_NOT_JUDGE
    return FINDINGS if different else COULD_NOT_JUDGE if incomplete else CLEAN


def _show(logs: list[DispatcherLog], options: argparse.Namespace) -> bool | None:
    """Show one dispatcher; returns True if decisions before differ from the rules, ``None`` if nothing could be shown."""
    from dispatch_core.cli.stats_text import for_people
    from dispatch_core.explain.subject import moment_of
    from dispatch_core.replay.moment_statistics import as_json, statistics_at
    from dispatch_core.replay.traced_state import NoStateError

    starts = [log.start_t_us for log in logs if log.start_t_us is not None]
    span_us = (min(starts, default=0), max(starts, default=0))
    at_us, from_us = (
        None if text is None else moment_of(text, span_us, option)
        for option, text in (("--at", options.at), ("--from", options.begin))
    )
    if at_us is not None and from_us is not None and from_us > at_us:
        raise DispatchAuditError(f"--from {options.begin} is later than --at {options.at}; nothing was shown")
    try:
        shown = statistics_at(logs, at_us, from_us=from_us, window_us=round(options.window * 1e6))
    except NoStateError as error:
        print(f"{error}", file=sys.stderr)
        return None
    print(json.dumps(as_json(shown)) if options.json else "\n".join(for_people(shown)) + "\n")
    return shown.differs
