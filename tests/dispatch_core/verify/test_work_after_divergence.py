"""A log under other rules than its own is judged with bounded work, and what was left is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import Overrides
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.tally import SHOWN_CLASSES as SHOWN
from dispatch_core.verify.tally import Finding, Tally
from dispatch_core.verify.trace import races, racing
from dispatch_core.verify.trace.runner import Verification, verify
from dispatch_core.verify.trace.work_after_divergence import AT_FIRST, PER_LINE, PER_ORDER

DATA = Path(__file__).resolve().parents[2] / "data"

RECORDINGS = [
    "recordings/4.2.4/designed-rolling-restart-ch",
    "recordings/4.2.4/designed-rolling-restart-classic-ch",
    "verify/4.2.4/random-0000-range-quiet",
    "verify/4.0.0-preview.1/random-0024-range-quiet",
    "races/4.0.0/random-3012-range-quiet",
    "operations/4.2.4/ops-0004-reset-back-ch",
]
#: Another selector, another release, another ordering rule, other permits.
WRONG = {
    "selector": lambda log: _with(log, "subscriptionKeySharedUseConsistentHashing", lambda value: not value),
    "release 3.0.0": Overrides("3.0.0").of,
    "release 4.0.0": Overrides("4.0.0").of,
    "ordering rule": lambda log: _with(
        log, "subscriptionKeySharedUseClassicPersistentImplementation", lambda value: not value
    ),
    "permits": lambda log: _with(log, "maxUnackedMessagesPerConsumer", lambda _value: 20),
}


def _with(log: DispatcherLog, name: str, change: object) -> DispatcherLog:
    assert callable(change)
    return Overrides(None, {name: change(log.header["config"].get(name))}).of(log)


def read(folder: Path) -> DispatcherLog:
    (source,) = find_recordings([str(folder)])
    (log,) = read_recording(source).logs
    return log


@contextmanager
def counting_orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    tried, restore = [0], racing._Stage.restore

    def counted(stage: racing._Stage) -> None:
        tried[0] += 1
        restore(stage)

    with monkeypatch.context() as patch:
        patch.setattr(racing._Stage, "restore", counted)
        yield tried


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recording", RECORDINGS)
def test_the_orders_tried_are_bounded(recording: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = read(DATA / recording)
    with counting_orders(monkeypatch) as tried:
        right = verify(log).tally
        of_right, found = tried[0], 0
        for change in WRONG.values():
            tried[0] = 0
            wrong = verify(change(log)).tally
            # Each window is decided in the plain order once, or twice; the first search has no bound of its own.
            windows = 2 * of_right + 2 * wrong.rounds
            by_work = (AT_FIRST + PER_LINE * log.events.num_rows) // PER_ORDER
            assert tried[0] <= windows + races.MAX_ORDERS + by_work + 1
            assert wrong.total("decisions") == right.total("decisions")
            assert wrong.total("divergent") <= wrong.total("decisions")
            found += wrong.total("divergent") > 0
    assert right.total("divergent") == 0
    assert right.not_judged == {}
    assert found >= 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_wrong_rule_takes_at_most_three_times_as_long(recording: str) -> None:
    """Processor time, in one of three runs: the machine may be busy."""
    log = read(DATA / recording)
    verify(log)
    right = min(seconds(log) for _ in range(3))
    for name, change in WRONG.items():
        wrong = change(log)
        # The first search of a log has no bound but the number of orders.
        assert any(seconds(wrong) <= 3 * right + 0.05 for _ in range(3)), name


def seconds(log: DispatcherLog) -> float:
    began = time.process_time()
    verify(log)
    return time.process_time() - began


def stopped() -> Verification:
    return verify(WRONG["release 3.0.0"](read(DATA / RECORDINGS[0])))


def test_what_was_not_judged_is_counted_with_the_reason() -> None:
    found = stopped()
    first = next(f for f in found.tally.findings if f.status == "divergent" and f.decision_class not in SHOWN)
    ((reason, counts),) = found.as_json()["decisions_not_judged"].items()
    assert f"since the divergence at seq {first.seq}" in reason
    tally = found.tally
    judged = sum(tally.total(what) for what in ("exact", "uncertain", "divergent"))
    assert sum(counts.values()) == tally.total("decisions") - tally.compared() > 0
    assert judged >= tally.compared()


def test_divergences_without_a_line_do_not_outnumber_decisions() -> None:
    tally = Tally()
    for seq in range(5):
        tally.differ(Finding(seq, 0, "read", "divergent", "a read", "nothing"), 0)
        tally.differ(Finding(seq, 0, "draining", "divergent", "a release", "nothing"), 0)
    tally._formula["read"] = 1
    tally.close()
    assert tally.total("decisions") == 1
    assert tally.total("divergent") == 1
    assert len(tally.findings) == 10
