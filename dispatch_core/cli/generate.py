"""``dispatch-audit generate``: write recordings of simulated dispatchers, as load for benchmarks and as examples."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dispatch_core.broker import settings
from dispatch_core.cli import CLEAN
from dispatch_core.cli.recordings import is_occupied, with_progress_bar
from dispatch_core.simulation.scenario import CHURNS, MODES, SUBSCRIPTION_TYPES, Scenario, ScenarioError

_FORMATS: Final = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")
_DEFAULT: Final = Scenario()
#: Of a priority level; more is out of range in any case.
_MOST_DIGITS: Final = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``generate``."""
    parser.description = (
        "Simulate dispatchers and write their recordings. Producers, storage and clients are simulated; the broker's "
        "decisions are those of the dispatch core for the given release, so `dispatch-audit verify` finds the result exact "
        "(--level T). The same arguments give the same bytes."
    )
    parser.add_argument(
        "out", metavar="OUT", type=Path, help="folder for the recordings; must be new or empty"
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--messages",
        type=int,
        default=_DEFAULT.messages,
        metavar="N",
        help="messages of all dispatchers together (default %(default)s)",
    )
    load.add_argument(
        "--dispatchers",
        type=int,
        default=1,
        metavar="D",
        help="topics with a subscription each (default %(default)s)",
    )
    load.add_argument(
        "--partitions",
        type=int,
        default=0,
        metavar="P",
        help="partitions of each topic; 1: as many one-partition topics as dispatchers (default: Failover: all are "
        "partitions of one topic, Key_Shared: topics without partitions)",
    )
    load.add_argument(
        "--keys", type=int, default=_DEFAULT.keys, metavar="K", help="different keys (default %(default)s)"
    )
    load.add_argument(
        "--key-skew",
        type=float,
        default=_DEFAULT.key_skew,
        metavar="S",
        help="Zipf exponent of the keys, 0 = all equally frequent (default %(default)s)",
    )
    load.add_argument(
        "--rate",
        type=float,
        default=0,
        metavar="R",
        help="messages per second and dispatcher, from 0.001 (default: all within ten seconds, but from 1000 to 100000)",
    )
    load.add_argument(
        "--start-time",
        default="2026-01-01T00:00:00Z",
        metavar="ISO",
        help="start of the simulation (default %(default)s)",
    )
    clients = parser.add_argument_group("consumers")
    clients.add_argument(
        "--consumers",
        type=int,
        default=_DEFAULT.consumers,
        metavar="C",
        help="consumers per dispatcher (default %(default)s)",
    )
    clients.add_argument(
        "--churn", choices=CHURNS, default="none", help="pattern of joins and leaves (default %(default)s)"
    )
    clients.add_argument(
        "--membership-changes",
        type=int,
        metavar="N",
        help="joins and leaves of the churn, per dispatcher (default: two per consumer)",
    )
    clients.add_argument(
        "--slow-consumers",
        type=int,
        default=0,
        metavar="N",
        help="consumers that take 10 to 50 times as long",
    )
    clients.add_argument(
        "--stuck-consumers",
        type=int,
        default=0,
        metavar="N",
        help="consumers that never acknowledge anything; all leave when publishing is over",
    )
    clients.add_argument(
        "--crashing-consumers",
        type=int,
        default=0,
        metavar="N",
        help="consumers that leave several times with all entries unacknowledged",
    )
    clients.add_argument(
        "--priority-levels",
        default="0",
        metavar="N,N,...",
        help="priority levels of the consumers in turn, 0 = the highest: 0,0,1 gives every third one level 1 (default "
        "%(default)s). Failover chooses among the highest; Key_Shared only lists its consumers by it",
    )
    clients.add_argument(
        "--queue",
        type=int,
        default=_DEFAULT.queue,
        metavar="N",
        help="receiver queue size (default %(default)s)",
    )
    clients.add_argument(
        "--ack-ms",
        type=float,
        default=_DEFAULT.ack_us / 1000,
        metavar="MS",
        help="mean time from delivery to acknowledgement (default %(default)s)",
    )
    clients.add_argument(
        "--nack-share",
        type=float,
        default=0.0,
        metavar="P",
        help="share of deliveries that are requested again (default %(default)s)",
    )
    rules = parser.add_argument_group("rules")
    rules.add_argument(
        "--broker-version",
        default=_DEFAULT.broker_version,
        metavar="VERSION",
        help="release of the simulated broker (default %(default)s)",
    )
    rules.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="a broker.conf setting; may be given again",
    )
    rules.add_argument(
        "--subscription-type",
        choices=SUBSCRIPTION_TYPES,
        default=_DEFAULT.subscription_type,
        help="default %(default)s",
    )
    rules.add_argument(
        "--key-shared-mode",
        choices=MODES,
        default=_DEFAULT.key_shared_mode,
        help="STICKY: every consumer announces an equal part of the hash space (default %(default)s)",
    )
    rules.add_argument("--allow-out-of-order", action="store_true", help="Key_Shared without order per key")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--level",
        choices=("E", "T"),
        default="E",
        help="E: a log without a trace; T: with a dispatcher trace (default %(default)s)",
    )
    output.add_argument(
        "--format",
        choices=_FORMATS,
        default="parquet",
        dest="form",
        help="format to write (default %(default)s)",
    )
    output.add_argument(
        "--dispatchers-per-file",
        type=int,
        default=1,
        metavar="N",
        help="dispatchers in a file (default %(default)s)",
    )
    output.add_argument(
        "--seed", type=int, default=0, metavar="S", help="seed of the random numbers (default %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Simulate and write; returns 0."""
    scenario = _scenario(options)
    if options.dispatchers_per_file < 1:
        raise ScenarioError(f"dispatchers per file: {options.dispatchers_per_file} is below 1")
    out: Path = options.out
    if is_occupied(out):
        raise ScenarioError(f"{out} exists and is not an empty folder; nothing was written: name another one")
    from dispatch_core.simulation.generate import generate

    made = generate(scenario, out, form=options.form, dispatchers_per_file=options.dispatchers_per_file)
    messages = lines = left = 0
    for dispatcher in with_progress_bar(made, scenario.dispatchers, "dispatchers"):
        messages += dispatcher.messages
        lines += dispatcher.lines
        left += dispatcher.unacknowledged
    print(f"{out}: {scenario.dispatchers} dispatchers, {messages} messages, {lines} lines", file=sys.stderr)
    if left:
        why = "under these rules the broker stopped delivering them"
        if scenario.stuck_consumers:
            why = "consumers were stuck, and all left in the end"
        print(f"{left} entries were never acknowledged: {why}", file=sys.stderr)
    return CLEAN


def _scenario(options: argparse.Namespace) -> Scenario:
    return Scenario(
        messages=options.messages,
        dispatchers=options.dispatchers,
        partitions=options.partitions,
        keys=options.keys,
        key_skew=options.key_skew,
        consumers=options.consumers,
        churn=options.churn,
        membership_changes=options.membership_changes,
        slow_consumers=options.slow_consumers,
        crashing_consumers=options.crashing_consumers,
        stuck_consumers=options.stuck_consumers,
        priority_levels=_levels(options.priority_levels),
        queue=options.queue,
        ack_us=round(options.ack_ms * 1000),
        nack_share=options.nack_share,
        rate=options.rate,
        seed=options.seed,
        start_us=_time_us(options.start_time),
        broker_version=options.broker_version,
        settings=settings.given(options.settings),
        subscription_type=options.subscription_type,
        key_shared_mode=options.key_shared_mode,
        allow_out_of_order=options.allow_out_of_order,
        trace=options.level == "T",
    )


def _levels(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in parts):
        raise ScenarioError(
            f"--priority-levels {text[:80]}: give numbers from 0 on with commas, such as 0,0,1"
        )
    return tuple(int(part) for part in parts)


def _time_us(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ScenarioError(f"--start-time {text}: give it as 2026-01-01T00:00:00Z ({error})") from error
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    if since.total_seconds() < 0:
        raise ScenarioError(f"--start-time {text}: before 1970")
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
