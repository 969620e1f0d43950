"""Judge a broker's build by seeded clients: ``make soak SEEDS=0..20 RELEASE=4.2.4`` (docs/soak.md).

Ends with 0 if nothing diverged and the audit agreed with the clients, 1 if not, 2 if something could not be judged.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.soak import summary
from tests.soak.running import Soak
from tests.soak.script import CLASSES, class_of, script_of


def _seeds(text: str) -> range:
    """Read ``5``, or ``a..b`` with both ends."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="judge a broker by seeded clients"
    )
    parser.add_argument("--seeds", type=_seeds, default=range(20), help="a..b, both played (default: 0..19)")
    parser.add_argument("--release", required=True, help="of the broker, as Maven knows it")
    parser.add_argument("--target", type=Path, required=True, help="what .ci/soak has built")
    parser.add_argument("--home", type=Path, help="results (default: .dispatch-audit/soak/RELEASE)")
    parser.add_argument("--jobs", type=int, default=1, help="brokers at the same time (default: %(default)s)")
    parser.add_argument(
        "--shrink",
        type=int,
        default=40,
        metavar="N",
        help="play at most N shorter scripts of one that goes wrong (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        type=lambda names: names.split(","),
        default=list(CLASSES),
        metavar="CLASS,…",
        help="play only the seeds whose scripts are of these classes",
    )
    parser.add_argument("--keep", action="store_true", help="keep the recordings of all seeds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the brokers end too
    home = options.home or Path(".dispatch-audit/soak") / options.release
    soak = Soak(options.target.resolve(), options.release, home.resolve(), _say, options.keep, options.shrink)
    seeds = [seed for seed in options.seeds if class_of(script_of(seed).name) in options.only]
    results = soak.run(seeds, options.jobs)
    rows = [row for row in results.rows if row.seed in seeds]
    sys.stdout.write("\n".join(["", *summary.lines(rows)]) + "\n")
    wrong = [row for row in rows if row.wrong]
    failed = [row for row in rows if row.failure is not None]
    for row in wrong:
        sys.stdout.write(f"wrong: {home / 'wrong' / row.name}\n")
    for row in failed:
        sys.stdout.write(f"failed: {row.name}: {row.failure}\n")
    decisions = sum(row.decisions for row in rows)
    sys.stdout.write(
        f"{len(rows)} seeds, {decisions:,} decisions, {len(wrong)} seeds wrong, {len(failed)} failed\n"
    )
    return 1 if wrong else 2 if failed or not decisions else 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
