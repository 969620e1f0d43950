"""Waits of entries against numpy's percentiles, in memory and through a file."""

from __future__ import annotations

import tempfile
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from dispatch_core.audit.entry_waits import EntryWaits
from dispatch_core.tables import BLOCKED, DELIVERIES
from tests.dispatch_core.audit.table_rows import empty_row, table

T0 = 1_795_219_200_000_000


@pytest.mark.parametrize("in_memory", [10, 1_000_000])
@pytest.mark.parametrize("entries", [0, 1, 2, 35, 700])
def test_waits_are_exact(entries: int, in_memory: int) -> None:
    """Over waits of all sizes and signs; repeated deliveries and unknown times of publishing have no wait."""
    random = Random(entries)
    rows = []
    for _ in range(entries):
        wait_us = random.choice([-1, 1]) * random.randrange(1 << random.randrange(1, 40))
        published = T0 // 1000 if random.random() < 0.9 or entries < 3 else None
        rows.append({"t_us": T0 + wait_us, "publish_time_ms": published, "delivery_number": 1})
        if random.random() < 0.2:
            rows.append({**rows[-1], "delivery_number": 2, "t_us": T0 + (1 << 50)})
    waits = EntryWaits(tempfile.TemporaryFile, in_memory=in_memory)
    for start in range(0, len(rows), 9):
        waits.add(table(DELIVERIES, rows[start : start + 9]))
    blocked = table(BLOCKED, [{"message_ms": 40, "needless_ms": 15}] * 2)
    identity = {
        name: empty_row(DELIVERIES)[name] for name in ("cluster", "topic", "subscription", "incarnation")
    }
    (row,) = waits.row(identity | {"interval_start": 0}, blocked, never_delivered=3).to_pylist()
    assert (row["entries"], row["never_delivered"]) == (entries, 3)
    assert (row["blocked_message_ms"], row["needless_message_ms"]) == (80, 30)
    measured = [
        (delivery["t_us"] - T0) / 1000
        for delivery in rows
        if delivery["delivery_number"] == 1 and delivery["publish_time_ms"] is not None
    ]
    figures = [row[name] for name in ("wait_ms_p50", "wait_ms_p99", "wait_ms_max")]
    if measured:
        expected = [*np.percentile(measured, [50, 99]).tolist(), max(measured)]
        assert figures == pytest.approx(expected, rel=1e-12)
    else:
        assert figures == [None, None, None]


def test_many_equal_waits_need_no_sorting() -> None:
    rows = pa.table(
        {"delivery_number": [1] * 100, "publish_time_ms": [0] * 100, "t_us": [5000] * 99 + [7000]}
    )
    waits = EntryWaits(tempfile.TemporaryFile, in_memory=10)
    waits.add(rows)
    assert waits.percentiles_us([0.5, 1.0]) == [5000, 7000]
