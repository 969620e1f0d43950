"""A rolling restart under two rules: the classic dispatcher's 3.x rule loses the order of keys, draining hashes keep it.

Consumers take fewer messages than there are, so entries wait in the replay set when a new consumer takes over their keys.
The read position is behind all of them, so the new consumer gets them although older entries of the key are still
outstanding at the consumer before.
"""

from __future__ import annotations

from typing import Any

from tests.recorder.comparison import audited, stalled_s
from tests.recorder.conftest import LINES, Start
from tests.recorder.scenario import NothingComesError, Scenario
from tests.recorder.test_clients import assert_agrees
from tests.recorder.truth import Truth

_CLASSIC = "subscriptionKeySharedUseClassicPersistentImplementation"


_ATTEMPTS = 3
_SETTINGS: dict[str, Any] = {"hold_ms": 700, "queue": 5, "most_in_hand": 30, "finish": False}


def rolling_restart(scenario: Scenario) -> Truth:
    """Replace consumers one after the other while much is outstanding, which they do not acknowledge."""
    names = [f"w{number}" for number in range(1, 9)]
    for name in names[:3]:
        scenario.join(name, **_SETTINGS)
    producer = scenario.producer()
    scenario.publish(producer, 300)
    for before, name in zip(names, names[3:], strict=False):
        scenario.in_hand(30)
        scenario.join(name, **_SETTINGS)
        scenario.publish(producer, 60)
        scenario.leave(before)
    scenario.drained()
    seen = scenario.end()
    scenario.broker.stop()
    return seen


def assert_stalled(scenario: Scenario) -> None:
    """Assert that the broker stalled, as the raw lines prove, and that the audit does not pass it."""
    scenario.end()
    scenario.broker.stop()
    seconds = stalled_s(scenario.broker.recording)
    assert seconds > 0, "nothing came any more, and the log does not show that the broker stalled"
    audit = audited(scenario.broker.recording)
    assert audit.verdict["verdict"] != "PASS"
    LINES.append(
        f"{scenario.folder.name}: the broker stalled for {seconds:.0f} s / audit {audit.verdict['verdict']}: "
        f"{audit.verdict['counts']}"
    )


def test_classic_rule_loses_the_order(broker: Start) -> None:
    """The dispatcher of this rule may stall for good; then the scenario is tried anew."""
    for attempt in range(1, _ATTEMPTS + 1):
        with Scenario(broker("python-classic", {_CLASSIC: "true"})) as scenario:
            try:
                seen = rolling_restart(scenario)
            except NothingComesError:
                assert_stalled(scenario)
                assert attempt < _ATTEMPTS, f"the broker stalled {_ATTEMPTS} times in a row"
                continue
        assert seen.out_of_order
        assert seen.split_keys
        assert_agrees(scenario.broker.recording, seen, clean=False)
        named = {
            finding["key"]
            for finding in audited(scenario.broker.recording).findings
            if finding["severity"] == "critical"
        }
        assert seen.broken_keys <= named
        return


def test_draining_hashes_keep_it(broker: Start) -> None:
    with Scenario(broker("python-rolling-restart")) as scenario:
        seen = rolling_restart(scenario)
        assert_agrees(scenario.broker.recording, seen)
