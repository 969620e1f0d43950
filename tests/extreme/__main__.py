"""Measure audits of extreme inputs: ``python -m tests.extreme [NAME[=SIZE]...]``, of full size by default.

Seconds are those of the processor, user and system together: other work on the machine changes them little.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.extreme.cases import CASES, write

SIZES: Final = {
    "incarnations": 1_000,
    "subs": 20_000,
    "cumulative": 8_000,
    "nackall": 120_000,
    "twoholders": 160_000,
    "garbage": 25_000_000,
}


def main() -> int:
    """Print a row of a table for each case: lines, seconds, memory, and seconds of an ordinary log of as many lines."""
    print("| Case | Lines | CPU seconds | Memory, MB | Ordinary log, CPU seconds |\n|---|---|---|---|---|")
    for case in sys.argv[1:] or CASES:
        name, _, asked = case.partition("=")
        size = int(asked or SIZES[name])
        with tempfile.TemporaryDirectory() as folder:
            path = write(name, size, Path(folder))
            lines = _lines(path)
            ordinary = Path(folder) / "ordinary"
            # A message makes about two and a half lines. A long log's time is taken from a shorter one.
            share = max(1.0, lines / 1_000_000)
            _dispatch_audit("generate", "--messages", str(int(lines / share / 2.5)), str(ordinary))
            usual = max(1, _lines(ordinary))
            (took_s, memory), (usual_s, _) = (_dispatch_audit("audit", str(p)) for p in (path, ordinary))
            print(
                f"| `{name} {size}` | {lines:,} | {took_s:.1f} | {memory / 1000:.0f} | "
                f"{usual_s * lines / usual if share > 1 else usual_s:.1f} |",
                flush=True,
            )
    return 0


def _lines(folder: Path) -> int:
    return sum(_counted(file) for file in folder.rglob("*.jsonl"))


def _counted(file: Path) -> int:
    with file.open("rb") as stream:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))


def _dispatch_audit(*arguments: str) -> tuple[float, int]:
    """Run a command of dispatch-audit; returns its seconds of the processor and its peak memory in kB."""
    more = ("--format", "jsonl") if arguments[0] == "generate" else ()
    command = [sys.executable, "-m", "dispatch_core.cli.main", *arguments, *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss


if __name__ == "__main__":
    started_s = time.monotonic()
    code = main()
    print(f"\n{time.monotonic() - started_s:.0f} s", file=sys.stderr)
    sys.exit(code)
