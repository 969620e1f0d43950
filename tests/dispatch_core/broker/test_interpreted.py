"""The data plane without numba's compiler: the same source gives the same result, byte for byte, under every rule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data"

#: One recording per rule at least: 4.2.4, 4.0.0, the preview, sticky ranges, classic, Failover; ring and range split.
SAMPLE = [
    "recordings/4.2.4/designed-drain-one-by-one-ch",
    "recordings/4.2.4/designed-negative-acks-ch",
    "recordings/4.2.4/designed-failover-modulo-p1",
    "verify/4.2.4/designed-sticky-in-order",
    "verify/4.2.4/random-0000-range-quiet",
    "verify/4.0.0/designed-same-name-batches-range",
    "verify/4.0.0/designed-slow-owner-newcomer-classic-ch",
    "verify/4.0.0-preview.1/random-0024-range-quiet",
    "verify/4.0.0-preview.1/designed-max-unacked-half-ch",
]
#: Time limit of a run.
MAX_DECISIONS = 20_000


def outputs(*arguments: str) -> list[str]:
    """Return the output of ``dispatch-audit``, compiled and interpreted."""
    command = [sys.executable, "-m", "dispatch_core.cli.main", *arguments]
    said = []
    for disabled in ("0", "1"):
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled},
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    return said


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arguments", [["--json"], []], ids=["objects", "tables"])
def test_both_runs_print_the_same(arguments: list[str]) -> None:
    """Findings, counts and tables are equal."""
    compiled, interpreted = outputs(
        "verify", "--jobs", "1", *arguments, *(str(DATA / name) for name in SAMPLE)
    )
    assert compiled == interpreted
    if arguments:
        objects = [json.loads(line) for line in compiled.splitlines()]
        assert len(objects) == len(SAMPLE)
        assert all(item["exact"] > 0 and item["divergent"] == 0 for item in objects)
        assert sum(item["decisions"] for item in objects) <= MAX_DECISIONS


@pytest.mark.slow
def test_both_runs_answer_the_golden_vectors_alike() -> None:
    compiled, interpreted = outputs("golden", "--json", str(DATA / "golden" / "4.2.4"))
    assert compiled == interpreted != ""
