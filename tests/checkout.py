"""The folders of this checkout that hold its packages, for the tests and for the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: ``dispatch_core``, ``spark_jobs``, ``tests`` and ``bench``; ``dispatch_airflow``; ``dispatch_expectations``.
PACKAGE_FOLDERS: Final = (ROOT, ROOT / "dags", ROOT / "expectations")
#: Value of the environment variable. Without it a process would import the installed packages, from any place.
PYTHONPATH: Final = os.pathsep.join(str(folder) for folder in PACKAGE_FOLDERS)
