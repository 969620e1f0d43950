"""Entries that nobody was sent are counted exactly, however many of them a finding lists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest

from dispatch_core.audit.limits import Limits
from dispatch_core.audit.unsent_entries import explained
from dispatch_core.audit.waits.notes import MOST_POSITIONS
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.whole_log import WholeAudit, audit_whole
from tests.dispatch_core.audit.small_logs import Event, ack, added, message, numbered, read, sent, write

STALLS = Path(__file__).resolve().parents[2] / "data" / "stalls"
AT_ONCE = Limits(stuck_key_ms=0, stuck_consumer_ms=0, stuck_subscription_ms=0)
MANY = 3 * MOST_POSITIONS


def audit(
    folder: Path, keys: int, gone_over: int, tail: int, permits: int, kind: str, limits: Limits
) -> WholeAudit:
    """Five entries are sent, then ``gone_over`` are not, six are, and ``tail`` are not."""
    entries = 11 + gone_over + tail
    events: list[Event] = [added(1), {"kind": "flow", "consumer": 1, "permits": permits}]
    for entry in (*range(5), *range(5 + gone_over, 11 + gone_over)):
        events += [sent(1, entry), ack(1, entry)]
    stored = [message(entry, f"k{entry % keys}") for entry in range(entries)]
    fields = {"format": "pulsar-consumer-events", "subscription_type": kind}
    return audit_whole(read(write(folder / "a" / "b", stored, numbered(events), **fields)), limits=limits)


@pytest.mark.parametrize("keys", [1, 4])
@pytest.mark.parametrize(("gone_over", "tail"), [(MANY, 0), (0, MANY), (MANY, MANY)])
@pytest.mark.parametrize(
    ("kind", "permits"), [("Key_Shared", 1_000), ("Key_Shared", 11), ("Failover", 1_000), ("Failover", 11)]
)
def test_all_that_findings_tell_of_is_counted_once(
    tmp_path: Path, kind: str, permits: int, gone_over: int, tail: int, keys: int
) -> None:
    found = audit(tmp_path, keys, gone_over, tail, permits, kind, AT_ONCE)
    (unsent,) = found.waits["never_delivered"].to_pylist()
    assert unsent == gone_over + tail
    assert sum(found.anomalies["unsent"].fill_null(0).to_pylist()) == unsent
    assert explained(found.anomalies, 0) == unsent
    assert explained(found.anomalies, 1) == 0, "of another load of the topic"


@pytest.mark.parametrize("keys", [4, MOST_POSITIONS + 5])
def test_a_stall_at_the_end_counts_the_entries_of_all_keys(tmp_path: Path, keys: int) -> None:
    found = audit(tmp_path, keys, 0, MANY, 1_000, "Failover", Limits()).anomalies.to_pylist()
    stalls = [(row["kind"], row["reason"], row["unsent"]) for row in found if row["unsent"]]
    assert stalls == [("stuck_subscription", "no_read", MANY)]


@pytest.mark.parametrize(
    ("gone_over", "tail", "keys"), [(MANY, 0, 1), (MANY, 0, 4), (MANY, 0, MOST_POSITIONS + 5), (0, MANY, 1)]
)
def test_of_many_the_first_are_named_and_all_are_counted_by_key(
    tmp_path: Path, gone_over: int, tail: int, keys: int
) -> None:
    found = audit(tmp_path, keys, gone_over, tail, 1_000, "Failover", Limits()).anomalies.to_pylist()
    lost = [row for row in found if row["kind"] == "never_delivered"]
    first = 5 if gone_over else 11
    entries = Counter(f"k{entry % keys}" for entry in range(first, first + MANY))
    counted = 0
    for row in lost:
        words = row["explanation"].split(f" (key {row['key']})")[0]
        more = re.search(r" and (\d+) more$", words)
        named = len(re.findall(r"\d+:\d+", words))
        assert named + (int(more.group(1)) if more else 0) == entries[row["key"]]
        counted += entries[row["key"]]
    rest = re.search(r"; so were (\d+) more of (\d+) other keys?$", lost[-1]["explanation"])
    assert [int(count) for count in (rest.groups() if rest else (0, 0))] == [MANY - counted, keys - len(lost)]
    assert all("so were" not in row["explanation"] for row in lost[:-1])
    assert sum(row["unsent"] for row in lost) == MANY


def test_what_was_sent_in_the_end_explains_nothing(tmp_path: Path) -> None:
    """An entry that waited too long and was sent explains no other entry that was not sent."""
    found = audit(tmp_path, 1, 0, 0, 1_000, "Key_Shared", AT_ONCE)
    assert "stuck_key" in found.anomalies["kind"].to_pylist()
    assert sum(found.anomalies["unsent"].fill_null(0).to_pylist()) == 0
    assert explained(found.anomalies, 0) == 0


def test_behind_the_end_of_the_comparison_every_unsent_entry_counts() -> None:
    """In this trace (tests/data/stalls) delayed messages end the comparison with the rules; 4:99 is the last one sent."""
    (source,) = find_recordings([str(STALLS / "4.0.0" / "soak-82225-ch-racing")])
    (log,) = read_recording(source).logs
    sent = log.events.filter(pc.equal(log.events["kind"], "sent"))["positions"].to_pylist()
    delivered = {(position["ledger_id"], position["entry_id"]) for row in sent for position in row}
    last_ms = log.events["t_us"][-1].as_py() // 1000
    due = [
        (row["ledger_id"], row["entry_id"])
        for row in log.messages.to_pylist()
        if last_ms - max(row["publish_time_ms"], row["deliver_at_ms"] or 0) > 200
    ]
    at_100_ms = Limits(
        stuck_key_ms=100, stuck_consumer_ms=100, stuck_subscription_ms=100, never_delivered_ms=100
    )
    found = audit_whole(log, limits=at_100_ms, closed=False)
    unsent = len({*due} - delivered)
    assert found.waits["never_delivered"].to_pylist() == [unsent]
    assert unsent > sum(found.anomalies["unsent"].fill_null(0).to_pylist())
