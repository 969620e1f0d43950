"""Findings beside rows that were lost behind the last line of a log: what they may explain is uncertain, nothing else."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.limits import Limits
from dispatch_core.cli.main import main
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from dispatch_core.times import from_micros
from tests.dispatch_core.audit.small_logs import (
    MIDNIGHT,
    T0_US,
    Event,
    ack,
    added,
    flow,
    message,
    numbered,
    read,
    redeliver,
    sent,
    write,
)
from tests.dispatch_core.replay.test_log_files import gathered, written

STORED = [message(entry, f"k{entry}", publish_time_ms=T0_US // 1000) for entry in range(6)]
#: 5:1 is sent and not acknowledged, 5:4 and 5:5 are never sent.
LINES = numbered([added(1), flow(1, 100), sent(1, 0, 1, 2, 3), ack(1, 0, 2, 3)])
#: The same with permits for the four entries only.
NO_PERMITS = numbered([added(1), flow(1, 4), sent(1, 0, 1, 2, 3), ack(1, 0, 2, 3)])
KINDS = ("ack_hole", "never_delivered", "stuck_key", "stuck_consumer", "stuck_subscription")
SHORT = Limits.of({"ack_hole_ms": "500"})


def log_of(
    folder: Path, lines: list[Event], subscription_type: str = "Key_Shared", **fields: Any
) -> DispatcherLog:
    log = read(write(folder / "a", STORED, lines, subscription_type=subscription_type))
    return replace(log, **fields)


def judged(
    log: DispatcherLog, end_us: int = T0_US + 5_000_000, **options: Any
) -> list[tuple[str, bool, bool]]:
    """Kind of each finding, whether it is uncertain and whether its sentence names the lost rows."""
    found = replay(
        log, interval_start=MIDNIGHT, interval_end=from_micros(end_us), **{"closed": True} | options
    )
    return sorted(
        (row["kind"], row["uncertain"], "could not be read" in row["explanation"])
        for row in found["anomalies"].to_pylist()
        if row["kind"] in KINDS
    )


@pytest.mark.parametrize("subscription_type", ["Key_Shared", "Exclusive"])
@pytest.mark.parametrize(
    ("lines", "kinds"),
    [(LINES, ["ack_hole", "never_delivered"]), (NO_PERMITS, ["ack_hole", "stuck_consumer"])],
)
def test_what_is_open_at_a_lost_end_is_uncertain(
    lines: list[Event], kinds: list[str], subscription_type: str, tmp_path: Path
) -> None:
    whole = log_of(tmp_path, lines, subscription_type)
    certain = judged(whole)
    if subscription_type == "Exclusive" and lines is LINES:
        kinds = [
            "ack_hole",
            "stuck_subscription",
        ]  # nothing is read, and no limit of unacknowledged messages explains it
    assert {kind for kind, _, _ in certain}.issuperset(kinds)
    assert not any(uncertain for _, uncertain, _ in certain)
    lost = replace(whole, end_lost=True)
    assert judged(lost) == [(kind, True, True) for kind, _, _ in certain]
    assert judged(lost, closed=False) == []


@pytest.mark.parametrize("lines", [LINES, NO_PERMITS])
def test_what_was_too_long_by_the_last_line_stays_certain(lines: list[Event], tmp_path: Path) -> None:
    later = {"seq": 5, "t_us": T0_US + 3_600_000_000}
    lines = [*lines, (flow(1, 1) if lines is LINES else redeliver(1, 1)) | later]
    whole = log_of(tmp_path, lines)
    end_us = T0_US + 7_200_000_000
    assert judged(whole, end_us)
    assert not any(uncertain for _, uncertain, _ in judged(whole, end_us))
    lost = replace(whole, end_lost=True)
    for options in ({"closed": True}, {"closed": False}, {"closed": False, "to_last_line": True}):
        assert judged(lost, end_us, **options) == judged(whole, end_us, **options)


def test_what_is_too_long_only_behind_the_last_line_is_uncertain(tmp_path: Path) -> None:
    """As of the interval's end, two hours behind the last line."""
    whole = log_of(tmp_path, LINES)
    end_us = T0_US + 7_200_000_000
    certain = judged(whole, end_us, closed=False)
    assert {kind for kind, _, _ in certain} == {"ack_hole", "stuck_subscription"}
    assert not any(uncertain for _, uncertain, _ in certain)
    doubted = judged(replace(whole, end_lost=True), end_us, closed=False)
    assert doubted == [(kind, True, True) for kind, _, _ in certain]


def test_a_hole_that_is_older_than_its_limit_is_certain_beside_a_younger_one(tmp_path: Path) -> None:
    lines = numbered(
        [
            added(1),
            flow(1, 100),
            sent(1, 0, 1),
            ack(1, 1),
            sent(1, 2, 3),
            ack(1, 3) | {"t_us": T0_US + 60_000_000},
        ]
    )
    log = log_of(tmp_path, lines, end_lost=True)
    holes = replay(
        log,
        interval_start=MIDNIGHT,
        interval_end=MIDNIGHT + timedelta(days=1),
        limits=Limits.of({"ack_hole_ms": "30000"}),
        closed=True,
    )["anomalies"].to_pylist()
    assert [
        (row["positions"], row["uncertain"], row["reason"]) for row in holes if row["kind"] == "ack_hole"
    ] == [
        (["5:0"], False, None),
        (["5:2"], True, "rows_lost"),
    ]


@pytest.mark.parametrize("behind", [True, False])
def test_batches_judge_a_lost_end_as_the_whole_log(behind: bool, tmp_path: Path) -> None:
    log = log_of(tmp_path, LINES)
    span = {"interval_start": MIDNIGHT, "interval_end": MIDNIGHT + timedelta(days=1)}
    load = {"broker": log.broker, "incarnation": log.incarnation}
    dispatcher = written(log, tmp_path, row_group_rows=10) | {"ends_lost": [load] if behind else []}
    for complete in (True, False):
        in_batches = gathered(replay_files(dispatcher, complete=complete, **span))  # type: ignore[arg-type]
        whole = replay(replace(log, end_lost=behind), closed=complete, **span)  # type: ignore[arg-type]
        for table in REPLAY_TABLES:
            assert in_batches[table] == whole[table].to_pylist(), table
        holes = [finding["uncertain"] for finding in in_batches["anomalies"] if finding["kind"] == "ack_hole"]
        assert holes == [behind]


@pytest.mark.parametrize("damage", ["cut", "refused line"])
def test_the_command_line_doubts_what_a_damaged_end_may_explain(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "a", STORED, LINES)
    trace = folder / "trace.jsonl.gz"

    def audited(*options: str) -> tuple[dict[str, str], list[Any]]:
        main(["audit", "--json", str(folder), *options])
        *findings, verdict = map(json.loads, capsys.readouterr().out.splitlines())
        promises = {promise["promise"]: promise["verdict"] for promise in verdict["promises"]}
        return promises, [finding for finding in findings if finding["kind"] in KINDS]

    assert audited("--complete")[0]["completeness"] == "FAIL"
    text = gzip.decompress(trace.read_bytes())
    more = text + b'{"seq": 5, "t_us": 1, "kind": "ack", "consum'
    trace.write_bytes(gzip.compress(more)[:-9] if damage == "cut" else gzip.compress(more))
    promises, findings = audited("--complete")
    assert findings
    assert all(finding["uncertain"] for finding in findings)
    assert (promises["completeness"], promises["input_quality"]) == ("UNKNOWN", "FAIL")
    promises, findings = audited()
    assert findings == []
    assert (promises["completeness"], promises["input_quality"]) == ("UNKNOWN", "FAIL")
