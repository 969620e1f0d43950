"""Damaged logs never crash a replay: whatever is wrong comes out as a finding, a divergence or a reason."""

from __future__ import annotations

import gzip
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
NAMES = ("designed-drain-one-by-one-ch", "designed-failover-modulo-p1", "designed-negative-acks-ch")
DAY = datetime(2026, 11, 21, tzinfo=UTC)

Trace = list[dict[str, Any]]


def raw(name: str) -> Trace:
    with gzip.open(SAMPLE / name / "trace.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def damage(trace: Trace, chance: random.Random) -> None:
    at = chance.randrange(1, len(trace))
    line = trace[at]
    match chance.choice(["drop", "repeat", "swap", "field", "value", "positions", "header", "kind"]):
        case "drop":
            del trace[at]
        case "repeat":
            trace.insert(at, dict(chance.choice(trace[1:])))
        case "swap":
            other = chance.randrange(1, len(trace))
            trace[at], trace[other] = trace[other], trace[at]
        case "field":
            line.pop(chance.choice([name for name in line if name != "kind"]), None)
        case "value":
            name = chance.choice(list(line))
            value = line[name]
            if isinstance(value, bool):
                line[name] = not value
            elif isinstance(value, int):
                line[name] = chance.choice([0, -1, value + 1, 2**40, None])
        case "positions":
            if line.get("positions"):
                line["positions"] = chance.choice(
                    [[], ["9:9"], line["positions"][::-1], line["positions"] * 2, None]
                )
        case "header":
            trace[0][chance.choice(list(trace[0]))] = chance.choice([None, 1, "x", []])
        case "kind":
            line["kind"] = chance.choice(trace[1:])["kind"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_log_is_replayed_to_the_end(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    name = chance.choice(NAMES)
    trace = raw(name)
    for _ in range(chance.randint(1, 8)):
        damage(trace, chance)
    folder = tmp_path / name
    folder.mkdir()
    (folder / "messages.jsonl.gz").write_bytes((SAMPLE / name / "messages.jsonl.gz").read_bytes())
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in trace), encoding="utf-8")
    (source,) = find_recordings([str(folder)])
    recording = read_recording(source)
    for log in recording.logs:
        result = replay(log, interval_start=DAY, interval_end=DAY + timedelta(days=1))
        assert set(result) == set(REPLAY_TABLES)
        state = result["dispatcher_state"].to_pylist()[0]
        assert state["not_judged_reason"] or state["decisions"] > 0
    assert recording.logs or recording.quarantine.num_rows
