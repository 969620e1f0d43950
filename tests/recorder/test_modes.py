"""The audit agrees with clients for batches, Failover, Exclusive, STICKY ranges and ranges that are split."""

from __future__ import annotations

import json
import shutil

import pulsar

from tests.recorder.broker import TARGET
from tests.recorder.comparison import SEEN_BY_CLIENTS, audited, events, unrecorded
from tests.recorder.conftest import Start
from tests.recorder.scenario import Scenario
from tests.recorder.test_clients import assert_agrees


def test_batches(broker: Start) -> None:
    """Messages of batches are acknowledged one by one; a client is killed with parts of batches in hand."""
    with Scenario(broker("python-batches", {"acknowledgmentAtBatchIndexLevelEnabled": "true"})) as scenario:
        for name in ("c1", "c2"):
            scenario.join(name, hold_ms=50, batch_index_ack=True, queue=500)
        producer = scenario.producer(
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_publish_delay_ms=200,
        )
        scenario.publish(producer, 1000, every_ms=2)
        scenario.join("c3", hold_ms=700, batch_index_ack=True, queue=500)
        scenario.publish(producer, 1000, every_ms=2)
        scenario.in_hand(30, producer)
        scenario.kill("c3")
        scenario.publish(producer, 500, every_ms=2)
        scenario.drained()
        seen = scenario.end()
        scenario.broker.stop()
        entries = {entry for positions in seen.entries.values() for entry in positions}
        assert len(entries) < seen.published / 2, "entries hold several messages"
        assert_agrees(scenario.broker.recording, seen)


def test_failover(broker: Start) -> None:
    """The active consumer is killed, then closed; others take over."""
    with Scenario(broker("python-failover")) as scenario:
        for name in ("c1", "c2", "c3"):
            scenario.join(name, type="Failover", hold_ms=400)
        producer = scenario.producer()
        for leave in (scenario.kill, scenario.leave):
            scenario.publish(producer, 300, every_ms=3)
            scenario.in_hand(5, producer)
            leave(scenario.latest())
        scenario.publish(producer, 300, every_ms=3)
        scenario.drained()
        seen = scenario.end()
        scenario.broker.stop()
        assert len(seen.entries) == 3, "each of them was active"
        assert_agrees(scenario.broker.recording, seen)


def test_failover_delivers_unacknowledged_entries_again(broker: Start) -> None:
    """The new active consumer gets entries that the one before still works on: Pulsar allows it, and clients see it."""
    with Scenario(
        broker("python-failover-hand-over", {"activeConsumerFailoverDelayTimeMillis": "0"})
    ) as scenario:
        producer = scenario.producer()
        # the ring over consumers' names prefers c14 to c1 on a topic of this name
        for name in ("c1", "c14"):
            scenario.join(name, type="Failover", hold_ms=6000)
            scenario.publish(producer, 60, every_ms=3)
            scenario.in_hand(20)
        scenario.publish(producer, 100, every_ms=3)
        scenario.drained()
        seen = scenario.end()
        scenario.broker.stop()
        assert len(seen.entries) == 2, "the active consumer did not change"
        assert seen.at_two
        assert unrecorded(seen, scenario.broker.recording) == {}
        audit = audited(scenario.broker.recording)
        assert audit.verdict["verdict"] == "PASS", "Pulsar documents it: it is counted and tolerated"
        doubles = {finding["positions"][0] for finding in audit.of("double_outstanding")}
        assert {"{}:{}".format(*entry) for entry, _ in seen.at_two} <= doubles


def test_exclusive(broker: Start) -> None:
    """One consumer at a time, with cumulative acks: restarted, killed, replaced."""
    with Scenario(broker("python-exclusive")) as scenario:
        scenario.join("c1", type="Exclusive", hold_ms=400, cumulative=True)
        producer = scenario.producer()
        scenario.publish(producer, 300, every_ms=3)
        scenario.restart("c1", type="Exclusive", hold_ms=400, cumulative=True)
        scenario.publish(producer, 300, every_ms=3)
        scenario.in_hand(5, producer)
        scenario.kill("c1")
        scenario.join("c2", type="Exclusive", hold_ms=400, cumulative=True)
        scenario.publish(producer, 300, every_ms=3)
        scenario.drained()
        seen = scenario.end()
        scenario.broker.stop()
        assert_agrees(scenario.broker.recording, seen)


def test_sticky(broker: Start) -> None:
    """Each consumer has its ranges of the hash space; one is restarted, one killed and replaced."""
    ranges = {"c1": [[0, 20000]], "c2": [[20001, 40000]], "c3": [[40001, 50000], [50001, 65535]]}
    with Scenario(broker("python-sticky")) as scenario:
        for name, own in ranges.items():
            scenario.join(name, hold_ms=400, ranges=own)
        producer = scenario.producer()
        scenario.publish(producer, 400, every_ms=3)
        scenario.restart("c1", hold_ms=100, ranges=ranges["c1"])
        scenario.publish(producer, 400, every_ms=3)
        scenario.in_hand(10, producer)
        scenario.kill("c2")
        scenario.publish(producer, 100, every_ms=3)
        scenario.join("c4", hold_ms=100, ranges=ranges["c2"])
        scenario.publish(producer, 100, every_ms=3)
        scenario.drained()
        seen = scenario.end()
        scenario.broker.stop()
        assert_agrees(scenario.broker.recording, seen)


def test_split_ranges(broker: Start) -> None:
    """Ranges are split for new consumers and merged again; the log from its second segment on, as after ``KeepHours``.

    The ranges of a consumer depend on all consumers before it: behind a cut only the checkpoint has them.
    """
    with Scenario(
        broker("python-ranges", {"subscriptionKeySharedUseConsistentHashing": "false"})
    ) as scenario:
        for name in ("c1", "c2", "c3"):
            scenario.join(name, hold_ms=400)
        producer = scenario.producer()
        scenario.publish(producer, 600, every_ms=5)
        scenario.restart("c1", hold_ms=100)
        scenario.publish(producer, 600, every_ms=5)
        scenario.in_hand(10, producer)
        scenario.kill("c2")
        scenario.publish(producer, 300, every_ms=5)
        scenario.join("c4", hold_ms=100)
        scenario.publish(producer, 600, every_ms=5)
        scenario.drained()
        seen = scenario.end()
        scenario.broker.stop()
        assert_agrees(scenario.broker.recording, seen)
    kept = TARGET / "ranges-kept"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(scenario.broker.recording, kept)
    segments = sorted(kept.glob("events-*.jsonl.gz"))
    assert len(segments) > 2
    segments[0].unlink()
    first = next(line for line in events(kept) if line["kind"] == "checkpoint")
    assert all(consumer["hash_ranges"] for consumer in first["consumers"]), json.dumps(first)
    behind = audited(kept)
    assert {behind.promise(name) for name in SEEN_BY_CLIENTS} == {"PASS"}, behind.verdict
    assert behind.promise("conformance") == "PASS"
    certain = {
        finding["kind"]
        for finding in behind.findings
        if not finding["uncertain"] and finding["severity"] != "info"
    }
    assert certain == set(), behind.findings
