"""Inputs of the benchmark: generated once and reused, with their dispatchers; copies of them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import generated, ingest
from bench.cases import CASES, FULL, QUICK
from bench.copying import copy
from bench.generated import Log, dispatchers, files, first_day, provide
from bench.harness import BenchError
from bench.replay import product


@pytest.fixture
def logs(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(generated, "_LOGS", tmp_path / "logs")
    return tmp_path / "logs"


@pytest.mark.slow
def test_a_log_is_made_once_and_again_when_the_generator_changed(logs: Path) -> None:
    log = Log(600, ("--keys=10", "--consumers=2"), dispatchers=3)
    provide([log, log])
    marker = log.folder / "made.json"
    (log.folder / "mine").touch()
    provide([log])
    assert (log.folder / "mine").exists()
    marker.write_text(json.dumps({"arguments": log.arguments, "sources": "others"}))
    provide([log])
    assert not (log.folder / "mine").exists()
    found = dispatchers(str(log.folder / "log"))
    assert len({dispatcher["topic"] for dispatcher in found}) == len(found) == 3
    assert first_day(str(log.folder / "log")) == "2026-01-01"


@pytest.mark.slow
def test_a_large_log_is_laid_out_in_several_files_and_replayed_from_them(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated, "FILE_ROWS", 1)
    log = Log(200_000, ("--keys=10", "--consumers=2"))
    provide([log])
    for name, generated_file in zip(
        ("events", "messages"), sorted((log.folder / "log").rglob("*.parquet")), strict=True
    ):
        parts = sorted((log.folder / "tables").rglob(f"{name}*.parquet"))
        assert len(parts) == pq.ParquetFile(generated_file).num_row_groups > 1
        whole = pa.concat_tables([pq.read_table(part) for part in parts])
        assert whole.equals(pq.read_table(generated_file))
    (dispatcher,) = dispatchers(str(log.folder / "tables"))
    assert len(dispatcher["event_files"]) > 1 < len(dispatcher["message_files"])
    _seconds, facts = product(str(log.folder / "tables"), str(tmp_path / "staged"), None)
    assert facts["entries_sent"] == facts["decisions"] == facts["entries_stored"] == 200_000


def test_the_copy_writes_every_row_of_input_and_output(logs: Path, tmp_path: Path) -> None:
    log = Log(500, ("--keys=10", "--consumers=2"))
    provide([log])
    events, messages = files(str(log.folder / "log"))
    seconds, facts = copy([*events, *messages], events, str(tmp_path / "copied"))
    assert seconds > 0
    assert facts["rows_out"] == pq.read_metadata(events[0]).num_rows
    assert facts["rows_copied"] == facts["rows_out"] + 500
    assert pq.read_table(tmp_path / "copied" / "in-0.parquet").equals(pq.read_table(events[0]))
    assert pq.read_table(tmp_path / "copied" / "out-0.parquet").equals(pq.read_table(events[0]))


def test_a_replay_that_loses_messages_is_no_measurement(logs: Path, tmp_path: Path) -> None:
    log = Log(500, ("--keys=10", "--consumers=2"))
    provide([log])
    source = log.folder / "log"
    _, facts = product(str(source), str(tmp_path / "staged"), None)
    assert facts["entries_sent"] == facts["decisions"] == facts["entries_stored"] == 500
    (events,), _ = files(str(source))
    rows = pq.read_table(events)
    pq.write_table(rows.slice(0, rows.num_rows // 2), events)
    with pytest.raises(BenchError, match=r"not every message|not judged"):
        product(str(source), str(tmp_path / "staged"), None)


def test_ingest_is_measured_on_a_generated_log(logs: Path, tmp_path: Path) -> None:
    log = Log(500, ("--keys=10", "--consumers=2"), form="jsonl.gz")
    provide([log])
    seconds, facts = ingest.product(str(log.folder / "log"), str(tmp_path / "staged"), "2026-01-01")
    assert seconds > 0
    assert facts


def test_arguments_that_the_generator_refuses_are_reported(logs: Path) -> None:
    with pytest.raises(BenchError, match="--churn"):
        provide([Log(100, ("--churn=nonsense",))])


def test_every_case_names_its_inputs() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for sizes in (FULL, QUICK):
        for case in CASES:
            made = case.logs(sizes)
            assert len(set(made)) == len(made)
            assert all(log.messages > 0 for log in made)
