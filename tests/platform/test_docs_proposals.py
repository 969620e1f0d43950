"""docs/proposals.md names the revision of each proposal, and has an example of it (run by ``test_docs_commands``)."""

from __future__ import annotations

import re

from dispatch_core.what_if.proposals.catalogue import PROPOSALS
from tests.platform.test_boundaries import ROOT

PAGE = (ROOT / "docs" / "proposals.md").read_text(encoding="utf-8")


def test_every_proposal_has_its_row_revision_and_example() -> None:
    for name, proposal in PROPOSALS.items():
        (row,) = re.findall(rf"^\| `{name}`.*\n", PAGE, re.MULTILINE)
        for commit in re.findall(r"#\d+|\b[0-9a-f]{8}\b", proposal.revision):
            assert commit in row
        assert f"--rules {name}" in PAGE
