"""Survey segments for the hours of their rows, each once: the survey is kept beside the segment.

``spark_jobs.pull.hours_survey`` says what a survey is. Many or large segments are surveyed in Spark tasks.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_jobs.progress import say
from spark_jobs.pull.hours_survey import Survey, survey
from spark_jobs.pull.segments import Segment
from spark_jobs.task_grouping import group_into_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A segment with its survey.
Surveyed = tuple[Segment, Survey]

#: Less than this is surveyed in this process, faster than Spark would start.
_HERE_BYTES: Final = 32_000_000
_BYTES_PER_TASK: Final = 16_000_000


def about_path(landing: Path, segment: Segment) -> Path:
    """Path of a segment's survey."""
    path = segment.path(landing)
    return path.with_name(f"{path.name}.about.json")


def known_survey(landing: Path, segment: Segment) -> Survey | None:
    """Read the survey of a segment; None if it was not made yet."""
    try:
        return Survey.of_json(json.loads(about_path(landing, segment).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None  # not made yet, or of another version


def make_survey(landing: Path, segment: Segment) -> Survey:
    """Survey a segment and write the survey beside it."""
    before = None
    if segment.grown_from is not None:
        before = known_survey(landing, replace(segment, sha256=segment.grown_from))
    made = survey(segment.path(landing), segment.sha256[:16], earlier=before)
    path = about_path(landing, segment)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(json.dumps(made.as_json()), encoding="utf-8")
    temporary.replace(path)
    return made


def surveyed(spark: SparkSession | None, landing: Path, segments: Sequence[Segment]) -> list[Surveyed]:
    """Survey the segments that have no survey yet; return all segments with their surveys, in order."""
    landing = Path(landing)
    found = {segment: known_survey(landing, segment) for segment in segments}
    new = [segment for segment, known in found.items() if known is None]
    size_bytes = sum(segment.size_bytes for segment in new)
    if new:
        say(f"survey: looks for the hours of the rows in {len(new)} new files, {size_bytes} bytes")
    if spark is None or size_bytes < _HERE_BYTES:
        made = [make_survey(landing, segment) for segment in new]
    else:
        made = _in_tasks(spark, landing, new)
    found.update(zip(new, made, strict=True))
    return [(segment, known) for segment, known in found.items() if known is not None]


def _in_tasks(spark: SparkSession, landing: Path, new: Sequence[Segment]) -> list[Survey]:
    context = spark.sparkContext
    tasks = group_into_tasks(
        [segment.size_bytes for segment in new], context.defaultParallelism, least=_BYTES_PER_TASK
    )
    work = [[(str(landing), number, new[number]) for number in task] for task in tasks]
    made = dict(context.parallelize(work, len(work)).flatMap(_survey_task).collect())
    return [made[number] for number in range(len(new))]


def _survey_task(task: list[tuple[str, int, Segment]]) -> list[tuple[int, Survey]]:
    return [(number, make_survey(Path(landing), segment)) for landing, number, segment in task]
