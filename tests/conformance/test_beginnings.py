"""Recordings and operations that go on from a checkpoint made in their middle: no finding is certain that was not."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.reader import find_recordings, read_recording
from tests.conformance.snapshots import SHARED
from tests.conformance.test_snapshots import small
from tests.dispatch_core.logs_without_trace import stripped
from tests.dispatch_core.replay.interval_cuts import random_cuts
from tests.dispatch_core.replay.test_beginnings import compared

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not SHARED.is_dir(), reason="no recordings beside the repository"),
]
CUTS = 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", small(12) if SHARED.is_dir() else [])
def test_a_made_checkpoint_makes_no_finding_certain(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BEGINNING_LINES", 50)
    monkeypatch.setattr(stream, "BATCH_ROWS", 100)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", 100)
    (source,) = find_recordings([str(SHARED / name)])
    logs = [log for log in map(stripped, read_recording(source).logs) if log.events.num_rows]
    if len({(log.topic, log.subscription) for log in logs}) != 1:
        pytest.skip("not one dispatcher")
    chosen = random.Random(zlib.crc32(name.encode()))
    for number, cut_us in enumerate(random_cuts(logs, CUTS, chosen)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = compared(logs, cut_us, folder)
        assert found is None or not found.wrong(), cut_us
