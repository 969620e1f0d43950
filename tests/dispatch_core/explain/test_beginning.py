"""Explanations of a log that begins with a checkpoint: connected consumers and pending entries stand first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from tests.dispatch_core.audit.small_logs import ack, numbered, removed, sent, write
from tests.dispatch_core.audit.test_checkpoint_state import CHECKPOINT, FEW, begun


def moments_of(tmp_path: Path, capsys: pytest.CaptureFixture[str], *asked: str) -> list[dict[str, Any]]:
    main(["explain", str(tmp_path), *asked, "--json"])
    return [row for line in capsys.readouterr().out.splitlines() if "what" in (row := json.loads(line))]


def test_what_was_pending_and_what_was_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path, sent(2, 3), ack(1, 1), ack(2, 3))
    moments = moments_of(tmp_path, capsys, "--key", "k")
    first = [
        (row["seq"], row["consumer"], row["positions"]) for row in moments if row["what"] == "checkpoint"
    ]
    assert first == [(101, 1, ["5:1"]), (101, None, ["5:0", "5:2"])]
    texts = [row["text"] for row in moments]
    assert "the log begins: a was sent 5:1 before, and has not acknowledged it" in texts
    assert "the log begins: 5:0 and 5:2 were acknowledged before" in texts
    assert "a acknowledges 5:1" in texts
    assert not [row for row in moments if row["what"] == "sent" and "5:1" in row["positions"]]


def test_who_was_connected_and_what_it_may_be_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    consumers = [{"consumer": 1, "name": "a", "permits": 7, "unacked": 3}, {"consumer": 2, "name": "b"}]
    begun(tmp_path, sent(2, 3), removed(1), sent(2, 4), consumers=consumers)
    (first,) = [row for row in moments_of(tmp_path, capsys, "--consumer", "a") if row["what"] == "checkpoint"]
    assert first["text"] == (
        "the log begins: a is connected and has not acknowledged 5:1, sent before (3 unacknowledged messages in all); "
        "it may be sent 7 more messages"
    )
    left = [row for row in moments_of(tmp_path, capsys, "--consumer", "a") if row["what"] == "left"]
    assert [row["positions"] for row in left] == [["5:1"]]
    (other,) = [row for row in moments_of(tmp_path, capsys, "--consumer", "b") if row["what"] == "checkpoint"]
    assert other["text"] == "the log begins: b is connected; what it holds is not known"


def test_entries_finished_before_are_not_called_never_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path, sent(2, 3), ack(2, 3))
    main(["explain", str(tmp_path), "--key", "k"])
    assert (
        "5 entries, 5:0 to 5:4: 2 sent once, 2 acknowledged before the log begins, 1 never sent, 3 acknowledged"
        in " ".join(capsys.readouterr().out.split())
    )


def test_nobody_becomes_active_at_a_checkpoint_but_who_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = numbered([CHECKPOINT, sent(2, 3), removed(2), sent(1, 4)])
    lines = [line | {"seq": 100 + line["seq"]} for line in lines]
    write(tmp_path / "a" / "b", FEW, lines, subscription_type="Failover")
    owns = [
        row["text"]
        for row in moments_of(tmp_path, capsys, "--key", "k")
        if row["what"] == "owns" and row["seq"] == 101
    ]
    assert len(owns) == 1
