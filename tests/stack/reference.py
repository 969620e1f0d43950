"""``python -m tests.stack.reference SOURCE HOME DAY...``: run the days in order, in one process with local Spark.

The result is the reference for undisturbed runs. It uses no Airflow, no cluster and no groups of dispatchers.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dispatch_expectations.policy import current_policy
from dispatch_expectations.validate import validate_interval
from spark_jobs.aggregates.aggregate_interval import aggregate
from spark_jobs.ingest.with_history import ingest_with_history
from spark_jobs.intervals import interval
from spark_jobs.pull.pull_logs import pull
from spark_jobs.replay.replay_interval import replay
from spark_jobs.session import running_session


def main(source: Path, home: Path, days: list[str]) -> None:
    """Fill the tables of ``home``."""
    landing, warehouse = home / "landing", home / "warehouse"
    policy = current_policy()
    limits = policy.limit_rules()
    with running_session() as spark:
        for day in days:
            span = interval(day)
            pull(source, landing, span.start)
            ingest_with_history(spark, landing, warehouse, span)
            replay(spark, warehouse, span, limits=limits)
            aggregate(warehouse, span, limits=limits)
            validate_interval(warehouse, span.start, home / "data-docs", policy)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
