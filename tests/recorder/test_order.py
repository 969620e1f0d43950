"""One life under two rules: the 3.x rule of the classic dispatcher loses the order of keys, and draining hashes keep it.

Consumers have less room than there is work, so entries wait in the replay set when a newcomer takes over their keys. The
read position is behind them all, so they go to the newcomer although the consumer before still holds older ones of the key.
"""

from __future__ import annotations

from typing import Any

from tests.recorder.comparison import audited
from tests.recorder.conftest import Start
from tests.recorder.life import Life
from tests.recorder.test_clients import assert_agrees
from tests.recorder.truth import Truth

_CLASSIC = "subscriptionKeySharedUseClassicPersistentImplementation"


_TERMS: dict[str, Any] = {"hold_ms": 700, "queue": 5, "most_in_hand": 30, "finish": False}


def rolling_restart(life: Life) -> Truth:
    """Consumers with much in hand are replaced, one after the other, and take nothing to its end."""
    names = [f"w{number}" for number in range(1, 9)]
    for name in names[:3]:
        life.join(name, **_TERMS)
    producer = life.producer()
    life.publish(producer, 300)
    for before, name in zip(names, names[3:], strict=False):
        life.in_hand(30)
        life.join(name, **_TERMS)
        life.publish(producer, 60)
        life.leave(before)
    life.drained()
    seen = life.end()
    life.broker.stop()
    return seen


def test_classic_rule_loses_the_order(broker: Start) -> None:
    with Life(broker("python-classic", {_CLASSIC: "true"})) as life:
        seen = rolling_restart(life)
        assert seen.out_of_order
        assert seen.split_keys
        assert_agrees(life.broker.recording, seen, clean=False)
        named = {
            one["key"] for one in audited(life.broker.recording).findings if one["severity"] == "critical"
        }
        assert seen.broken_keys <= named


def test_draining_hashes_keep_it(broker: Start) -> None:
    with Life(broker("python-rolling-restart")) as life:
        seen = rolling_restart(life)
        assert_agrees(life.broker.recording, seen)
