"""Play some schedules of a release with its rules interpreted, and write which of them they went through.

``watch`` starts ``python -m spark_jobs.hunt.watch_release`` for it: whether rules are compiled is decided when a process
imports them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

from dispatch_core.hunt import coverage
from dispatch_core.hunt.campaign import Campaign

#: 100,000 schedules, the most of a release, take minutes.
_MOST_S: Final = 3_600


def watch(asked: Campaign, release: str) -> list[dict[str, Any]]:
    """Return the functions of ``dispatch_core.hunt.coverage`` for a release, as JSON values."""
    paths = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs.hunt.watch_release"],
        input=json.dumps({"campaign": asked.as_json(), "release": release}),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=_MOST_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"watching {release} ended with {done.returncode}: {done.stderr[-2000:]}")
    functions: list[dict[str, Any]] = json.loads(done.stdout)
    return functions


def main() -> int:
    """Read the campaign and the release from stdin, write the functions to stdout."""
    wanted = json.load(sys.stdin)
    asked = Campaign.of_json(wanted["campaign"])
    seeds, each = asked.watched_seeds()
    functions = coverage.watch(asked.profile(wanted["release"]), asked.aim, seeds, each)
    print(json.dumps([function.as_json() for function in functions]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
