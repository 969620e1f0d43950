"""A consumer that the broker fails to unblock (#22657) is told apart from one that holds too much, by audit and explain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dispatch_core.cli.main import main
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.minimize.logs import LIMIT_OF_1, log_of

DATA = Path(__file__).resolve().parents[2] / "data"
HALF = DATA / "verify" / "4.0.0-preview.1" / "designed-max-unacked-half-ch"
FAULT = "held no more than half of the unacknowledged messages that maxUnackedMessagesPerConsumer"


def _stuck(log: DispatcherLog) -> dict[str, object]:
    rows = audit_whole(log, closed=False).anomalies.to_pylist()
    (row,) = [row for row in rows if row["kind"] == "stuck_subscription"]
    return row


def test_the_audit_names_the_fault() -> None:
    row = _stuck(log_of(LIMIT_OF_1))
    assert (row["reason"], row["severity"]) == ("unacked_limit_consumer", "critical")
    assert FAULT in str(row["explanation"])


def test_a_consumer_that_holds_as_much_as_it_may_is_no_fault_of_the_broker() -> None:
    log = log_of(LIMIT_OF_1)
    acks = [kind == "ack" for kind in log.events["kind"].to_pylist()]
    events = log.events.filter(pa.array(~np.array(acks)))
    seq = pa.array(np.arange(1, events.num_rows + 1), pa.int64())
    events = events.set_column(events.schema.get_field_index("seq"), events.schema.field("seq"), seq)
    row = _stuck(replace(log, events=events))
    assert row["reason"] == "unacked_limit_consumer"
    assert "#22657" not in str(row["explanation"])


def test_explain_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(LIMIT_OF_1)]) == 1
    assert FAULT in " ".join(capsys.readouterr().out.split())


def test_a_block_that_the_next_acknowledgement_ended_was_too_long_only_by_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The consumer waits for 454 ms in all, the last 60 of them with half of what it may hold."""
    assert main(["strip", str(HALF), "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    main(["audit", str(tmp_path), "--complete", "--json"])
    kinds = {json.loads(line).get("kind") for line in capsys.readouterr().out.splitlines()}
    assert not kinds & {"stuck_key", "stuck_consumer", "stuck_subscription"}
    main(["audit", str(tmp_path), "--complete", "--json", "--limit", "stuck_consumer_ms=300"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stuck = [finding for finding in found if finding.get("kind") == "stuck_consumer"]
    assert {finding["reason"] for finding in stuck} == {"unacked_limit_consumer"}
    assert not any(FAULT in finding["explanation"] for finding in stuck)
