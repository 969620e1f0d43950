"""Measurements of compiled code: compiling it in set-up, and starting a process that finds it compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.harness import ROOT, BenchError

_FIRST_REPLAY: Final = "import sys; from bench.replay import product; product(sys.argv[1], sys.argv[2], None)"


def warm_up(cache: str) -> tuple[float, dict[str, Any]]:
    """Compile everything into an empty ``cache``, as ``make setup`` does; returns seconds, and the cache's size."""
    folder = Path(cache)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.perf_counter()
    _run(["-m", "dispatch_core.cli.warmup"], {"NUMBA_CACHE_DIR": cache})
    seconds = time.perf_counter() - began
    found = [path for path in folder.rglob("*") if path.is_file()]
    return seconds, {"files": len(found), "bytes": sum(path.stat().st_size for path in found)}


def later_start(source: str, staging: str, cache: str | None) -> tuple[float, dict[str, Any]]:
    """Time a new process from its start to its end, with the first replay of a tiny log in it.

    ``cache``: where ``warm_up`` left the compiled code; None = where set-up did.
    """
    began = time.perf_counter()
    _run(["-c", _FIRST_REPLAY, source, staging], {} if cache is None else {"NUMBA_CACHE_DIR": cache})
    return time.perf_counter() - began, {}


def _run(arguments: list[str], environment: Mapping[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise BenchError(f"{' '.join(arguments)}: exit {ran.returncode}: {ran.stderr[-2000:]}")
