"""A shell completes commands, options and files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch_core.cli.main import COMMANDS, main

PROGRAM = Path(sys.executable).with_name("dispatch-audit")


def completions(line: str) -> list[str]:
    """Return the answer of the program to a shell whose cursor is behind ``line``."""
    wanted = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    command = [
        sys.executable,
        "-c",
        f"import os, runpy; os.dup2(1, 8); runpy.run_path({str(PROGRAM)!r}, run_name='__main__')",
    ]
    answer = subprocess.run(
        command, env=os.environ | wanted, capture_output=True, text=True, check=False, timeout=120
    )
    return [word.strip() for word in answer.stdout.splitlines()]


def test_commands_are_completed() -> None:
    assert set(completions("dispatch-audit ")) >= {*COMMANDS}
    assert completions("dispatch-audit expl") == ["explain"]


def test_options_of_a_command_are_completed() -> None:
    assert set(completions("dispatch-audit audit --fa")) == {"--failed-only"}
    assert {"--key", "--position", "--consumer"} <= set(completions("dispatch-audit explain logs --"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_for_a_shell_names_the_program(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "dispatch-audit" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_code(tmp_path: Path) -> None:
    code = subprocess.run(
        [str(PROGRAM), "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    script = tmp_path / "code.bash"
    script.write_text(f"{code}\ncomplete -p dispatch-audit\n", encoding="utf-8")
    answer = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "_python_argcomplete" in answer.stdout
