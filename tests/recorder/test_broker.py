"""The recording of a broker that is restarted or killed is readable and judged correctly."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

from tests.recorder.comparison import SEEN_BY_CLIENTS, audited, holes, unrecorded
from tests.recorder.conftest import Start, tell
from tests.recorder.journal import steps
from tests.recorder.scenario import Scenario
from tests.recorder.test_clients import assert_agrees
from tests.recorder.truth import Truth, truth

#: Lines older than this are in the file when the broker is killed: RealBroker flushes every 200 ms, later on a busy
#: machine.
_FLUSHED_NS = 5_000_000_000


def restart_broker(scenario: Scenario, *, killed: bool) -> Truth:
    """Restart or kill the broker while its clients go on; return what they saw."""
    for name in ("c1", "c2", "c3"):
        scenario.join(name, hold_ms=100)
    producer = scenario.producer(send_timeout_millis=0)
    publishing = Thread(target=scenario.publish, args=(producer, 1600), kwargs={"every_ms": 5})
    publishing.start()
    scenario.until(lambda: scenario.truth().received > 600, "600 receipts")
    if killed:  # not between two segments
        scenario.until(lambda: written(scenario), "a segment that is written")
    scenario.journal.note("reload")
    if killed:
        scenario.broker.kill()
        assert_readable(opened(scenario))
    else:
        scenario.broker.stop()
    scenario.broker.start()
    publishing.join()
    scenario.drained()
    scenario.restart("c2", hold_ms=100)
    scenario.publish(producer, 200, every_ms=5)
    scenario.drained()
    seen = scenario.end()
    scenario.broker.stop()
    return seen


def opened(scenario: Scenario) -> list[Path]:
    """List the segments of events that are being written."""
    return sorted(scenario.broker.recording.glob("events-*.open"))


def written(scenario: Scenario) -> bool:
    """True if a segment is being written and has a block; a segment that ends at this moment is none."""
    for segment in opened(scenario):
        with suppress(FileNotFoundError):
            if segment.stat().st_size:
                return True
    return False


def assert_readable(segments: list[Path]) -> None:
    """Assert that an open segment can be read up to its last whole block, with no line missing.

    The next segment may have begun a moment before, and have no block yet.
    """
    for segment in segments:
        seqs = [row["seq"] for row in map(json.loads, whole_blocks(segment.read_bytes())) if "seq" in row]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))) if seqs else True
    assert len(segments) <= 1


def whole_blocks(data: bytes) -> Iterator[bytes]:
    """Yield the lines of all complete gzip members of a file."""
    while data:
        member = zlib.decompressobj(wbits=31)
        text = member.decompress(data)
        if not member.eof:
            return
        yield from text.splitlines()
        data = member.unused_data


def test_restart(broker: Start) -> None:
    with Scenario(broker("python-broker-restart")) as scenario:
        seen = restart_broker(scenario, killed=False)
        assert seen.reloads == 1
        assert_agrees(scenario.broker.recording, seen)


def test_kill(broker: Start) -> None:
    with Scenario(broker("python-broker-kill")) as scenario:
        seen = restart_broker(scenario, killed=True)
        recording = scenario.broker.recording
        audit = audited(recording)
        tell(recording, seen, audit)
        assert (seen.reloads, seen.broken_keys, seen.unseen) == (1, set(), set())
        assert not list(recording.glob("*.open")), "the next start completed what was left"
        assert holes(recording) == []
        seen_steps = steps(scenario.folder)
        (kill,) = [step.t_ns for step in seen_steps if step.what == "reload"]
        flushed = [step for step in seen_steps if step.t_ns < kill - _FLUSHED_NS]
        assert unrecorded(truth(flushed), recording) == {}
        # Lines that were not flushed are gone: no finding may be certain because of them.
        assert audit.verdict["quarantined"] == 0
        certain = [
            finding
            for finding in audit.findings
            if not finding["uncertain"] and finding["severity"] != "info"
        ]
        assert certain == []
        assert "FAIL" not in {audit.promise(name) for name in SEEN_BY_CLIENTS}
