"""Entry point of ``dispatch-audit``: import the subcommand, run it, print errors, return the exit code.

Exit codes: 0 clean, 1 findings, 2 could not judge. A subcommand is imported only when it is used, so that ``--help`` needs
neither Spark nor a compiler.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from dispatch_core import __version__
from dispatch_core.cli import COULD_NOT_JUDGE
from dispatch_core.cli.completion import complete
from dispatch_core.cli.log_lines import OUTPUT, run_command, write_line
from dispatch_core.errors import DispatchAuditError
from dispatch_core.extras import require_spark

#: Subcommand → (module, one line for ``--help``).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "verify": (
        "dispatch_core.cli.verify",
        "compare every decision in a dispatcher trace with the broker's rules",
    ),
    "golden": (
        "dispatch_core.cli.golden",
        "compare selectors, hashing and draining hashes with the answers of the broker's own classes",
    ),
    "audit": (
        "dispatch_core.cli.audit",
        "find faults in a recorded log: order, duplicates, losses, stalls, balance, rules",
    ),
    "explain": ("dispatch_core.cli.explain", "explain what happened to a key, a position or a consumer"),
    "stats": (
        "dispatch_core.cli.stats",
        "show the statistics of a subscription at a moment, as pulsar-admin topics stats names them",
    ),
    "diagnose": (
        "dispatch_core.cli.diagnose",
        "say what holds messages back: from the broker's statistics, a recorded log, or both",
    ),
    "watch-stats": (
        "dispatch_core.cli.watch_stats",
        "poll a broker's statistics, keep them, and say what begins and ends to hold messages",
    ),
    "what-if": (
        "dispatch_core.cli.what_if",
        "simulate the same clients and load under other rules, and compare",
    ),
    "advise": (
        "dispatch_core.cli.advise",
        "advise the smallest change that would have prevented the order violations of a log",
    ),
    "upgrade-risk": (
        "dispatch_core.cli.upgrade_risk",
        "compare two releases over many recorded subscriptions: what gets worse, what gets better",
    ),
    "ranges": (
        "dispatch_core.cli.ranges",
        "show the hash ranges that the clients of a STICKY subscription announce, and what another node moves",
    ),
    "report": ("dispatch_core.cli.report", "write a report for a browser: one HTML file per dispatcher"),
    "strip": ("dispatch_core.cli.strip", "reduce a dispatcher trace to its log of level E"),
    "convert": ("dispatch_core.cli.convert", "convert recordings to another file format"),
    "cut": (
        "dispatch_core.cli.cut",
        "spread recordings over several intervals, one file for each: to try out schedules, backfills and late logs",
    ),
    "generate": (
        "dispatch_core.cli.generate",
        "simulate dispatchers and write their recordings: load for benchmarks, and examples",
    ),
    "minimize": (
        "dispatch_core.cli.minimize",
        "make the smallest log that still has a finding, with scripts that reproduce it and a bug report",
    ),
    "hunt": (
        "dispatch_core.cli.hunt",
        "search client schedules for the shortest ones that break a promise of a release",
    ),
    "import-broker-conf": (
        "dispatch_core.cli.import_broker_conf",
        "make a settings file from a broker.conf, and list the settings that matter for dispatch",
    ),
    "import-stats": (
        "dispatch_core.cli.import_stats",
        "begin a log with a snapshot of the broker's statistics, so that it can be judged without earlier lines",
    ),
    "record-messages": (
        "dispatch_core.cli.record_messages",
        "record the message log of topics by reading them",
    ),
    "completion": ("dispatch_core.cli.completion", "print what makes a shell complete commands and options"),
    "pipeline": (
        "dispatch_expectations.pipeline_command",
        "run all stages (pull, ingest, replay, validate) without Airflow",
    ),
}
#: Subcommands of the stages, which cannot be imported without the extra ``spark``.
NEED_SPARK: Final = ("pipeline",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dispatch-audit``; returns the exit code."""
    complete(_parser)
    return run_command(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(arguments: list[str]) -> int:
    name = next((word for word in arguments if not word.startswith("-")), None)
    try:
        parser = _parser(name)
        options = parser.parse_args(arguments)
        command: ModuleType | None = getattr(options, "command_module", None)
        if command is None:
            parser.print_help()
            return COULD_NOT_JUDGE
        return int(command.run(options))
    except DispatchAuditError as error:
        write_line(f"dispatch-audit {name}: {error}", logging.ERROR, OUTPUT)
        return COULD_NOT_JUDGE
    except BrokenPipeError:
        # The reader of the output has closed it (``| head``).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COULD_NOT_JUDGE
    except KeyboardInterrupt:
        write_line(f"dispatch-audit {name}: interrupted; nothing was changed", logging.ERROR, OUTPUT)
        return 130


def _parser(name: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dispatch-audit",
        description="Replay and audit recorded logs of Apache Pulsar dispatch.",
        epilog="Exit codes: 0 clean, 1 findings, 2 could not judge.",
    )
    parser.add_argument("--version", action="version", version=f"dispatch-audit {__version__}")
    subcommands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command, (module_name, summary) in COMMANDS.items():
        subparser = subcommands.add_parser(
            command, help=summary, description=summary[0].upper() + summary[1:] + "."
        )
        if command == name:
            if command in NEED_SPARK:
                require_spark()
            module = importlib.import_module(module_name)
            module.add_arguments(subparser)
            subparser.set_defaults(command_module=module)
    return parser


if __name__ == "__main__":
    sys.exit(main())
