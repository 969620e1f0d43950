"""Start the Spark session of a job: local by default, or on the cluster that ``spark-submit`` was given.

All settings of Spark are made here: Delta's extension and jars, UTC, small shuffles, loopback addresses, quiet logs.

Environment variables: ``DISPATCH_AUDIT_SPARK_MASTER`` (default ``local[n,8]``, where n is the number of cores, at most
4, and 8 the attempts per task), ``DISPATCH_AUDIT_SPARK_JARS`` (the Delta jars, separated by commas),
``DISPATCH_AUDIT_DRIVER_MEMORY`` (default ``2g``), ``DISPATCH_AUDIT_JAVA_OPTIONS`` (options of the driver's JVM in place
of those chosen for short jobs).
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
from dispatch_core.recording.stored_files import VARIABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkLostError(DispatchAuditError):
    """Spark's Java process ended during the work: it was killed, or the memory was not enough."""

    another_attempt_may_do = True


#: Below this much input the JVM's optimizing compiler costs more than it saves: on two cores a job of a few megabytes
#: took less than half the time without it.
_SHORT_JOB_BYTES: Final = 200_000_000
_SHORT_JOB: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

#: Time to wait for the end of a process whose connection broke.
_END_S: Final = 2.0

#: A worker that dies costs its task one attempt. A dispatcher may kill two workers before it is set aside, so a task of many
#: small dispatchers survives three such dispatchers.
_TASK_ATTEMPTS: Final = 8

_LOG4J: Final = Path(__file__).parent / "log4j2.properties"


def build_session(app_name: str = "dispatch-audit", size_bytes: int | None = None) -> SparkSession:
    """Start a session with Delta, or return the one that the process already has.

    ``size_bytes``: the input that Spark itself will handle, if known; a short job gets a JVM that starts fast.
    """
    # Both must be in the environment before the JVM starts; the workers inherit them.
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
            # Without jars from the set-up, Spark downloads them once through Ivy into the user's cache.
            from delta import configure_spark_with_delta_pip

            builder = configure_spark_with_delta_pip(builder)
    with _stdout_is_stderr():
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _stdout_is_stderr() -> Iterator[None]:
    """Let processes that start within the block write to stderr what they write to stdout.

    A JVM writes its own warnings, such as that of a full code cache, to stdout, which belongs to the results.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def is_chosen() -> bool:
    """Check whether somebody chose where Spark runs: by ``spark-submit``, or by a master in the environment."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or bool(os.environ.get("DISPATCH_AUDIT_SPARK_MASTER"))


@contextmanager
def running_session(size_bytes: int | None = None) -> Iterator[SparkSession]:
    """Yield a session: the one that the process has, which stays, or a new one, which is stopped at the end.

    Raises ``SparkLostError`` if its Java process ends within the block.
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
                "Spark's Java process ended during the work: it was killed, or the machine's memory was not enough. "
                "Tables have their earlier rows or the new ones. Run the stage again; if memory was short, set a smaller "
                "DISPATCH_AUDIT_DRIVER_MEMORY or give the machine more memory"
            ) from error
        raise
    finally:
        if session is not None and not had_one:
            # Stopping a lost session fails, but releases what Python has of it.
            with suppress(Exception) if lost else nullcontext():
                session.stop()


def _is_lost(error: Exception) -> bool:
    """True if an error was caused by the end of the Java process, which shows only as a broken connection."""
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
    """List the Delta jars of the set-up: ``DISPATCH_AUDIT_SPARK_JARS``, else those in ``<sys.prefix>/spark-jars``."""
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
        # Also for the workers of a local master.
        **{f"spark.executorEnv.{name}": value for name, value in ENVIRONMENT.items()},
        **_store_settings(),
        "spark.task.maxFailures": str(_TASK_ATTEMPTS),  # on a cluster; a local master has its own number
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(_cores() * 2),
        "spark.default.parallelism": str(_cores()),
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "dispatch-audit-spark-warehouse"),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        # Below this number of files the driver reads their status itself, without a job.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
        "spark.sql.parquet.compression.codec": "zstd",
        # The level of the files that the tasks write themselves; the default is 3.
        "spark.hadoop.parquet.compression.codec.zstd.level": "1",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.databricks.delta.snapshotPartitions": "1",
        # The reader ensures nullability inside lists and structs; Delta cannot enforce it.
        "spark.databricks.delta.constraints.allowUnenforcedNotNull.enabled": "true",
    }


def _store_settings() -> dict[str, str]:
    """Return the settings by which the executors of a cluster get at the store of the home; local ones inherit them.

    Spark hides the values of settings whose names match ``spark.redaction.regex`` wherever it shows settings.
    """
    local = (os.environ.get("DISPATCH_AUDIT_SPARK_MASTER") or "local").startswith("local")
    if local and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    given = {f"spark.executorEnv.{name}": os.environ[name] for name in VARIABLES if os.environ.get(name)}
    return given | ({"spark.redaction.regex": "(?i)secret|password|token|access[._]?key"} if given else {})


def _cores() -> int:
    return max(1, min(4, len(os.sched_getaffinity(0))))
