"""Script for ``spark-submit``: run a stage by the name of its module, like ``python -m``.

``spark-submit ... spark_jobs/run_stage.py spark_jobs.ingest --interval-start ...``
"""

from __future__ import annotations

import ctypes
import runpy
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Run the module that the first argument names, with the remaining arguments."""
    # The JVM started this process but does not end it: end with the JVM when the Airflow task is killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    # The script's folder is first in the path, and its modules would hide other modules of the same name.
    del sys.path[0]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
