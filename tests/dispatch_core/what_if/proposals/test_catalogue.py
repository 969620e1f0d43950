"""Proposals have names, revisions and assumptions; a prediction under one says so, and is never sure."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from dispatch_core.cli.main import main
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import with_overrides
from dispatch_core.what_if.compare import compare
from dispatch_core.what_if.proposals.catalogue import MOST_BUCKETS, PROPOSALS
from dispatch_core.what_if.rules import RECORDED, RuleNameError, named
from tests.dispatch_core.logs_without_trace import DATA, recorded

NACKS = "recordings/4.2.4/designed-negative-acks-ch"


def test_every_proposal_names_its_revision() -> None:
    for name, proposal in PROPOSALS.items():
        assert proposal.name == name
        assert "apache/pulsar" in proposal.revision
        assert proposal.revision in proposal.mark
        assert proposal.assumptions


def test_rules_of_a_proposal_can_be_sent_to_other_processes() -> None:
    for name in PROPOSALS:
        rules = named(f"4.2.4-{name}")
        assert pickle.loads(pickle.dumps(rules)) == rules


@pytest.mark.parametrize(
    "name", ["pip-1", "pip-486-0", f"pip-486-{MOST_BUCKETS + 1}", "x-pip-474", "pip-474-ch"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(RuleNameError, match="pip-474"):
        named(name)


def test_settings_given_take_precedence_over_those_of_a_proposal() -> None:
    limit = "keySharedLookAheadMsgInReplayThresholdPerSubscription"
    assert named("pip-474-replay-queue").settings[limit] == 1_000_000
    assert named("pip-474-replay-queue", None, {limit: 50}).settings[limit] == 50


@pytest.fixture(scope="module")
def log() -> DispatcherLog:
    return recorded(NACKS)


def test_a_prediction_says_that_it_is_of_a_proposal(log: DispatcherLog) -> None:
    rows = {row.rules.name: row for row in compare([log], [RECORDED, named("pip-493")], seeds=1).rows}
    proposed, released = rows["pip-493"], rows[RECORDED.name]
    assert proposed.warnings[0] == PROPOSALS["pip-493"].mark
    assert proposed.confidence is not None
    assert "nothing was recorded under PIP-493" in str(proposed.confidence.not_measured)
    assert set(released.assumptions) < set(proposed.assumptions)
    assert released.confidence is not None
    assert released.confidence.not_measured is None
    assert not any("proposal" in warning for warning in released.warnings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "settings", "name"),
    [
        ("3.0.17", {}, "pip-474"),
        ("4.0.0-preview.1", {}, "pip-493"),
        ("4.2.4", {"subscriptionKeySharedUseClassicPersistentImplementation": True}, "pip-486"),
    ],
)
def test_rules_that_a_proposal_does_not_build_on_are_a_problem(
    log: DispatcherLog, version: str, settings: dict[str, bool], name: str
) -> None:
    (row,) = compare([with_overrides(log, version, {})], [named(name, None, settings)], seeds=1).rows
    assert row.simulated is None
    assert row.problem is not None
    assert f"4.2.4-{name}" in row.problem
    assert row.warnings == ()


def test_a_failover_subscription_has_no_hot_keys() -> None:
    (row,) = compare(
        [recorded("recordings/4.2.4/designed-failover-modulo-p1")], [named("pip-474")], seeds=1
    ).rows
    assert row.problem is not None


def test_json_has_revision_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(DATA / NACKS)
    main(["what-if", "--json", "--seeds", "1", "--rules", "pip-493", "--rules", "pip-486", str(path)])
    nacks, buckets = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert nacks["rules"]["proposal"]["revision"] == PROPOSALS["pip-493"].revision
    assert nacks["rules"]["proposal"]["figures"]["returned entries"] > 0
    assert nacks["simulated"]["blocked_message_s"] is not None
    assert buckets["simulated"]["blocked_message_s"] is None
    assert buckets["simulated"]["balance"]["max_share_ratio"] is None
    assert "blocked_message_s" not in buckets["over_seeds"]
    assert sum(buckets["simulated"]["balance"]["messages"].values()) == buckets["simulated"]["messages"]
