"""Numbers that stand for the logs of an interval while rows are grouped: a number is shorter than a topic's name.

Where groups are nearly as many as rows, as consumers and keys of many small dispatchers are, what is exchanged and held is
mostly names otherwise.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.warehouse.contracts import LOG


def log_numbers(states: DataFrame) -> DataFrame:
    """A row per log of ``dispatcher_state``: ``LOG`` and its number ``log``. Persist it."""
    return states.select(*LOG).distinct().withColumn("log", F.row_number().over(Window.orderBy(*LOG)))


def numbered(rows: DataFrame, logs: DataFrame) -> DataFrame:
    """``rows`` with ``log`` in place of ``LOG``; rows of logs that ``logs`` does not have are left out."""
    return rows.join(F.broadcast(logs), list(LOG)).drop(*LOG)


def named(rows: DataFrame, logs: DataFrame) -> DataFrame:
    """``rows`` with ``LOG`` in place of ``log``."""
    return rows.join(F.broadcast(logs), "log").drop("log")
