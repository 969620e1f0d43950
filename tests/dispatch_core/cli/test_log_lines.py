"""Lines on stderr as text or as JSON objects, whoever prints them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

import pytest

from dispatch_core.cli import log_lines
from dispatch_core.cli.log_lines import LogLine, parse_line, run_command, with_fields, write_line
from dispatch_core.cli.main import main


@pytest.fixture
def as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log_lines.LOG_FORMAT_VARIABLE, "json")


def objects(text: str) -> list[dict[str, str]]:
    """Read lines of JSON; every line must be one."""
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_is_text_unless_json_is_asked_for(capsys, monkeypatch):
    monkeypatch.delenv(log_lines.LOG_FORMAT_VARIABLE, raising=False)
    assert run_command(lambda: write_line("3 files", logging.ERROR) or 0, "ingest") == 0
    assert capsys.readouterr().err == "3 files\n"


@pytest.mark.usefixtures("as_json")
def test_an_object_has_time_level_logger_message_stage_and_interval(capsys):
    def work() -> int:
        with with_fields(interval="2026-11-21T00:00:00+00:00"):
            write_line("3 files")
        write_line("it was so", logging.ERROR, log_lines.OUTPUT)
        return 0

    run_command(work, "ingest")
    first, second = objects(capsys.readouterr().err)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(first.pop("time"))).total_seconds()) < 60
    assert first == {
        "level": "INFO",
        "logger": "dispatch_audit.progress",
        "message": "3 files",
        "stage": "ingest",
        "interval": "2026-11-21T00:00:00+00:00",
    }
    assert (second["level"], second["logger"], "interval" in second) == ("ERROR", log_lines.OUTPUT, False)


@pytest.mark.usefixtures("as_json")
def test_what_others_print_becomes_objects_line_by_line(capsys):
    def work() -> int:
        print("one\ntwo ", end="", file=sys.stderr)
        print("halves", "\n", file=sys.stderr)
        sys.stderr.write("without an end")
        return 3

    before = sys.stderr
    assert run_command(work) == 3
    assert sys.stderr is before
    assert [line["message"] for line in objects(capsys.readouterr().err)] == [
        "one",
        "two halves ",
        "without an end",
    ]


@pytest.mark.usefixtures("as_json")
def test_an_unexpected_error_is_one_object_with_its_traceback(capsys):
    def work() -> int:
        raise RuntimeError("two\nlines")

    assert run_command(work, "replay") == 1
    [line] = objects(capsys.readouterr().err)
    assert (line["level"], line["message"]) == ("CRITICAL", "RuntimeError: two\nlines")
    assert line["exception"].startswith("Traceback")
    assert "in work" in line["exception"]


def test_an_unexpected_error_stays_pythons_as_text(monkeypatch):
    def work() -> int:
        raise RuntimeError("x")

    monkeypatch.delenv(log_lines.LOG_FORMAT_VARIABLE, raising=False)
    with pytest.raises(RuntimeError):
        run_command(work)


def test_a_format_that_does_not_exist_is_refused(capsys, monkeypatch):
    monkeypatch.setenv(log_lines.LOG_FORMAT_VARIABLE, "xml")
    ran: list[int] = []
    assert run_command(lambda: ran.append(1) or 0) == 2
    assert ran == []
    assert "DISPATCH_AUDIT_LOG_FORMAT is 'xml'" in capsys.readouterr().err


@pytest.mark.usefixtures("as_json")
def test_errors_of_commands_are_objects_and_results_stay_as_they_are(capsys, tmp_path):
    assert main(["audit", str(tmp_path / "nothing")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert objects(err)[-1]["level"] == "ERROR"
    assert "nothing" in objects(err)[-1]["message"]
    with pytest.raises(SystemExit):
        main(["audit", "x", "--no-such-option"])
    assert "no-such-option" in objects(capsys.readouterr().err)[-1]["message"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"message": "m", "level": "ERROR", "logger": "l"}', LogLine("m", logging.ERROR, "l")),
        (
            '{"message": "m", "level": "WARN", "logger": "org.x", "exception": "e"}',
            LogLine("m", logging.WARNING, "org.x", "e"),
        ),
        ('{"message": "m", "level": "TRACE", "logger": "l"}', LogLine("m", logging.INFO, "l")),
        ('{"message": 1, "level": "ERROR", "logger": "l"}', None),
        ('{"rows_in": 7}', None),
        ("{not JSON", None),
        ("[1]", None),
        ("text", None),
    ],
)
def test_a_line_is_read_as_it_was_written_and_others_are_not(line, expected):
    assert parse_line(line) == expected
