"""The broker itself is restarted, or killed in the middle: what it had recorded is readable, and judged as what it is."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

from tests.recorder.comparison import SEEN_BY_CLIENTS, audited, holes, unrecorded
from tests.recorder.conftest import Start, tell
from tests.recorder.journal import steps
from tests.recorder.life import Life
from tests.recorder.test_clients import assert_agrees
from tests.recorder.truth import Truth, truth

#: Older lines are in the file when the broker is killed: RealBroker has them flushed every 200 ms.
_FLUSHED_NS = 2_000_000_000


def live_through(life: Life, *, killed: bool) -> Truth:
    """Clients that go on by themselves while their broker goes and comes back."""
    for name in ("c1", "c2", "c3"):
        life.join(name, hold_ms=100)
    producer = life.producer(send_timeout_millis=0)
    publishing = Thread(target=life.publish, args=(producer, 1600), kwargs={"every_ms": 5})
    publishing.start()
    life.until(lambda: life.truth().received > 600, "600 receipts")
    if killed:  # not between two segments
        life.until(lambda: any(one.stat().st_size for one in opened(life)), "a segment that is written")
    life.journal.note("reload")
    if killed:
        life.broker.kill()
        assert_readable(opened(life))
    else:
        life.broker.stop()
    life.broker.start()
    publishing.join()
    life.drained()
    life.restart("c2", hold_ms=100)
    life.publish(producer, 200, every_ms=5)
    life.drained()
    seen = life.end()
    life.broker.stop()
    return seen


def opened(life: Life) -> list[Path]:
    """Segments of events that are being written."""
    return sorted(life.broker.recording.glob("events-*.open"))


def assert_readable(segments: list[Path]) -> None:
    """What a killed broker leaves open can be read up to its last whole block, with no line missing before it."""
    (segment,) = segments
    lines = list(whole_blocks(segment.read_bytes()))
    seqs = [row["seq"] for row in map(json.loads, lines) if "seq" in row]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def whole_blocks(data: bytes) -> Iterator[bytes]:
    """The lines of all gzip members of a file that are complete."""
    while data:
        member = zlib.decompressobj(wbits=31)
        text = member.decompress(data)
        if not member.eof:
            return
        yield from text.splitlines()
        data = member.unused_data


def test_restart(broker: Start) -> None:
    with Life(broker("python-broker-restart")) as life:
        seen = live_through(life, killed=False)
        assert seen.reloads == 1
        assert_agrees(life.broker.recording, seen)


def test_kill(broker: Start) -> None:
    with Life(broker("python-broker-kill")) as life:
        seen = live_through(life, killed=True)
        recording = life.broker.recording
        audit = audited(recording)
        tell(recording, seen, audit)
        assert (seen.reloads, seen.broken_keys, seen.unseen) == (1, set(), set())
        assert not list(recording.glob("*.open")), "the next start completed what was left"
        assert holes(recording) == []
        seen_steps = steps(life.folder)
        (kill,) = [step.t_ns for step in seen_steps if step.what == "reload"]
        flushed = [step for step in seen_steps if step.t_ns < kill - _FLUSHED_NS]
        assert unrecorded(truth(flushed), recording) == {}
        # Lines that were not flushed are gone: what they may have said must not make a finding that is called certain.
        assert audit.verdict["quarantined"] == 0
        certain = [one for one in audit.findings if not one["uncertain"] and one["severity"] != "info"]
        assert certain == []
        assert "FAIL" not in {audit.promise(name) for name in SEEN_BY_CLIENTS}
