"""Run the stage as ``python -m spark_jobs.what_if``."""

import sys

from spark_jobs.what_if.comparison import main

if __name__ == "__main__":
    sys.exit(main())
