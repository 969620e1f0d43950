"""``dispatch-audit upgrade-risk``: what another release would change for many recorded subscriptions, the worst first."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Final

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.policy_file import add_policy_argument
from dispatch_core.cli.recordings import (
    add_as_of_argument,
    add_recording_arguments,
    overrides_given,
)
from dispatch_core.cli.selection import (
    add_dispatcher_arguments,
    add_refused_arguments,
    add_time_arguments,
)
from dispatch_core.cli.simulated_logs import SimulatedLogs, add_seeds_argument, seeds_given
from dispatch_core.errors import DispatchAuditError

#: Options of other commands that mean nothing here.
_REFUSED: Final = {
    "--complete": "a simulation ends with the log's last line",
    "--failed-only": "the lines come sorted by risk, the worst first",
}
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
    add_seeds_argument(parser, "simulations of each release")


def run(options: argparse.Namespace) -> int:
    """Compare; returns 0 if nothing gets worse, 1 if something does, else 2 if something could not be judged."""
    from dispatch_core.what_if.upgrade_risk import (
        NOT_JUDGED,
        WORSE,
        counts,
        risks_of,
        summary,
        upgrade,
        worst_first,
    )
    from dispatch_core.what_if.upgrade_risk_groups import folded

    if options.broker_version is None:
        raise DispatchAuditError("upgrade-risk needs --broker-version VERSION, the release to compare with")
    asked = upgrade(options.broker_version, dict(overrides_given(options).settings), options.against)
    seeds, recorded = seeds_given(options), SimulatedLogs(options, "upgrade-risk")
    found = worst_first(
        risks_of(log, asked, seeds=seeds, tolerated=tolerated, from_us=options.from_us)
        for logs in recorded
        for log, tolerated in logs
    )
    if recorded.complain():
        return COULD_NOT_JUDGE
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
    return COULD_NOT_JUDGE if recorded.incomplete or not found or outcomes[NOT_JUDGED] else CLEAN


def _write(where: Path, page: str) -> None:
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise DispatchAuditError(
            f"{where}: the page cannot be written: {error.strerror or error}. Name another file with --out"
        ) from error
