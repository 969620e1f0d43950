"""Every command of the contract exists and has ``--help``."""

from __future__ import annotations

import pytest

from dispatch_core import extras
from dispatch_core.cli.main import COMMANDS, main

NAMES = (
    "verify",
    "golden",
    "audit",
    "explain",
    "stats",
    "diagnose",
    "watch-stats",
    "what-if",
    "advise",
    "upgrade-risk",
    "ranges",
    "report",
    "strip",
    "hunt",
    "minimize",
    "generate",
    "convert",
    "cut",
    "import-broker-conf",
    "import-stats",
    "record-messages",
    "completion",
    "pipeline",
)


def test_the_commands_are_those_of_the_contract() -> None:
    assert set(COMMANDS) == set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "pipeline"])
def test_each_command_tells_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"dispatch-audit {name}" in capsys.readouterr().out


def test_a_command_without_its_extra_says_in_one_line_which_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "deltalake" else object())
    assert main(["pipeline", "recordings"]) == 2
    assert capsys.readouterr() == (
        "",
        "dispatch-audit pipeline: the extra spark is not installed (missing: deltalake); nothing was done. "
        'Install it: pip install "pulsar-dispatch-audit[spark]"\n',
    )


def test_without_a_command_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "what-if" in capsys.readouterr().out
