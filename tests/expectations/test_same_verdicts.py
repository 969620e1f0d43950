"""The pipeline and ``dispatch-audit audit`` give the same verdicts on the same logs by the same policy file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_expectations import pipeline_command
from dispatch_expectations.moment import without_moment
from dispatch_expectations.policy import load_policy
from dispatch_expectations.validate import validate_interval
from spark_jobs.aggregates.aggregate_interval import aggregate
from spark_jobs.ingest.ingest_interval import ingest
from spark_jobs.intervals import interval
from spark_jobs.one_process import one_process
from spark_jobs.pull.pull_logs import pull
from spark_jobs.replay.replay_interval import replay
from tests.json_lines import valid_lines

RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings" / "4.2.4"
DAY = interval("2026-11-21")
NAMES = ("designed-negative-acks-ch", "designed-failover-modulo-p1", "designed-rolling-restart-classic-ch")
#: Limits of causes and of hand-overs, a least number, waits; one of two broken limits of the classic dispatcher is lifted.
POLICY = """
version: 1
defaults:
  completeness: {wait_ms_max: 200}
rules:
  - name: nacks
    topics: "*negative-acks*"
    duplicate_delivery: {redelivered_nack: 3}
    per_key_order: {overtaken_redelivery: 0}
  - name: classic
    topics: "*classic*"
    per_key_order: {out_of_order: any, split_key: 39}
    balance: {min_messages: 100, min_keys_per_consumer: 1, max_share_ratio: 1.1}
    completeness: {stuck_key_ms: 1, ack_hole_ms: 50}
  - name: failover
    topics: "*failover*"
    subscriptions: aud?t
    per_key_order: {handover: 0}
    completeness: {wait_ms_p99: 1}
"""
Verdicts = dict[tuple[str, str], tuple[Any, ...]]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(POLICY)
    return path


def of_pipeline(root: Path, policy: Path) -> Verdicts:
    rules, warehouse = load_policy(policy), root / "warehouse"
    pull([RECORDINGS / name for name in NAMES], root / "landing", DAY.start)
    ingest(one_process(), root / "landing", warehouse, DAY)
    replay(one_process(), warehouse, DAY, limits=rules.limit_rules())
    aggregate(warehouse, DAY, limits=rules.limit_rules())
    verdicts = validate_interval(warehouse, DAY.start, root / "data-docs", rules)
    valid_lines("pipeline", "\n".join(pipeline_command._as_json(verdicts)))
    return {
        (verdict.topic, verdict.promise): (
            verdict.verdict,
            verdict.findings,
            verdict.tolerated,
            without_moment(verdict.reason).partition("; assumed absent: ")[0],
        )
        for verdict in verdicts
        if verdict.promise != "all"
    }


def of_command_line(policy: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Verdicts]:
    code = main(["audit", "--json", "--policy", str(policy), *(str(RECORDINGS / name) for name in NAMES)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {
        (promise["topic"], promise["promise"]): (
            promise["verdict"],
            promise["findings"],
            promise["tolerated"],
            promise["reason"].partition("; assumed absent: ")[0],
        )
        for line in lines
        for promise in line.get("promises", ())
    }


def test_the_same_policy_gives_the_same_verdicts(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = of_pipeline(tmp_path, policy)
    capsys.readouterr()
    code, found = of_command_line(policy, capsys)
    assert found == expected
    assert code == 1
    failed = {
        (topic.partition("rec-")[2], promise) for (topic, promise), said in found.items() if said[0] == "FAIL"
    }
    assert failed >= {
        ("designed-negative-acks-ch-5", "duplicate_delivery"),
        ("designed-negative-acks-ch-5", "per_key_order"),
        ("designed-failover-modulo-p1-53-partition-1", "per_key_order"),
        ("designed-failover-modulo-p1-53-partition-1", "completeness"),
        ("designed-rolling-restart-classic-ch-10", "balance"),
        ("designed-rolling-restart-classic-ch-10", "completeness"),
    }
