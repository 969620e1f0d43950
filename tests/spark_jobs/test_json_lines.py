"""Stages write lines of JSON where they are asked to: their own, those of Spark's JVM, and unexpected errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import PYTHONPATH

#: What Java itself writes when it starts, before Spark could choose the form.
BY_JAVA = "WARNING: Using incubator modules"


def said_by(*words: str, home: Path) -> list[dict[str, str]]:
    """Run Python with lines of JSON; return the objects that it wrote on stderr, and fail if a line is none."""
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "DISPATCH_AUDIT_LOG_FORMAT": "json"},
        cwd=home, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2), done.stderr
    lines = done.stderr.splitlines()
    return [json.loads(line) for line in lines if not line.startswith(BY_JAVA)]


@pytest.mark.spark
def test_an_error_of_a_stage_names_stage_and_interval(tmp_path):
    words = ["--interval-start", "2026-11-21", "--landing", "landing", "--warehouse", "warehouse"]
    said = said_by("-m", "spark_jobs.ingest", *words, home=tmp_path)[-1]
    assert said["message"].startswith("error: ")
    assert {name: said[name] for name in ("level", "logger", "stage", "interval")} == {
        "level": "ERROR",
        "logger": "dispatch_audit.output",
        "stage": "ingest",
        "interval": "2026-11-21T00:00:00+00:00",
    }


_FAILS = """
import sys
from dispatch_core.cli.log_lines import run_command
from spark_jobs.progress import say
from spark_jobs.session import running_session

def main():
    with running_session(0) as spark:
        say("ingest begins")
        log4j = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager
        log4j.getLogger("org.apache.spark.Something").error('a "quoted"\\ntext')
        spark.sparkContext.parallelize([1], 1).map(lambda number: number // 0).collect()

sys.exit(run_command(main, "ingest"))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_spark_and_unexpected_errors_write_objects_too(tmp_path):
    said = said_by("-c", _FAILS, home=tmp_path)
    assert [(line["level"], line["message"]) for line in said[:2]] == [
        ("INFO", "ingest begins"),
        ("ERROR", 'a "quoted"\ntext'),
    ]
    assert said[1]["logger"] == "org.apache.spark.Something"
    [lost] = [line for line in said if line["logger"].endswith("TaskSetManager")]
    assert lost["level"] == "ERROR"
    assert any("ZeroDivisionError" in line.get("exception", "") for line in said[2:-1]), (
        "the JVM's stack trace"
    )
    assert (said[-1]["level"], said[-1]["stage"]) == ("CRITICAL", "ingest")
    assert "ZeroDivisionError" in said[-1]["exception"]
