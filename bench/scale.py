"""A log of a billion messages as consecutive days: time, bytes and peak disk of each stage, a process per day.

What is done is kept in a file beside the home, so that a run that was stopped goes on with the day that was under way.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from bench.days import measured
from spark_jobs.aggregates.aggregate_interval import aggregate
from spark_jobs.ingest.ingest_interval import ingest
from spark_jobs.intervals import Interval, interval
from spark_jobs.pull.pull_logs import pull
from spark_jobs.replay.replay_interval import replay
from spark_jobs.session import running_session

#: The disk is looked at so often.
_EVERY_S: Final = 0.2


def day(segments: str, home: str, first_day: str, number: int) -> tuple[float, dict[str, Any]]:
    """Run one day of the log: pull, ingest, replay, aggregates.

    Returns the seconds of all stages, and of each stage ``seconds``, ``read_mb``, ``worker_mb`` (the largest Python worker),
    ``tasks``, ``kept_mb`` (by how much the home has grown) and ``disk_peak_mb`` (the most that the disk held during the
    stage beyond what it held before the day).
    """
    landing, warehouse = Path(home) / "landing", Path(home) / "warehouse"
    landing.mkdir(parents=True, exist_ok=True)
    span = interval(interval(first_day).start + timedelta(days=number))
    used = shutil.disk_usage(home).used
    facts: dict[str, Any] = {}
    with running_session() as spark:
        stages: dict[str, Callable[[], dict[str, Any]]] = {
            "pull": lambda: pull([Path(segments) / f"{number:02}"], landing, span.start),
            "ingest": lambda: ingest(spark, landing, warehouse, span),
            "replay": lambda: replay(spark, warehouse, span),
            "aggregates": lambda: aggregate(warehouse, span),
        }
        for name, stage in stages.items():
            before = _size_mb(Path(home))
            with measured(spark) as figures, _disk_peak(home, used, figures):
                report = stage()
            figures["kept_mb"] = _size_mb(Path(home)) - before
            facts[name] = {figure: round(value, 2) for figure, value in figures.items()}
            if name == "replay":
                facts |= _checked(report, span)
    return sum(facts[name]["seconds"] for name in stages), facts


def _checked(report: dict[str, Any], span: Interval) -> dict[str, Any]:
    """Return what the replay did. Raises ``ValueError`` if a dispatcher was not judged: the figures would be too good."""
    if report["dispatchers_failed"]:
        raise ValueError(f"{span.name}: {report['dispatchers_failed']} dispatchers were not judged")
    return {"dispatchers": report["dispatchers"], "deliveries": report["rows"]["deliveries"]}


@contextmanager
def _disk_peak(home: str, used: int, figures: dict[str, float]) -> Iterator[None]:
    """Measure the most that the disk holds while something runs, beyond ``used`` bytes."""
    peak, ended = [used], threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            peak[0] = max(peak[0], shutil.disk_usage(home).used)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield
    ended.set()
    watcher.join()
    figures["disk_peak_mb"] = (max(peak[0], shutil.disk_usage(home).used) - used) / 1e6


def _size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


class Done:
    """The days that were measured, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.days: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []

    def add(self, seconds: float, facts: dict[str, Any]) -> None:
        """Keep the figures of the next day."""
        self.days.append({"seconds": seconds, "measured_at": time.time(), **facts})
        unfinished = self._path.with_suffix(".part")
        unfinished.write_text(json.dumps(self.days, indent=1) + "\n")
        unfinished.replace(self._path)
