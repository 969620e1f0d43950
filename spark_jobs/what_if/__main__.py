"""Run the stage as ``python -m spark_jobs.what_if``."""

import sys

from dispatch_core.cli.log_lines import run_command
from spark_jobs.what_if.comparison import main

if __name__ == "__main__":
    sys.exit(run_command(main, "what-if"))
