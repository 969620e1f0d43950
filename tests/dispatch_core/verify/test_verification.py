"""A trace that comes batch by batch is verified as a whole one is."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dispatch_core.broker.state import READ_POSITION, example_state
from dispatch_core.recording.load_order import named_extent
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.tally import Tally
from dispatch_core.verify.trace import lines_ahead, verification
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.late_entries import LateEntries
from dispatch_core.verify.trace.pending_commands import AckHistory
from dispatch_core.verify.trace.runner import verify
from dispatch_core.verify.trace.verification import TraceVerification

DATA = Path(__file__).resolve().parents[2] / "data" / "recordings"
SAMPLES = sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in DATA.glob("*/*/trace.jsonl*"))


def log_of(name: str) -> DispatcherLog:
    (source,) = find_recordings([str(DATA / name)])
    (log,) = read_recording(source).logs
    return log


def batchwise(log: DispatcherLog, rows: int) -> tuple[dict[str, Any], list[Any], int]:
    """Verify a log in batches of so many lines, with just the entries that are named by then.

    Returns the tally, the findings, and the most lines that were in memory between two batches.
    """
    facts = TraceFacts()
    for start in range(0, log.events.num_rows, rows):
        facts = facts.with_lines(log.events.slice(start, rows))
    assert facts == TraceFacts().with_lines(log.events)
    verified = TraceVerification(log, facts)
    ledgers, entries = (np.asarray(log.messages[name]) for name in ("ledger_id", "entry_id"))
    findings, most, fed = [], 0, 0
    for start in range(0, log.events.num_rows, rows):
        _, (ledger, entry) = named_extent(log.events.slice(start, rows + lines_ahead.LOOK_AHEAD))
        named = int(((ledgers < ledger) | ((ledgers == ledger) & (entries <= entry))).sum())
        messages = log.messages.slice(fed, max(named - fed, 0))
        verified.extend(messages)
        verified.feed(log.events.slice(start, rows), log.events.slice(start + rows))
        fed += messages.num_rows
        if verified.driver is not None:
            most = max(most, verified.driver._lines.kept)
        findings += verified.take_findings()
    tally = verified.finish()
    return without_findings(tally), [*findings, *verified.take_findings()], most


@cache
def whole(name: str) -> tuple[dict[str, Any], list[Any]]:
    tally = verify(log_of(name)).tally
    return without_findings(tally), tally.findings


def without_findings(tally: Tally) -> dict[str, Any]:
    made_of_findings = ("first_divergence", "uncertain_examples")
    return {name: value for name, value in tally.as_json().items() if name not in made_of_findings}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_batches_of_any_size_give_the_same_decisions(name: str, rows: int) -> None:
    log = log_of(name)
    expected, differing = whole(name)
    counted, findings, _ = batchwise(log, rows)
    assert counted == expected
    assert [asdict(finding) for finding in findings] == [asdict(finding) for finding in differing]


def test_the_lines_in_memory_do_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_ahead, "HORIZON", 128)
    for module in (lines_ahead, verification):
        monkeypatch.setattr(module, "LOOK_AHEAD", 256)
    monkeypatch.setattr(verification, "_SPLIT_ROWS", 64)
    name = max(SAMPLES, key=lambda sample: log_of(sample).events.num_rows)
    log = log_of(name)
    assert log.events.num_rows > 2000
    counted, _, most = batchwise(log, 50)
    assert 256 <= most <= 256 + 64
    assert counted["decisions"] == whole(name)[0]["decisions"]


def test_acks_of_dropped_entries_are_forgotten_and_the_others_keep_their_lines() -> None:
    acks = AckHistory()
    for entry in range(4):
        acks.arrived(1, entry)
    acks.through(1, 50)
    acks.arrived(2, 5)
    acks.drop(3)
    assert [acks.may_be_after(entry, 50) for entry in (0, 2)] == [False, True]
    assert [acks.any_under_way(low, low + 1) for low in range(4)] == [False, False, True, False]


def test_late_entries_are_found_by_their_ordinals_after_a_drop() -> None:
    published_ms = pa.table({"publish_time_ms": pa.array([1_000, 2_000, 9_000, 3_000])})
    late = LateEntries(published_ms)
    late.drop(2)
    state = example_state(entries=2)
    assert late.may_have_come(state, 8_000_000)
    state.s[READ_POSITION] = 1
    assert not late.may_have_come(state, 8_000_000)


def test_a_trace_without_some_kinds_is_not_judged() -> None:
    log = log_of(SAMPLES[0])
    partial = replace(log, header={**log.header, "missing": ["rewind", "usable_seen"]})
    result = verify(partial)
    assert result.not_judged is not None
    assert "lacks lines of kind rewind, usable_seen" in result.not_judged
    assert verify(replace(log, header={**log.header, "missing": []})).not_judged is None
