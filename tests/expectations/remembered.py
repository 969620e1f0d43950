"""Run Great Expectations once for each distinct frame of counts: for tests about what follows from its outcomes.

Its outcomes depend on the counts and the policy alone. The pages, which these tests do not look at, are those of the first
run.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dispatch_expectations import validate
from dispatch_expectations.run_suites import Outcomes

_KNOWN: dict[tuple[str, str], tuple[Outcomes, Path]] = {}


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Take the outcomes of an earlier test where the counts and the policy are the same."""
    evaluate = validate.run_suites

    def run(
        frame: Any, tables: Any, policy: Any, start: Any, site: Path, own: Any = None, rows: Any = None
    ) -> Outcomes:
        if own is not None:
            return evaluate(frame, tables, policy, start, site, own, rows)
        key = frame.drop(columns="moment").to_json(), repr(policy.rules)
        if key not in _KNOWN:
            outcomes = evaluate(frame, tables, policy, start, site)
            folder = tmp_path_factory.mktemp("site")
            shutil.copytree(site, folder, dirs_exist_ok=True)
            _KNOWN[key] = outcomes, folder
        outcomes, folder = _KNOWN[key]
        shutil.copytree(folder, site, dirs_exist_ok=True)
        return outcomes

    monkeypatch.setattr(validate, "run_suites", run)
