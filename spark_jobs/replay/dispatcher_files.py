"""Find the dispatchers of an interval, and the data files that hold the rows of each.

Read from the files' footers: a row group whose first and last name are the same holds nothing else, and of the others the
names alone are read. So this costs by the row groups, not by the rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from dispatch_core.recording import schema
from spark_jobs.intervals import Interval
from spark_jobs.warehouse.contracts import GROUP
from spark_jobs.warehouse.delta_tables import data_files, files_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Tasks per core that look into files: enough that the last one to end keeps nobody waiting for long.
_TASKS_PER_CORE: Final = 4


def dispatchers(spark: SparkSession, warehouse: Path, span: Interval) -> list[dict[str, Any]]:
    """The dispatchers of the interval with the files of their whole log, those of one file beside each other.

    Each with ``cluster``, ``topic``, ``subscription``, ``events`` (its rows of ``consumer_events`` up to this interval),
    ``event_files`` and ``message_files`` (paths, in the order of the intervals; last those of ``messages_ahead``, of this
    interval alone). A dispatcher belongs to the interval when one of its lines (its header, too) or of its topic's messages
    does.
    """
    asked = [
        (name, str(path), start == span.start)
        for name in ("consumer_events", "messages")
        for path, start in files_until(warehouse, name, span)
    ]
    # Their topics have lines in this interval. The path is behind those of the table ``messages``.
    asked += [("messages_ahead", path, False) for path in data_files(warehouse, "messages_ahead", span)]
    context = spark.sparkContext
    tasks = max(1, min(len(asked), context.defaultParallelism * _TASKS_PER_CORE))
    rows: Counter[tuple[str, ...]] = Counter()
    files: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    here: set[tuple[str, ...]] = set()
    for path, now, groups in context.parallelize(asked, tasks).map(_look).collect():
        for group, count in groups:
            rows[group] += count
            files[group].add(path)
            if now:
                here.add(group)
    found = [
        dict(zip(schema.DISPATCHER_KEY, group, strict=True))
        | {"events": rows[group], "event_files": sorted(files[group])}
        | {"message_files": sorted(files[group[:2]]) if group[:2] in files else []}
        for group in files
        if len(group) == len(schema.DISPATCHER_KEY) and (group in here or group[:2] in here)
    ]
    found.sort(key=lambda row: (row["event_files"], *(row[name] for name in schema.DISPATCHER_KEY)))
    return found


def _look(asked: tuple[str, str, bool]) -> tuple[str, bool, list[tuple[tuple[str, ...], int]]]:
    """One file, in a Spark task: what it holds."""
    table, path, now = asked
    return path, now, sorted(groups_in(path, GROUP[table]).items())


def groups_in(path: str | Path, group: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Count the rows of each group (values of the text columns ``group``) in a Parquet file."""
    rows: Counter[tuple[str, ...]] = Counter()
    # The names come in runs: as dictionaries they are read, and counted, in a fraction of the time.
    with pq.ParquetFile(path, read_dictionary=list(group)) as file:
        leaves = [file.metadata.schema.column(at).path for at in range(file.metadata.num_columns)]
        places = [leaves.index(name) for name in group]
        for number in range(file.metadata.num_row_groups):
            row_group = file.metadata.row_group(number)
            only = tuple(_only_value(row_group.column(place).statistics) for place in places)
            if None not in only:
                rows[only] += row_group.num_rows
                continue
            names = file.read_row_group(number, columns=list(group), use_threads=False).unify_dictionaries()
            counted = names.group_by(list(group), use_threads=False).aggregate([([], "count_all")])
            for row in counted.to_pylist():
                rows[tuple(row[name] for name in group)] += row["count_all"]
    return rows


def _only_value(statistics: Any) -> Any:
    """The one value that a column has in a row group; None where there are several, or the footer does not say."""
    if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
        return None
    return statistics.min if statistics.min == statistics.max else None
