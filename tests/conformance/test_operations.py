"""Verification of the recordings with operations on the cursor, policies, Shared, and Failover with batches.

No decision diverges. Decisions are left unjudged only in recordings of delayed delivery, dispatch rates and compacted reads,
with the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.verify.trace import limits_in_force
from tests.dispatch_core.verify.tampering import published_formula, raw
from tests.sample import some

OPERATIONS = Path(__file__).resolve().parents[3] / "shared" / "operations"

pytestmark = pytest.mark.skipif(
    not OPERATIONS.is_dir(), reason="no recordings of operations beside the repository"
)

#: Part of a scenario's name → the reason for which decisions may be left unjudged.
REASONS: Final = {
    "-delayed-": limits_in_force.REASON_OF_DELAY,
    "-rate-": limits_in_force.REASON_OF_RATE,
    "-compacted-": limits_in_force.REASON_OF_COMPACTED,
}
#: Most uncertain decisions of a hundred.
UNCERTAIN: Final = 0.5
#: The same for Shared, of quiet recordings and of racing ones.
UNCERTAIN_SHARED: Final = {"quiet": 0.05, "racing": 0.3}

FOLDERS = some(
    sorted(
        path
        for kind in ("ops", "legal", "failover-batches", "shared")
        for path in OPERATIONS.glob(f"*/{kind}-*")
    ),
    4,
)


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "dispatch_core.cli.main", "verify", "--json", *map(str, FOLDERS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 2), done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["recording"]: line for line in lines}


def test_none_diverges(results: dict[str, dict[str, Any]]) -> None:
    assert len(results) == len(FOLDERS) > 0
    assert {name: result["first_divergence"] for name, result in results.items() if result["divergent"]} == {}
    assert {name: result["not_judged"] for name, result in results.items() if "not_judged" in result} == {}


def test_few_are_uncertain(results: dict[str, dict[str, Any]]) -> None:
    uncertain = sum(result["uncertain"] for result in results.values())
    assert 100 * uncertain <= UNCERTAIN * sum(result["decisions"] for result in results.values()), uncertain


@pytest.mark.parametrize("group", UNCERTAIN_SHARED)
def test_few_of_shared_are_uncertain(results: dict[str, dict[str, Any]], group: str) -> None:
    shared = [
        result
        for name, result in results.items()
        if name.partition("/")[2].startswith("shared-") and name.endswith(group)
    ]
    uncertain, decisions = (sum(result[what] for result in shared) for what in ("uncertain", "decisions"))
    assert decisions > 0
    assert 100 * uncertain <= UNCERTAIN_SHARED[group] * decisions, uncertain


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_decisions_are_those_of_the_formula(results: dict[str, dict[str, Any]], folder: Path) -> None:
    """A decision is left unjudged only for the reason that the recording shows, and is counted all the same."""
    result = results[f"{folder.parent.name}/{folder.name}"]
    counts = {name: found["decisions"] for name, found in result["classes"].items() if found["decisions"]}
    assert counts == {name: count for name, count in published_formula(raw(folder)).items() if count}
    left = result.get("decisions_not_judged", {})
    assert set(left) <= {reason for part, reason in REASONS.items() if part in folder.name}
    unjudged = sum(sum(found.values()) for found in left.values())
    # Some uncertain decisions have no line of their own, so that the formula does not count them.
    assert (
        result["exact"] + unjudged <= result["decisions"] <= result["exact"] + result["uncertain"] + unjudged
    )
