"""Fuzz the readers: ``python -m tests.fuzz --executions 1000000 --findings DIR``; the same seed makes the same documents.

An execution is one document read. Each case depends on ``seed:target:number`` alone, so that a finding can be repeated:
``python -m tests.fuzz --seed S --only TARGET --case NUMBER``. Cases run in processes of their own: a case that ends its
process, or takes too long or too much memory, is a finding, too.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.fuzz.running import Findings, run, run_case
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="fuzz every reader of files")
    parser.add_argument(
        "--executions", type=int, default=1_000_000, help="documents to read (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=3 * 3600.0, help="stop after so long (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument(
        "--only", choices=TARGETS, action="append", help="a target; may be repeated (default: all)"
    )
    parser.add_argument("--case", type=int, help="run this one case of the target here, with its traceback")
    parser.add_argument(
        "--findings", type=Path, default=Path(".dispatch-audit/fuzz"), help="default: %(default)s"
    )
    options = parser.parse_args()
    targets = options.only or list(TARGETS)
    if options.case is not None:
        for target in targets:
            sys.stdout.write(
                f"{target} {options.case}: {run_case(options.seed, target, options.case)} documents read\n"
            )
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end too
    findings = Findings(options.findings, options.seed)
    done = run(targets, options.seed, options.executions, options.seconds, options.jobs, findings)
    for target, executions in sorted(done.items()):
        sys.stdout.write(f"  {target}: {executions:,}\n")
    total = sum(done.values())
    sys.stdout.write(f"{total:,} documents read, {findings.count} findings\n")
    if findings.count:
        sys.stdout.write(f"the findings are in {findings.folder}\n")
    elif total < options.executions:
        sys.stdout.write(f"stopped before {options.executions:,}: the time was over\n")
    return 1 if findings.count or total < options.executions else 0


if __name__ == "__main__":
    sys.exit(main())
