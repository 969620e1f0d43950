"""Shared subscriptions in what-if: as recorded under the recorded rules, and without a promise of an order."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.what_if.compare import NO_ORDER, Row, rows_of
from dispatch_core.what_if.rules import RECORDED, RuleSet, matrix_for, named, with_priorities
from dispatch_core.what_if.tell import sentence, sure_cell
from tests.dispatch_core.logs_without_trace import DATA
from tests.dispatch_core.simulation.simulated import simulated

RECORDED_BY_BROKERS = sorted((DATA / "operations").glob("*/shared-*"))
KEY_SHARED = DATA / "recordings" / "4.2.4" / "designed-rolling-restart-classic-ch"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> DispatcherLog:
    """Return a log in which a consumer of four is slow and all have short queues."""
    folder = tmp_path_factory.mktemp("shared")
    return simulated(
        folder, subscription_type="Shared", slow_consumers=1, queue=10, nack_share=0.02, churn="scale"
    )


def log_of(folder: Path) -> DispatcherLog:
    (source,) = find_recordings([str(folder)])
    (recorded,) = read_recording(source).logs
    return recorded


def predicted(log: DispatcherLog, rules: RuleSet, seeds: int = 2) -> Row:
    (row,) = rows_of(log, [rules], seeds=range(seeds))
    assert row.problem is None
    return row


@pytest.mark.sampled(2)
@pytest.mark.parametrize("folder", RECORDED_BY_BROKERS, ids=lambda folder: folder.name)
def test_under_the_recorded_rules_it_is_as_recorded(folder: Path) -> None:
    row = predicted(log_of(folder), RECORDED, seeds=1)
    assert row.recorded is not None
    assert row.simulated is not None
    assert (row.same_first_consumer or 0) >= 0.98
    assert row.simulated.redelivered == pytest.approx(row.recorded.redelivered, abs=3)
    assert row.simulated.never_sent == row.recorded.never_sent


@pytest.mark.slow
def test_of_its_order_nothing_is_predicted(log: DispatcherLog) -> None:
    row = predicted(log, named("classic-shared"))
    assert row.not_measured == NO_ORDER
    assert row.confidence is not None
    assert sure_cell(row.confidence.as_json()) == "-"
    assert sentence(row).startswith(f"classic-shared: {NO_ORDER}; half of the messages would wait ")


def test_the_size_of_turns_changes_who_gets_what(tmp_path: Path) -> None:
    """All is there at once: turns of 20 entries."""
    log = simulated(tmp_path, subscription_type="Shared", rate=1_000_000, queue=1000)
    assert (predicted(log, RECORDED).same_first_consumer or 0) >= 0.9
    row = predicted(log, RuleSet("turns of one", None, {"dispatcherMaxRoundRobinBatchSize": 1}))
    assert (row.same_first_consumer or 0) < 0.5


@pytest.mark.slow
def test_priority_levels_count(log: DispatcherLog) -> None:
    row = predicted(log, with_priorities(RECORDED, {"consumer-1": 0, "*": 1}))
    assert row.simulated is not None
    assert row.recorded is not None
    before, after = (measured.messages_of["consumer-1"] for measured in (row.recorded, row.simulated))
    assert after > before
    assert not [text for text in row.warnings if "priority" in text]


@pytest.mark.slow
def test_key_shared_would_keep_the_order(log: DispatcherLog) -> None:
    row = predicted(log, named("ch"))
    assert "4.2.4 sticky key" in row.profile
    assert "would keep the order of each key, which Shared does not promise" in sentence(row)


def test_the_matrix_has_the_rules_of_shared(log: DispatcherLog) -> None:
    names = [rules.name for rules in matrix_for(log, None, {})]
    assert names == [
        "4.2.4-shared",
        "4.2.4-classic-shared",
        "3.0.17-shared",
        "4.0.0-preview.1-shared",
        "5.0.1-shared",
    ]


@pytest.mark.slow
def test_key_shared_does_not_become_shared() -> None:
    (row,) = rows_of(log_of(KEY_SHARED), [named("shared")], seeds=range(1))
    assert row.problem is not None
    assert (
        "a Shared subscription promises no order, so a Key_Shared one is not simulated as one" in row.problem
    )
