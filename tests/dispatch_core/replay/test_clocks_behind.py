"""Producers whose clocks are behind: an entry that was stored behind an interval's end seems to have waited before it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from dispatch_core.replay.replay_log import replay
from tests.dispatch_core.audit.small_logs import (
    MIDNIGHT,
    T0_US,
    ack,
    added,
    flow,
    message,
    numbered,
    read,
    sent,
    write,
)

#: Entries up to 5:5 are sent soon after midnight; 5:6 seems to be published 10 s after midnight, and is sent to nobody.
MINUTE_MS = 60_000
#: Nothing that explains an entry that is not sent goes unlogged.
RECORDS = ["cursor_moved", "subscription_deleted", "limit", "deliver_at_ms", "txn"]


def anomalies(
    folder: Path, clocks_ms: dict[int, int], producers: dict[int, str], last: int = 6
) -> list[tuple[str, bool]]:
    """Findings as of an hour after midnight about a log whose entries have these clocks and producers.

    ``last``: the highest entry that is stored; those behind 5:6 are sent.
    """
    lines = [added(1), flow(1)]
    messages = []
    for entry in range(last + 1):
        stored_ms = T0_US // 1000 + 1000 * (len(lines) + 1) - 2
        if entry == 6:
            stored_ms = T0_US // 1000 + 10_000 - clocks_ms.get(entry, 0)
        else:
            lines += [sent(1, entry), ack(1, entry)]
        published_ms, producer = stored_ms + clocks_ms.get(entry, 0), producers.get(entry, "p")
        messages.append(message(entry, f"k{entry % 2}", publish_time_ms=published_ms, producer=producer))
    log = read(write(folder, messages, numbered(lines), records=RECORDS))
    found = replay(log, interval_start=MIDNIGHT, interval_end=MIDNIGHT + timedelta(hours=1))
    return [(row["kind"], row["uncertain"]) for row in found["anomalies"].to_pylist()]


@pytest.mark.parametrize(
    ("clocks_ms", "producers", "uncertain"),
    [
        ({}, {}, False),
        (dict.fromkeys(range(7), -70 * MINUTE_MS), {}, True),
        ({6: -70 * MINUTE_MS}, {6: "new"}, True),
    ],
    ids=["as the others show", "as far behind as the others", "of a producer of which nothing was sent"],
)
def test_an_entry_that_a_clock_puts_before_the_end_is_no_certain_loss(
    clocks_ms: dict[int, int], producers: dict[int, str], uncertain: bool, tmp_path: Path
) -> None:
    assert anomalies(tmp_path / "a" / "b", clocks_ms, producers) == [("never_delivered", uncertain)]


def test_an_entry_before_one_that_was_sent_was_stored_whatever_its_clock(tmp_path: Path) -> None:
    found = anomalies(tmp_path / "a" / "b", {}, {6: "new"}, last=9)
    assert found == [("never_delivered", False)]
