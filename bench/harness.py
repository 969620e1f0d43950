"""Measure in turns, each in a process of its own, and keep the measurements.

A *bar* is a ratio of two measurements of one run, because absolute seconds depend on the machine. The two sides of a ratio
take turns, so that a machine that slows down slows both. Every measurement is a new process, so that no measurement is
affected by another's memory and each has its own peak memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from spark_jobs.worker_memory import ENVIRONMENT

ROOT: Final = Path(__file__).resolve().parent.parent
#: Generated input and results of runs; nothing of it is kept in the repository.
DATA: Final = ROOT / ".dispatch-audit" / "bench"
RESULTS: Final = ROOT / "bench" / "results"
#: Baselines: they run with their libraries as these come, all else in the environment of Spark's workers.
_AS_IT_COMES: Final = frozenset({"bench.copying:beside", "bench.ingest:baseline", "bench.pipeline:baseline"})


class BenchError(Exception):
    """A measurement failed; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement: wall seconds, peak resident memory of the process, and further facts that it reports."""

    seconds: float
    peak_mb: float
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of the table: a ratio against its bar, or a figure for information (``bar`` None)."""

    name: str
    value: float
    bar: float | None
    unit: str
    detail: str
    spread: tuple[float, float] | None = None

    @property
    def holds(self) -> bool | None:
        """True if the value is within its bar; None without a bar."""
        return None if self.bar is None else self.value <= self.bar


def measure(target: str, arguments: Mapping[str, Any], *, cores: int | None = None) -> Measured:
    """Run ``target`` (``module:function``) with keyword arguments in a process of its own, on at most ``cores`` cores.

    Its environment is that of Spark's workers, except for baselines.
    The function returns (seconds, facts). Raises ``BenchError`` with the end of its standard error if it fails.
    """
    code = "import bench.harness as h, sys; h.child(sys.argv[1])"
    order = json.dumps({"target": target, "arguments": dict(arguments), "cores": cores})
    ran = subprocess.run(
        [sys.executable, "-c", code, order],
        cwd=ROOT,
        env=dict(os.environ) if target in _AS_IT_COMES else {**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise BenchError(f"{target} {dict(arguments)}: exit {ran.returncode}: {ran.stderr[-2000:]}")
    answer = json.loads(ran.stdout.splitlines()[-1])
    return Measured(answer["seconds"], answer["peak_mb"], answer["facts"])


def child(order: str) -> None:
    """Run the function that ``measure`` ordered, in the child process, and print its measurement."""
    import importlib

    import pyarrow as pa

    wanted = json.loads(order)
    if wanted["cores"]:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: wanted["cores"]])
        pa.set_cpu_count(wanted["cores"])
        pa.set_io_thread_count(wanted["cores"])
    module, _, name = wanted["target"].partition(":")
    seconds, facts = getattr(importlib.import_module(module), name)(**wanted["arguments"])
    print(json.dumps({"seconds": seconds, "peak_mb": round(peak_mb(), 1), "facts": facts}))


def peak_mb() -> float:
    """Return the peak resident memory of this process; ``getrusage`` would return the parent's if that is larger."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise BenchError("this system has no peak memory in /proc/self/status")


def in_turns(
    sides: Sequence[tuple[str, str, Mapping[str, Any]]], times: int, *, cores: int | None
) -> dict[str, list[Measured]]:
    """Measure each of ``sides`` (name, target, arguments) ``times`` times, one after the other in each round."""
    found: dict[str, list[Measured]] = {name: [] for name, _, _ in sides}
    for number in range(times):
        for name, target, arguments in sides:
            found[name].append(measure(target, arguments, cores=cores))
            run = found[name][-1]
            first = (
                f", after compiling {run.facts['compiled_first']}" if "compiled_first" in run.facts else ""
            )
            say(f"  {number + 1}/{times} {name}: {run.seconds:.2f} s, {run.peak_mb:.0f} MB{first}")
    return found


def ratio(
    name: str, product: Sequence[Measured], baseline: Sequence[Measured], bar: float, detail: str = ""
) -> Bar:
    """Return the median of one side over the median of the other, with the spread of the ratios turn by turn."""
    above, below = median_seconds(product), median_seconds(baseline)
    each = [run.seconds / other.seconds for run, other in zip(product, baseline, strict=True)]
    return Bar(
        name,
        above / below,
        bar,
        "x",
        detail or f"{above:.2f} s against {below:.2f} s",
        (min(each), max(each)),
    )


def per_message(measured: Sequence[Measured], messages: int) -> list[Measured]:
    """Convert measurements from seconds to microseconds per message."""
    return [replace(run, seconds=run.seconds / messages * 1e6) for run in measured]


def median_seconds(measured: Sequence[Measured]) -> float:
    """Return the median of wall seconds."""
    return statistics.median(run.seconds for run in measured)


def say(line: str) -> None:
    """Print a line of progress, on a terminal only."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def table(bars: Sequence[Bar]) -> str:
    """Format the bars as text: name, value, bar, verdict, detail."""
    rows = [("", "value", "bar", "", "")]
    for bar in bars:
        spread = "" if bar.spread is None else f" ({bar.spread[0]:.2f}-{bar.spread[1]:.2f})"
        verdict = {None: "", True: "holds", False: "MISSED"}[bar.holds]
        shown = f"{bar.value:,.2f}" if bar.value < 1000 else f"{bar.value:,.0f}"
        limit = "" if bar.bar is None else f"<= {bar.bar:g}"
        rows.append((bar.name, f"{shown} {bar.unit}{spread}", limit, verdict, bar.detail))
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def results_file(name: str) -> Path:
    """Return the file with the results of a kind of run."""
    return RESULTS / f"{name}.json"


def keep(name: str, case: str, bars: Sequence[Bar], facts: Mapping[str, Any]) -> Path:
    """Write the measurements of ``case`` to ``bench/results/<name>.json``; returns the file.

    The other cases in the file stay, each with the time and the commit at which it was measured: measuring all cases takes
    longer than most machines stay quiet.
    """
    path = results_file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    cases = json.loads(path.read_text()).get("cases", {}) if path.exists() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    cases[case] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip() or None,
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        **facts,
        "bars": [{**asdict(bar), "holds": bar.holds} for bar in bars],
    }
    path.write_text(json.dumps({"cases": cases}, indent=1) + "\n")
    return path
