"""Golden vectors beside the repository: every line, every release, exact. ``make conformance`` takes every second file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dispatch_core.cli.golden import read
from dispatch_core.golden.runner import judge
from tests.sample import some

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = (ROOT / os.environ.get("DISPATCH_AUDIT_SHARED", "../shared") / "golden").resolve()
VECTORS = sorted(GOLDEN.rglob("*.jsonl.gz"))

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="no golden vectors beside the repository")


@pytest.mark.parametrize("path", some(VECTORS, 3), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_vectors(path: Path) -> None:
    result = judge(read(path))
    assert result.problems == []
    assert result.first_mismatch is None, result.first_mismatch
    assert (result.exact, result.mismatched) == (result.steps, 0)
    assert result.steps > 0


def test_every_file_of_the_manifest_is_there_with_all_its_steps() -> None:
    listed = {entry["path"]: entry for entry in json.loads((GOLDEN / "manifest.json").read_text())}
    assert {str(path.relative_to(GOLDEN)) for path in VECTORS} == listed.keys()
    for path in VECTORS:
        entry, file = listed[str(path.relative_to(GOLDEN))], read(path)
        steps = sum(len(line.values.get("steps", [None])) for line in file.lines)
        assert (len(file.lines), steps, list(file.versions)) == (
            entry["records"],
            entry["steps"],
            entry["versions"],
        )
