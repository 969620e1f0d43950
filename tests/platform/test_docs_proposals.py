"""The commands of docs/proposals.md print what the page quotes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dispatch_core.cli.main import main
from dispatch_core.what_if.proposals.catalogue import PROPOSALS
from tests.platform.test_boundaries import ROOT

PAGE = (ROOT / "docs" / "proposals.md").read_text(encoding="utf-8")
#: Commands, and the output of the last of them.
QUOTED = re.compile(r"^```\n((?:dispatch-audit [^\n]*\n)+)```\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_proposal_has_its_row_revision_and_example() -> None:
    assert len(QUOTED.findall(PAGE)) == 3
    for name, proposal in PROPOSALS.items():
        (row,) = re.findall(rf"^\| `{name}`.*\n", PAGE, re.MULTILINE)
        for commit in re.findall(r"#\d+|\b[0-9a-f]{8}\b", proposal.revision):
            assert commit in row
        assert f"--rules {name}" in PAGE


@pytest.mark.parametrize(("commands", "output"), QUOTED.findall(PAGE), ids=["pip-474", "pip-493", "pip-486"])
def test_commands_print_what_is_quoted(
    commands: str,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands.splitlines():
        capsys.readouterr()
        words = shlex.split(command.replace("tests/data", str(ROOT / "tests" / "data")))
        assert main(words[1:]) == 0
    printed, _, _ = capsys.readouterr().out.partition("\n\n")
    assert printed == output.rstrip("\n")
