"""Waiting, lost and unacknowledged entries: a log without its trace must show what the trace shows, on every recording.

Limits are lowered to 100 ms, so that real recordings have stalls. A wait is the same on both levels if it is of the same
hash, overlaps in time and has the same leading reason; where the log without a trace calls it uncertain it is not the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import pytest

from dispatch_core.audit.catalogue import NO_READ
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.replay_log import replay
from tests.sample import WHOLE, some

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"
START, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
LOWERED = Limits(stuck_key_ms=100, stuck_consumer_ms=100, stuck_subscription_ms=100)
STALLS = ("stuck_key", "stuck_consumer", "stuck_subscription")
LOSSES = ("never_delivered", "ack_hole")
#: Recordings in which work waits longer than the default limits, or still waits at the end, and why: all others have none.
WAITING = {
    # nobody owned part of the ranges (STICKY)
    "random-0037-sticky-racing": {"uncovered_range"},
    "4.2.4/random-0051-sticky-racing": {"uncovered_range"},
    # 4.0.0 counts pending messages that are not there: the hashes drain for ever (#24736)
    "4.0.0/designed-away-and-back-": {"draining_hash"},
    "4.0.0/random-0011-range-racing": {"draining_hash"},
    "4.0.0/random-0019-range-racing": {"draining_hash"},
    # consumers that gave no permits, or too few, for ten seconds and more
    "designed-zero-permits-lookahead-": {"no_permits", "look_ahead_limit"},
    "random-0021-": {"no_permits", "look_ahead_limit", "draining_hash"},
    "random-0040-": {"no_permits", "last_sent_position", "draining_hash", "look_ahead_limit"},
    "4.0.0-preview.1/random-0048-range-quiet": {"last_sent_position", "look_ahead_limit"},
    # a normal read waited for new messages while others waited to be sent again
    "4.2.4/random-0069-classic-range-racing": {"no_read"},
}

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]

Agreed = Counter[tuple[str, bool]]  # reason, whether both levels say it → waits
Findings = set[tuple[str, str | None, str | None, tuple[str, ...]]]


def waits_of(log: DispatcherLog, *, without_trace: bool) -> list[SampledWait]:
    """Waits of 100 ms and more."""
    waits: list[SampledWait] = []
    replay(
        log,
        interval_start=START,
        interval_end=END,
        closed=True,
        limits=LOWERED,
        without_trace=without_trace,
        reported_waits=waits,
    )
    return [wait for wait in waits if wait.first_position is not None]


def agreed(traced: list[SampledWait], without: list[SampledWait]) -> Agreed:
    """Count the waits of the trace by reason, and by whether the log without a trace has them with that reason."""
    by_hash = defaultdict(list)
    for wait in without:
        by_hash[wait.hash].append(wait)
    found: Agreed = Counter()
    for wait in traced:
        # ``no_read`` is no rule. Without a trace it is named only where no limit that a policy sets could hold the work.
        if wait.reason in (None, NO_READ) or wait.waited_us < 1000 * LOWERED.stuck_key_ms:
            continue
        nearest = max(by_hash[wait.hash], key=lambda other: overlap(wait, other), default=None)
        same = (
            nearest is not None
            and overlap(wait, nearest) > 0
            and nearest.reason == wait.reason
            and not nearest.uncertain
        )
        found[wait.reason, same] += 1
    return found


def overlap(wait: SampledWait, other: SampledWait) -> int:
    """Microseconds in which both waited."""
    ends = [end for end in (wait.until_t_us, other.until_t_us) if end is not None]
    return min(ends, default=1 << 62) - max(wait.from_t_us, other.from_t_us)


def findings_of(log: DispatcherLog, *, without_trace: bool) -> Findings:
    """Findings of stalls and losses under the default limits; of stalls, whose and why."""
    tables = replay(log, interval_start=START, interval_end=END, closed=True, without_trace=without_trace)
    found: Findings = set()
    for row in tables["anomalies"].to_pylist():
        if row["kind"] in LOSSES:
            found.add((row["kind"], row["reason"], row["key"], tuple(row["positions"])))
        elif row["kind"] in STALLS:
            whose = row["hash"] if row["kind"] == "stuck_key" else None
            found.add((row["kind"], row["reason"], str(whose), ()))
    return found


def compared(folder: str) -> tuple[str, Agreed, Findings, Findings]:
    recording = read_recording(find_recordings([folder])[0])
    log = recording.logs[0]
    waits = agreed(waits_of(log, without_trace=False), waits_of(log, without_trace=True))
    return recording.name, waits, findings_of(log, without_trace=False), findings_of(log, without_trace=True)


@pytest.fixture(scope="module")
def everything() -> list[tuple[str, Agreed, Findings, Findings]]:
    folders = [str(source.folder) for source in find_recordings([RECORDINGS])]
    folders = [folder for folder in folders if "large-" not in folder]
    waiting = [folder for folder in folders if any(part in folder for part in WAITING)]
    folders = sorted({*some(folders, 8), *waiting})
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:
        return list(workers.map(compared, folders, chunksize=8))


def test_both_levels_give_the_same_reason_for_nine_waits_in_ten(
    everything: list[tuple[str, Agreed, Findings, Findings]],
) -> None:
    total: Agreed = Counter()
    for _, waits, _, _ in everything:
        total.update(waits)
    reasons = {reason for reason, _ in total}
    assert len(reasons) >= (10 if WHOLE else 9)
    shares = {
        reason: total[reason, True] / (total[reason, True] + total[reason, False]) for reason in reasons
    }
    assert sum(total.values()) > (10_000 if WHOLE else 1500)
    enough = {
        reason for reason in reasons if total[reason, True] + total[reason, False] >= (1 if WHOLE else 30)
    }
    assert {reason: shares[reason] for reason in enough if shares[reason] < 0.9} == {}


def test_only_recordings_in_which_work_really_waits_have_stalls(
    everything: list[tuple[str, Agreed, Findings, Findings]],
) -> None:
    unexpected = []
    for name, _, traced, without in everything:
        known = [reasons for part, reasons in WAITING.items() if part in name]
        allowed = set().union(*known)
        for kind, reason, *_ in traced | without:
            if kind in STALLS and reason not in allowed:
                unexpected.append((name, kind, reason))
    assert unexpected == []


def test_nothing_is_lost_in_real_recordings_and_both_levels_see_the_same_holes(
    everything: list[tuple[str, Agreed, Findings, Findings]],
) -> None:
    holes = 0
    for name, _, traced, without in everything:
        lost = [
            {finding for finding in found if finding[0] == "never_delivered"} for found in (traced, without)
        ]
        assert lost == [set(), set()], name
        seen = [{finding for finding in found if finding[0] == "ack_hole"} for found in (traced, without)]
        assert seen[0] == seen[1], name
        holes += len(seen[0])
    assert holes > 0


def test_stalls_without_a_trace_are_in_the_trace(
    everything: list[tuple[str, Agreed, Findings, Findings]],
) -> None:
    traced = {
        (name, *finding) for name, _, found, _ in everything for finding in found if finding[0] in STALLS
    }
    alone = {
        (name, *finding) for name, _, _, found in everything for finding in found if finding[0] in STALLS
    }
    assert len(alone & traced) >= 0.9 * len(traced)
    assert len(alone - traced) <= 0.02 * len(alone)
