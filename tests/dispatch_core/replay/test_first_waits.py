"""Waits before the first delivery of Failover and Exclusive, in batches and over the whole log."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.recording import stream, table_rows
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from tests.dispatch_core.audit.small_logs import (
    MIDNIGHT,
    T0_US,
    Event,
    added,
    flow,
    message,
    numbered,
    read,
    removed,
    sent,
    write,
)
from tests.dispatch_core.replay.test_log_files import gathered, written

SPAN: dict[str, Any] = {"interval_start": MIDNIGHT, "interval_end": MIDNIGHT + timedelta(days=1)}


def at(seconds: float, event: Event) -> Event:
    return event | {"t_us": T0_US + int(seconds * 1_000_000)}


NOTICE = at(2.01, {"kind": "active_notified", "consumer": 1, "active": 1})
#: Nobody is there from 2 s to 14 s, then the consumer asks for nothing until 40 s.
LINES = [
    *(at(0, added(1)), at(1, flow(1, 10)), at(2, removed(1)), at(14, added(2)), at(15, added(3))),
    *(at(16, removed(3)), at(40, flow(2, 1)), at(40.01, flow(2, 9)), at(40.02, sent(2, 0, 1, 2))),
]

#: Nobody is there from 2 s to 30 s. The notice that was on its way changes nothing.
NOBODY = [
    *(at(0, added(1)), at(1, flow(1, 10)), at(2, removed(1)), NOTICE, at(30, added(2)), at(31, flow(2, 10))),
    at(31.01, sent(2, 0, 1, 2)),
]


@pytest.mark.parametrize(
    ("lines", "gate"), [(LINES, "no_permits"), (NOBODY, "no_consumer")], ids=["asks for nothing", "nobody"]
)
@pytest.mark.parametrize(
    ("is_sent", "rows"), [(True, 1), (True, 2), (True, 3), (True, 50), (False, 3), (False, 50)]
)
@pytest.mark.parametrize("subscription_type", ["Failover", "Exclusive"])
def test_gates_before_the_first_delivery(
    subscription_type: str,
    is_sent: bool,
    rows: int,
    lines: list[Event],
    gate: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if subscription_type == "Exclusive":
        lines = [line for line in lines if line["consumer"] != 3]
    stored = [message(entry, "k", publish_time_ms=T0_US // 1000 + 500) for entry in range(3)]
    lines = numbered(lines if is_sent else lines[:-1])
    log = read(write(tmp_path / "a", stored, lines, subscription_type=subscription_type))
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    in_batches = gathered(replay_files(written(log, tmp_path, row_group_rows=10), to_last_line=True, **SPAN))
    whole = replay(log, to_last_line=True, **SPAN)
    for table in REPLAY_TABLES:
        assert in_batches[table] == whole[table].to_pylist(), table
    (reason,) = {row["reason"] for row in in_batches["blocked"] if row["messages"] == 3}
    assert reason == gate
