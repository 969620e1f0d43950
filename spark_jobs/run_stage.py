"""Run a stage by the name of its module, as ``python -m`` would: the script that ``spark-submit`` is given.

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
    """Run the module that the first argument names with the arguments behind it."""
    # The JVM started this process and does not end it: a stage must not go on when its task was killed.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    # A script's folder stands first in the path, where the names of this package's modules would hide others'.
    del sys.path[0]
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
