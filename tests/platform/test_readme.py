"""The commands, files and output in the README exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dispatch_core.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
COMMAND_LINES = [line.partition("  ")[0].strip() for block in BLOCKS for line in block.splitlines()]
SAMPLE = ROOT / "tests" / "data" / "recordings" / "4.2.4" / "designed-drain-one-by-one-ch"


def test_every_make_target_exists() -> None:
    named = {line.split()[1] for line in COMMAND_LINES if line.startswith("make ")} | {
        word.split()[1] for word in re.findall(r"`(make [a-z]+)`", README)
    }
    targets = set(
        re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    assert {"run", "test", "up", "down"} <= named <= targets


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("line", [line for line in COMMAND_LINES if "dispatch-audit " in line])
def test_every_dispatch_audit_command_runs_as_written(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path) if word == "DIR" else word for word in shlex.split(line)[1:]]
    assert arguments[0] in COMMANDS
    # Commands that write, need a broker or its documents, or run for a minute have tests of their own.
    if arguments[0] in (
        "pipeline",
        "generate",
        "hunt",
        "import-stats",
        "minimize",
        "record-messages",
        "watch-stats",
    ):
        with pytest.raises(SystemExit) as ended:
            main([arguments[0], "--help"])
        assert ended.value.code == 0
        return
    assert main([str(SAMPLE) if word == "PATH" else word for word in arguments]) == 0
    # upgrade-risk prints no line for a recording that stays the same.
    named = SAMPLE.name if arguments[-1] == "PATH" or "DIR" in arguments else arguments[-1]
    assert named in capsys.readouterr().out
