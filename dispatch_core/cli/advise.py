"""``dispatch-audit advise``: the smallest change that would have prevented the order violations of a log."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import chain
from typing import Final

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.policy_file import add_policy_argument
from dispatch_core.cli.recordings import (
    add_as_of_argument,
    add_recording_arguments,
    overrides_given,
    progress,
)
from dispatch_core.cli.selection import (
    add_dispatcher_arguments,
    add_refused_arguments,
    add_time_arguments,
)
from dispatch_core.cli.simulated_logs import SimulatedLogs, add_seeds_argument, seeds_given

#: Options of other commands that mean nothing here.
_REFUSED: Final = {
    "--complete": "a simulation ends with the log's last line",
}


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
    add_seeds_argument(parser, "simulations of each change")


def run(options: argparse.Namespace) -> int:
    """Advise; returns 0 if nothing is to be prevented, 1 if something is, 2 if a log was not simulated."""
    from dispatch_core.what_if.advise import advice
    from dispatch_core.what_if.advise_text import as_json, for_people

    seeds, recorded = seeds_given(options), SimulatedLogs(options, "advise", overrides_given(options))
    incomplete, needed, count = False, False, 0
    for log, tolerated in chain.from_iterable(recorded):
        found = advice(log, seeds, tolerated, from_us=options.from_us)
        progress("")
        count += 1
        needed |= found.needed
        incomplete |= found.problem is not None
        print(json.dumps(as_json(found), ensure_ascii=False) if options.json else for_people(found))
        sys.stdout.flush()
    if recorded.complain():
        return COULD_NOT_JUDGE
    if needed:
        return FINDINGS
    return COULD_NOT_JUDGE if incomplete or recorded.incomplete or not count else CLEAN
