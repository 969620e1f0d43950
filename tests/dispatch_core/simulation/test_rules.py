"""Simulated logs keep their rules: ``verify`` finds every decision exact, under every rule and any churn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.simulation import dispatcher_run, publishing, tables
from dispatch_core.simulation.generate import generate
from dispatch_core.verify.tally import Finding, Tally
from dispatch_core.verify.trace.runner import verify
from dispatch_core.verify.trace.shown_positions import READ_MOVES_BEFORE_US
from tests.dispatch_core.simulation.simulated import CLASSIC, RING, logs, simulated, small

RULES: dict[str, dict[str, Any]] = {
    "draining hashes, ring": {},
    "draining hashes, ranges": {"settings": {RING: False}},
    "draining hashes, 4.0.0": {"broker_version": "4.0.0"},
    "trimming attempts, 4.2.0": {"broker_version": "4.2.0"},
    "classic of 4.x": {"settings": {CLASSIC: True}},
    "read position, 3.0.0": {"broker_version": "3.0.0", "settings": {RING: False}},
    "read position, 3.3.9": {"broker_version": "3.3.9"},
    "last sent position": {"broker_version": "4.0.0-preview.1"},
    "sticky": {"key_shared_mode": "STICKY"},
    "out of order": {"allow_out_of_order": True},
    "failover": {"subscription_type": "Failover", "settings": {"activeConsumerFailoverDelayTimeMillis": 50}},
    "failover at once": {
        "subscription_type": "Failover",
        "settings": {"activeConsumerFailoverDelayTimeMillis": 0},
    },
}
LOADS: dict[str, dict[str, Any]] = {
    "rolling restart, crashes, negative acks": {
        "churn": "rolling-restart",
        "crashing_consumers": 2,
        "nack_share": 0.02,
    },
    "random, slow, tight limits": {
        "churn": "random",
        "slow_consumers": 2,
        "limits": {
            "maxUnackedMessagesPerConsumer": 20,
            "maxUnackedMessagesPerSubscription": 60,
            "keySharedLookAheadMsgInReplayThresholdPerConsumer": 15,
            "dispatcherMaxReadBatchSize": 10,
        },
    },
    "everybody leaves": {"churn": "rolling-restart", "consumers": 1, "membership_changes": 6},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_every_decision_is_exact(rule: dict[str, Any], load: dict[str, Any], tmp_path: Path) -> None:
    """Check that no decision is divergent or uncertain, and that no line is impossible."""
    wanted = {**rule, **load, "trace": True}
    wanted["settings"] = {**rule.get("settings", {}), **wanted.pop("limits", {})}
    log = simulated(tmp_path, **wanted)
    result = verify(log)
    assert result.not_judged is None
    assert not result.log_findings
    tally = result.tally
    assert unsure(tally, log) == [], tally.findings[:3]
    assert tally.total("exact") >= 600  # each message is dispatched once at least


def unsure(tally: Tally, log: DispatcherLog) -> list[Finding]:
    """Return the findings that are not to be there.

    A read of the simulation moves the read position when it is done; with brokers it does so some moments before. So a read
    position that a line shows in these moments is uncertain, and the finding names the end of that read.
    """
    return [
        finding
        for finding in tally.findings
        if finding.status == "divergent"
        or finding.decision_class != "position"
        or not is_end_of_read(log, finding)
    ]


def is_end_of_read(log: DispatcherLog, finding: Finding) -> bool:
    """Check whether what overlaps the finding's line is the end of a read in the moments behind it."""
    racing = log.events.filter(pc.equal(log.events["seq"], finding.racing_seq)).to_pylist()
    return [
        line["kind"] == "read_done" and 0 <= line["t_us"] - finding.t_us <= READ_MOVES_BEFORE_US
        for line in racing
    ] == [True]


def test_positions_cross_ledgers_and_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ledgers and a log in short batches: entries are dropped and added while others are under way."""
    monkeypatch.setattr(tables, "LEDGER_ENTRIES", 70)
    monkeypatch.setattr(publishing, "BATCH_MESSAGES", 130)
    for rule in ("draining hashes, ring", "classic of 4.x", "last sent position", "failover"):
        folder = tmp_path / rule.replace(" ", "-")
        log = simulated(folder, churn="rolling-restart", crashing_consumers=1, trace=True, **RULES[rule])
        assert len(pc.unique(log.messages["ledger_id"])) == 9
        tally = verify(log).tally
        assert unsure(tally, log) == [], (rule, tally.findings[:3])
        assert tally.total("exact") >= 600


def test_how_many_lines_are_passed_on_at_once_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Return the same lines in many small batches."""
    whole = simulated(tmp_path / "whole", churn="random", slow_consumers=1)
    monkeypatch.setattr(dispatcher_run, "LINES", 50)
    small = simulated(tmp_path / "small", churn="random", slow_consumers=1)
    assert small.events.drop(["source_file"]).equals(whole.events.drop(["source_file"]))


def test_many_dispatchers_in_one_file(tmp_path: Path) -> None:
    """Each line belongs to the right dispatcher, in Parquet and in JSON lines."""
    for form in ("parquet", "jsonl"):
        scenario = small(dispatchers=3, messages=301, trace=True, churn="rolling-restart")
        made = list(generate(scenario, tmp_path / form, form=form, dispatchers_per_file=2))
        found = logs(tmp_path / form)
        assert [log.topic for log in found] == [dispatcher.topic for dispatcher in made]
        assert [len(log.messages) for log in found] == [101, 100, 100]
        assert len(list((tmp_path / form).iterdir())) == 2
        assert all(verify(log).tally.total("divergent") == 0 for log in found)
