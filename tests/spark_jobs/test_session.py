"""The message after the end of Spark's Java process."""

from __future__ import annotations

import subprocess
import sys

_KILLED = """
import os, signal, sys
from dispatch_core.errors import DispatchAuditError
from spark_jobs.session import running_session
try:
    with running_session(0) as spark:
        java = spark.sparkContext._gateway.proc.pid
        spark.range(5).count()
        os.kill(java, signal.SIGKILL)
        spark.range(5).count()
except DispatchAuditError as error:
    print(f"error: {error}")
    sys.exit(75 if error.another_attempt_may_do else 2)
"""

_WRONG = """
from spark_jobs.session import running_session
with running_session(0) as spark:
    open("/nowhere/at/all")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )


def test_a_java_process_that_was_killed_is_reported_in_one_line() -> None:
    done = run(_KILLED)
    assert done.returncode == 75, done.stderr[-2000:]
    assert done.stdout.startswith("error: Spark's Java process ended during the work")
    assert len(done.stdout.splitlines()) == 1


def test_other_errors_stay_what_they_are() -> None:
    done = run(_WRONG)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("FileNotFoundError")
    assert "SparkLostError" not in done.stderr
