"""``dispatch-audit minimize``: what it writes, that it reproduces, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_core.arrays.columns import replaced
from dispatch_core.broker.hashing import h31
from dispatch_core.cli.main import main
from dispatch_core.minimize.disguise import key_with_hash
from dispatch_core.recording.rewrite import write_log
from tests.dispatch_core.minimize.logs import AT_RISK, AWAY_AND_BACK, DATA, log_of

CASES = DATA.parent / "cases"


def _minimize(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["minimize", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_it_writes_a_log_scripts_and_a_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "smallest"
    code, text, complaints = _minimize(capsys, AWAY_AND_BACK, "--out", out)
    assert (code, complaints) == (0, "")
    assert "76 lines and 60 entries became 9 and 2 in " in text
    assert "2 of 2 comparisons as recorded" in text
    assert sorted(path.name for path in out.iterdir()) == ["StuckKeyTest.java", "log", "report.md", "walk.py"]
    # The log has the finding, and the rules give the same deliveries.
    assert main(["audit", str(out / "log")]) == 1
    assert "keys that waited longer than the policy allows: 1" in capsys.readouterr().out
    walked = subprocess.run([sys.executable, out / "walk.py"], capture_output=True, text=True, check=True)
    assert walked.stdout.splitlines() == [
        "{'c2': ['1:0']} as recorded",
        "{} as recorded",
        "pending: {'c2': [], 'c3': []}",
        "in the replay set: ['1:1'] draining: {'key-1': ('c2', 1, 0)}",
    ]
    report = (out / "report.md").read_text()
    assert "5. c2 is sent 29:1." in report
    assert "mended in: 4.0.7, 4.1.1, 4.2.0" in report
    assert str(tmp_path) not in report
    java = (out / "StuckKeyTest.java").read_text()
    assert 'settings.put("subscriptionKeySharedUseConsistentHashing", "false");' in java
    steps = [line.strip() for line in java.splitlines() if line.startswith(" " * 12)]
    begin = steps.index('join("c1", "c1", 1000, 0);')
    assert steps[begin : begin + 10] == [
        'join("c1", "c1", 1000, 0);',
        'join("c2", "c2", 972, 0);',
        'grant("c2");',
        'publish(producer, 0, key("a2V5LTE="), 1); // 29:1',
        'receive("c2", "0.0");',
        'join("c3", "c3", 1000, 0);',
        'leave("c3");',
        'join("c3", "c3", 1000, 0);',
        'publish(producer, 1, key("a2V5LTE="), 1); // 29:41',
        'acknowledge("c2", false, "0.0");',
    ]
    assert 'assertEquals(neverReceived(), Set.of(), "never received");' in java
    assert "@" not in "".join(
        line
        for line in java.splitlines()
        if "@Test" not in line and "Method" not in line and "@Override" not in line
    )


def test_a_disguised_log_has_no_name_of_the_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text, _ = _minimize(capsys, AWAY_AND_BACK, "--out", tmp_path / "out", "--disguise", "--json")
    assert code == 0
    made = json.loads(text)
    assert made["names_kept"] is None
    assert made["minimal"] is True
    written = "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
    for name in ("key-1", '"c1"', '"c2"', "rec-designed", "audit/"):
        assert name not in written
    key = key_with_hash(h31(b"key-1"))
    assert h31(key) == h31(b"key-1")
    assert f"0x{key.hex()}" in written


@pytest.mark.slow
def test_names_that_decide_ownership_are_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text, _ = _minimize(capsys, AT_RISK, "--out", tmp_path / "out", "--disguise", "--json")
    made = json.loads(text)
    events = (tmp_path / "out" / "log" / "events.jsonl").read_text()
    assert code == 0
    assert (made["names_kept"] is None) == ('"name":"c1"' not in events)
    assert "key-12" not in events + (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    "case", ["30-TRUE-out-of-order-failover", "90-TRUE-loss-then-backlog-cleared-Shared"]
)
def test_a_finding_without_a_sticky_hash_is_disguised(
    case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, text, _ = _minimize(capsys, CASES / case, "--out", tmp_path / "out", "--disguise", "--json")
    assert (code, json.loads(text)["names_kept"]) == (0, None)
    written = "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert case not in written


def test_a_finding_is_chosen_by_kind_and_subject(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chosen = ("--finding", "stuck_key", "--key", "key-12", "--json")
    code, text, _ = _minimize(capsys, AWAY_AND_BACK, "--out", tmp_path / "out", *chosen)
    assert (code, json.loads(text)["key"]) == (0, "key-12")
    code, text, complaint = _minimize(
        capsys, AWAY_AND_BACK, "--out", tmp_path / "no", "--finding", "out_of_order"
    )
    assert (code, text) == (2, "")
    assert complaint == (
        "dispatch-audit minimize: no load of a topic has a finding of kind out_of_order by itself (dispatch-audit audit "
        "lists them); nothing was written\n"
    )
    assert not (tmp_path / "no").exists()


def test_what_is_there_is_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    code, _, complaint = _minimize(capsys, AWAY_AND_BACK, "--out", tmp_path)
    assert code == 2
    assert f"{tmp_path} is occupied; nothing was written" in complaint
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_names_of_a_log_break_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = log_of(AWAY_AND_BACK)
    hostile = {"c1": 'a"b\\', "c2": '*/ \\u000a """', "c3": 'é\n\u202e"'}
    names = [hostile.get(name, name) for name in log.events["name"].to_pylist()]
    write_log(replace(log, events=replaced(log.events, {"name": names})), tmp_path / "log")
    code, _, complaints = _minimize(capsys, tmp_path / "log", "--out", tmp_path / "out")
    assert (code, complaints) == (0, "")
    walked = subprocess.run(
        [sys.executable, tmp_path / "out" / "walk.py"], capture_output=True, text=True, check=True
    )
    assert "as recorded" in walked.stdout
    java = (tmp_path / "out" / "StuckKeyTest.java").read_text()
    # Unicode escapes are resolved before comments and strings are looked for: each must be one, and of no control character.
    for escape in re.findall(r"(?<!\\)(?:\\\\)*\\u(.{4})", java):
        assert int(escape, 16) >= 0x20
    assert [line for line in java.splitlines() if line.startswith(" * ") and "*/" in line] == []
    for literal in re.findall(r"join\((.*), 972, 0\);", java):
        assert json.loads(f"[{literal}]") == ['*/ \\u000a """'] * 2
