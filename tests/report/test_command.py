"""`dispatch-audit report` over the sample logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli import report as report_command
from dispatch_core.cli.main import main
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.report.page import library_name, library_script

DATA = Path(__file__).resolve().parents[1] / "data"
SAMPLES = DATA / "recordings"
CLEAN = SAMPLES / "4.2.4" / "designed-drain-one-by-one-ch"
ROLLING = SAMPLES / "4.2.4" / "designed-rolling-restart-ch"


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def page_data(text: str) -> dict[str, dict[str, object]]:
    return json.loads(text.split('id="report-data">', 1)[1].split("</script>", 1)[0])  # type: ignore[no-any-return]


def test_a_report_per_recording_is_written_where_the_output_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(CLEAN), "--out", str(tmp_path), "--json"]
    assert main(arguments) == 0
    (line,) = written(capsys)
    report = tmp_path / "4.2.4" / f"{CLEAN.name}.html"
    assert line == {
        "recording": f"4.2.4/{CLEAN.name}",
        "topic": line["topic"],
        "subscription": "audit",
        "report": str(report),
        "verdict": "PASS",
        "bytes": report.stat().st_size,
    }
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [report.name]
    text = report.read_text("utf-8")
    assert str(line["topic"]) in text
    assert set(page_data(text)["pictures"]) >= {"shares", "flow", "balance"}
    assert page_data(text)["library"] is None, "a single page can be mailed"
    # The same log gives the same bytes.
    assert main(arguments) == 0
    assert report.read_text("utf-8") == text


def test_statistics_are_those_of_the_interval_s_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the silence in which c2 waits: what holds its hashes, and the sizes over time."""
    end = "2026-11-21T08:20:19.204021"
    arguments = ["report", str(CLEAN), "--out", str(tmp_path), "--interval-start", "2026-11-21"]
    assert main([*arguments, "--interval-end", end]) in (0, 2)
    text = next(tmp_path.rglob("*.html")).read_text("utf-8")
    drawn = page_data(text)["pictures"]["dispatch"]
    names = {trace["name"] for trace in drawn["data"]}  # type: ignore[index]
    assert names == {"c1", "replay set", "draining hashes"}
    assert "positions in the replay set, at most 24, and draining hashes, at most 6" in text
    table = text.split('id="statistics-draining"', 1)[1].split("</table>", 1)[0]
    assert table.count("<tr>") == 7
    assert "<td>8664</td><td>c1</td><td>c2</td><td>4</td><td>3</td>" in table
    assert "3:7, 3:17, 3:27, 3:37" in table
    capsys.readouterr()


def test_without_a_trace_the_picture_shows_moved_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["strip", str(ROLLING), "--out", str(tmp_path / "logs")]) == 0
    main(["report", str(tmp_path / "logs"), "--out", str(tmp_path / "out")])
    text = next((tmp_path / "out").rglob("*.html")).read_text("utf-8")
    names = [trace["name"] for trace in page_data(text)["pictures"]["dispatch"]["data"]]  # type: ignore[index]
    assert "keys moved" in names
    assert "replay set" not in names
    assert "it has no trace" in text
    assert "without a trace" in text.split('id="statistics"', 1)[1]
    capsys.readouterr()


