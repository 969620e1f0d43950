"""``dispatch-audit what-if``: simulate the recorded clients and load under other releases and settings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dispatch_core.audit.verdict import FAIL, PASS, UNKNOWN
from dispatch_core.broker import settings
from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.policy_file import add_policy_argument
from dispatch_core.cli.recordings import (
    add_as_of_argument,
    add_recording_arguments,
    overrides_given,
    progress,
)
from dispatch_core.cli.selection import (
    add_refused_arguments,
    add_selection_arguments,
    add_time_arguments,
)
from dispatch_core.cli.simulated_logs import SeedsError, SimulatedLogs, add_seeds_argument, seeds_given
from dispatch_core.errors import ProfileError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.what_if.client_ranges import STOP_US
from dispatch_core.what_if.rules import (
    RECORDED,
    RuleNameError,
    RuleSet,
    asked_for,
    matrix_for,
    priorities_given,
    with_clients,
    with_priorities,
)

if TYPE_CHECKING:
    from dispatch_core.what_if import compare

_LONGEST_STOP_MS: Final = 3_600_000
#: Options of other commands that mean nothing here.
_REFUSED: Final = {
    "--complete": "a simulation ends with the log's last line, and what still waits then is counted as never_sent",
}
#: Dispatchers of a recording that are shown individually to people.
_MOST_TABLES: Final = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``what-if``."""
    parser.description = (
        "Simulate the recorded clients and load under other rules, and compare. --set and --broker-version change the "
        "recorded rules; --rules NAME names rules such as 4.2.4-classic-ch; --matrix compares all rules. The simulation "
        "never reads the recorded deliveries. Exit codes: 0 no order violation predicted that the policy does not tolerate, "
        "1 some are, 2 could not simulate."
    )
    add_recording_arguments(parser, ": one object per dispatcher and rules, then one per group of topics")
    add_selection_arguments(
        parser, "show only rules under which more order violations are predicted than the policy tolerates"
    )
    add_policy_argument(parser)
    add_time_arguments(parser)
    add_as_of_argument(parser)
    add_refused_arguments(parser, _REFUSED)
    parser.add_argument(
        "--rules",
        action="append",
        default=[],
        metavar="NAME",
        help="VARIANT or RELEASE-VARIANT; variants: ch, range, classic-ch, classic-range, modulo, ring; or a proposal "
        "instead of the variant: pip-474, pip-474-replay-queue, pip-486, pip-493; clients that divide the hash space "
        "themselves: node-ranges (equal), node-ranges-100 (100 points each); a plug-in, alone or behind a variant: "
        "rate-split, ch+per-key-position (docs/proposed-rules.md); may be given again",
    )
    parser.add_argument(
        "--reindex-ms",
        type=int,
        default=STOP_US // 1000,
        metavar="N",
        help="node-ranges: how long all nodes are stopped when one is added or removed (default %(default)s)",
    )
    parser.add_argument("--matrix", action="store_true", help="compare all rules")
    parser.add_argument(
        "--priority-level",
        action="append",
        default=[],
        dest="priorities",
        metavar="NAME=N",
        help="give the consumers of this name the priority level N, 0 = the highest, under all the rules; *=N: all others; "
        "may be given again",
    )
    parser.add_argument(
        "--client",
        action="append",
        default=[],
        dest="clients",
        metavar="NAME=VALUE",
        help="a setting of the consumers, under all the rules: subscriptionType, keySharedPolicy, receiverQueueSize, "
        "acknowledgementsGroupTimeMicros, consumers (their number), consumerName:OLD=NEW; may be given again",
    )
    parser.add_argument(
        "--key-changes",
        action="store_true",
        help="list the joins and leaves behind which keys went to another consumer (--json always has them)",
    )
    add_seeds_argument(parser, "number of simulations for each rules; more give a more reliable prediction")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the first seed (default %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Simulate and compare; returns 0 if no order violation is predicted, 1 if one is, 2 if a log was not simulated."""
    given = dict(overrides_given(options).settings)
    priorities = priorities_given(options.priorities)
    if not 1 <= options.reindex_ms <= _LONGEST_STOP_MS:
        raise RuleNameError(f"--reindex-ms {options.reindex_ms}: give a number from 1 to {_LONGEST_STOP_MS}")
    stop_us = options.reindex_ms * 1000
    asked = asked_for(options.rules, options.broker_version, given, matrix=options.matrix, stop_us=stop_us)
    asked = [with_clients(with_priorities(rules, priorities), options.clients) for rules in asked]
    if not 0 <= options.seed < 2**31:
        raise SeedsError(f"--seed {options.seed}: give a number from 0 to {2**31 - 1}")
    seeds, recorded = seeds_given(options, options.seed), SimulatedLogs(options, "what-if")
    if asked == [RECORDED]:
        print(
            "no other rules were given (--set, --broker-version, --rules, --matrix, --priority-level, --client): the "
            "recorded ones are simulated, which shows how good the simulation is",
            file=sys.stderr,
        )
    # Imported late, so that wrong options are refused at once.
    from dispatch_core.what_if import compare, tell

    rows: list[compare.Row] = []
    for logs in recorded:
        found: list[list[compare.Row]] = []
        for log, tolerated in logs:
            matrix = _matrix(log, options, given)
            rules = [
                *asked,
                *(with_clients(with_priorities(rules, priorities), options.clients) for rules in matrix),
            ]
            predicted = compare.rows_of(log, rules, seeds=seeds, from_us=options.from_us)
            found.append([replace(row, tolerated=tolerated) for row in predicted])
        progress("")
        rows += [row for some in found for row in some]
        if options.failed_only:
            found = [failed for some in found if (failed := [row for row in some if row.verdict == FAIL])]
        _print_all(found, options)
    if recorded.complain():
        return COULD_NOT_JUDGE
    groups = list(compare.groups_of(rows))
    names = [(row.cluster, row.subscription, row.subscription_type) for row in groups]
    for name in dict.fromkeys(names):
        _print([row for row, its in zip(groups, names, strict=True) if its == name], options)
    if not options.json:
        print(tell.failed(rows), end="")
    if not options.json and any(row.assumptions for row in rows):
        print(f"{tell.LEGEND}\n\n{tell.assumptions(rows)}")
    given_verdicts = {row.verdict for row in rows}
    if FAIL in given_verdicts:
        return FINDINGS
    return COULD_NOT_JUDGE if recorded.incomplete or not rows or UNKNOWN in given_verdicts else CLEAN


def _matrix(
    log: DispatcherLog, options: argparse.Namespace, given: dict[str, settings.Value | str]
) -> list[RuleSet]:
    """The matrix for a log; if its header allows none, one rule set whose row then gives the reason."""
    if not options.matrix:
        return []
    try:
        return matrix_for(log, options.broker_version, given)
    except ProfileError:
        return [RuleSet("matrix", options.broker_version, given)]


def _print_all(found: Sequence[Sequence[compare.Row]], options: argparse.Namespace) -> None:
    """Print every dispatcher for programs; for people the worst first, and of many dispatchers none that is PASS."""
    if not options.json:
        found = sorted(found, key=lambda some: max(map(_badness, some)), reverse=True)
    if options.json or len(found) <= _MOST_TABLES:
        for some in found:
            _print(some, options)
        return
    telling = [some for some in found if any(row.verdict != PASS for row in some)]
    for some in telling[:_MOST_TABLES]:
        _print(some, options)
    print(
        f"{found[0][0].recording}: {len(found)} dispatchers, order violations or no prediction for {len(telling)} of them "
        f"({min(len(telling), _MOST_TABLES)} shown; --json has all)\n"
    )


def _badness(row: compare.Row) -> tuple[bool, bool, int]:
    """FAIL before UNKNOWN before PASS, then by predicted order violations."""
    violations = 0 if row.simulated is None else row.simulated.order_violations
    return row.verdict == FAIL, row.verdict != PASS, violations


def _print(rows: Sequence[compare.Row], options: argparse.Namespace) -> None:
    from dispatch_core.what_if import tell

    if options.json:
        for row in rows:
            print(json.dumps(tell.as_json(row), ensure_ascii=False))
            if row.problem is not None:
                print(tell.problem_of(row), file=sys.stderr)
    else:
        print(tell.for_people(rows), end="" if options.key_changes else "\n")
        if options.key_changes:
            print(tell.key_changes(rows))
    sys.stdout.flush()
