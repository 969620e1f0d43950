"""A log of many days, run day by day: what a late day costs against an early one with the same load."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from dispatch_core.recording.parquet import open_writer
from dispatch_core.times import micros
from spark_jobs.aggregates.aggregate_interval import aggregate
from spark_jobs.ingest.ingest_interval import ingest
from spark_jobs.intervals import Interval, interval
from spark_jobs.maintenance.maintain import compact
from spark_jobs.pull.pull_logs import pull
from spark_jobs.replay.replay_interval import replay
from spark_jobs.session import running_session

#: The column that tells the day of a row, and how many of its units make a microsecond.
_TIMES: Final = {"events": ("t_us", 1), "messages": ("publish_time_ms", 1000)}
#: Memory is looked at so often.
_EVERY_S: Final = 0.05


def cut(source: str, into: str, day: str, days: int) -> tuple[float, dict[str, Any]]:
    """Cut the files of a generated log into those of each day, as a recorder that rotates its files writes them."""
    began = time.perf_counter()
    shutil.rmtree(into, ignore_errors=True)
    files = sorted(Path(source).rglob("*.parquet"))
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(_cut_file, path, Path(source), Path(into), day, days) for path in files]:
            done.result()
    return time.perf_counter() - began, {}


def _cut_file(path: Path, source: Path, into: Path, day: str, days: int) -> None:
    first = interval(day).start
    column, unit = _TIMES["events" if path.name.startswith("events") else "messages"]
    table = pq.read_table(path)
    # The header of an event file has no time; each segment has it.
    without = table.filter(pc.is_null(table[column]))
    for number in range(days):
        begin, end = (micros(first + timedelta(days=at)) // unit for at in (number, number + 1))
        inside = pc.and_(pc.greater_equal(table[column], begin), pc.less(table[column], end))
        folder = into / f"{number:02}" / path.parent.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        with open_writer(folder / f"{path.stem}-{number:02}.parquet", table.schema) as writer:
            writer.write_table(pa.concat_tables([without, table.filter(inside)]))


def run(segments: str, home: str, day: str, days: int, times: int) -> tuple[float, dict[str, Any]]:
    """Run all days in order, then the second and the last ``times`` more, in turns.

    Returns the seconds of all, and of these two days the figures of each run: ``seconds``, ``read_mb``, ``worker_mb`` (the
    largest Python worker) and ``tasks``.
    """
    shutil.rmtree(home, ignore_errors=True)
    landing, warehouse = Path(home) / "landing", Path(home) / "warehouse"
    first = interval(day).start
    spans = [_day(first, number) for number in range(days)]
    found: dict[str, list[dict[str, float]]] = {"early": [], "late": []}
    every_s = []
    began = time.perf_counter()
    with running_session() as spark:
        for number, span in enumerate(spans):
            sources = [Path(segments) / f"{at:02}" for at in range(number + 1)]
            pull(sources, landing, span.start)
            with measured(spark) as figures:
                _stages(spark, landing, warehouse, span)
            every_s.append(round(figures["seconds"], 2))
            # As the maintenance DAG does every week.
            if number % 7 == 6:
                compact(home)
        for _ in range(times):
            for name, span in (("early", spans[1]), ("late", spans[-1])):
                with measured(spark) as figures:
                    _stages(spark, landing, warehouse, span)
                found[name].append(figures)
    return time.perf_counter() - began, {"days_s": every_s, **found}


def _day(first: datetime, number: int) -> Interval:
    return interval(first + timedelta(days=number))


def _stages(spark: SparkSession, landing: Path, warehouse: Path, span: Interval) -> None:
    ingest(spark, landing, warehouse, span)
    replay(spark, warehouse, span)
    aggregate(warehouse, span)


@contextmanager
def measured(spark: SparkSession) -> Iterator[dict[str, float]]:
    """Measure what runs inside, of this process and all below it; see ``run`` for the figures."""
    figures: dict[str, float] = {}
    read, tasks, peak = _read_bytes(), _tasks(spark), [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            peak[0] = max(peak[0], *(_resident(process) for process in _workers()), 0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began = time.perf_counter()
    yield figures
    figures["seconds"] = time.perf_counter() - began
    ended.set()
    watcher.join()
    figures["read_mb"] = (_read_bytes() - read) / 1e6
    figures["tasks"] = _tasks(spark) - tasks
    figures["worker_mb"] = peak[0] / 1e6


def _tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _workers() -> list[psutil.Process]:
    return [process for process in _tree()[1:] if _name(process).startswith("python")]


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:  # it has ended
        return ""


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended
        return 0


def _read_bytes() -> int:
    """Return the bytes that the processes have read by system calls, from files, pipes and sockets."""
    read = 0
    for process in _tree():
        try:
            read += process.io_counters().read_chars
        except psutil.Error:  # it has ended
            continue
    return read


def _tasks(spark: SparkSession) -> int:
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(at).totalTasks() for at in range(executors.size()))
