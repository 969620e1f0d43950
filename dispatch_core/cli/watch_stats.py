"""``dispatch-audit watch-stats``: poll a broker, keep its statistics, report what begins and ends to hold messages."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.broker.versions import parse_version
from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.broker_admin import AdminError
from dispatch_core.cli.polling import Polled, add_broker_arguments, numbers
from dispatch_core.cli.recordings import DAY_S, add_override_arguments, overrides_given, progress, seconds
from dispatch_core.errors import DispatchAuditError

if TYPE_CHECKING:
    from dispatch_core.diagnose.watch import Change, Watch

_EVERY_S: Final = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``watch-stats``."""
    parser.description = (
        "Poll the statistics of topics, keep them in files that `dispatch-audit diagnose` reads, and print a line whenever "
        "something begins to hold the messages of a subscription, and when it ends (docs/diagnose.md). Only reads. Exit "
        "codes: 0 nothing is held at the end, 1 something is, 2 the broker could not be asked."
    )
    add_broker_arguments(parser, needed=True)
    parser.add_argument(
        "--topic", action="append", required=True, dest="topics", metavar="TOPIC", help="may be given again"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="keep the moments in this folder, a file per hour",
    )
    parser.add_argument(
        "--every",
        type=seconds(DAY_S),
        default=_EVERY_S,
        metavar="SECONDS",
        help="between two moments (default: 30)",
    )
    parser.add_argument(
        "--for",
        type=seconds(DAY_S),
        dest="for_s",
        metavar="SECONDS",
        help="end after so long, a day at most (default: goes on until it is interrupted)",
    )
    parser.add_argument("--json", action="store_true", help="JSON Lines on stdout: one object per change")
    add_override_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Watch until the end; returns 0 if nothing is held then, 1 if something is, 2 if no moment could be had."""
    from dispatch_core.diagnose.watch import Watch

    overrides = overrides_given(options)
    if options.broker_version is not None:
        parse_version(options.broker_version)
    polled = Polled.of(options, options.broker_version, numbers(overrides.settings))
    polled.ask(options.topics)
    for problem in polled.problems:
        _complain(problem)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DispatchAuditError(
            f"--out {options.out}: {error.strerror or error}; nothing was asked"
        ) from None
    watch = Watch(polled.broker_version, polled.settings)
    try:
        taken = _watch(polled, watch, options)
    except KeyboardInterrupt:
        progress("")
        taken = True
    if not taken:
        _complain("no moment could be had; nothing was kept")
        return COULD_NOT_JUDGE
    return FINDINGS if watch.held_now() else CLEAN


def _watch(polled: Polled, watch: Watch, options: argparse.Namespace) -> bool:
    """Take moments until the time is over; returns False if the broker gave none."""
    began = time.monotonic()
    taken, refused = 0, None
    while True:
        try:
            text = polled.moment()
        except AdminError as error:
            # A broker that restarts is asked again; the same refusal is said once.
            if str(error) != refused:
                _complain(f"{error}; it is asked again in {options.every:g} s")
            refused = str(error)
        else:
            refused = None
            taken += 1
            _keep(options.out, text)
            changes, problems = watch.take_text("polled", text)
            for problem in problems:
                _complain(problem)
            for change in changes:
                progress("")
                print(json.dumps(_as_json(change)) if options.json else str(change), flush=True)
            progress(f"{taken} moments; {len(watch.held_now())} subscriptions are held")
        left = float("inf") if options.for_s is None else options.for_s - (time.monotonic() - began)
        if left <= 0:
            progress("")
            return taken > 0
        time.sleep(min(options.every, left))


def _keep(out: Path, text: str) -> None:
    from dispatch_core.diagnose.watch import kept_file

    path = out / kept_file(datetime.now(UTC))
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise DispatchAuditError(
            f"{path}: {error.strerror or error}; the moments before are kept, make room or name another --out"
        ) from None


def _as_json(change: Change) -> dict[str, Any]:
    from dispatch_core.diagnose.answers import as_json

    found: dict[str, Any] = {
        "t_us": change.t_us,
        "topic": change.topic,
        "subscription": change.subscription,
        "held": change.answer is not None,
        "held_since_t_us": change.held_since_us,
        "backlog": change.backlog,
    }
    return found if change.answer is None else {**as_json(change.answer), **found}


def _complain(text: str) -> None:
    progress("")
    print(f"dispatch-audit watch-stats: {text}", file=sys.stderr)