def test_what_the_log_cannot_show_is_as_uncertain_as_in_the_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A delayed message, of which the recorder writes nothing, makes decisions differ from the rules."""
    assert (
        main(["report", str(DATA / "cases" / "94-delayed-not-recorded"), "--out", str(tmp_path), "--json"])
        == 2
    )
    (line,) = written(capsys)
    assert line["verdict"] == "UNKNOWN"


def test_an_interval_shows_what_lies_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", str(CLEAN), "--out", str(tmp_path), "--interval-start"]
    assert main([*arguments, "2026-11-21"]) == 0
    text = next(tmp_path.rglob("*.html")).read_text("utf-8")
    assert "2026-11-21 00:00:00 to 2026-11-22 00:00:00 UTC" in text
    assert set(page_data(text)["pictures"]) >= {"shares", "flow", "balance"}
    capsys.readouterr()
    assert main([*arguments, "2020-01-01"]) == 2
    assert "no event lies in the interval" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--interval-end", "2026-11-22"], "--interval-end needs --interval-start"),
        (["--interval-start", "2026-11-22", "--interval-end", "2026-11-21"], "not after its start"),
        (["--set", "dispatcherMaxRoundRobinBatchSiz=3"], "dispatcherMaxRoundRobinBatchSize"),
        (["--broker-version", "two"], "two"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(CLEAN), "--out", str(tmp_path / "out"), *more]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "file"
    taken.touch()
    assert main(["report", str(CLEAN), "--out", str(taken)]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_log_with_bad_lines_is_shown_and_is_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs" / "a b<c>"
    folder.mkdir(parents=True)
    for file in CLEAN.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with (folder / "messages-extra.jsonl").open("w") as extra:
        extra.write("{broken\n")
    assert main(["report", str(folder), "--out", str(tmp_path / "out"), "--json"]) in (1, 2)
    line = written(capsys)[0]
    assert line["verdict"] != "PASS"
    assert Path(str(line["report"])) == tmp_path / "out" / "logs" / "a_b_c_.html"
    assert "rows set aside" in Path(str(line["report"])).read_text("utf-8")


def test_dispatchers_of_one_recording_have_a_report_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ["--dispatchers", "2", "--messages", "400", "--keys", "10", "--consumers", "2"]
    made += ["--dispatchers-per-file", "2", "--format", "jsonl"]
    assert main(["generate", str(tmp_path / "logs"), *made]) == 0
    capsys.readouterr()
    main(["report", str(tmp_path / "logs"), "--out", str(tmp_path / "out"), "--json"])
    lines = written(capsys)
    assert len({line["topic"] for line in lines}) == len({line["report"] for line in lines}) == 2


@pytest.mark.slow
def test_several_pages_share_one_script_and_have_an_index_worst_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = SAMPLES / "4.2.4" / "designed-rolling-restart-classic-ch"
    paths = [str(CLEAN), str(broken)]
    assert main(["report", *paths, "--out", str(tmp_path), "--json"]) == 1
    lines = written(capsys)
    script = tmp_path / "scripts" / library_name()
    assert script.read_text("utf-8") == library_script()
    for line in lines:
        report = Path(str(line["report"]))
        assert line["bytes"] == report.stat().st_size < 1_000_000
        assert page_data(report.read_text("utf-8"))["library"] == f"../scripts/{library_name()}"
    index = (tmp_path / "index.html").read_text("utf-8")
    addresses = [f'href="4.2.4/{path.name}.html"' for path in (broken, CLEAN)]
    assert index.index(addresses[0]) < index.index(addresses[1])
    assert "per_key_order: " in index

    # Each page whole by itself; and pages of what failed only, in an index of all.
    assert main(["report", *paths, "--out", str(tmp_path / "whole"), "--self-contained", "--json"]) == 1
    assert all(int(str(line["bytes"])) > 4_000_000 for line in written(capsys))
    assert not (tmp_path / "whole" / "scripts").exists()
    assert main(["report", *paths, "--out", str(tmp_path / "failed"), "--failed-only", "--json"]) == 1
    (line,) = written(capsys)
    assert page_data(Path(str(line["report"])).read_text("utf-8"))["library"] is None
    index = (tmp_path / "failed" / "index.html").read_text("utf-8")
    assert index.count("href=") == 1
    assert "1 dispatcher has no page" in index


def test_a_page_is_kept_when_the_next_dispatcher_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = report_command._report

    def fails_later(logs: list[DispatcherLog], *rest: Any) -> Any:
        if "rolling" in logs[0].topic:
            raise DispatchAuditError("the second one fails")
        return judge(logs, *rest)

    monkeypatch.setattr(report_command, "_report", fails_later)
    assert main(["report", str(CLEAN), str(ROLLING), "--out", str(tmp_path), "--json"]) == 2
    (line,) = written(capsys)
    assert Path(str(line["report"])).stat().st_size == line["bytes"]
