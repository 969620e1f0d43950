"""``python -m tests.recorder.from_store URL HOME DAY...``: all stages on logs in an object store, as the DAG pulls them.

The store is Airflow's connection ``store`` (``AIRFLOW_CONN_STORE``).
"""

from __future__ import annotations

import sys
from pathlib import Path

from airflow.sdk import ObjectStoragePath

from tests.stack.reference import main

if __name__ == "__main__":
    main(ObjectStoragePath(sys.argv[1], conn_id="store"), Path(sys.argv[2]), sys.argv[3:])
