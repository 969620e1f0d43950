"""Commands in documents print what is quoted behind them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dispatch_core.cli.main import main
from tests.platform.test_boundaries import ROOT

#: Pages of which every block of commands is run, in order → the number of blocks that quote what these print. The quickest
#: stands first: it is the one that `make test` runs.
PAGES = {"advise.md": 1, "proposals.md": 3, "proposed-rules.md": 8}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = "dispatch-audit "
PATH = "PYTHONPATH="


def commands_of(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a block, each with what PYTHONPATH it sets; a backslash at the end of a line continues it."""
    found = []
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        path = words.pop(0).partition("=")[2] if words[0].startswith(PATH) else ""
        assert words[0] == PROGRAM.strip()
        found.append((path, words[1:]))
    return found


def is_command(block: str) -> bool:
    return block.startswith((PROGRAM, PATH))


def blocks_of(page: str) -> list[str]:
    """Return the blocks that name no language."""
    found = BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    return [block for language, block in found if not language]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_is_quoted(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    printed = None
    compared = 0
    for block in blocks_of(page):
        if is_command(block):
            for path, arguments in commands_of(block):
                if path:
                    monkeypatch.syspath_prepend(str(ROOT / path))
                assert main(arguments) in (0, 1), arguments
                printed = capsys.readouterr().out
            continue
        assert printed is not None, f"no command before: {block[:80]}"
        assert block in printed
        compared += 1
    assert compared == PAGES[page]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_commands_is_one(page: str) -> None:
    """A block that only contains a command would be taken for output."""
    blocks = blocks_of(page)
    assert all(
        PROGRAM not in line for block in blocks for line in block.splitlines()[1:] if not is_command(block)
    )
    assert any(map(is_command, blocks))
