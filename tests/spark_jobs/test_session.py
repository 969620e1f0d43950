"""Output of Spark's Java process, and the message after its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_a_java_process_that_was_killed_is_reported_in_one_line() -> None:
    done = run(_KILLED)
    assert done.returncode == 75, done.stderr[-2000:]
    assert done.stdout.startswith("error: Spark's Java process ended during the work")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_other_errors_stay_what_they_are() -> None:
    done = run(_WRONG)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("FileNotFoundError")
    assert "SparkLostError" not in done.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_what_java_writes_to_stdout_is_not_among_the_results(tmp_path: Path) -> None:
    recording = Path(__file__).parents[1] / "data" / "recordings" / "4.2.4" / "designed-negative-acks-ch"
    command = [sys.executable, "-m", "dispatch_core.cli.main", "pipeline", str(recording), "--json"]
    talkative = {"DISPATCH_AUDIT_JAVA_OPTIONS": "-XX:+PrintCommandLineFlags -Xlog:gc:stdout"}
    done = subprocess.run(
        [*command, "--home", str(tmp_path)],
        env={**os.environ, **talkative},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert "all" in {verdict["promise"] for verdict in verdicts}
    assert "[gc]" in done.stderr
    assert any(line.startswith("-XX:") for line in done.stderr.splitlines()), "Java printed its flags"
