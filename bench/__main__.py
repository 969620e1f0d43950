"""Run the benchmark, print its table and keep it as JSON (``python -m bench``; ``make bench``, ``make bench-quick``)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from bench.cases import CASES, FULL, QUICK, run
from bench.generated import provide
from bench.harness import Bar, BenchError, keep, results_file, table

#: Generating holds little more than a window in memory, so every core may.
_GENERATORS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the wanted cases; returns 0 whatever the figures are, and 2 if a case could not be measured."""
    options = _parser().parse_args(arguments)
    given = {
        "times": options.times,
        "messages": options.messages,
        "pipeline_messages": options.pipeline_messages,
        "scale_messages": options.scale_messages,
        "store": options.store,
    }
    sizes = replace(
        QUICK if options.quick else FULL,
        **{name: value for name, value in given.items() if value is not None},
    )
    wanted = [
        case
        for case in CASES
        if case.name in options.only
        or (not options.only and not case.asked and (case.quick or not options.quick))
    ]
    name = "quick" if options.quick else "full" if sizes == replace(FULL, times=sizes.times) else "part"
    bars: list[Bar] = []
    failed = []
    for case in wanted:
        try:
            provide(case.logs(sizes), at_once=_GENERATORS)
            found = run(case, sizes)
        except BenchError as error:
            failed.append(case.name)
            print(f"bench: {case.name} was not measured: {error}", file=sys.stderr)
            continue
        bars += found
        # After each case, so that measurements of hours survive an interrupted run.
        keep(name, case.name, found, {"sizes": asdict(sizes)})
    print(table(bars))
    if options.quick:
        print("The bars are for the full run (make bench): on small logs the cost of the start weighs more.")
    if failed:
        print(f"not measured: {', '.join(failed)}; see the reasons above")
    print(os.path.relpath(results_file(name)))
    return 2 if failed else 0


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(case.name for case in CASES)
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small logs, without Spark: some minutes")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", choices=[case.name for case in CASES], help=names
    )
    parser.add_argument(
        "--times", type=int, metavar="N", help="measure each side so often (default 5, quick 1)"
    )
    parser.add_argument("--messages", type=int, metavar="N", help="of a replay (default 10 M, quick 300,000)")
    parser.add_argument(
        "--pipeline-messages", type=int, metavar="N", help="of the whole pipeline (default 50 M)"
    )
    parser.add_argument("--scale-messages", type=int, metavar="N", help="of the case scale (default 10^9)")
    parser.add_argument("--store", metavar="URL", help="of the case store: s3://bucket/prefix for its home")
    return parser


if __name__ == "__main__":
    sys.exit(main())
