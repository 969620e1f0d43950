"""The text of a bug report: there is one for every kind of finding that ``minimize`` takes."""

from __future__ import annotations

import pytest

from dispatch_core.audit.catalogue import BALANCE, KINDS
from dispatch_core.minimize.bug_report import bug_report
from dispatch_core.minimize.same_finding import Finding


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.promise != BALANCE])
def test_a_report_says_what_was_expected(kind: str) -> None:
    finding = Finding(kind, "major", None, None, False, "k", False, None, ("1:0",), (1,), 0, "It happened.")
    text = bug_report(None, finding, lines=["{}"], files=[], facts="Pulsar 4.2.4")
    expected = text.partition("## Expected\n\n")[2].partition("\n")[0]
    assert expected.endswith(".")
    assert "## Actual\n\nIt happened.\n" in text
