"""A trace in which every line of a kind lacks a field is judged, or refused by name; ``verify`` never raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.test_tampering import RING, RULES
from tests.sample import some

FOLDERS = {**RULES, "failover": RING}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", some(FOLDERS, 2))
def test_a_field_may_be_null(rule: str, tmp_path: Path) -> None:
    trace = t.raw(FOLDERS[rule])
    fields = {
        (line["kind"], field) for line in trace[1:] for field in line if field not in ("kind", "seq", "t_us")
    }
    assert len(fields) > 20
    for kind, field in sorted(fields):
        changed = [{**line, field: None} if line.get("kind") == kind else line for line in trace]
        result = t.verified(t.copy_with(FOLDERS[rule], changed, tmp_path))
        assert result.tally.counts or result.not_judged, (kind, field)
