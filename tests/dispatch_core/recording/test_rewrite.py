"""Rewritten recordings: ``convert`` keeps every row in every format, ``strip`` keeps the log without a trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.audit.deliveries.missing_lines import gaps
from dispatch_core.cli.main import main
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import Recording, find_recordings, read_recording
from dispatch_core.recording.rewrite import without_trace
from dispatch_core.recording.schema import EVENTS
from dispatch_core.recording.writer import FORMATS
from tests.dispatch_core.audit.small_logs import ack, added, audited, header, kinds, message, numbered, sent
from tests.dispatch_core.logs_without_trace import DATA, stripped

SAMPLES = ("recordings/4.2.4/designed-negative-acks-ch", "verify/4.2.4/designed-sticky-in-order")
HOSTILE = 'k"\\\n\u2028\x00é<script>'


def recording(folder: Path) -> Recording:
    return read_recording(find_recordings([folder])[0])


def content(log: DispatcherLog) -> tuple[Any, ...]:
    kept = [name for name in log.events.column_names if not name.startswith("source_")]
    stored = [name for name in log.messages.column_names if not name.startswith("source_")]
    names = (log.cluster, log.topic, log.subscription, log.broker, log.incarnation)
    return names, log.header, log.events.select(kept).to_pylist(), log.messages.select(stored).to_pylist()


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Make two incarnations of a dispatcher and another dispatcher, with foreign names, a gap and a checkpoint."""
    folder = tmp_path / "in" / "parent" / "run"
    write_lines(
        folder / "messages.jsonl.gz",
        [message(0, HOSTILE), message(1, None), message(0, "a", topic="u"), message(1, "b", topic="unread")],
    )
    gap = {"kind": "gap", "from": 4, "to": 9, "lost": 3, "seq": 4}
    checkpoint = {"kind": "checkpoint", "seq": 10, "consumers": [1], "mark_delete": "5:0"}
    for name, lines, number in (("trace-1", [added(1, HOSTILE), sent(1, 0), ack(1, 0), gap, checkpoint], 1),):
        write_lines(
            folder / f"{name}.jsonl.gz",
            [header(cluster="eu", broker="b-1", incarnation=number), *numbered(lines)],
        )
    both = [
        header(cluster="eu", broker="b-2", incarnation=2),
        *numbered([added(1), sent(1, 1)]),
        header(topic="u", cluster="eu"),
        *numbered([added(7), sent(7, 0)]),
    ]
    write_lines(folder / "trace-2.jsonl.gz", both)
    return folder


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", SAMPLES)
def test_every_form_holds_the_same_rows(name: str, form: str, tmp_path: Path) -> None:
    assert main(["convert", str(DATA / name), "--out", str(tmp_path), "--format", form]) == 0
    before, after = recording(DATA / name), recording(tmp_path / name.split("/", 1)[1])
    assert after.quarantine.num_rows == 0, after.quarantine.to_pylist()
    assert before.name == after.name
    assert list(map(content, after.logs)) == list(map(content, before.logs))


@pytest.mark.parametrize("form", FORMATS)
def test_foreign_names_gaps_checkpoints_and_incarnations_survive(
    hostile: Path, form: str, tmp_path: Path
) -> None:
    before = recording(hostile)
    assert [(log.topic, log.incarnation) for log in before.logs] == [("t", 1), ("t", 2), ("u", 0)]
    there, back = tmp_path / "there", tmp_path / "back"
    assert main(["convert", str(hostile), "--out", str(there), "--format", form]) == 0
    assert main(["convert", str(there), "--out", str(back), "--format", "jsonl"]) == 0
    for folder in (there, back):
        after = recording(folder / "parent" / "run")
        assert after.quarantine.num_rows == 0, after.quarantine.to_pylist()
        assert len(after.logs) == 3
        for log, original in zip(after.logs, before.logs, strict=True):
            copied, expected = content(log), content(original)
            assert copied[0] == expected[0]
            assert without_texts(copied[2]) == without_texts(expected[2])
            assert copied[3] == expected[3]
            assert log.header["broker_version"] == "4.2.4"
    assert b"unread" in (back / "parent" / "run" / "messages.jsonl").read_bytes()


