"""Run a stage of the pipeline in a process that may kill itself: ``python -m tests.chaos.victim STAGE HOME SOURCE``.

It ends with 2 and one line for an error that the product reports, and with a traceback for any other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dispatch_core.errors import DispatchAuditError
from tests.chaos.points import from_environment, wrap_writers
from tests.chaos.stages import BESIDE, STAGES


def main() -> int:
    """Run the stage."""
    stage, home, source = sys.argv[1:]
    points = from_environment() if os.environ.get("CHAOS_ROLE") == "driver" else None
    if points is not None:
        wrap_writers(points)
        points.install()
    try:
        (STAGES | BESIDE)[stage](Path(home), Path(source))
    except DispatchAuditError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
