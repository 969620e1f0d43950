"""Traces of brokers that have no lines for the effect of acks: 3.x, of which the released jars were recorded.

A trace of 3.x has no ``pending_ack_removed``: an ack takes effect at its own line, or as late as the next line of its
connection. The recordings in ``tests/data/races/3.*`` are of brokers 3.0.0 and 3.0.7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RACES: Final = Path(__file__).resolve().parents[2] / "data" / "races"
OF_3: Final = sorted(trace.parent for trace in RACES.glob("3.*/*/trace.jsonl.gz"))
#: Recording of ordinary acks, and a release whose ring places its consumers elsewhere.
ORDINARY: Final = RACES / "3.0.7" / "random-0000-ch-quiet"
OTHER_RING: Final = "3.0.2"


def name_of(recording: Path) -> str:
    return f"{recording.parent.name}/{recording.name}"


@pytest.mark.parametrize("recording", OF_3, ids=name_of)
def test_every_decision_follows_the_rules_of_the_release(recording: Path) -> None:
    result = t.verified(recording)
    assert result.profile is not None
    assert result.profile.warnings == ()
    assert t.raw(recording)[0]["broker_version"] == recording.parent.name
    assert result.tally.total("divergent") == 0
    counts = {name: numbers["decisions"] for name, numbers in result.tally.counts.items()}
    assert {name: n for name, n in counts.items() if n} == {
        name: n for name, n in t.published_formula(t.raw(recording)).items() if n
    }


@pytest.mark.parametrize("recording", OF_3, ids=name_of)
def test_an_ack_without_a_line_of_its_effect_is_needed(recording: Path, tmp_path: Path) -> None:
    """Without the acks, mark-delete stays where it is."""
    trace = [line for line in t.raw(recording) if line.get("kind") != "ack"]
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    result = t.verified(t.copy_with(recording, trace, tmp_path))
    assert result.tally.counts["position"]["divergent"] > 0


def test_another_ring_explains_nothing(tmp_path: Path) -> None:
    trace = t.raw(ORDINARY)
    trace[0]["broker_version"] = OTHER_RING
    result = t.verified(t.copy_with(ORDINARY, trace, tmp_path))
    assert result.tally.counts["dispatch"]["divergent"] > 0


def test_releases_are_recorded() -> None:
    assert {recording.parent.name for recording in OF_3} >= {"3.0.0", "3.0.7"}
