"""The reader accepts and counts every line of recordings of real brokers."""

import gzip
from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.recording.schema import KINDS
from tests.sample import some

RECORDINGS = Path(__file__).parents[3] / "shared" / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recordings are not on this machine"),
]


def test_recordings_are_read_without_a_reject():
    sources = find_recordings([RECORDINGS])
    assert len(sources) == 342
    for source in some(sources, 6):
        recording = read_recording(source)
        lines = 0
        for file in (*source.messages, *source.events):
            with gzip.open(file) as stream:
                lines += sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))
        counts = recording.counts
        assert recording.quarantine.num_rows == 0, source.name
        assert (counts.lines, counts.about_file, counts.unknown_kinds) == (lines, 1, {}), source.name
        (log,) = recording.logs
        assert log.header["scenario"] == source.folder.name
        assert len(log.messages) + len(log.events) + 1 == lines
        assert log.events["seq"][-1].as_py() == len(log.events)
        assert set(log.events["kind"].unique().to_pylist()) <= set(KINDS)
