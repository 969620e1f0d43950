"""The Spark session of all jobs: local by default, or the cluster that ``spark-submit`` was told.

What a job needs of Spark is set here and nowhere else: Delta's extension and jars, UTC, small shuffles, loopback
addresses, quiet logs. Environment: ``DISPATCH_AUDIT_SPARK_MASTER`` (default ``local[n,8]`` with n = cores, at most 4; the
second number lets a task whose worker died be tried again), ``DISPATCH_AUDIT_SPARK_JARS`` (the Delta jars, separated by
commas), ``DISPATCH_AUDIT_DRIVER_MEMORY`` (default ``2g``), ``DISPATCH_AUDIT_JAVA_OPTIONS`` (further options of the driver's
JVM, instead of the ones chosen for short jobs).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dispatch_core.errors import DispatchAuditError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkLostError(DispatchAuditError):
    """Spark's Java process has ended in the middle of the work: somebody killed it, or the memory was not enough."""

    another_attempt_may_do = True


#: Below this much input the JVM's optimizing compiler costs more than it saves: on two cores a job of a few megabytes
#: took less than half the time without it.
_SHORT_JOB_BYTES: Final = 200_000_000
_SHORT_JOB: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: So long it may take until a process whose connection broke is seen to have ended.
_END_S: Final = 2.0

#: A worker that dies costs one attempt, and a dispatcher may kill two before it is set aside: so a task that small
#: dispatchers share gets by with three of that kind.
_TASK_ATTEMPTS: Final = 8

_LOG4J: Final = Path(__file__).parent / "log4j2.properties"


def build_session(app_name: str = "dispatch-audit", size_bytes: int | None = None) -> SparkSession:
    """A running session with Delta; the existing one where the process has one already.

    ``size_bytes``, where known, is how much input Spark itself will handle: a short job gets a JVM that starts fast.
    """
    # Both must stand in the environment before the JVM starts; the workers inherit them.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in _settings(size_bytes).items():
        builder = builder.config(name, value)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has chosen name, master and memory
        builder = (
            builder.appName(app_name)
            .master(os.environ.get("DISPATCH_AUDIT_SPARK_MASTER") or f"local[{_cores()},{_TASK_ATTEMPTS}]")
            .config("spark.driver.memory", os.environ.get("DISPATCH_AUDIT_DRIVER_MEMORY") or "2g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
        jars = delta_jars()
        if jars:
            builder = builder.config("spark.jars", ",".join(jars))
        else:
            # No jars were set up: Spark fetches them through Ivy, once, into the user's cache.
            from delta import configure_spark_with_delta_pip

            builder = configure_spark_with_delta_pip(builder)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def running_session(size_bytes: int | None = None) -> Iterator[SparkSession]:
    """A session for the block: the process's own where it has one (which stays), else a new one, stopped at the end.

    Raises ``SparkLostError`` where its Java process ends within the block.
    """
    from pyspark.sql import SparkSession

    had_one = SparkSession.getActiveSession() is not None
    session: SparkSession | None = None
    lost = False
    try:
        session = build_session(size_bytes=size_bytes)
        yield session
    except Exception as error:
        lost = _is_lost(error)
        if lost:
            raise SparkLostError(
                "Spark's Java process has ended in the middle of the work: it was killed, or the machine's memory was not "
                "enough. Tables have their earlier rows or the new ones. Run it again; if it was short of memory, with less "
                "in DISPATCH_AUDIT_DRIVER_MEMORY or more in the machine"
            ) from error
        raise
    finally:
        if session is not None and not had_one:
            # What is lost cannot be stopped, but what Python holds of it is given up.
            with suppress(Exception) if lost else nullcontext():
                session.stop()


def _is_lost(error: Exception) -> bool:
    """Tell if an error was caused by the end of the Java process, which shows only as a broken connection."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkContext

    if isinstance(error, Py4JJavaError) or not isinstance(error, (OSError, EOFError, Py4JError)):
        return False
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:  # spark-submit started this process, and Java is above it
        return False
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def delta_jars() -> list[str]:
    """The Delta jars that the set-up fetched: ``DISPATCH_AUDIT_SPARK_JARS``, else ``<sys.prefix>/spark-jars``."""
    named = os.environ.get("DISPATCH_AUDIT_SPARK_JARS")
    if named:
        return [jar for jar in named.split(",") if jar]
    return [str(jar) for jar in sorted((Path(sys.prefix) / "spark-jars").glob("*.jar"))]


def _settings(size_bytes: int | None) -> dict[str, str]:
    from spark_jobs.worker_memory import ENVIRONMENT

    java = os.environ.get("DISPATCH_AUDIT_JAVA_OPTIONS")
    if java is None:
        java = _SHORT_JOB if size_bytes is not None and size_bytes < _SHORT_JOB_BYTES else ""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Dlog4j2.configurationFile={_LOG4J.as_uri()} {java}",
        # Of a local master's workers, too.
        **{f"spark.executorEnv.{name}": value for name, value in ENVIRONMENT.items()},
        "spark.task.maxFailures": str(_TASK_ATTEMPTS),  # of a cluster; a local master names its own number
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(_cores() * 2),
        "spark.default.parallelism": str(_cores()),
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "dispatch-audit-spark-warehouse"),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        # Files are named one by one; below this number the driver looks at them itself, without a job.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
        "spark.sql.parquet.compression.codec": "zstd",
        # As little work as in the files that the tasks write themselves; the default is level 3.
        "spark.hadoop.parquet.compression.codec.zstd.level": "1",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Nullability inside lists and structs is the reader's promise; Delta cannot enforce it.
        "spark.databricks.delta.constraints.allowUnenforcedNotNull.enabled": "true",
    }


def _cores() -> int:
    return max(1, min(4, len(os.sched_getaffinity(0))))
