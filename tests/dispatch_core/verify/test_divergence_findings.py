"""Divergences as findings: which entry, which key, who got it and who should have; and what is left to other findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import with_overrides
from dispatch_core.replay.whole_log import WholeAudit, audit_whole
from tests.dispatch_core.audit.small_logs import (
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
from tests.dispatch_core.logs_without_trace import stripped
from tests.dispatch_core.replay.test_whole_log import DRAIN, log_of

OTHER_RING = {"subscriptionKeySharedConsistentHashingReplicaPoints": 50}


def divergences(audit: WholeAudit) -> list[dict[str, Any]]:
    return [row for row in audit.anomalies.to_pylist() if row["kind"] == "divergence"]


def of(folder: Path, events: list[Event], entries: int = 6, **header: Any) -> DispatcherLog:
    stored = [message(entry, "k") for entry in range(entries)]
    return read(write(folder / "a" / "b", stored, events, format="pulsar-consumer-events", **header))


def test_what_went_to_another_than_the_rule_says_names_both() -> None:
    log = with_overrides(log_of(DRAIN), None, OTHER_RING)
    rows = divergences(audit_whole(stripped(log)))
    assert len(rows) == 12
    assert {row["reason"] for row in rows} == {"dispatch"}
    first = rows[0]
    assert (first["positions"], first["key"], len(first["consumers"])) == (["3:43"], "key-3", 2)
    assert first["hash"] is not None
    assert first["explanation"].startswith("3:43 (key key-3) was sent to c2 at ")
    assert "it was for c1: the key's hash belongs to another consumer" in first["explanation"]


def test_of_a_trace_the_first_decision_is_a_finding_with_the_number_of_all() -> None:
    log = with_overrides(log_of(DRAIN), None, OTHER_RING)
    audit = audit_whole(log)
    first, *others = divergences(audit)
    assert first["reason"] == "draining"
    assert "in all 160 decisions differ" in first["explanation"]
    assert [row["positions"] for row in others] == [
        row["positions"] for row in divergences(audit_whole(stripped(log)))
    ]
    assert audit.doubted == 0


def test_nothing_is_certain_behind_what_is_missing(tmp_path: Path) -> None:
    events = [added(1), flow(1, 1), sent(1, 0), ack(1, 0), flow(1, 9), sent(1, 1), sent(1, 2)]
    lines = numbered(events)
    whole = audit_whole(of(tmp_path / "whole", lines))
    assert divergences(whole) == []
    cut = audit_whole(of(tmp_path / "cut", [line for line in lines if line["seq"] != 5]))
    assert "log_gap" in cut.anomalies["kind"].to_pylist()
    assert divergences(cut) == []
    assert cut.doubted == 2
    without_flow = audit_whole(
        of(tmp_path / "without", numbered([line for line in events if line["kind"] != "flow"]))
    )
    assert [row["positions"] for row in divergences(without_flow)] == [["5:0"]]
    assert without_flow.doubted == 0


@pytest.mark.parametrize("asked", [False, True])
def test_a_permit_that_another_finding_explains_is_not_reported_again(tmp_path: Path, asked: bool) -> None:
    again = [flow(1, 1)] if asked else []
    lines = [
        added(1),
        flow(1, 3),
        sent(1, 0),
        ack(1, 0),
        *again,
        sent(1, 0),
        ack(1, 0),
        sent(1, 1),
        sent(1, 2),
    ]
    audit = audit_whole(of(tmp_path, numbered(lines), entries=3))
    assert "duplicate_after_ack" in audit.anomalies["kind"].to_pylist()
    assert [row["positions"] for row in divergences(audit) if row["positions"] != ["5:0"]] == []


def test_an_entry_that_overtook_one_that_was_left_out_is_not_reported(tmp_path: Path) -> None:
    lines = [added(1), flow(1, 50), sent(1, 0), ack(1, 0), sent(1, 2), ack(1, 2), sent(1, 3), ack(1, 3)]
    audit = audit_whole(of(tmp_path, numbered(lines), entries=4))
    found = audit.anomalies.to_pylist()
    assert [row["positions"] for row in found if row["kind"] == "never_delivered"] == [["5:1"]]
    assert divergences(audit) == []


def test_an_entry_that_was_asked_for_again_is_no_divergence(tmp_path: Path) -> None:
    lines = [added(1), flow(1, 50), sent(1, 0), redeliver(1, 0), sent(1, 0), ack(1, 0)]
    assert divergences(audit_whole(of(tmp_path, numbered(lines), entries=1))) == []
