"""``cut`` spreads the same lines in the same order over the given intervals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from dispatch_core.cli.main import main
from dispatch_core.recording.cut import Cut, CutError, cut_recording
from dispatch_core.recording.reader import find_recordings, read_file, read_recording

SAMPLE = Path(__file__).parents[2] / "data" / "recordings" / "4.2.4"
DAY_US = 86_400_000_000
NOVEMBER_US = 20_758 * DAY_US
SOURCE = ("source_file", "source_line")


@pytest.mark.parametrize("name", ["designed-negative-acks-ch", "designed-failover-modulo-p1"])
@pytest.mark.parametrize("form", ["jsonl.gz", "parquet"])
def test_a_cut_recording_holds_the_same_lines_in_the_same_order(tmp_path: Path, name: str, form: str) -> None:
    arguments = ["--out", str(tmp_path), "--intervals", "5", "--start", "2026-11-01", "--format", form]
    assert main(["cut", str(SAMPLE / name), *arguments]) == 0
    (whole,) = read_recording(find_recordings([SAMPLE / name])[0]).logs
    (cut,) = read_recording(find_recordings([tmp_path])[0]).logs
    assert cut.header["config"] == whole.header["config"]
    for table, time in (("events", "t_us"), ("messages", "publish_time_ms")):
        before, after = getattr(whole, table), getattr(cut, table)
        assert after.drop_columns([time, *SOURCE]).equals(before.drop_columns([time, *SOURCE]))
        order = pc.sort_indices(before[time].combine_chunks()).to_pylist()
        moved = [after[time][row].as_py() for row in order]
        assert moved == sorted(moved), "what came later comes later"
    assert pc.min(cut.messages["publish_time_ms"]).as_py() * 1000 >= NOVEMBER_US
    assert pc.max(cut.events["t_us"]).as_py() == pytest.approx(NOVEMBER_US + 5 * DAY_US, abs=0.05 * DAY_US)


def test_each_segment_holds_its_interval_and_late_ones_stand_apart(tmp_path: Path) -> None:
    cut = [
        "--intervals",
        "3",
        "--interval-length",
        "6h",
        "--segments-per-interval",
        "2",
        "--start",
        "2026-11-01",
        "--late",
        "4",
    ]
    where = ["--out", str(tmp_path / "in time"), "--late-out", str(tmp_path / "late")]
    assert main(["cut", str(SAMPLE / "designed-rolling-restart-ch"), *cut, *where]) == 0
    segments = {path.name: path for path in tmp_path.rglob("trace-*")}
    assert sorted(segments) == [f"trace-{number:03d}.jsonl.gz" for number in range(1, 7)]
    assert [path.name for path in (tmp_path / "late").rglob("trace-*")] == ["trace-004.jsonl.gz"]
    for number, name in enumerate(sorted(segments)):
        times = [
            time
            for batch in read_file(segments[name])
            for time in batch.rows["t_us"].to_pylist()
            if time is not None
        ]
        start = NOVEMBER_US + number * DAY_US // 8
        assert start <= min(times) <= max(times) < start + DAY_US // 8


def test_an_interval_begins_at_the_moment_asked_for(tmp_path: Path) -> None:
    (whole,) = read_recording(find_recordings([SAMPLE / "designed-drain-one-by-one-ch"])[0]).logs
    times = whole.events["t_us"].to_pylist()
    at = [times[100], times[400]]
    arguments = ["--out", str(tmp_path), "--intervals", "3", "--start", "2026-11-01"]
    arguments += [word for moment in at for word in ("--at", str(moment))]
    assert main(["cut", str(SAMPLE / "designed-drain-one-by-one-ch"), *arguments]) == 0
    (cut,) = read_recording(find_recordings([tmp_path])[0]).logs
    for before, after in zip(times, cut.events["t_us"].to_pylist(), strict=True):
        assert (after - NOVEMBER_US) // DAY_US == sum(before >= moment for moment in at)


def test_what_cannot_be_cut_is_refused_and_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "events.jsonl").write_bytes(b"not a line\n")
    (source,) = find_recordings([tmp_path / "log"])
    with pytest.raises(CutError, match=r"not one line has a time \({'quarantine': 1}\)"):
        cut_recording(source, {1: tmp_path / "out"}, "jsonl", Cut(0, DAY_US, 1))
    with pytest.raises(CutError, match="0 intervals"):
        Cut(0, DAY_US, 0)
    with pytest.raises(CutError, match="3 intervals have 2 moments between them"):
        Cut(0, DAY_US, 3, at_us=(7,))
    with pytest.raises(CutError, match="do not lie within"):
        Cut(0, DAY_US, 2, at_us=(7,)).times(np.array([10, 20]), 10, 20)
    assert main(["cut", str(SAMPLE), "--out", str(tmp_path / "out"), "--late", "1"]) == 2
    assert not (tmp_path / "out").exists()
