"""Run the stage as ``python -m spark_jobs.ingest``."""

import sys

from spark_jobs.ingest.with_history import main

if __name__ == "__main__":
    sys.exit(main())
