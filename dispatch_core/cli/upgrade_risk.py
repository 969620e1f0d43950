"""``dispatch-audit upgrade-risk``: what another release would change for many recorded subscriptions, the worst first."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
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
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log_profile import RECORDED as AS_RECORDED
from dispatch_core.what_if.rules import SEEDS

#: Options of other commands that mean nothing here.
_REFUSED: Final = {
    "--complete": "a simulation ends with the log's last line",
    "--failed-only": "the lines come sorted by risk, the worst first",
}
_MOST_SEEDS: Final = 1000
#: Subscriptions that people are shown; the page and --json have all.
_MOST_SHOWN: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``upgrade-risk``."""
    parser.description = (
        "Compare release A (the recorded one) with release B (--broker-version) for all recorded subscriptions: order "
        "violations introduced and prevented, stuck keys, waits, balance, moves, the worst first. --set: settings of B. "
        "Exit codes: 0 nothing gets worse, 1 something does, 2 nothing does, but something could not be judged."
    )
    add_recording_arguments(parser, ": one object per dispatcher, the worst first, then one with the counts")
    add_dispatcher_arguments(parser)
    add_policy_argument(parser)
    add_time_arguments(parser)
    add_as_of_argument(parser)
    add_refused_arguments(parser, _REFUSED)
    parser.add_argument(
        "--against", metavar="VERSION", help="release A, simulated as well (default: what was recorded)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write a page for a browser")
    parser.add_argument(
        "--seeds",
        type=int,
        default=SEEDS,
        metavar="N",
        help="simulations of each release (default %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Compare; returns 0 if nothing gets worse, 1 if something does, else 2 if something could not be judged."""
    from dispatch_core.what_if.compare import OrderLimits
    from dispatch_core.what_if.upgrade_risk import (
        NOT_JUDGED,
        WORSE,
        Risk,
        counts,
        risks_of,
        summary,
        upgrade,
        worst_first,
    )
    from dispatch_core.what_if.upgrade_risk_groups import folded

    if not 1 <= options.seeds <= _MOST_SEEDS:
        print(f"--seeds {options.seeds}: give a number from 1 to {_MOST_SEEDS}", file=sys.stderr)
        return COULD_NOT_JUDGE
    if options.broker_version is None:
        raise DispatchAuditError("upgrade-risk needs --broker-version VERSION, the release to compare with")
    asked = upgrade(options.broker_version, dict(overrides_given(options).settings), options.against)
    policy, as_of = policy_given(options), as_of_given(options)
    check_times(options.from_us, as_of)
    selection, recurring = Selection.given(options), Recurring()
    found: list[Risk] = []
    incomplete = False
    for recording in read_all(options.paths, follow_links=options.follow_links):
        recurring.note(recording)
        for log in (log for logs in selection.dispatchers(recording, AS_RECORDED, as_of) for log in logs):
            tolerated = OrderLimits.of(policy.rule_for(log.topic, log.subscription))
            found.append(
                risks_of(log, asked, seeds=range(options.seeds), tolerated=tolerated, from_us=options.from_us)
            )
        progress("")
        problem = set_aside(recording)
        if problem is not None:
            print(f"{problem}; the rest was simulated: mend the log and run again", file=sys.stderr)
        incomplete |= problem is not None or not recording.logs
    if (complaint := recurring.complaint()) is not None:
        print(complaint, file=sys.stderr)
    if selection.complain("upgrade-risk"):
        return COULD_NOT_JUDGE
    found = worst_first(found)
    rows = [risk.as_json() for risk in found]
    subscriptions = folded(rows)
    outcomes = counts(row["outcome"] for row in subscriptions)
    if options.json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
        print(json.dumps({"asked": asked.as_json(), "outcomes": outcomes}, ensure_ascii=False))
    else:
        from dispatch_core.what_if.upgrade_risk_text import for_people

        print(for_people(subscriptions, summary(outcomes, asked), most=_MOST_SHOWN), end="")
    if options.out is not None:
        from dispatch_core.what_if.upgrade_risk_page import risk_page

        _write(options.out, risk_page(asked.as_json(), subscriptions))
    if any(outcomes[name] for name in WORSE):
        return FINDINGS
    return COULD_NOT_JUDGE if incomplete or not found or outcomes[NOT_JUDGED] else CLEAN


def _write(where: Path, page: str) -> None:
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise DispatchAuditError(
            f"{where}: the page cannot be written: {error.strerror or error}. Name another file with --out"
        ) from error
