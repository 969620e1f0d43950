"""Options that commands on recordings share: what each takes, and why it refuses the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch_core.cli import recordings
from dispatch_core.cli.main import main
from tests.checkout import PYTHONPATH

DATA = Path(__file__).resolve().parents[2] / "data"
SAMPLES = DATA / "recordings" / "4.2.4"
DRAIN = str(SAMPLES / "designed-drain-one-by-one-ch")
#: The time of the line with seq 200.
IN_THE_MIDDLE = "1795249220599065"
COPIES = dict.fromkeys(
    ("--topic", "--subscription", "--from", "--to", "--as-of", "--complete", "--policy"), "every line"
)
_COPY = ("strip", "convert", "cut")
REFUSED = {
    "verify": {"--from": "first line", "--complete": "line by line", "--policy": "audit takes a policy"},
    "stats": {"--complete": "of a moment", "--policy": "audit takes a policy"},
    "diagnose": {"--from": "since when", "--complete": "however short", "--policy": "audit takes a policy"},
    "what-if": {"--complete": "never_sent"},
    "advise": {"--complete": "last line"},
    "upgrade-risk": {"--complete": "last line"},
    "minimize": {"--from": "what causes it"},
    "strip": COPIES,
    "convert": COPIES,
    "cut": COPIES,
}


@pytest.mark.parametrize(
    ("command", "option", "why"),
    [(command, option, why) for command, options in REFUSED.items() for option, why in options.items()],
)
def test_an_option_that_means_nothing_is_refused_with_the_reason(
    command: str, option: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            [command, "logs", "--out", "copy", option]
            if command in ("minimize", *_COPY)
            else [command, "logs", option]
        )
    assert ended.value.code == 2
    *_, said = capsys.readouterr().err.splitlines()
    assert said.startswith(f"dispatch-audit {command}: error: {option} means nothing for this command: ")
    assert why in said


@pytest.mark.parametrize("command", REFUSED)
def test_help_lists_no_option_that_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    words = capsys.readouterr().out.split()
    assert set(REFUSED[command]).isdisjoint(words)


def verified(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, object]]]:
    code = main(["verify", "--json", "--jobs", "1", *options])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_verify_compares_up_to_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    (whole,) = verified(capsys, DRAIN)[1]
    code, (part,) = verified(capsys, DRAIN, "--to", IN_THE_MIDDLE)
    assert (code, part["divergent"]) == (0, 0)
    assert 0 < int(str(part["decisions"])) < int(str(whole["decisions"]))
    assert verified(capsys, DRAIN, "--as-of", "2030-01-01")[1] == [whole]
    assert verified(capsys, DRAIN, "--as-of", "2020-01-01") == (2, [])


def test_verify_is_about_the_topics_that_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    failover = str(SAMPLES / "designed-failover-modulo-p1")
    code, found = verified(capsys, DRAIN, failover, "--topic", "*drain*")
    assert (code, [entry["recording"] for entry in found]) == (0, ["4.2.4/designed-drain-one-by-one-ch"])
    assert main(["verify", "--jobs", "1", DRAIN, "--topic", "drain"]) == 2
    assert (
        "dispatch-audit verify: no topic is called drain; there are: persistent://" in capsys.readouterr().err
    )


def test_what_if_simulates_what_was_known_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    case = str(DATA / "cases" / "30-TRUE-out-of-order-failover")
    for options, messages in (((), 3), (("--as-of", "2026-11-21T08:20:00.008"), 2)):
        main(["what-if", "--json", "--seeds", "1", case, *options])
        assert json.loads(capsys.readouterr().out)["recorded"]["messages"] == messages


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings.progress("[1/2] a log")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    recordings.progress("[1/2] a log")
    assert capsys.readouterr() == ("", "\r\x1b[K[1/2] a log")


def test_the_progress_bar_has_no_colour_where_none_is_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shown = []
    for no_colour in (False, True):
        if no_colour:
            monkeypatch.setenv("NO_COLOR", "1")
        assert list(recordings.with_progress_bar(iter("abc"), 3, "verifying")) == ["a", "b", "c"]
        shown.append(capsys.readouterr().err)
    with_colour, without = ("\x1b[3" in text or "\x1b[9" in text for text in shown)
    assert (with_colour, without) == (True, False)


def test_a_reader_that_goes_away_ends_a_command_quietly() -> None:
    words = ["import-broker-conf", str(DATA / "broker.conf"), "--broker-version", "4.2.4", "--json"]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "dispatch_core.cli.main", *words],
            stdout=closed,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "1"},
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (2, "")
