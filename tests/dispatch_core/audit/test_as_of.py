"""Logs are judged as of a moment: what goes on then is not finished; with ``--complete`` it never will be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.limits import Limits
from dispatch_core.audit.unsent_entries import Unfinished
from dispatch_core.cli.main import main
from dispatch_core.recording.known_until import connected_at_end, log_until, logs_until
from dispatch_core.replay.replay_log import replay
from dispatch_core.times import clock, from_micros
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    Event,
    ack,
    added,
    flow,
    message,
    numbered,
    read,
    removed,
    sent,
    write,
)

#: One entry a second; entry 5 is left out, 12 is not acknowledged, and the log ends while work goes on.
SECONDS = 40
LOST, HELD = 5, 12


def lines(count: int = SECONDS, lost: int | None = LOST, unacked: int | None = HELD) -> list[Event]:
    events: list[Event] = [added(1), flow(1, 1000)]
    for entry in range(count):
        if entry == lost:
            continue
        at_us = T0_US + (entry + 1) * 1_000_000
        events.append(sent(1, entry) | {"t_us": at_us + 10_000})
        if entry != unacked:
            events.append(ack(1, entry) | {"t_us": at_us + 20_000})
    return [
        event | {"seq": number, "t_us": event.get("t_us", T0_US + number)}
        for number, event in enumerate(events, 1)
    ]


def recording(folder: Path, events: list[Event], kind: str = "Exclusive", count: int = SECONDS) -> Path:
    stored = [
        message(entry, f"k{entry}", publish_time_ms=(T0_US // 1000) + (entry + 1) * 1000)
        for entry in range(count)
    ]
    return write(folder / "a" / "b", stored, events, format="pulsar-consumer-events", subscription_type=kind)


def audited(
    folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[dict[str, Any], list[Any]]:
    main(["audit", "--json", str(folder), *options])
    *findings, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    return verdict, findings


@pytest.mark.parametrize("left", range(1, 60, 7))
def test_a_sound_log_is_sound_wherever_it_is_cut(
    left: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = lines(lost=None, unacked=None)
    verdict, findings = audited(recording(tmp_path, whole[:left]), capsys)
    assert (verdict["verdict"], findings) == ("PASS", [])


def test_a_loss_and_a_hole_are_findings_once_they_are_older_than_their_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recording(tmp_path, lines())
    lost_us = T0_US + (LOST + 1) * 1_000_000

    def kinds_at(t_us: int, *options: str) -> set[str]:
        _verdict, findings = audited(folder, capsys, "--as-of", str(t_us), *options)
        return {row["kind"] for row in findings} - {"divergence"}

    assert kinds_at(lost_us + 9_500_000) == set()
    assert kinds_at(lost_us + 11_500_000) == {"never_delivered"}
    assert kinds_at(lost_us + 9_500_000, "--complete") >= {"never_delivered"}
    assert kinds_at(lost_us + 9_500_000, "--limit", "never_delivered_ms=5000") == {"never_delivered"}
    assert kinds_at(T0_US + SECONDS * 1_000_000, "--limit", "ack_hole_ms=20000") == {
        "never_delivered",
        "ack_hole",
    }
    assert kinds_at(T0_US + SECONDS * 1_000_000, "--complete") == {"never_delivered", "ack_hole"}


def test_as_of_a_time_is_the_log_cut_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = lines()
    at_us = T0_US + 20_000_000
    cut = recording(tmp_path / "cut", [event for event in whole if event["t_us"] <= at_us])
    by_option = audited(recording(tmp_path / "whole", whole), capsys, "--as-of", str(at_us))
    assert by_option == audited(cut, capsys)
    iso = from_micros(at_us).isoformat()
    assert by_option == audited(tmp_path / "whole", capsys, "--as-of", iso)


@pytest.mark.parametrize("options", [(), ("--complete",)])
def test_no_sentence_names_a_later_time(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at_us = T0_US + 30_000_000
    _verdict, findings = audited(recording(tmp_path, lines()), capsys, "--as-of", str(at_us), *options)
    times = [time for row in findings for time in re.findall(r"\d\d:\d\d:\d\d\.\d{3}", row["explanation"])]
    assert times
    assert max(times) <= clock(at_us)


def test_the_moment_and_who_is_connected_are_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = recording(tmp_path, [*lines()[:9], *numbered([added(2), added(3), removed(2)])])
    main(["audit", str(folder)])
    text = capsys.readouterr().out
    assert (
        text.count("the log ends while 2 consumers are connected, and what goes on then is not finished") == 1
    )
    verdict, _findings = audited(folder, capsys)
    assert (verdict["connected"], verdict["complete"]) == (2, False)


def test_a_time_that_cannot_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["audit", "--as-of", "yesterday", str(tmp_path)])
    assert "no day and no ISO 8601 time" in capsys.readouterr().err


def test_explain_and_report_take_the_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recording(tmp_path / "log", lines())
    early = str(T0_US + 8_000_000)
    assert main(["explain", "--position", f"5:{LOST}", "--as-of", early, str(folder)]) == 0
    assert main(["explain", "--position", f"5:{LOST}", str(folder)]) == 1
    assert main(["explain", "--position", f"5:{LOST}", "--as-of", early, "--complete", str(folder)]) == 1
    capsys.readouterr()
    out = tmp_path / "pages"
    main(["report", "--out", str(out), str(folder)])
    page = next(out.rglob("*.html")).read_text(encoding="utf-8")
    assert "the log ends while 1 consumer is connected" in page


def test_an_interval_is_judged_as_of_its_end_or_of_the_last_line(tmp_path: Path) -> None:
    log = read(recording(tmp_path, lines(count=LOST + 3)))
    span = {"interval_start": from_micros(T0_US), "interval_end": from_micros(T0_US + 3600_000_000)}

    def found(**options: Any) -> tuple[list[str], int]:
        tables = replay(log, **span, **options)
        kinds = tables["anomalies"]["kind"].to_pylist()
        return [kind for kind in kinds if kind != "divergence"], tables["waits"]["never_delivered"][0].as_py()

    # 38 of 40 entries are stored: those behind the last line are published later than it.
    assert found(to_last_line=True) == ([], 0)
    assert "never_delivered" in found()[0]
    assert "never_delivered" in found(closed=True)[0]


def test_entries_of_a_backlog_that_moves_are_not_finished(tmp_path: Path) -> None:
    events = numbered([added(1), flow(1, 3), sent(1, 0), ack(1, 0), sent(1, 1), ack(1, 1)])
    stored = [message(entry, f"k{entry}") for entry in range(200)]
    log = read(write(tmp_path / "a" / "b", stored, events, format="pulsar-consumer-events"))
    span = {"interval_start": from_micros(T0_US), "interval_end": from_micros(T0_US + 10_000_000)}
    moving = replay(log, **span, to_last_line=True)
    assert moving["anomalies"].num_rows == 0
    assert moving["waits"]["never_delivered"].to_pylist() == [0]
    standing = replay(log, **span, to_last_line=True, limits=Limits(stuck_consumer_ms=500, stuck_key_ms=500))
    assert set(standing["anomalies"]["kind"].to_pylist()) & {"stuck_consumer", "stuck_key"}


def test_lines_behind_the_moment_are_not_used_even_if_a_clock_went_back(tmp_path: Path) -> None:
    events = numbered([added(1), flow(1), sent(1, 0), sent(1, 1), sent(1, 2)])
    events[3]["t_us"] = T0_US + 60_000_000
    log = read(write(tmp_path / "a" / "b", [message(entry, "k") for entry in range(3)], events))
    cut = log_until(log, T0_US + 30_000_000)
    assert cut.events["seq"].to_pylist() == [1, 2, 3]
    assert logs_until([log, replace(log, incarnation=1)], T0_US - 1)[0].events.num_rows == 0
    assert connected_at_end(cut.events) == 1


def test_entries_published_later_are_left_out_unless_a_line_names_them(tmp_path: Path) -> None:
    later = T0_US // 1000 + 60_000
    stored = [message(entry, "k", publish_time_ms=later) for entry in range(4)]
    log = read(write(tmp_path / "a" / "b", stored, numbered([added(1), flow(1), sent(1, 0), sent(1, 1)])))
    assert log_until(log, T0_US + 30_000_000).messages["entry_id"].to_pylist() == [0, 1]
    assert Unfinished().backlog is False
