"""The audit against the brute-force checker, which shares no line with it: on the samples and on random small logs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.audit.deliveries.rows import Audit
from dispatch_core.recording.log import DispatcherLog, dispatcher_logs
from dispatch_core.recording.reader import read_file
from dispatch_core.replay.whole_log import audit_whole
from tests import checker
from tests.dispatch_core.audit.small_logs import (
    Event,
    ack,
    added,
    audited,
    header,
    kinds,
    message,
    numbered,
    read,
    redeliver,
    removed,
    sent,
    without_trace,
    write,
)

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = sorted(folder for folder in (ROOT / "tests" / "data" / "recordings").glob("*/*") if folder.is_dir())
BOTH = (
    "out_of_order",
    "overtaken_redelivery",
    "split_key",
    "double_outstanding",
    "duplicate_after_ack",
    "redelivered",
)


def findings(audit: Audit) -> Counter[tuple[str, bytes | None, str]]:
    """(kind, key bytes, position) of every finding that both sides look for."""
    return Counter(
        (row["kind"], key_bytes(row), row["positions"][0])
        for row in audit.anomalies.to_pylist()
        if row["kind"] in BOTH
    )


def key_bytes(row: dict[str, Any]) -> bytes | None:
    if row["key"] is None:
        return None
    return base64.b64decode(row["key"]) if row["key_b64"] else row["key"].encode()


def second_opinion(folder: Path) -> Counter[tuple[str, bytes | None, str]]:
    return Counter(checker.check(str(folder / "messages.jsonl.gz"), str(folder / "trace.jsonl.gz")))


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
def test_both_find_the_same_in_the_samples(folder: Path) -> None:
    audit = audited(read(folder))
    assert findings(audit) == second_opinion(folder)
    assert audit.deliveries.num_rows > 0


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
def test_the_log_without_a_trace_says_the_same_as_the_trace(folder: Path) -> None:
    log = read(folder)
    assert kinds(audited(without_trace(log))) == kinds(audited(log))


def test_the_sample_with_violations_has_them() -> None:
    folder = ROOT / "tests/data/recordings/4.2.4/designed-rolling-restart-classic-ch"
    assert Counter(kind for kind, _, _ in findings(audited(read(folder))).elements()) == {
        "out_of_order": 23,
        "split_key": 40,
        "redelivered": 238,
    }


ENTRIES = st.integers(0, 5)
CONSUMERS = st.integers(1, 2)
MESSAGES = [message(entry, None if entry == 5 else f"k{entry // 4}") for entry in range(6)]

# What may follow each other is wider than what a broker does: the definitions hold for any log.
EVENTS = st.one_of(
    st.builds(lambda c, e: sent(c, *e), CONSUMERS, st.lists(ENTRIES, min_size=1, max_size=3)),
    st.builds(lambda c, e: sent(c, *e), CONSUMERS, st.lists(ENTRIES, min_size=1, max_size=3)),
    st.builds(lambda c, e: ack(c, *e), CONSUMERS, st.lists(ENTRIES, min_size=1, max_size=2, unique=True)),
    st.builds(lambda c, e: redeliver(c, *e), CONSUMERS, st.lists(ENTRIES, max_size=4, unique=True)),
    st.builds(lambda c, e: ack(c, e, cumulative=True), CONSUMERS, ENTRIES),
    st.builds(lambda c, e, bits: ack(c, e, sets=[[bits]]), CONSUMERS, ENTRIES, st.integers(0, 3)),
    st.builds(added, CONSUMERS),
    st.builds(removed, CONSUMERS),
    st.just({"kind": "rewind"}),
)
TYPES = st.sampled_from(["Key_Shared", "Failover", "Shared"])


def from_lines(events: list[Event], subscription_type: str) -> DispatcherLog:
    """The log of some lines, whose recorder would have written moves of the cursor."""
    import io

    import pyarrow as pa

    from dispatch_core.recording.schema import EVENTS as EVENT_SCHEMA
    from dispatch_core.recording.schema import MESSAGES as MESSAGE_SCHEMA

    rows: dict[str, list[pa.RecordBatch]] = {"messages": [], "events": [], "quarantine": []}
    for name, lines in (
        ("messages.jsonl", MESSAGES),
        ("trace.jsonl", [header(subscription_type=subscription_type, records=["cursor_moved"]), *events]),
    ):
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        for batch in read_file(io.BytesIO(data), name=name):
            rows[batch.table].append(batch.rows)
    assert not rows["quarantine"]
    (log,) = dispatcher_logs(
        pa.Table.from_batches(rows["messages"], MESSAGE_SCHEMA),
        pa.Table.from_batches(rows["events"], EVENT_SCHEMA),
    )
    return log


@settings(max_examples=150)
@given(st.lists(EVENTS, min_size=6, max_size=40), TYPES)
def test_both_find_the_same_in_random_logs(events: list[Event], subscription_type: str) -> None:
    lines = numbered([added(1), added(2), *events])
    keys = {checker.position(m["position"]): checker.key_of(m) for m in MESSAGES}
    expected = Counter(checker.Checker(subscription_type, keys).run(lines))
    assert findings(audited(from_lines(lines, subscription_type))) == expected


ABOUT_THE_LOG = ("log_gap", "clock_step", "unknown_consumer", "unknown_position")
WRONG_LINES = st.one_of(
    st.builds(lambda c, e: sent(c, *e), CONSUMERS, st.lists(st.integers(0, 7), min_size=1, max_size=2)),
    st.builds(lambda c, e: ack(c, *e), CONSUMERS, st.lists(st.integers(0, 7), min_size=1, max_size=2)),
    st.builds(redeliver, CONSUMERS),
    st.builds(lambda c: {"kind": "flow", "consumer": c, "permits": 5}, CONSUMERS),
    st.builds(added, CONSUMERS),
    st.builds(removed, CONSUMERS),
    st.just({"kind": "gap"}),
    st.just({"kind": "step"}),
)


def about_the_log(audit: Audit) -> Counter[tuple[str, int]]:
    rows = audit.anomalies.to_pylist()
    return Counter((row["kind"], row["seqs"][-1]) for row in rows if row["kind"] in ABOUT_THE_LOG)


#: Milliseconds from line to line; a second is the time for which a connection goes on without its consumer.
TAKES = st.one_of(st.integers(-1, 3), st.sampled_from((998, 1000, 1001)))


@pytest.mark.slow
@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 3), TAKES, WRONG_LINES), min_size=2, max_size=25))
def test_both_find_the_same_wrong_with_a_log(steps: list[tuple[int, int, Event]]) -> None:
    lines, seq, t_us = [], 0, 1_000_000
    for grows, takes, event in steps:
        seq, t_us = seq + grows, t_us + takes * 1000
        gap = {"from": seq, "to": seq} if event["kind"] == "gap" else {}
        lines.append(event | gap | {"seq": seq, "t_us": t_us})
    expected = Counter(checker.check_log(MESSAGES, lines))
    assert about_the_log(audited(from_lines(lines, "Key_Shared"))) == expected


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
def test_nothing_is_wrong_with_the_samples(folder: Path) -> None:
    paths = [str(folder / f"{name}.jsonl.gz") for name in ("messages", "trace")]
    assert checker.check_log(checker.lines(paths[0]), checker.lines(paths[1])) == []
    assert about_the_log(audited(read(folder))) == Counter()


@pytest.mark.slow
def test_the_same_source_runs_uncompiled() -> None:
    """With NUMBA_DISABLE_JIT=1 the rules run as plain Python and say the same."""
    folder = ROOT / "tests/data/recordings/4.2.4/designed-rolling-restart-classic-ch"
    run = subprocess.run(
        [sys.executable, "-m", "dispatch_core.cli.main", "audit", "--json", str(folder)],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    compiled = audit_whole(read(folder)).anomalies.to_pylist()
    assert [(line["kind"], line["seqs"], line["explanation"]) for line in lines[:-1]] == [
        (row["kind"], row["seqs"], row["explanation"]) for row in compiled
    ]


def tampered(folder: Path, tmp_path: Path, change: Any) -> Path:
    messages = checker.lines(str(folder / "messages.jsonl.gz"))
    trace = checker.lines(str(folder / "trace.jsonl.gz"))
    lines = [line for line in change(trace[1:]) if line is not None]
    for number, line in enumerate(lines, start=1):
        line["seq"] = number
    top = trace[0]
    return write(tmp_path / "tampered" / folder.name, messages, lines, **top)


CLEAN = ROOT / "tests/data/recordings/4.2.4/designed-drain-one-by-one-ch"


def test_a_delivery_moved_behind_a_later_one_of_its_key_is_found(tmp_path: Path) -> None:
    keys = {
        m["position"]: m.get("key")
        for m in checker.lines(str(CLEAN / "messages.jsonl.gz"))
        if "position" in m
    }

    def swap(lines: list[Event]) -> list[Event]:
        for line in lines:
            positions = line.get("positions") or []
            if line["kind"] == "sent":
                for first in range(len(positions)):
                    for second in range(first + 1, len(positions)):
                        if keys[positions[first]] == keys[positions[second]]:
                            positions[first], positions[second] = positions[second], positions[first]
                            swapped.append((keys[positions[first]], positions[second]))
                            return lines
        raise AssertionError("the sample has no line with two entries of one key")

    swapped: list[tuple[str | None, str]] = []
    folder = tampered(CLEAN, tmp_path, swap)
    found = audited(read(folder)).anomalies.to_pylist()
    assert [(row["kind"], row["key"], row["positions"][0]) for row in found] == [
        ("out_of_order", *swapped[0])
    ]
    assert findings(audited(read(folder))) == second_opinion(folder)


def test_a_delivery_repeated_after_its_ack_is_found(tmp_path: Path) -> None:
    def repeat(lines: list[Event]) -> list[Event]:
        first = next(line for line in lines if line["kind"] == "sent" and len(line["positions"]) == 1)
        ack_at = next(
            i
            for i, line in enumerate(lines)
            if line["kind"] == "ack" and first["positions"][0] in line["positions"]
        )
        later = next(i for i in range(ack_at + 1, len(lines)) if lines[i]["kind"] == "pending_ack_removed")
        positions.extend(first["positions"])
        return [*lines[: later + 1], dict(first, t_us=lines[later]["t_us"]), *lines[later + 1 :]]

    positions: list[str] = []
    folder = tampered(CLEAN, tmp_path, repeat)
    found = audited(read(folder)).anomalies.to_pylist()
    assert ("duplicate_after_ack", positions) in [(row["kind"], row["positions"]) for row in found]
    assert {row["kind"] for row in found} <= {"duplicate_after_ack", "out_of_order", "split_key"}
    assert findings(audited(read(folder))) == second_opinion(folder)


def test_a_delivery_to_another_consumer_as_well_is_found(tmp_path: Path) -> None:
    def double(lines: list[Event]) -> list[Event]:
        connected: list[int] = []
        for i, line in enumerate(lines):
            if line["kind"] == "consumer_added":
                connected.append(line["consumer"])
            others = [c for c in connected if c != line.get("consumer")]
            if line["kind"] == "sent" and others:
                copy = dict(line, consumer=others[0], positions=line["positions"][:1], batch_sizes=[1])
                positions.extend(copy["positions"])
                return [*lines[: i + 1], copy, *lines[i + 1 :]]
        raise AssertionError("never two consumers")

    positions: list[str] = []
    folder = tampered(CLEAN, tmp_path, double)
    found = audited(read(folder)).anomalies.to_pylist()
    assert ("double_outstanding", positions) in [(row["kind"], row["positions"]) for row in found]
    assert findings(audited(read(folder))) == second_opinion(folder)
