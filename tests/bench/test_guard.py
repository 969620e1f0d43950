"""Fail if a replay is ten times as slow as it should be; ``make bench`` shows smaller regressions.

This is the only test that could fail on a slow machine. A ratio of 1.5 is normal on a long log and 3 on this short one;
15 fails, and the better of two runs counts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.harness import in_turns
from dispatch_core.simulation.generate import generate
from dispatch_core.simulation.scenario import Scenario

MOST_TIMES_THE_COPY = 15
MESSAGES = 60_000


def made(folder: Path, scenario: Scenario) -> str:
    for _ in generate(scenario, folder):
        pass
    return str(folder)


@pytest.mark.slow
def test_a_replay_costs_little_more_than_the_copy_of_its_bytes(tmp_path: Path) -> None:
    log = made(tmp_path / "log", Scenario(messages=MESSAGES, churn="rolling-restart"))
    tiny = made(tmp_path / "tiny", Scenario(messages=1000, keys=100, consumers=4))
    staged, copied = str(tmp_path / "staged"), str(tmp_path / "copied")
    found = in_turns(
        [
            ("replay", "bench.replay:product", {"source": log, "staging": staged, "warm": tiny}),
            ("copy", "bench.copying:beside", {"source": log, "staged": staged, "into": copied}),
        ],
        2,
        cores=1,
    )
    for replay, copy in zip(found["replay"], found["copy"], strict=True):
        assert replay.facts["entries_sent"] >= MESSAGES
        assert copy.facts["rows_out"] >= replay.facts["deliveries"]
    ratios = [
        replay.seconds / copy.seconds for replay, copy in zip(found["replay"], found["copy"], strict=True)
    ]
    assert min(ratios) < MOST_TIMES_THE_COPY, f"a replay took {ratios} times as long as copying its bytes"