def without_texts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts = ("checkpoint_json",)
    parsed = [{name: json.loads(row[name]) for name in texts if row[name]} for row in rows]
    named = ("topic", "subscription", "cluster", "broker", "incarnation")
    return [
        row | {name: {k: v for k, v in value.items() if k not in named} for name, value in of.items()}
        for row, of in zip(rows, parsed, strict=True)
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_stripped_trace_is_a_log_of_level_e(name: str, tmp_path: Path) -> None:
    assert main(["strip", str(DATA / name), "--out", str(tmp_path)]) == 0
    folder = tmp_path / name.split("/", 1)[1]
    before, after = recording(DATA / name).logs[0], recording(folder).logs[0]
    assert content(after)[2:] == content(stripped(before))[2:]
    assert after.header == before.header | {"format": "pulsar-consumer-events"}
    with gzip.open(folder / "events.jsonl.gz") as file:
        lines = [json.loads(line) for line in file]
    source = dict(zip(before.events["seq"].to_pylist(), before.events["kind"].to_pylist(), strict=True))
    assert lines[-1]["kind"] == "footer"
    assert all(source[line["source_seq"]] == line["kind"] for line in lines[1:-1])
    assert kinds(audited(after)) == kinds(audited(before))
    assert not list(folder.glob("*.partial"))


def test_minimal_leaves_out_what_is_optional(tmp_path: Path) -> None:
    name = "recordings/4.2.4/designed-failover-modulo-p1"
    assert main(["strip", str(DATA / name), "--out", str(tmp_path), "--minimal"]) == 0
    events = recording(tmp_path / "4.2.4").logs[0].events
    assert "active_notified" not in events["kind"].to_pylist()
    assert events["blocked"].null_count == events["ack_sets"].null_count == len(events)


def test_stripping_keeps_each_incarnation_apart(hostile: Path, tmp_path: Path) -> None:
    assert main(["strip", str(hostile), "--out", str(tmp_path / "out")]) == 0
    logs = recording(tmp_path / "out" / "parent" / "run").logs
    assert [(log.topic, log.broker, log.incarnation) for log in logs] == [
        ("t", "b-1", 1),
        ("t", "b-2", 2),
        ("u", None, 0),
    ]
    assert [row["kind"] for row in logs[0].events.to_pylist()][3:] == ["gap", "checkpoint"]
    assert logs[0].events["name"][0].as_py() == HOSTILE


def test_a_recording_is_not_written_over_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    write_lines(folder / "messages.jsonl.gz", [message(0, "k")])
    write_lines(folder / "trace.jsonl.gz", [header(), *numbered([added(1)])])
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for command in (["strip"], ["convert", "--format", "jsonl"]):
        assert main([*command, str(folder), "--out", str(tmp_path)]) == 2
        assert "nothing was written" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_convert_refuses_an_occupied_folder_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("in/p/q", "in/p/r"):
        write_lines(tmp_path / name / "messages.jsonl.gz", [message(0, "k")])
        write_lines(tmp_path / name / "events.jsonl.gz", [header(), *numbered([added(1)])])
    (tmp_path / "out" / "p" / "r").mkdir(parents=True)
    (tmp_path / "out" / "p" / "r" / "notes.txt").write_text("mine")
    before = _files(tmp_path)
    arguments = ["convert", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--format"]
    assert main([*arguments, "parquet"]) == 2
    assert "is occupied, by notes.txt; nothing was written" in capsys.readouterr().err
    assert _files(tmp_path) == before
    (tmp_path / "out" / "p" / "r" / "notes.txt").unlink()
    assert main([*arguments, "parquet"]) == 0
    before = _files(tmp_path)
    assert main([*arguments, "jsonl"]) == 2
    assert "is occupied, by events.parquet, messages.parquet" in capsys.readouterr().err
    assert _files(tmp_path) == before


def test_convert_refuses_two_files_for_one_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a/p/r", "b/p/r"):
        write_lines(tmp_path / folder / "events.jsonl.gz", [header(), *numbered([added(1)])])
    out = tmp_path / "out"
    arguments = ["--out", str(out), "--format", "jsonl"]
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "b"), *arguments]) == 2
    assert "would both be written to" in capsys.readouterr().err
    (tmp_path / "a" / "p" / "r" / "events.jsonl").write_bytes(b"")
    assert main(["convert", str(tmp_path / "a"), *arguments]) == 2
    assert "events.jsonl and events.jsonl.gz would be written to one file" in capsys.readouterr().err
    assert not out.exists()


def test_an_unreadable_line_is_reported_and_the_rest_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in" / "p" / "r"
    write_lines(folder / "messages.jsonl.gz", [message(0, "k")])
    write_lines(folder / "trace.jsonl.gz", [header(), *numbered([added(1), {"kind": "flow"}])])
    assert main(["strip", str(folder), "--out", str(tmp_path / "s")]) == 2
    assert "trace.jsonl.gz:3" in capsys.readouterr().err
    assert main(["convert", str(folder), "--out", str(tmp_path / "c"), "--format", "parquet"]) == 2
    assert "1 lines or files could not be read" in capsys.readouterr().err
    for copy in ("s", "c"):
        assert recording(tmp_path / copy / "p" / "r").logs[0].events["kind"].to_pylist() == ["consumer_added"]


LINE = st.tuples(
    st.integers(0, 3),  # how much the number grows: 0 = the same again, 1 = the next, more = a hole
    st.sampled_from(["sent", "flow", "round_begin", "step", "gap", "checkpoint"]),
)


@given(st.lists(LINE, min_size=1, max_size=30))
def test_numbers_of_kept_lines_grow_as_before(lines: list[tuple[int, str]]) -> None:
    seq = np.cumsum([step for step, _ in lines]) + (lines[0][0] == 0)
    rows = [
        {"seq": int(number), "t_us": 1, "kind": kind, "gap_from_seq": int(number), "gap_to_seq": int(number)}
        for number, (_, kind) in zip(seq, lines, strict=True)
    ]
    same = {"cluster": "c", "topic": "t", "subscription": "s", "incarnation": 0}
    events = pa.Table.from_pylist([same | row for row in rows], schema=EVENTS)
    kept, source = without_trace(events)
    assert kept["kind"].to_pylist() == [k for _, k in lines if k not in ("round_begin", "step")]
    anew = np.asarray(kept["seq"])
    assert np.all((np.diff(anew) == 0) == (np.diff(source) == 0))
    assert np.all(np.diff(anew) >= 0)
    if any(kind == "gap" for _, kind in lines) or len(kept) < 2:
        return
    # a hole between two kept lines is still a hole
    before, after = gaps(events, [])[0], gaps(kept, [])[0]
    for at in range(len(anew) - 1):
        was = before.between(int(source[at]), int(source[at + 1]))
        assert after.between(int(anew[at]), int(anew[at + 1])) == was
