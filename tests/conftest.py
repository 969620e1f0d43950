"""Environment of all tests, set in one place, so that ``make test`` and a bare ``pytest`` agree.

Airflow reads its home when it is imported, so this runs before any test module is imported. Each test session has its
own empty home, and a developer's Airflow or Spark settings do not reach the tests.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile

_HOME = tempfile.mkdtemp(prefix="dispatch-audit-tests-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

for _name in [
    name for name in os.environ if name.startswith(("AIRFLOW_", "AIRFLOW__", "DISPATCH_AUDIT_HOME"))
]:
    del os.environ[_name]
os.environ["AIRFLOW_HOME"] = os.path.join(_HOME, "airflow")  # noqa: PTH118 - before anything else is imported
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from collections import Counter  # noqa: E402 - after the environment is set

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# Machines differ and share their cores: a slow example is no failure. The default run takes the same examples each time, so
# that its result belongs to the code; `make properties` searches with new ones.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("search", deadline=None, max_examples=3000)
settings.load_profile("default")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of sampled tests as slow, but for every ``step``-th one of each test (see the markers)."""
    seen: Counter[str] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is None:
            continue
        name = item.nodeid.partition("[")[0]
        if seen[name] % sampled.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[name] += 1
