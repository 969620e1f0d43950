"""Real recordings of a non-persistent topic: the rule decides as the broker did, and the audit counts the broker's drops."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from dispatch_core.broker.non_persistent import DropReason
from dispatch_core.cli.main import main
from tests.wrong_rules.non_persistent import RECORDINGS, decisions, recorded_logs

TYPES = ["Failover", "Key_Shared", "Shared"]


def test_the_rule_decides_every_entry_as_the_broker_did() -> None:
    logs = list(recorded_logs())
    assert sorted(log.header["subscription_type"] for log in logs) == sorted(2 * TYPES)
    reasons: Counter[DropReason | None] = Counter()
    for log in logs:
        for decision in decisions(log):
            assert decision.by_rule.consumer == decision.recorded, (log.recording, log.subscription, decision)
            reasons[decision.by_rule.reason] += 1
    assert reasons[None] > 300
    assert reasons[DropReason.NO_PERMITS] > 300
    assert reasons[DropReason.TOTAL_USED_UP] > 0
    assert reasons.keys() == {None, DropReason.NO_PERMITS, DropReason.TOTAL_USED_UP}


@pytest.mark.parametrize("recording", ["single", "batches"])
def test_the_audit_counts_what_was_dropped(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--json", str(RECORDINGS / "4.2.4" / recording)]) == 0
    *found, verdict = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (verdict["verdict"], {row["kind"] for row in found}) == ("PASS", {"dropped"})
    counted = Counter({row["subscription"]: int(row["explanation"].split()[0]) for row in found})
    by_rule = Counter(
        log.subscription
        for log in recorded_logs()
        if log.recording.endswith(recording)
        for decision in decisions(log)
        if decision.recorded is None
    )
    assert counted == by_rule
    assert sum(counted.values()) == {"single": 340, "batches": 179}[recording]  # as the broker counted them
    assert {row["reason"] for row in found} == {"no_permits"}
    judged = {
        row["subscription"]: row["reason"] for row in verdict["promises"] if row["promise"] == "conformance"
    }
    assert [kind for kind in TYPES if judged[kind].endswith(", uncertain: 0")] == TYPES[:2]
