"""``dispatch-audit audit`` over client logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from tests.dispatch_core.client_lines import TOPIC, acked, header, received, write
from tests.json_lines import valid_lines

ONE = [header("w1"), received(0, "3:1"), acked(9, "3:1")]
TWO = [header("w2"), received(5, "3:2"), acked(6, "3:2")]


def _audit(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["audit", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code, out, _ = _audit(capsys, *arguments, "--json")
    return code, valid_lines("audit", out)


def test_a_clean_log_passes_and_says_what_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "logs", ONE)
    code, out, _ = _audit(capsys, str(tmp_path))
    assert code == 0
    assert "per_key_order       PASS     every entry was sent in the order of its key" in out
    assert "completeness        not judged: a client does not see what was stored and not sent to it" in out
    code, [verdict] = _json(capsys, str(tmp_path))
    assert (code, verdict["verdict"], verdict["levels"]) == (0, "PASS", ["C"])
    assert [promise["promise"] for promise in verdict["promises"]] == [
        "per_key_order",
        "duplicate_delivery",
        "input_quality",
    ]
    assert {row["promise"] for row in verdict["not_judged"]} == {"balance", "completeness", "conformance"}
    assert "unlogged_consumers" in verdict["promises"][0]["assumes"]


def test_files_in_several_folders_are_read_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "logs" / "a", ONE)
    write(tmp_path / "logs" / "b", TWO)
    code, [finding, verdict] = _json(capsys, str(tmp_path / "logs"))
    assert (code, finding["kind"], finding["topic"]) == (1, "split_key", TOPIC)
    assert finding["consumer_names"] == ["w2", "w1"]
    assert finding["lines"] == ["a/client-1.jsonl:2", "b/client-1.jsonl:2"]
    assert finding["recording"] == verdict["recording"] == f"{tmp_path.name}/logs"
    code, out, _ = _audit(capsys, str(tmp_path / "logs" / "a"), str(tmp_path / "logs" / "b"))
    assert code == 1
    assert "assumed absent: unlogged_consumers, lost_connections" in out


def test_the_clock_difference_is_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, ONE, TWO)
    code, [finding, verdict] = _json(capsys, str(tmp_path), "--clock-difference", "30")
    assert (code, finding["uncertain"], verdict["verdict"]) == (2, True, "UNKNOWN")


def test_as_of_uses_no_later_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, ONE, TWO)
    # w1's acknowledgement, which shows that it still held the entry, is not known yet.
    code, [finding, _] = _json(capsys, str(tmp_path), "--as-of", "2026-11-21T08:24:28.5")
    assert (code, finding["kind"], finding["reason"]) == (2, "split_key", "client_log_ends")


def test_bad_lines_fail_input_quality(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, ONE) / "client-1.jsonl"
    path.write_text(f"{path.read_text('utf-8')}nonsense\n", "utf-8")
    code, out, err = _audit(capsys, str(tmp_path))
    assert code == 1
    assert "input_quality       FAIL     unreadable rows, quarantined: 1; first: client-1.jsonl:4" in out
    assert "1 rows set aside, the first at client-1.jsonl:4" in err


def test_recordings_beside_client_logs_are_audited_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "clients", ONE)
    (tmp_path / "broker").mkdir()
    events = {
        "format": "pulsar-consumer-events",
        "format_version": "1.0",
        "topic": TOPIC,
        "subscription": "audit",
    }
    line = {"seq": 1, "t_us": 1, "kind": "consumer_added", "consumer": 1, "name": "w1"}
    (tmp_path / "broker" / "events.jsonl").write_text(f"{json.dumps(events)}\n{json.dumps(line)}\n", "utf-8")
    _, verdicts = _json(capsys, str(tmp_path), "--no-rules")
    assert [verdict["levels"] for verdict in verdicts] == [["C"], [""]]


def test_no_logs_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _audit(capsys, str(tmp_path))
    assert code == 2
    assert "no recording in it" in err
