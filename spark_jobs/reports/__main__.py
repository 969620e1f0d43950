"""Run the stage as ``python -m spark_jobs.reports``."""

import sys

from spark_jobs.reports.report_pages import main

if __name__ == "__main__":
    sys.exit(main())
