"""Survey segments for the hours of their rows, each once: the surveys are kept in a table of the landing.

``spark_jobs.pull.hours_survey`` says what a survey is. Many or large segments are surveyed in Spark tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dispatch_core.recording.stored_files import parquet_rows
from spark_jobs.location import Location
from spark_jobs.progress import say
from spark_jobs.pull.hours_survey import Survey, survey
from spark_jobs.pull.segments import Segment
from spark_jobs.task_grouping import group_into_tasks
from spark_jobs.warehouse.delta_tables import Place, live_files, open_delta
from spark_jobs.warehouse.records import Records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A segment with its survey.
Surveyed = tuple[Segment, Survey]

#: Less than this is surveyed in this process, faster than Spark would start.
_HERE_BYTES: Final = 32_000_000
_BYTES_PER_TASK: Final = 16_000_000


_ROWS: Final = pa.schema([pa.field(name, pa.string()) for name in ("sha256", "name", "survey")])
#: More files than this are joined when surveys are added.
_MOST_FILES: Final = 32
#: A file's contents and the last part of its name, which says how to read them.
_Key = tuple[str, str]


def _records(landing: Place) -> Records:
    return Records(Location.of(landing) / "surveys", _ROWS)


def survey_key(segment: Segment, sha256: str | None = None) -> _Key:
    """Return the key of a segment's survey; ``sha256``: of earlier contents under its name."""
    return sha256 or segment.sha256, segment.name.rpartition("/")[2]


def known_surveys(landing: Place) -> dict[_Key, Survey]:
    """Read the surveys that were made by this version of the code."""
    records = _records(landing)
    if not records.exists():
        return {}
    found: dict[_Key, Survey] = {}
    for path in live_files(open_delta(records.place), records.place):
        found.update(_surveys_in(path))
    return found


@lru_cache(maxsize=4 * _MOST_FILES)
def _surveys_in(path: str) -> dict[_Key, Survey]:
    """Read a file of the table; files are never written again."""
    rows = parquet_rows(path).to_pylist()
    read = (((row["sha256"], row["name"]), _of_text(row["survey"])) for row in rows)
    return {key: known for key, known in read if known is not None}


def _of_text(text: str) -> Survey | None:
    """Read a survey; None for one that another version wrote."""
    try:
        return Survey.of_json(json.loads(text))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def _keep(landing: Place, made: Mapping[_Key, Survey]) -> None:
    records = _records(landing)
    rows = [
        {"sha256": sha256, "name": name, "survey": json.dumps(made[sha256, name].as_json())}
        for sha256, name in sorted(made)
    ]
    records.append(pa.Table.from_pylist(rows, schema=_ROWS))
    if len(live_files(open_delta(records.place), records.place)) > _MOST_FILES:
        records.update(lambda known: known)


def make_survey(landing: Place, segment: Segment, earlier: Survey | None = None) -> Survey:
    """Survey a segment. ``earlier``: the survey of its earlier, shorter version."""
    return survey(segment.path(landing), segment.sha256[:16], earlier=earlier)


def surveyed(spark: SparkSession | None, landing: Place, segments: Sequence[Segment]) -> list[Surveyed]:
    """Survey the segments that have no survey yet; return all segments with their surveys, in order."""
    known = known_surveys(landing)
    new = list(
        {survey_key(segment): segment for segment in segments if survey_key(segment) not in known}.values()
    )
    size_bytes = sum(segment.size_bytes for segment in new)
    if new:
        say(f"survey: looks for the hours of the rows in {len(new)} new files, {size_bytes} bytes")
        work = [
            (segment, known.get(survey_key(segment, segment.grown_from)) if segment.grown_from else None)
            for segment in new
        ]
        if spark is None or size_bytes < _HERE_BYTES:
            made = [make_survey(landing, segment, earlier) for segment, earlier in work]
        else:
            made = _in_tasks(spark, landing, work)
        added = dict(zip(map(survey_key, new), made, strict=True))
        _keep(landing, added)
        known |= added
    return [(segment, known[survey_key(segment)]) for segment in segments]


def _in_tasks(
    spark: SparkSession, landing: Place, new: Sequence[tuple[Segment, Survey | None]]
) -> list[Survey]:
    context = spark.sparkContext
    tasks = group_into_tasks(
        [segment.size_bytes for segment, _earlier in new], context.defaultParallelism, least=_BYTES_PER_TASK
    )
    place = str(Location.of(landing))
    work = [[(place, number, *new[number]) for number in task] for task in tasks]
    made = dict(context.parallelize(work, len(work)).flatMap(_survey_task).collect())
    return [made[number] for number in range(len(new))]


def _survey_task(task: list[tuple[str, int, Segment, Survey | None]]) -> list[tuple[int, Survey]]:
    return [(number, make_survey(landing, segment, earlier)) for landing, number, segment, earlier in task]
