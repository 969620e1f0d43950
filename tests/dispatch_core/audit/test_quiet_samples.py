"""Samples that find nothing waiting are taken inside the compiled fold: the result is that of samples taken in full."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.audit.waits.sampling import BatchSamples
from dispatch_core.audit.waits.tracker import WaitTracker
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.replay_log import replay
from tests.dispatch_core.logs_without_trace import recorded

DAY, NEXT = datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC)
LOGS = (
    "recordings/4.2.4/designed-rolling-restart-ch",
    "recordings/4.2.4/designed-rolling-restart-classic-ch",
    "recordings/4.2.4/designed-negative-acks-ch",
    "recordings/4.2.4/designed-failover-modulo-p1",
)
#: Every wait of 20 ms is reported one by one; the log is looked at every 10 ms.
SHORT = Limits(**dict.fromkeys(("stuck_key_ms", "stuck_consumer_ms", "stuck_subscription_ms"), 20))


class Samples:
    """Count the samples that are taken in full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.in_full = 0
        sample = WaitTracker.sample

        def counted(tracker: WaitTracker, *arguments: Any, **named: Any) -> None:
            self.in_full += 1
            sample(tracker, *arguments, **named)

        monkeypatch.setattr(WaitTracker, "sample", counted)


def judged(log: DispatcherLog, limits: Limits) -> dict[str, list[dict[str, Any]]]:
    """Return all result rows of a log."""
    tables = replay(log, interval_start=DAY, interval_end=NEXT, limits=limits)
    return {name: table.to_pylist() for name, table in tables.items()}


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, SHORT], ids=["usual", "short"])
@pytest.mark.parametrize("name", LOGS)
def test_what_is_sampled_quietly_is_what_full_samples_find(
    name: str, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = Samples(monkeypatch)
    quiet = judged(recorded(name), limits)
    fewer = samples.in_full
    of_batch = WaitTracker.of_batch

    def in_full(tracker: WaitTracker, *arguments: Any) -> BatchSamples:
        return of_batch(tracker, *arguments)._replace(trial=np.empty(0, np.int64))

    monkeypatch.setattr(WaitTracker, "of_batch", in_full)
    assert judged(recorded(name), limits) == quiet
    assert samples.in_full - fewer > fewer  # many of them found nothing
