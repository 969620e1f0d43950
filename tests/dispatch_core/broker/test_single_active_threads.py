"""Traces of a broker whose threads interleave at random: verification finds no divergent decision, and finds wrong rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.broker import single_active_rules as rules
from dispatch_core.broker.selectors import failover
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.tally import Tally
from dispatch_core.verify.trace.runner import verify
from tests.dispatch_core.broker.single_active_broker import Broker

STEPS = 2200


def played(folder: Path, seed: int) -> Tally:
    broker = Broker(
        seed, version=("4.2.4", "4.0.0")[seed % 2], delayed=seed % 3 > 0, redeliveries=seed % 4 > 1
    )
    broker.run(STEPS)
    broker.write_to(folder)
    (source,) = find_recordings([str(folder)])
    (log,) = read_recording(source).logs
    result = verify(log)
    assert result.not_judged is None
    return result.tally


@pytest.mark.parametrize("seed", range(12))
def test_no_interleaving_diverges(tmp_path: Path, seed: int) -> None:
    tally = played(tmp_path, seed)
    assert [f for f in tally.findings if f.status == "divergent"] == []
    assert tally.total("exact") > 50
    assert tally.total("uncertain") <= 0.03 * tally.total("decisions")
    assert all(f.racing_seq is not None for f in tally.findings)


@pytest.mark.parametrize(
    "wrong",
    [
        (failover, "sort_key", lambda candidate: (candidate.priority_level, b"")),
        (rules, "delay_holds_reads", lambda: True),
        (rules, "is_read_for_another", lambda reader, active: False),
        (rules, "disowned", lambda epoch, newest, epochs: False),
        (SingleActiveDispatcher, "_rewind", lambda self: None),
        (SingleActiveDispatcher, "notices_of_change", lambda self, active, connected: ()),
    ],
    ids=lambda wrong: wrong[1],
)
def test_a_wrong_rule_diverges_in_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[object, str, object]
) -> None:
    monkeypatch.setattr(*wrong)
    assert any(played(tmp_path / str(seed), seed).total("divergent") for seed in range(12))
