"""Run the stage as ``python -m spark_jobs.hunt``."""

import sys

from dispatch_core.cli.log_lines import run_command
from spark_jobs.hunt.hunt_releases import main

if __name__ == "__main__":
    sys.exit(run_command(main, "hunt"))
