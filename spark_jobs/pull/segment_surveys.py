"""Survey all segments of a source that have no survey yet, in Spark where they are large."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_jobs.progress import say
from spark_jobs.pull.hours_survey import Survey
from spark_jobs.pull.segments import Segment, known_survey, make_survey
from spark_jobs.task_grouping import group_into_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A segment with its survey.
Surveyed = tuple[Segment, Survey]

#: Less than this is surveyed in this process before Spark would begin.
_HERE_BYTES: Final = 32_000_000
_BYTES_PER_TASK: Final = 16_000_000


def surveyed(spark: SparkSession | None, landing: Path, segments: Sequence[Segment]) -> list[Surveyed]:
    """Each segment with its survey, in their order."""
    landing = Path(landing)
    found = {one: known_survey(landing, one) for one in segments}
    new = [one for one, survey in found.items() if survey is None]
    size_bytes = sum(one.size_bytes for one in new)
    if new:
        say(f"survey: {len(new)} new files, {size_bytes} bytes: which hours they hold rows of")
    if spark is None or size_bytes < _HERE_BYTES:
        made = [make_survey(landing, one) for one in new]
    else:
        made = _in_tasks(spark, landing, new)
    found.update(zip(new, made, strict=True))
    return [(one, survey) for one, survey in found.items() if survey is not None]


def _in_tasks(spark: SparkSession, landing: Path, new: Sequence[Segment]) -> list[Survey]:
    context = spark.sparkContext
    tasks = group_into_tasks(
        [one.size_bytes for one in new], context.defaultParallelism, least=_BYTES_PER_TASK
    )
    asked = [[(str(landing), number, new[number]) for number in task] for task in tasks]
    made = dict(context.parallelize(asked, len(asked)).flatMap(_survey_task).collect())
    return [made[number] for number in range(len(new))]


def _survey_task(task: list[tuple[str, int, Segment]]) -> list[tuple[int, Survey]]:
    return [(number, make_survey(Path(landing), segment)) for landing, number, segment in task]
