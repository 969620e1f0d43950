"""``dispatch-audit advise``: the smallest change that would have prevented the order violations of a log."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.policy_file import add_policy_argument, policy_given
from dispatch_core.cli.recordings import (
    Recurring,
    add_as_of_argument,
    add_recording_arguments,
    as_of_given,
    overrides_given,
    progress,
    read_all,
    set_aside,
)
from dispatch_core.cli.selection import (
    Selection,
    add_dispatcher_arguments,
    add_refused_arguments,
    add_time_arguments,
    check_times,
)
from dispatch_core.what_if.rules import SEEDS

#: Options of other commands that mean nothing here.
_REFUSED: Final = {
    "--complete": "a simulation ends with the log's last line",
}
_MOST_SEEDS: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``advise``."""
    parser.description = (
        "Advise the smallest change of release, setting or clients that would have prevented the order violations of a log, "
        "with its probability and side effects. Each change is simulated, as what-if does. Exit codes: 0 there are no more "
        "order violations than the policy tolerates, 1 there are, 2 could not simulate."
    )
    add_recording_arguments(parser, ": one object per dispatcher")
    add_dispatcher_arguments(parser)
    add_policy_argument(parser)
    add_time_arguments(parser)
    add_as_of_argument(parser)
    add_refused_arguments(parser, _REFUSED)
    parser.add_argument(
        "--seeds",
        type=int,
        default=SEEDS,
        metavar="N",
        help="simulations of each change (default %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Advise; returns 0 if nothing is to be prevented, 1 if something is, 2 if a log was not simulated."""
    from dispatch_core.what_if.advise import advice
    from dispatch_core.what_if.advise_text import as_json, for_people
    from dispatch_core.what_if.compare import OrderLimits

    if not 1 <= options.seeds <= _MOST_SEEDS:
        print(f"--seeds {options.seeds}: give a number from 1 to {_MOST_SEEDS}", file=sys.stderr)
        return COULD_NOT_JUDGE
    policy, as_of, overrides = policy_given(options), as_of_given(options), overrides_given(options)
    check_times(options.from_us, as_of)
    selection, recurring = Selection.given(options), Recurring()
    incomplete, needed, count = False, False, 0
    for recording in read_all(options.paths, follow_links=options.follow_links):
        recurring.note(recording)
        for log in (log for logs in selection.dispatchers(recording, overrides, as_of) for log in logs):
            limits = OrderLimits.of(policy.rule_for(log.topic, log.subscription))
            found = advice(log, range(options.seeds), limits, from_us=options.from_us)
            progress("")
            count += 1
            needed |= found.needed
            incomplete |= found.problem is not None
            print(json.dumps(as_json(found), ensure_ascii=False) if options.json else for_people(found))
            sys.stdout.flush()
        problem = set_aside(recording)
        if problem is not None:
            print(f"{problem}; the rest was simulated: mend the log and run again", file=sys.stderr)
        incomplete |= problem is not None or not recording.logs
    if (complaint := recurring.complaint()) is not None:
        print(complaint, file=sys.stderr)
    if selection.complain("advise"):
        return COULD_NOT_JUDGE
    if needed:
        return FINDINGS
    return COULD_NOT_JUDGE if incomplete or not count else CLEAN
