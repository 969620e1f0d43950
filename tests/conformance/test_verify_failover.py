"""All Failover and Exclusive recordings beside the repository: nothing divergent, and every wrong rule shows."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dispatch_core.broker import profiles
from dispatch_core.broker import single_active_rules as rules
from dispatch_core.broker.selectors import failover
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.tally import CLASSES, Tally
from dispatch_core.verify.trace import active_consumer_change
from dispatch_core.verify.trace.mark_delete_lines import AcksOnTheirWay
from dispatch_core.verify.trace.runner import verify

SHARED = Path(__file__).resolve().parents[3] / "shared"
RECORDINGS = SHARED / "recordings"

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository")


@cache
def logs() -> tuple[DispatcherLog, ...]:
    found = []
    for trace in sorted(RECORDINGS.glob("*/*/trace.jsonl.gz")):
        with gzip.open(trace, "rt", encoding="utf-8") as lines:
            kind = json.loads(next(lines))["subscription_type"]
        if kind in ("Failover", "Exclusive"):
            (source,) = find_recordings([str(trace.parent)])
            found += read_recording(source).logs
    return tuple(found)


def tallies() -> dict[str, Tally]:
    return {log.recording: verify(log).tally for log in logs()}


def test_no_divergent_decision_and_few_uncertain_ones() -> None:
    all_tallies = tallies()
    assert len(all_tallies) > 50
    for name, tally in all_tallies.items():
        assert [f for f in tally.findings if f.status == "divergent"] == [], name
        assert all(f.racing_seq is not None and f.reason for f in tally.findings), name
        assert tally.total("decisions") == tally.total("exact") + tally.total("uncertain") > 0
    for name in ("state", "position"):
        counts = [tally.counts[name] for tally in all_tallies.values()]
        assert (
            sum(number["uncertain"] for number in counts) <= 0.0005 * sum(n["decisions"] for n in counts) > 10
        )
    for racing, bar in ((True, 0.003), (False, 0.0005)):
        chosen = [tally for name, tally in all_tallies.items() if ("racing" in name) is racing]
        uncertain = sum(tally.total("uncertain") for tally in chosen)
        assert uncertain <= bar * sum(tally.total("decisions") for tally in chosen)
    for name in CLASSES:
        decisions = sum(tally.counts[name]["decisions"] for tally in all_tallies.values())
        uncertain = sum(tally.counts[name]["uncertain"] for tally in all_tallies.values())
        assert uncertain <= 0.02 * decisions, name


WRONG_RULES: dict[str, tuple[object, str, object]] = {
    "sort by join order": (failover, "sort_key", lambda candidate: (candidate.priority_level, b"")),
    "names before levels": (failover, "sort_key", lambda candidate: (0, candidate.name.encode())),
    "worse levels take part": (failover, "takes_part", lambda candidate, first: True),
    "the holder of a ring point keeps it": (failover, "wins_point", lambda joining, holder: False),
    "flow counts while the delay runs": (rules, "delay_holds_flow", lambda: False),
    "the delay holds the read after a batch": (rules, "delay_holds_reads", lambda: True),
    "all consumers are served": (rules, "only_the_active_is_served", lambda consumer, active: True),
    "reads of one less": (rules, "read_size", lambda permits, *_: max(permits - 1, 1)),
    "no rewind": (SingleActiveDispatcher, "_rewind", lambda self: None),
    "acks do not count": (SingleActiveDispatcher, "acknowledge", lambda self, entry, ack_set=(): None),
    "mark-delete does not move": (AcksOnTheirWay, "mark_delete", lambda self, applied: -1),
    "a batch is one message": (
        active_consumer_change,
        "batch_sizes",
        lambda messages: np.ones(messages.num_rows, np.int64),
    ),
    "no consumer is notified": (
        SingleActiveDispatcher,
        "notices_of_change",
        lambda self, active, connected: (),
    ),
}


@cache
def batches() -> tuple[DispatcherLog, ...]:
    """Return recordings whose entries hold several messages."""
    folders = [str(path) for path in sorted(SHARED.glob("operations/*/failover-batches-*"))]
    return tuple(log for source in find_recordings(folders) for log in read_recording(source).logs)


def test_no_decision_about_batches_diverges() -> None:
    assert [log.recording for log in batches() if verify(log).tally.total("divergent")] == []


def divergent_somewhere() -> bool:
    return any(verify(log).tally.total("divergent") > 0 for log in (*logs(), *batches()))


@pytest.mark.parametrize("name", WRONG_RULES)
def test_a_wrong_rule_shows(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(*WRONG_RULES[name])
    assert divergent_somewhere()


@pytest.mark.parametrize("ring", [True, False])
def test_swapping_modulo_and_ring_shows(monkeypatch: pytest.MonkeyPatch, ring: bool) -> None:
    right = failover.pick

    def swapped(candidates: list[failover.Candidate], **given: object) -> failover.Choice:
        partition, topic = given["partition_index"], given["topic"]
        assert isinstance(partition, int)
        assert isinstance(topic, str)
        return right(candidates, partition_index=max(partition, 0), topic=topic, ring=ring)

    monkeypatch.setattr(failover, "pick", swapped)
    assert divergent_somewhere()


def test_a_change_without_delay_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = profiles.Profile.number
    monkeypatch.setattr(
        profiles.Profile,
        "number",
        lambda self, name: 0 if name == "activeConsumerFailoverDelayTimeMillis" else right(self, name),
    )
    assert divergent_somewhere()
