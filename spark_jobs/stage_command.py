"""Common parts of the stages' entry points: arguments, output, exit codes.

A stage prints its summary as one line of JSON on stdout; progress and errors go to stderr. Exit codes: 0 done; 2 failed,
with one line that says what is wrong where, what was kept and what to do; 75 failed, and another attempt may succeed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import LimitsError
from dispatch_core.cli.log_lines import with_fields
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log_profile import RECORDED, Overrides
from spark_jobs.intervals import Interval, IntervalError, interval, parse_moment
from spark_jobs.location import Location
from spark_jobs.one_process import one_process
from spark_jobs.progress import complain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dispatch_core.audit.policy.rules import PolicyRules


#: ``EX_TEMPFAIL`` of sysexits.h.
EXIT_TRY_AGAIN: Final = 75


def parser(
    program: str, description: str, *, landing: bool = False, limits: bool = False, overrides: bool = False
) -> argparse.ArgumentParser:
    """Make the parser of a stage's arguments.

    ``landing``: the stage reads landed files; ``limits``: it makes findings; ``overrides``: it replays logs, by the
    rules that their headers name.
    """
    result = argparse.ArgumentParser(prog=program, description=description)
    result.add_argument(
        "--interval-start", required=True, type=moment, help="start of the interval: a day or ISO 8601, UTC"
    )
    result.add_argument(
        "--interval-end", type=moment, help="its end, exclusive (default: a day after its start)"
    )
    if landing:
        result.add_argument(
            "--landing", required=True, type=Location.of, help="the folder or URL that pull wrote to"
        )
    else:
        result.add_argument("--landing", type=Location.of, help=argparse.SUPPRESS)
    if limits:
        add_limits(result)
    if overrides:
        add_overrides(result)
    result.add_argument(
        "--warehouse", required=True, type=Location.of, help="the folder or URL of the Delta tables"
    )
    return result


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a stage that plays rules under settings of ``broker.conf``."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="by broker.conf name",
    )


def add_policy_text(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a stage that asks what the audit policy tolerates."""
    parser.add_argument(
        "--policy-text",
        metavar="YAML",
        help="the audit policy: how many order violations are tolerated (default: the shipped one)",
    )


def policy_text_given(options: argparse.Namespace) -> PolicyRules | None:
    """Return the rules of ``--policy-text``; ``None`` = not given. Raises ``PolicyError``."""
    from dispatch_core.audit.policy.reader import PolicyReader

    if options.policy_text is None:
        return None
    return PolicyReader("--policy-text", options.policy_text.encode()).policy_rules()


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a stage that makes findings."""
    parser.add_argument(
        "--limits",
        type=limit_rules,
        default=LimitRules(),
        metavar="JSON",
        help="limits of findings by topic, from the policy (default: the shipped limits)",
    )


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add the argument of a stage that replays logs."""
    parser.add_argument(
        "--overrides",
        type=rule_overrides,
        default=RECORDED,
        metavar="JSON",
        help="a broker version and settings in place of those in the logs' headers (default: none)",
    )


def moment(text: str) -> Any:
    """Convert an argument to a time (``argparse`` type)."""
    try:
        return parse_moment(text)
    except IntervalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def limit_rules(text: str) -> LimitRules:
    """Convert an argument to limits (``argparse`` type)."""
    try:
        return LimitRules.of_json(text)
    except LimitsError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def rule_overrides(text: str) -> Overrides:
    """Convert an argument to overrides of headers (``argparse`` type)."""
    try:
        return Overrides.of_json(text)
    except DispatchAuditError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(
    options: argparse.Namespace,
    work: Callable[[SparkSession, Interval], dict[str, Any]],
    size_bytes: Callable[[Interval], int],
    *,
    is_small: Callable[[Interval], bool] = lambda _span: False,
) -> int:
    """Run one stage in a session of its own and print its summary.

    ``size_bytes``: the input that Spark itself handles. ``is_small``: the work is not worth starting Spark, and is done in
    this process, unless a master was chosen.
    """

    def in_session(span: Interval) -> dict[str, Any]:
        from spark_jobs.session import is_chosen, running_session

        if not is_chosen() and is_small(span):
            return work(one_process(), span)
        with running_session(size_bytes(span)) as spark:
            return work(spark, span)

    return run_here(options, in_session)


def run_here(options: argparse.Namespace, work: Callable[[Interval], dict[str, Any]]) -> int:
    """Run one stage without a session and print its summary."""
    with with_fields(interval=options.interval_start.isoformat()):
        try:
            summary = work(interval(options.interval_start, options.interval_end))
        except DispatchAuditError as error:
            complain(f"error: {error}")
            return EXIT_TRY_AGAIN if getattr(error, "another_attempt_may_do", False) else 2
    print(json.dumps(summary, sort_keys=True, default=str), flush=True)
    return 0
