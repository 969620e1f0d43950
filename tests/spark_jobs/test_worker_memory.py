"""A worker takes no more memory than its replays need."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _says(code: str) -> str:
    """Return the output of a new process, because the settings under test apply to a whole process."""
    script = (
        "import sys\nimport pyarrow as pa\nfrom spark_jobs.worker_memory import take_little_memory\n"
        + textwrap.dedent(code)
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return run.stdout.strip()


def test_arrow_loads_no_pandas() -> None:
    said = _says(
        """
        take_little_memory()
        pa.array([1, None]), pa.scalar("a"), pa.table({"a": [1]}).group_by("a").aggregate([])
        print("pandas" in sys.modules)
        """
    )
    assert said == "False"
    assert _says('pa.array([1]); print("pandas" in sys.modules)') == "True", "else nothing has to be done"


def test_numba_loads_no_linear_algebra_and_compiles_all_the_same() -> None:
    said = _says(
        """
        take_little_memory()
        from dispatch_core.audit.deliveries.scan import warm_up
        warm_up()
        print("scipy.linalg" in sys.modules)
        import scipy.linalg
        print(scipy.linalg.norm([3.0, 4.0]))
        """
    )
    assert said.split() == ["False", "5.0"]


def test_whoever_wants_pandas_gets_it() -> None:
    assert _says("take_little_memory(); import pandas; print(pandas.Series([1, 2]).sum())") == "3"


def test_a_process_that_has_pandas_keeps_it_in_arrow_too() -> None:
    assert (
        _says("import pandas; take_little_memory(); print(pa.array(pandas.Series([1, 2])).to_pylist())")
        == "[1, 2]"
    )


def test_all_of_arrow_takes_memory_from_one_allocator_in_a_task(spark: SparkSession) -> None:
    def allocators(_rows: Iterator[int]) -> Iterator[tuple[str | None, str]]:
        yield os.environ.get("ARROW_DEFAULT_MEMORY_POOL"), pa.default_memory_pool().backend_name

    assert "jemalloc" in pa.supported_memory_backends()
    assert spark.sparkContext.parallelize([1], 1).mapPartitions(allocators).collect() == [
        ("jemalloc", "jemalloc")
    ]


def test_a_replay_task_loads_no_table_format() -> None:
    said = _says('import spark_jobs.replay.replay_task; print("deltalake" in sys.modules)')
    assert said == "False"
