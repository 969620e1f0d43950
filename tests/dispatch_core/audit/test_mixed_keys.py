"""Batches whose messages have several keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.audit.small_logs import ack, added, flow, message, numbered, read, sent, write

KEYS = [1, 2, None, 3, 0]


def found(folder: Path, events: list[dict[str, Any]], **header: Any) -> list[dict[str, Any]]:
    messages = [
        message(entry, "k", num_messages=3) | ({} if keys is None else {"keys": keys})
        for entry, keys in enumerate(KEYS)
    ]
    log = read(write(folder / "a" / "b", messages, numbered(events), **header))
    rows = audit_whole(log).anomalies.to_pylist()
    return [row for row in rows if row["kind"] == "mixed_key_entry"]


def log_of(**consumer: Any) -> list[dict[str, Any]]:
    return [added(1, **consumer), flow(1), sent(1, 0, 1, 2, 3, 4), ack(1, 0, 1, 2, 3, 4), sent(1, 1)]


def test_batches_of_several_keys_are_one_finding_for_each_connection(tmp_path: Path) -> None:
    (row,) = found(tmp_path, log_of())
    assert (row["positions"], row["consumers"], row["seqs"]) == (["5:1", "5:3"], [1], [3])
    assert (row["severity"], row["uncertain"]) == ("major", False)
    assert "worker-1 (connection 1) got 2 batches with messages of up to 3 keys" in row["explanation"]


@pytest.mark.parametrize("kind", ["Shared", "Failover", "Exclusive"])
def test_other_types_keep_no_order_by_key_or_have_one_consumer(tmp_path: Path, kind: str) -> None:
    assert found(tmp_path, log_of(), subscription_type=kind) == []


def test_a_consumer_that_allows_any_order_has_none(tmp_path: Path) -> None:
    assert found(tmp_path, log_of(allow_out_of_order=True)) == []
