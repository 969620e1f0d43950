"""Sums over an interval are the same, however its deliveries are cut into batches."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatch_core.audit.limits import Limits
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.interval_totals import IntervalTotals, changes_in, with_totals
from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.audit.small_logs import added, message, numbered, read, removed, sent, write

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "4.2.4"
DAY = datetime(2026, 11, 21, tzinfo=UTC)
#: Low enough that a small log is judged, and that some of what it holds is too much.
LOW = Limits(min_messages=20, min_keys_per_consumer=1, share_ratio=1.1, hot_key_share=0.02)


def made_up(folder: Path) -> DispatcherLog:
    """One consumer is alone for a third of the messages, two join, one of them leaves and comes back."""
    stored = [message(n, "hot" if n % 3 == 0 else None if n % 7 == 0 else f"k{n}") for n in range(600)]
    events = [
        added(1),
        *(sent(1, n) for n in range(200)),
        *(added(n) for n in (2, 3)),
        *(sent(1 + n % 3, n) for n in range(200, 400)),
        removed(3),
        added(4, "worker-3"),
        *(sent((1, 2, 4)[n % 3], n) for n in range(400, 600)),
        # by time this outweighs all the rest
        {**removed(2), "t_us": 1_795_900_000_000_000},
    ]
    return read(write(folder / "a" / "b", stored, numbered(events), format="pulsar-consumer-events"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("name", [*sorted(path.name for path in RECORDINGS.iterdir()), "made up"])
def test_batches_give_what_the_whole_log_gives(tmp_path: Path, name: str, rows: int) -> None:
    if name == "made up":
        log = made_up(tmp_path)
    else:
        (log,) = read_recording(find_recordings([str(RECORDINGS / name)])[0]).logs
    audit = audit_whole(log, limits=LOW)
    tables = {"deliveries": audit.deliveries, "ownership": audit.ownership, "blocked": audit.blocked}
    whole = with_totals(log, tables | {"anomalies": audit.anomalies.slice(0, 0)}, DAY, LOW, never_delivered=2)
    totals = IntervalTotals(log, DAY, LOW)
    changes = changes_in(audit.ownership)
    for start in range(0, audit.deliveries.num_rows, rows):
        batch = audit.deliveries.slice(start, rows)
        known = changes[changes <= batch["seq"][-1].as_py()]
        totals.add(batch, known)
    found = totals.finish(audit.ownership, audit.blocked, 2)
    for table in ("balance", "waits"):
        assert found[table].to_pylist() == whole[table].to_pylist()
    assert found["anomalies"].to_pylist() == whole["anomalies"].to_pylist()
    assert found["anomalies"].num_rows or "failover" in name
