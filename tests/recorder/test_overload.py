"""Logs that lack lines: the recorder is slower than the broker, or its disk is full."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recorder.broker import TARGET
from tests.recorder.comparison import SEEN_BY_CLIENTS, audited, events, holes, status
from tests.recorder.conftest import Start, tell
from tests.recorder.scenario import Scenario


def test_what_the_recorder_lost_is_no_broken_promise() -> None:
    """In the recording of ``OverloadIT`` clients got every message once, and ``gap`` lines report half of the lines lost."""
    recording = TARGET / "it" / "overload" / "recording"
    audit = audited(recording)
    assert status(recording)["lost_events"] > 0
    assert {promise: audit.promise(promise) for promise in SEEN_BY_CLIENTS} == dict.fromkeys(
        SEEN_BY_CLIENTS, "UNKNOWN"
    )
    assert audit.promise("conformance") != "FAIL", (
        "decisions behind missing lines must not count against the broker"
    )
    certain = {finding["kind"] for finding in audit.findings if not finding["uncertain"]}
    assert certain <= {"log_gap", "unknown_position"}, "the only certain findings are those of missing lines"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB; mounting needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_harms_no_client_and_what_it_refused_is_counted(broker: Start, small_disk: Path) -> None:
    recording = small_disk / "recording"
    with Scenario(broker("python-full-disk", {"dispatchAuditRecorderDirectory": str(recording)})) as scenario:
        for name in ("c1", "c2"):
            scenario.join(name)
        producer = scenario.producer()
        scenario.publish(producer, 300, every_ms=3)
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(1 << 20))
        scenario.publish(producer, 600, every_ms=3)
        scenario.drained()
        filler.unlink()
        time.sleep(6)  # the recorder tries again every 5 s
        scenario.publish(producer, 300, every_ms=3)
        scenario.drained()
        seen = scenario.end()
        scenario.broker.stop()
    kept = TARGET / "it" / "python-full-disk" / "recording"
    shutil.copytree(recording, kept, dirs_exist_ok=True)  # the disk goes with the test
    assert (seen.published, seen.unseen, seen.after_ack, seen.broken_keys) == (1200, set(), set(), set())
    counts = status(recording)
    assert counts["failed_lines"] > 300, "events and messages"
    assert holes(recording) == []
    lines = list(events(recording))
    sent = sum(len(line["positions"]) for line in lines if line["kind"] == "sent")
    lost = sum(line["lost_sent_entries"] for line in lines if line["kind"] == "gap")
    # 600 were published while the disk was full; those in the recorder's queue were written when there was room.
    assert lost > 300
    assert sent + lost == sum(map(len, seen.entries.values()))
    audit = audited(recording)
    tell(recording, seen, audit)
    assert {finding["kind"] for finding in audit.findings if not finding["uncertain"]} <= {
        "log_gap",
        "unknown_position",
    }
