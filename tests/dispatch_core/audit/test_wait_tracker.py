"""Sampled waits: conditions that hold for any number of samples, and of waits that are listed one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits import tracker
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.replay_log import replay
from tests.dispatch_core.logs_without_trace import recorded

START, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
LOGS = [
    "recordings/4.2.4/designed-rolling-restart-ch",
    "recordings/4.2.4/designed-rolling-restart-classic-ch",
    "recordings/4.2.4/designed-failover-modulo-p1",
    "verify/4.0.0-preview.1/random-0024-range-quiet",
]


def waits(log: DispatcherLog, *, tick_us: int | None = None, limit_ms: int = 100) -> list[SampledWait]:
    found: list[SampledWait] = []
    limits = Limits(stuck_key_ms=limit_ms, stuck_consumer_ms=limit_ms, stuck_subscription_ms=limit_ms)
    replay(
        log,
        interval_start=START,
        interval_end=END,
        closed=True,
        limits=limits,
        reported_waits=found,
        tick_us=tick_us,
    )
    return found


@pytest.mark.parametrize("name", LOGS)
def test_a_wait_is_the_sum_of_its_reasons(name: str) -> None:
    found = [wait for wait in waits(recorded(name), tick_us=0) if wait.first_position is not None]
    assert len(found) > 3
    for wait in found:
        if wait.until_t_us is not None:
            assert wait.waited_us == wait.until_t_us - wait.from_t_us
            assert wait.until_seq is not None
            assert wait.until_seq > wait.from_seq
        assert wait.shares[0][0] == wait.reason
        assert wait.positions[0] == wait.first_position
        assert 1 <= wait.entries <= wait.messages
        assert wait.waited_us <= wait.message_us
        assert 0 <= wait.needless_us <= wait.message_us
        assert wait.holder_pending >= len(wait.holder_positions)


@pytest.mark.parametrize("name", LOGS)
def test_sums_do_not_depend_on_the_number_of_listed_waits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = recorded(name)

    def sums() -> tuple[int, dict[tuple[str | None, int | None], int]]:
        found = waits(log, limit_ms=1_000)
        total: Counter[tuple[str | None, int | None]] = Counter()
        for wait in found:
            if wait.reason is not None:
                total[wait.reason, wait.waiting] += wait.message_us
        return len(found), dict(total)

    listed, all_of_them = sums()
    monkeypatch.setattr(tracker, "SHORT_WAITS", 0)
    fewer, the_same = sums()
    assert fewer <= listed
    assert the_same == all_of_them


@pytest.mark.parametrize("name", [LOGS[0], LOGS[1], LOGS[3]])
def test_looking_less_often_finds_the_same_long_waits(name: str) -> None:
    """An entry that waited long is seen waiting for the same reason; two waits with a moment between them may become one."""
    log = recorded(name)
    exact, coarse = waits(log, tick_us=0), waits(log, tick_us=20_000)
    for found, others in ((exact, coarse), (coarse, exact)):
        reasons = {
            (wait.first_position, reason)
            for wait in others
            for reason, lasted_us in wait.shares
            if lasted_us >= 100_000
        }
        long_ones = [wait for wait in found if wait.first_position is not None and wait.waited_us >= 300_000]
        assert {(wait.first_position, wait.reason) for wait in long_ones} <= reasons
        assert long_ones


def test_a_clock_that_goes_back_adds_no_time() -> None:
    log = recorded(LOGS[0])
    times = log.events["t_us"].to_pylist()
    middle = len(times) // 2
    stepped = [t_us - 3_600_000_000 if at >= middle else t_us for at, t_us in enumerate(times)]
    events = log.events.set_column(
        log.events.column_names.index("t_us"), log.events.schema.field("t_us"), pa.array(stepped)
    )
    found = waits(replace(log, events=events))
    assert sum(wait.message_us for wait in found) <= sum(wait.message_us for wait in waits(log))
    assert all(us >= 0 for wait in found for _, us in wait.shares)


def test_the_same_log_gives_the_same_waits() -> None:
    log = recorded(LOGS[0])
    assert waits(log) == waits(log)
