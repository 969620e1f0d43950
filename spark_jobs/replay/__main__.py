"""Run the stage as ``python -m spark_jobs.replay``."""

import sys

from spark_jobs.replay.command import main

if __name__ == "__main__":
    sys.exit(main())
