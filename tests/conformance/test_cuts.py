"""A fixed sample of ``make cuts``: recordings cut at random lines, judged as of their last line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.cuts import RECORDINGS, cuts_of, folders, read_results, summary
from tests.sample import some

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]
#: Larger recordings, in bytes of their compressed files, are left to ``make cuts``.
_LARGE = 300_000


def small(step: int) -> list[str]:
    sizes = {folder: sum(path.stat().st_size for path in folder.iterdir()) for folder in folders()}
    return [str(folder.relative_to(RECORDINGS)) for folder in some(sizes, step) if sizes[folder] < _LARGE]


@pytest.mark.parametrize("name", small(16) if RECORDINGS.is_dir() else [])
def test_a_cut_log_says_what_was_proven_before_the_cut(name: str) -> None:
    found = cuts_of(RECORDINGS / name, count=3)
    assert found
    assert not any(cut.wrong for cut in found), "\n".join(summary(found))


def test_results_of_a_run_that_was_stopped_are_read(tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    assert read_results(path) == []
    path.write_text(
        '{"recording": "a/b", "number": 0, "line": 5, "verdict": "PASS", "whole": "PASS", '
        '"invented": [], "missed": []}\n{"recording": "a/c", "num'
    )
    assert [(cut.recording, cut.wrong) for cut in read_results(path)] == [("a/b", False)]
