"""Functions that the tests of the harness measure."""

from __future__ import annotations

import os


def cores(times: int) -> tuple[float, dict[str, int]]:
    return 0.5, {"cores": len(os.sched_getaffinity(0)), "times": times}


def broken() -> tuple[float, dict[str, int]]:
    raise RuntimeError("this target breaks")
