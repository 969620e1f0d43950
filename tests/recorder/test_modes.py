"""The other ways to share a topic: batches, Failover, Exclusive, STICKY ranges, ranges that are split."""

from __future__ import annotations

import json
import shutil

import pulsar

from tests.recorder.broker import TARGET
from tests.recorder.comparison import SEEN_BY_CLIENTS, audited, events
from tests.recorder.conftest import Start
from tests.recorder.life import Life
from tests.recorder.test_clients import assert_agrees


def test_batches(broker: Start) -> None:
    """Entries of several messages, each acknowledged for itself; a client is killed with parts of batches in hand."""
    with Life(broker("python-batches", {"acknowledgmentAtBatchIndexLevelEnabled": "true"})) as life:
        for name in ("c1", "c2"):
            life.join(name, hold_ms=50, batch_index_ack=True, queue=500)
        producer = life.producer(
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_publish_delay_ms=200,
        )
        life.publish(producer, 1000, every_ms=2)
        life.join("c3", hold_ms=700, batch_index_ack=True, queue=500)
        life.publish(producer, 1000, every_ms=2)
        life.in_hand(30)
        life.kill("c3")
        life.publish(producer, 500, every_ms=2)
        life.drained()
        seen = life.end()
        life.broker.stop()
        entries = {entry for of_one in seen.entries.values() for entry in of_one}
        assert len(entries) < seen.published / 2, "entries hold several messages"
        assert_agrees(life.broker.recording, seen)


def test_failover(broker: Start) -> None:
    """The active consumer is killed, then closed; others take over."""
    with Life(broker("python-failover")) as life:
        for name in ("c1", "c2", "c3"):
            life.join(name, type="Failover", hold_ms=50)
        producer = life.producer()
        for leave in (life.kill, life.leave):
            life.publish(producer, 300, every_ms=3)
            life.in_hand(5)
            leave(life.latest())
        life.publish(producer, 300, every_ms=3)
        life.drained()
        seen = life.end()
        life.broker.stop()
        assert len(seen.entries) == 3, "each of them was active"
        assert_agrees(life.broker.recording, seen)


def test_failover_hands_over_what_is_in_hand(broker: Start) -> None:
    """Who takes over gets again what the one before still works on: Pulsar does not prevent it, and clients see it."""
    with Life(broker("python-failover-hand-over", {"activeConsumerFailoverDelayTimeMillis": "0"})) as life:
        producer = life.producer()
        # the ring over consumers' names prefers c14 to c1 on a topic of this name
        for name in ("c1", "c14"):
            life.join(name, type="Failover", hold_ms=1500)
            life.publish(producer, 60, every_ms=3)
            life.in_hand(20)
        life.publish(producer, 100, every_ms=3)
        life.drained()
        seen = life.end()
        life.broker.stop()
        assert len(seen.entries) == 2, "nobody took over"
        assert seen.at_two
        assert_agrees(life.broker.recording, seen, clean=False)


def test_exclusive(broker: Start) -> None:
    """One consumer at a time that acknowledges cumulatively: restarted, killed, replaced."""
    with Life(broker("python-exclusive")) as life:
        life.join("c1", type="Exclusive", hold_ms=50, cumulative=True)
        producer = life.producer()
        life.publish(producer, 300, every_ms=3)
        life.restart("c1", type="Exclusive", hold_ms=50, cumulative=True)
        life.publish(producer, 300, every_ms=3)
        life.in_hand(5)
        life.kill("c1")
        life.join("c2", type="Exclusive", hold_ms=50, cumulative=True)
        life.publish(producer, 300, every_ms=3)
        life.drained()
        seen = life.end()
        life.broker.stop()
        assert_agrees(life.broker.recording, seen)


def test_sticky(broker: Start) -> None:
    """Each consumer has its ranges of the hash space; one is restarted, one killed and replaced."""
    ranges = {"c1": [[0, 20000]], "c2": [[20001, 40000]], "c3": [[40001, 50000], [50001, 65535]]}
    with Life(broker("python-sticky")) as life:
        for name, own in ranges.items():
            life.join(name, hold_ms=100, ranges=own)
        producer = life.producer()
        life.publish(producer, 400, every_ms=3)
        life.restart("c1", hold_ms=100, ranges=ranges["c1"])
        life.publish(producer, 400, every_ms=3)
        life.in_hand(10)
        life.kill("c2")
        life.publish(producer, 100, every_ms=3)
        life.join("c4", hold_ms=100, ranges=ranges["c2"])
        life.publish(producer, 100, every_ms=3)
        life.drained()
        seen = life.end()
        life.broker.stop()
        assert_agrees(life.broker.recording, seen)


def test_split_ranges(broker: Start) -> None:
    """Ranges are split for newcomers and given back; then the log from its second segment on, as after ``KeepHours``.

    Who has which range depends on all who came before: behind a cut only the checkpoint knows.
    """
    with Life(broker("python-ranges", {"subscriptionKeySharedUseConsistentHashing": "false"})) as life:
        for name in ("c1", "c2", "c3"):
            life.join(name, hold_ms=100)
        producer = life.producer()
        life.publish(producer, 600, every_ms=5)
        life.restart("c1", hold_ms=100)
        life.publish(producer, 600, every_ms=5)
        life.in_hand(10)
        life.kill("c2")
        life.publish(producer, 300, every_ms=5)
        life.join("c4", hold_ms=100)
        life.publish(producer, 600, every_ms=5)
        life.drained()
        seen = life.end()
        life.broker.stop()
        assert_agrees(life.broker.recording, seen)
    kept = TARGET / "ranges-kept"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(life.broker.recording, kept)
    segments = sorted(kept.glob("events-*.jsonl.gz"))
    assert len(segments) > 2
    segments[0].unlink()
    first = next(line for line in events(kept) if line["kind"] == "checkpoint")
    assert all(one["hash_ranges"] for one in first["consumers"]), json.dumps(first)
    behind = audited(kept)
    assert {behind.promise(name) for name in SEEN_BY_CLIENTS} == {"PASS"}, behind.verdict
    assert behind.promise("conformance") == "PASS"
    certain = {one["kind"] for one in behind.findings if not one["uncertain"] and one["severity"] != "info"}
    assert certain == set(), behind.findings
