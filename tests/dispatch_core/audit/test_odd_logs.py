"""Logs that keep the format and make no sense, which broke the audit; ``tests/fuzz`` looks for more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main

HEADER = {
    "format": "pulsar-consumer-events",
    "format_version": 1,
    "topic": "t",
    "subscription": "s",
    "broker_version": "4.2.4",
}
ADDED = {"kind": "consumer_added", "consumer": 1, "name": "a"}


def audited(folder: Path, *events: dict[str, Any], **header: Any) -> int:
    lines = [
        {"seq": seq, "t_us": 1_700_000_000_000_000 + seq * 1000} | event
        for seq, event in enumerate(events, 1)
    ]
    text = "".join(json.dumps(line) + "\n" for line in [HEADER | header, *lines])
    (folder / "events.jsonl").write_text(text)
    (folder / "messages.jsonl").write_text('{"topic":"t","position":"5:0","key":"k"}\n')
    return main(["audit", str(folder)])


def test_sets_of_acknowledged_messages_in_a_line_of_another_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"kind": "replay_read_issued", "positions": []}
    assert audited(tmp_path, line | {"ack_sets": []}) == audited(tmp_path, line)
    assert capsys.readouterr().out


def test_a_number_that_two_consumers_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audited(tmp_path, ADDED, ADDED | {"name": "b"}, subscription_type="Failover") == 0
    assert capsys.readouterr().out
