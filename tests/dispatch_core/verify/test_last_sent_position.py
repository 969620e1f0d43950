"""Real traces of 4.0.0-preview.1: nothing divergent on them, and what is moved in them is seen there."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.broker.ordering import last_sent_position
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.trace.runner import Verification, verify

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "verify" / "4.0.0-preview.1"
SLOW_OWNER = SAMPLES / "designed-slow-owner-newcomer-ch"
NACKS = SAMPLES / "designed-negative-acks-range"

Trace = list[dict[str, Any]]


def verified(folder: Path) -> Verification:
    (source,) = find_recordings([str(folder)])
    (log,) = read_recording(source).logs
    return verify(log)


def tampered(tmp_path: Path, folder: Path, change: Callable[[Trace], int]) -> tuple[Verification, int]:
    """Verify a copy whose trace ``change`` has altered; returns the seq it altered, too."""
    copy = tmp_path / "4.0.0-preview.1" / folder.name
    shutil.copytree(folder, copy)
    path = copy / "trace.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        trace = [json.loads(line) for line in lines]
    seq = change(trace)
    path.chmod(0o644)
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for line in trace)
    return verified(copy), seq


@pytest.mark.parametrize("folder", [SLOW_OWNER, NACKS], ids=lambda folder: folder.name)
def test_every_decision_is_exact(folder: Path) -> None:
    tally = verified(folder).tally
    assert tally.findings == []
    assert tally.total("exact") == tally.total("decisions") > 150


def test_a_replay_read_beyond_the_limit_of_a_recently_joined_consumer_is_seen(tmp_path: Path) -> None:
    """One more of the entries that wait for mark-delete, in the replay read before it had moved there."""

    def reads_more(trace: Trace) -> int:
        joined = max(at for at, line in enumerate(trace) if line.get("kind") == "selector_added")
        read = next(line for line in trace[joined:] if line.get("kind") == "replay_read_issued")
        waiting = next(
            line
            for line in trace
            if line.get("seq", 0) > read["seq"] and line["kind"] == "replay_read_issued"
        )
        read["positions"] = [*read["positions"], waiting["positions"][-1]]
        return int(read["seq"])

    result, seq = tampered(tmp_path, SLOW_OWNER, reads_more)
    assert result.tally.first_divergence is not None
    assert result.tally.first_divergence.decision_class == "read"
    assert abs(result.tally.first_divergence.seq - seq) <= 2


def test_an_entry_moved_to_another_consumer_is_seen(tmp_path: Path) -> None:
    def moves(trace: Trace) -> int:
        sends = [at for at, line in enumerate(trace) if line.get("kind") == "sent"]
        first, second = next((a, b) for a, b in pairwise(sends) if b - a == 2)  # of one round
        trace[second]["positions"].append(trace[first]["positions"].pop())
        trace[second]["batch_sizes"].append(trace[first]["batch_sizes"].pop())
        return int(trace[first]["seq"])

    result, seq = tampered(tmp_path, NACKS, moves)
    assert result.tally.first_divergence is not None
    assert result.tally.first_divergence.seq == seq


@pytest.mark.parametrize("release", ["4.0.0", "3.3.1"])
def test_another_release_in_the_header_is_seen(tmp_path: Path, release: str) -> None:
    def renames(trace: Trace) -> int:
        trace[0]["broker_version"] = release
        return 0

    result, _seq = tampered(tmp_path, SLOW_OWNER, renames)
    assert result.not_judged is not None or result.tally.total("divergent") > 0


def test_without_the_rule_the_trace_of_a_slow_owner_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples do exercise the rule: nobody held back is another answer than the broker's."""
    monkeypatch.setattr(
        "dispatch_core.broker.key_shared.last_sent_position.consumer_joined", lambda _st, _slot: 0
    )
    assert last_sent_position.consumer_joined(None, 0) == 0  # type: ignore[arg-type]
    assert verified(SLOW_OWNER).tally.total("divergent") > 0
