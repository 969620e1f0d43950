"""Run the stage as ``python -m spark_jobs.maintenance``."""

import sys

from spark_jobs.maintenance.maintain import main

if __name__ == "__main__":
    sys.exit(main())
