"""Run the stage as ``python -m spark_jobs.aggregates``."""

import sys

from spark_jobs.aggregates.aggregate_interval import main

if __name__ == "__main__":
    sys.exit(main())
